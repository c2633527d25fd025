//! What things are called.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// The most replicas a segment can have.
pub const MAX_REPLICAS: usize = 15;

/// The greatest broker id: Kafka carries them as signed 32-bit numbers.
pub const MAX_BROKER_ID: u32 = i32::MAX as u32;

/// A topic's durable identity: a topic that is deleted and created again under its name has another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(Uuid);

impl TopicId {
    /// The id with these bits. Zero, one and two mean something else in the protocol (KIP-516) and
    /// are never drawn for a topic.
    pub fn from_random(bits: u128) -> Self {
        // The version and variant bits keep the reserved small values out of reach.
        Self(uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid())
    }

    /// The id as the protocol carries it.
    pub fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    /// The id as the protocol carries it.
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.simple())
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A partition of a topic, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// The topic.
    pub topic: TopicId,
    /// Its number within the topic.
    pub partition: u32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

impl fmt::Debug for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A segment's id: random, drawn by whoever proposes the segment, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A broker's number, at most [`MAX_BROKER_ID`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(pub u32);

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// The brokers that hold a segment: 1 to [`MAX_REPLICAS`], each once, in order. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaSet(Arc<[BrokerId]>);

/// Why brokers are not a replica set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReplicaSet {
    /// There are none, or more than [`MAX_REPLICAS`].
    #[error("a segment has 1 to {MAX_REPLICAS} replicas, not {0}")]
    Size(usize),
    /// One of them twice.
    #[error("broker {0} is a replica twice")]
    Twice(BrokerId),
}

impl ReplicaSet {
    /// The set of these brokers, in any order.
    ///
    /// # Errors
    /// [`InvalidReplicaSet`].
    pub fn new(brokers: impl Into<Vec<BrokerId>>) -> Result<Self, InvalidReplicaSet> {
        let mut brokers = brokers.into();
        if brokers.is_empty() || brokers.len() > MAX_REPLICAS {
            return Err(InvalidReplicaSet::Size(brokers.len()));
        }
        brokers.sort_unstable();
        let twice = brokers.iter().zip(brokers.iter().skip(1));
        if let Some((broker, _)) = twice.into_iter().find(|(a, b)| a == b) {
            return Err(InvalidReplicaSet::Twice(*broker));
        }
        Ok(Self(brokers.into()))
    }

    /// The set of one broker.
    pub fn of(broker: BrokerId) -> Self {
        Self(Arc::new([broker]))
    }

    /// Whether a broker is in it.
    pub fn contains(&self, broker: BrokerId) -> bool {
        self.0.binary_search(&broker).is_ok()
    }

    /// The brokers, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = BrokerId> + '_ {
        self.0.iter().copied()
    }

    /// How many they are: never 0.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for ReplicaSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{BrokerId, InvalidReplicaSet, MAX_REPLICAS, ReplicaSet};

    #[test]
    fn a_replica_set_holds_each_broker_once_and_in_order() {
        let set = ReplicaSet::new([3, 1, 2].map(BrokerId)).unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 2, 3].map(BrokerId));
        assert!(set.contains(BrokerId(2)) && !set.contains(BrokerId(4)));
        assert_eq!(
            ReplicaSet::new([1, 2, 1].map(BrokerId)),
            Err(InvalidReplicaSet::Twice(BrokerId(1)))
        );
        assert_eq!(ReplicaSet::new([]), Err(InvalidReplicaSet::Size(0)));
        let many: Vec<_> = (0..=15).map(BrokerId).collect();
        assert_eq!(
            ReplicaSet::new(many),
            Err(InvalidReplicaSet::Size(MAX_REPLICAS + 1))
        );
    }
}
