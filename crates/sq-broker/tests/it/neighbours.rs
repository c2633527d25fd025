//! What one connection can take from the others.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::{
    DescribeConfigsRequest, FetchRequest, FindCoordinatorRequest, ProduceRequest,
};
use kafka_protocol::protocol::StrBytes;
use sq_broker::protocol::decoded_weight;
use sq_sim::{Clock, SystemClock, VirtualClock};
use tokio::io::AsyncWriteExt;

use crate::support::{
    Batch, Client, FETCH, METADATA, PRODUCE, TestBroker, block_on, encode, fetch, metadata,
    produce, values,
};

const MANY: i32 = 50_000;

/// A fetch that waits for as long as a client can ask for.
fn patient_fetch(topic: &str) -> FetchRequest {
    fetch(topic, 0, 0).with_max_wait_ms(i32::MAX)
}

/// Moves the clock on, a second at a time, until the work is done.
async fn by_and_by<T>(clock: &VirtualClock, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            // A socket takes real time to carry what the clock's seconds are for.
            () = SystemClock.sleep(Duration::from_millis(5)) => {
                clock.advance(Duration::from_secs(1));
            }
        }
    }
}

#[test]
fn a_topic_that_is_named_many_times_is_described_once() {
    // A metadata request of eighteen kilobytes that named a topic of ten thousand partitions three
    // thousand times took six gigabytes to answer.
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        assert_eq!(client.create("wide", 100, &[]).await, 0);
        let names = vec!["wide"; MANY as usize];
        let answer = client.call(METADATA, &metadata(Some(&names))).await;
        assert_eq!(answer.topics.len(), 1);
        assert_eq!(answer.topics[0].partitions.len(), 100);
        let answer = client
            .call(METADATA, &metadata(Some(&["wide", "new", "wide"])))
            .await;
        assert_eq!(answer.topics.len(), 2);

        let resource = DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(StrBytes::from_static_str("wide"));
        let request = DescribeConfigsRequest::default().with_resources(vec![resource; 1000]);
        let answer = client.call(4, &request).await;
        assert_eq!(answer.results.len(), 1);
        broker.stop().await;
    });
}

#[test]
fn fetches_behind_one_that_waits_hold_no_memory() {
    // Ten fetches sent behind one that waited for data held all of the fetch memory, with answers
    // that could not leave: no other client was given anything until the wait was over.
    block_on(async {
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |config| {
            config.limits.max_fetch_bytes = 100_000;
            config.limits.fetch_memory_bytes = 100_000;
        })
        .await;
        let mut hostile = broker.client_with("quiet").await;
        let mut other = broker.client_with("loud").await;
        other
            .append("loud", Batch::of(1).sized(90_000).bytes())
            .await;
        hostile.send(FETCH, &patient_fetch("quiet")).await;
        for _ in 0..10 {
            hostile.send(FETCH, &patient_fetch("loud")).await;
        }
        for _ in 0..20 {
            let response = other.call(FETCH, &patient_fetch("loud")).await;
            let records = response.responses[0].partitions[0].records.clone();
            assert_eq!(values(records).len(), 1);
        }
        // Once the wait is over they are answered, one after the other.
        other.append("quiet", Batch::of(1).bytes()).await;
        for _ in 0..11 {
            let (_, response) = hostile.receive::<FetchRequest>(FETCH).await;
            let records = response.responses[0].partitions[0].records.clone();
            assert_eq!(values(records).len(), 1);
        }
        broker.stop().await;
    });
}

#[test]
fn batches_stored_behind_a_fetch_that_waits_hold_no_memory() {
    // Four connections, each with a fetch that waited and 128 MiB of batches behind it, held all of
    // the memory for requests although every batch was stored: the broker read no request any more.
    block_on(async {
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |config| {
            config.limits.max_frame_bytes = 1_200_000;
            config.limits.connection_in_flight_bytes = 1_500_000;
            config.limits.node_in_flight_bytes = 1_500_000;
        })
        .await;
        let mut hostile = broker.client_with("quiet").await;
        let mut other = broker.client_with("loud").await;
        let batch = Batch::of(1).sized(1_000_000).bytes();
        hostile.send(FETCH, &patient_fetch("quiet")).await;
        hostile
            .send(PRODUCE, &produce("loud", 0, -1, batch.clone()))
            .await;
        while other.end("loud").await < 1 {}
        assert_eq!(other.append("loud", batch).await, 1);
        broker.stop().await;
    });
}

#[test]
fn a_request_that_is_announced_and_does_not_come_holds_no_other_up() {
    // Six clients that each announced a request of 100 MiB, and sent one byte of it, kept the broker
    // from reading anything else for two minutes.
    block_on(async {
        let clock = VirtualClock::new();
        let broker = TestBroker::on(Arc::new(clock.clone()), |config| {
            config.limits.max_frame_bytes = 1_200_000;
            config.limits.connection_in_flight_bytes = 1_200_000;
            config.limits.node_in_flight_bytes = 1_200_000;
        })
        .await;
        let mut other = broker.client_with("t").await;
        let mut silent = broker.client().await;
        silent
            .stream
            .write_all(&[&1_200_000_i32.to_be_bytes()[..], &[0]].concat())
            .await
            .unwrap();
        let batch = Batch::of(1).sized(1_000_000).bytes();
        let working = async {
            for offset in 0..10 {
                assert_eq!(other.append("t", batch.clone()).await, offset);
            }
            silent.receive_frame().await
        };
        assert!(by_and_by(&clock, working).await.is_none(), "it is closed");
        assert!(clock.elapsed() < Duration::from_mins(1));
        broker.stop().await;
    });
}

#[test]
fn a_response_that_is_not_taken_holds_no_other_up() {
    // Ten clients that asked for all they could get and read none of it held all of the fetch
    // memory for two minutes; everybody else was answered with nothing.
    block_on(async {
        let clock = VirtualClock::new();
        let broker = TestBroker::on(Arc::new(clock.clone()), |config| {
            config.limits.fetch_memory_bytes = config.limits.max_fetch_bytes;
        })
        .await;
        let mut other = broker.client_with("t").await;
        for _ in 0..30 {
            other
                .append("t", Batch::of(1).sized(1_000_000).bytes())
                .await;
        }
        // More than the socket's buffers take.
        let everything = |wait| {
            let mut request = fetch("t", 0, 0).with_max_wait_ms(wait);
            request.max_bytes = i32::MAX;
            request.topics[0].partitions[0].partition_max_bytes = i32::MAX;
            request
        };
        let mut deaf = broker.client().await;
        deaf.send(FETCH, &everything(0)).await;
        deaf.stream.readable().await.unwrap();
        let request = everything(i32::MAX);
        let working = other.call(FETCH, &request);
        let response = by_and_by(&clock, working).await;
        let records = response.responses[0].partitions[0].records.clone();
        assert_eq!(values(records).len(), 30);
        assert!(clock.elapsed() < Duration::from_mins(1));
        broker.stop().await;
    });
}

#[test]
fn a_stop_answers_also_what_more_requests_than_are_taken_at_once_wait_behind() {
    // With more requests behind a fetch that waited than the broker takes of a connection at a time,
    // it did not hear of the stop: ten seconds later the connection was cut, and what had been stored
    // was never acknowledged.
    block_on(async {
        // On this clock no wait is ever over, the one for connections at the end neither.
        let broker = TestBroker::on(Arc::new(VirtualClock::new()), |_| {}).await;
        let mut other = broker.client_with("t").await;
        let mut client: Client = broker.client_with("quiet").await;
        client.send(FETCH, &patient_fetch("quiet")).await;
        for _ in 0..400 {
            client
                .send(PRODUCE, &produce("t", 0, -1, Batch::of(1).bytes()))
                .await;
        }
        // As many as are taken at once, and the one that finds no place.
        while other.end("t").await < 256 {}
        let stored = other.end("t").await;
        broker.stop().await;
        client.receive::<FetchRequest>(FETCH).await;
        for offset in 0..stored {
            let (_, response) = client.receive::<ProduceRequest>(PRODUCE).await;
            let answer = &response.responses[0].partition_responses[0];
            assert_eq!((answer.error_code, answer.base_offset), (0, offset));
        }
    });
}

#[test]
fn a_partition_that_a_fetch_names_many_times_is_read_once() {
    // A fetch that named a partition two hundred thousand times had each append to it read as often,
    // and kept a processor busy for ten seconds after its client had gone.
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(2).bytes()).await;
        let mut request = fetch("t", 0, 0);
        let topic = request.topics[0].clone();
        request.topics[0].partitions = vec![topic.partitions[0].clone(); MANY as usize];
        request.topics.push(topic);
        let response = client.call(FETCH, &request).await;
        let named: Vec<usize> = response
            .responses
            .iter()
            .map(|topic| topic.partitions.len())
            .collect();
        assert_eq!(named, [1, 0]);
        let records = response.responses[0].partitions[0].records.clone();
        assert_eq!(values(records).len(), 2);
        broker.stop().await;
    });
}

#[test]
fn a_request_weighs_what_its_elements_come_to() {
    // Forty requests of half a megabyte, each a list of names of one letter, became a gigabyte.
    let keys = vec![StrBytes::from_static_str("a"); MANY as usize];
    let request = FindCoordinatorRequest::default().with_coordinator_keys(keys);
    let frame = encode(4, 1, &request);
    assert!(decoded_weight(&frame[4..]) > MANY as usize * 200);
    let batch = Batch::of(1).sized(1_000_000).bytes();
    let frame = encode(PRODUCE, 1, &produce("t", 0, -1, batch));
    assert_eq!(decoded_weight(&frame[4..]), 0);
    assert_eq!(decoded_weight(&[]), 0);
}
