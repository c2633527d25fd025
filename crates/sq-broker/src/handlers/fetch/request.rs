//! A fetch request, resolved against the topics there are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::fetch_request::FetchPartition;
use kafka_protocol::messages::{FetchRequest, TopicName as WireName};
use sq_sim::FileSystem;
use uuid::Uuid;

use super::ahead::Place;
use crate::broker::Broker;
use crate::handlers::check_leader_epoch;
use crate::meta::TopicId;
use crate::partition::Partition;
use crate::protocol::ResponseError;
use crate::topics::Topic;

/// The first version that names topics by id (KIP-516).
const BY_ID: i16 = 13;

/// Where a connection's next fetch begins: at the partition for which the one before had no room.
/// Else the first partitions of a long list would be served for ever, and the last ones never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchCursor(Option<(Uuid, String, i32)>);

/// The longest that a fetch waits for data. One that is answered with nothing asks again, and what
/// a connection holds while its client has gone away unnoticed is held no longer than this.
const MAX_WAIT: Duration = Duration::from_mins(5);

/// A fetch.
pub(super) struct Fetch<F: FileSystem> {
    pub(super) version: i16,
    /// Not answered with fewer bytes before `max_wait` is over.
    pub(super) min_bytes: usize,
    pub(super) max_wait: Duration,
    /// The most bytes of batches, but for a first batch that is larger.
    pub(super) max_bytes: usize,
    /// The topics in the request's order, as they are named there.
    pub(super) topics: Vec<(WireName, Uuid)>,
    /// The partitions in the request's order.
    pub(super) wanted: Vec<Wanted<F>>,
}

/// A partition of a fetch.
pub(super) struct Wanted<F: FileSystem> {
    /// The index of its topic in the request.
    pub(super) topic: usize,
    pub(super) partition_index: i32,
    pub(super) offset: i64,
    pub(super) max_bytes: usize,
    source: Result<Arc<Topic<F>>, ResponseError>,
}

impl<F: FileSystem> Fetch<F> {
    pub(super) fn new(broker: &Broker<F>, version: i16, request: FetchRequest) -> Self {
        let current = broker.topics.current();
        let mut topics = Vec::with_capacity(request.topics.len());
        let mut wanted = Vec::new();
        let mut first_named = HashMap::new();
        let mut seen = HashSet::new();
        for (index, topic) in request.topics.into_iter().enumerate() {
            let found = if version >= BY_ID {
                current
                    .by_id(TopicId::from_uuid(topic.topic_id))
                    .ok_or(ResponseError::UnknownTopicId)
            } else {
                current
                    .by_name(&topic.topic)
                    .ok_or(ResponseError::UnknownTopicOrPartition)
            };
            let found = found.map(Arc::clone);
            // A partition that is named again is read once, as by Kafka: else a request could have the
            // same bytes read a hundred thousand times.
            let key = (topic.topic.clone(), topic.topic_id);
            let first = *first_named.entry(key).or_insert(index);
            let new = topic
                .partitions
                .iter()
                .filter(|p| seen.insert((first, p.partition)));
            wanted.extend(new.map(|p| Wanted::new(index, p, found.clone())));
            topics.push((topic.topic, topic.topic_id));
        }
        let max_bytes = size(request.max_bytes).min(broker.config.limits.max_fetch_bytes);
        Self {
            version,
            // More than may be sent can never be there.
            min_bytes: size(request.min_bytes).min(max_bytes),
            max_wait: Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0))
                .min(MAX_WAIT),
            max_bytes,
            topics,
            wanted,
        }
    }

    /// The index of the partition to begin with.
    pub(super) fn start_at(&self, cursor: &FetchCursor) -> usize {
        let Some((id, name, partition)) = &cursor.0 else {
            return 0;
        };
        self.wanted
            .iter()
            .position(|wanted| {
                let topic = self.topics.get(wanted.topic);
                wanted.partition_index == *partition
                    && topic.is_some_and(|(n, i)| i == id && n.as_str() == name)
            })
            .unwrap_or(0)
    }

    /// The cursor that makes the next fetch begin at this index.
    pub(super) fn cursor(&self, at: usize) -> FetchCursor {
        let wanted = self.wanted.get(at);
        FetchCursor(wanted.and_then(|wanted| {
            let (name, id) = self.topics.get(wanted.topic)?;
            Some((*id, name.to_string(), wanted.partition_index))
        }))
    }
}

impl<F: FileSystem> Wanted<F> {
    fn new(
        topic: usize,
        asked: &FetchPartition,
        found: Result<Arc<Topic<F>>, ResponseError>,
    ) -> Self {
        let index = asked.partition;
        let source = found.and_then(|topic| {
            check_leader_epoch(asked.current_leader_epoch)?;
            let known = topic.partition(index).is_some();
            if known {
                Ok(topic)
            } else {
                Err(ResponseError::UnknownTopicOrPartition)
            }
        });
        Self {
            topic,
            partition_index: index,
            offset: asked.fetch_offset,
            max_bytes: size(asked.partition_max_bytes),
            source,
        }
    }

    /// The partition, if there is one to read.
    pub(super) fn partition(&self) -> Option<&Partition<F>> {
        self.source.as_ref().ok()?.partition(self.partition_index)
    }

    /// The topic's id, if there is one to read.
    fn topic_id(&self) -> Option<TopicId> {
        self.source.as_ref().ok().map(|topic| topic.record.id)
    }

    /// Where a read of the partition begins.
    pub(super) fn place(&self, offset: u64, room: usize) -> Option<Place> {
        Some(Place {
            topic: self.topic_id()?,
            partition: self.partition_index,
            offset,
            room,
        })
    }

    /// Whether that is the place from which the partition is wanted, with whatever limit.
    pub(super) fn is_at(&self, place: &Place) -> bool {
        self.partition_index == place.partition
            && u64::try_from(self.offset) == Ok(place.offset)
            && self.topic_id() == Some(place.topic)
    }

    /// Why there is none.
    pub(super) fn refusal(&self) -> ResponseError {
        self.source
            .as_ref()
            .err()
            .copied()
            .unwrap_or(ResponseError::UnknownTopicOrPartition)
    }
}

/// A size on the wire; a negative one is none.
fn size(bytes: i32) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}
