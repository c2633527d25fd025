//! The order of answers, and of what is done.

use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::{
    ApiVersionsRequest, CreateTopicsRequest, FetchRequest, ProduceRequest,
};
use kafka_protocol::protocol::StrBytes;
use sq_sim::VirtualClock;

use crate::support::{
    Batch, CREATE_TOPICS, FETCH, PRODUCE, TestBroker, block_on, fetch, new_topic, produce,
};

/// A fetch that waits for as long as a client can ask for.
fn patient_fetch(topic: &str) -> FetchRequest {
    fetch(topic, 0, 0).with_max_wait_ms(i32::MAX)
}

#[test]
fn a_fetch_that_waits_keeps_no_later_request_from_being_executed() {
    block_on(async {
        // On this clock no wait is ever over.
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |_| {}).await;
        let mut waiting = broker.client_with("quiet").await;
        let mut other = broker.client_with("loud").await;

        let first = waiting.send(FETCH, &patient_fetch("quiet")).await;
        let second = waiting
            .send(PRODUCE, &produce("loud", 0, -1, Batch::of(3).bytes()))
            .await;
        let create = CreateTopicsRequest::default().with_topics(vec![new_topic("later", 1, &[])]);
        let third = waiting.send(CREATE_TOPICS, &create).await;

        // All of it happens although the first answer is not there.
        while other.end("loud").await < 3 {}
        while other.describe("later").await.error_code != 0 {}
        let mut nothing = [0; 1];
        assert!(
            waiting.stream.try_read(&mut nothing).is_err(),
            "an answer came out of order"
        );

        other.append("quiet", Batch::of(1).bytes()).await;
        let (id, fetched) = waiting.receive::<FetchRequest>(FETCH).await;
        assert_eq!(id, first);
        assert!(fetched.responses[0].partitions[0].records.is_some());
        assert_eq!(waiting.receive::<ProduceRequest>(PRODUCE).await.0, second);
        assert_eq!(
            waiting
                .receive::<CreateTopicsRequest>(CREATE_TOPICS)
                .await
                .0,
            third
        );
        broker.stop().await;
    });
}

#[test]
fn requests_sent_at_once_are_stored_and_answered_in_their_order() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        let mut ids = Vec::new();
        for n in 0..200 {
            let batch = Batch::of(1 + n % 3).bytes();
            ids.push(client.send(PRODUCE, &produce("t", 0, -1, batch)).await);
        }
        let mut next = 0;
        for (n, id) in ids.into_iter().enumerate() {
            let (answered, response) = client.receive::<ProduceRequest>(PRODUCE).await;
            assert_eq!(answered, id);
            assert_eq!(
                response.responses[0].partition_responses[0].base_offset,
                next
            );
            next += i64::try_from(1 + n % 3).unwrap();
        }
        assert_eq!(client.end("t").await, next);
        broker.stop().await;
    });
}

#[test]
fn what_wants_no_answer_gets_none_and_keeps_its_place() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        for _ in 0..5 {
            client
                .send(PRODUCE, &produce("t", 0, 0, Batch::of(2).bytes()))
                .await;
        }
        assert_eq!(client.append("t", Batch::of(1).bytes()).await, 10);
        broker.stop().await;
    });
}

#[test]
fn a_client_that_hangs_up_its_side_is_answered_first() {
    // Half-closed connections are rare and legal: what was asked is answered, a fetch that waits
    // with what there is.
    block_on(async {
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |_| {}).await;
        let mut client = broker.client_with("quiet").await;
        client.send(FETCH, &patient_fetch("quiet")).await;
        client
            .send(PRODUCE, &produce("quiet", 0, -1, Batch::of(1).bytes()))
            .await;
        tokio::io::AsyncWriteExt::shutdown(&mut client.stream)
            .await
            .unwrap();
        client.receive::<FetchRequest>(FETCH).await;
        let (_, produced) = client.receive::<ProduceRequest>(PRODUCE).await;
        assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
        assert!(client.receive_frame().await.is_none());
        broker.stop().await;
    });
}

#[test]
fn a_stop_answers_who_waits_and_what_was_acknowledged_is_there_afterwards() {
    block_on(async {
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |_| {}).await;
        let mut waiting = broker.client_with("quiet").await;
        let mut other = broker.client_with("loud").await;
        waiting.send(FETCH, &patient_fetch("quiet")).await;
        // The fetch is known to have begun once something behind it is answered elsewhere.
        waiting
            .send(PRODUCE, &produce("loud", 0, -1, Batch::of(3).bytes()))
            .await;
        while other.end("loud").await < 3 {}
        broker.begin_stop();
        let (_, fetched) = waiting.receive::<FetchRequest>(FETCH).await;
        assert_eq!(fetched.responses[0].partitions[0].error_code, 0);
        assert_eq!(
            waiting
                .receive::<ProduceRequest>(PRODUCE)
                .await
                .1
                .responses
                .len(),
            1
        );
        assert!(waiting.receive_frame().await.is_none());
        let broker = broker.restart().await;
        assert_eq!(broker.client().await.end("loud").await, 3);
        broker.stop().await;
    });
}

#[test]
fn a_slow_reader_of_answers_holds_nobody_else_up() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut slow = broker.client_with("t").await;
        let batch = Batch::of(1).sized(900_000).bytes();
        for _ in 0..4 {
            slow.append("t", batch.clone()).await;
        }
        // Answers of 3.6 MB each, none of them taken.
        for _ in 0..20 {
            slow.send(FETCH, &fetch("t", 0, 0).with_max_bytes(4 << 20))
                .await;
        }
        let mut other = broker.client().await;
        for n in 0..50 {
            assert_eq!(other.append("t", Batch::of(1).bytes()).await, 4 + n);
        }
        for _ in 0..20 {
            slow.receive::<FetchRequest>(FETCH).await;
        }
        broker.stop().await;
    });
}

#[test]
fn many_connections_and_partitions_work_side_by_side() {
    block_on(async {
        let broker = TestBroker::start().await;
        assert_eq!(broker.client().await.create("t", 32, &[]).await, 0);
        let mut tasks = tokio::task::JoinSet::new();
        for partition in 0..32 {
            let mut client = broker.client().await;
            tasks.spawn(async move {
                for n in 0..20 {
                    let request = produce("t", partition, -1, Batch::of(1).bytes());
                    let response = client.call(PRODUCE, &request).await;
                    assert_eq!(response.responses[0].partition_responses[0].base_offset, n);
                }
            });
        }
        while let Some(outcome) = tasks.join_next().await {
            outcome.unwrap();
        }
        broker.stop().await;
    });
}

#[test]
fn a_version_that_is_not_spoken_is_answered_so_that_the_client_can_ask_again() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("test"))
            .with_client_software_version(StrBytes::from_static_str("1.0"));
        // Version 127, as its header says; the body of a later version is anyone's guess.
        let mut frame = crate::support::encode(3, 77, &request).to_vec();
        frame[6..8].copy_from_slice(&127_i16.to_be_bytes());
        tokio::io::AsyncWriteExt::write_all(&mut client.stream, &frame)
            .await
            .unwrap();
        let (id, response) = client.receive::<ApiVersionsRequest>(0).await;
        assert_eq!((id, response.error_code), (77, 35));
        for version in [0, 3, 4] {
            let response = client.call(version, &request).await;
            assert_eq!(response.error_code, 0);
            assert!(
                response
                    .api_keys
                    .iter()
                    .any(|api| api.api_key == 0 && api.min_version == 0)
            );
        }
        broker.stop().await;
    });
}

#[test]
fn a_fetch_is_answered_when_its_time_is_over() {
    block_on(async {
        let clock = VirtualClock::new();
        let broker = TestBroker::on(Arc::new(clock.clone()), |_| {}).await;
        let mut client = broker.client_with("quiet").await;
        client.append("quiet", Batch::of(1).bytes()).await;
        let request = fetch("quiet", 0, 0)
            .with_max_wait_ms(500)
            .with_min_bytes(1 << 20);
        client.send(FETCH, &request).await;
        let answered = client.receive::<FetchRequest>(FETCH);
        let mut answered = std::pin::pin!(answered);
        // Time goes on in small steps until the answer comes: not before half a second is over.
        let mut elapsed = Duration::ZERO;
        let (_, response) = loop {
            tokio::select! {
                biased;
                answer = &mut answered => break answer,
                () = tokio::task::yield_now() => {
                    clock.advance(Duration::from_millis(1));
                    elapsed += Duration::from_millis(1);
                }
            }
        };
        assert!(elapsed >= Duration::from_millis(500), "{elapsed:?}");
        let records = &response.responses[0].partitions[0].records;
        assert_eq!(
            crate::support::values(records.clone()).len(),
            1,
            "with what there is"
        );
        broker.stop().await;
    });
}
