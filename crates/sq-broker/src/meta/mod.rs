//! What the broker knows beside its logs: topics, and which producer ids are given out.
//!
//! [`MetaStore`] is the interface; [`FileMetaStore`] keeps the whole of it in one file, which is
//! enough for one broker. [`MetaImage`] is a pure state machine, so that a replicated log can run
//! the same one later.

mod file;
mod format;
mod image;

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use sq_storage::TopicName;
use uuid::Uuid;

pub use file::{FileMetaStore, META_FILE, OpenError};
pub use format::Damage;
pub use image::MetaImage;

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

impl Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A topic as the metadata has it.
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

/// Why a change of the metadata did not happen.
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
    /// The change could not be made durable, and was taken back.
    #[error("the metadata could not be written: {0}")]
    Write(#[source] io::Error),
    /// A change could neither be made durable nor be taken back. What a restart would find is
    /// unknown, so no further change is taken until then.
    #[error("the metadata takes no changes until a restart: {0}")]
    Latched(Arc<str>),
}

/// Durable metadata. A change that was answered `Ok` survives any crash.
#[async_trait]
pub trait MetaStore: Debug + Send + Sync + 'static {
    /// What is known now. Cheap: nothing is copied.
    fn image(&self) -> Arc<MetaImage>;

    /// Adds a topic.
    ///
    /// # Errors
    /// [`MetaError::TopicExists`], [`MetaError::BeingDeleted`], or that it could not be written.
    async fn create_topic(&self, topic: TopicRecord) -> Result<Arc<TopicRecord>, MetaError>;

    /// Takes a topic out. Its name and id are remembered as being deleted, so that a restart knows
    /// whose directory it finds, until [`forget_deleted`](Self::forget_deleted).
    ///
    /// # Errors
    /// [`MetaError::UnknownTopic`], or that it could not be written.
    async fn delete_topic(&self, id: TopicId) -> Result<Arc<TopicRecord>, MetaError>;

    /// Says that nothing is left under a deleted topic's name. One that is not known is fine.
    ///
    /// # Errors
    /// That it could not be written.
    async fn forget_deleted(&self, id: TopicId) -> Result<(), MetaError>;

    /// Takes `count` producer ids that nobody has had or will have.
    ///
    /// # Errors
    /// [`MetaError::ProducerIdsExhausted`], or that it could not be written.
    async fn allocate_producer_ids(&self, count: u32) -> Result<Range<i64>, MetaError>;
}

#[cfg(test)]
mod tests;
