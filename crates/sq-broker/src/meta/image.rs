//! The metadata as a value, and what each change makes of it. No clock, no I/O.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use sq_storage::TopicName;

use super::{MetaError, TopicId, TopicRecord};

/// Everything the metadata says at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaImage {
    /// How many changes led here.
    pub revision: u64,
    /// The first producer id that was never given out.
    pub next_producer_id: i64,
    /// The topics by name.
    pub topics: BTreeMap<TopicName, Arc<TopicRecord>>,
    /// Topics that were deleted and whose directory may still stand under the name.
    pub deleting: BTreeMap<TopicId, TopicName>,
}

impl MetaImage {
    pub(super) fn create_topic(
        &mut self,
        topic: TopicRecord,
    ) -> Result<Arc<TopicRecord>, MetaError> {
        if self.topics.contains_key(&topic.name) {
            return Err(MetaError::TopicExists(topic.name));
        }
        if self.deleting.values().any(|name| *name == topic.name) {
            return Err(MetaError::BeingDeleted(topic.name));
        }
        let topic = Arc::new(topic);
        self.topics.insert(topic.name.clone(), Arc::clone(&topic));
        self.revision += 1;
        Ok(topic)
    }

    pub(super) fn delete_topic(&mut self, id: TopicId) -> Result<Arc<TopicRecord>, MetaError> {
        let name = self
            .topics
            .values()
            .find(|topic| topic.id == id)
            .map(|topic| topic.name.clone())
            .ok_or(MetaError::UnknownTopic(id))?;
        let topic = self
            .topics
            .remove(&name)
            .ok_or(MetaError::UnknownTopic(id))?;
        self.deleting.insert(id, name);
        self.revision += 1;
        Ok(topic)
    }

    /// Whether there was anything to forget.
    pub(super) fn forget_deleted(&mut self, id: TopicId) -> bool {
        let known = self.deleting.remove(&id).is_some();
        self.revision += u64::from(known);
        known
    }

    pub(super) fn allocate_producer_ids(&mut self, count: u32) -> Result<Range<i64>, MetaError> {
        let first = self.next_producer_id;
        let end = first
            .checked_add(i64::from(count))
            .ok_or(MetaError::ProducerIdsExhausted)?;
        self.next_producer_id = end;
        self.revision += 1;
        Ok(first..end)
    }
}
