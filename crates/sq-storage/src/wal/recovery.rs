//! Opening a partition: what its directory holds becomes a chain of segments, or an error that says
//! which acknowledged data is damaged.
//!
//! Segments that the manifest lists as sealed are taken by their word; the others are scanned. A
//! segment ends where the next one begins. Where the last one stops in the middle of something, it
//! is left as it is and takes no further write: the next append goes to a fresh file, whose base
//! bounds what may be read of it. So nothing is cut away here, nothing needs space, and a crash at
//! any point leaves a directory that gives the same log again.

mod leftovers;
mod resumed;
mod scanned;
mod settle;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, FileHandle, FileSystem};

use super::adoption;
use super::chain::{Chain, Damage, build_chain};
use super::config::WalConfig;
use super::manifest::{
    self, MANIFEST_NAME, Manifest, ManifestContent, ManifestEntry, read_manifest,
};
use super::replay::Replay;
use super::rewrite::rewrite;
use super::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentName};
use super::sidecar::RecoveryVisitor;
use super::spare;
use super::state::{Extent, Segment};
use crate::error::{DamageReason, Error, Result};
use crate::frame::FRAME_HEADER_LEN;
use crate::reserve::is_out_of_space;

use leftovers::{keep_last_sidecar, remove_leftovers, remove_prepared, set_aside};
use resumed::has_point;
pub(super) use scanned::Scan;
use scanned::{is_segment, scan};
use settle::settle;

/// What opening a partition found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// How many segments were read, from their beginning or a recovery point to their end; sealed ones are
    /// not.
    pub segments_scanned: usize,
    /// How many valid frames were read of them.
    pub frames_scanned: u64,
    /// How many bytes these segments have from where reading began to their last frame's end.
    pub bytes_scanned: u64,
    /// Where reading began that did not begin at a segment's first frame.
    pub recovery_points: Vec<RecoveryPoint>,
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
    /// Files of segments that a purge or a truncation took out of the log, or that were to be written
    /// again, still to be removed ([`WalWriter::removal`](super::WalWriter::removal)).
    pub to_remove: Vec<PathBuf>,
    /// Acknowledged records that are lost; what is around them can be read.
    pub damage: Vec<Damage>,
    /// Lines of the manifest that could not be read.
    pub damaged_manifest_lines: usize,
}

/// A place in a segment in front of which nothing was read
/// ([`WalConfig::recovery_point_bytes`](super::WalConfig::recovery_point_bytes)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPoint {
    /// The segment file.
    pub path: PathBuf,
    /// Where it is, in bytes from the file's start.
    pub position: u64,
    /// The offset of the first record behind it.
    pub offset: u64,
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
    /// Where its recovery point is, or else its first frame.
    pub(super) read_from: u64,
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
    /// Whether a recovery point lies beside it.
    pub(super) has_point: bool,
    /// `None` for a sealed one, and for one that is missing.
    pub(super) scan: Option<Scan>,
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
        let entry = self.entry?;
        Some(ManifestEntry {
            seal: Some(self.empty_extent().into()),
            ..entry
        })
    }

    /// The same of one that is no part of the log any more, as far as it is known which it was.
    fn gone_entry(&self, extent: Extent) -> Option<ManifestEntry> {
        let seal = self.entry.and_then(|entry| entry.seal);
        Some(ManifestEntry {
            id: self.id()?,
            ordinal: self.ordinal()?,
            name: self.name,
            seal: Some(seal.unwrap_or(extent.into())),
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
    pub(super) fn readable_end(&self) -> Option<u64> {
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
    let (mut candidates, gone) =
        open_candidates(fs, config, place, &names, &found, &mut report, replay).await?;
    let most = longest_write(config);
    let prepared = adoption::look(fs, place, most, &names, &found, &candidates).await?;
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
    report.to_remove.extend(spares(place, &names));
    let mut chain = build_chain(candidates, &found)?;
    chain.gone = gone;
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
    let is_cut = chain.links.iter().any(|link| link.is_cut);
    let mut recovered = settle(fs, config, place, clock, chain, &found, report).await?;
    if is_cut {
        keep_cuts(shared, place, &mut recovered.manifest).await?;
    }
    recovered.leftover_bases = leftovers;
    remove_leftovers(shared, place, &names, &found, &mut recovered).await;
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

/// Makes durable that records do not count which another segment begins in front of. What that segment holds
/// may be nothing but what is left of a torn write, in the page cache only: with it gone, they would be back.
/// A full disk keeps no log from being opened.
async fn keep_cuts<F: FileSystem>(
    fs: &Arc<F>,
    place: &Place,
    manifest: &mut Manifest,
) -> Result<()> {
    match manifest.make_durable(fs).await {
        Err(error) if is_out_of_space(&error) => {
            tracing::warn!(dir = %place.dir.display(), %error, "not noted where segments end");
            Ok(())
        }
        written => written.map_err(Error::io("write", place.dir.join(MANIFEST_NAME))),
    }
}

/// A write is at most a largest frame, and a mark before it may be missing as well.
fn longest_write(config: &WalConfig) -> u64 {
    config.max_frame_bytes.saturating_add(FRAME_HEADER_LEN) as u64
}

/// The files that were to be written again.
fn spares(place: &Place, names: &[(OsString, u64)]) -> impl Iterator<Item = PathBuf> {
    let names = names.iter().map(|(name, _)| name);
    names
        .filter(|name| spare::is_spare(name))
        .map(|name| place.dir.join(name))
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

/// The segments of which something may count, and what the manifest should say of those that were looked at
/// and are no part of the log any more.
async fn open_candidates<F: FileSystem>(
    fs: &F,
    config: &WalConfig,
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
    report: &mut RecoveryReport,
    replay: &mut Option<Replay<'_>>,
) -> Result<(Vec<Candidate>, Vec<ManifestEntry>)> {
    let listed = found.by_name();
    let removed: HashMap<_, _> = found.removed.iter().map(|e| (e.name, e.id)).collect();
    let (mut candidates, mut gone_entries) = (Vec::new(), Vec::new());
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
            has_point: has_point(names, &name),
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
            gone_entries.extend(candidate.gone_entry(candidate.empty_extent()));
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
            has_point: false,
            scan: None,
        });
    }
    Ok((candidates, gone_entries))
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
        let zeros = scan.zeros.clone();
        let zeros = zeros.filter(|zeros| zeros.start == link.extent.bytes);
        let rewritten = rewrite(&*scan.file, id, frames, zeros).await;
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
