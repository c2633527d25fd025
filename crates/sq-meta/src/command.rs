//! What can be asked of the metadata, and what comes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use sq_storage::TopicName;

use crate::ids::{
    BrokerId, InvalidReplicaSet, MAX_BROKER_ID, PartitionId, ReplicaSet, SegmentId, TopicId,
};
use crate::state::{ActiveSegment, Broker, MAX_PARTITIONS_PER_TOPIC, SealedSegment, Segment};

/// A segment that is to be: its id was drawn and its replicas were placed by whoever proposes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSegment {
    /// Random, never used before.
    pub id: SegmentId,
    /// Who is to hold it; the partition's leader is among them.
    pub replicas: ReplicaSet,
}

/// A partition of a new topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPartition {
    /// Its first leader.
    pub leader: BrokerId,
    /// The first offset that can be read.
    pub log_start: u64,
    /// Segments that were sealed before the metadata knew of them, first to last; empty for a
    /// partition that is new.
    pub sealed: Vec<SealedBefore>,
    /// The segment to write to.
    pub active: NewSegment,
    /// Where that one begins: 0 for a partition that is new.
    pub active_base: u64,
}

impl NewPartition {
    /// A partition that holds nothing yet.
    pub fn empty(leader: BrokerId, first: NewSegment) -> Self {
        Self {
            leader,
            log_start: 0,
            sealed: Vec::new(),
            active: first,
            active_base: 0,
        }
    }
}

/// A segment of a log that is older than its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedBefore {
    /// The segment.
    pub segment: NewSegment,
    /// Its first offset.
    pub base: u64,
    /// The offset behind its last.
    pub end: u64,
}

/// A topic to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Its durable id.
    pub id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// The settings given for it; all else follows the broker's defaults.
    pub configs: BTreeMap<String, String>,
    /// Its partitions, from 0 on.
    pub partitions: Vec<NewPartition>,
}

/// Where a failover ends the segments that it found. See [`crate::failover::decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The offset behind the active segment's last that stays.
    pub active_end: u64,
    /// What stays of the prepared successor; `None` if nothing does, or if there is none.
    pub successor: Option<Kept>,
}

impl Ends {
    /// The offset behind the last that stays of either: where the next segment begins.
    pub fn end(self) -> u64 {
        self.successor.map_or(self.active_end, |kept| kept.end)
    }
}

/// The offsets that a failover keeps of a prepared successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its first offset: where the active segment ends.
    pub base: u64,
    /// The offset behind its last.
    pub end: u64,
}

/// A change of the metadata. Each names all it needs, so that applying it is a pure function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Makes a broker known, or says where it is now. A repeat changes nothing.
    RegisterBroker(Broker),
    /// Adds a topic. A repeat with the same id and name changes nothing.
    CreateTopic(NewTopic),
    /// Takes a topic out. Its name stays taken until every broker that was known has said
    /// [`ForgetDeleted`](Self::ForgetDeleted). A repeat changes nothing.
    DeleteTopic {
        /// The topic.
        topic: TopicId,
    },
    /// Says that a broker holds nothing of a deleted topic any more. A repeat changes nothing.
    ForgetDeleted {
        /// The topic.
        topic: TopicId,
        /// The broker.
        broker: BrokerId,
    },
    /// Takes producer ids that nobody has had or will have. A repeat takes others.
    AllocateProducerIds {
        /// How many.
        count: u32,
    },
    /// Gives no producer id below this one any more. Lower than what is given out changes nothing.
    SkipProducerIds {
        /// The first id that may still be given.
        below: i64,
    },
    /// Adds a successor to the active segment. A repeat gives the one there is.
    PrepareSegment {
        /// The partition.
        partition: PartitionId,
        /// The leader's epoch.
        epoch: u32,
        /// The active segment.
        predecessor: SegmentId,
        /// How many successors of that segment were abandoned before
        /// ([`Partition::attempt`](crate::state::Partition::attempt)): what arrives late can't bring
        /// an abandoned one back.
        attempt: u32,
        /// What to prepare.
        successor: NewSegment,
    },
    /// Ends the active segment and makes its prepared successor the active one. A repeat with the
    /// same end changes nothing.
    SealSegment {
        /// The partition.
        partition: PartitionId,
        /// The leader's epoch.
        epoch: u32,
        /// The active segment.
        segment: SegmentId,
        /// The offset behind its last, to which it is committed.
        end: u64,
        /// Its prepared successor.
        successor: SegmentId,
    },
    /// Gives up a prepared successor.
    AbandonSegment {
        /// The partition.
        partition: PartitionId,
        /// The leader's epoch.
        epoch: u32,
        /// The successor.
        segment: SegmentId,
    },
    /// Ends a leader's term. Its answer is what the next one has to decide on. A repeat ends the
    /// next term, so a proposer that got no answer looks at the epoch first.
    BeginFailover {
        /// The partition.
        partition: PartitionId,
    },
    /// Begins a leader's term, once the tail is safe on all replicas of the new segment.
    ElectLeader {
        /// The partition.
        partition: PartitionId,
        /// The epoch that `BeginFailover` gave.
        epoch: u32,
        /// The leader.
        leader: BrokerId,
        /// Where the segments of the terms before end.
        ends: Ends,
        /// The segment to write to from now on. It begins where those end.
        segment: NewSegment,
    },
    /// Says that nothing below an offset is kept. Sealed segments that end there or before are gone.
    AdvanceLogStart {
        /// The partition.
        partition: PartitionId,
        /// The leader's epoch.
        epoch: u32,
        /// The first offset that can be read. One that is below the current log start changes nothing.
        log_start: u64,
    },
}

/// What a command that was applied has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The broker is known.
    BrokerRegistered,
    /// The topic is there.
    TopicCreated {
        /// It was before.
        repeated: bool,
    },
    /// The topic is gone.
    TopicDeleted {
        /// The brokers that may still hold files of it.
        holders: BTreeSet<BrokerId>,
    },
    /// The broker's part of a deleted topic is forgotten.
    DeletedForgotten {
        /// The topic's name is free again.
        name_is_free: bool,
    },
    /// These producer ids belong to whoever asked.
    ProducerIds(Range<i64>),
    /// No lower producer id will be given.
    ProducerIdsSkipped,
    /// The active segment has this successor.
    Prepared {
        /// The successor, which is another than the one asked for if there was one already.
        successor: Segment,
        /// It was there before.
        repeated: bool,
    },
    /// The segment is sealed and its successor is active.
    Sealed {
        /// It was before.
        repeated: bool,
    },
    /// The successor is gone.
    Abandoned,
    /// The term before has ended. Nothing of this changes until `ElectLeader` or the next
    /// `BeginFailover`.
    FailoverBegun {
        /// The epoch to fence and to elect at.
        epoch: u32,
        /// The active segment.
        active: ActiveSegment,
        /// Its prepared successor.
        successor: Option<Segment>,
    },
    /// The leader is elected.
    Elected {
        /// Where its segment begins.
        base: u64,
    },
    /// The log starts there now.
    LogStart {
        /// Where.
        log_start: u64,
        /// What is no longer in the chain.
        dropped: Vec<SealedSegment>,
    },
}

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The name is taken.
    #[error("topic {name} already exists")]
    TopicExists {
        /// The name.
        name: TopicName,
        /// Whose it is.
        id: TopicId,
    },
    /// A topic of that name was deleted and some broker still holds files of it.
    #[error("topic {0} is still being deleted")]
    BeingDeleted(TopicName),
    /// The id is, or was, another topic's.
    #[error("topic id {0} is taken")]
    TopicIdTaken(TopicId),
    /// No such topic, or no longer.
    #[error("no topic has the id {0}")]
    UnknownTopic(TopicId),
    /// The topic has no partition of that number.
    #[error("there is no partition {0}")]
    UnknownPartition(PartitionId),
    /// A number of partitions that no topic can have.
    #[error("a topic has 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {0}")]
    Partitions(usize),
    /// A setting's name or value is too long to keep.
    #[error("the setting {name} is too long to keep")]
    SettingTooLong {
        /// Its name, or the first of it.
        name: String,
    },
    /// No broker can have that number.
    #[error("{0} is above the greatest broker id, {MAX_BROKER_ID}")]
    BrokerId(u32),
    /// A broker's host or rack has no characters, or too many.
    #[error("the {0} of a broker has 1 to 255 bytes")]
    BrokerAddress(&'static str),
    /// The broker never registered.
    #[error("broker {0} is not known")]
    UnknownBroker(BrokerId),
    /// Not a set of replicas.
    #[error(transparent)]
    Replicas(#[from] InvalidReplicaSet),
    /// A leader writes to its own copy first.
    #[error("leader {leader} is not a replica of segment {segment}")]
    LeaderNotReplica {
        /// The leader.
        leader: BrokerId,
        /// The segment.
        segment: SegmentId,
    },
    /// All 63 bits of producer ids are given out, or so many can't be.
    #[error("no producer id is left")]
    ProducerIdsExhausted,
    /// The command belongs to a term that is over, or that never was.
    #[error("the epoch is {current}, not {given}")]
    Epoch {
        /// The command's.
        given: u32,
        /// The partition's.
        current: u32,
    },
    /// The epoch is right, but a failover is under way: nobody leads.
    #[error("nobody is elected in epoch {0} yet")]
    NotElected(u32),
    /// The epoch has its leader.
    #[error("{leader} is elected in epoch {epoch}, with segment {segment}")]
    AlreadyElected {
        /// The epoch.
        epoch: u32,
        /// Its leader.
        leader: BrokerId,
        /// Its first segment was this, or the active one is.
        segment: SegmentId,
    },
    /// There are no epochs left: Kafka carries them as signed 32-bit numbers.
    #[error("epoch {0} is the last")]
    EpochsExhausted(u32),
    /// The segment is not the active one.
    #[error("segment {segment} is not active, {active} is")]
    NotActive {
        /// The command's.
        segment: SegmentId,
        /// The active one.
        active: SegmentId,
    },
    /// The segment is sealed already, and in another way.
    #[error("segment {segment} is sealed at {end}, not as asked")]
    SealedOtherwise {
        /// The segment.
        segment: SegmentId,
        /// The offset behind its last.
        end: u64,
    },
    /// The segment is not the prepared successor.
    #[error("segment {0} is not prepared")]
    NotPrepared(SegmentId),
    /// Another number of successors was abandoned by now.
    #[error("{current} successors were abandoned before, not {given}")]
    Attempt {
        /// The command's.
        given: u32,
        /// The active segment's.
        current: u32,
    },
    /// A segment of that id is in the chain.
    #[error("segment id {0} is taken")]
    SegmentIdTaken(SegmentId),
    /// Offsets that do not continue the chain.
    #[error("a segment can't hold the offsets from {base} to {end} there")]
    Offsets {
        /// The first.
        base: u64,
        /// The one behind the last.
        end: u64,
    },
    /// A log start that would take the active segment.
    #[error("a log start of {log_start} is behind the active segment's base, {active_base}")]
    LogStart {
        /// The command's.
        log_start: u64,
        /// How far it could go.
        active_base: u64,
    },
}
