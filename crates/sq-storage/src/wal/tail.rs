//! The tail cache: what was appended last, in memory, for readers that have caught up.
//!
//! One [`TailCache`] serves all partitions of a node and bounds what they hold together; what was
//! appended longest ago goes first, whichever partition it belongs to. Each partition has a [`Tail`]:
//! frames without a gap up to the end of what is durable, put there when they are published and never
//! before, so that a failed append is not in it. What was written together is kept together, in the
//! buffers that it was written from, and goes together: so a frame costs nothing of its own.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use super::reader::StoredFrame;
use super::state::lock;
use super::written::Written;

/// What was appended last, kept in memory for readers, under a bound that all partitions share.
///
/// Cheap to clone: clones are the same cache. It keeps the buffers that were written, without a copy:
/// those that were appended, but for small ones, which are written from one buffer together. So a buffer
/// of more than 4 KiB that is a slice of a larger one keeps all of that alive: whoever appends such slices
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
    /// Each append's turn and frames, oldest first, none without a frame. Without a gap; the last one ends
    /// where the log does.
    appends: VecDeque<(u64, Written)>,
    bytes: usize,
}

impl Held {
    /// Lets go of the oldest append, and returns what it counted for.
    fn pop_oldest(&mut self, dropped: &mut Vec<Written>) -> usize {
        let popped = self.appends.pop_front();
        self.let_go(popped, dropped)
    }

    fn pop_newest(&mut self, dropped: &mut Vec<Written>) -> usize {
        let popped = self.appends.pop_back();
        self.let_go(popped, dropped)
    }

    fn let_go(&mut self, popped: Option<(u64, Written)>, dropped: &mut Vec<Written>) -> usize {
        let Some((_, written)) = popped else {
            return 0;
        };
        let cost = written.cost();
        self.bytes -= cost;
        dropped.push(written);
        cost
    }

    fn turn(&self) -> Option<u64> {
        self.appends.front().map(|(turn, _)| *turn)
    }

    fn start(&self) -> Option<u64> {
        self.appends.front()?.1.start_offset()
    }

    fn end(&self) -> Option<u64> {
        self.appends.back()?.1.end_offset()
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

    /// Takes in the frames of one append. They are about to be published, so that whoever is woken by
    /// that finds them here.
    pub(super) fn push(self: &Arc<Self>, mut written: Written) {
        // Memory is freed, and other tails are let go of, when no lock is held any more.
        let (mut dropped, mut visited) = (Vec::new(), Vec::new());
        let Some(first) = written.start_offset() else {
            return;
        };
        let shared = &*self.cache.0;
        written.shrink_to(shared.max_partition_bytes);
        let mut order = lock(&shared.order);
        self.change(&mut order, |held, next_turn| {
            let (added, start) = (written.cost(), written.start_offset());
            let mut freed = 0;
            // What is in front of a gap is of no use.
            while held
                .end()
                .is_some_and(|end| end != first || start != Some(first))
            {
                freed += held.pop_oldest(&mut dropped);
            }
            if start.is_some() {
                held.appends.push_back((next_turn, written));
                held.bytes += added;
            }
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
            // Of one tail no more than that: what it has behind it may be newer than what others have.
            tail.change(&mut order, |held, _| (0, held.pop_oldest(&mut dropped)));
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
            while held.end() > Some(offset) {
                if let Some((_, newest)) = held.appends.back_mut() {
                    newest.forget_from(offset);
                    if newest.end_offset().is_some() {
                        break;
                    }
                }
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
            while let Some((_, oldest)) = held.appends.front_mut() {
                oldest.forget_before(offset);
                if oldest.end_offset().is_some() {
                    break;
                }
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
        let ends_before = |(_, written): &(u64, Written)| written.end_offset() <= Some(offset);
        let first = held.appends.partition_point(ends_before);
        let appends = held.appends.range(first..);
        for frame in appends.flat_map(|(_, written)| written.frames_from(offset)) {
            if frame.base_offset >= end {
                break;
            }
            let len = frame.payload.len();
            if len > *left && !frames.is_empty() {
                *left = 0;
                break;
            }
            frames.push(frame);
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
    use super::super::written::header_at;
    use super::*;
    use bytes::BytesMut;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// What is written of frames with bodies of these lengths, two offsets each.
    fn written(offset: u64, lens: &[usize]) -> Written {
        let mut bytes = BytesMut::new();
        let mut frames = Vec::new();
        for (len, n) in lens.iter().zip(0..) {
            let header = header_at(offset + 2 * n);
            frames.push((bytes.len() as u64, header));
            header
                .encode_whole(&[vec![0; *len].into()], &mut bytes)
                .unwrap();
        }
        let len = bytes.len() as u64;
        Written::new(vec![bytes.freeze()], frames, len)
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
            for (_, written) in &held.appends {
                assert_eq!(written.start_offset(), Some(next));
                next = written.end_offset().unwrap();
            }
            assert_eq!(next, *end);
            let own: usize = held.appends.iter().map(|(_, written)| written.cost()).sum();
            assert_eq!(held.bytes, own);
            assert!(own <= cache.0.max_partition_bytes);
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
                        let pushed = written(ends[t], &lens);
                        ends[t] += 2 * lens.len() as u64;
                        tails[t].push(pushed);
                    }
                    Step::ForgetFrom(t, back) => {
                        ends[t] = (ends[t].saturating_sub(back)) / 2 * 2;
                        tails[t].forget_from(ends[t]);
                    }
                    Step::ForgetBefore(t, back) => {
                        let start = ends[t].saturating_sub(back);
                        tails[t].forget_before(start);
                        let held = lock(&tails[t].held);
                        prop_assert!(held.appends.iter().all(|(_, written)| written.end_offset() > Some(start)));
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
