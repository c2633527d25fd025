//! What producers may send, and what they are told.

use bytes::Bytes;
use kafka_protocol::messages::{ProduceRequest, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use sq_broker::protocol::ResponseError;
use tokio::io::AsyncWriteExt;

use crate::support::{
    Batch, Client, FETCH, PRODUCE, TestBroker, batches, block_on, code, fetch, produce,
};

/// A batch with some bytes of its header changed, and its checksum made right again.
fn forged(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut forged = batch.to_vec();
    forged[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&forged[21..]);
    forged[17..21].copy_from_slice(&crc.to_be_bytes());
    forged.into()
}

async fn refused(client: &mut Client, records: Bytes, allowed: &[ResponseError]) {
    let response = client.produce("t", records).await;
    let allowed: Vec<i16> = allowed.iter().map(|error| code(*error)).collect();
    assert!(
        allowed.contains(&response.error_code),
        "{} {:?}",
        response.error_code,
        response.error_message
    );
    assert_eq!(response.base_offset, -1);
    assert_eq!(client.end("t").await, 1, "nothing was stored");
}

#[test]
fn a_batch_that_lies_about_itself_is_refused_and_the_connection_lives_on() {
    // A batch whose last offset did not match its count was stored, and the offsets behind it were
    // wrong for good.
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(1).bytes()).await;
        let batch = Batch::of(3).bytes();
        let length = i32::from_be_bytes(batch[8..12].try_into().unwrap());
        let wrong = [ResponseError::InvalidRecord, ResponseError::CorruptMessage];
        for records in [
            forged(&batch, 23, &5_i32.to_be_bytes()),    // last offset
            forged(&batch, 23, &(-1_i32).to_be_bytes()), // last offset
            forged(&batch, 57, &0_i32.to_be_bytes()),    // count
            forged(&batch, 57, &(-1_i32).to_be_bytes()), // count
            forged(&batch, 8, &(length + 1).to_be_bytes()),
            forged(&batch, 8, &(length - 1).to_be_bytes()),
            forged(&batch, 8, &i32::MAX.to_be_bytes()),
            forged(&batch, 8, &i32::MIN.to_be_bytes()),
            forged(&batch, 16, &[3]),    // magic
            forged(&batch, 16, &[1]),    // magic
            forged(&batch, 22, &[0x20]), // a control batch
            batch.slice(..60),
            Bytes::new(),
            [batch.clone(), batch.clone()].concat().into(),
        ] {
            refused(&mut client, records, &wrong).await;
        }
        let mut bent = batch.to_vec();
        *bent.last_mut().unwrap() ^= 1;
        refused(&mut client, bent.into(), &[ResponseError::CorruptMessage]).await;
        let codec = forged(&batch, 22, &[7]);
        refused(
            &mut client,
            codec,
            &[ResponseError::UnsupportedCompressionType],
        )
        .await;
        let transactional = forged(&batch, 22, &[0x10]);
        refused(
            &mut client,
            transactional,
            &[ResponseError::InvalidTxnState],
        )
        .await;
        let large = Batch::of(1).sized(2 << 20).bytes();
        refused(&mut client, large, &[ResponseError::MessageTooLarge]).await;

        assert_eq!(client.append("t", batch).await, 1);
        assert_eq!(client.end("t").await, 4);
        broker.stop().await;
    });
}

#[test]
fn each_partition_has_its_own_answer() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        let mut request = produce("t", 0, 1, Batch::of(2).bytes());
        for (topic, partition) in [("t", 1), ("t", -1), ("missing", 0), ("..", 0)] {
            let other = produce(topic, partition, 1, Batch::of(1).bytes());
            request.topic_data.extend(other.topic_data);
        }
        let response = client.call(PRODUCE, &request).await;
        let unknown = code(ResponseError::UnknownTopicOrPartition);
        let codes: Vec<i16> = response
            .responses
            .iter()
            .flat_map(|topic| &topic.partition_responses)
            .map(|partition| partition.error_code)
            .collect();
        assert_eq!(codes, [0, unknown, unknown, unknown, unknown]);
        let first = &response.responses[0].partition_responses[0];
        assert_eq!(
            (
                first.base_offset,
                first.log_append_time_ms,
                first.log_start_offset
            ),
            (0, -1, 0)
        );
        broker.stop().await;
    });
}

#[test]
fn other_acknowledgements_than_none_one_and_all_are_refused() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        for acks in [2, -2, i16::MAX, i16::MIN] {
            let response = client
                .call(PRODUCE, &produce("t", 0, acks, Batch::of(1).bytes()))
                .await;
            let partition = &response.responses[0].partition_responses[0];
            assert_eq!(
                partition.error_code,
                code(ResponseError::InvalidRequiredAcks)
            );
        }
        assert_eq!(client.end("t").await, 0);
        broker.stop().await;
    });
}

#[test]
fn a_failure_that_can_not_be_answered_closes_the_connection() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client
            .send(PRODUCE, &produce("t", 0, 0, Batch::of(1).bytes()))
            .await;
        client
            .send(PRODUCE, &produce("missing", 0, 0, Batch::of(1).bytes()))
            .await;
        assert!(client.receive_frame().await.is_none());
        assert_eq!(broker.client().await.end("t").await, 1);
        broker.stop().await;
    });
}

#[test]
fn transactions_are_refused_for_good() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        let id = TransactionalId(StrBytes::from_static_str("tx"));
        let request = produce("t", 0, -1, Batch::of(1).bytes()).with_transactional_id(Some(id));
        let response = client.call(PRODUCE, &request).await;
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!(
            partition.error_code,
            code(ResponseError::TransactionalIdAuthorizationFailed)
        );
        broker.stop().await;
    });
}

#[test]
fn the_oldest_versions_are_refused_in_words_their_clients_read() {
    // librdkafka wants to see Produce 0 to 2 advertised, or it compresses nothing. What it then
    // sends is version 3 and later; a body of an older one gets an answer and stores nothing.
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        for version in 0..=2_i16 {
            let mut body = Vec::new();
            body.extend([0, 0]); // Produce
            body.extend(version.to_be_bytes());
            body.extend(5_i32.to_be_bytes()); // correlation id
            body.extend((-1_i16).to_be_bytes()); // no client id
            body.extend(1_i16.to_be_bytes()); // acks
            body.extend(1_000_i32.to_be_bytes()); // timeout
            body.extend(1_i32.to_be_bytes()); // one topic
            body.extend([0, 1, b't']);
            body.extend(1_i32.to_be_bytes()); // one partition
            body.extend(0_i32.to_be_bytes());
            body.extend(4_i32.to_be_bytes());
            body.extend([1, 2, 3, 4]);
            let mut frame = i32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
            frame.extend(body);
            client.stream.write_all(&frame).await.unwrap();
            let answer = client.receive_frame().await.unwrap();
            // Correlation id, one topic "t", one partition 0, and then its error.
            let head = [0, 0, 0, 5, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 0];
            assert_eq!(answer[..head.len()], head);
            assert_eq!(
                answer[head.len()..head.len() + 2],
                [0, 35],
                "UNSUPPORTED_VERSION"
            );
        }
        assert_eq!(client.end("t").await, 0);
        broker.stop().await;
    });
}

#[test]
fn a_batch_comes_back_byte_for_byte_in_every_version() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        let sent = Batch::of(3).bytes();
        for (n, version) in (3..=12_i16).enumerate() {
            let request = produce("t", 0, -1, sent.clone());
            let (_, response) = {
                client.send(version, &request).await;
                client.receive::<ProduceRequest>(version).await
            };
            let offset = i64::try_from(3 * n).unwrap();
            assert_eq!(
                response.responses[0].partition_responses[0].base_offset,
                offset
            );
        }
        let response = client.call(FETCH, &fetch("t", 0, 0)).await;
        let stored = batches(response.responses[0].partitions[0].records.as_ref());
        assert_eq!(stored.len(), 10);
        for (n, stored) in stored.into_iter().enumerate() {
            let mut expected = sent.to_vec();
            expected[..8].copy_from_slice(&(3 * n as u64).to_be_bytes());
            expected[12..16].copy_from_slice(&0_i32.to_be_bytes());
            assert_eq!(stored, expected);
        }
        broker.stop().await;
    });
}
