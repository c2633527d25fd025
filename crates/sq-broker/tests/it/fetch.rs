//! What consumers get.

use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::messages::fetch_request::FetchTopic;
use kafka_protocol::messages::{DeleteTopicsRequest, FetchRequest, ProduceRequest};
use kafka_protocol::records::Compression;
use sq_broker::protocol::{Api, ResponseError};
use sq_sim::VirtualClock;

use crate::support::{
    Batch, Client, FETCH, PRODUCE, TestBroker, batches, block_on, code, fetch, fetch_partition,
    name, produce, values,
};

#[test]
fn every_version_gives_the_same_records() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(3).bytes()).await;
        client.append("t", Batch::of(2).bytes()).await;
        let id = client.describe("t").await.topic_id;
        for version in Api::Fetch.served() {
            let mut request = fetch("t", 0, 1);
            if version >= 13 {
                request.topics[0].topic = name("");
                request.topics[0].topic_id = id;
            }
            if version < 7 {
                request.session_epoch = -1;
            }
            let response = client.call(version, &request).await;
            let topic = &response.responses[0];
            let partition = &topic.partitions[0];
            assert_eq!(
                (partition.error_code, partition.high_watermark),
                (0, 5),
                "{version}"
            );
            assert_eq!(
                (partition.last_stable_offset, partition.log_start_offset),
                (5, if version >= 5 { 0 } else { -1 })
            );
            let offsets: Vec<i64> = values(partition.records.clone())
                .iter()
                .map(|v| v.0)
                .collect();
            assert_eq!(
                offsets,
                [0, 1, 2, 3, 4],
                "the batch that holds offset 1 is whole"
            );
            assert_eq!(topic.topic_id == id, version >= 13);
        }
        // A topic that was deleted and created again has another id.
        let mut request = fetch("", 0, 0);
        request.topics[0].topic_id = uuid::Uuid::from_u128(1);
        let response = client.call(17, &request).await;
        let unknown = code(ResponseError::UnknownTopicId);
        assert_eq!(response.responses[0].partitions[0].error_code, unknown);
        broker.stop().await;
    });
}

#[test]
fn what_can_not_be_fetched_says_why() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(3).bytes()).await;
        for (offset, error) in [(3, 0), (4, 1), (-1, 1), (i64::MIN, 1), (i64::MAX, 1)] {
            assert_eq!(client.fetch("t", offset).await.0, error, "{offset}");
        }
        assert_eq!(client.fetch("missing", 0).await.0, 3);
        for (epoch, error) in [
            (-1, 0),
            (0, 0),
            (1, code(ResponseError::UnknownLeaderEpoch)),
            (-2, code(ResponseError::FencedLeaderEpoch)),
        ] {
            let mut request = fetch("t", 0, 0);
            request.topics[0].partitions[0].current_leader_epoch = epoch;
            let response = client.call(FETCH, &request).await;
            assert_eq!(
                response.responses[0].partitions[0].error_code, error,
                "{epoch}"
            );
        }
        let mut request = fetch("t", 7, 0);
        request.max_wait_ms = i32::MAX;
        let response = client.call(FETCH, &request).await;
        assert_eq!(
            response.responses[0].partitions[0].error_code, 3,
            "an error does not wait"
        );
        broker.stop().await;
    });
}

#[test]
fn sessions_are_refused_so_that_clients_do_without() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(1).bytes()).await;
        for version in 7..=12 {
            // A new session is asked for, and none is given.
            let request = fetch("t", 0, 0).with_session_epoch(0);
            let response = client.call(version, &request).await;
            assert_eq!((response.error_code, response.session_id), (0, 0));
            assert_eq!(
                values(response.responses[0].partitions[0].records.clone()).len(),
                1
            );
            // One that it never had.
            let request = fetch("t", 0, 0).with_session_id(77).with_session_epoch(1);
            let response = client.call(version, &request).await;
            let unknown = code(ResponseError::FetchSessionIdNotFound);
            assert_eq!((response.error_code, response.session_id), (unknown, 0));
            assert!(response.responses.is_empty());
        }
        broker.stop().await;
    });
}

#[test]
fn a_fetch_without_partitions_does_not_wait() {
    block_on(async {
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |_| {}).await;
        let mut client = broker.client().await;
        let mut request = fetch("t", 0, 0).with_max_wait_ms(i32::MAX);
        request.topics.clear();
        assert!(client.call(FETCH, &request).await.responses.is_empty());
        broker.stop().await;
    });
}

#[test]
fn the_first_batch_is_whole_whatever_the_limits() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        assert_eq!(client.create("t", 2, &[]).await, 0);
        let large = Batch::of(1).sized(50_000).bytes();
        for partition in [0, 1] {
            for _ in 0..3 {
                client
                    .call(PRODUCE, &produce("t", partition, -1, large.clone()))
                    .await;
            }
        }
        let size = large.len();
        for (max_bytes, partition_max, expected) in [
            (1, 1 << 20, [1, 0]),
            (0, 0, [1, 0]),
            (1 << 20, 1, [1, 0]),
            (1 << 20, size, [1, 1]),
            (size, 1 << 20, [1, 0]),
            (2 * size, 1 << 20, [2, 0]),
            (3 * size + 10, 2 * size + 10, [2, 1]),
            (1 << 20, 1 << 20, [3, 3]),
        ] {
            let mut client = broker.client().await;
            let mut request = fetch("t", 0, 0).with_max_bytes(i32::try_from(max_bytes).unwrap());
            let partition_max = i32::try_from(partition_max).unwrap();
            request.topics[0].partitions =
                [0, 1].map(|p| fetch_partition(p, 0, partition_max)).into();
            let response = client.call(FETCH, &request).await;
            let counts: Vec<usize> = response.responses[0]
                .partitions
                .iter()
                .map(|p| batches(p.records.as_ref()).len())
                .collect();
            assert_eq!(counts, expected, "{max_bytes} {partition_max}");
        }
        broker.stop().await;
    });
}

#[test]
fn no_partition_of_a_long_list_is_left_out_for_ever() {
    // With only a limit for each partition, a fetch of thousands took all the memory there was; with
    // one for the whole response and always the same start, the last partitions were never served.
    block_on(async {
        const PARTITIONS: i32 = 100;
        let broker = TestBroker::with(|config| {
            config.limits.max_fetch_bytes = 100_000;
            config.limits.fetch_memory_bytes = 150_000;
        })
        .await;
        let mut client = broker.client().await;
        assert_eq!(client.create("t", PARTITIONS, &[]).await, 0);
        let batch = Batch::of(1).sized(19_900).bytes();
        for partition in 0..PARTITIONS {
            client
                .send(PRODUCE, &produce("t", partition, -1, batch.clone()))
                .await;
        }
        for _ in 0..PARTITIONS {
            client.receive::<ProduceRequest>(PRODUCE).await;
        }
        let mut request = fetch("t", 0, 0);
        request.topics[0].partitions = (0..PARTITIONS)
            .map(|partition| fetch_partition(partition, 0, 1 << 20))
            .collect();
        let mut served = std::collections::BTreeSet::new();
        for _ in 0..30 {
            let response = client.call(FETCH, &request).await;
            let mut bytes = 0;
            for partition in &response.responses[0].partitions {
                let records = partition.records.as_ref().map_or(0, bytes::Bytes::len);
                bytes += records;
                if records > 0 {
                    served.insert(partition.partition_index);
                }
            }
            assert!(0 < bytes && bytes <= 100_000 + batch.len(), "{bytes}");
        }
        assert_eq!(served.len(), usize::try_from(PARTITIONS).unwrap());
        broker.stop().await;
    });
}

/// Fetches with room for four batches of 128 KiB, so that each answer but the last fills its room.
async fn fetch_four(client: &mut Client, offset: i64) -> Vec<(i64, Bytes)> {
    let mut request = fetch("t", 0, offset);
    request.topics[0].partitions = vec![fetch_partition(0, offset, 600_000)];
    let response = client.call(FETCH, &request).await;
    let partition = &response.responses[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    values(partition.records.clone())
}

#[test]
fn a_consumer_that_catches_up_gets_every_record_once_and_in_order() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        for _ in 0..30 {
            client
                .append("t", Batch::of(4).sized(32 << 10).bytes())
                .await;
        }
        let mut next = 0;
        while next < 120 {
            let got = fetch_four(&mut client, next).await;
            assert_eq!(got.len(), if next < 112 { 16 } else { 8 });
            for (offset, value) in got {
                assert_eq!((offset, value[0]), (next, (next % 4).try_into().unwrap()));
                next += 1;
            }
            // Who goes elsewhere in between gets what is there, and then what comes behind.
            if next == 48 {
                assert_eq!(fetch_four(&mut client, 8).await[0].0, 8);
            }
        }
        assert!(fetch_four(&mut client, 120).await.is_empty());
        broker.stop().await;
    });
}

#[test]
fn what_was_read_ahead_of_a_deleted_topic_is_not_served_as_its_namesakes() {
    // Batches are read before they are asked for. Those of a topic that was deleted and created again
    // since then would be at offsets where the new topic has others.
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        for _ in 0..8 {
            client
                .append("t", Batch::of(4).sized(32 << 10).bytes())
                .await;
        }
        assert_eq!(fetch_four(&mut client, 0).await.len(), 16);
        let request = DeleteTopicsRequest::default().with_topic_names(vec![name("t")]);
        assert_eq!(client.call(3, &request).await.responses[0].error_code, 0);
        assert_eq!(client.create("t", 1, &[]).await, 0);
        client.append("t", Batch::of(20).sized(7).bytes()).await;
        let got = fetch_four(&mut client, 16).await;
        assert!(
            got.iter().all(|(_, value)| value.len() == 7),
            "{}",
            got.len()
        );
        broker.stop().await;
    });
}

#[test]
fn a_fetch_waits_until_all_its_partitions_have_enough_together() {
    block_on(async {
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |_| {}).await;
        let mut producer = broker.client().await;
        assert_eq!(producer.create("t", 3, &[]).await, 0);
        let mut consumer = broker.client().await;
        let batch = Batch::of(1).sized(1_000).bytes();
        let size = i32::try_from(batch.len()).unwrap();
        let mut request = fetch("t", 0, 0)
            .with_max_wait_ms(i32::MAX)
            .with_min_bytes(2 * size + 1);
        request.topics[0].partitions = [0, 1, 2].map(|p| fetch_partition(p, 0, 1 << 20)).into();
        consumer.send(FETCH, &request).await;
        for partition in [2, 0] {
            producer
                .call(PRODUCE, &produce("t", partition, -1, batch.clone()))
                .await;
        }
        let mut nothing = [0; 1];
        assert!(
            consumer.stream.try_read(&mut nothing).is_err(),
            "answered with too little"
        );
        producer
            .call(PRODUCE, &produce("t", 2, -1, batch.clone()))
            .await;
        let (_, response) = consumer.receive::<FetchRequest>(FETCH).await;
        let counts: Vec<usize> = response.responses[0]
            .partitions
            .iter()
            .map(|p| batches(p.records.as_ref()).len())
            .collect();
        assert_eq!(counts, [1, 0, 2]);
        broker.stop().await;
    });
}

#[test]
fn who_waits_for_a_topic_that_is_deleted_is_told() {
    block_on(async {
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |_| {}).await;
        let mut waiting = broker.client_with("t").await;
        waiting
            .send(FETCH, &fetch("t", 0, 0).with_max_wait_ms(i32::MAX))
            .await;
        let mut other = broker.client().await;
        let request = DeleteTopicsRequest::default().with_topic_names(vec![name("t")]);
        assert_eq!(other.call(3, &request).await.responses[0].error_code, 0);
        let (_, response) = waiting.receive::<FetchRequest>(FETCH).await;
        let told = response.responses[0].partitions[0].error_code;
        let allowed = [
            ResponseError::NotLeaderOrFollower,
            ResponseError::UnknownTopicOrPartition,
        ];
        assert!(allowed.iter().any(|error| code(*error) == told), "{told}");
        broker.stop().await;
    });
}

#[test]
fn a_tail_is_followed_across_rolls() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut producer = broker.client().await;
        assert_eq!(
            producer.create("t", 1, &[("segment.bytes", "1024")]).await,
            0
        );
        let mut consumer = broker.client().await;
        let tail = tokio::spawn(async move {
            let mut next = 0;
            while next < 100 {
                let request = fetch("t", 0, next).with_max_wait_ms(60_000);
                let response = consumer.call(FETCH, &request).await;
                let partition = &response.responses[0].partitions[0];
                assert_eq!(partition.error_code, 0);
                for (offset, _) in values(partition.records.clone()) {
                    assert_eq!(offset, next);
                    next += 1;
                }
            }
        });
        for n in 0..100 {
            assert_eq!(
                producer.append("t", Batch::of(1).sized(300).bytes()).await,
                n
            );
        }
        tail.await.unwrap();
        broker.stop().await;
    });
}

#[test]
fn a_client_that_does_not_know_zstd_is_not_sent_it() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        // The broker looks at the codec's number, not at what it stands for.
        let mut batch = Batch {
            compression: Compression::None,
            ..Batch::of(1)
        }
        .bytes()
        .to_vec();
        batch[22] = 4;
        let crc = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        client.append("t", batch.into()).await;
        for version in 4..=12 {
            let response = client.call(version, &fetch("t", 0, 0)).await;
            let error = response.responses[0].partitions[0].error_code;
            let expected = code(ResponseError::UnsupportedCompressionType);
            assert_eq!(error, if version < 10 { expected } else { 0 }, "{version}");
        }
        broker.stop().await;
    });
}

#[test]
fn damage_is_reported_where_it_is_and_nowhere_else() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        assert_eq!(client.create("t", 1, &[("segment.bytes", "1024")]).await, 0);
        for n in 0..10 {
            assert_eq!(client.append("t", Batch::of(1).sized(400).bytes()).await, n);
        }
        let first = broker.data_dir().join("t/0/00000000000000000000.wal");
        let dir = broker.stop().await;
        let file = rustix::fs::open(
            &first,
            rustix::fs::OFlags::WRONLY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        rustix::io::pwrite(&file, &[0xff; 8], 200).unwrap();
        drop(file);

        let broker = TestBroker::again(dir).await;
        let mut client = broker.client().await;
        assert_eq!(
            client.fetch("t", 0).await.0,
            code(ResponseError::CorruptMessage)
        );
        let (error, rest) = client.fetch("t", 2).await;
        assert_eq!(error, 0);
        assert_eq!(rest.first().map(|v| v.0), Some(2));
        assert_eq!(client.end("t").await, 10);
        assert_eq!(client.append("t", Batch::of(1).bytes()).await, 10);
        let mut request = fetch("t", 0, 0);
        assert_eq!(client.create("well", 1, &[]).await, 0);
        client.append("well", Batch::of(1).bytes()).await;
        let topic = FetchTopic::default().with_topic(name("well"));
        request
            .topics
            .push(topic.with_partitions(vec![fetch_partition(0, 0, 1 << 20)]));
        let response = client.call(FETCH, &request).await;
        let codes = response
            .responses
            .iter()
            .map(|t| t.partitions[0].error_code);
        let damaged = code(ResponseError::CorruptMessage);
        assert_eq!(codes.collect::<Vec<_>>(), [damaged, 0]);
        broker.stop().await;
    });
}
