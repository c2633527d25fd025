//! `Fetch`: batches out, as they were stored.
//!
//! A fetch reads what there is. If that is less than the client asked for at least, it gives the
//! bytes back, waits for appends to the partitions it names, and reads again once there is enough
//! or its time is over: while it waits it holds no memory.

mod ahead;
mod read;
mod request;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kafka_protocol::messages::FetchRequest;
use sq_sim::{FileSystem, Instant};
use tokio::sync::Notify;

use super::{Answer, Caller};
use crate::broker::Broker;
use crate::budget::Held;
use crate::partition::Partition;
use crate::protocol::{FetchResponse, FetchedPartition, FetchedTopic, ResponseBody, ResponseError};

use read::Pass;
use request::{Fetch, Wanted};

pub use ahead::ReadAhead;
pub use request::FetchCursor;

/// The session epochs that ask for everything: with a new session, and with none (KIP-227).
const NEW_SESSION: i32 = 0;
const NO_SESSION: i32 = -1;

pub(super) async fn handle<F: FileSystem>(
    broker: &Broker<F>,
    caller: &Caller,
    version: i16,
    request: FetchRequest,
) -> Answer {
    if !matches!(request.session_epoch, NEW_SESSION | NO_SESSION) {
        // No session is ever opened, so this one is not known. The client then asks for everything.
        let error_code = ResponseError::FetchSessionIdNotFound.code();
        let body = ResponseBody::Fetch(FetchResponse {
            error_code,
            ..FetchResponse::default()
        });
        return Answer {
            body,
            memory: Held::nothing(),
        };
    }
    let fetch = Fetch::new(broker, version, request);
    let deadline = broker.clock.now() + fetch.max_wait;
    // Fetches behind one that waits for data held all of the node's fetch memory for as long as that
    // one waited: nothing is read before the answer can be sent.
    caller.turn().await;
    let pass = serve(broker, caller, &fetch, deadline).await;
    let (topics, memory) = respond(fetch, pass);
    let response = FetchResponse {
        topics,
        ..FetchResponse::default()
    };
    Answer {
        body: ResponseBody::Fetch(response),
        memory,
    }
}

/// Reads until there is enough, something is wrong, or the time is over.
async fn serve<F: FileSystem>(
    broker: &Broker<F>,
    caller: &Caller,
    fetch: &Fetch<F>,
    deadline: Instant,
) -> Pass {
    let first = pass(broker, caller, fetch, deadline).await;
    if is_enough(fetch, &first) {
        return first;
    }
    let seen = first.seen;
    let mut bytes = first.bytes;
    drop(first.memory);
    drop(first.outcomes);

    let waiter = Arc::new(Notify::new());
    let partitions = || fetch.wanted.iter().filter_map(Wanted::partition);
    let _guards: Vec<_> = partitions().map(|p| p.wake_on_append(&waiter)).collect();
    let mut hurry = caller.hurry.clone();
    let mut timer = std::pin::pin!(sleep_until(broker, deadline));
    let mut last = seen;
    loop {
        // Appends between the pass before and the registration are seen here, not slept through.
        let appended: u64 = partitions()
            .map(Partition::appended_bytes)
            .fold(0, u64::wrapping_add);
        let closed = partitions().any(Partition::is_unavailable);
        let new = usize::try_from(appended.wrapping_sub(last)).unwrap_or(usize::MAX);
        if closed || (new > 0 && bytes.saturating_add(new) >= fetch.min_bytes) {
            let again = pass(broker, caller, fetch, deadline).await;
            if is_enough(fetch, &again) {
                return again;
            }
            (bytes, last) = (again.bytes, again.seen);
            continue;
        }
        tokio::select! {
            biased;
            () = waiter.notified() => {}
            () = &mut timer => break,
            // An error means that the connection is gone, and so is who waits.
            _ = hurry.wait_for(|hurry| *hurry) => break,
        }
    }
    pass(broker, caller, fetch, deadline).await
}

fn is_enough<F: FileSystem>(fetch: &Fetch<F>, pass: &Pass) -> bool {
    pass.failed
        || fetch.wanted.is_empty()
        || fetch.max_wait.is_zero()
        || pass.bytes >= fetch.min_bytes
}

/// Reads once, beginning where the connection's last fetch had no room left.
async fn pass<F: FileSystem>(
    broker: &Broker<F>,
    caller: &Caller,
    fetch: &Fetch<F>,
    deadline: Instant,
) -> Pass {
    let cursor = || caller.cursor.lock().unwrap_or_else(PoisonError::into_inner);
    let start = fetch.start_at(&cursor());
    let pass = Pass::run(broker, &caller.ahead, fetch, start, deadline).await;
    if let Some(at) = pass.no_room_at {
        *cursor() = fetch.cursor(at);
    }
    pass
}

async fn sleep_until<F: FileSystem>(broker: &Broker<F>, deadline: Instant) {
    let left = deadline.saturating_duration_since(broker.clock.now());
    broker.clock.sleep(left.max(Duration::from_millis(1))).await;
}

/// The response's topics, in the request's order.
fn respond<F: FileSystem>(fetch: Fetch<F>, pass: Pass) -> (Vec<FetchedTopic>, Held) {
    let mut topics: Vec<FetchedTopic> = fetch
        .topics
        .into_iter()
        .map(|(name, topic_id)| FetchedTopic {
            name,
            topic_id,
            partitions: Vec::new(),
        })
        .collect();
    for (wanted, outcome) in fetch.wanted.iter().zip(pass.outcomes) {
        let index = wanted.partition_index;
        let partition = match outcome {
            Ok(read) => FetchedPartition {
                partition_index: index,
                error_code: 0,
                high_watermark: read.end,
                last_stable_offset: read.end,
                log_start_offset: read.start,
                records: read.records,
            },
            Err(error) => FetchedPartition {
                partition_index: index,
                error_code: error.code(),
                high_watermark: -1,
                last_stable_offset: -1,
                log_start_offset: -1,
                records: Vec::new(),
            },
        };
        if let Some(topic) = topics.get_mut(wanted.topic) {
            topic.partitions.push(partition);
        }
    }
    (topics, pass.memory)
}
