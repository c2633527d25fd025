//! `CreateTopics`.

use std::collections::BTreeMap;

use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use kafka_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse, TopicName as WireName};
use sq_sim::FileSystem;
use sq_storage::TopicName;
use uuid::Uuid;

use super::describe_configs::{Described, describe_topic_key};
use super::text;
use crate::broker::Broker;
use crate::config::{TopicKey, TopicOverrides};
use crate::meta::MetaError;
use crate::protocol::ResponseError;
use crate::topics::{CreateTopicError, NewTopic};

/// "As the broker has it", for partitions and for replicas.
const DEFAULT: i32 = -1;

type Refusal = (ResponseError, String);

pub(super) async fn handle<F: FileSystem>(
    broker: &Broker<F>,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let mut times: BTreeMap<WireName, usize> = BTreeMap::new();
    for topic in &request.topics {
        *times.entry(topic.name.clone()).or_default() += 1;
    }
    let mut results = Vec::with_capacity(times.len());
    for topic in request.topics {
        let name = topic.name.clone();
        let outcome = match times.get(&name) {
            // Of a name that is there twice neither is created, and the answer has it once.
            Some(1) => create(broker, topic, request.validate_only).await,
            Some(_) => Err((
                ResponseError::InvalidRequest,
                "the topic is in the request twice".into(),
            )),
            None => continue,
        };
        times.remove(&name);
        results.push(result(name, outcome));
    }
    CreateTopicsResponse::default().with_topics(results)
}

struct Created {
    id: Uuid,
    partitions: u32,
    configs: Vec<CreatableTopicConfigs>,
}

fn result(name: WireName, outcome: Result<Created, Refusal>) -> CreatableTopicResult {
    let result = CreatableTopicResult::default().with_name(name);
    match outcome {
        Ok(created) => result
            .with_topic_id(created.id)
            .with_num_partitions(created.partitions.cast_signed())
            .with_replication_factor(1)
            .with_configs(Some(created.configs)),
        Err((error, message)) => result
            .with_error_code(error.code())
            .with_error_message(Some(text(message)))
            .with_num_partitions(-1)
            .with_replication_factor(-1)
            .with_configs(None),
    }
}

async fn create<F: FileSystem>(
    broker: &Broker<F>,
    topic: CreatableTopic,
    validate_only: bool,
) -> Result<Created, Refusal> {
    let name = TopicName::new(&topic.name)
        .map_err(|e| (ResponseError::InvalidTopicException, e.to_string()))?;
    let partitions = partitions(broker, &topic)?;
    let pairs = topic
        .configs
        .iter()
        .map(|c| (c.name.as_str(), c.value.as_deref()));
    let overrides = TopicOverrides::from_pairs(pairs)
        .map_err(|e| (ResponseError::InvalidConfig, e.to_string()))?;
    check_batch_size(broker, &overrides)?;
    let configs = TopicKey::ALL
        .into_iter()
        .map(|key| {
            config(describe_topic_key(
                key,
                &overrides,
                broker.topics.defaults(),
            ))
        })
        .collect();

    let new = NewTopic {
        name,
        partitions,
        overrides,
    };
    let id = if validate_only {
        broker.topics.check(&new).map_err(|e| refusal(&e))?;
        Uuid::nil()
    } else {
        broker
            .topics
            .create(new)
            .await
            .map_err(|e| refusal(&e))?
            .record
            .id
            .uuid()
    };
    Ok(Created {
        id,
        partitions,
        configs,
    })
}

/// How many partitions are asked for, in either of the two ways to ask.
fn partitions<F: FileSystem>(broker: &Broker<F>, topic: &CreatableTopic) -> Result<u32, Refusal> {
    if !topic.assignments.is_empty() {
        if topic.num_partitions != DEFAULT || i32::from(topic.replication_factor) != DEFAULT {
            let message = "with an assignment, partitions and replication factor must be -1";
            return Err((ResponseError::InvalidRequest, message.into()));
        }
        return assigned(broker.identity.broker_id, &topic.assignments);
    }
    if !matches!(topic.replication_factor, 1 | -1) {
        let message = format!(
            "replication factor {}: there is one broker, so it can only be 1",
            topic.replication_factor
        );
        return Err((ResponseError::InvalidReplicationFactor, message));
    }
    match topic.num_partitions {
        DEFAULT => Ok(broker.config.default_partitions),
        number => u32::try_from(number)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| {
                (
                    ResponseError::InvalidPartitions,
                    format!("a topic can't have {number} partitions"),
                )
            }),
    }
}

/// An assignment by hand: every partition from 0 on, once, on the one broker there is.
fn assigned(broker: i32, assignments: &[CreatableReplicaAssignment]) -> Result<u32, Refusal> {
    let refuse = |message: String| (ResponseError::InvalidReplicaAssignment, message);
    let mut numbers: Vec<i32> = assignments.iter().map(|a| a.partition_index).collect();
    numbers.sort_unstable();
    let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
    if !numbers.iter().copied().eq(0..count.cast_signed()) {
        return Err(refuse(
            "an assignment names every partition from 0 on, once".into(),
        ));
    }
    for assignment in assignments {
        let replicas: Vec<i32> = assignment.broker_ids.iter().map(|id| id.0).collect();
        if replicas != [broker] {
            let partition = assignment.partition_index;
            return Err(refuse(format!(
                "partition {partition} is assigned to {replicas:?}, and there is only broker {broker}"
            )));
        }
    }
    Ok(count)
}

/// A batch that no request can carry is not promised.
fn check_batch_size<F: FileSystem>(
    broker: &Broker<F>,
    overrides: &TopicOverrides,
) -> Result<(), Refusal> {
    let most = broker.config.limits.max_frame_bytes;
    match overrides.get(TopicKey::MaxMessageBytes) {
        Some(bytes) if usize::try_from(bytes).unwrap_or(usize::MAX) > most => {
            let message =
                format!("max.message.bytes: {bytes} is more than a request, {most} bytes");
            Err((ResponseError::InvalidConfig, message))
        }
        _ => Ok(()),
    }
}

fn config(described: Described) -> CreatableTopicConfigs {
    CreatableTopicConfigs::default()
        .with_name(text(described.name))
        .with_value(Some(text(described.value)))
        .with_read_only(described.read_only)
        .with_config_source(described.source as i8)
}

fn refusal(error: &CreateTopicError) -> Refusal {
    let code = match error {
        CreateTopicError::Partitions(_) => ResponseError::InvalidPartitions,
        CreateTopicError::BrokerFull { .. } => ResponseError::PolicyViolation,
        CreateTopicError::Config(_) => ResponseError::InvalidConfig,
        CreateTopicError::Meta(MetaError::TopicExists(_)) => ResponseError::TopicAlreadyExists,
        CreateTopicError::Meta(_) | CreateTopicError::InTheWay(_) => {
            ResponseError::KafkaStorageError
        }
        CreateTopicError::Stopping => ResponseError::RequestTimedOut,
    };
    (code, error.to_string())
}
