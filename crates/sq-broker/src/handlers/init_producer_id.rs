//! `InitProducerId`: an id for an idempotent producer (KIP-98, KIP-360).

use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use sq_sim::FileSystem;

use crate::broker::Broker;
use crate::protocol::ResponseError;

const NO_ID: i64 = -1;
const NO_EPOCH: i16 = -1;

pub(super) async fn handle<F: FileSystem>(
    broker: &Broker<F>,
    request: &InitProducerIdRequest,
) -> InitProducerIdResponse {
    let response = InitProducerIdResponse::default();
    match next_id(broker, request).await {
        Ok(id) => response
            .with_producer_id(ProducerId(id))
            .with_producer_epoch(0),
        Err(error) => response
            .with_error_code(error.code())
            .with_producer_id(ProducerId(NO_ID))
            .with_producer_epoch(NO_EPOCH),
    }
}

async fn next_id<F: FileSystem>(
    broker: &Broker<F>,
    request: &InitProducerIdRequest,
) -> Result<i64, ResponseError> {
    if let Some(id) = &request.transactional_id {
        if id.is_empty() {
            return Err(ResponseError::InvalidRequest);
        }
        // There is no message in this response. This error ends the client's attempt at once, where
        // one about a coordinator would have it ask again for ever.
        return Err(ResponseError::TransactionalIdAuthorizationFailed);
    }
    let has_id = request.producer_id.0 != NO_ID;
    let has_epoch = request.producer_epoch != NO_EPOCH;
    if has_id != has_epoch {
        return Err(ResponseError::InvalidRequest);
    }
    // Without a transactional id a client that says which id it had gets a fresh one all the same,
    // as from Kafka: it raises the epoch of its own id by itself.
    broker.producer_ids.next().await.map_err(|error| {
        tracing::error!(%error, "no producer id to give out");
        ResponseError::CoordinatorNotAvailable
    })
}
