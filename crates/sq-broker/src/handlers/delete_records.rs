//! `DeleteRecords`: a partition begins where the client says (KIP-107).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::delete_records_request::DeleteRecordsTopic;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{
    DeleteRecordsRequest, DeleteRecordsResponse, TopicName as WireName,
};
use sq_sim::FileSystem;
use tokio::task::JoinSet;

use super::{unavailable, wire_offset};
use crate::broker::Broker;
use crate::partition::{DeleteError, DeleteTo};
use crate::protocol::ResponseError;
use crate::topics::{Topic, TopicMap};

/// The offset that stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// The low watermark where there is an error.
const NO_WATERMARK: i64 = -1;

/// How long it may take if the request says 0 or less: Kafka does then wait for no replica, and for its
/// own log all the same.
const PATIENCE: Duration = Duration::from_secs(30);

/// Kafka's own topics, as its `Topic.isInternal` has them: nobody's records are deleted there.
const INTERNAL: [&str; 3] = [
    "__consumer_offsets",
    "__share_group_state",
    "__transaction_state",
];

/// The partition's low watermark, which is where its log begins.
type Outcome = Result<u64, ResponseError>;

pub(super) async fn handle<F: FileSystem>(
    broker: &Broker<F>,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let patience = u64::try_from(request.timeout_ms)
        .ok()
        .filter(|ms| *ms > 0)
        .map_or(PATIENCE, Duration::from_millis);
    // Of a partition that is there twice the last offset counts, as in Kafka.
    let mut asked = BTreeMap::new();
    for DeleteRecordsTopic {
        name, partitions, ..
    } in request.topics
    {
        for partition in partitions {
            asked.insert((name.clone(), partition.partition_index), partition.offset);
        }
    }
    let outcomes = delete_all(broker, &asked, patience).await;
    response(asked.into_keys().zip(outcomes))
}

/// Deletes from all partitions at once. What takes longer than `patience` may still take place.
async fn delete_all<F: FileSystem>(
    broker: &Broker<F>,
    asked: &BTreeMap<(WireName, i32), i64>,
    patience: Duration,
) -> Vec<Outcome> {
    let mut outcomes = vec![Err(ResponseError::RequestTimedOut); asked.len()];
    let mut deleting = JoinSet::new();
    let current = broker.topics.current();
    let slots = outcomes.iter_mut().enumerate();
    for ((n, outcome), ((name, index), offset)) in slots.zip(asked) {
        match find(&current, name, *index, *offset) {
            Ok((topic, to)) => {
                let index = *index;
                deleting.spawn(async move { (n, delete(&topic, index, to).await) });
            }
            Err(error) => *outcome = Err(error),
        }
    }
    let collected = async {
        while let Some(deleted) = deleting.join_next().await {
            // An error means that it panicked, and nobody knows what came of it.
            if let Ok((n, deleted)) = deleted
                && let Some(outcome) = outcomes.get_mut(n)
            {
                *outcome = deleted;
            }
        }
    };
    tokio::select! {
        biased;
        () = collected => {}
        () = broker.clock.sleep(patience) => {}
    }
    outcomes
}

/// The topic that has the partition, and up to where its records are to be deleted.
fn find<F: FileSystem>(
    topics: &TopicMap<F>,
    name: &WireName,
    index: i32,
    offset: i64,
) -> Result<(Arc<Topic<F>>, DeleteTo), ResponseError> {
    let topic = topics
        .by_name(name)
        .filter(|topic| topic.partition(index).is_some())
        .ok_or(ResponseError::UnknownTopicOrPartition)?;
    if INTERNAL.contains(&name.as_str()) {
        return Err(ResponseError::InvalidTopicException);
    }
    let to = match offset {
        HIGH_WATERMARK => DeleteTo::End,
        offset => {
            let offset = u64::try_from(offset).map_err(|_| ResponseError::OffsetOutOfRange)?;
            DeleteTo::Offset(offset)
        }
    };
    Ok((Arc::clone(topic), to))
}

async fn delete<F: FileSystem>(topic: &Topic<F>, index: i32, to: DeleteTo) -> Outcome {
    let partition = topic.partition(index);
    let partition = partition.ok_or(ResponseError::UnknownTopicOrPartition)?;
    let deleted = partition.delete_records(to).await;
    deleted.map_err(|error| match error {
        DeleteError::BeyondEnd { .. } => ResponseError::OffsetOutOfRange,
        DeleteError::Storage(_) => ResponseError::KafkaStorageError,
        DeleteError::Unavailable(why) => unavailable(&why),
    })
}

fn response(outcomes: impl Iterator<Item = ((WireName, i32), Outcome)>) -> DeleteRecordsResponse {
    let mut topics: Vec<DeleteRecordsTopicResult> = Vec::new();
    for ((name, index), outcome) in outcomes {
        let result = DeleteRecordsPartitionResult::default().with_partition_index(index);
        let result = match outcome {
            Ok(start) => result.with_low_watermark(wire_offset(start)),
            Err(error) => result
                .with_error_code(error.code())
                .with_low_watermark(NO_WATERMARK),
        };
        match topics.last_mut() {
            Some(topic) if topic.name == name => topic.partitions.push(result),
            _ => topics.push(
                DeleteRecordsTopicResult::default()
                    .with_name(name)
                    .with_partitions(vec![result]),
            ),
        }
    }
    DeleteRecordsResponse::default().with_topics(topics)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::delete_records_request::DeleteRecordsPartition;
    use sq_sim::{Fault, InMemoryFileSystem, Keep, OpKind, PathPattern, VirtualClock};

    use super::super::text;
    use super::*;
    use crate::batch::BatchHeader;
    use crate::config::TopicOverrides;
    use crate::partition::NewBatch;
    use crate::testing::{
        DIR, TestBroker, batch, block_on, cut_short_anywhere, in_time, pass, try_start_with,
    };
    use crate::topics::NewTopic;

    type Fs = InMemoryFileSystem;

    /// A machine with a clock, whose disk can be slow.
    async fn machine(seed: u64) -> (Fs, VirtualClock) {
        let clock = VirtualClock::new();
        let fs = Fs::with_clock(seed, Arc::new(clock.clone()));
        fs.create_dir_all(DIR.as_ref()).await.unwrap();
        fs.sync_dir("/".as_ref()).await.unwrap();
        (fs, clock)
    }

    /// A broker whose segments hold four batches or so.
    async fn start(fs: &Fs, clock: &VirtualClock, seed: u64) -> TestBroker {
        let started = try_start_with(fs, seed, Arc::new(clock.clone()), |config| {
            config.topic.segment_bytes = 2_048;
            config.topic.retention_ms = None;
            config.roll.longest_wait = Duration::from_secs(5);
        });
        in_time(clock, Box::pin(started)).await.unwrap()
    }

    async fn create(broker: &TestBroker) -> Arc<Topic<Fs>> {
        let topic = NewTopic {
            name: sq_storage::TopicName::new("t").unwrap(),
            partitions: 1,
            overrides: TopicOverrides::default(),
        };
        broker.topics.create(topic).await.unwrap()
    }

    async fn append(clock: &VirtualClock, broker: &TestBroker) -> Option<u64> {
        let current = broker.topics.current();
        let partition = current.by_name("t")?.partition(0)?;
        let bytes = batch(None, 1, 400);
        let header = BatchHeader::parse(&bytes)?;
        let appended = async {
            let pending = partition.enqueue(NewBatch::new(bytes, &header)).await;
            pending.ok()?.outcome().await.ok()
        };
        in_time(clock, appended).await.map(|done| done.base_offset)
    }

    /// What is answered to who deletes: the error code and the low watermark.
    async fn delete(
        clock: &VirtualClock,
        broker: &TestBroker,
        timeout_ms: i32,
        offset: i64,
    ) -> (i16, i64) {
        let partition = DeleteRecordsPartition::default().with_offset(offset);
        let topic = DeleteRecordsTopic::default()
            .with_name(WireName(text("t")))
            .with_partitions(vec![partition]);
        let request = DeleteRecordsRequest::default()
            .with_timeout_ms(timeout_ms)
            .with_topics(vec![topic]);
        let response = in_time(clock, handle(broker, request)).await;
        let partition = &response.topics[0].partitions[0];
        (partition.error_code, partition.low_watermark)
    }

    async fn offsets(clock: &VirtualClock, broker: &TestBroker) -> (u64, u64) {
        let current = broker.topics.current();
        let partition = current.by_name("t").unwrap().partition(0).unwrap();
        let reader = in_time(clock, partition.reader()).await.unwrap();
        (reader.start_offset(), reader.end_offset())
    }

    #[test]
    fn what_is_answered_holds_whatever_crashes() {
        block_on(cut_short_anywhere(async |stop, at| {
            let (fs, clock) = machine(at).await;
            let broker = start(&fs, &clock, 1).await;
            create(&broker).await;
            let mut stored = 0;
            while stored < 10 {
                assert_eq!(append(&clock, &broker).await, Some(stored));
                stored += 1;
            }
            fs.crash_after(at);
            // Within the first segment, some of them, nothing, all of it, and behind what comes then.
            let mut told = 0;
            for offset in [1, 6, 5, HIGH_WATERMARK, HIGH_WATERMARK] {
                let (error, start) = delete(&clock, &broker, 30_000, offset).await;
                if error != 0 {
                    assert_eq!(error, ResponseError::KafkaStorageError.code());
                    break;
                }
                told = u64::try_from(start).unwrap();
                if offset == HIGH_WATERMARK && append(&clock, &broker).await.is_some() {
                    stored += 1;
                }
            }
            let crashed = fs.is_crashed();
            drop(broker);
            stop.strike(&fs);

            let broker = start(&fs, &clock, 2).await;
            let (start, end) = offsets(&clock, &broker).await;
            let context = format!("{stop:?} at {at}: {start}..{end}, told {told}, stored {stored}");
            assert!((told..=told.max(11)).contains(&start), "{context}");
            assert!([0, 1, 6, 10, 11].contains(&start), "{context}");
            assert!((stored..=stored + 1).contains(&end), "{context}");
            // It goes on, from segment to segment, and once more all of it goes.
            for n in 0..6 {
                assert_eq!(append(&clock, &broker).await, Some(end + n), "{context}");
            }
            let last = i64::try_from(end).unwrap() + 6;
            let emptied = delete(&clock, &broker, 30_000, HIGH_WATERMARK).await;
            assert_eq!(emptied, (0, last), "{context}");
            broker.close().await;
            crashed
        }));
    }

    #[test]
    fn a_deletion_that_takes_too_long_is_answered_in_time_and_takes_place() {
        block_on(async {
            let (fs, clock) = machine(1).await;
            let broker = start(&fs, &clock, 1).await;
            create(&broker).await;
            for _ in 0..3 {
                append(&clock, &broker).await.unwrap();
            }
            pass(&clock, Duration::from_secs(2)).await;
            let slow = Fault::delay(Duration::from_secs(20)).on(&[OpKind::Rename]);
            fs.inject(slow.path(PathPattern::Under("/data/t".into())));
            let timed_out = (ResponseError::RequestTimedOut.code(), -1);
            let before = clock.elapsed();
            assert_eq!(delete(&clock, &broker, 2_000, 1).await, timed_out);
            assert!(clock.elapsed() < before + Duration::from_secs(4));
            // Who asks meanwhile waits for its turn, and is forgotten with its time.
            for offset in [2, HIGH_WATERMARK] {
                assert_eq!(delete(&clock, &broker, 1_000, offset).await, timed_out);
            }
            pass(&clock, Duration::from_secs(30)).await;
            assert_eq!(offsets(&clock, &broker).await, (1, 3));
            // Without a time it is waited for, as long as it takes to write down.
            for timeout_ms in [0, -1] {
                let deleted = delete(&clock, &broker, timeout_ms, 2).await;
                assert_eq!(deleted, (0, 2));
            }
            drop(broker);
            fs.power_loss(Keep::None);
            let broker = start(&fs, &clock, 2).await;
            assert_eq!(offsets(&clock, &broker).await, (2, 3));
        });
    }
}
