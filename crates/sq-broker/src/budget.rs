//! Bytes that may be held at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of bytes that many share. Whoever waits is served in the order of asking.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Arc<Semaphore>,
    total: u32,
    waiting: Arc<AtomicUsize>,
}

/// A part of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Held(Option<OwnedSemaphorePermit>);

impl Budget {
    /// A budget of `bytes`, at most 4 GiB less one byte.
    pub fn new(bytes: usize) -> Self {
        let total = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        let permits = usize::try_from(total)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(permits)),
            total,
            waiting: Arc::default(),
        }
    }

    /// Takes `bytes`, waiting until they are free. More than there is in all takes all there is.
    pub async fn take(&self, bytes: usize) -> Held {
        if let Some(held) = self.try_take(bytes) {
            return held;
        }
        let permits = self.permits(bytes);
        let _waiting = Waiting::new(&self.waiting);
        // The semaphore is never closed.
        Held(
            Arc::clone(&self.free)
                .acquire_many_owned(permits)
                .await
                .ok(),
        )
    }

    /// Takes `bytes` if they are free now.
    pub fn try_take(&self, bytes: usize) -> Option<Held> {
        let permits = self.permits(bytes);
        Arc::clone(&self.free)
            .try_acquire_many_owned(permits)
            .ok()
            .map(|permit| Held(Some(permit)))
    }

    /// Whether somebody waits for a part of it.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total)
    }
}

/// Counts as one who waits until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Held {
    /// Nothing.
    pub const fn nothing() -> Self {
        Self(None)
    }

    /// How many bytes this is.
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let excess = self.bytes().saturating_sub(bytes);
        if let Some(permit) = &mut self.0 {
            drop(permit.split(excess));
        }
    }

    /// Joins another part of the same budget to this one.
    pub fn merge(&mut self, other: Self) {
        match (&mut self.0, other.0) {
            (Some(mine), Some(theirs)) => mine.merge(theirs),
            (mine @ None, theirs) => *mine = theirs,
            (Some(_), None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Held};

    #[test]
    fn what_is_taken_comes_back() {
        let budget = Budget::new(100);
        let mut first = budget.try_take(60).unwrap();
        assert!(budget.try_take(41).is_none());
        first.shrink_to(10);
        assert_eq!(first.bytes(), 10);
        first.merge(budget.try_take(90).unwrap());
        assert!(budget.try_take(1).is_none());
        drop(first);
        assert_eq!(
            budget.try_take(1_000_000).unwrap().bytes(),
            100,
            "never more than there is"
        );
        let mut nothing = Held::nothing();
        nothing.merge(budget.try_take(7).unwrap());
        assert_eq!(nothing.bytes(), 7);
    }
}
