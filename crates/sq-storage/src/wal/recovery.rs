//! Opening a partition: what its directory holds becomes a chain of segments, or an error that says
//! which acknowledged data is damaged.
//!
//! Segments that the manifest lists as sealed are taken by their word; the others are scanned. A
//! segment ends where the next one begins. Where the last one stops in the middle of something, it
//! is left as it is and takes no further write: the next append goes to a fresh file, whose base
//! bounds what may be read of it. So nothing is cut away here, nothing needs space, and a crash at
//! any point leaves a directory that gives the same log again.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, FileHandle, FileSystem};

use super::adoption;
use super::chain::{Chain, Damage, Link, build_chain};
use super::companion::Companion;
use super::config::WalConfig;
use super::index::Index;
use super::maintenance::write_index;
use super::manifest::{
    self, MANIFEST_NAME, Manifest, ManifestContent, ManifestEntry, Seal, read_manifest,
};
use super::removal::Trash;
use super::replay::Replay;
use super::rewrite::rewrite;
use super::scan::{Run, Runs, Scope, Stop, walk_runs};
use super::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderError, SegmentName};
use super::sidecar::{self, RecoveryVisitor};
use super::state::{Extent, Segment};
use crate::error::{DamageReason, Error, Result};
use crate::frame::{FRAME_HEADER_LEN, FrameHeader, SEGMENT_ID_POSITION};

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
    /// Prepared successors that had become segments and were given their names.
    pub adopted: Vec<PathBuf>,
    /// Segments, and prepared successors, without a single byte of data that were removed.
    pub removed_empty: Vec<PathBuf>,
    /// Files of segments that a purge or a truncation took out of the log, still to be removed
    /// ([`WalWriter::removal`](super::WalWriter::removal)).
    pub to_remove: Vec<PathBuf>,
    /// Acknowledged records that are lost; what is around them can be read.
    pub damage: Vec<Damage>,
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
    pub(super) retired: Option<Arc<Segment>>,
    /// The first offset that the log holds, or would hold.
    pub(super) start: u64,
    pub(super) next_offset: u64,
    pub(super) next_ordinal: u32,
    /// The bases of files that are no part of the log and may not be gone.
    pub(super) leftover_bases: BTreeSet<u64>,
    /// Segments that take no further write and whose files hold more than their frames, with the
    /// length that they should have.
    pub(super) untrimmed: Vec<(Arc<Segment>, u64)>,
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
    /// Where it is, or will be if it is prepared.
    pub(super) path: PathBuf,
    /// Its id and where it is, while it is prepared.
    pub(super) prepared: Option<(u64, PathBuf)>,
    pub(super) entry: Option<ManifestEntry>,
    /// What is wrong with the file as a whole.
    pub(super) unfit: Option<DamageReason>,
    /// `None` for a sealed one, and for one that is missing.
    pub(super) scan: Option<Scan>,
}

/// What reading a segment from end to end gave.
pub(super) struct Scan {
    file: Box<dyn FileHandle>,
    header: Result<(), SegmentHeaderError>,
    pub(super) first: Option<FrameHeader>,
    /// The file's length.
    pub(super) file_len: u64,
    /// Where the last frame starts.
    last_position: u64,
    /// The stretches of frames that can be read; at least one.
    pub(super) runs: Vec<Run>,
    /// Whether anything but zeros stands behind the last of them.
    pub(super) has_data_behind: bool,
    /// The highest `committed_before` in a frame.
    pub(super) committed_before: u64,
    /// Where the frames begin that none of its own says is committed: position and base offset.
    unproven: VecDeque<(u64, u64)>,
    index: Index,
}

impl Scan {
    /// The segment's file.
    pub(super) fn file(&self) -> &dyn FileHandle {
        &*self.file
    }

    /// Whether every frame that was found counts, if so much of the segment does.
    pub(super) fn all_count(&self, extent: Extent) -> bool {
        self.last_position < extent.bytes
    }

    /// Where the frame begins whose first offset is `offset`, of those not known to be committed.
    pub(super) fn position_of(&self, offset: u64) -> Option<u64> {
        let frame = self.unproven.iter().find(|(_, base)| *base >= offset);
        frame.map(|(position, _)| *position)
    }
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

    /// What the manifest should say of a segment without a record that is about to be removed.
    fn removed_entry(&self) -> Option<ManifestEntry> {
        let Extent { end_offset, bytes } = self.empty_extent();
        let entry = self.entry?;
        Some(ManifestEntry {
            seal: Some(Seal::new(end_offset, bytes)),
            ..entry
        })
    }

    /// A segment that was sealed without a record is removed, and its name is free for another, of
    /// which the manifest may not know yet. So its line counts only for a file that holds its frames,
    /// or nothing at all.
    fn recognise_removed(&mut self, entry: Option<ManifestEntry>) {
        let Some(entry) = entry.filter(ManifestEntry::is_empty) else {
            return;
        };
        let Some(scan) = &self.scan else { return };
        let is_it = match scan.first {
            Some(first) => first.segment_id == entry.id,
            None => !scan.has_data_behind,
        };
        if is_it {
            self.entry = Some(entry);
            self.scan = None;
        }
    }

    pub(super) fn empty_extent(&self) -> Extent {
        Extent {
            end_offset: self.name.base_offset,
            bytes: SEGMENT_HEADER_LEN as u64,
        }
    }

    pub(super) fn id(&self) -> Option<u64> {
        let scanned = self
            .scan
            .as_ref()
            .and_then(|s| s.first.as_ref())
            .map(|f| f.segment_id);
        let prepared = self.prepared.as_ref().map(|(id, _)| *id);
        let known = self.entry.map(|e| e.id).or(self.name.id).or(prepared);
        known.or(scanned)
    }

    /// Where its file is now.
    fn found_at(&self) -> &Path {
        self.prepared.as_ref().map_or(&self.path, |(_, path)| path)
    }

    /// The offset behind its last readable record.
    fn readable_end(&self) -> Option<u64> {
        let scanned = self.scan.as_ref().and_then(|s| s.runs.last());
        let sealed = self.entry.and_then(|e| e.seal).map(|s| s.end_offset);
        scanned.map(|run| run.end_offset).or(sealed)
    }
}

/// Opens a partition's directory, and shows the log to a visitor.
pub(super) async fn recover<F: FileSystem>(
    fs: &Arc<F>,
    config: &WalConfig,
    place: &Place,
    clock: &dyn Clock,
    visitor: Option<&mut dyn RecoveryVisitor>,
) -> Result<Recovered> {
    let shared = fs;
    let fs = &**fs;
    let names = list(fs, &place.dir).await?;
    let found = read_manifest(fs, &place.dir)
        .await
        .map_err(Error::io("read", place.dir.join(MANIFEST_NAME)))?;
    let mut report = RecoveryReport {
        damaged_manifest_lines: found.damaged_lines,
        ..RecoveryReport::default()
    };
    check_nothing_is_missing(config, place, &names, &found)?;
    let replay = &mut visitor.map(|visitor| Replay::new(visitor, &found));
    let mut candidates =
        open_candidates(fs, config, place, &names, &found, &mut report, replay).await?;
    let ends = candidates.iter().filter_map(Candidate::readable_end);
    let ends = ends.chain(found.log_start.map(|start| start.offset));
    let prepared = adoption::look(fs, place, &names, &found, ends.collect()).await?;
    for mut candidate in prepared.switched {
        scan(
            fs,
            config,
            place,
            &found,
            &mut candidate,
            &mut report,
            replay,
        )
        .await?;
        candidates.push(candidate);
    }
    let chain = build_chain(candidates, &found)?;
    check_that_the_start_is_known(config, place, &names, &found, &chain)?;
    let unexplained = chain.aside.iter().map(Candidate::found_at);
    for path in unexplained.chain(prepared.unexplained.iter().map(PathBuf::as_path)) {
        report.set_aside.push(set_aside(fs, path, &names).await?);
    }
    for link in &chain.links {
        if adoption::rename(fs, &link.candidate).await? {
            report.adopted.push(link.candidate.path.clone());
        }
    }
    make_durable(fs, place, &chain, &names, &found, &mut report).await?;
    if let Some(replay) = replay.take() {
        replay.finish(fs, place, &chain, &names).await?;
    }
    keep_last_sidecar(fs, place, &names, &found).await;
    report.unacknowledged_tail = chain.links.last().and_then(|l| l.tail.clone());
    report.damage = chain
        .links
        .iter()
        .flat_map(|l| l.damage.iter().cloned())
        .collect();
    let leftovers = chain.empty.iter().map(|c| c.name.base_offset).collect();
    let mut recovered = settle(fs, config, place, clock, chain, &found, report).await?;
    recovered.leftover_bases = leftovers;
    remove_leftovers(shared, place, &names, &mut recovered).await;
    remove_prepared(fs, place, prepared.empty, &mut recovered.report).await;
    Ok(recovered)
}

/// The names in a directory in their order, none if it does not exist.
async fn list<F: FileSystem>(fs: &F, dir: &Path) -> Result<Vec<(OsString, u64)>> {
    match fs.list_dir(dir).await {
        Ok(entries) => {
            let mut names: Vec<_> = entries.into_iter().map(|e| (e.name, e.len)).collect();
            names.sort_unstable();
            Ok(names)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::io("list", dir)(e)),
    }
}

fn check_nothing_is_missing(
    config: &WalConfig,
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
) -> Result<()> {
    let present = present(names);
    // One that was sealed without a record is removed, and its line dropped the next time.
    let missing = found
        .entries
        .iter()
        .find(|e| !e.is_empty() && !found.is_void(e) && !present.contains(&e.name));
    match missing.filter(|_| !config.serve_around_missing) {
        None => Ok(()),
        Some(entry) => Err(Error::MissingSegment {
            path: place.dir.join(entry.name.file_name()),
            base_offset: entry.name.base_offset,
        }),
    }
}

/// Where no segment is left, the manifest alone says which offsets were given out.
fn check_that_the_start_is_known(
    config: &WalConfig,
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
    chain: &Chain,
) -> Result<()> {
    let is_known = found.is_intact() || found.log_start.is_some() || !chain.links.is_empty();
    let there_is_one = names.iter().any(|(name, _)| name == MANIFEST_NAME);
    if is_known || !there_is_one || config.serve_around_missing {
        return Ok(());
    }
    Err(Error::UnknownStart {
        path: place.dir.join(MANIFEST_NAME),
    })
}

fn present(names: &[(OsString, u64)]) -> HashSet<SegmentName> {
    names
        .iter()
        .filter_map(|(name, _)| SegmentName::parse(name))
        .collect()
}

async fn open_candidates<F: FileSystem>(
    fs: &F,
    config: &WalConfig,
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
    report: &mut RecoveryReport,
    replay: &mut Option<Replay<'_>>,
) -> Result<Vec<Candidate>> {
    let listed = found.by_name();
    let removed: HashMap<_, _> = found.removed.iter().map(|e| (e.name, e.id)).collect();
    let mut candidates = Vec::new();
    for (file_name, len) in names {
        let Some(name) = SegmentName::parse(file_name) else {
            continue;
        };
        let path = place.dir.join(file_name);
        let entry = listed.get(&name).copied();
        let void = entry.filter(|e| found.is_void(e)).map(|e| e.id);
        let gone = removed.get(&name).filter(|_| entry.is_none()).copied();
        let void = void.or(gone);
        if let Some(id) = void
            && is_segment(fs, &path, id).await?
        {
            report.to_remove.push(path);
            continue;
        }
        let entry = entry.filter(|_| void.is_none());
        let mut candidate = Candidate {
            name,
            path,
            prepared: None,
            entry,
            unfit: None,
            scan: None,
        };
        let seal = entry.and_then(|e| e.seal);
        if let Some(seal) = seal.filter(|_| entry.is_some_and(|e| !e.is_empty())) {
            if *len < seal.length {
                let (actual, expected) = (*len, seal.length);
                candidate.unfit = Some(DamageReason::Length { actual, expected });
            }
        } else {
            candidate.entry = entry.filter(|_| seal.is_none());
            scan(fs, config, place, found, &mut candidate, report, replay).await?;
            candidate.recognise_removed(entry);
        }
        // Its id may never have been known, where its first write was torn.
        let is_void = void.is_some() && candidate.scan.as_ref().is_some_and(|s| s.first.is_none());
        let limit = candidate.ordinal().map(|ordinal| found.limit_of(ordinal));
        if is_void || limit.is_some_and(|limit| name.base_offset >= limit) {
            report.to_remove.push(candidate.path);
            continue;
        }
        candidates.push(candidate);
    }
    let present = present(names);
    let missing =
        |e: &&ManifestEntry| !e.is_empty() && !found.is_void(e) && !present.contains(&e.name);
    for entry in found.entries.iter().filter(missing) {
        let (name, path) = (entry.name, place.dir.join(entry.name.file_name()));
        let (entry, unfit) = (Some(*entry), Some(DamageReason::Missing));
        candidates.push(Candidate {
            name,
            path,
            prepared: None,
            entry,
            unfit,
            scan: None,
        });
    }
    Ok(candidates)
}

/// Whether a file is that of a segment: its first frame says so, whole or not, or there is none.
async fn is_segment<F: FileSystem>(fs: &F, path: &Path, id: u64) -> Result<bool> {
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
async fn scan<F: FileSystem>(
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
    // A write is at most a largest frame, and a mark before it may be missing as well.
    let max_zeros = config.max_frame_bytes.saturating_add(FRAME_HEADER_LEN) as u64;
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
    let (runs, has_data_behind) = cut.apply(runs, has_data_behind);
    #[cfg(feature = "mutants")]
    let runs = if super::mutants::lacks(super::mutants::Guard::LastFrame) {
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

async fn read_header(
    file: &dyn FileHandle,
    expected: &SegmentHeader,
) -> io::Result<Result<(), SegmentHeaderError>> {
    let head = file.read_at(0, SEGMENT_HEADER_LEN).await?;
    Ok(SegmentHeader::decode(&head).and_then(|h| h.check_place(expected)))
}

/// Renames a segment that continues nothing to a name that no recovery reads again.
async fn set_aside<F: FileSystem>(
    fs: &F,
    path: &Path,
    names: &[(OsString, u64)],
) -> Result<PathBuf> {
    let taken = |p: &Path| names.iter().any(|(name, _)| p.file_name() == Some(name));
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    let mut aside = path.with_extension(format!("{extension}.aside"));
    let mut attempt = 1u32;
    while taken(&aside) {
        aside = path.with_extension(format!("{extension}.aside-{attempt}"));
        attempt += 1;
    }
    fs.rename(path, &aside)
        .await
        .map_err(Error::io("rename", path))?;
    tracing::warn!(segment = %path.display(), aside = %aside.display(),
        "a segment continues nothing and nothing says that it was acknowledged; it was set aside");
    Ok(aside)
}

/// Writes again in place what nothing proves durable, and syncs it and the names.
///
/// After a process crash the page cache may hold bytes that no disk has, also such as are marked
/// clean because their sync failed; only a new write makes the next sync mean anything.
async fn make_durable<F: FileSystem>(
    fs: &F,
    place: &Place,
    chain: &Chain,
    names: &[(OsString, u64)],
    found: &ManifestContent,
    report: &mut RecoveryReport,
) -> Result<()> {
    for link in &chain.links {
        let Some(scan) = &link.candidate.scan else {
            continue;
        };
        // A mark at a segment's end has no record behind it that would prove it.
        let proven = chain.committed_before.min(link.extent.end_offset);
        let counts =
            |(position, base): &&(u64, u64)| *base >= proven && *position < link.extent.bytes;
        let Some(id) = scan.first.map(|f| f.segment_id) else {
            continue;
        };
        let frames = scan.unproven.iter().filter(counts).copied();
        let rewritten = rewrite(&*scan.file, id, frames).await;
        report.bytes_rewritten += rewritten.map_err(Error::io("rewrite", &link.candidate.path))?;
    }
    if chain.relies_on_manifest() {
        let written = manifest::rewrite(fs, &place.dir, found).await;
        written.map_err(Error::io("rewrite", place.dir.join(MANIFEST_NAME)))?;
    }
    if names.is_empty() {
        return Ok(());
    }
    // The names above it were durable before the first segment was created.
    fs.sync_dir(&place.dir)
        .await
        .map_err(Error::io("sync", &place.dir))?;
    Ok(())
}

/// Has the sidecar of the last segment that was purged outlive it, where the removal did not come to that.
async fn keep_last_sidecar<F: FileSystem>(
    fs: &F,
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
) {
    let Some((entry, end_offset)) = found.last_purged() else {
        return;
    };
    let path = Companion::Sidecar.path(&place.dir, &entry.name);
    if !names.iter().any(|(name, _)| path.file_name() == Some(name)) {
        return;
    }
    let kept = sidecar::keep(fs, &path, entry.id, end_offset).await;
    // Before the manifest can forget the segment.
    if let Err(error) = kept.and(fs.sync_dir(&place.dir).await) {
        tracing::warn!(%error, "sidecar not kept");
    }
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
    let (start, next_offset) = (chain.start_offset(), chain.end_offset());
    let mut next_ordinal = next_ordinal(&chain, found);
    let mut entries: Vec<_> = chain
        .empty
        .iter()
        .filter_map(Candidate::removed_entry)
        .collect();
    report.removed_empty = chain.empty.into_iter().map(|c| c.path).collect();
    report
        .to_remove
        .extend(chain.purged.into_iter().map(|l| l.candidate.path));
    let mut segments = Vec::new();
    let mut untrimmed = Vec::new();
    let mut newest = None;
    let mut links = chain.links.into_iter().peekable();
    while let Some(link) = links.next() {
        let is_last = links.peek().is_none();
        let (is_open, length) = (link.is_open(), link.length_to_trim());
        let (mut entry, segment, scan) = settle_link(config, link, is_last, &mut next_ordinal);
        let seal = entry.seal.as_mut();
        if let Some(seal) = seal.filter(|_| segment.in_live_index(|_| ()).is_some()) {
            // It was read from end to end, which is not to happen again for the first read of it.
            write_index(fs, &segment, &config.segment_cache).await;
            seal.index_checksum = segment.index_checksum();
        }
        entries.push(entry);
        let segment = Arc::new(segment);
        if let Some(length) = length.filter(|_| !is_last) {
            untrimmed.push((Arc::clone(&segment), length));
        }
        segments.push(segment);
        newest = scan.map(|scan| (scan, is_open));
    }
    let (mut active, mut retired) = (None, None);
    if let (Some((scan, is_open)), Some(segment)) = (newest, segments.last()) {
        if is_open {
            active = Some(continue_segment(place, clock, scan, segment).await?);
        } else {
            retired = Some(Arc::clone(segment));
        }
    }
    let by_path: HashMap<_, _> = found
        .removed
        .iter()
        .map(|e| (place.dir.join(e.name.file_name()), e.id))
        .collect();
    let files = report.to_remove.iter().cloned();
    let files: Vec<_> = files
        .map(|path| (path.clone(), by_path.get(&path).copied()))
        .collect();
    let trash = Trash::found(&found.removed, &files);
    let manifest = Manifest::adopt(fs, place.dir.clone(), found, entries, trash).await;
    Ok(Recovered {
        segments,
        active,
        retired,
        start,
        next_offset,
        next_ordinal,
        leftover_bases: BTreeSet::new(),
        untrimmed,
        manifest,
        report,
    })
}

/// A segment of the chain as the manifest should list it and as readers see it, and what is left of
/// its scan.
fn settle_link(
    config: &WalConfig,
    link: Link,
    is_last: bool,
    next_ordinal: &mut u32,
) -> (ManifestEntry, Segment, Option<Scan>) {
    let (extent, mut seal) = (link.extent, link.seal(is_last));
    let candidate = link.candidate;
    let id = candidate.id().unwrap_or_else(|| config.segment_ids.draw());
    let ordinal = candidate.ordinal().unwrap_or(*next_ordinal);
    *next_ordinal = (*next_ordinal).max(ordinal.saturating_add(1));
    let Candidate {
        name,
        path,
        mut scan,
        ..
    } = candidate;
    let mut segment = Segment::new(id, ordinal, name, path, extent);
    if let Some(seal) = &mut seal {
        // Of frames behind the segment's end it says too much: then it is kept for longer.
        let scanned = || scan.as_ref().and_then(|s| s.index.times());
        seal.times = seal.times.or_else(scanned);
        segment.set_times(seal.times);
        segment.set_index_checksum(seal.index_checksum);
    }
    // An index that knows of frames behind the segment's end would find their timestamps: then the
    // first reader makes one that does not.
    if let Some(scan) = scan.as_mut().filter(|s| s.last_position < extent.bytes) {
        segment = segment.with_index(std::mem::take(&mut scan.index));
    }
    let entry = ManifestEntry {
        id,
        ordinal,
        name,
        seal,
    };
    (entry, segment, scan)
}

/// An ordinal above that of every segment there ever was, as far as that is known.
fn next_ordinal(chain: &Chain, found: &ManifestContent) -> u32 {
    let linked = chain.links.iter().map(|l| &l.candidate);
    let files = linked
        .chain(&chain.empty)
        .chain(&chain.aside)
        .filter_map(Candidate::ordinal);
    let listed = found.entries.iter().chain(&found.removed);
    let taken = files.chain(listed.map(|e| e.ordinal)).max();
    let cuts = found.truncations.iter().map(|cut| cut.before_ordinal);
    let started = found.log_start.map(|start| start.next_ordinal);
    let next = taken.map(|ordinal| ordinal.saturating_add(1));
    cuts.chain(started).chain(next).max().unwrap_or(0)
}

/// Makes ready the segment that appends go on in.
async fn continue_segment(
    place: &Place,
    clock: &dyn Clock,
    scan: Scan,
    segment: &Arc<Segment>,
) -> Result<RecoveredActive> {
    if scan.header.is_err() || scan.first.is_none() {
        let path = &segment.path;
        begin_again(&*scan.file, place)
            .await
            .map_err(Error::io("write", path))?;
    }
    let now = clock.wall_ms();
    let began = scan.first.map_or(now, |f| f.append_time_ms);
    Ok(RecoveredActive {
        file: scan.file,
        segment: Arc::clone(segment),
        age: Duration::from_millis(now.saturating_sub(began)),
        told_committed: scan.committed_before,
    })
}

/// Makes an empty segment as it is when it is created.
async fn begin_again(file: &dyn FileHandle, place: &Place) -> io::Result<()> {
    let header = bytes::Bytes::copy_from_slice(&place.header.encode());
    file.set_len(0).await?;
    file.write_at(0, &[header]).await?;
    file.sync_all().await
}

/// Removes prepared files that were never switched to. A failure costs nothing but the leftover.
async fn remove_prepared<F: FileSystem>(
    fs: &F,
    place: &Place,
    empty: Vec<PathBuf>,
    report: &mut RecoveryReport,
) {
    if empty.is_empty() {
        return;
    }
    for path in empty {
        if fs.remove_file(&path).await.is_ok() {
            report.removed_empty.push(path);
        }
    }
    let _ = fs.sync_dir(&place.dir).await;
}

/// Removes what earlier attempts left: manifests that were never completed, companions of segments that
/// are gone, and segments without a record, once the manifest durably says that they have none: a name
/// whose removal was not durable comes back at a power loss, and must not be taken for more than it was. A
/// failure costs nothing but the leftover.
async fn remove_leftovers<F: FileSystem>(
    fs: &Arc<F>,
    place: &Place,
    names: &[(OsString, u64)],
    recovered: &mut Recovered,
) {
    let segments: HashSet<_> = recovered.segments.iter().map(|s| s.name).collect();
    let is_leftover = |name: &OsString| {
        manifest::is_temporary(name)
            || Companion::segment_of(name).is_some_and(|of| !segments.contains(&of))
    };
    for (name, _) in names.iter().filter(|(name, _)| is_leftover(name)) {
        let _ = fs.remove_file(&place.dir.join(name)).await;
    }
    let empty = std::mem::take(&mut recovered.report.removed_empty);
    if empty.is_empty() || recovered.manifest.make_durable(fs).await.is_err() {
        return;
    }
    for path in empty {
        if fs.remove_file(&path).await.is_ok() {
            recovered.report.removed_empty.push(path);
        }
    }
    let _ = fs.sync_dir(&place.dir).await;
}
