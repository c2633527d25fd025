//! From segment files to one chain of offsets: which of them count, and up to where. Pure.

use std::ops::Range;
use std::path::PathBuf;

use super::manifest::{ManifestContent, ManifestEntry, Seal};
use super::recovery::{Candidate, UnacknowledgedTail};
use super::state::Extent;
use crate::error::{DamageReason, Error, Evidence, Result};

/// Acknowledged records that can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment file.
    pub path: PathBuf,
    /// Where the damage begins, in bytes from the file's start.
    pub position: u64,
    /// The offsets that are lost, as far as opening can tell: none where a header is damaged, or a
    /// file is too short.
    pub offsets: Range<u64>,
    /// What is wrong.
    pub reason: DamageReason,
    /// What says that the records were acknowledged.
    pub evidence: Evidence,
}

/// A segment of the chain, and how much of it counts.
pub(super) struct Link {
    pub(super) candidate: Candidate,
    pub(super) extent: Extent,
    /// The offset behind the last record that can be read.
    readable_end: u64,
    /// What of it is lost.
    pub(super) damage: Vec<Damage>,
    /// What stands behind its last record that no one was told about.
    pub(super) tail: Option<UnacknowledgedTail>,
    /// Whether it holds records that do not count, as another segment begins in front of them.
    pub(super) is_cut: bool,
}

/// What a partition's files amount to.
#[derive(Default)]
pub(super) struct Chain {
    /// The segments, oldest first, each ending where the next begins.
    pub(super) links: Vec<Link>,
    /// Segments that continue nothing, and of which nothing says that they were acknowledged.
    pub(super) aside: Vec<Candidate>,
    /// Segments without a byte of data.
    pub(super) empty: Vec<Candidate>,
    /// Everything below this offset is known to have been committed.
    pub(super) committed_before: u64,
    /// Segments all of which the log has let go of.
    pub(super) purged: Vec<Link>,
    /// What the manifest should say of others that are no part of the log any more.
    pub(super) gone: Vec<ManifestEntry>,
    /// Below this the log has let go of everything.
    purged_to: u64,
}

impl From<Extent> for Seal {
    fn from(extent: Extent) -> Self {
        Self::new(extent.end_offset, extent.bytes)
    }
}

impl Link {
    /// How much of a segment counts, if everything below `evidence` was committed and another
    /// segment begins at `bound`.
    fn new(candidate: Candidate, evidence: Known, bound: u64) -> Self {
        let adopted = Adopted::new(&candidate, evidence.committed_before, bound);
        let mut extent = adopted.extent;
        let readable_end = extent.end_offset;
        let mut holes = adopted.holes;
        let told = evidence.committed_before.min(bound);
        if extent.end_offset < told {
            holes.push((
                extent.bytes,
                extent.end_offset..told,
                candidate.end_reason(),
            ));
            extent.end_offset = told;
        }
        let damage = |(position, offsets, reason)| Damage {
            path: candidate.path.clone(),
            position,
            offsets,
            reason,
            evidence: evidence.evidence(),
        };
        let base = candidate.name.base_offset;
        match candidate.unfit.clone() {
            Some(DamageReason::Missing) => {
                holes = vec![(0, base..extent.end_offset, DamageReason::Missing)];
            }
            Some(reason) => holes.insert(0, (0, base..base, reason)),
            None => {}
        }
        let damage = holes.into_iter().map(damage).collect();
        let mut runs = candidate.scan.iter().flat_map(|scan| &scan.runs);
        let is_cut = runs.any(|run| run.end_offset > bound);
        let tail = adopted.tail_frames.map(|frames| UnacknowledgedTail {
            path: candidate.path.clone(),
            position: extent.bytes,
            offset: extent.end_offset,
            frames,
        });
        Self {
            candidate,
            extent,
            readable_end,
            damage,
            tail,
            is_cut,
        }
    }

    /// Whether the next append can go to it.
    pub(super) fn is_open(&self) -> bool {
        #[cfg(feature = "mutants")]
        if super::mutants::lacks(super::mutants::Guard::Tail) {
            return self.candidate.scan.is_some() && self.damage.is_empty();
        }
        self.candidate
            .scan
            .as_ref()
            .is_some_and(|s| s.runs.len() == 1)
            && self.tail.is_none()
            && self.damage.is_empty()
    }

    /// Where the file ends that takes no further write, if it is longer, and holds nothing but zeros
    /// behind its last frame.
    pub(super) fn length_to_trim(&self) -> Option<u64> {
        let scan = self.candidate.scan.as_ref()?;
        let [run] = scan.runs.as_slice() else {
            return None;
        };
        let is_whole = self.tail.is_none() && self.damage.is_empty() && !scan.has_data_behind;
        (is_whole && scan.file_len > run.end_position).then_some(run.end_position)
    }

    /// The seal that the manifest should hold: what it says, or for a segment that others follow,
    /// where they begin.
    pub(super) fn seal(&self, is_last: bool) -> Option<Seal> {
        match self.candidate.entry.and_then(|e| e.seal) {
            Some(seal) => Some(Seal {
                end_offset: self.extent.end_offset,
                ..seal
            }),
            None if is_last => None,
            None => Some(self.extent.into()),
        }
    }
}

/// What of a scanned segment's frames counts.
struct Adopted {
    extent: Extent,
    /// Where frames are missing in between: position, offsets, reason.
    holes: Vec<(u64, Range<u64>, DamageReason)>,
    /// How many valid frames stand behind the last that counts, if anything does.
    tail_frames: Option<usize>,
}

impl Adopted {
    /// A stretch of frames behind a gap counts only if something says that what is missing was
    /// committed: otherwise the gap is where a tear begins.
    fn new(candidate: &Candidate, committed_before: u64, bound: u64) -> Self {
        let mut adopted = Self {
            extent: candidate.sealed_extent(),
            holes: Vec::new(),
            tail_frames: None,
        };
        let Some(scan) = &candidate.scan else {
            return adopted;
        };
        let told = committed_before.min(bound);
        let mut left = scan.runs.iter();
        let Some(mut last) = left.next() else {
            return adopted;
        };
        while last.end_offset < told
            && let Some(next) = left.as_slice().first().filter(|run| run.offset < bound)
        {
            if next.offset > last.end_offset {
                let missing = last.end_offset..next.offset;
                adopted
                    .holes
                    .push((last.end_position, missing, last.stop.reason()));
            }
            last = next;
            left.next();
        }
        adopted.extent = Extent {
            end_offset: last.end_offset,
            bytes: last.end_position,
        };
        if bound < last.end_offset {
            adopted.extent.end_offset = bound;
            adopted.extent.bytes = scan.position_of(bound).unwrap_or(last.end_position);
        }
        let behind = left.map(|run| run.frames).sum();
        adopted.tail_frames = (behind > 0 || scan.has_data_behind).then_some(behind);
        adopted
    }
}

impl Chain {
    /// The first offset that the log holds, or would hold.
    pub(super) fn start_offset(&self) -> u64 {
        let first = self
            .links
            .first()
            .map_or(0, |l| l.candidate.name.base_offset);
        first.max(self.purged_to)
    }

    /// The offset behind the last record.
    pub(super) fn end_offset(&self) -> u64 {
        let last = self.links.last().map_or(0, |l| l.extent.end_offset);
        last.max(self.purged_to)
    }

    /// Takes out what the log has let go of, and what is said of it. Not a segment that the manifest does
    /// not know to have ended: it took appends then, may go on with it, and would be missed.
    fn purge(&mut self) {
        let start = self.purged_to;
        let is_purged = |link: &Link| {
            let is_gone =
                link.candidate.name.base_offset < start && link.extent.end_offset <= start;
            is_gone && link.candidate.entry.is_none_or(|e| e.seal.is_some())
        };
        let (purged, links) = std::mem::take(&mut self.links)
            .into_iter()
            .partition(is_purged);
        (self.purged, self.links) = (purged, links);
        for link in &mut self.links {
            link.damage.retain_mut(|damage| {
                let offsets = &mut damage.offsets;
                let says_something = offsets.is_empty() || offsets.end > start;
                if !offsets.is_empty() {
                    offsets.start = offsets.start.max(start);
                }
                says_something
            });
        }
    }

    /// Whether the log ends where it does on the manifest's word alone, or something was lost by it.
    pub(super) fn relies_on_manifest(&self) -> bool {
        let unread = |candidate: &Candidate| candidate.scan.is_none();
        self.links.last().is_some_and(|l| unread(&l.candidate))
            || self.links.iter().any(|l| !l.damage.is_empty())
            || self.empty.iter().any(unread)
    }

    /// Ends the last segment where another begins.
    fn bound_last(&mut self, evidence: Known, base: u64) -> Result<()> {
        let Some(last) = self.links.pop() else {
            return Ok(());
        };
        let sealed = last.candidate.sealed_extent();
        if last.candidate.scan.is_none() && base < sealed.end_offset {
            // A sealed end never changes, so two segments claim the same acknowledged offsets.
            return Err(Error::Damaged {
                path: last.candidate.path,
                position: sealed.bytes,
                offset: base,
                reason: DamageReason::Discontinuous(base),
                evidence: Evidence::Manifest(sealed.end_offset),
            });
        }
        self.links.push(Link::new(last.candidate, evidence, base));
        Ok(())
    }
}

/// Orders the segments by base and age, and joins them.
///
/// # Errors
/// [`Error::Damaged`] where two segments claim the same acknowledged offsets.
pub(super) fn build_chain(
    mut candidates: Vec<Candidate>,
    found: &ManifestContent,
) -> Result<Chain> {
    // A file without a frame and without a line of the manifest has no ordinal. If it is older than
    // another with its base it holds nothing that counts, and if it is younger the other does not
    // either, or the base would have moved on: so it goes first.
    candidates.sort_by_key(|c| (c.name.base_offset, c.ordinal(), c.name));
    let evidence = Known::from(&candidates, found);
    let mut chain = Chain {
        committed_before: evidence.committed_before,
        purged_to: found.start_offset(),
        ..Chain::default()
    };
    // An empty file is continued where it is the youngest and fits, and is where records were lost if
    // the log goes on behind it. Any other is only a name, left by an attempt to roll that came to
    // nothing.
    let mut left = candidates.into_iter().peekable();
    while let Some(candidate) = left.next() {
        let base = candidate.name.base_offset;
        let before = chain.links.last();
        #[cfg(feature = "mutants")]
        let before = before.filter(|_| !super::mutants::lacks(super::mutants::Guard::Continuity));
        // What was purged leaves no gap.
        let ends = before.map(|l| l.extent.end_offset.max(chain.purged_to));
        let joins = chain.aside.is_empty() && ends.is_none_or(|end| base <= end);
        // Where no segment is left, the manifest says where the log is.
        let is_elsewhere = found.log_start.is_some_and(|start| start.offset != base);
        let fits = candidate.scan.is_some()
            && joins
            && !(before.is_none() && is_elsewhere)
            && before.is_none_or(|l| match left.peek() {
                None => base == l.extent.end_offset,
                Some(_) => base == l.readable_end,
            })
            && left.peek().is_none_or(|next| next.name.base_offset > base);
        if candidate.is_empty() && !fits {
            chain.empty.push(candidate);
        } else if joins {
            chain.bound_last(evidence, base)?;
            chain.links.push(Link::new(candidate, evidence, u64::MAX));
        } else {
            chain.aside.push(candidate);
        }
    }
    chain.purge();
    Ok(chain)
}

/// How far the log is known to have been committed, and by what.
#[derive(Clone, Copy, Debug)]
struct Known {
    committed_before: u64,
    by_manifest: bool,
}

impl Known {
    fn from(candidates: &[Candidate], found: &ManifestContent) -> Self {
        let scans = candidates.iter().filter_map(|c| c.scan.as_ref());
        let frames = scans.map(|s| s.committed_before).max().unwrap_or(0);
        // A segment is listed, and sealed, only when everything before its base, or its end, is
        // durable.
        let listed = |e: &ManifestEntry| {
            let told = e.seal.map_or(e.name.base_offset, |s| s.end_offset);
            told.min(found.limit_of(e.ordinal))
        };
        let listed = found.entries.iter().map(listed).max().unwrap_or(0);
        let listed = listed.max(found.start_offset());
        Self {
            committed_before: frames.max(listed),
            by_manifest: listed >= frames,
        }
    }

    fn evidence(self) -> Evidence {
        if self.by_manifest {
            Evidence::Manifest(self.committed_before)
        } else {
            Evidence::LaterFrame(self.committed_before)
        }
    }
}

impl Candidate {
    /// Why nothing more can be read behind the last record that can.
    fn end_reason(&self) -> DamageReason {
        let last = self.scan.as_ref().and_then(|s| s.runs.last());
        match (&self.unfit, last) {
            (Some(reason), None) => reason.clone(),
            (_, Some(run)) => run.stop.reason(),
            (None, None) => DamageReason::EndOfFile,
        }
    }

    /// The extent that the manifest's seal gives; that of an empty segment where there is none.
    fn sealed_extent(&self) -> Extent {
        let seal = self.entry.and_then(|e| e.seal);
        seal.map_or(self.empty_extent(), |s| Extent {
            end_offset: s.end_offset,
            bytes: s.length,
        })
    }

    /// Whether it holds no byte that could be part of a frame, or was sealed without a record.
    fn is_empty(&self) -> bool {
        match &self.scan {
            Some(scan) => scan.first.is_none() && !scan.has_data_behind,
            None => self.entry.is_some_and(|e| e.is_empty()),
        }
    }
}
