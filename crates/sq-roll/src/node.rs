//! What the logs of one node share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sq_sim::{Clock, Instant};
use tokio::sync::{Notify, broadcast};

use crate::{Latencies, Limits, Preparations, RollRecord, Slack};

/// How many roll records wait for a subscriber that is slow. It misses those before.
const RECORDS_IN_FLIGHT: usize = 256;

/// What the logs of one node share: a bound on the preparations under way, how long these have taken,
/// and the records of all rolls. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    zero: Instant,
    next_key: AtomicU64,
    state: Mutex<State>,
    records: broadcast::Sender<Arc<RollRecord>>,
}

struct State {
    preparations: Preparations<u64>,
    latencies: Latencies,
    /// Those that wait for their turn.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

impl Node {
    /// At most `preparations` successors are prepared at a time, and at least one.
    pub fn new(clock: Arc<dyn Clock>, preparations: usize) -> Self {
        let zero = clock.now();
        let state = State {
            preparations: Preparations::new(preparations),
            latencies: Latencies::default(),
            waiting: BTreeMap::new(),
        };
        Self {
            shared: Arc::new(Shared {
                clock,
                zero,
                next_key: AtomicU64::new(0),
                state: Mutex::new(state),
                records: broadcast::Sender::new(RECORDS_IN_FLIGHT),
            }),
        }
    }

    /// The record of each roll from now on. One who is slow misses the oldest of them.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<RollRecord>> {
        self.shared.records.subscribe()
    }

    /// How many preparations are under way, and how many wait for their turn.
    pub fn preparations(&self) -> (usize, usize) {
        let state = lock(&self.shared.state);
        (state.preparations.running(), state.preparations.waiting())
    }

    /// The time since this node began, which is what its logs go by.
    pub fn now(&self) -> Duration {
        self.shared.clock.now() - self.shared.zero
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    /// A number for a log.
    pub(crate) fn key(&self) -> u64 {
        self.shared.next_key.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn limits(&self, slack: &Slack) -> Limits {
        slack.limits(&lock(&self.shared.state).latencies)
    }

    /// A preparation took so long, from the request on.
    pub(crate) fn prepared_in(&self, latency: Duration) {
        lock(&self.shared.state).latencies.observe(latency);
    }

    /// A commit of the metadata took so long: each preparation waits for one. Until enough of them were
    /// observed this is what is known of how long they take, and without it the first roll comes too late
    /// where commits are slow. One that is quick makes no roll ask later.
    pub fn committed_in(&self, latency: Duration) {
        lock(&self.shared.state).latencies.hint(latency);
    }

    pub(crate) fn publish(&self, record: &Arc<RollRecord>) {
        // Nobody may have subscribed.
        let _ = self.shared.records.send(Arc::clone(record));
    }

    /// Waits until a log whose segment will be at its cap at `due` may prepare a successor. It does so
    /// until the turn is dropped.
    pub(crate) async fn turn(self, key: u64, due: Duration) -> Turn {
        let turn = Turn { node: self, key };
        let told = {
            let mut state = lock(&turn.node.shared.state);
            if state.preparations.ask(key, due) {
                None
            } else {
                Some(Arc::clone(state.waiting.entry(key).or_default()))
            }
        };
        if let Some(told) = told {
            told.notified().await;
        }
        turn
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Node")
    }
}

/// Leave to prepare a successor.
pub(crate) struct Turn {
    node: Node,
    key: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = lock(&self.node.shared.state);
        state.waiting.remove(&self.key);
        if let Some(next) = state.preparations.done(&self.key)
            && let Some(told) = state.waiting.remove(&next)
        {
            told.notify_one();
        }
    }
}

/// Locks a mutex whose data is whole at every unlock, so that a panic elsewhere spoils nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
