//! Opening a partition: what its directory holds becomes a chain of segments, or an error that says
//! which acknowledged data is damaged.
//!
//! Segments that the manifest lists as sealed are taken by their word; the others are scanned. A
//! segment ends where the next one begins. Where the last one stops in the middle of something, it
//! is left as it is and takes no further write: the next append goes to a fresh file, whose base
//! bounds what may be read of it. So nothing is cut away here, nothing needs space, and a crash at
//! any point leaves a directory that gives the same log again.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, FileHandle, FileSystem};

use super::chain::{Chain, build_chain};
use super::config::WalConfig;
use super::manifest::{
    self, MANIFEST_NAME, Manifest, ManifestContent, ManifestEntry, read_manifest,
};
use super::scan::{Beyond, Stop, Walk, search_beyond};
use super::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderError, SegmentName};
use super::state::{Extent, Index, Segment};
use crate::error::{DamageReason, Error, Result};
use crate::frame::FrameHeader;

/// How much is rewritten at a time, in bytes.
const REWRITE_LEN: usize = 1 << 20;

/// What opening a partition found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// How many segments were read from end to end; sealed ones are not.
    pub segments_scanned: usize,
    /// How many valid frames they held.
    pub frames_scanned: u64,
    /// How many bytes were written again in place, because nothing proved them durable.
    pub bytes_rewritten: u64,
    /// Bytes behind the last record that no one was told about, left where they are.
    pub unacknowledged_tail: Option<UnacknowledgedTail>,
    /// Segments that nothing says were acknowledged and that continue nothing: renamed, kept.
    pub set_aside: Vec<PathBuf>,
    /// Segments without a single byte of data that were removed.
    pub removed_empty: Vec<PathBuf>,
    /// Lines of the manifest that could not be read.
    pub damaged_manifest_lines: usize,
}

/// What stands behind the last good record of the newest segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnacknowledgedTail {
    /// The segment file.
    pub path: PathBuf,
    /// Where it begins, in bytes from the file's start.
    pub position: u64,
    /// The offset that the first record there would have.
    pub offset: u64,
    /// How many valid frames are in it all the same, behind what is missing.
    pub frames: usize,
}

/// Where a partition's files are.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) header: SegmentHeader,
}

/// A partition as recovery leaves it to the writer.
pub(super) struct Recovered {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) active: Option<RecoveredActive>,
    /// The newest segment, where it takes no further write and the manifest does not say so yet.
    pub(super) retired: Option<ManifestEntry>,
    pub(super) next_offset: u64,
    pub(super) next_ordinal: u32,
    pub(super) manifest: Manifest,
    pub(super) report: RecoveryReport,
}

/// The segment that appends continue.
pub(super) struct RecoveredActive {
    pub(super) file: Box<dyn FileHandle>,
    pub(super) segment: Arc<Segment>,
    /// How old its first frame is, by the wall clock.
    pub(super) age: Duration,
    /// The highest `committed_before` that stands in it.
    pub(super) told_committed: u64,
}

/// A segment file and what is known of it.
pub(super) struct Candidate {
    pub(super) name: SegmentName,
    pub(super) path: PathBuf,
    pub(super) entry: Option<ManifestEntry>,
    /// `None` for a sealed one.
    pub(super) scan: Option<Scan>,
}

/// What reading a segment from end to end gave.
pub(super) struct Scan {
    file: Box<dyn FileHandle>,
    header: Result<(), SegmentHeaderError>,
    pub(super) first: Option<FrameHeader>,
    frames: u64,
    /// The offset behind the last good frame.
    pub(super) end_offset: u64,
    /// Where the last good frame ends, in bytes.
    pub(super) position: u64,
    /// The highest `committed_before` in a good frame.
    pub(super) committed_before: u64,
    /// Where the frames begin that none of its own says is committed: position and base offset.
    unproven: VecDeque<(u64, u64)>,
    index: Index,
    pub(super) stop: Stop,
    pub(super) beyond: Beyond,
}

impl Candidate {
    pub(super) fn ordinal(&self) -> Option<u32> {
        let scanned = self
            .scan
            .as_ref()
            .and_then(|s| s.first.as_ref())
            .map(|f| f.ordinal);
        self.entry.map(|e| e.ordinal).or(scanned)
    }

    pub(super) fn id(&self) -> Option<u64> {
        let scanned = self
            .scan
            .as_ref()
            .and_then(|s| s.first.as_ref())
            .map(|f| f.segment_id);
        self.entry.map(|e| e.id).or(self.name.id).or(scanned)
    }

    /// Where its records end, and the bytes up to there.
    pub(super) fn extent(&self) -> Extent {
        if let Some(scan) = &self.scan {
            return Extent {
                end_offset: scan.end_offset,
                bytes: scan.position,
            };
        }
        let seal = self.entry.and_then(|e| e.seal);
        Extent {
            end_offset: seal.map_or(self.name.base_offset, |s| s.end_offset),
            bytes: seal.map_or(SEGMENT_HEADER_LEN as u64, |s| s.length),
        }
    }

    /// Its extent when the segment behind it begins at `bound`.
    pub(super) fn extent_up_to(&self, bound: u64) -> Extent {
        let extent = self.extent();
        let Some(scan) = self.scan.as_ref().filter(|_| bound < extent.end_offset) else {
            return extent;
        };
        let cut = scan.unproven.iter().find(|(_, base)| *base >= bound);
        Extent {
            end_offset: bound,
            bytes: cut.map_or(extent.bytes, |(position, _)| *position),
        }
    }

    /// Whether it holds no byte that could be part of a frame, or was sealed without a record.
    pub(super) fn is_empty(&self) -> bool {
        match &self.scan {
            Some(scan) => scan.first.is_none() && !scan.beyond.has_data,
            None => self.extent().end_offset == self.name.base_offset,
        }
    }

    /// Whether appends can continue it.
    pub(super) fn is_open(&self) -> bool {
        self.scan.is_some()
    }
}

/// Opens a partition's directory.
pub(super) async fn recover<F: FileSystem>(
    fs: &F,
    config: &WalConfig,
    place: &Place,
    clock: &dyn Clock,
) -> Result<Recovered> {
    let names = list(fs, &place.dir).await?;
    let found = read_manifest(fs, &place.dir)
        .await
        .map_err(Error::io("read", place.dir.join(MANIFEST_NAME)))?;
    let mut report = RecoveryReport {
        damaged_manifest_lines: found.damaged_lines,
        ..RecoveryReport::default()
    };
    check_nothing_is_missing(place, &names, &found)?;
    let candidates = open_candidates(fs, config, place, &names, &found, &mut report).await?;
    let chain = build_chain(candidates, &found)?;
    for candidate in &chain.aside {
        report
            .set_aside
            .push(set_aside(fs, &candidate.path, &names).await?);
    }
    make_durable(fs, place, &chain, &mut report).await?;
    report.unacknowledged_tail = chain.tail.clone();
    let mut recovered = settle(fs, config, place, clock, chain, &found, report).await?;
    remove_leftovers(fs, place, &names, &mut recovered).await;
    Ok(recovered)
}

/// The names in a directory, none if it does not exist.
async fn list<F: FileSystem>(fs: &F, dir: &Path) -> Result<Vec<(OsString, u64)>> {
    match fs.list_dir(dir).await {
        Ok(entries) => Ok(entries.into_iter().map(|e| (e.name, e.len)).collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::io("list", dir)(e)),
    }
}

fn check_nothing_is_missing(
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
) -> Result<()> {
    let present: HashSet<SegmentName> = names
        .iter()
        .filter_map(|(name, _)| SegmentName::parse(name))
        .collect();
    match found.entries.iter().find(|e| !present.contains(&e.name)) {
        None => Ok(()),
        Some(entry) => Err(Error::MissingSegment {
            path: place.dir.join(entry.name.file_name()),
            base_offset: entry.name.base_offset,
        }),
    }
}

async fn open_candidates<F: FileSystem>(
    fs: &F,
    config: &WalConfig,
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
    report: &mut RecoveryReport,
) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for (file_name, len) in names {
        let Some(name) = SegmentName::parse(file_name) else {
            continue;
        };
        let path = place.dir.join(file_name);
        let entry = found.entries.iter().rev().find(|e| e.name == name).copied();
        let mut candidate = Candidate {
            name,
            path,
            entry,
            scan: None,
        };
        match entry.and_then(|e| e.seal) {
            Some(seal) if *len < seal.length => {
                let (path, actual) = (candidate.path, *len);
                return Err(Error::WrongLength {
                    path,
                    actual,
                    expected: seal.length,
                });
            }
            Some(_) => {}
            None => {
                let scan = scan(fs, config, place, &candidate).await?;
                report.segments_scanned += 1;
                report.frames_scanned += scan.frames;
                candidate.scan = Some(scan);
            }
        }
        candidates.push(candidate);
    }
    Ok(candidates)
}

/// Reads a segment from end to end.
async fn scan<F: FileSystem>(
    fs: &F,
    config: &WalConfig,
    place: &Place,
    candidate: &Candidate,
) -> Result<Scan> {
    let path = &candidate.path;
    let file = fs.open(path).await.map_err(Error::io("open", path))?;
    let zeros = config.max_frame_bytes as u64;
    let scan = read_segment(file, &place.header, candidate, zeros)
        .await
        .map_err(Error::io("read", path))?;
    // A header that does not fit is damage where frames are, and a file that was never finished
    // where none are: the header is durable before the first frame is written.
    if let (Err(source), true) = (&scan.header, scan.first.is_some() || scan.beyond.frames > 0) {
        return Err(Error::SegmentHeader {
            path: path.clone(),
            source: source.clone(),
        });
    }
    Ok(scan)
}

async fn read_segment(
    file: Box<dyn FileHandle>,
    header: &SegmentHeader,
    candidate: &Candidate,
    max_zeros: u64,
) -> io::Result<Scan> {
    let head = file.read_at(0, SEGMENT_HEADER_LEN).await?;
    let header = SegmentHeader::decode(&head).and_then(|h| h.check_place(header));
    let base_offset = candidate.name.base_offset;
    let mut walk = Walk::new(&*file, file.len().await?, candidate.id(), base_offset);
    let mut first = None;
    let (mut frames, mut committed_before) = (0, 0);
    let mut unproven = VecDeque::new();
    let mut index = Index::default();
    let stop = loop {
        let (position, frame) = match walk.next().await? {
            Ok(found) => found,
            Err(stop) => break stop,
        };
        let header = frame.header;
        first.get_or_insert(header);
        frames += 1;
        committed_before = header.committed_before.max(committed_before);
        while unproven
            .front()
            .is_some_and(|(_, base)| *base < committed_before)
        {
            unproven.pop_front();
        }
        // A mark too: what follows it can't be reached without it.
        unproven.push_back((position, header.base_offset));
        if header.record_count > 0 {
            index.note(header.base_offset, position, header.max_timestamp_ms);
        }
    };
    let (end_offset, position, id) = (walk.expected.offset, walk.position, walk.expected.id);
    let beyond = search_beyond(&*file, position, id, base_offset, max_zeros).await?;
    Ok(Scan {
        file,
        header,
        first,
        frames,
        end_offset,
        position,
        committed_before,
        unproven,
        index,
        stop,
        beyond,
    })
}

/// Renames a segment that continues nothing to a name that no recovery reads again.
async fn set_aside<F: FileSystem>(
    fs: &F,
    path: &Path,
    names: &[(OsString, u64)],
) -> Result<PathBuf> {
    let taken = |p: &Path| names.iter().any(|(name, _)| p.file_name() == Some(name));
    let mut aside = path.with_extension("wal.aside");
    let mut attempt = 1u32;
    while taken(&aside) {
        aside = path.with_extension(format!("wal.aside-{attempt}"));
        attempt += 1;
    }
    fs.rename(path, &aside)
        .await
        .map_err(Error::io("rename", path))?;
    tracing::warn!(segment = %path.display(), aside = %aside.display(),
        "a segment continues nothing and nothing says that it was acknowledged; it was set aside");
    Ok(aside)
}

/// Writes again in place what nothing proves durable, and syncs it and its name.
///
/// After a process crash the page cache may hold bytes that no disk has, also such as are marked
/// clean because their sync failed; only a new write makes the next sync mean anything.
async fn make_durable<F: FileSystem>(
    fs: &F,
    place: &Place,
    chain: &Chain,
    report: &mut RecoveryReport,
) -> Result<()> {
    for link in &chain.links {
        let Some(scan) = &link.candidate.scan else {
            continue;
        };
        let from = scan
            .unproven
            .iter()
            .find(|(_, base)| *base >= chain.committed_before);
        let Some((from, _)) = from.filter(|(from, _)| *from < link.extent.bytes) else {
            continue;
        };
        let (path, end) = (&link.candidate.path, link.extent.bytes);
        let rewritten = rewrite(&*scan.file, *from, end).await;
        report.bytes_rewritten += rewritten.map_err(Error::io("rewrite", path))?;
    }
    if chain.links.is_empty() && chain.aside.is_empty() {
        return Ok(());
    }
    // The names above it were durable before the first segment was created.
    fs.sync_dir(&place.dir)
        .await
        .map_err(Error::io("sync", &place.dir))?;
    Ok(())
}

async fn rewrite(file: &dyn FileHandle, from: u64, end: u64) -> io::Result<u64> {
    let mut position = from;
    while position < end {
        let len = usize::try_from(end - position)
            .unwrap_or(REWRITE_LEN)
            .min(REWRITE_LEN);
        let piece = file.read_at(position, len).await?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let written = piece.len() as u64;
        file.write_at(position, &[piece]).await?;
        position += written;
    }
    file.sync_data().await?;
    Ok(end - from)
}

/// Turns the chain into what the writer works with.
async fn settle<F: FileSystem>(
    fs: &F,
    config: &WalConfig,
    place: &Place,
    clock: &dyn Clock,
    chain: Chain,
    found: &ManifestContent,
    mut report: RecoveryReport,
) -> Result<Recovered> {
    let mut entries = Vec::new();
    let mut segments = Vec::new();
    let mut active = None;
    let mut retired = None;
    let known = chain
        .links
        .iter()
        .filter_map(|l| l.candidate.ordinal())
        .max();
    let mut next_ordinal = known.map_or(0, |o| o.saturating_add(1));
    let next_offset = chain.end_offset();
    let count = chain.links.len();
    for (i, link) in chain.links.into_iter().enumerate() {
        let is_last = i + 1 == count;
        let seal = link.seal(is_last);
        let candidate = link.candidate;
        let id = candidate.id().unwrap_or_else(|| config.segment_ids.draw());
        let ordinal = candidate.ordinal().unwrap_or(next_ordinal);
        next_ordinal = next_ordinal.max(ordinal.saturating_add(1));
        let mut segment = Segment::new(id, ordinal, candidate.name, candidate.path, link.extent);
        let mut entry = ManifestEntry {
            id,
            ordinal,
            name: candidate.name,
            seal,
        };
        if let Some(scan) = candidate.scan {
            segment = segment.with_index(scan.index);
            let segment = Arc::new(segment);
            if is_last && chain.tail.is_none() {
                if scan.header.is_err() || scan.first.is_none() {
                    begin_again(&*scan.file, place)
                        .await
                        .map_err(Error::io("write", &segment.path))?;
                    fs.sync_dir(&place.dir)
                        .await
                        .map_err(Error::io("sync", &place.dir))?;
                }
                let began = scan
                    .first
                    .map_or_else(|| clock.wall_ms(), |f| f.append_time_ms);
                active = Some(RecoveredActive {
                    file: scan.file,
                    segment: Arc::clone(&segment),
                    age: Duration::from_millis(clock.wall_ms().saturating_sub(began)),
                    told_committed: scan.committed_before,
                });
            } else if is_last {
                retired = Some(ManifestEntry {
                    seal: Some(link.extent.into()),
                    ..entry
                });
                entry.seal = None;
            }
            segments.push(segment);
        } else {
            segments.push(Arc::new(segment));
        }
        entries.push(entry);
    }
    report.removed_empty = chain.empty.into_iter().map(|c| c.path).collect();
    let manifest = Manifest::adopt(fs, place.dir.clone(), found, entries).await;
    Ok(Recovered {
        segments,
        active,
        retired,
        next_offset,
        next_ordinal,
        manifest,
        report,
    })
}

/// Makes an empty segment as it is when it is created.
async fn begin_again(file: &dyn FileHandle, place: &Place) -> io::Result<()> {
    let header = bytes::Bytes::copy_from_slice(&place.header.encode());
    file.set_len(0).await?;
    file.write_at(0, &[header]).await?;
    file.sync_all().await
}

/// Removes what earlier attempts left: manifests that were never completed, and segments without a
/// byte of data, once the manifest does not list them. A failure costs nothing but the leftover.
async fn remove_leftovers<F: FileSystem>(
    fs: &F,
    place: &Place,
    names: &[(OsString, u64)],
    recovered: &mut Recovered,
) {
    for (name, _) in names
        .iter()
        .filter(|(name, _)| manifest::is_temporary(name))
    {
        let _ = fs.remove_file(&place.dir.join(name)).await;
    }
    let empty = std::mem::take(&mut recovered.report.removed_empty);
    if empty.is_empty() || recovered.manifest.record(fs, &[]).await.is_err() {
        return;
    }
    for path in empty {
        if fs.remove_file(&path).await.is_ok() {
            recovered.report.removed_empty.push(path);
        }
    }
}

impl Scan {
    /// Why nothing more could be read behind its last good frame.
    pub(super) fn stop_reason(&self) -> DamageReason {
        match &self.stop {
            Stop::End => DamageReason::EndOfFile,
            Stop::Bad(reason) => reason.clone(),
        }
    }
}
