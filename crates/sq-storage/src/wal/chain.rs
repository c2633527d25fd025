//! From segment files to one chain of offsets: which of them count, and up to where. Pure.

use super::manifest::{ManifestContent, Seal};
use super::recovery::{Candidate, UnacknowledgedTail};
use super::state::Extent;
use crate::error::{DamageReason, Error, Evidence, Result};

/// A segment of the chain, and how much of it counts.
pub(super) struct Link {
    pub(super) candidate: Candidate,
    pub(super) extent: Extent,
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
    /// What stands behind the last good frame.
    pub(super) tail: Option<UnacknowledgedTail>,
}

impl From<Extent> for Seal {
    fn from(extent: Extent) -> Self {
        Self {
            end_offset: extent.end_offset,
            length: extent.bytes,
        }
    }
}

impl Link {
    /// The seal that the manifest should hold: what it says, or for a segment that others follow,
    /// where they begin.
    pub(super) fn seal(&self, is_last: bool) -> Option<Seal> {
        match self.candidate.entry.and_then(|e| e.seal) {
            Some(seal) => Some(seal),
            None if is_last => None,
            None => Some(self.extent.into()),
        }
    }
}

impl Chain {
    /// The offset behind the last record.
    pub(super) fn end_offset(&self) -> u64 {
        self.links.last().map_or(0, |l| l.extent.end_offset)
    }
}

/// Orders the segments by base and age, and joins them.
///
/// # Errors
/// [`Error::Damaged`] where records are missing that something says were acknowledged.
pub(super) fn build_chain(
    mut candidates: Vec<Candidate>,
    found: &ManifestContent,
) -> Result<Chain> {
    // A file without a frame and without a line of the manifest has no ordinal. If it is older than
    // another with its base it holds nothing that counts, and if it is younger the other does not
    // either, or the base would have moved on: so it goes first.
    candidates.sort_by_key(|c| (c.name.base_offset, c.ordinal(), c.name));
    let (mut chain, evidence) = (Chain::default(), evidence(&candidates, found));
    if let Some((_, committed)) = evidence {
        chain.committed_before = committed;
    }
    // The youngest empty file is continued where it fits; any other is only a name, left by an
    // attempt to roll that came to nothing.
    let last = candidates.len().saturating_sub(1);
    for (i, candidate) in candidates.into_iter().enumerate() {
        let base = candidate.name.base_offset;
        let end = chain.links.last().map(|l| l.extent.end_offset);
        let joins = chain.aside.is_empty() && end.is_none_or(|end| base <= end);
        if !joins {
            check_unacknowledged(&chain, evidence)?;
        }
        let continues = candidate.is_open() && joins && i == last;
        if candidate.is_empty() && !(continues && end.is_none_or(|end| base == end)) {
            chain.empty.push(candidate);
        } else if joins {
            if end.is_some_and(|end| base < end) {
                bound_last(&mut chain, base)?;
            }
            let extent = candidate.extent();
            chain.links.push(Link { candidate, extent });
        } else {
            chain.aside.push(candidate);
        }
    }
    check_unacknowledged(&chain, evidence)?;
    chain.tail = tail(&chain);
    Ok(chain)
}

/// What says the most about how far the log was committed.
fn evidence(candidates: &[Candidate], found: &ManifestContent) -> Option<(Evidence, u64)> {
    let frames = candidates.iter().filter_map(|c| c.scan.as_ref());
    let frames = frames
        .map(|s| s.committed_before.max(s.beyond.committed_before))
        .max();
    // A segment is listed, and sealed, only when everything before its base, or its end, is durable.
    let listed = found
        .entries
        .iter()
        .map(|e| e.seal.map_or(e.name.base_offset, |s| s.end_offset));
    let listed = listed
        .max()
        .map(|offset| (Evidence::Manifest(offset), offset));
    let frames = frames.map(|offset| (Evidence::LaterFrame(offset), offset));
    listed
        .into_iter()
        .chain(frames)
        .max_by_key(|(_, offset)| *offset)
}

/// Fails if the chain ends before something that says it was committed.
fn check_unacknowledged(chain: &Chain, evidence: Option<(Evidence, u64)>) -> Result<()> {
    let (Some(last), Some((evidence, committed))) = (chain.links.last(), evidence) else {
        return Ok(());
    };
    let extent = last.extent;
    if committed <= extent.end_offset {
        return Ok(());
    }
    let stop = last
        .candidate
        .scan
        .as_ref()
        .map(super::recovery::Scan::stop_reason);
    Err(Error::Damaged {
        path: last.candidate.path.clone(),
        position: extent.bytes,
        offset: extent.end_offset,
        reason: stop.unwrap_or(DamageReason::EndOfFile),
        evidence,
    })
}

/// Ends the last segment where its successor begins.
fn bound_last(chain: &mut Chain, base: u64) -> Result<()> {
    let Some(last) = chain.links.last_mut() else {
        return Ok(());
    };
    if last.candidate.scan.is_none() {
        // A sealed end never changes, so two segments claim the same acknowledged offsets.
        return Err(Error::Damaged {
            path: last.candidate.path.clone(),
            position: last.extent.bytes,
            offset: base,
            reason: DamageReason::Discontinuous(base),
            evidence: Evidence::Manifest(last.extent.end_offset),
        });
    }
    last.extent = last.candidate.extent_up_to(base);
    Ok(())
}

/// What stands behind the last record of the newest segment, where that is not just zeros.
fn tail(chain: &Chain) -> Option<UnacknowledgedTail> {
    let last = chain.links.last()?;
    let scan = last.candidate.scan.as_ref()?;
    scan.beyond.has_data.then(|| UnacknowledgedTail {
        path: last.candidate.path.clone(),
        position: scan.position,
        offset: scan.end_offset,
        frames: scan.beyond.frames,
    })
}
