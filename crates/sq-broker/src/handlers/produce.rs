//! `Produce`: batches in.
//!
//! It has two halves. [`begin`] validates and queues every batch, and is called in the order in
//! which requests arrive: so batches of one connection are stored in the order in which they were
//! sent. [`Produced::finish`] waits for what became of them.

use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TopicName as WireName};
use sq_sim::FileSystem;

use super::{text, wire_offset};
use crate::batch::validate_produced;
use crate::broker::Broker;
use crate::budget::Held;
use crate::partition::{AppendError, Appended, NewBatch, PendingAppend};
use crate::protocol::ResponseError;
use crate::topics::Topic;

/// No acknowledgement: the response is left out.
const ACKS_NONE: i16 = 0;

/// How many times its own size a batch may keep in memory for as long as the log's tail is kept.
const MOST_PINNED: usize = 4;

/// An offset or a time that there is not.
const NONE: i64 = -1;

/// A produce request whose batches are queued.
#[derive(Debug)]
pub struct Produced<F: FileSystem> {
    topics: Vec<(WireName, Partitions<F>)>,
    silent: bool,
}

type Refusal = (ResponseError, String);
type Queued<F> = Result<PendingAppend<F>, Refusal>;
/// Partitions' numbers, and what became of their batches.
type Partitions<F> = Vec<(i32, Queued<F>)>;

/// What became of a produce request.
#[derive(Debug)]
pub struct Outcome {
    /// The response, to be sent unless the client wants none.
    pub response: ProduceResponse,
    /// Set if the client wants no response and not all is well: the connection is to be closed, as
    /// the only way to tell.
    pub silent_failure: Option<ProduceFailed>,
}

/// Why a partition's batch was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{topic}/{partition}: {reason}")]
pub struct ProduceFailed {
    /// The topic that was named.
    pub topic: String,
    /// The partition that was named.
    pub partition: i32,
    /// Why.
    pub reason: String,
}

pub(super) async fn begin<F: FileSystem>(
    broker: &Broker<F>,
    version: i16,
    request: ProduceRequest,
    memory: Held,
) -> Produced<F> {
    let memory = Arc::new(memory);
    let refusal = refusal_of_all(&request);
    let current = broker.topics.current();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for TopicProduceData {
        name,
        partition_data,
        ..
    } in request.topic_data
    {
        let topic = current.by_name(&name);
        let mut partitions = Vec::with_capacity(partition_data.len());
        for data in partition_data {
            let index = data.index;
            let queued = match &refusal {
                Some(refusal) => Err(refusal.clone()),
                None => queue(topic.map(|topic| &**topic), version, data, &memory).await,
            };
            partitions.push((index, queued));
        }
        // The name is a part of the request's buffer, and would keep all of it.
        topics.push((WireName(text(name.as_str())), partitions));
    }
    Produced {
        topics,
        silent: request.acks == ACKS_NONE,
    }
}

/// What refuses a request as a whole.
fn refusal_of_all(request: &ProduceRequest) -> Option<Refusal> {
    if request.transactional_id.is_some() {
        let message = "transactions are not supported".to_owned();
        return Some((ResponseError::TransactionalIdAuthorizationFailed, message));
    }
    // One broker is the leader and all of its replicas: 1 and "all" ask for the same.
    (!matches!(request.acks, -1..=1)).then(|| {
        let message = format!("acks {}: there are 0, 1 and -1 for all", request.acks);
        (ResponseError::InvalidRequiredAcks, message)
    })
}

async fn queue<F: FileSystem>(
    topic: Option<&Topic<F>>,
    version: i16,
    data: PartitionProduceData,
    memory: &Arc<Held>,
) -> Queued<F> {
    let unknown = || {
        (
            ResponseError::UnknownTopicOrPartition,
            "no such topic or partition".to_owned(),
        )
    };
    let topic = topic.ok_or_else(unknown)?;
    let partition = topic.partition(data.index).ok_or_else(unknown)?;
    let records = data.records.unwrap_or_default();
    let most = topic.config.max_message_bytes as usize;
    let header = validate_produced(&records, most, version)
        .map_err(|error| (error.response(), error.to_string()))?;
    let records = detached(records, memory.bytes());
    partition
        .enqueue(NewBatch::new(records, &header).holding(memory))
        .await
        .map_err(|e| refused(&e))
}

/// A batch, in a buffer of its own where it is a small part of its request: the log's tail is kept in
/// memory, and would keep all of the request with it.
fn detached(records: Bytes, request_bytes: usize) -> Bytes {
    if records.len() < request_bytes / MOST_PINNED {
        Bytes::copy_from_slice(&records)
    } else {
        records
    }
}

impl<F: FileSystem> Produced<F> {
    /// Whether the client wants no response.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// Waits for every batch.
    pub async fn finish(self) -> Outcome {
        let mut silent_failure = None;
        let mut responses = Vec::with_capacity(self.topics.len());
        for (name, partitions) in self.topics {
            let mut partition_responses = Vec::with_capacity(partitions.len());
            for (index, queued) in partitions {
                let outcome = match queued {
                    Ok(pending) => pending.outcome().await.map_err(|e| refused(&e)),
                    Err(refusal) => Err(refusal),
                };
                if let (true, Err((_, reason))) = (self.silent, &outcome) {
                    silent_failure.get_or_insert_with(|| ProduceFailed {
                        topic: name.to_string(),
                        partition: index,
                        reason: reason.clone(),
                    });
                }
                partition_responses.push(response(index, outcome));
            }
            responses.push(
                TopicProduceResponse::default()
                    .with_name(name)
                    .with_partition_responses(partition_responses),
            );
        }
        let response = ProduceResponse::default().with_responses(responses);
        Outcome {
            response,
            silent_failure,
        }
    }
}

fn response(index: i32, outcome: Result<Appended, Refusal>) -> PartitionProduceResponse {
    let response = PartitionProduceResponse::default()
        .with_index(index)
        .with_log_append_time_ms(NONE);
    match outcome {
        Ok(Appended {
            base_offset,
            log_start_offset,
        }) => response
            .with_base_offset(wire_offset(base_offset))
            .with_log_start_offset(wire_offset(log_start_offset)),
        Err((error, message)) => response
            .with_error_code(error.code())
            .with_error_message(Some(text(message)))
            .with_base_offset(NONE)
            .with_log_start_offset(NONE),
    }
}

fn refused(error: &AppendError) -> Refusal {
    let code = match error {
        AppendError::OutOfOrder { .. } => ResponseError::OutOfOrderSequenceNumber,
        AppendError::StaleEpoch { .. } => ResponseError::InvalidProducerEpoch,
        // Of Kafka's retriable errors the one that says that nothing was stored, and neither that a disk is
        // broken nor that another may lead the partition by now: clients try again after their pause, and
        // ask for no metadata, which is what may be slow.
        AppendError::NoSegment(_) => ResponseError::NotEnoughReplicas,
        AppendError::Storage(_) | AppendError::Unavailable(_) => ResponseError::KafkaStorageError,
        // The topic was deleted, or the broker stops: either way the client has to ask again who
        // leads the partition.
        AppendError::Closed => ResponseError::NotLeaderOrFollower,
    };
    (code, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sq_sim::{Effect, Errno, Fault, InMemoryFileSystem, OpKind, PathPattern, VirtualClock};

    use super::*;
    use crate::config::TopicOverrides;
    use crate::testing::{self, batch, block_on, disk, in_time, pass};
    use crate::topics::NewTopic;

    /// Produces a batch of about a fifth of a segment, while time goes by.
    async fn produce(
        broker: &Broker<InMemoryFileSystem>,
        clock: &VirtualClock,
        sequence: i32,
    ) -> PartitionProduceResponse {
        let data = PartitionProduceData::default().with_records(Some(batch(
            Some((7, 0, sequence)),
            1,
            400,
        )));
        let topic = TopicProduceData::default()
            .with_name(WireName(text("t")))
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default()
            .with_acks(-1)
            .with_topic_data(vec![topic]);
        let produced = begin(broker, 9, request, Held::nothing()).await;
        let outcome = in_time(clock, produced.finish()).await;
        outcome.response.responses[0].partition_responses[0].clone()
    }

    #[test]
    fn where_there_is_no_next_segment_in_time_a_producer_is_told_that_nothing_was_stored() {
        block_on(async {
            let (fs, clock) = (disk(1).await, VirtualClock::new());
            let small = |config: &mut crate::config::Config| config.topic.segment_bytes = 2_048;
            let broker = testing::broker(&fs, &clock, small).await;
            let topic = NewTopic {
                name: sq_storage::TopicName::new("t").unwrap(),
                partitions: 1,
                overrides: TopicOverrides::default(),
            };
            broker.topics.create(topic).await.unwrap();
            let mut stored = 0;
            for until in [4, 8] {
                while stored < until {
                    let response = produce(&broker, &clock, stored).await;
                    assert_eq!(response.error_code, 0, "{:?}", response.error_message);
                    assert_eq!(response.base_offset, i64::from(stored));
                    stored += 1;
                }
                // No file can be made for the next segment.
                let no_file = Fault::new(Effect::Fail(Errno::TooManyOpenFiles));
                let no_file = no_file.on(&[OpKind::CreateNew]).always();
                let successors = PathPattern::Contains(".prepared".to_owned());
                fs.inject(no_file.path(successors));
                let refused = loop {
                    let response = produce(&broker, &clock, stored).await;
                    if response.error_code != 0 {
                        break response;
                    }
                    assert_eq!(response.base_offset, i64::from(stored));
                    stored += 1;
                    assert!(stored < 100, "the segment is bounded");
                };
                assert_eq!(refused.error_code, ResponseError::NotEnoughReplicas.code());
                assert!(ResponseError::NotEnoughReplicas.is_retriable());
                assert_eq!(
                    (refused.base_offset, refused.log_start_offset),
                    (NONE, NONE)
                );
                let current = broker.topics.current();
                let partition = current.by_name("t").unwrap().partition(0).unwrap();
                let end = partition.reader().await.unwrap().end_offset();
                assert_eq!(end, u64::from(stored.cast_unsigned()), "nothing was stored");
                fs.clear_faults();
                // A successor can be made now, once that is tried again.
                pass(&clock, Duration::from_secs(10)).await;
            }
            // The same batch again is the next one.
            let response = produce(&broker, &clock, stored).await;
            assert_eq!(
                (response.error_code, response.base_offset),
                (0, i64::from(stored))
            );
        });
    }

    #[test]
    fn a_batch_keeps_no_more_than_four_times_its_size() {
        // The tail in memory held one small batch of each large request, and all of the request with it.
        let request = Bytes::from(vec![7; 4_000]);
        let (small, large) = (request.slice(10..1_009), request.slice(10..1_010));
        assert_eq!(detached(small.clone(), request.len()), small);
        assert_ne!(
            detached(small.clone(), request.len()).as_ptr(),
            small.as_ptr()
        );
        assert_eq!(
            detached(large.clone(), request.len()).as_ptr(),
            large.as_ptr()
        );
    }
}
