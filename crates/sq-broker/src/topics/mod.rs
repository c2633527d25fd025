//! The topics a broker serves: their metadata joined with their open partitions.
//!
//! Whoever serves a request takes an [`Arc<Topic>`] out of the current [`TopicMap`] and keeps it;
//! no lock is held across anything. Creating and deleting run one at a time, and to their end even
//! if the client that asked has gone.

mod change;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rand::rngs::StdRng;
use sq_sim::FileSystem;
use sq_storage::frame::FRAME_HEADER_LEN;
use sq_storage::{MaintenanceMode, TopicName, WalConfig};

pub use change::{CreateTopicError, DeleteTopicError, NewTopic};

use crate::config::{TopicConfig, TopicConfigError, TopicOverrides};
use crate::data_dir::DataDir;
use crate::meta::{Metadata, TopicId, TopicRecord};
use crate::partition::{Partition, PartitionEnv, PartitionId};

/// Partitions that a topic may have.
pub const MAX_PARTITIONS_PER_TOPIC: u32 = 10_000;

/// Partitions that a broker may have.
pub const MAX_PARTITIONS: u64 = 100_000;

/// A topic that is served.
#[derive(Debug)]
pub struct Topic<F: FileSystem> {
    /// What the metadata says.
    pub record: Arc<TopicRecord>,
    /// The settings given at its creation.
    pub overrides: TopicOverrides,
    /// Its settings, all of them.
    pub config: TopicConfig,
    partitions: Vec<Partition<F>>,
}

impl<F: FileSystem> Topic<F> {
    /// A partition by its number on the wire.
    pub fn partition(&self, index: i32) -> Option<&Partition<F>> {
        self.partitions.get(usize::try_from(index).ok()?)
    }

    /// All partitions in order.
    pub fn partitions(&self) -> &[Partition<F>] {
        &self.partitions
    }

    /// Whether it takes nothing more.
    fn is_closed(&self) -> bool {
        self.partitions.iter().all(Partition::is_closed)
    }

    async fn close(&self, discard: bool) {
        let mut closing = Vec::with_capacity(self.partitions.len());
        for partition in &self.partitions {
            closing.push(partition.begin_close(discard));
        }
        for partition in closing {
            partition.closed().await;
        }
    }
}

/// The topics at one moment.
#[derive(Debug)]
pub struct TopicMap<F: FileSystem> {
    by_name: BTreeMap<TopicName, Arc<Topic<F>>>,
    by_id: BTreeMap<TopicId, Arc<Topic<F>>>,
}

impl<F: FileSystem> TopicMap<F> {
    /// The topic of this name, which may be any text.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Topic<F>>> {
        self.by_name.get(name)
    }

    /// The topic with this id.
    pub fn by_id(&self, id: TopicId) -> Option<&Arc<Topic<F>>> {
        self.by_id.get(&id)
    }

    /// All topics, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Topic<F>>> {
        self.by_name.values()
    }

    fn partitions(&self) -> u64 {
        self.iter().map(|topic| topic.partitions.len() as u64).sum()
    }

    fn with(&self, topic: Arc<Topic<F>>) -> Self {
        let mut map = self.clone();
        map.add(topic);
        map
    }

    fn add(&mut self, topic: Arc<Topic<F>>) {
        self.by_id.insert(topic.record.id, Arc::clone(&topic));
        self.by_name.insert(topic.record.name.clone(), topic);
    }

    fn without(&self, topic: &TopicRecord) -> Self {
        let mut map = self.clone();
        map.by_id.remove(&topic.id);
        map.by_name.remove(&topic.name);
        map
    }
}

impl<F: FileSystem> Clone for TopicMap<F> {
    fn clone(&self) -> Self {
        Self {
            by_name: self.by_name.clone(),
            by_id: self.by_id.clone(),
        }
    }
}

impl<F: FileSystem> Default for TopicMap<F> {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            by_id: BTreeMap::new(),
        }
    }
}

/// The topics, and what it takes to change them.
#[derive(Debug)]
pub struct Topics<F: FileSystem> {
    env: Arc<PartitionEnv<F>>,
    meta: Metadata<F>,
    data_dir: DataDir<F>,
    defaults: TopicConfig,
    rng: Mutex<StdRng>,
    current: RwLock<Arc<TopicMap<F>>>,
    /// Held across each change; what it holds is whether changes are still taken.
    changing: tokio::sync::Mutex<Changes>,
    /// Held by whoever removes a deleted topic's files.
    removing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changes {
    Taken,
    /// One was given up for lost and may take place all the same.
    InDoubt,
    Over,
}

/// Why the topics could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum TopicsError {
    /// Tidying the data directory failed.
    #[error("tidying the data directory: {0}")]
    Tidy(#[from] std::io::Error),
    /// A topic's settings in the metadata are not ones this version knows.
    #[error("topic {topic}: {error}")]
    Config {
        /// The topic.
        topic: TopicName,
        /// What is wrong.
        #[source]
        error: TopicConfigError,
    },
}

impl<F: FileSystem> Topics<F> {
    /// Brings the data directory in line with the metadata and starts every partition. Partitions
    /// open in the background; one that does not open hurts no other.
    ///
    /// # Errors
    /// [`TopicsError`]; nothing was deleted.
    pub async fn start(
        env: Arc<PartitionEnv<F>>,
        meta: Metadata<F>,
        data_dir: DataDir<F>,
        defaults: TopicConfig,
        rng: StdRng,
    ) -> Result<Arc<Self>, TopicsError> {
        let state = meta.state();
        for (id, deleted) in state.deleted() {
            data_dir.move_deleted(&deleted.name, id).await?;
            // What is not forgotten now will be when its name is wanted.
            if let Err(error) = meta.forget_deleted(id).await {
                tracing::warn!(%id, %error, "a deleted topic is not forgotten yet");
            }
        }
        let is_topic = |name: &TopicName| state.topic_named(name).is_some();
        for (name, path) in data_dir.quarantine_orphans(is_topic).await? {
            tracing::warn!(%name, path = %path.display(), "no topic has this directory; moved, kept");
        }
        let topics = Arc::new(Self {
            env,
            meta,
            data_dir,
            defaults,
            rng: Mutex::new(rng),
            current: RwLock::default(),
            changing: tokio::sync::Mutex::new(Changes::Taken),
            removing: Arc::default(),
        });
        let mut map = TopicMap::default();
        for topic in state.topics() {
            let opened = topics.open(Arc::new(TopicRecord::of(topic)));
            let topic = opened.map_err(|error| TopicsError::Config {
                topic: topic.name.clone(),
                error,
            })?;
            map.add(topic);
        }
        topics.replace(map);
        let lives = |id| state.topic(id).is_some();
        for path in topics.data_dir.leftovers(lives).await? {
            topics.remove_in_background(path);
        }
        let tidying = Arc::clone(&topics);
        tokio::spawn(async move { tidying.quarantine_partitions().await });
        Ok(topics)
    }

    /// Moves the directories out of the way that look like a partition's of a topic that has fewer. A
    /// topic that gets more partitions one day would go on with what is in them.
    async fn quarantine_partitions(&self) {
        for topic in self.current().iter() {
            let (name, count) = (&topic.record.name, topic.record.partitions);
            // Or else another topic might get the name meanwhile.
            let changing = self.changing.lock().await;
            if *changing == Changes::Over {
                return;
            }
            if self.current().by_id(topic.record.id).is_none() {
                continue;
            }
            match self.data_dir.quarantine_partitions(name, count).await {
                Ok(moved) => {
                    for path in moved {
                        tracing::warn!(%name, path = %path.display(),
                            "no partition of the topic has this directory; moved, kept");
                    }
                }
                Err(error) => tracing::warn!(%name, %error, "a topic's directory is not tidied"),
            }
        }
    }

    /// The topics now.
    pub fn current(&self) -> Arc<TopicMap<F>> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The settings of a topic for which none were given.
    pub fn defaults(&self) -> &TopicConfig {
        &self.defaults
    }

    /// Closes every partition cleanly. No topic can be created or deleted any more.
    pub async fn close(&self) {
        *self.changing.lock().await = Changes::Over;
        let map = self.current();
        let mut closing = Vec::new();
        for partition in map.iter().flat_map(|topic| topic.partitions()) {
            closing.push(partition.begin_close(false));
        }
        for partition in closing {
            partition.closed().await;
        }
    }

    fn replace(&self, map: TopicMap<F>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }

    /// Starts a topic's partitions.
    fn open(&self, record: Arc<TopicRecord>) -> Result<Arc<Topic<F>>, TopicConfigError> {
        let overrides = overrides_of(&record)?;
        let config = overrides.over(&self.defaults);
        let wal = wal_config(&self.env.wal, &config);
        let start = |partition| {
            let id = PartitionId {
                topic: record.name.clone(),
                partition,
            };
            Partition::start(Arc::clone(&self.env), id, wal.clone())
        };
        let partitions = (0..record.partitions).map(start).collect();
        Ok(Arc::new(Topic {
            record,
            overrides,
            config,
            partitions,
        }))
    }
}

/// How the logs of a topic with these settings are kept.
pub fn wal_config(wal: &WalConfig, config: &TopicConfig) -> WalConfig {
    let mut wal = wal.clone();
    let largest_frame = config.max_message_bytes as usize + FRAME_HEADER_LEN;
    wal.max_frame_bytes = wal.max_frame_bytes.max(largest_frame);
    wal.max_segment_bytes = config.segment_bytes;
    wal.max_segment_age = Duration::from_millis(config.segment_ms);
    wal.maintenance = MaintenanceMode::Handed;
    // Opening shows what producers did from each frame of the active segment on: a point would not be used.
    wal.recovery_point_bytes = 0;
    wal
}

/// The settings that a topic's record gives.
///
/// # Errors
/// [`TopicConfigError`]: they are not ones that this version knows.
pub fn overrides_of(record: &TopicRecord) -> Result<TopicOverrides, TopicConfigError> {
    let pairs = record.configs.iter();
    TopicOverrides::from_pairs(pairs.map(|(key, value)| (key.as_str(), Some(value.as_str()))))
}

#[cfg(test)]
mod at_once_tests;
#[cfg(test)]
mod roll_tests;
#[cfg(test)]
mod tests;
