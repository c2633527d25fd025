//! `DeleteTopics`, by name or by id (KIP-516).

use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, TopicName as WireName};
use sq_sim::FileSystem;
use uuid::Uuid;

use super::text;
use crate::broker::Broker;
use crate::meta::{MetaError, TopicId};
use crate::protocol::ResponseError;
use crate::topics::DeleteTopicError;

/// The first version that names topics by id, and has a list of another shape for it.
const BY_ID: i16 = 6;

pub(super) async fn handle<F: FileSystem>(
    broker: &Broker<F>,
    version: i16,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let asked = if version >= BY_ID {
        request.topics
    } else {
        let by_name = |name| DeleteTopicState::default().with_name(Some(name));
        request.topic_names.into_iter().map(by_name).collect()
    };
    let mut responses = Vec::with_capacity(asked.len());
    for topic in asked {
        responses.push(delete(broker, topic).await);
    }
    DeleteTopicsResponse::default().with_responses(responses)
}

async fn delete<F: FileSystem>(
    broker: &Broker<F>,
    asked: DeleteTopicState,
) -> DeletableTopicResult {
    let result = DeletableTopicResult::default()
        .with_name(asked.name.clone())
        .with_topic_id(asked.topic_id);
    match find(broker, &asked) {
        Err((error, message)) => result
            .with_error_code(error.code())
            .with_error_message(Some(text(message))),
        Ok((name, id)) => {
            let result = result.with_name(Some(name)).with_topic_id(id.uuid());
            match broker.topics.delete(id).await {
                Ok(()) => result,
                Err(error) => {
                    let code = error_code(&error).code();
                    result
                        .with_error_code(code)
                        .with_error_message(Some(text(error)))
                }
            }
        }
    }
}

fn find<F: FileSystem>(
    broker: &Broker<F>,
    asked: &DeleteTopicState,
) -> Result<(WireName, TopicId), (ResponseError, &'static str)> {
    let topics = broker.topics.current();
    let found = match (&asked.name, asked.topic_id) {
        (Some(name), id) if id == Uuid::nil() => topics.by_name(name).ok_or((
            ResponseError::UnknownTopicOrPartition,
            "there is no such topic",
        ))?,
        (None, id) if id != Uuid::nil() => topics
            .by_id(TopicId::from_uuid(id))
            .ok_or((ResponseError::UnknownTopicId, "no topic has this id"))?,
        _ => {
            let message = "a topic is named either by its name or by its id";
            return Err((ResponseError::InvalidRequest, message));
        }
    };
    Ok((WireName(text(&found.record.name)), found.record.id))
}

fn error_code(error: &DeleteTopicError) -> ResponseError {
    match error {
        // Deleted by somebody else since it was looked up.
        DeleteTopicError::Meta(MetaError::UnknownTopic(_)) => {
            ResponseError::UnknownTopicOrPartition
        }
        DeleteTopicError::Meta(_) => ResponseError::KafkaStorageError,
        DeleteTopicError::Stopping => ResponseError::RequestTimedOut,
    }
}
