//! What the metadata says of a segment's file that a broker finds on its disk.

use super::{LinkState, MetaState};
use crate::ids::{BrokerId, PartitionId, SegmentId};

/// What is to become of a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is one of the chain, and this broker is to hold it.
    Needed(LinkState),
    /// Its topic was deleted: it can be removed.
    TopicDeleted,
    /// All that it holds is below the log start: it can be removed.
    BelowLogStart,
    /// Nothing says that it is needed, and nothing that it is not: it may be a successor that came to
    /// nothing, another cluster's, or one of which this broker has not heard yet. To be set aside, and
    /// reported.
    Unproven,
}

impl Fate {
    /// Whether the file can be removed.
    pub fn is_unneeded(self) -> bool {
        matches!(self, Self::TopicDeleted | Self::BelowLogStart)
    }
}

impl MetaState {
    /// What is to become of a file of a segment that a broker has, of which the last record is before
    /// `end`: 0 for one that holds none. Ask only once all that was committed is applied.
    pub fn fate_of(&self, broker: BrokerId, id: PartitionId, segment: SegmentId, end: u64) -> Fate {
        if self.deleted.contains_key(&id.topic) {
            return Fate::TopicDeleted;
        }
        let Some(partition) = self.partition(id) else {
            return Fate::Unproven;
        };
        match partition.find(segment) {
            Some(link) if link.segment.replicas.contains(broker) => Fate::Needed(link.state),
            None if end <= partition.log_start => Fate::BelowLogStart,
            _ => Fate::Unproven,
        }
    }
}
