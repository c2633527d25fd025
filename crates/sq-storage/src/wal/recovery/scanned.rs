//! Reading a segment from end to end, as far as a truncation leaves it.

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
use super::{Candidate, Place, RecoveryReport, longest_write};
use crate::error::{DamageReason, Error, Result};
use crate::frame::{FrameHeader, SEGMENT_ID_POSITION};

/// What reading a segment from end to end gave.
pub(in super::super) struct Scan {
    pub(super) file: Box<dyn FileHandle>,
    pub(super) header: Result<SegmentHeader, SegmentHeaderError>,
    pub(in super::super) first: Option<FrameHeader>,
    /// The file's length.
    pub(in super::super) file_len: u64,
    /// Where the last frame starts.
    pub(super) last_position: u64,
    /// The stretches of frames that can be read; at least one.
    pub(in super::super) runs: Vec<Run>,
    /// Whether anything but zeros stands behind the last of them, and what an earlier segment left.
    pub(in super::super) has_data_behind: bool,
    /// The highest `committed_before` in a frame.
    pub(in super::super) committed_before: u64,
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

    /// Whether every frame that was found counts, if so much of the segment does.
    pub(in super::super) fn all_count(&self, extent: Extent) -> bool {
        self.last_position < extent.bytes
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

/// Reads a segment from end to end.
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
    let scan = read_segment(file, &place.header, found, candidate, max_zeros, replay).await;
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
    candidate.scan = Some(scan);
    Ok(())
}

async fn read_segment(
    file: Box<dyn FileHandle>,
    header: &SegmentHeader,
    manifest: &ManifestContent,
    candidate: &Candidate,
    max_zeros: u64,
    replay: &mut Option<Replay<'_>>,
) -> io::Result<Scan> {
    let mut found = read_header(&*file, header).await?;
    if found.is_err() {
        // As in a walk: a bit may have been lost on the way.
        found = read_header(&*file, header).await?;
    }
    let is_recycled = found.as_ref().is_ok_and(|header| header.is_recycled);
    let listed_ordinal = candidate.entry.map(|e| e.ordinal);
    let mut cut = Cut::default();
    let (id, base_offset) = (candidate.id(), candidate.name.base_offset);
    let limit = file.len().await?;
    let scope = Scope {
        file: &*file,
        limit,
        id,
        base_offset,
        max_zeros,
        is_recycled,
    };
    let (mut first, mut committed_before) = (None, 0);
    let mut unproven = VecDeque::new();
    let mut index = Index::default();
    let mut last_position = 0;
    let walked = walk_runs(scope, |seen| {
        let (position, header, begins) = (seen.position, seen.header, seen.begins);
        first.get_or_insert(*header);
        let limit = manifest.limit_of(listed_ordinal.unwrap_or(header.ordinal));
        if !cut.passes(position, header, begins, limit) {
            return;
        }
        last_position = position;
        committed_before = header.committed_before.max(committed_before);
        while unproven
            .front()
            .is_some_and(|(_, base)| *base < committed_before)
        {
            unproven.pop_front();
        }
        // A mark too: what follows it can't be reached without it.
        unproven.push_back((position, header.base_offset));
        index.note(position, header, begins);
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
    Ok(Scan {
        file,
        header: found,
        first,
        file_len: limit,
        last_position,
        runs,
        has_data_behind,
        committed_before,
        unproven,
        index,
        zeros,
    })
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
