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
        let mut changing = self.changing.lock().await;
        if *changing == Changes::Over {
            return Err(CreateTopicError::Stopping);
        }
        self.catch_up(&mut changing).await;
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
        let asked_at = self.env.clock.now();
        let created = self.meta.create_topic(record).await;
        if matches!(created, Err(MetaError::InDoubt(_))) {
            *changing = Changes::InDoubt;
        }
        let record = created?;
        let took = self.env.clock.now() - asked_at;
        self.env.node.committed_in(took);
        tracing::info!(name = %record.name, %id, partitions = record.partitions, "topic created");
        let topic = self.open(record)?;
        self.replace(self.current().with(Arc::clone(&topic)));
        Ok(topic)
    }

    /// Finishes a deletion that could not move its directory away.
    async fn make_way(&self, name: &TopicName) -> Result<(), CreateTopicError> {
        let state = self.meta.state();
        for (id, _) in state.deleted().filter(|(_, deleted)| deleted.name == *name) {
            let left = self
                .data_dir
                .move_deleted(name, id)
                .await
                .map_err(CreateTopicError::InTheWay)?;
            self.meta.forget_deleted(id).await?;
            if let Some(path) = left {
                self.remove_in_background(path);
            }
        }
        Ok(())
    }

    /// Deletes a topic. Once this returns its name is free and nothing of it can be read.
    ///
    /// # Errors
    /// [`DeleteTopicError`]; the topic was not deleted, unless that is [in doubt](MetaError::InDoubt):
    /// then the topic takes nothing more, and whoever changes topics next finds out.
    pub async fn delete(self: &Arc<Self>, id: TopicId) -> Result<(), DeleteTopicError> {
        let topics = Arc::clone(self);
        tokio::spawn(async move { topics.delete_now(id).await })
            .await
            .unwrap_or(Err(DeleteTopicError::Stopping))
    }

    async fn delete_now(&self, id: TopicId) -> Result<(), DeleteTopicError> {
        let mut changing = self.changing.lock().await;
        if *changing == Changes::Over {
            return Err(DeleteTopicError::Stopping);
        }
        self.catch_up(&mut changing).await;
        let current = self.current();
        let topic = current.by_id(id).ok_or(MetaError::UnknownTopic(id))?;
        if let Err(error) = self.meta.delete_topic(id).await {
            if matches!(error, MetaError::InDoubt(_)) {
                *changing = Changes::InDoubt;
                topic.close(false).await;
            }
            return Err(error.into());
        }
        self.finish_deletion(topic).await;
        Ok(())
    }

    /// Takes a topic that the metadata has deleted out of use, and its directory out of the way.
    async fn finish_deletion(&self, topic: &Topic<F>) {
        let (record, id) = (&topic.record, topic.record.id);
        self.replace(self.current().without(record));
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
    }

    /// Follows the metadata, if it may have been changed by a command that was given up for lost.
    async fn catch_up(&self, changing: &mut Changes) {
        if *changing != Changes::InDoubt {
            return;
        }
        if let Err(error) = self.meta.settle().await {
            tracing::warn!(%error, "what became of a change of topics is not known yet");
            return;
        }
        *changing = Changes::Taken;
        let (state, current) = (self.meta.state(), self.current());
        for topic in current.iter() {
            if state.topic(topic.record.id).is_none() {
                self.finish_deletion(topic).await;
            }
        }
        for topic in state.topics() {
            let is_served = current.by_id(topic.id);
            if is_served.is_some_and(|served| !served.is_closed()) {
                continue;
            }
            match self.open(Arc::new(TopicRecord::of(topic))) {
                Ok(opened) => self.replace(self.current().with(opened)),
                Err(error) => {
                    tracing::error!(name = %topic.name, %error, "a topic can't be served");
                }
            }
        }
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
