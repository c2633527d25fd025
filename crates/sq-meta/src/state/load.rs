//! What each broker carries, kept in step with every change so that placement need not count.

use std::collections::BTreeMap;

use super::{Partition, Topic};
use crate::ids::BrokerId;

/// What a broker carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Partitions that it leads.
    pub leaderships: u64,
    /// Segments that it holds and that records may still be written to.
    pub open_segments: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Loads(BTreeMap<BrokerId, Load>);

impl Loads {
    pub(super) fn of_topics<'a>(topics: impl IntoIterator<Item = &'a Topic>) -> Self {
        let mut loads = Self::default();
        for partition in topics.into_iter().flat_map(|topic| &topic.partitions) {
            loads.add(partition);
        }
        loads
    }

    pub(super) fn of(&self, broker: BrokerId) -> Load {
        self.0.get(&broker).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, partition: &Partition) {
        self.0.entry(partition.leader).or_default().leaderships += 1;
        for replica in open_replicas(partition) {
            self.0.entry(replica).or_default().open_segments += 1;
        }
    }

    pub(super) fn remove(&mut self, partition: &Partition) {
        self.lower(partition.leader, |load| &mut load.leaderships);
        for replica in open_replicas(partition) {
            self.lower(replica, |load| &mut load.open_segments);
        }
    }

    /// A broker that carries nothing has no entry, so that equal states are equal.
    fn lower(&mut self, broker: BrokerId, part: impl FnOnce(&mut Load) -> &mut u64) {
        if let Some(load) = self.0.get_mut(&broker) {
            let part = part(load);
            *part = part.saturating_sub(1);
            if *load == Load::default() {
                self.0.remove(&broker);
            }
        }
    }
}

fn open_replicas(partition: &Partition) -> impl Iterator<Item = BrokerId> + '_ {
    partition.open_segments().flat_map(|s| s.replicas.iter())
}
