//! Small clusters.

use std::collections::BTreeMap;

use sq_meta::{
    Applied, Broker, BrokerId, Command, Ends, Kept, MetaState, NewPartition, NewSegment, NewTopic,
    Partition, PartitionId, Refusal, ReplicaSet, SegmentId, TopicId,
};
use sq_storage::TopicName;

pub(crate) fn broker(id: u32) -> Broker {
    Broker {
        id: BrokerId(id),
        incarnation: u64::from(id) + 100,
        host: format!("broker-{id}"),
        port: 9092,
        rack: None,
    }
}

pub(crate) fn replicas(ids: &[u32]) -> ReplicaSet {
    ReplicaSet::new(ids.iter().copied().map(BrokerId).collect::<Vec<_>>()).unwrap()
}

pub(crate) fn segment(id: u64, on: &[u32]) -> NewSegment {
    NewSegment {
        id: SegmentId(id),
        replicas: replicas(on),
    }
}

pub(crate) fn topic_id(n: u128) -> TopicId {
    TopicId::from_random(n)
}

pub(crate) fn new_topic(n: u128, name: &str, partitions: Vec<NewPartition>) -> NewTopic {
    NewTopic {
        id: topic_id(n),
        name: TopicName::new(name).unwrap(),
        configs: BTreeMap::from([("segment.bytes".to_owned(), "1048576".to_owned())]),
        partitions,
    }
}

/// A cluster with one partition, whose invariants are checked at every step.
pub(crate) struct Cluster {
    pub(crate) meta: MetaState,
    pub(crate) partition: PartitionId,
}

impl Cluster {
    /// Brokers 0 to 3; topic 1, led by broker 0, with segment 1 on brokers 0 and 1.
    pub(crate) fn new() -> Self {
        let mut cluster = Self::without_topic();
        let partitions = vec![NewPartition::empty(BrokerId(0), segment(1, &[0, 1]))];
        cluster.must(&Command::CreateTopic(new_topic(1, "orders", partitions)));
        cluster
    }

    pub(crate) fn without_topic() -> Self {
        let mut cluster = Self {
            meta: MetaState::default(),
            partition: PartitionId {
                topic: topic_id(1),
                partition: 0,
            },
        };
        for id in 0..4 {
            cluster.must(&Command::RegisterBroker(broker(id)));
        }
        cluster
    }

    pub(crate) fn apply(&mut self, command: &Command) -> Result<Applied, Refusal> {
        let before = self.meta.clone();
        let outcome = self.meta.apply(command);
        self.meta.validate().unwrap();
        if outcome.is_err() {
            assert_eq!(self.meta, before, "{command:?} was refused");
        }
        outcome
    }

    pub(crate) fn must(&mut self, command: &Command) -> Applied {
        self.apply(command)
            .unwrap_or_else(|e| panic!("{command:?}: {e}"))
    }

    pub(crate) fn state(&self) -> &Partition {
        self.meta.partition(self.partition).unwrap()
    }

    /// Prepares for the active segment, in the current epoch.
    pub(crate) fn prepare(&self, id: u64, on: &[u32]) -> Command {
        Command::PrepareSegment {
            partition: self.partition,
            epoch: self.state().epoch,
            predecessor: self.state().active.segment.id,
            attempt: self.state().attempt,
            successor: segment(id, on),
        }
    }

    /// Seals the active segment in favour of `successor`.
    pub(crate) fn seal(&self, end: u64, successor: u64) -> Command {
        Command::SealSegment {
            partition: self.partition,
            epoch: self.state().epoch,
            segment: self.state().active.segment.id,
            end,
            successor: SegmentId(successor),
        }
    }

    pub(crate) fn abandon(&self, id: u64) -> Command {
        Command::AbandonSegment {
            partition: self.partition,
            epoch: self.state().epoch,
            segment: SegmentId(id),
        }
    }

    pub(crate) fn begin(&self) -> Command {
        Command::BeginFailover {
            partition: self.partition,
        }
    }

    pub(crate) fn elect(&self, leader: u32, ends: Ends, id: u64, on: &[u32]) -> Command {
        Command::ElectLeader {
            partition: self.partition,
            epoch: self.state().epoch,
            leader: BrokerId(leader),
            ends,
            segment: segment(id, on),
        }
    }

    pub(crate) fn advance(&self, log_start: u64) -> Command {
        Command::AdvanceLogStart {
            partition: self.partition,
            epoch: self.state().epoch,
            log_start,
        }
    }

    /// The chain's ids and offsets, the active segment's end given as `None`.
    pub(crate) fn chain(&self) -> Vec<(u64, u64, Option<u64>)> {
        let partition = self.state();
        let sealed = partition.sealed.iter();
        let sealed = sealed.map(|s| (s.segment.id.0, s.base, Some(s.end)));
        let active = (partition.active.segment.id.0, partition.active.base, None);
        sealed.chain([active]).collect()
    }
}

pub(crate) fn ends(active_end: u64) -> Ends {
    Ends {
        active_end,
        successor: None,
    }
}

pub(crate) fn ends_with(active_end: u64, end: u64) -> Ends {
    Ends {
        active_end,
        successor: Some(Kept {
            base: active_end,
            end,
        }),
    }
}

/// Runs a test on one thread, in time that passes when nothing else is to be done.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}
