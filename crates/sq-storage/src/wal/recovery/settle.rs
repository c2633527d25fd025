//! From a chain of segments to what a writer works with.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, FileHandle, FileSystem};

use super::super::chain::{Chain, Link};
use super::super::config::WalConfig;
use super::super::maintenance::write_index;
use super::super::manifest::{Manifest, ManifestContent, ManifestEntry, Seal};
use super::super::points::Points;
use super::super::removal::Trash;
use super::super::segment::SEGMENT_HEADER_LEN;
use super::super::spare::Shelf;
use super::super::state::Segment;
use super::{Candidate, Place, Recovered, RecoveredActive, RecoveryReport, Scan};
use crate::error::{Error, Result};

/// Turns the chain into what the writer works with.
pub(super) async fn settle<F: FileSystem>(
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
    let removed = removed_entries(&chain, found);
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
    let by_path: HashMap<_, _> = removed
        .iter()
        .map(|e| (place.dir.join(e.name.file_name()), e.id))
        .collect();
    let files = report.to_remove.iter().cloned();
    let files: Vec<_> = files
        .map(|path| (path.clone(), by_path.get(&path).copied()))
        .collect();
    let trash = Trash::found(&removed, &files, Shelf::new(config));
    trash.reserve_ids(found.entries.iter().map(|e| e.id));
    let manifest = Manifest::adopt(fs, place.dir.clone(), found, entries, removed, trash).await;
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

/// What the manifest should say of segments that are no part of the log any more. For as long as their files
/// may be there it has to list them, and with them the truncations that say what of them is void: what they
/// hold would count for the next opening, and be evidence of what was cut off.
fn removed_entries(chain: &Chain, found: &ManifestContent) -> Vec<ManifestEntry> {
    let mut removed = found.removed.clone();
    let void = found.entries.iter().filter(|e| found.is_void(e));
    let void = void.map(|e| ManifestEntry {
        seal: e.seal.or(Some(Seal::new(
            e.name.base_offset,
            SEGMENT_HEADER_LEN as u64,
        ))),
        ..*e
    });
    let purged = chain.purged.iter();
    let purged = purged.filter_map(|link| link.candidate.gone_entry(link.extent));
    for entry in void.chain(purged).chain(chain.gone.iter().copied()) {
        if removed.iter().all(|e| e.id != entry.id) {
            removed.push(entry);
        }
    }
    removed
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
        has_point,
        ..
    } = candidate;
    let recycled = scan.as_ref().and_then(Scan::recycled);
    let resumed_at = scan.as_ref().and_then(|s| s.resumed_at);
    let points = Points::found(has_point, resumed_at.map_or(0, |(position, _)| position));
    let mut segment = Segment::new(id, ordinal, name, path, extent)
        .recycled(recycled)
        .with_points(points);
    if let Some(seal) = &mut seal {
        // Of frames behind the segment's end it says too much: then it is kept for longer.
        let scanned = || scan.as_ref().and_then(|s| s.index.times());
        seal.times = seal.times.or_else(scanned);
        segment.set_times(seal.times);
        segment.set_index_checksum(seal.index_checksum);
    }
    // An index that knows of frames behind the segment's end would find their timestamps: then the
    // first reader makes one that does not.
    if let Some(scan) = scan.as_mut().filter(|s| s.all_count(extent)) {
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
    let read_from = scan.read_from();
    Ok(RecoveredActive {
        file: scan.file,
        segment: Arc::clone(segment),
        age: Duration::from_millis(now.saturating_sub(began)),
        told_committed: scan.told_committed,
        read_from,
    })
}

/// Makes an empty segment as it is when it is created.
async fn begin_again(file: &dyn FileHandle, place: &Place) -> io::Result<()> {
    let header = bytes::Bytes::copy_from_slice(&place.header.encode());
    file.set_len(0).await?;
    file.write_at(0, &[header]).await?;
    file.sync_all().await
}
