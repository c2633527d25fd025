//! `FindCoordinator`: there are none yet.

use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use super::text;
use crate::protocol::ResponseError;

/// The first version that asks for several keys at once (KIP-699).
const BATCHED: i16 = 4;

/// The kinds of key.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;

pub(super) fn handle(version: i16, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let keys = if version >= BATCHED {
        request.coordinator_keys
    } else {
        vec![request.key]
    };
    let (error, message) = refusal(request.key_type);
    let coordinators = keys
        .into_iter()
        .map(|key| none(key, error, message))
        .collect();
    FindCoordinatorResponse::default().with_coordinators(coordinators)
}

/// Why there is no coordinator for this kind of key. A group's client goes on asking, so that it
/// finds one once there is one; a transaction's is told at once and for good.
fn refusal(key_type: i8) -> (ResponseError, &'static str) {
    match key_type {
        GROUP => (
            ResponseError::CoordinatorNotAvailable,
            "consumer groups are not there yet: consume by assigning partitions",
        ),
        TRANSACTION => (
            ResponseError::TransactionalIdAuthorizationFailed,
            "transactions are not supported: leave transactional.id unset",
        ),
        SHARE => (
            ResponseError::InvalidRequest,
            "share groups are not supported",
        ),
        _ => (ResponseError::InvalidRequest, "no such kind of coordinator"),
    }
}

fn none(key: StrBytes, error: ResponseError, message: &str) -> Coordinator {
    Coordinator::default()
        .with_key(key)
        .with_node_id(BrokerId(-1))
        .with_port(-1)
        .with_error_code(error.code())
        .with_error_message(Some(text(message)))
}
