//! What a cluster of log brokers agrees on.
//!
//! A [`MetaState`] knows the topics, their partitions, the chain of segments that each partition is,
//! who holds them, who leads in which epoch, and where the brokers are. It changes by [`Command`]s, and
//! by nothing else: the same commands in the same order give the same state on every machine.
//!
//! ```
//! use std::collections::BTreeMap;
//! use sq_meta::{
//!     Applied, Broker, BrokerId, Command, MetaState, NewPartition, NewSegment, NewTopic, PartitionId,
//!     ReplicaSet, SegmentId, TopicId,
//! };
//! use sq_storage::TopicName;
//!
//! let mut meta = MetaState::default();
//! let here = BrokerId(0);
//! let at = |id| NewSegment { id: SegmentId(id), replicas: ReplicaSet::of(here) };
//! let broker = Broker { id: here, incarnation: 1, host: "localhost".into(), port: 9092, rack: None };
//! meta.apply(&Command::RegisterBroker(broker))?;
//! let topic = TopicId::from_random(42);
//! meta.apply(&Command::CreateTopic(NewTopic {
//!     id: topic,
//!     name: TopicName::new("orders")?,
//!     configs: BTreeMap::new(),
//!     partitions: vec![NewPartition::empty(here, at(1))],
//! }))?;
//!
//! // A roll: a successor is prepared while records still go to segment 1 ...
//! let partition = PartitionId { topic, partition: 0 };
//! let (epoch, attempt) = (0, 0);
//! meta.apply(&Command::PrepareSegment {
//!     partition, epoch, predecessor: SegmentId(1), attempt, successor: at(2),
//! })?;
//! // ... and takes over where that ended.
//! meta.apply(&Command::SealSegment {
//!     partition, epoch, segment: SegmentId(1), end: 1000, successor: SegmentId(2),
//! })?;
//! let chain = meta.partition(partition).unwrap();
//! assert_eq!(chain.sealed[0].end, 1000);
//! assert_eq!((chain.active.segment.id, chain.active.base), (SegmentId(2), 1000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The log
//! A [`MetaLog`] is what a broker holds. [`MetaLog::submit`] brings a command into the replicated log and
//! returns what it did once it is committed and applied; [`MetaLog::watch`] follows the state. With no
//! peers it is its own quorum: it leads at once, no timer runs, and a commit is one write and one sync.
//! With a [`Transport`] several brokers keep the log together.
//!
//! ```
//! use std::sync::Arc;
//! use sq_meta::{Applied, BrokerId, Command, MetaLog, MetaLogConfig};
//! use sq_sim::OsFileSystem;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path().join("@raft");
//! let config = MetaLogConfig::new(BrokerId(0), &dir);
//! let log = MetaLog::start(Arc::new(OsFileSystem::inline()), config.clone()).await?;
//! let given = log.submit(Command::AllocateProducerIds { count: 1000 }).await?;
//! assert_eq!(given, Applied::ProducerIds(0..1000));
//! log.shut_down().await;
//!
//! let log = MetaLog::start(Arc::new(OsFileSystem::inline()), config).await?;
//! assert_eq!(log.state().next_producer_id(), 1000);
//! # log.shut_down().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Raft is openraft's; the private module `raft` is all that knows of it. The log lies in a log of
//! sq-storage, the vote in a file beside it. A log whose disk fails stops, so that it answers nothing
//! that is not durable, and the next command opens it again. Damage is never mended: a start that finds
//! any refuses and says where.
//!
//! # What it is not
//! It moves no record, fences no broker and opens no file of a partition; it knows what was agreed, not
//! what a disk holds. It is not a general key-value store. It holds no consumer groups yet. It locks
//! nothing: whoever opens it holds the data directory's lock.
//!
//! # The chain
//! A partition's segments follow each other without gap or overlap. Offsets of ends are exclusive, so
//! that an empty segment needs no offset before the first.
//!
//! ```text
//!   sealed …  sealed  active  (prepared)
//!                       │          └ PrepareSegment adds it, AbandonSegment takes it away
//!                       └ SealSegment ends it and makes the prepared one active
//! ```
//!
//! At most two segments of a partition are unsealed, in the metadata. The leader may have switched to
//! the prepared one already: the commit that says so follows, and no append waits for it.
//!
//! | command | applies if |
//! |---|---|
//! | `PrepareSegment` | the epoch is current and has its leader; the predecessor is active and has no prepared successor (a repeat returns that) |
//! | `SealSegment` | the same; the segment is active and that successor is prepared (a repeat with the same end is fine) |
//! | `AbandonSegment` | the same; that segment is prepared |
//! | `BeginFailover` | always: the next epoch begins, without a leader. Its answer returns the active segment and its prepared successor |
//! | `ElectLeader` | the epoch is current and has no leader yet |
//!
//! Between a `BeginFailover` and its `ElectLeader` nothing of the partition changes, so [`failover::decide`]
//! decides on what still stands. A proposal may reach the log late, twice or never. One that comes twice
//! is answered as before or refused, and changes nothing; two say otherwise: `BeginFailover` and
//! `AllocateProducerIds`.
//!
//! # Invariants
//! [`MetaState::validate`] checks what shows in a state: chains are contiguous (and so each offset belongs
//! to one segment), a segment has at most one successor, epochs never fall along a chain, the leader holds
//! what it writes to. That a sealed end never changes, and that what a failover keeps includes all that
//! was acknowledged, are rules about time; tests check them along random histories.

pub mod codec;
mod command;
pub mod failover;
mod ids;
mod log;
pub mod placement;
mod raft;
mod state;

#[cfg(fuzzing)]
pub use raft::check_any_bytes;

pub use command::{
    Applied, Command, Ends, Kept, NewPartition, NewSegment, NewTopic, Refusal, SealedBefore,
};
pub use ids::{
    BrokerId, InvalidReplicaSet, MAX_BROKER_ID, MAX_REPLICAS, PartitionId, ReplicaSet, SegmentId,
    TopicId,
};
pub use log::{MetaLog, MetaLogConfig, MetaLogPeers, StartError, SubmitError};
pub use raft::{JournalError, OpenError, StoreConfig, Transport, VoteFileError};
pub use state::{
    ActiveSegment, Broker, Deleted, Link, LinkState, Load, MAX_PARTITIONS_PER_TOPIC, MetaState,
    Partition, SealedSegment, Segment, Topic, Violation,
};
