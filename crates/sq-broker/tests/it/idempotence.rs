//! Idempotent producers: nothing twice, nothing lost, nobody stuck.

use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::{
    FindCoordinatorRequest, InitProducerIdRequest, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use sq_broker::protocol::ResponseError;
use sq_sim::VirtualClock;

use crate::support::{Batch, Client, TestBroker, block_on, code};

fn a_new_one() -> InitProducerIdRequest {
    InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
}

async fn init(client: &mut Client) -> i64 {
    let response = client.call(4, &a_new_one()).await;
    assert_eq!((response.error_code, response.producer_epoch), (0, 0));
    response.producer_id.0
}

#[test]
fn a_retry_gets_the_offset_of_its_first_attempt_also_after_a_restart() {
    block_on(async {
        let mut broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        let id = init(&mut client).await;
        assert_eq!(
            client.append("t", Batch::of(5).by(id, 0, 0).bytes()).await,
            0
        );
        for _ in 0..2 {
            assert_eq!(
                client.append("t", Batch::of(5).by(id, 0, 0).bytes()).await,
                0
            );
            assert_eq!(client.end("t").await, 5);
            let gap = client
                .produce("t", Batch::of(1).by(id, 0, 10).bytes())
                .await;
            assert_eq!(
                gap.error_code,
                code(ResponseError::OutOfOrderSequenceNumber)
            );
            broker = broker.restart().await;
            client = broker.client().await;
        }
        assert_eq!(
            client.append("t", Batch::of(1).by(id, 1, 0).bytes()).await,
            5
        );
        let stale = client.produce("t", Batch::of(1).by(id, 0, 5).bytes()).await;
        assert_eq!(stale.error_code, code(ResponseError::InvalidProducerEpoch));
        broker.stop().await;
    });
}

#[test]
fn a_retry_is_known_on_the_other_side_of_a_roll() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        assert_eq!(client.create("t", 1, &[("segment.bytes", "1024")]).await, 0);
        let (id, other) = (init(&mut client).await, init(&mut client).await);
        assert_eq!(
            client.append("t", Batch::of(5).by(id, 0, 0).bytes()).await,
            0
        );
        for n in 0..20 {
            client
                .append("t", Batch::of(1).sized(500).by(other, 0, n).bytes())
                .await;
        }
        assert_eq!(
            client.append("t", Batch::of(5).by(id, 0, 0).bytes()).await,
            0
        );
        let broker = broker.restart().await;
        let mut client = broker.client().await;
        assert_eq!(
            client.append("t", Batch::of(5).by(id, 0, 0).bytes()).await,
            0
        );
        assert_eq!(client.end("t").await, 25);
        broker.stop().await;
    });
}

#[test]
fn a_producer_that_was_silent_for_too_long_goes_on() {
    block_on(async {
        let clock = VirtualClock::new();
        let expiry = Duration::from_mins(10);
        let broker = TestBroker::on(Arc::new(clock.clone()), |config| {
            config.producer_id_expiry = expiry;
        })
        .await;
        let mut client = broker.client_with("t").await;
        let id = init(&mut client).await;
        client.append("t", Batch::of(7).by(id, 0, 0).bytes()).await;
        let gap = client.produce("t", Batch::of(8).by(id, 0, 9).bytes()).await;
        assert_eq!(
            gap.error_code,
            code(ResponseError::OutOfOrderSequenceNumber)
        );
        clock.advance(Duration::from_millis(600_001));
        // The connection was silent for as long, and is closed.
        let mut client = broker.client().await;
        assert_eq!(
            client.append("t", Batch::of(8).by(id, 0, 7).bytes()).await,
            7
        );
        broker.stop().await;
    });
}

#[test]
fn no_id_is_given_out_twice() {
    block_on(async {
        let mut broker = TestBroker::start().await;
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let mut client = broker.client().await;
            for _ in 0..3 {
                assert!(seen.insert(init(&mut client).await));
            }
            broker = broker.restart().await;
        }
        // One that says which id it had gets a fresh one, as from Kafka.
        let mut client = broker.client().await;
        let had = *seen.first().unwrap();
        let request = a_new_one()
            .with_producer_id(ProducerId(had))
            .with_producer_epoch(3);
        let response = client.call(4, &request).await;
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        assert!(seen.insert(response.producer_id.0));
        // An id without an epoch is neither the one nor the other.
        let response = client.call(4, &request.with_producer_epoch(-1)).await;
        assert_eq!(response.error_code, code(ResponseError::InvalidRequest));
        broker.stop().await;
    });
}

#[test]
fn transactions_and_groups_are_refused_by_name() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        for version in 0..=5 {
            let id = TransactionalId(StrBytes::from_static_str("tx"));
            let request = a_new_one().with_transactional_id(Some(id));
            let response = client.call(version, &request).await;
            assert_eq!(
                response.error_code,
                code(ResponseError::TransactionalIdAuthorizationFailed)
            );
            assert_eq!(response.producer_id.0, -1);
        }
        for version in 0..=6 {
            let key = StrBytes::from_static_str("group");
            let request = if version < 4 {
                FindCoordinatorRequest::default().with_key(key)
            } else {
                let second = StrBytes::from_static_str("other");
                FindCoordinatorRequest::default().with_coordinator_keys(vec![key, second])
            };
            let response = client.call(version, &request).await;
            let expected = code(ResponseError::CoordinatorNotAvailable);
            if version < 4 {
                assert_eq!((response.error_code, response.node_id.0), (expected, -1));
            } else {
                let codes: Vec<_> = response.coordinators.iter().map(|c| c.error_code).collect();
                assert_eq!(codes, [expected, expected]);
            }
        }
        broker.stop().await;
    });
}
