//! A slow check of what nobody reads: rot is found while there is still another copy to mend it from.

use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sq_sim::{Clock, DurableWriteError, FileHandle, FileSystem, Instant};

use super::chain::Damage;
use super::companion::{Companion, dir};
use super::index::{Index, checksum};
use super::reader::LogReader;
use super::scan::{Run, Runs, Scope, walk_runs};
use super::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderError};
use super::state::{Extent, Segment, lock};
use crate::TopicName;
use crate::error::{DamageReason, Evidence};

/// Something that a check found. Nothing was changed by it, and what is around it can be read.
#[derive(Debug)]
pub enum ScrubFinding {
    /// Bytes that are not what was written. `offsets` is empty where no record is lost: in a header, in
    /// a mark, or in an index, which is made anew when it is needed.
    Damage(Damage),
    /// A file that could not be read to its end.
    Unreadable {
        /// The segment file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// What a check looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubTotals {
    /// Segments read from end to end.
    pub segments: u64,
    /// Bytes of header and frames in them.
    pub bytes: u64,
    /// Segments that retention or a truncation took while they were being read.
    pub skipped: u64,
    /// What was found in the others.
    pub findings: u64,
}

/// Checks logs at a pace that leaves the disk to those who wait for it. Any number of logs may be
/// checked with one, at once or one after the other: they share the pace.
#[derive(Clone, Debug)]
pub struct Scrub {
    pace: Arc<Pace>,
}

impl Scrub {
    /// One that reads so many bytes a second, on `clock`.
    pub fn new(clock: Arc<dyn Clock>, bytes_per_second: NonZeroU64) -> Self {
        let ready_at = Mutex::new(clock.now());
        Self {
            pace: Arc::new(Pace {
                clock,
                bytes_per_second,
                ready_at,
            }),
        }
    }

    /// Checks every frame of every segment of a log, oldest first, up to what was readable when it
    /// came to the segment. It opens one file at a time. `report` is told what a segment holds when
    /// all of it was read.
    pub async fn check<F: FileSystem>(
        &self,
        reader: &LogReader<F>,
        mut report: impl FnMut(ScrubFinding) + Send,
    ) -> ScrubTotals {
        let mut totals = ScrubTotals::default();
        for segment in reader.state().segments().iter() {
            let extent = segment.extent();
            let checked = self.check_segment(&**reader.fs(), segment, extent).await;
            if !reader.state().holds(segment.id) {
                totals.skipped += 1;
                continue;
            }
            totals.segments += 1;
            totals.bytes += extent.bytes;
            let start = reader.start_offset();
            let still_counts = |finding: &ScrubFinding| match finding {
                ScrubFinding::Damage(damage) => {
                    let Damage { offsets, .. } = damage;
                    offsets.is_empty()
                        || (offsets.end > start && offsets.start < segment.extent().end_offset)
                }
                ScrubFinding::Unreadable { .. } => true,
            };
            for finding in checked.into_iter().filter(still_counts) {
                totals.findings += 1;
                report(finding);
            }
        }
        totals
    }

    async fn check_segment<F: FileSystem>(
        &self,
        fs: &F,
        segment: &Segment,
        extent: Extent,
    ) -> Vec<ScrubFinding> {
        let path = &segment.path;
        let file = match segment.open_read_only(fs).await {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let offsets = segment.name.base_offset..extent.end_offset;
                let missing = damage(segment, extent, 0, offsets, DamageReason::Missing);
                return vec![missing];
            }
            Err(source) => return vec![unreadable(path, source)],
        };
        let pace = Arc::clone(&self.pace);
        let file = PacedFile { file, pace };
        let mut findings = Vec::new();
        match check_header(&file, path).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => {
                let base = segment.name.base_offset;
                let reason = DamageReason::Header(e);
                findings.push(damage(segment, extent, 0, base..base, reason));
            }
            Err(source) => return vec![unreadable(path, source)],
        }
        let scope = Scope {
            file: &file,
            limit: extent.bytes,
            id: Some(segment.id),
            base_offset: segment.name.base_offset,
            from: None,
            max_zeros: extent.bytes,
            // Behind its end it is not looked.
            is_recycled: false,
        };
        match walk_runs(scope, |_| {}).await {
            Ok(Runs { runs, .. }) => findings.extend(holes(&runs, segment, extent)),
            Err(source) => findings.push(unreadable(path, source)),
        }
        findings.extend(self.check_index(fs, segment, extent).await);
        findings
    }

    /// Checks the index file, if there is one, against the checksum that the manifest has of it. A wrong
    /// one is made anew by the first reader that needs it.
    async fn check_index<F: FileSystem>(
        &self,
        fs: &F,
        segment: &Segment,
        extent: Extent,
    ) -> Option<ScrubFinding> {
        let listed = segment.index_checksum();
        let mut is_right = false;
        // Twice, as in a walk: a bit may have been lost on the way.
        for _ in 0..2 {
            self.pace.wait().await;
            let file = Companion::Index.read(fs, dir(segment), &segment.name);
            let file = file.await.filter(|_| listed != 0)?;
            self.pace.took(file.len());
            is_right |=
                Index::decode(&file, &segment.subject()).is_some() && checksum(&file) == listed;
            if is_right {
                break;
            }
        }
        if is_right || segment.index_checksum() != listed || segment.extent() != extent {
            return None;
        }
        let base = segment.name.base_offset;
        Some(ScrubFinding::Damage(Damage {
            path: Companion::Index.path(dir(segment), &segment.name),
            position: 0,
            offsets: base..base,
            reason: DamageReason::Index,
            evidence: Evidence::Manifest(extent.end_offset),
        }))
    }
}

/// Checks a header against the place that the file's path says.
async fn check_header(file: &PacedFile, path: &Path) -> io::Result<Result<(), SegmentHeaderError>> {
    let place = place_of(path);
    let mut fits = Ok(());
    // Twice, as in a walk: a bit may have been lost on the way.
    for _ in 0..2 {
        let head = file.read_at(0, SEGMENT_HEADER_LEN).await?;
        fits = SegmentHeader::decode(&head)
            .and_then(|header| place.map_or(Ok(()), |place| header.check_place(&place)));
        if fits.is_ok() {
            break;
        }
    }
    Ok(fits)
}

/// The header that a segment with this path has.
fn place_of(path: &Path) -> Option<SegmentHeader> {
    let dir = path.parent()?;
    let partition = dir.file_name()?.to_str()?.parse().ok()?;
    let topic = TopicName::new(dir.parent()?.file_name()?.to_str()?).ok()?;
    Some(SegmentHeader::new(&topic, partition))
}

/// What is missing between the runs of a segment's frames, and behind the last.
fn holes(runs: &[Run], segment: &Segment, extent: Extent) -> Vec<ScrubFinding> {
    let starts = runs.iter().skip(1).map(|run| run.offset);
    let nexts = starts.map(Some).chain([None]);
    let mut findings = Vec::new();
    for (run, next) in runs.iter().zip(nexts) {
        let is_whole = run.end_position >= extent.bytes && run.end_offset >= extent.end_offset;
        if next.is_none() && is_whole {
            break;
        }
        let to = next.unwrap_or(extent.end_offset).min(extent.end_offset);
        let offsets = run.end_offset.min(to)..to;
        let reason = run.stop.reason();
        findings.push(damage(segment, extent, run.end_position, offsets, reason));
    }
    findings
}

fn damage(
    segment: &Segment,
    extent: Extent,
    position: u64,
    offsets: Range<u64>,
    reason: DamageReason,
) -> ScrubFinding {
    ScrubFinding::Damage(Damage {
        path: segment.path.clone(),
        position,
        offsets,
        reason,
        evidence: Evidence::Readable(extent.end_offset),
    })
}

fn unreadable(path: &Path, source: io::Error) -> ScrubFinding {
    let path = path.to_path_buf();
    ScrubFinding::Unreadable { path, source }
}

/// So many bytes a second, whoever reads them.
#[derive(Debug)]
struct Pace {
    clock: Arc<dyn Clock>,
    bytes_per_second: NonZeroU64,
    /// When the next read may begin. Time that nobody used is not made up for.
    ready_at: Mutex<Instant>,
}

impl Pace {
    async fn wait(&self) {
        let left = lock(&self.ready_at).saturating_duration_since(self.clock.now());
        if !left.is_zero() {
            self.clock.sleep(left).await;
        }
    }

    fn took(&self, bytes: usize) {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut ready_at = lock(&self.ready_at);
        *ready_at = (*ready_at).max(self.clock.now()) + cost;
    }
}

/// A file that is read at a pace.
#[derive(Debug)]
struct PacedFile {
    file: Box<dyn FileHandle>,
    pace: Arc<Pace>,
}

fn read_only<T>() -> io::Result<T> {
    Err(io::ErrorKind::PermissionDenied.into())
}

#[async_trait]
impl FileHandle for PacedFile {
    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.pace.wait().await;
        let bytes = self.file.read_at(offset, len).await?;
        self.pace.took(bytes.len());
        Ok(bytes)
    }

    async fn write_at(&self, _: u64, _: &[Bytes]) -> io::Result<()> {
        read_only()
    }

    async fn write_and_sync_at(&self, _: u64, _: &[Bytes]) -> Result<(), DurableWriteError> {
        read_only().map_err(DurableWriteError::Write)
    }

    async fn sync_data(&self) -> io::Result<()> {
        read_only()
    }

    async fn sync_all(&self) -> io::Result<()> {
        read_only()
    }

    async fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        read_only()
    }

    async fn zero_range(&self, _: u64, _: u64) -> io::Result<()> {
        read_only()
    }

    async fn len(&self) -> io::Result<u64> {
        self.file.len().await
    }

    async fn set_len(&self, _: u64) -> io::Result<()> {
        read_only()
    }
}
