//! What a response's version has no place for.
//!
//! `kafka-protocol` refuses to encode a response in which a field is set that its version lacks.
//! Such a field is dropped here, once, and not in each handler.

use kafka_protocol::messages as kafka;
use kafka_protocol::protocol::StrBytes;

use super::response::ResponseBody;

/// "Not asked for": what a field of authorized operations says without one.
const NO_OPERATIONS: i32 = i32::MIN;

impl ResponseBody {
    /// The body without what `version` of its API can't say.
    pub(super) fn fitted_to(self, version: i16) -> Self {
        match self {
            Self::Metadata(body) => Self::Metadata(metadata(body, version)),
            Self::ListOffsets(body) => Self::ListOffsets(list_offsets(body, version)),
            Self::FindCoordinator(body) => Self::FindCoordinator(coordinator(body, version)),
            Self::DescribeCluster(body) => Self::DescribeCluster(cluster(body, version)),
            Self::InitProducerId(body) => Self::InitProducerId(
                body.with_ongoing_txn_producer_id((-1).into())
                    .with_ongoing_txn_producer_epoch(-1),
            ),
            other => other,
        }
    }
}

fn metadata(mut body: kafka::MetadataResponse, version: i16) -> kafka::MetadataResponse {
    if !(8..=10).contains(&version) {
        body.cluster_authorized_operations = NO_OPERATIONS;
    }
    for topic in &mut body.topics {
        if version < 8 {
            topic.topic_authorized_operations = NO_OPERATIONS;
        }
        if version < 12 && topic.name.is_none() {
            topic.name = Some(StrBytes::new().into());
        }
    }
    body
}

fn list_offsets(mut body: kafka::ListOffsetsResponse, version: i16) -> kafka::ListOffsetsResponse {
    if version < 4 {
        for partition in body
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
        {
            partition.leader_epoch = -1;
        }
    }
    body
}

/// Version 4 made a list of the one answer; a handler fills in the list, whatever the version.
fn coordinator(
    mut body: kafka::FindCoordinatorResponse,
    version: i16,
) -> kafka::FindCoordinatorResponse {
    let list = std::mem::take(&mut body.coordinators);
    let fresh =
        kafka::FindCoordinatorResponse::default().with_throttle_time_ms(body.throttle_time_ms);
    if version >= 4 {
        return fresh.with_coordinators(list);
    }
    match list.into_iter().next() {
        None => body,
        Some(first) => fresh
            .with_error_code(first.error_code)
            .with_error_message(first.error_message)
            .with_node_id(first.node_id)
            .with_host(first.host)
            .with_port(first.port),
    }
}

fn cluster(
    mut body: kafka::DescribeClusterResponse,
    version: i16,
) -> kafka::DescribeClusterResponse {
    if version < 1 {
        body.endpoint_type = 1;
    }
    if version < 2 {
        for broker in &mut body.brokers {
            broker.is_fenced = false;
        }
    }
    body
}
