//! How much may be zeroed ahead of what is written, over all partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a segment that took little so far leaves to the others, so that many that are filled slowly
/// never keep one waiting that is filled fast.
const SHARE_OF_SMALL: u64 = 2;

/// A bound on the bytes that are zeroed and not written yet, prepared successors included. A
/// configuration that is cloned shares it, and so do all partitions that are opened with clones.
#[derive(Clone, Debug)]
pub struct Zeroing(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Zeroing {
    /// A bound in bytes.
    pub fn new(limit_bytes: u64) -> Self {
        Self(Arc::new(Budget {
            limit: limit_bytes,
            used: AtomicU64::new(0),
        }))
    }

    /// The bytes that are zeroed, or about to be, and not written yet.
    pub fn used_bytes(&self) -> u64 {
        self.0.used.load(Ordering::Acquire)
    }

    /// Takes whole multiples of `unit` bytes, as many of the `wanted` as there are.
    pub(super) fn take(&self, wanted: u64, unit: u64, is_small: bool) -> Held {
        let limit = self.0.limit / if is_small { SHARE_OF_SMALL } else { 1 };
        let granted = |used: u64| {
            let left = limit.saturating_sub(used).min(wanted);
            left - left % unit.max(1)
        };
        let taken = self
            .0
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                Some(used + granted(used)).filter(|&more| more > used)
            });
        Held {
            budget: self.clone(),
            bytes: taken.map_or(0, granted),
        }
    }

    /// Whether anything can be taken.
    pub(super) fn has_room(&self, unit: u64, is_small: bool) -> bool {
        let limit = self.0.limit / if is_small { SHARE_OF_SMALL } else { 1 };
        self.used_bytes().saturating_add(unit) <= limit
    }
}

impl Default for Zeroing {
    /// 256 MiB.
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

/// Some of the budget, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    budget: Zeroing,
    bytes: u64,
}

impl Held {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives all but `bytes` back.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let more = self.bytes.saturating_sub(bytes);
        self.bytes -= more;
        self.budget.0.used.fetch_sub(more, Ordering::AcqRel);
    }

    /// Hands over all of it.
    pub(super) fn split(&mut self) -> Self {
        Self {
            budget: self.budget.clone(),
            bytes: std::mem::take(&mut self.bytes),
        }
    }

    /// Takes over what another holds of the same budget.
    pub(super) fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_and_all_of_it_comes_back() {
        let zeroing = Zeroing::new(10_000);
        let small = zeroing.take(8_192, 4_096, true);
        assert_eq!(small.bytes(), 4_096, "half of it is for the others");
        assert_eq!(zeroing.take(4_096, 4_096, true).bytes(), 0);
        assert!(!zeroing.has_room(4_096, true) && zeroing.has_room(4_096, false));
        let mut large = zeroing.take(50_000, 4_096, false);
        assert_eq!(large.bytes(), 4_096);
        assert_eq!(zeroing.used_bytes(), 8_192);
        large.join(small);
        large.shrink_to(5_000);
        assert_eq!(zeroing.used_bytes(), 5_000);
        large.shrink_to(6_000);
        assert_eq!(large.bytes(), 5_000);
        drop(large);
        assert_eq!(zeroing.used_bytes(), 0);
    }

    #[test]
    fn threads_that_take_at_once_do_not_take_more_than_there_is() {
        let zeroing = Zeroing::new(100);
        let take = || {
            (0..1000)
                .map(|_| zeroing.take(3, 1, false))
                .collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let held: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            let held: Vec<_> = held.into_iter().flat_map(|h| h.join().unwrap()).collect();
            assert_eq!(held.iter().map(Held::bytes).sum::<u64>(), 100);
        });
        assert_eq!(zeroing.used_bytes(), 0);
    }
}
