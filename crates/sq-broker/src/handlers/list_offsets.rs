//! `ListOffsets`: the first and the last offset, and the first at or after a time (KIP-79).

use std::time::Duration;

use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
use sq_sim::FileSystem;
use sq_storage::{LogReader, ReadError, StoredFrame};

use super::{check_leader_epoch, unavailable, wire_epoch, wire_offset};
use crate::batch::lookup_timestamp;
use crate::broker::Broker;
use crate::partition::Partition;
use crate::protocol::ResponseError;

/// Times that stand for something else.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const GREATEST_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

/// How long a partition that is still being opened is waited for if the request does not say.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much of the log is read at a time past a batch whose header promised a time that none of its
/// records has, in bytes.
const SEARCH_BYTES: usize = 1 << 20;

/// An answer: an offset, the time of its record if it was asked for by time, and its leader epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    offset: i64,
    timestamp: i64,
    leader_epoch: i32,
}

impl Found {
    /// No record matches. No error: clients count on exactly this.
    const NOTHING: Self = Self {
        offset: -1,
        timestamp: -1,
        leader_epoch: -1,
    };

    fn at(offset: u64) -> Self {
        Self {
            offset: wire_offset(offset),
            timestamp: -1,
            leader_epoch: wire_epoch(),
        }
    }
}

pub(super) async fn handle<F: FileSystem>(
    broker: &Broker<F>,
    version: i16,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let patience = u64::try_from(request.timeout_ms)
        .ok()
        .filter(|ms| *ms > 0)
        .map_or(PATIENCE, Duration::from_millis);
    let work = answer_all(broker, version, request.topics.clone());
    let topics = tokio::select! {
        biased;
        topics = work => topics,
        () = broker.clock.sleep(patience) => refuse_all(request.topics),
    };
    ListOffsetsResponse::default().with_topics(topics)
}

async fn answer_all<F: FileSystem>(
    broker: &Broker<F>,
    version: i16,
    asked: Vec<ListOffsetsTopic>,
) -> Vec<ListOffsetsTopicResponse> {
    let current = broker.topics.current();
    let mut topics = Vec::with_capacity(asked.len());
    for ListOffsetsTopic {
        name, partitions, ..
    } in asked
    {
        let topic = current.by_name(&name);
        let mut responses = Vec::with_capacity(partitions.len());
        for asked in partitions {
            let outcome = match topic.and_then(|topic| topic.partition(asked.partition_index)) {
                Some(partition) => answer(broker, partition, version, &asked).await,
                None => Err(ResponseError::UnknownTopicOrPartition),
            };
            responses.push(response(asked.partition_index, outcome));
        }
        topics.push(
            ListOffsetsTopicResponse::default()
                .with_name(name)
                .with_partitions(responses),
        );
    }
    topics
}

fn refuse_all(asked: Vec<ListOffsetsTopic>) -> Vec<ListOffsetsTopicResponse> {
    let refuse = |asked: ListOffsetsPartition| {
        response(asked.partition_index, Err(ResponseError::RequestTimedOut))
    };
    let topic = |topic: ListOffsetsTopic| {
        ListOffsetsTopicResponse::default()
            .with_name(topic.name)
            .with_partitions(topic.partitions.into_iter().map(refuse).collect())
    };
    asked.into_iter().map(topic).collect()
}

fn response(index: i32, outcome: Result<Found, ResponseError>) -> ListOffsetsPartitionResponse {
    let response = ListOffsetsPartitionResponse::default().with_partition_index(index);
    let (error_code, found) = match outcome {
        Ok(found) => (0, found),
        Err(error) => (error.code(), Found::NOTHING),
    };
    response
        .with_error_code(error_code)
        .with_offset(found.offset)
        .with_timestamp(found.timestamp)
        .with_leader_epoch(found.leader_epoch)
}

async fn answer<F: FileSystem>(
    broker: &Broker<F>,
    partition: &Partition<F>,
    version: i16,
    asked: &ListOffsetsPartition,
) -> Result<Found, ResponseError> {
    check_leader_epoch(asked.current_leader_epoch)?;
    if !is_known(asked.timestamp, version) {
        return Err(ResponseError::UnsupportedVersion);
    }
    let reader = partition.reader().await.map_err(|why| unavailable(&why))?;
    let by_time = match asked.timestamp {
        LATEST => return Ok(Found::at(reader.end_offset())),
        EARLIEST | EARLIEST_LOCAL => return Ok(Found::at(reader.start_offset())),
        LATEST_TIERED => return Ok(Found::NOTHING),
        GREATEST_TIMESTAMP => greatest(broker, &reader).await,
        timestamp => first_since(broker, &reader, timestamp).await,
    };
    by_time.map_err(|error| {
        tracing::error!(id = %partition.id(), timestamp = asked.timestamp, %error, "lookup by time failed");
        match error {
            ReadError::Damaged(_) => ResponseError::CorruptMessage,
            _ => ResponseError::KafkaStorageError,
        }
    })
}

/// Whether a time means something in this version of the request (KIP-734, KIP-405, KIP-1005).
fn is_known(timestamp: i64, version: i16) -> bool {
    match timestamp {
        LATEST | EARLIEST => true,
        GREATEST_TIMESTAMP => version >= 7,
        EARLIEST_LOCAL => version >= 8,
        LATEST_TIERED => version >= 9,
        time => time >= 0,
    }
}

/// The first record with the greatest timestamp of all.
async fn greatest<F: FileSystem>(
    broker: &Broker<F>,
    reader: &LogReader<F>,
) -> Result<Found, ReadError> {
    let Some(frame) = reader.find_max_timestamp().await? else {
        return Ok(Found::NOTHING);
    };
    let timestamp = frame.max_timestamp_ms;
    // A batch whose header promises a time that no record has is answered as it promises.
    let last = Found {
        timestamp,
        ..Found::at(frame.end_offset().saturating_sub(1))
    };
    Ok(look_into(broker, reader, &frame, timestamp).unwrap_or(last))
}

/// The first record at or after a time.
async fn first_since<F: FileSystem>(
    broker: &Broker<F>,
    reader: &LogReader<F>,
    timestamp: i64,
) -> Result<Found, ReadError> {
    let Some(frame) = reader.find_by_timestamp(timestamp).await? else {
        return Ok(Found::NOTHING);
    };
    if let Some(found) = look_into(broker, reader, &frame, timestamp) {
        return Ok(found);
    }
    let mut next = frame.end_offset();
    loop {
        let frames = reader.read(next, SEARCH_BYTES).await?;
        let Some(last) = frames.last() else {
            return Ok(Found::NOTHING);
        };
        next = last.end_offset();
        let late_enough = frames
            .iter()
            .filter(|frame| frame.max_timestamp_ms >= timestamp);
        for frame in late_enough {
            if let Some(found) = look_into(broker, reader, frame, timestamp) {
                return Ok(found);
            }
            // A batch of a few kilobytes can take milliseconds to decompress, and a search can meet
            // hundreds of them: others have their turn in between.
            tokio::task::yield_now().await;
        }
    }
}

/// The first record of a batch at or after a time that is not deleted; `None` if there is none, or its
/// records can't be read.
fn look_into<F: FileSystem>(
    broker: &Broker<F>,
    reader: &LogReader<F>,
    frame: &StoredFrame,
    timestamp: i64,
) -> Option<Found> {
    let most = broker.config.limits.max_decompressed_bytes;
    let start = wire_offset(reader.start_offset());
    match lookup_timestamp(&frame.payload.to_bytes(), timestamp, start, most) {
        Ok(hit) => hit.map(|(offset, timestamp)| Found {
            offset,
            timestamp,
            leader_epoch: wire_epoch(),
        }),
        Err(error) => {
            tracing::warn!(offset = frame.base_offset, %error, "a batch's records can't be read");
            None
        }
    }
}
