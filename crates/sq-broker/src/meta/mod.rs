//! What the broker knows beside its logs: topics and the chains of segments that their partitions are,
//! and which producer ids are given out.
//!
//! All of it is [`sq_meta`]'s state machine, in a log of its own in the data directory, of which this
//! broker is the only voter. [`Metadata`] speaks to it for one broker; [`open`] begins with it, and takes
//! over what an earlier version kept in a file.

pub mod chain;
mod earlier;
mod open;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use sq_meta::{
    Applied, Broker, BrokerId, Command, MetaLog, MetaState, NewPartition, NewSegment, NewTopic,
    PartitionId, Refusal, ReplicaSet, SegmentId, SubmitError,
};
use sq_sim::FileSystem;
use sq_storage::{SegmentIds, TopicName};
use tokio::sync::OnceCell;

pub use earlier::META_FILE;
pub use open::{META_LOG_DIR, OpenError, Setup, open};
pub use source::MetaSource;
pub use sq_meta::TopicId;

/// How often a command is submitted of which it is not known whether it was applied. The log starts
/// anew in between, and says.
const TRIES: u32 = 3;

/// What a topic is, apart from its partitions' chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRecord {
    /// Its name, unique among the living.
    pub name: TopicName,
    /// Its durable id.
    pub id: TopicId,
    /// How many partitions it has, numbered from 0.
    pub partitions: u32,
    /// The settings given at its creation; all else follows the broker's defaults.
    pub configs: BTreeMap<String, String>,
}

impl TopicRecord {
    /// What the metadata says of a topic.
    pub fn of(topic: &sq_meta::Topic) -> Self {
        Self {
            name: topic.name.clone(),
            id: topic.id,
            partitions: u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX),
            configs: topic.configs.clone(),
        }
    }
}

/// Why a change of the metadata did not happen, as far as is known.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The name is taken.
    #[error("topic {0} already exists")]
    TopicExists(TopicName),
    /// No such topic, or no longer.
    #[error("no topic has the id {0}")]
    UnknownTopic(TopicId),
    /// A topic of that name was deleted and its directory is still in the way.
    #[error("topic {0} is still being deleted")]
    BeingDeleted(TopicName),
    /// All 63 bits of producer ids are given out.
    #[error("no producer id is left")]
    ProducerIdsExhausted,
    /// The command is refused, and always will be.
    #[error(transparent)]
    Refused(Refusal),
    /// The log takes no commands now. Nothing was changed.
    #[error("the metadata can't be changed now: {0}")]
    Unavailable(String),
    /// The log stopped in the middle, and did not start again. What it will find once it does is
    /// unknown.
    #[error("whether the metadata was changed is not known: {0}")]
    InDoubt(String),
}

impl From<Refusal> for MetaError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TopicExists { name, .. } => Self::TopicExists(name),
            Refusal::UnknownTopic(id) => Self::UnknownTopic(id),
            Refusal::BeingDeleted(name) => Self::BeingDeleted(name),
            Refusal::ProducerIdsExhausted => Self::ProducerIdsExhausted,
            other => Self::Refused(other),
        }
    }
}

/// The metadata, as one broker changes it. A change that was answered `Ok` survives any crash. Cheap to
/// clone: clones share it.
#[derive(Debug)]
pub struct Metadata<F: FileSystem> {
    log: MetaLog<F>,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    broker: Broker,
    segment_ids: SegmentIds,
    /// Set once the broker is known to the metadata under its present address.
    registered: OnceCell<()>,
}

impl<F: FileSystem> Clone for Metadata<F> {
    fn clone(&self) -> Self {
        Self {
            log: self.log.clone(),
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<F: FileSystem> Metadata<F> {
    /// Speaks to a log for a broker.
    pub fn new(log: MetaLog<F>, broker: Broker, segment_ids: SegmentIds) -> Self {
        Self {
            log,
            inner: Arc::new(Inner {
                broker,
                segment_ids,
                registered: OnceCell::new(),
            }),
        }
    }

    /// A partition by its topic's name: the living topic's.
    pub fn partition_id(&self, topic: &TopicName, partition: u32) -> Option<PartitionId> {
        let topic = self.state().topic_named(topic)?.id;
        Some(PartitionId { topic, partition })
    }

    /// Which broker this is.
    pub fn broker(&self) -> BrokerId {
        self.inner.broker.id
    }

    /// What is known now. Not to be held for long: while it is, the next change copies what it changes.
    pub fn state(&self) -> Arc<MetaState> {
        self.log.state()
    }

    /// A segment that only this broker holds, with an id that nobody has had.
    pub fn new_segment(&self) -> NewSegment {
        NewSegment {
            id: SegmentId(self.inner.segment_ids.draw()),
            replicas: ReplicaSet::of(self.broker()),
        }
    }

    /// Makes this broker known. Whatever needs it waits for it by itself.
    ///
    /// # Errors
    /// [`MetaError`].
    pub async fn register(&self) -> Result<(), MetaError> {
        let registered = self.inner.registered.get_or_try_init(async || {
            let command = Command::RegisterBroker(self.inner.broker.clone());
            self.submit(command).await.map(drop)
        });
        registered.await.copied()
    }

    /// Adds a topic of which there is nothing yet.
    ///
    /// # Errors
    /// [`MetaError::TopicExists`], [`MetaError::BeingDeleted`], or that the metadata can't be changed.
    pub async fn create_topic(&self, topic: TopicRecord) -> Result<Arc<TopicRecord>, MetaError> {
        let partitions = (0..topic.partitions)
            .map(|_| NewPartition::empty(self.broker(), self.new_segment()))
            .collect();
        self.create_topic_with(&topic, partitions).await?;
        Ok(Arc::new(topic))
    }

    async fn create_topic_with(
        &self,
        topic: &TopicRecord,
        partitions: Vec<NewPartition>,
    ) -> Result<(), MetaError> {
        self.register().await?;
        let command = Command::CreateTopic(NewTopic {
            id: topic.id,
            name: topic.name.clone(),
            configs: topic.configs.clone(),
            partitions,
        });
        self.submit(command).await.map(drop)
    }

    /// Takes a topic out. Its name and id are remembered as being deleted, so that a restart knows
    /// whose directory it finds, until [`forget_deleted`](Self::forget_deleted).
    ///
    /// # Errors
    /// [`MetaError::UnknownTopic`], or that the metadata can't be changed.
    pub async fn delete_topic(&self, topic: TopicId) -> Result<(), MetaError> {
        self.submit(Command::DeleteTopic { topic }).await.map(drop)
    }

    /// Says that nothing is left under a deleted topic's name. One that is not known is fine.
    ///
    /// # Errors
    /// That the metadata can't be changed.
    pub async fn forget_deleted(&self, topic: TopicId) -> Result<(), MetaError> {
        let broker = self.broker();
        self.submit(Command::ForgetDeleted { topic, broker })
            .await
            .map(drop)
    }

    /// Takes `count` producer ids that nobody has had or will have.
    ///
    /// # Errors
    /// [`MetaError::ProducerIdsExhausted`], or that the metadata can't be changed.
    pub async fn allocate_producer_ids(&self, count: u32) -> Result<Range<i64>, MetaError> {
        match self.submit(Command::AllocateProducerIds { count }).await? {
            Applied::ProducerIds(ids) => Ok(ids),
            other => Err(MetaError::Unavailable(format!("it answered {other:?}"))),
        }
    }

    /// Waits until all that was submitted before has taken place or never will.
    ///
    /// # Errors
    /// The log does not run, so that it is not known.
    pub async fn settle(&self) -> Result<(), MetaError> {
        let nothing = Command::SkipProducerIds { below: 0 };
        self.submit(nothing).await.map(drop)
    }

    /// Submits a command that can be repeated, until it is known what came of it.
    ///
    /// # Errors
    /// [`MetaError`].
    pub async fn submit(&self, command: Command) -> Result<Applied, MetaError> {
        let mut doubt = None;
        for _ in 0..TRIES {
            match self.log.submit(command.clone()).await {
                Ok(applied) => return Ok(applied),
                Err(SubmitError::Refused(refusal)) => return Err(refusal.into()),
                Err(SubmitError::Unknown(reason)) => doubt = Some(reason),
                Err(error) => {
                    return Err(match doubt {
                        Some(reason) => MetaError::InDoubt(format!("{reason}; then: {error}")),
                        None => MetaError::Unavailable(error.to_string()),
                    });
                }
            }
        }
        Err(MetaError::InDoubt(doubt.unwrap_or_default()))
    }

    /// Stops the log, so that the next start has the least to find out.
    pub async fn close(&self) {
        self.log.shut_down().await;
    }
}

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod tests;
