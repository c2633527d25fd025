//! `DescribeCluster` (KIP-700, KIP-919).

use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{BrokerId, DescribeClusterRequest, DescribeClusterResponse};
use sq_sim::FileSystem;

use super::text;
use crate::broker::Broker;
use crate::protocol::ResponseError;

const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

pub(super) fn handle<F: FileSystem>(
    broker: &Broker<F>,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    let identity = &broker.identity;
    let response = DescribeClusterResponse::default()
        .with_cluster_id(text(&identity.cluster_id))
        .with_controller_id(BrokerId(identity.broker_id))
        .with_endpoint_type(request.endpoint_type);
    let refusal = match request.endpoint_type {
        BROKERS => {
            let this = DescribeClusterBroker::default()
                .with_broker_id(BrokerId(identity.broker_id))
                .with_host(text(&identity.advertised.host))
                .with_port(identity.advertised.port.into());
            return response.with_brokers(vec![this]);
        }
        CONTROLLERS => (
            ResponseError::MismatchedEndpointType,
            "this is a broker: ask it for the brokers",
        ),
        _ => (
            ResponseError::UnsupportedEndpointType,
            "no such type of endpoint",
        ),
    };
    let (error, message) = refusal;
    response
        .with_error_code(error.code())
        .with_error_message(Some(text(message)))
}
