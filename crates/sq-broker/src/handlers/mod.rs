//! What each request means: a file per API.
//!
//! A handler takes the decoded request and gives the response's body. It reads the topics as they
//! are at its beginning and holds no lock while it waits.

mod api_versions;
mod create_topics;
mod delete_records;
mod delete_topics;
mod describe_cluster;
mod describe_configs;
mod describe_rolls;
mod fetch;
mod find_coordinator;
mod init_producer_id;
mod list_offsets;
mod metadata;
mod produce;

use std::fmt::Display;
use std::sync::{Arc, Mutex};

use kafka_protocol::protocol::StrBytes;
use sq_sim::FileSystem;
use tokio::sync::watch;

pub use fetch::{FetchCursor, ReadAhead};
pub use produce::{ProduceFailed, Produced};

use crate::broker::Broker;
use crate::budget::Held;
use crate::partition::{LEADER_EPOCH, Unavailable};
use crate::protocol::{Request, RequestBody, ResponseBody, ResponseError};

/// What handlers know of the connection a request came on.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Turns true when whoever waits should be answered with what there is: the client has hung up
    /// or the broker stops.
    pub hurry: watch::Receiver<bool>,
    /// Turns true when every answer before this request's has been written.
    pub turn: watch::Receiver<bool>,
    /// Where the connection's next fetch begins.
    pub cursor: Arc<Mutex<FetchCursor>>,
    /// What was read for the connection's next fetch.
    pub ahead: Arc<ReadAhead>,
}

impl Caller {
    /// Waits until every answer before this request's has been written.
    async fn turn(&self) {
        // An error means that the connection is gone, and so is who would read an answer.
        let _ = self.turn.clone().wait_for(|turn| *turn).await;
    }
}

/// An answer, and the memory that it may hold until it is written.
#[derive(Debug)]
pub struct Answer {
    /// The response's body.
    pub body: ResponseBody,
    /// The part of the fetch memory that its batches take.
    pub memory: Held,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Begun<F: FileSystem> {
    /// A produce request whose batches are queued.
    Produce(Produced<F>),
    /// Any other request, with nothing done yet.
    Later(Box<Request>, Held),
}

/// Does the part of a request that has to be done in the order of arrival: queueing the batches of a
/// produce request. It waits only while a partition's queue is full.
///
/// `memory` is the request's part of the node's; it is given back once the request is executed,
/// however long its answer waits for those before it.
pub async fn begin<F: FileSystem>(broker: &Broker<F>, request: Request, memory: Held) -> Begun<F> {
    match request.body {
        RequestBody::Produce(produce) => {
            Begun::Produce(produce::begin(broker, request.version, produce, memory).await)
        }
        body => Begun::Later(Box::new(Request { body, ..request }), memory),
    }
}

/// Does all of a request that has no order to keep.
pub async fn finish<F: FileSystem>(
    broker: &Broker<F>,
    caller: &Caller,
    request: Request,
) -> Answer {
    let version = request.version;
    let body = match request.body {
        RequestBody::Fetch(body) => return fetch::handle(broker, caller, version, body).await,
        RequestBody::Produce(body) => {
            let produced = produce::begin(broker, version, body, Held::nothing()).await;
            ResponseBody::Produce(produced.finish().await.response)
        }
        RequestBody::ListOffsets(body) => {
            ResponseBody::ListOffsets(list_offsets::handle(broker, version, body).await)
        }
        RequestBody::Metadata(body) => {
            ResponseBody::Metadata(metadata::handle(broker, version, body).await)
        }
        RequestBody::FindCoordinator(body) => {
            ResponseBody::FindCoordinator(find_coordinator::handle(version, body))
        }
        RequestBody::ApiVersions(body) => {
            ResponseBody::ApiVersions(api_versions::handle(version, &body))
        }
        RequestBody::CreateTopics(body) => {
            ResponseBody::CreateTopics(create_topics::handle(broker, body).await)
        }
        RequestBody::DeleteTopics(body) => {
            ResponseBody::DeleteTopics(delete_topics::handle(broker, version, body).await)
        }
        RequestBody::DeleteRecords(body) => {
            ResponseBody::DeleteRecords(delete_records::handle(broker, body).await)
        }
        RequestBody::InitProducerId(body) => {
            ResponseBody::InitProducerId(init_producer_id::handle(broker, &body).await)
        }
        RequestBody::DescribeConfigs(body) => {
            ResponseBody::DescribeConfigs(describe_configs::handle(broker, body))
        }
        RequestBody::DescribeCluster(body) => {
            ResponseBody::DescribeCluster(describe_cluster::handle(broker, &body))
        }
        RequestBody::DescribeRolls(body) => {
            // A short request with a long answer: a connection has one of them in memory at a time.
            caller.turn().await;
            ResponseBody::DescribeRolls(describe_rolls::handle(broker, &body).await)
        }
    };
    Answer {
        body,
        memory: Held::nothing(),
    }
}

/// A text of ours on the wire.
fn text(text: impl Display) -> StrBytes {
    StrBytes::from_string(format!("{text}"))
}

/// An offset on the wire. It has 63 bits there, and no log reaches beyond.
fn wire_offset(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

/// The leader epoch on the wire.
const fn wire_epoch() -> i32 {
    LEADER_EPOCH.cast_signed()
}

/// The error for a partition that can't be read.
fn unavailable(why: &Unavailable) -> ResponseError {
    match why {
        Unavailable::Failed(_) => ResponseError::KafkaStorageError,
        // The topic was deleted, or the broker stops: the client has to ask again who leads it.
        Unavailable::Closed => ResponseError::NotLeaderOrFollower,
    }
}

/// Checks the leader epoch that a client believes in; −1 for none (KIP-320).
fn check_leader_epoch(believed: i32) -> Result<(), ResponseError> {
    match believed {
        -1 => Ok(()),
        older if older < wire_epoch() => Err(ResponseError::FencedLeaderEpoch),
        newer if newer > wire_epoch() => Err(ResponseError::UnknownLeaderEpoch),
        _ => Ok(()),
    }
}
