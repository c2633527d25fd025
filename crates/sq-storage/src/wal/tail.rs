//! The tail cache: what was appended last, in memory, for readers that have caught up.
//!
//! One [`TailCache`] serves all partitions of a node and bounds what they hold together; what was
//! appended longest ago goes first, whichever partition it belongs to. Each partition has a [`Tail`]:
//! frames without a gap up to the end of what is durable, put there when they are published and never
//! before, so that a failed append is not in it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;

use super::reader::StoredFrame;
use super::state::lock;

/// What was appended last, kept in memory for readers, under a bound that all partitions share.
///
/// Cheap to clone: clones are the same cache. It keeps the buffers that were appended, without a copy.
/// So a buffer that is a small slice of a large one keeps all of that alive: whoever appends such slices
/// bounds what they pin.
#[derive(Clone)]
pub struct TailCache(Arc<Shared>);

struct Shared {
    max_bytes: usize,
    max_partition_bytes: usize,
    order: Mutex<Order>,
}

/// Which partition holds what was appended longest ago.
///
/// Its lock is taken before that of any tail.
#[derive(Default)]
struct Order {
    bytes: usize,
    next_turn: u64,
    /// Each tail that holds something, by the turn of the oldest append in it.
    oldest: BTreeMap<u64, Weak<Tail>>,
}

impl TailCache {
    /// A cache of so many bytes, of which one partition takes at most half. A frame counts with its
    /// payload and what it costs to keep track of it. With 0 it is off.
    pub fn new(max_bytes: usize) -> Self {
        Self::with_share(max_bytes, max_bytes / 2)
    }

    /// A cache of so many bytes, of which one partition takes at most `max_partition_bytes`.
    pub fn with_share(max_bytes: usize, max_partition_bytes: usize) -> Self {
        Self(Arc::new(Shared {
            max_bytes,
            max_partition_bytes: max_partition_bytes.min(max_bytes),
            order: Mutex::default(),
        }))
    }

    /// A cache that holds nothing.
    pub fn off() -> Self {
        Self::new(0)
    }

    /// The bytes that it holds at most.
    pub fn max_bytes(&self) -> usize {
        self.0.max_bytes
    }

    /// The bytes that it holds.
    pub fn held_bytes(&self) -> usize {
        lock(&self.0.order).bytes
    }
}

impl Default for TailCache {
    /// 64 MiB.
    fn default() -> Self {
        Self::new(64 << 20)
    }
}

impl fmt::Debug for TailCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TailCache")
            .field("max_bytes", &self.0.max_bytes)
            .field("held_bytes", &self.held_bytes())
            .finish_non_exhaustive()
    }
}

/// The part of the cache that one partition has.
#[derive(Debug)]
pub(super) struct Tail {
    cache: TailCache,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Without a gap; the last one ends where the log does.
    frames: VecDeque<StoredFrame>,
    /// Each append's turn and how many of its frames are left, oldest first.
    appends: VecDeque<(u64, usize)>,
    bytes: usize,
}

/// What a frame counts for.
fn cost(frame: &StoredFrame) -> usize {
    let parts = frame.payload.parts();
    let tracking = size_of::<StoredFrame>() + size_of_val(parts);
    tracking + parts.iter().map(Bytes::len).sum::<usize>()
}

impl Held {
    /// Lets go of the oldest frame, and returns what it counted for.
    fn pop_oldest(&mut self, dropped: &mut Vec<StoredFrame>) -> usize {
        let Some(frame) = self.frames.pop_front() else {
            return 0;
        };
        if let Some((_, left)) = self.appends.front_mut() {
            *left -= 1;
            if *left == 0 {
                self.appends.pop_front();
            }
        }
        self.let_go(frame, dropped)
    }

    fn pop_newest(&mut self, dropped: &mut Vec<StoredFrame>) -> usize {
        let Some(frame) = self.frames.pop_back() else {
            return 0;
        };
        if let Some((_, left)) = self.appends.back_mut() {
            *left -= 1;
            if *left == 0 {
                self.appends.pop_back();
            }
        }
        self.let_go(frame, dropped)
    }

    fn let_go(&mut self, frame: StoredFrame, dropped: &mut Vec<StoredFrame>) -> usize {
        let cost = cost(&frame);
        self.bytes -= cost;
        dropped.push(frame);
        cost
    }

    fn turn(&self) -> Option<u64> {
        self.appends.front().map(|(turn, _)| *turn)
    }

    fn start(&self) -> Option<u64> {
        self.frames.front().map(|f| f.base_offset)
    }

    fn end(&self) -> Option<u64> {
        self.frames.back().map(StoredFrame::end_offset)
    }
}

impl Tail {
    pub(super) fn new(cache: TailCache) -> Arc<Self> {
        let held = Mutex::default();
        Arc::new(Self { cache, held })
    }

    /// Whether it would hold anything.
    pub(super) fn is_on(&self) -> bool {
        self.cache.0.max_partition_bytes > 0
    }

    /// Takes in the frames of one append, in the order of their offsets. They are about to be published,
    /// so that whoever is woken by that finds them here.
    pub(super) fn push(self: &Arc<Self>, frames: Vec<StoredFrame>) {
        // Memory is freed, and other tails are let go of, when no lock is held any more.
        let (mut dropped, mut visited) = (Vec::new(), Vec::new());
        let Some(first) = frames.first().map(|f| f.base_offset) else {
            return;
        };
        let shared = &*self.cache.0;
        let mut order = lock(&shared.order);
        self.change(&mut order, |held, next_turn| {
            let mut freed = 0;
            while held.end().is_some_and(|end| end != first) {
                freed += held.pop_oldest(&mut dropped);
            }
            let added: usize = frames.iter().map(cost).sum();
            held.appends.push_back((next_turn, frames.len()));
            held.frames.extend(frames);
            held.bytes += added;
            while held.bytes > shared.max_partition_bytes {
                freed += held.pop_oldest(&mut dropped);
            }
            (added, freed)
        });
        while order.bytes > shared.max_bytes
            && let Some((_, oldest)) = order.oldest.pop_first()
        {
            // One that is being dropped takes itself out.
            let Some(tail) = oldest.upgrade() else {
                continue;
            };
            let surplus = order.bytes - shared.max_bytes;
            tail.change(&mut order, |held, _| {
                let mut freed = 0;
                while freed < surplus && !held.frames.is_empty() {
                    freed += held.pop_oldest(&mut dropped);
                }
                (0, freed)
            });
            visited.push(tail);
        }
        drop(order);
    }

    /// Lets go of what lies at or behind `offset`: it is not in the log any more.
    pub(super) fn forget_from(self: &Arc<Self>, offset: u64) {
        let mut dropped = Vec::new();
        let mut order = lock(&self.cache.0.order);
        self.change(&mut order, |held, _| {
            let mut freed = 0;
            while held.end().is_some_and(|end| end > offset) {
                freed += held.pop_newest(&mut dropped);
            }
            (0, freed)
        });
        drop(order);
    }

    /// Lets go of what lies before `offset`: nobody reads it any more.
    pub(super) fn forget_before(self: &Arc<Self>, offset: u64) {
        let mut dropped = Vec::new();
        let mut order = lock(&self.cache.0.order);
        self.change(&mut order, |held, _| {
            let mut freed = 0;
            while held
                .frames
                .front()
                .is_some_and(|f| f.end_offset() <= offset)
            {
                freed += held.pop_oldest(&mut dropped);
            }
            (0, freed)
        });
        drop(order);
    }

    /// Changes what is held, and keeps the order right. The change gets the next append's turn, and says
    /// how many bytes came and went.
    fn change(
        self: &Arc<Self>,
        order: &mut Order,
        change: impl FnOnce(&mut Held, u64) -> (usize, usize),
    ) {
        let mut held = lock(&self.held);
        if let Some(turn) = held.turn() {
            order.oldest.remove(&turn);
        }
        let (added, freed) = change(&mut held, order.next_turn);
        order.next_turn += 1;
        order.bytes = order.bytes + added - freed;
        if let Some(turn) = held.turn() {
            order.oldest.insert(turn, Arc::downgrade(self));
        }
    }

    /// The first offset that is held; `None` if nothing is.
    pub(super) fn start(&self) -> Option<u64> {
        lock(&self.held).start()
    }

    /// Adds the frames from the one that holds `offset` on that begin below `end`, as far as there is
    /// room; at least one if `frames` is empty. Whether `offset` is held.
    pub(super) fn read(
        &self,
        offset: u64,
        end: u64,
        left: &mut usize,
        frames: &mut Vec<StoredFrame>,
    ) -> bool {
        let held = lock(&self.held);
        let covers = held.start().is_some_and(|start| start <= offset)
            && held.end().is_some_and(|end| end > offset);
        if !covers {
            return false;
        }
        let first = held.frames.partition_point(|f| f.end_offset() <= offset);
        for frame in held.frames.range(first..) {
            if frame.base_offset >= end {
                break;
            }
            let len = frame.payload.len();
            if len > *left && !frames.is_empty() {
                *left = 0;
                break;
            }
            frames.push(frame.clone());
            *left = left.saturating_sub(len);
            if *left == 0 {
                break;
            }
        }
        true
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *lock(&self.held));
        let mut order = lock(&self.cache.0.order);
        order.bytes -= held.bytes;
        if let Some(turn) = held.turn() {
            order.oldest.remove(&turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameKind;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn frame(offset: u64, len: usize) -> StoredFrame {
        StoredFrame {
            base_offset: offset,
            record_count: 2,
            max_timestamp_ms: 0,
            append_time_ms: 0,
            leader_epoch: 0,
            kind: FrameKind::Batch,
            payload: Bytes::from(vec![0; len]).into(),
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize, Vec<usize>),
        ForgetFrom(usize, u64),
        ForgetBefore(usize, u64),
        Reopen(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let tail = 0..3_usize;
        prop_oneof![
            6 => (tail.clone(), vec(0..400_usize, 0..5)).prop_map(|(t, f)| Step::Push(t, f)),
            1 => (tail.clone(), 0..20_u64).prop_map(|(t, o)| Step::ForgetFrom(t, o)),
            1 => (tail.clone(), 0..40_u64).prop_map(|(t, o)| Step::ForgetBefore(t, o)),
            1 => tail.prop_map(Step::Reopen),
        ]
    }

    /// What is held against all that was appended: each tail has the end of its log without a gap, no
    /// more than the bounds, and of all appends the newest.
    fn check(cache: &TailCache, tails: &[Arc<Tail>], ends: &[u64]) {
        let mut bytes = 0;
        let mut turns = Vec::new();
        for (tail, end) in tails.iter().zip(ends) {
            let held = lock(&tail.held);
            let mut next = held.start().unwrap_or(*end);
            for frame in &held.frames {
                assert_eq!(frame.base_offset, next);
                next = frame.end_offset();
            }
            assert_eq!(next, *end);
            let own: usize = held.frames.iter().map(cost).sum();
            assert_eq!(held.bytes, own);
            assert!(own <= cache.0.max_partition_bytes);
            let left: usize = held.appends.iter().map(|(_, left)| left).sum();
            assert_eq!(left, held.frames.len());
            turns.extend(held.turn());
            bytes += own;
        }
        turns.sort_unstable();
        let order = lock(&cache.0.order);
        assert_eq!(order.bytes, bytes);
        assert!(bytes <= cache.max_bytes());
        let listed: Vec<_> = order.oldest.keys().copied().collect();
        assert_eq!(listed, turns);
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_the_books_are_right(
            steps in vec(step(), 0..60), max in 0..3_000_usize, share in 0..2_000_usize,
        ) {
            let cache = TailCache::with_share(max, share);
            let mut tails: Vec<_> = (0..3).map(|_| Tail::new(cache.clone())).collect();
            let mut ends = [0; 3];
            for step in steps {
                match step {
                    Step::Push(t, lens) => {
                        let frames: Vec<_> = lens.iter().zip(0..).map(|(len, n)| frame(ends[t] + 2 * n, *len)).collect();
                        ends[t] += 2 * frames.len() as u64;
                        tails[t].push(frames);
                    }
                    Step::ForgetFrom(t, back) => {
                        ends[t] = (ends[t].saturating_sub(back)) / 2 * 2;
                        tails[t].forget_from(ends[t]);
                    }
                    Step::ForgetBefore(t, back) => {
                        let start = ends[t].saturating_sub(back);
                        tails[t].forget_before(start);
                        let held = lock(&tails[t].held);
                        prop_assert!(held.frames.iter().all(|f| f.end_offset() > start));
                    }
                    Step::Reopen(t) => tails[t] = Tail::new(cache.clone()),
                }
                check(&cache, &tails, &ends);
            }
            drop(tails);
            prop_assert_eq!(cache.held_bytes(), 0);
        }
    }
}
