//! Creating and deleting topics.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use rand::RngExt;
use sq_sim::FileSystem;
use sq_storage::TopicName;

use super::{Changes, MAX_PARTITIONS, MAX_PARTITIONS_PER_TOPIC, Topic, Topics};
use crate::config::{TopicConfigError, TopicOverrides};
use crate::meta::{MetaError, TopicId, TopicRecord};

/// A topic to be created.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Its name.
    pub name: TopicName,
    /// How many partitions.
    pub partitions: u32,
    /// Settings that are not to follow the broker's defaults.
    pub overrides: TopicOverrides,
}

/// Why a topic was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateTopicError {
    /// Too many partitions, or none.
    #[error("{0} partitions; a topic has 1 to {MAX_PARTITIONS_PER_TOPIC}")]
    Partitions(u32),
    /// The broker has as many partitions as it takes.
    #[error("the broker has {present} partitions and takes {MAX_PARTITIONS}")]
    BrokerFull {
        /// How many it has.
        present: u64,
    },
    /// Settings that are not right.
    #[error(transparent)]
    Config(#[from] TopicConfigError),
    /// The metadata did not take it.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The directory of a deleted topic of that name could not be moved away.
    #[error("what is left of a deleted topic is in the way: {0}")]
    InTheWay(#[source] io::Error),
    /// The broker stops.
    #[error("the broker is stopping")]
    Stopping,
}

/// Why a topic was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeleteTopicError {
    /// The metadata did not take it, or there is no such topic.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The broker stops.
    #[error("the broker is stopping")]
    Stopping,
}

impl<F: FileSystem> Topics<F> {
    /// Checks a topic without creating it.
    ///
    /// # Errors
    /// Why it could not be created as things stand.
    pub fn check(&self, topic: &NewTopic) -> Result<(), CreateTopicError> {
        if !(1..=MAX_PARTITIONS_PER_TOPIC).contains(&topic.partitions) {
            return Err(CreateTopicError::Partitions(topic.partitions));
        }
        let current = self.current();
        if current.by_name(topic.name.as_str()).is_some() {
            return Err(MetaError::TopicExists(topic.name.clone()).into());
        }
        let present = current.partitions();
        if present + u64::from(topic.partitions) > MAX_PARTITIONS {
            return Err(CreateTopicError::BrokerFull { present });
        }
        Ok(())
    }

    /// Creates a topic. Its partitions can be written to at once.
    ///
    /// # Errors
    /// [`CreateTopicError`]; the topic was not created.
    pub async fn create(
        self: &Arc<Self>,
        topic: NewTopic,
    ) -> Result<Arc<Topic<F>>, CreateTopicError> {
        let topics = Arc::clone(self);
        tokio::spawn(async move { topics.create_now(topic).await })
            .await
            .unwrap_or(Err(CreateTopicError::Stopping))
    }

    async fn create_now(&self, topic: NewTopic) -> Result<Arc<Topic<F>>, CreateTopicError> {
        let changing = self.changing.lock().await;
        if *changing == Changes::Over {
            return Err(CreateTopicError::Stopping);
        }
        self.check(&topic)?;
        self.make_way(&topic.name).await?;
        let configs = topic
            .overrides
            .iter()
            .map(|(key, value)| (key.name().to_owned(), value.to_string()))
            .collect();
        let id = TopicId::from_random(
            self.rng
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .random(),
        );
        let record = TopicRecord {
            name: topic.name,
            id,
            partitions: topic.partitions,
            configs,
        };
        let record = self.meta.create_topic(record).await?;
        tracing::info!(name = %record.name, %id, partitions = record.partitions, "topic created");
        let topic = self.open(record)?;
        self.replace(self.current().with(Arc::clone(&topic)));
        Ok(topic)
    }

    /// Finishes a deletion that could not move its directory away.
    async fn make_way(&self, name: &TopicName) -> Result<(), CreateTopicError> {
        let image = self.meta.image();
        for (id, _) in image
            .deleting
            .iter()
            .filter(|(_, deleted)| *deleted == name)
        {
            let left = self
                .data_dir
                .move_deleted(name, *id)
                .await
                .map_err(CreateTopicError::InTheWay)?;
            self.meta.forget_deleted(*id).await?;
            if let Some(path) = left {
                self.remove_in_background(path);
            }
        }
        Ok(())
    }

    /// Deletes a topic. Once this returns its name is free and nothing of it can be read.
    ///
    /// # Errors
    /// [`DeleteTopicError`]; the topic was not deleted, unless the metadata is
    /// [latched](MetaError::Latched): then nobody knows before the next start, and the topic takes
    /// nothing until then.
    pub async fn delete(self: &Arc<Self>, id: TopicId) -> Result<(), DeleteTopicError> {
        let topics = Arc::clone(self);
        tokio::spawn(async move { topics.delete_now(id).await })
            .await
            .unwrap_or(Err(DeleteTopicError::Stopping))
    }

    async fn delete_now(&self, id: TopicId) -> Result<(), DeleteTopicError> {
        let changing = self.changing.lock().await;
        if *changing == Changes::Over {
            return Err(DeleteTopicError::Stopping);
        }
        let current = self.current();
        let topic = current.by_id(id).ok_or(MetaError::UnknownTopic(id))?;
        let record = match self.meta.delete_topic(id).await {
            Ok(record) => record,
            Err(error) => {
                if matches!(error, MetaError::Latched(_)) {
                    topic.close(false).await;
                }
                return Err(error.into());
            }
        };
        self.replace(current.without(&record));
        topic.close(true).await;
        tracing::info!(name = %record.name, %id, "topic deleted");
        match self.data_dir.move_deleted(&record.name, id).await {
            Ok(left) => {
                if let Err(error) = self.meta.forget_deleted(id).await {
                    tracing::warn!(%id, %error, "a deleted topic is not forgotten yet");
                }
                if let Some(path) = left {
                    self.remove_in_background(path);
                }
            }
            // The metadata knows whose directory it is: the next start moves it, or whoever creates
            // a topic of that name.
            Err(error) => tracing::error!(%id, %error, "a deleted topic's directory is in the way"),
        }
        Ok(())
    }

    pub(super) fn remove_in_background(&self, path: PathBuf) {
        let remover = self.data_dir.remover();
        let (clock, turn) = (Arc::clone(&self.env.clock), Arc::clone(&self.removing));
        tokio::spawn(async move {
            // One at a time: several at once would be as hard on the disk as no pauses.
            let _turn = turn.lock().await;
            if let Err(error) = remover.remove(&*clock, &path).await {
                // The next start goes on with it.
                tracing::warn!(path = %path.display(), %error, "a deleted topic is not all gone");
            }
        });
    }
}
