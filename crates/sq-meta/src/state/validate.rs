//! What holds of every state, whatever the commands were.

use std::collections::BTreeSet;
use std::fmt;

use super::load::Loads;
use super::{MAX_PARTITIONS_PER_TOPIC, MetaState, Partition};
use crate::ids::PartitionId;

/// A state that can't be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The partition in which it shows, if it is one.
    pub partition: Option<PartitionId>,
    /// What should hold and does not.
    pub broken: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            Some(partition) => write!(f, "partition {partition}: not so: {}", self.broken),
            None => write!(f, "not so: {}", self.broken),
        }
    }
}

impl std::error::Error for Violation {}

/// Fails with the text of the first rule that does not hold.
macro_rules! rules {
    ($($holds:expr, $rule:literal;)*) => {
        $(if !$holds { return Err($rule); })*
    };
}

impl MetaState {
    /// Checks what holds of every state: the invariants on the chain that show in the metadata alone,
    /// and that what follows from the rest does follow.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn validate(&self) -> Result<(), Violation> {
        self.check_names().map_err(|broken| Violation {
            partition: None,
            broken,
        })?;
        for topic in self.topics.values() {
            for (partition, number) in topic.partitions.iter().zip(0..) {
                self.check_partition(partition)
                    .map_err(|broken| Violation {
                        partition: Some(PartitionId {
                            topic: topic.id,
                            partition: number,
                        }),
                        broken,
                    })?;
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), &'static str> {
        let deleted: BTreeSet<_> = self.deleted.values().map(|d| &d.name).collect();
        rules! {
            self.next_producer_id >= 0, "producer ids are not negative";
            self.brokers.iter().all(|(id, broker)| *id == broker.id), "a broker is found by its id";
            self.topics.iter().all(|(id, topic)| *id == topic.id), "a topic is found by its id";
            self.names.len() == self.topics.len(), "each topic has a name of its own";
            self.topics.values().all(|t| self.names.get(&t.name) == Some(&t.id)),
                "a topic is found by its name";
            self.topics.values().all(|t| {
                (1..=MAX_PARTITIONS_PER_TOPIC).contains(&t.partitions.len())
            }), "a topic has a number of partitions that a topic can have";
            deleted.len() == self.deleted.len(), "a name is being deleted once";
            !deleted.iter().any(|name| self.names.contains_key(*name)),
                "no living topic has the name of one that is being deleted";
            !self.deleted.keys().any(|id| self.topics.contains_key(id)),
                "a topic is deleted or living";
            self.deleted.values().all(|d| !d.holders.is_empty()),
                "someone holds files of what is being deleted";
            self.loads == Loads::of_topics(self.topics.values().map(AsRef::as_ref)),
                "what the brokers carry was counted right";
        }
        Ok(())
    }

    fn check_partition(&self, partition: &Partition) -> Result<(), &'static str> {
        let replicas = partition
            .chain()
            .flat_map(|link| link.segment.replicas.iter());
        rules! {
            replicas.into_iter().all(|b| self.brokers.contains_key(&b)), "every replica is a known broker";
            self.brokers.contains_key(&partition.leader), "the leader is a known broker";
        }
        partition.check_offsets()?;
        partition.check_order()
    }
}

impl Partition {
    /// The offsets of a chain are contiguous: no gap, no overlap.
    fn check_offsets(&self) -> Result<(), &'static str> {
        let mut at = self.sealed.front().map_or(self.active.base, |s| s.base);
        let start = at;
        for sealed in &self.sealed {
            rules! {
                sealed.base == at, "a segment begins where the one before it ends";
                sealed.base <= sealed.end, "a segment does not end before it begins";
                sealed.end > self.log_start || sealed.base == sealed.end,
                    "a segment below the log start is dropped";
            }
            at = sealed.end;
        }
        rules! {
            self.active.base == at, "the active segment begins where the one before it ends";
            at <= i64::MAX.unsigned_abs(), "offsets fit what Kafka carries";
            start <= self.log_start, "the log start is not below the first segment";
            self.log_start <= self.active.base, "the log start is not behind the active segment's base";
        }
        Ok(())
    }

    /// Each segment follows the one before it, and none was written in an epoch after its follower's.
    fn check_order(&self) -> Result<(), &'static str> {
        let ids: BTreeSet<_> = self.chain().map(|link| link.segment.id).collect();
        let written = self.active.segment.writer_epoch;
        let next = self.chain().skip(1);
        for (before, link) in self.chain().zip(next) {
            rules! {
                link.segment.predecessor == Some(before.segment.id), "a segment names the one before it";
                before.segment.writer_epoch <= link.segment.writer_epoch,
                    "a segment is not written in an earlier epoch than the one before it";
            }
        }
        rules! {
            ids.len() == self.chain().count(), "a segment is in the chain once";
            self.epoch <= i32::MAX.unsigned_abs(), "epochs fit what Kafka carries";
            written <= self.epoch, "no segment is of an epoch to come";
            self.elected == (written == self.epoch),
                "the active segment is of this epoch once its leader is elected, and not before";
            !self.elected || self.active.segment.replicas.contains(self.leader),
                "the leader holds the active segment";
            self.prepared.as_ref().is_none_or(|s| s.writer_epoch == written),
                "a successor is of the epoch of the segment before it";
            self.prepared.as_ref().is_none_or(|s| s.replicas.contains(self.leader)),
                "the leader holds the prepared successor";
        }
        Ok(())
    }
}
