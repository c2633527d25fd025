//! Clients that mean no good, or are broken.

use std::sync::Arc;
use std::time::Duration;

use sq_sim::VirtualClock;
use tokio::io::AsyncWriteExt;

use crate::support::{Batch, Client, PRODUCE, TestBroker, block_on, encode, metadata, produce};

/// Sends bytes and waits until the broker closes the connection.
async fn is_closed_after(broker: &TestBroker, bytes: &[u8]) -> bool {
    let mut client = broker.client().await;
    client.stream.write_all(bytes).await.unwrap();
    client.receive_frame().await.is_none()
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_be_bytes(), body].concat()
}

#[test]
fn nonsense_closes_its_own_connection_and_no_other() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut witness = broker.client_with("t").await;
        let metadata = encode(12, 1, &metadata(Some(&["t"])));
        let mut cut = metadata.to_vec();
        cut.truncate(metadata.len() - 3);
        let cut_length = u32::try_from(cut.len() - 4).unwrap();
        cut[..4].copy_from_slice(&cut_length.to_be_bytes());
        let mut many = metadata.to_vec();
        let at = many.windows(2).rposition(|w| w == [2, 0]).unwrap_or(14);
        many[at] = 0xff;
        for bytes in [
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            vec![0x16, 0x03, 0x01, 0x02, 0x00],
            vec![0xff; 4],
            i32::MAX.to_be_bytes().to_vec(),
            framed(&[]),
            framed(&[0; 3]),
            framed(&[0xff; 8]),
            framed(&[0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff]), // an API that there is not
            framed(&[0, 1, 0, 99, 0, 0, 0, 1, 0xff, 0xff]),      // Fetch 99
            cut,
            many,
            [metadata.to_vec(), vec![0xff; 4]].concat(),
        ] {
            if bytes.starts_with(&metadata) {
                let mut client = broker.client().await;
                client.stream.write_all(&bytes).await.unwrap();
                assert!(
                    client.receive_frame().await.is_some(),
                    "what came before is answered"
                );
                assert!(client.receive_frame().await.is_none());
            } else {
                assert!(is_closed_after(&broker, &bytes).await, "{bytes:?}");
            }
            witness.append("t", Batch::of(1).bytes()).await;
        }
        broker.stop().await;
    });
}

#[test]
fn a_frame_of_five_bytes_can_not_ask_for_a_world_of_memory() {
    block_on(async {
        let broker = TestBroker::start().await;
        // Produce 9, whose topic list claims two thousand million entries.
        let mut body = vec![0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 9];
        body.extend([0xff, 0xff, 0xff, 0xff, 0x07]);
        assert!(is_closed_after(&broker, &framed(&body)).await);
        broker.stop().await;
    });
}

#[test]
fn a_frame_larger_than_allowed_is_refused_by_its_length() {
    block_on(async {
        let broker = TestBroker::with(|config| {
            config.limits.max_frame_bytes = 2_000;
            config.topic.max_message_bytes = 1_900;
        })
        .await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(1).sized(1_700).bytes()).await;
        assert!(is_closed_after(&broker, &2_001_i32.to_be_bytes()).await);
        broker.stop().await;
    });
}

#[test]
fn connections_beyond_the_limit_are_closed_and_those_within_it_work_on() {
    block_on(async {
        let broker = TestBroker::with(|config| config.limits.max_connections = 3).await;
        let mut first = broker.client_with("t").await;
        let mut second = broker.client().await;
        let third = broker.client().await;
        // The broker knows of all three once they have asked something.
        second.append("t", Batch::of(1).bytes()).await;
        let mut fourth = broker.client().await;
        assert!(fourth.receive_frame().await.is_none());
        first.append("t", Batch::of(1).bytes()).await;
        drop(third);
        // The place is free as soon as the broker has noticed.
        loop {
            let mut again = Client::connect(broker.address).await;
            again.send(12, &metadata(None)).await;
            if again.receive_frame().await.is_some() {
                break;
            }
        }
        broker.stop().await;
    });
}

#[test]
fn half_a_request_is_not_waited_for_for_ever() {
    block_on(async {
        let clock = VirtualClock::new();
        let broker = TestBroker::on(Arc::new(clock.clone()), |_| {}).await;
        let mut client = broker.client().await;
        client
            .stream
            .write_all(&[0, 0, 1, 0, 1, 2, 3])
            .await
            .unwrap();
        let mut idle = broker.client().await;
        let closed = async {
            client.receive_frame().await.is_none() && idle.receive_frame().await.is_none()
        };
        let mut closed = std::pin::pin!(closed);
        loop {
            tokio::select! {
                biased;
                closed = &mut closed => {
                    assert!(closed);
                    break;
                }
                () = tokio::task::yield_now() => clock.advance(Duration::from_secs(1)),
            }
        }
        assert!(
            clock.elapsed() >= Duration::from_mins(10),
            "a silent connection has ten minutes"
        );
        broker.stop().await;
    });
}

#[test]
fn requests_in_flight_take_no_more_memory_than_they_may() {
    // Three clients send more at once than the node holds; each gets through in the end.
    block_on(async {
        let broker = TestBroker::with(|config| {
            config.limits.max_frame_bytes = 1_200_000;
            config.limits.connection_in_flight_bytes = 1_200_000;
            config.limits.node_in_flight_bytes = 1_200_000;
        })
        .await;
        broker.client_with("t").await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let mut client = broker.client().await;
            tasks.spawn(async move {
                let request = produce("t", 0, -1, Batch::of(1).sized(1_000_000).bytes());
                for _ in 0..5 {
                    client.call(PRODUCE, &request).await;
                }
            });
        }
        while let Some(outcome) = tasks.join_next().await {
            outcome.unwrap();
        }
        assert_eq!(broker.client().await.end("t").await, 15);
        broker.stop().await;
    });
}
