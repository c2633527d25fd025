//! Records that are deleted, and what everybody sees of it.

use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteTopicsRequest};
use sq_broker::protocol::{Api, ResponseError};

use crate::support::{Batch, Client, LIST_OFFSETS, TestBroker, block_on, code, name};

const EARLIEST: i64 = -2;
const HIGH_WATERMARK: i64 = -1;

/// A request for these partitions and offsets of topics.
fn request(topics: &[(&str, &[(i32, i64)])]) -> DeleteRecordsRequest {
    let partition = |(index, offset): &(i32, i64)| {
        DeleteRecordsPartition::default()
            .with_partition_index(*index)
            .with_offset(*offset)
    };
    let topic = |(topic, partitions): &(&str, &[(i32, i64)])| {
        DeleteRecordsTopic::default()
            .with_name(name(topic))
            .with_partitions(partitions.iter().map(partition).collect())
    };
    DeleteRecordsRequest::default()
        .with_topics(topics.iter().map(topic).collect())
        .with_timeout_ms(30_000)
}

/// What is answered: topic, partition, error code, low watermark.
async fn ask(
    client: &mut Client,
    version: i16,
    request: &DeleteRecordsRequest,
) -> Vec<(String, i32, i16, i64)> {
    let response = client.call(version, request).await;
    assert_eq!(response.throttle_time_ms, 0);
    let topics = response.topics.into_iter();
    let partitions = topics.flat_map(|topic| {
        let name = topic.name.to_string();
        let partitions = topic.partitions.into_iter();
        partitions.map(move |p| {
            (
                name.clone(),
                p.partition_index,
                p.error_code,
                p.low_watermark,
            )
        })
    });
    partitions.collect()
}

/// Deletes from a topic's first partition: the error code and the low watermark.
async fn delete(client: &mut Client, topic: &str, offset: i64) -> (i16, i64) {
    let answered = ask(client, 2, &request(&[(topic, &[(0, offset)])])).await;
    assert_eq!(answered.len(), 1);
    let (name, index, error, watermark) = &answered[0];
    assert_eq!((name.as_str(), *index), (topic, 0));
    (*error, *watermark)
}

async fn earliest(client: &mut Client, topic: &str) -> i64 {
    let found = client.list_offsets(LIST_OFFSETS, topic, EARLIEST).await;
    assert_eq!(found.error_code, 0);
    found.offset
}

/// The log begins at `start` for everybody who asks.
async fn begins_at(client: &mut Client, topic: &str, start: i64) {
    assert_eq!(earliest(client, topic).await, start);
    let end = client.end(topic).await;
    for gone in [0, start / 2, start - 1] {
        if (0..start).contains(&gone) {
            let refused = code(ResponseError::OffsetOutOfRange);
            assert_eq!(client.fetch(topic, gone).await, (refused, vec![]));
        }
    }
    let (error, records) = client.fetch(topic, start).await;
    assert_eq!(error, 0);
    let offsets = records.into_iter().map(|(offset, _)| offset);
    assert!(offsets.filter(|offset| *offset >= start).eq(start..end));
}

#[test]
fn in_every_version_the_log_begins_where_the_client_says() {
    block_on(async {
        for version in Api::DeleteRecords.served() {
            let broker = TestBroker::start().await;
            let mut client = broker.client_with("t").await;
            for _ in 0..4 {
                client.append("t", Batch::of(5).bytes()).await;
            }
            // Within a batch, at its start, and nothing more below that.
            for (offset, start) in [(0, 0), (7, 7), (10, 10), (3, 10), (10, 10)] {
                let answered = ask(&mut client, version, &request(&[("t", &[(0, offset)])])).await;
                assert_eq!(answered, [("t".to_owned(), 0, 0, start)]);
                begins_at(&mut client, "t", start).await;
            }
            broker.stop().await;
        }
    });
}

#[test]
fn what_can_not_be_deleted_is_refused_with_kafkas_codes() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        assert_eq!(client.create("t", 2, &[]).await, 0);
        assert_eq!(client.create("__consumer_offsets", 1, &[]).await, 0);
        client.append("t", Batch::of(5).bytes()).await;
        client
            .append("__consumer_offsets", Batch::of(5).bytes())
            .await;
        let out_of_range = code(ResponseError::OffsetOutOfRange);
        for offset in [6, i64::MAX, -2, i64::MIN] {
            assert_eq!(delete(&mut client, "t", offset).await, (out_of_range, -1));
        }
        let internal = code(ResponseError::InvalidTopicException);
        let refused = delete(&mut client, "__consumer_offsets", 1).await;
        assert_eq!(refused, (internal, -1));
        let unknown = code(ResponseError::UnknownTopicOrPartition);
        let mixed = request(&[
            ("t", &[(0, 2), (1, 0), (2, 0), (-1, 0)]),
            ("missing", &[(0, 0)]),
            ("__transaction_state", &[(0, HIGH_WATERMARK)]),
            ("", &[(0, 0)]),
            ("none", &[]),
        ]);
        let mut answered = ask(&mut client, 1, &mixed).await;
        answered.sort_unstable();
        let of = |topic: &str, partition, error, watermark| {
            (topic.to_owned(), partition, error, watermark)
        };
        assert_eq!(
            answered,
            [
                of("", 0, unknown, -1),
                of("__transaction_state", 0, unknown, -1),
                of("missing", 0, unknown, -1),
                of("t", -1, unknown, -1),
                of("t", 0, 0, 2),
                of("t", 1, 0, 0),
                of("t", 2, unknown, -1),
            ]
        );
        begins_at(&mut client, "t", 2).await;
        assert_eq!(earliest(&mut client, "__consumer_offsets").await, 0);
        broker.stop().await;
    });
}

#[test]
fn of_a_partition_that_is_named_twice_the_last_offset_counts() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(9).bytes()).await;
        let twice = request(&[("t", &[(0, 7), (0, 99), (0, 4)]), ("t", &[(0, 3)])]);
        let answered = ask(&mut client, 0, &twice).await;
        assert_eq!(answered, [("t".to_owned(), 0, 0, 3)]);
        let nothing = ask(&mut client, 2, &request(&[])).await;
        assert_eq!(nothing, []);
        broker.stop().await;
    });
}

#[test]
fn what_was_deleted_stays_so_across_restarts_and_offsets_go_on() {
    block_on(async {
        let mut broker = TestBroker::start().await;
        let mut client = broker.client().await;
        // Several segments, and one that holds all.
        let small = [("segment.bytes", "4096")];
        assert_eq!(client.create("rolled", 1, &small).await, 0);
        assert_eq!(client.create("one", 1, &[]).await, 0);
        for topic in ["rolled", "one"] {
            for _ in 0..12 {
                client.append(topic, Batch::of(1).sized(1000).bytes()).await;
            }
        }
        for start in [5, 11] {
            for topic in ["rolled", "one"] {
                assert_eq!(delete(&mut client, topic, start).await, (0, start));
                begins_at(&mut client, topic, start).await;
            }
            broker = broker.restart().await;
            client = broker.client().await;
            for topic in ["rolled", "one"] {
                begins_at(&mut client, topic, start).await;
            }
        }
        // All of it, and a restart, and on it goes: at the offset that is next.
        for end in [12, 13] {
            for topic in ["rolled", "one"] {
                assert_eq!(delete(&mut client, topic, HIGH_WATERMARK).await, (0, end));
                begins_at(&mut client, topic, end).await;
            }
            broker = broker.restart().await;
            client = broker.client().await;
            for topic in ["rolled", "one"] {
                begins_at(&mut client, topic, end).await;
                assert_eq!(client.append(topic, Batch::of(1).bytes()).await, end);
                begins_at(&mut client, topic, end).await;
            }
        }
        broker.stop().await;
    });
}

#[test]
fn an_idempotent_producer_goes_on_after_what_it_wrote_was_deleted() {
    block_on(async {
        let mut broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        let mut sequence = 0;
        for (all, restarts) in [(false, false), (true, true), (false, true), (true, false)] {
            for _ in 0..3 {
                let batch = Batch::of(2).by(7, 0, sequence);
                let appended = client.append("t", batch.bytes()).await;
                assert_eq!(appended, i64::from(sequence));
                sequence += 2;
            }
            let end = i64::from(sequence);
            // Within the last batch, or behind it.
            let deleted = if all { HIGH_WATERMARK } else { end - 1 };
            assert_eq!(delete(&mut client, "t", deleted).await.0, 0);
            if restarts {
                broker = broker.restart().await;
                client = broker.client().await;
            }
        }
        // While the broker runs a retry is known, although what it retries is gone.
        let batch = Batch::of(2).by(7, 0, sequence);
        let end = client.append("t", batch.bytes()).await;
        assert_eq!(delete(&mut client, "t", HIGH_WATERMARK).await, (0, end + 2));
        assert_eq!(client.append("t", batch.bytes()).await, end);
        broker.stop().await;
    });
}

#[test]
fn a_time_of_what_was_deleted_is_not_found() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        for time in [500, 100, 900, 300] {
            client.append("t", Batch::of(1).at(&[time]).bytes()).await;
        }
        let mut found = async |time| {
            let found = client.list_offsets(LIST_OFFSETS, "t", time).await;
            assert_eq!(found.error_code, 0);
            found.offset
        };
        assert_eq!((found(400).await, found(-3).await), (0, 2));
        let mut other = broker.client().await;
        assert_eq!(delete(&mut other, "t", 1).await, (0, 1));
        assert_eq!((found(400).await, found(-3).await), (2, 2));
        assert_eq!(delete(&mut other, "t", 3).await, (0, 3));
        assert_eq!((found(200).await, found(-3).await), (3, 3));
        assert_eq!(delete(&mut other, "t", HIGH_WATERMARK).await, (0, 4));
        assert_eq!((found(0).await, found(-3).await), (-1, -1));
        // Of a batch that the log begins within, what is left.
        let times = [700, 900, 100, 800];
        other.append("t", Batch::of(4).at(&times).bytes()).await;
        other.append("t", Batch::of(1).at(&[850]).bytes()).await;
        assert_eq!((found(0).await, found(-3).await), (4, 5));
        assert_eq!(delete(&mut other, "t", 6).await, (0, 6));
        assert_eq!(
            (found(0).await, found(600).await, found(850).await),
            (6, 7, 8)
        );
        broker.stop().await;
    });
}

#[test]
fn a_topic_that_is_deleted_or_a_broker_that_stops_answers() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(5).bytes()).await;
        // Both at once, in whatever order they come.
        let mut other = broker.client().await;
        let gone = DeleteTopicsRequest::default().with_topic_names(vec![name("t")]);
        other.send(3, &gone).await;
        let (error, watermark) = delete(&mut client, "t", 3).await;
        let expected = [
            (0, 3),
            (code(ResponseError::NotLeaderOrFollower), -1),
            (code(ResponseError::UnknownTopicOrPartition), -1),
        ];
        assert!(
            expected.contains(&(error, watermark)),
            "{error} {watermark}"
        );
        assert_eq!(
            other.receive::<DeleteTopicsRequest>(3).await.1.responses[0].error_code,
            0
        );
        let refused = delete(&mut client, "t", 3).await;
        assert_eq!(refused, (code(ResponseError::UnknownTopicOrPartition), -1));

        assert_eq!(client.create("t", 1, &[]).await, 0);
        assert_eq!(earliest(&mut client, "t").await, 0);
        let last = request(&[("t", &[(0, HIGH_WATERMARK)])]).with_timeout_ms(i32::MAX);
        client.send(2, &last).await;
        broker.stop().await;
    });
}
