//! Reading a segment from its beginning or a recovery point to its end, as far as a truncation leaves it.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;

use sq_sim::{FileHandle, FileSystem};

use super::super::config::WalConfig;
use super::super::index::Index;
use super::super::manifest::ManifestContent;
use super::super::replay::Replay;
use super::super::scan::{Run, Runs, Scope, Stop, read_header, walk_runs};
use super::super::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderError};
use super::super::spare::end_of_zeros;
use super::super::state::Extent;
use super::resumed::{Resumed, resumed};
use super::{Candidate, Place, RecoveryPoint, RecoveryReport, longest_write};
use crate::error::{DamageReason, Error, Result};
use crate::frame::{FrameHeader, SEGMENT_ID_POSITION};

/// The frame that a segment begins with, as far as that matters.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct First {
    pub(in super::super) segment_id: u64,
    pub(in super::super) ordinal: u32,
    pub(in super::super) append_time_ms: u64,
}

impl From<&FrameHeader> for First {
    fn from(header: &FrameHeader) -> Self {
        Self {
            segment_id: header.segment_id,
            ordinal: header.ordinal,
            append_time_ms: header.append_time_ms,
        }
    }
}

/// What reading a segment gave.
pub(in super::super) struct Scan {
    pub(super) file: Box<dyn FileHandle>,
    pub(super) header: Result<SegmentHeader, SegmentHeaderError>,
    pub(in super::super) first: Option<First>,
    /// The recovery point that reading began at: its position, and the offset there. What is in front of it
    /// is as a whole scan would have found it, but for damage.
    pub(super) resumed_at: Option<(u64, u64)>,
    /// The file's length.
    pub(in super::super) file_len: u64,
    /// Where the last frame starts.
    pub(super) last_position: u64,
    /// The stretches of frames that can be read; at least one.
    pub(in super::super) runs: Vec<Run>,
    /// Whether anything but zeros stands behind the last of them, and what an earlier segment left.
    pub(in super::super) has_data_behind: bool,
    /// Everything below this is known to have been committed, by its frames or its recovery point.
    pub(in super::super) committed_before: u64,
    /// The highest `committed_before` in a frame.
    pub(super) told_committed: u64,
    /// Where the frames begin that none of its own says is committed: position and base offset.
    pub(super) unproven: VecDeque<(u64, u64)>,
    pub(super) index: Index,
    /// The zeros behind its last frame, where something else may be on the disk: in a file that was another
    /// segment's before.
    pub(super) zeros: Option<Range<u64>>,
}

impl Scan {
    /// The segment's file.
    pub(in super::super) fn file(&self) -> &dyn FileHandle {
        &*self.file
    }

    /// How much of its file was written when it was another segment's, as far as that is known, if it was.
    pub(super) fn recycled(&self) -> Option<u64> {
        let is_recycled = self.header.as_ref().is_ok_and(|header| header.is_recycled);
        // One without a frame is begun again from nothing.
        (is_recycled && self.first.is_some()).then_some(self.file_len)
    }

    /// Whether every frame counts, if so much of the segment does.
    pub(in super::super) fn all_count(&self, extent: Extent) -> bool {
        let resumed = self.resumed_at;
        self.last_position < extent.bytes
            && resumed.is_none_or(|(_, offset)| offset <= extent.end_offset)
    }

    /// Where reading it began.
    pub(super) fn read_from(&self) -> u64 {
        self.resumed_at
            .map_or(SEGMENT_HEADER_LEN as u64, |(position, _)| position)
    }

    /// Where the frame begins whose first offset is `offset`, of those not known to be committed.
    pub(in super::super) fn position_of(&self, offset: u64) -> Option<u64> {
        let frame = self.unproven.iter().find(|(_, base)| *base >= offset);
        frame.map(|(position, _)| *position)
    }
}

/// Whether a file is that of a segment: its first frame says so, whole or not, or there is none.
pub(super) async fn is_segment<F: FileSystem>(fs: &F, path: &Path, id: u64) -> Result<bool> {
    let file = fs
        .open_read_only(path)
        .await
        .map_err(Error::io("open", path))?;
    let position = (SEGMENT_HEADER_LEN + SEGMENT_ID_POSITION) as u64;
    let found = file.read_at(position, size_of::<u64>()).await;
    let found = found.map_err(Error::io("read", path))?;
    Ok(found.iter().all(|&b| b == 0) || found == id.to_be_bytes()[..])
}

/// Reads a segment, and the visitor is shown all of its frames; where there is none, it is read from its
/// recovery point on.
pub(super) async fn scan<F: FileSystem>(
    fs: &F,
    config: &WalConfig,
    place: &Place,
    found: &ManifestContent,
    candidate: &mut Candidate,
    report: &mut RecoveryReport,
    replay: &mut Option<Replay<'_>>,
) -> Result<()> {
    if let Some(replay) = replay {
        replay.before(fs, place, candidate).await;
    }
    let path = candidate.found_at();
    let file = fs.open(path).await.map_err(Error::io("open", path))?;
    let max_zeros = longest_write(config);
    let resumed = match replay {
        Some(_) => None,
        None => resumed(fs, config, place, &*file, found, candidate).await,
    };
    let mut reading = Reading {
        header: &place.header,
        manifest: found,
        candidate,
        max_zeros,
        resumed,
    };
    let scan = reading.read(file, replay).await;
    let scan = scan.map_err(Error::io("read", path))?;
    // The header is durable before the first frame is written: where no frame is, the file was never
    // finished.
    if let (Err(source), Some(first)) = (&scan.header, &scan.first) {
        let is_ours = candidate.entry.is_some_and(|e| e.id == first.segment_id);
        let is_foreign = matches!(
            source,
            SegmentHeaderError::Place { .. } | SegmentHeaderError::Version(_)
        );
        if is_foreign && !is_ours {
            // A segment of another partition must not be served as this one's, nor one of a format
            // that is not known as one of this. Where the manifest lists it, its header is damaged.
            return Err(Error::SegmentHeader {
                path: path.to_owned(),
                source: source.clone(),
            });
        }
        candidate.unfit = Some(DamageReason::Header(source.clone()));
    }
    report.segments_scanned += 1;
    report.frames_scanned += scan.runs.iter().map(|run| run.frames as u64).sum::<u64>();
    let end = scan.runs.last().map_or(0, |run| run.end_position);
    report.bytes_scanned += end.saturating_sub(scan.read_from());
    if let Some((position, offset)) = scan.resumed_at {
        report.recovery_points.push(RecoveryPoint {
            path: candidate.path.clone(),
            position,
            offset,
        });
    }
    candidate.scan = Some(scan);
    Ok(())
}

/// How a segment is read.
struct Reading<'a> {
    header: &'a SegmentHeader,
    manifest: &'a ManifestContent,
    candidate: &'a Candidate,
    max_zeros: u64,
    resumed: Option<Resumed>,
}

impl Reading<'_> {
    async fn read(
        &mut self,
        file: Box<dyn FileHandle>,
        replay: &mut Option<Replay<'_>>,
    ) -> io::Result<Scan> {
        let candidate = self.candidate;
        let mut found = read_header(&*file, self.header).await?;
        if found.is_err() {
            // As in a walk: a bit may have been lost on the way.
            found = read_header(&*file, self.header).await?;
        }
        let is_recycled = found.as_ref().is_ok_and(|header| header.is_recycled);
        let listed_ordinal = candidate.entry.map(|e| e.ordinal);
        let mut cut = Cut::default();
        let limit = file.len().await?;
        let mut seen_so_far = SoFar::new(self.resumed.take().filter(|_| found.is_ok()));
        let resumed_at = seen_so_far.resumed_at;
        let scope = Scope {
            file: &*file,
            limit,
            id: candidate.id(),
            base_offset: candidate.name.base_offset,
            from: resumed_at,
            max_zeros: self.max_zeros,
            is_recycled,
        };
        let walked = walk_runs(scope, |seen| {
            let (position, header, begins) = (seen.position, seen.header, seen.begins);
            seen_so_far.first.get_or_insert(header.into());
            let ordinal = listed_ordinal.unwrap_or(header.ordinal);
            if !cut.passes(position, header, begins, self.manifest.limit_of(ordinal)) {
                return;
            }
            seen_so_far.take_in(position, header, begins);
            if let Some(replay) = replay {
                replay.see(candidate.name, &seen);
            }
        });
        let Runs {
            runs,
            has_data_behind,
        } = walked.await?;
        let ends_in_zeros = is_recycled && !has_data_behind && cut.at.is_none();
        let end = runs.last().filter(|_| ends_in_zeros);
        // Behind the file's end there is nothing, and may be no room.
        let zeros = end.map(|run| run.end_position..end_of_zeros(run.end_position).min(limit));
        let zeros = zeros.filter(|zeros| !zeros.is_empty());
        let (runs, has_data_behind) = cut.apply(runs, has_data_behind);
        #[cfg(feature = "mutants")]
        let runs = if super::super::mutants::lacks(super::super::mutants::Guard::LastFrame) {
            trust_length(runs, limit)
        } else {
            runs
        };
        let SoFar {
            first,
            committed_before,
            told_committed,
            unproven,
            index,
            last_position,
            ..
        } = seen_so_far;
        Ok(Scan {
            file,
            header: found,
            first,
            resumed_at,
            file_len: limit,
            last_position,
            runs,
            has_data_behind,
            committed_before,
            told_committed,
            unproven,
            index,
            zeros,
        })
    }
}

/// What the frames say that were seen so far, or that a recovery point speaks for.
#[derive(Default)]
struct SoFar {
    resumed_at: Option<(u64, u64)>,
    first: Option<First>,
    committed_before: u64,
    told_committed: u64,
    unproven: VecDeque<(u64, u64)>,
    index: Index,
    last_position: u64,
}

impl SoFar {
    fn new(resumed: Option<Resumed>) -> Self {
        let Some(Resumed { point, last }) = resumed else {
            return Self::default();
        };
        let extent = point.subject.extent;
        Self {
            resumed_at: Some((extent.bytes, extent.end_offset)),
            first: Some(First {
                append_time_ms: point.first_append_ms,
                ..First::from(&last)
            }),
            // It was durable when the point was made.
            committed_before: extent.end_offset,
            told_committed: last.committed_before,
            unproven: VecDeque::new(),
            index: point.index,
            last_position: point.last.position,
        }
    }

    fn take_in(&mut self, position: u64, header: &FrameHeader, begins: bool) {
        self.last_position = position;
        self.told_committed = header.committed_before.max(self.told_committed);
        self.committed_before = self.told_committed.max(self.committed_before);
        let committed_before = self.committed_before;
        while self
            .unproven
            .front()
            .is_some_and(|(_, base)| *base < committed_before)
        {
            self.unproven.pop_front();
        }
        // A mark too: what follows it can't be reached without it.
        self.unproven.push_back((position, header.base_offset));
        self.index.note(position, header, begins);
    }
}

/// Where a segment's frames are cut off by a truncation: it is then as if they were not there.
#[derive(Default)]
struct Cut {
    /// The position and the offset of the first of them.
    at: Option<(u64, u64)>,
    /// The frames before it in its run.
    frames: usize,
}

impl Cut {
    /// Whether a frame counts, if offsets from `limit` on do not.
    fn passes(&mut self, position: u64, header: &FrameHeader, begins: bool, limit: u64) -> bool {
        if self.at.is_none() && header.base_offset.max(header.end_offset()) > limit {
            self.at = Some((position, header.base_offset));
        }
        if self.at.is_some() {
            if begins && self.at == Some((position, header.base_offset)) {
                self.frames = 0;
            }
            return false;
        }
        self.frames = if begins { 1 } else { self.frames + 1 };
        true
    }

    /// The runs without what is cut off, and whether anything else stands behind them.
    fn apply(self, mut runs: Vec<Run>, has_data_behind: bool) -> (Vec<Run>, bool) {
        let Some((position, offset)) = self.at else {
            return (runs, has_data_behind);
        };
        let cut = runs.iter().position(|run| run.end_position > position);
        runs.truncate(cut.map_or(runs.len(), |n| n + 1));
        if self.frames == 0 && runs.len() > 1 {
            // It is the first of its run.
            runs.pop();
        } else if let Some(last) = runs.last_mut() {
            last.end_position = position;
            last.end_offset = offset;
            last.frames = self.frames;
            last.stop = Stop::End;
        }
        (runs, false)
    }
}

#[cfg(feature = "mutants")]
fn trust_length(mut runs: Vec<Run>, length: u64) -> Vec<Run> {
    for last in runs.last_mut().into_iter().filter(|run| run.frames > 0) {
        last.end_position = length;
    }
    runs
}
