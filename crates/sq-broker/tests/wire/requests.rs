//! Requests: what the encoder of every version makes is accepted, and comes out as it went in.

use bytes::Bytes;
use kafka_protocol::messages as kafka;
use kafka_protocol::protocol::Decodable;
use proptest::prelude::{any, proptest};
use sq_broker::protocol::{Api, DecodeError, RequestBody, decode};

use crate::make::{every_version, raw, request};

proptest! {
    #[test]
    fn every_version_of_every_request_comes_out_as_it_went_in(seed in any::<u64>()) {
        for (api, version) in every_version() {
            let (body, frame) = request(seed, api, version);
            let decoded = decode(frame).unwrap_or_else(|e| panic!("{api} {version}: {e}"));
            assert_eq!((decoded.api, decoded.version, decoded.correlation_id), (api, version, 77));
            assert_eq!(decoded.body, body, "{api} {version}");
        }
    }

    #[test]
    fn a_byte_too_many_is_refused(seed in any::<u64>(), extra in any::<u8>()) {
        for (api, version) in every_version() {
            let (_, frame) = request(seed, api, version);
            let frame = [&frame[..], &[extra]].concat();
            assert!(decode(frame.into()).is_err(), "{api} {version}");
        }
    }
}

#[test]
fn strings_and_records_share_the_frame() {
    let mut found = 0;
    for seed in 0..20 {
        let (_, frame) = request(seed, Api::Produce, 11);
        let within = frame.as_ptr_range();
        let RequestBody::Produce(body) = decode(frame).unwrap().body else {
            unreachable!()
        };
        for part in body
            .topic_data
            .iter()
            .flat_map(|topic| &topic.partition_data)
        {
            if let Some(records) = part.records.as_ref().filter(|records| !records.is_empty()) {
                assert!(within.contains(&records.as_ptr()));
                found += 1;
            }
        }
    }
    assert!(found > 0);
}

#[test]
fn only_acks_0_wants_no_response() {
    for (acks, wants) in [(0_i16, false), (1, true), (-1, true)] {
        let body = [&(-1_i16).to_be_bytes()[..], &acks.to_be_bytes(), &[0; 8]].concat();
        let request = decode(raw(0, 3, false, &body)).unwrap();
        assert_eq!(request.wants_response(), wants);
    }
    assert!(decode(raw(18, 0, false, &[])).unwrap().wants_response());
}

#[test]
fn an_api_or_version_that_is_not_spoken_closes_the_connection() {
    for (key, version) in [
        (-1, 0),
        (8, 2),
        (9999, 0),
        (1, 3),
        (1, 18),
        (3, -1),
        (3, 99),
        (0, -1),
        (0, 13),
    ] {
        let error = decode(raw(key, version, false, &[0; 40])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("77") && text.contains("not spoken"), "{text}");
        assert!(error.into_answer().is_none(), "{key} {version}");
    }
    for length in 0..8 {
        let error = decode(Bytes::from(vec![0; length])).unwrap_err();
        assert!(matches!(error, DecodeError::NoHeader { length: l } if l == length));
    }
}

/// A client that speaks a later `ApiVersions` than the broker was answered in that later version, or
/// not at all, and could not even begin. It must get what version 0 looks like, whatever it sent,
/// and the connection must stay of use.
#[test]
fn api_versions_of_an_unknown_version_is_answered_in_version_0() {
    for version in [5, 127, i16::MAX, -1] {
        for rest in [&b""[..], b"\x00\xff\xff\xff\xff\x0f", &[7; 100]] {
            let error = decode(raw(18, version, false, rest)).unwrap_err();
            let answer = error.into_answer().unwrap();
            let mut bytes = Bytes::from(answer.chunks().concat());
            assert_eq!(
                bytes.split_to(4)[..],
                u32::to_be_bytes(answer.len() as u32 - 4)
            );
            assert_eq!(bytes.split_to(4)[..], 77_u32.to_be_bytes());
            let body = kafka::ApiVersionsResponse::decode(&mut bytes, 0).unwrap();
            assert!(bytes.is_empty());
            assert_eq!(body.error_code, 35);
            let own = body.api_keys.iter().find(|key| key.api_key == 18).unwrap();
            assert_eq!((own.min_version, own.max_version), (0, 4));
        }
    }
}

/// Produce 0 to 2 are advertised so that librdkafka compresses, and refused: once, in words that a
/// client of that version can read, whatever its batches hold. (Sets of several old messages once
/// failed their checksum by a slip of four bytes; here nothing looks into them.)
#[test]
fn old_produce_requests_are_refused_in_their_own_layout() {
    let old_messages = [0x55; 90];
    for version in 0..=2_i16 {
        let mut body = Vec::new();
        body.extend(1_i16.to_be_bytes()); // acks
        body.extend(1000_i32.to_be_bytes()); // timeout
        body.extend(2_i32.to_be_bytes()); // topics
        for (name, partitions) in [("a", &[3, 4][..]), ("orders", &[0])] {
            body.extend((name.len() as i16).to_be_bytes());
            body.extend(name.as_bytes());
            body.extend((partitions.len() as i32).to_be_bytes());
            for partition in partitions {
                body.extend(i32::to_be_bytes(*partition));
                body.extend((old_messages.len() as i32).to_be_bytes());
                body.extend(old_messages);
            }
        }
        let answer = decode(raw(0, version, false, &body))
            .unwrap_err()
            .into_answer()
            .unwrap();

        let mut wanted = Vec::new();
        wanted.extend(77_i32.to_be_bytes());
        wanted.extend(2_i32.to_be_bytes());
        for (name, partitions) in [("a", &[3, 4][..]), ("orders", &[0])] {
            wanted.extend((name.len() as i16).to_be_bytes());
            wanted.extend(name.as_bytes());
            wanted.extend((partitions.len() as i32).to_be_bytes());
            for partition in partitions {
                wanted.extend(i32::to_be_bytes(*partition));
                wanted.extend(35_i16.to_be_bytes());
                wanted.extend((-1_i64).to_be_bytes());
                if version == 2 {
                    wanted.extend((-1_i64).to_be_bytes());
                }
            }
        }
        if version >= 1 {
            wanted.extend(0_i32.to_be_bytes());
        }
        let bytes = answer.chunks().concat();
        assert_eq!(bytes[4..], wanted, "version {version}");
        assert_eq!(bytes[..4], (wanted.len() as u32).to_be_bytes());

        // Nobody waits for an answer to acks=0, and a malformed request has none.
        body[1] = 0;
        assert!(
            decode(raw(0, version, false, &body))
                .unwrap_err()
                .into_answer()
                .is_none()
        );
        body[1] = 1;
        body.pop();
        assert!(
            decode(raw(0, version, false, &body))
                .unwrap_err()
                .into_answer()
                .is_none()
        );
    }
}
