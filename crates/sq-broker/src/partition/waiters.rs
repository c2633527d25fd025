//! Who wants to hear of appends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Waiters of one partition. A fetch of a thousand partitions registers one [`Notify`] with each:
/// it is then woken by the first that has something, and polls nothing until then.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Registered>);

#[derive(Debug, Default)]
struct Registered {
    next: u64,
    waiters: BTreeMap<u64, Arc<Notify>>,
}

/// Takes the waiter off the list when dropped.
#[derive(Debug)]
pub struct WaitGuard<'a> {
    waiters: &'a Waiters,
    key: u64,
}

impl Waiters {
    pub(super) fn register(&self, waiter: &Arc<Notify>) -> WaitGuard<'_> {
        let mut registered = self.lock();
        let key = registered.next;
        registered.next += 1;
        registered.waiters.insert(key, Arc::clone(waiter));
        WaitGuard { waiters: self, key }
    }

    pub(super) fn wake(&self) {
        for waiter in self.lock().waiters.values() {
            waiter.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waiters.lock().waiters.remove(&self.key);
    }
}
