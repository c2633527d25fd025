//! `Metadata`: the broker, the topics, and who leads what.

use std::collections::HashSet;
use std::sync::Arc;

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, MetadataRequest, MetadataResponse, TopicName as WireName,
};
use sq_sim::FileSystem;
use sq_storage::TopicName;
use uuid::Uuid;

use super::{text, wire_epoch};
use crate::broker::Broker;
use crate::config::TopicOverrides;
use crate::meta::{MetaError, TopicId};
use crate::protocol::ResponseError;
use crate::topics::{CreateTopicError, NewTopic, Topic};

/// The first version in which an empty list means no topic, and a null one all of them.
const EMPTY_IS_NONE: i16 = 1;

/// The first version in which a client says whether asking for a topic may create it (KIP-204).
const SAYS_IF_IT_CREATES: i16 = 4;

pub(super) async fn handle<F: FileSystem>(
    broker: &Broker<F>,
    version: i16,
    request: MetadataRequest,
) -> MetadataResponse {
    let creates = broker.config.auto_create_topics
        && (version < SAYS_IF_IT_CREATES || request.allow_auto_topic_creation);
    let topics = match request.topics {
        None => all(broker),
        Some(asked) if asked.is_empty() && version < EMPTY_IS_NONE => all(broker),
        Some(asked) => {
            let mut topics = Vec::with_capacity(asked.len());
            let mut seen = HashSet::with_capacity(asked.len());
            for topic in asked {
                // A topic that is named again is answered once, as by Kafka: an answer grows with
                // the partitions there are, and not with how often a client asks for them.
                if !seen.insert((topic.name.clone(), topic.topic_id)) {
                    continue;
                }
                topics.push(one(broker, topic, creates).await);
            }
            topics
        }
    };
    let identity = &broker.identity;
    let this = MetadataResponseBroker::default()
        .with_node_id(BrokerId(identity.broker_id))
        .with_host(text(&identity.advertised.host))
        .with_port(identity.advertised.port.into());
    MetadataResponse::default()
        .with_brokers(vec![this])
        .with_cluster_id(Some(text(&identity.cluster_id)))
        .with_controller_id(BrokerId(identity.broker_id))
        .with_topics(topics)
}

fn all<F: FileSystem>(broker: &Broker<F>) -> Vec<MetadataResponseTopic> {
    broker
        .topics
        .current()
        .iter()
        .map(|topic| describe(broker, topic))
        .collect()
}

async fn one<F: FileSystem>(
    broker: &Broker<F>,
    asked: MetadataRequestTopic,
    creates: bool,
) -> MetadataResponseTopic {
    let failed = |error: ResponseError, name: Option<WireName>, id: Uuid| {
        MetadataResponseTopic::default()
            .with_error_code(error.code())
            .with_name(name)
            .with_topic_id(id)
    };
    let Some(name) = asked.name else {
        let id = asked.topic_id;
        return match broker.topics.current().by_id(TopicId::from_uuid(id)) {
            Some(topic) => describe(broker, topic),
            None => failed(ResponseError::UnknownTopicId, None, id),
        };
    };
    match find_or_create(broker, &name, creates).await {
        Ok(topic) => describe(broker, &topic),
        Err(error) => failed(error, Some(name), Uuid::nil()),
    }
}

async fn find_or_create<F: FileSystem>(
    broker: &Broker<F>,
    name: &str,
    creates: bool,
) -> Result<Arc<Topic<F>>, ResponseError> {
    if let Some(topic) = broker.topics.current().by_name(name) {
        return Ok(Arc::clone(topic));
    }
    let name = TopicName::new(name).map_err(|_| ResponseError::InvalidTopicException)?;
    if !creates {
        return Err(ResponseError::UnknownTopicOrPartition);
    }
    let partitions = broker.config.default_partitions;
    let new = NewTopic {
        name: name.clone(),
        partitions,
        overrides: TopicOverrides::default(),
    };
    match broker.topics.create(new).await {
        Ok(topic) => Ok(topic),
        // Somebody else was faster.
        Err(CreateTopicError::Meta(MetaError::TopicExists(_))) => broker
            .topics
            .current()
            .by_name(name.as_str())
            .map(Arc::clone)
            .ok_or(ResponseError::LeaderNotAvailable),
        Err(error) => {
            tracing::warn!(%name, %error, "topic not created at first use");
            Err(match error {
                CreateTopicError::BrokerFull { .. } | CreateTopicError::Partitions(_) => {
                    ResponseError::PolicyViolation
                }
                _ => ResponseError::LeaderNotAvailable,
            })
        }
    }
}

fn describe<F: FileSystem>(broker: &Broker<F>, topic: &Topic<F>) -> MetadataResponseTopic {
    let id = BrokerId(broker.identity.broker_id);
    let partition = |index: u32| {
        MetadataResponsePartition::default()
            .with_partition_index(index.cast_signed())
            .with_leader_id(id)
            .with_leader_epoch(wire_epoch())
            .with_replica_nodes(vec![id])
            .with_isr_nodes(vec![id])
    };
    MetadataResponseTopic::default()
        .with_name(Some(WireName(text(&topic.record.name))))
        .with_topic_id(topic.record.id.uuid())
        .with_partitions((0..topic.record.partitions).map(partition).collect())
}
