//! The file of a purged segment, kept to be written again as the next successor.
//!
//! An append to blocks that were written before changes nothing of its file's metadata, and no zeros have to
//! be written in front of it. Only a file that was full once offers that from its first byte to its last. So
//! what retention takes out of a log whose segments are prepared is not freed: it is put aside as
//! `{id}.spare`, as many as successors were prepared of late, and the next preparation makes one of it.
//!
//! What the earlier segment left there must never pass for the later one's. It has another id, which no
//! other segment ever has. It lies below every offset that is still to come, as only what was purged is kept,
//! of files that hold nothing behind their segment's end. And no operation on it may be under way any more:
//! a file on which one was dropped, or failed, is [worn](Wear) and is never kept.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sq_sim::Instant;

use super::config::WalConfig;
use super::state::{Segment, lock};
use super::zeroing::{Held, Zeroing};
use crate::frame::FRAME_HEADER_LEN;
use crate::reserve::Reserve;

/// How long a spare is kept, and how long after a preparation another one is expected. A log that takes
/// longer over a segment gains little by a spare, and an idle one nothing.
const MAX_AGE: Duration = Duration::from_mins(10);

/// How many are kept for a partition at most.
const MAX_SPARES: usize = 64;

/// A write ends with a page.
const PAGE_LEN: u64 = 4096;

/// The zeros that tell where a log ends whatever stands behind them: a frame's length.
const END_LEN: u64 = 4;

/// Where the zeros end that follow a write which ends at `end`, in a file that was another segment's.
pub(super) fn end_of_zeros(end: u64) -> u64 {
    end.saturating_add(END_LEN)
        .checked_next_multiple_of(PAGE_LEN)
        .unwrap_or(u64::MAX)
}

/// The name of a spare file that was the file of segment `id`.
pub(super) fn file_name(id: u64) -> String {
    format!("{id:016x}.spare")
}

/// Whether a file is a spare one.
pub(super) fn is_spare(name: &OsStr) -> bool {
    let id = name.to_str().and_then(|name| name.strip_suffix(".spare"));
    let id = id.and_then(|id| u64::from_str_radix(id, 16).ok());
    id.is_some_and(|id| name == OsStr::new(&file_name(id)))
}

/// A bound on the bytes of files that are kept to be written again. A configuration that is cloned shares it,
/// and so do all partitions that are opened with clones.
///
/// A log of which segments are purged ([`WalWriter::purge_to`](super::WalWriter::purge_to), retention) and
/// prepared ([`WalWriter::preparation`](super::WalWriter::preparation)) keeps purged segments' files for the
/// next preparations, on top of what it was asked to keep: as many as were prepared in the last ten minutes,
/// for ten minutes, and not while the disk is full. Appends to them cost less than to a fresh file, and so
/// does preparing them. A log whose segments are not prepared, or that is idle, keeps none.
///
/// A file is written again in place: who keeps hard links to segments, as some backups do, has to
/// have [`none`](Self::none).
#[derive(Clone, Debug)]
pub struct Spares(Zeroing);

impl Spares {
    /// A bound in bytes. A file of which not all fits is removed instead.
    pub fn new(limit_bytes: u64) -> Self {
        Self(Zeroing::new(limit_bytes))
    }

    /// No file is kept.
    pub fn none() -> Self {
        Self::new(0)
    }

    /// The bytes of the files that are kept.
    pub fn used_bytes(&self) -> u64 {
        self.0.used_bytes()
    }

    fn take(&self, len: u64) -> Option<Held> {
        let held = self.0.take(len, len, false);
        (held.bytes() == len).then_some(held)
    }
}

impl Default for Spares {
    /// 2 GiB: two segments of the default size.
    ///
    /// It is on by default since who prepares successors does so for the sake of appends, and gets nothing
    /// out of an unlink but the space, which is soon taken again.
    fn default() -> Self {
        Self::new(2 << 30)
    }
}

/// Whether a segment's file can become another's once the segment is gone.
#[derive(Debug, Default)]
pub(super) struct Wear(AtomicBool);

impl Wear {
    /// It can't: something may still be done to it, or what it holds is not known.
    pub(super) fn spoil(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_spoilt(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// An operation on the file begins. It spoils the file unless it is [done](Operation::done): one that
    /// was dropped may take place at any time from then on.
    pub(super) fn begin(&self) -> Operation<'_> {
        Operation(Some(self))
    }
}

/// An operation on a file, under way.
pub(super) struct Operation<'a>(Option<&'a Wear>);

impl Operation<'_> {
    /// It took place, and did not fail.
    pub(super) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if let Some(wear) = self.0 {
            wear.spoil();
        }
    }
}

/// A purged segment, as far as its file may be kept.
#[derive(Debug)]
pub(super) struct Offer {
    /// Alive as long as somebody may read its file, or do something else with it.
    segment: Weak<Segment>,
    wear: Arc<Wear>,
    /// The bytes up to its end.
    bytes: u64,
}

/// A file that is kept.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) path: PathBuf,
    since: Instant,
    /// Its part of the bound.
    _held: Held,
}

/// The spare files of one partition, and what decides on how many there are.
#[derive(Debug)]
pub(super) struct Shelf {
    spares: Spares,
    /// How long a file has to be that is kept, in bytes.
    lengths: RangeInclusive<u64>,
    reserve: Option<Reserve>,
    state: Mutex<ShelfState>,
}

#[derive(Debug, Default)]
struct ShelfState {
    /// Segments that were purged, by their ids.
    offers: HashMap<u64, Offer>,
    /// Oldest first.
    spares: VecDeque<Spare>,
    /// When successors were prepared, of late.
    wanted_at: VecDeque<Instant>,
}

impl Shelf {
    pub(super) fn new(config: &WalConfig) -> Self {
        let segment = config.max_segment_bytes;
        Self {
            spares: config.spares.clone(),
            lengths: segment / 2..=segment.saturating_mul(2),
            reserve: config.reserve.clone(),
            state: Mutex::default(),
        }
    }

    /// A segment that is about to be purged.
    pub(super) fn offer(&self, segment: &Arc<Segment>) {
        let offer = Offer {
            segment: Arc::downgrade(segment),
            wear: Arc::clone(&segment.wear),
            bytes: segment.extent().bytes,
        };
        lock(&self.state).offers.insert(segment.id, offer);
    }

    /// A successor is prepared: before long, another will be.
    pub(super) fn want(&self, now: Instant) {
        let wanted_at = &mut lock(&self.state).wanted_at;
        if wanted_at.len() == MAX_SPARES {
            wanted_at.pop_front();
        }
        wanted_at.push_back(now);
    }

    /// Whether the file of a purged segment is to be kept, beside `more` than there are. Asked once: whoever
    /// goes on with a file, and is dropped, leaves it worn.
    pub(super) fn claim(&self, id: u64, more: usize, now: Instant) -> Option<Offer> {
        let mut state = lock(&self.state);
        let offer = state.offers.remove(&id)?;
        state.wanted_at.retain(|at| !is_old(*at, now));
        let is_wanted =
            state.spares.len() + more < state.wanted_at.len() && !self.is_out_of_space();
        let is_let_go = offer.segment.strong_count() == 0;
        (is_wanted && is_let_go && !offer.wear.is_spoilt()).then_some(offer)
    }

    /// What becomes a spare at `path`, if a file of `len` bytes is fit to be one.
    pub(super) fn accept(
        &self,
        offer: &Offer,
        len: u64,
        path: &Path,
        now: Instant,
    ) -> Option<Spare> {
        // A mark is all that may stand behind the last record.
        let is_whole = len <= offer.bytes.saturating_add(FRAME_HEADER_LEN as u64);
        let held = (is_whole && self.lengths.contains(&len)).then(|| self.spares.take(len))??;
        Some(Spare {
            path: path.to_owned(),
            since: now,
            _held: held,
        })
    }

    /// A file is a spare from now on.
    pub(super) fn put(&self, spare: Spare) {
        lock(&self.state).spares.push_back(spare);
    }

    /// Takes a spare, if there is one.
    pub(super) fn take(&self) -> Option<Spare> {
        lock(&self.state).spares.pop_front()
    }

    /// Whether there is a spare that is better removed.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let state = lock(&self.state);
        let oldest = state.spares.front();
        oldest.is_some_and(|spare| is_old(spare.since, now) || self.is_out_of_space())
    }

    /// Expects no preparation for now, and forgets what was purged.
    pub(super) fn give_up(&self) {
        let mut state = lock(&self.state);
        state.wanted_at.clear();
        state.offers.clear();
    }

    fn is_out_of_space(&self) -> bool {
        self.reserve.as_ref().is_some_and(Reserve::is_given_back)
    }
}

fn is_old(then: Instant, now: Instant) -> bool {
    now.saturating_duration_since(then) >= MAX_AGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_zero_follows_every_write_and_ends_with_a_page() {
        for (end, zeros) in [
            (32, 4096),
            (4092, 4096),
            (4093, 8192),
            (4096, 8192),
            (4097, 8192),
        ] {
            assert_eq!(end_of_zeros(end), zeros, "{end}");
        }
        assert_eq!(end_of_zeros(u64::MAX), u64::MAX);
    }

    #[test]
    fn names_that_are_not_exactly_ours_are_not_spares() {
        assert!(is_spare(OsStr::new(&file_name(0xfeed))));
        for name in [
            "1.spare",
            "000000000000000A.spare",
            "000000000000000a.spare.aside",
            "000000000000000a.prepared",
        ] {
            assert!(!is_spare(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn an_operation_that_is_not_done_wears_a_file() {
        let wear = Wear::default();
        wear.begin().done();
        assert!(!wear.is_spoilt());
        drop(wear.begin());
        assert!(wear.is_spoilt());
    }
}
