//! Which preparations run, of those that a node wants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Keeps the preparations of a node to a number at a time. Those that wait begin in the order in which
/// their segments will be at their caps.
///
/// ```
/// use std::time::Duration;
/// use sq_roll::Preparations;
///
/// let mut preparations = Preparations::new(1);
/// assert!(preparations.ask("orders-0", Duration::from_secs(9)), "begins at once");
/// assert!(!preparations.ask("orders-1", Duration::from_secs(7)));
/// assert!(!preparations.ask("orders-2", Duration::from_secs(5)));
/// assert_eq!(preparations.done(&"orders-0"), Some("orders-2"), "the most urgent");
/// ```
#[derive(Clone, Debug)]
pub struct Preparations<K> {
    limit: usize,
    running: BTreeSet<K>,
    waiting: BTreeSet<(Duration, K)>,
    due: BTreeMap<K, Duration>,
}

impl<K: Ord + Clone> Preparations<K> {
    /// At most `limit` at a time, and at least one.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            running: BTreeSet::new(),
            waiting: BTreeSet::new(),
            due: BTreeMap::new(),
        }
    }

    /// Whether `who`, whose segment will be at its cap at `due`, may begin now, or has begun. If not it
    /// waits; asking again while it does moves it to where `due` belongs.
    pub fn ask(&mut self, who: K, due: Duration) -> bool {
        if self.running.contains(&who) {
            return true;
        }
        self.forget(&who);
        if self.running.len() < self.limit {
            self.running.insert(who);
            return true;
        }
        self.waiting.insert((due, who.clone()));
        self.due.insert(who, due);
        false
    }

    /// `who` is ready, failed, or wants nothing any more. Who begins in its place, if anybody.
    pub fn done(&mut self, who: &K) -> Option<K> {
        self.forget(who);
        if !self.running.remove(who) {
            return None;
        }
        let (_, next) = self.waiting.pop_first()?;
        self.due.remove(&next);
        self.running.insert(next.clone());
        Some(next)
    }

    fn forget(&mut self, who: &K) {
        if let Some(due) = self.due.remove(who) {
            self.waiting.remove(&(due, who.clone()));
        }
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
