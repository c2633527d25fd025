//! Offsets by time, and the times that stand for something else.

use sq_broker::protocol::{Api, ResponseError};

use crate::support::{Batch, LIST_OFFSETS, TestBroker, block_on, code};

#[test]
fn a_time_finds_the_record_and_its_own_time() {
    // An answer with time -1 makes the Java client throw, and users rely on -1 for "none".
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        for version in Api::ListOffsets.served() {
            let none = client.list_offsets(version, "t", 3).await;
            assert_eq!(
                (none.error_code, none.offset, none.timestamp),
                (0, -1, -1),
                "empty"
            );
        }
        client
            .append("t", Batch::of(0).at(&[2, 4, 6, 8]).bytes())
            .await;
        for version in Api::ListOffsets.served() {
            for (time, offset, found) in [
                (0, 0, 2),
                (2, 0, 2),
                (3, 1, 4),
                (4, 1, 4),
                (7, 3, 8),
                (8, 3, 8),
                (9, -1, -1),
                (i64::MAX, -1, -1),
            ] {
                let answer = client.list_offsets(version, "t", time).await;
                assert_eq!(
                    (answer.error_code, answer.offset, answer.timestamp),
                    (0, offset, found),
                    "{time}"
                );
                let epoch = if version >= 4 && offset >= 0 { 0 } else { -1 };
                assert_eq!(answer.leader_epoch, epoch);
            }
        }
        broker.stop().await;
    });
}

#[test]
fn a_time_is_found_in_whichever_batch_and_segment_it_is() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        assert_eq!(client.create("t", 1, &[("segment.bytes", "1024")]).await, 0);
        for n in 0..30_i64 {
            let times = [n * 10, n * 10 + 5];
            client
                .append("t", Batch::of(0).at(&times).sized(100).bytes())
                .await;
        }
        for (time, offset, found) in [
            (0, 0, 0),
            (1, 1, 5),
            (144, 29, 145),
            (290, 58, 290),
            (296, -1, -1),
        ] {
            let answer = client.list_offsets(LIST_OFFSETS, "t", time).await;
            assert_eq!((answer.offset, answer.timestamp), (offset, found), "{time}");
        }
        // The greatest time need not be the last record's.
        client
            .append("t", Batch::of(0).at(&[500, 999, 7]).bytes())
            .await;
        client.append("t", Batch::of(0).at(&[8]).bytes()).await;
        let broker = broker.restart().await;
        let mut client = broker.client().await;
        let greatest = client.list_offsets(LIST_OFFSETS, "t", -3).await;
        assert_eq!((greatest.offset, greatest.timestamp), (61, 999));
        broker.stop().await;
    });
}

#[test]
fn special_times_mean_something_from_their_version_on() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        client.append("t", Batch::of(0).at(&[5, 7]).bytes()).await;
        for version in Api::ListOffsets.served() {
            for (time, since, expected) in [
                (-1, 1, (2, -1)),
                (-2, 1, (0, -1)),
                (-3, 7, (1, 7)),
                (-4, 8, (0, -1)),
                (-5, 9, (-1, -1)),
                (-6, i16::MAX, (-1, -1)),
                (i64::MIN, i16::MAX, (-1, -1)),
            ] {
                let answer = client.list_offsets(version, "t", time).await;
                if version >= since {
                    let found = (answer.offset, answer.timestamp);
                    assert_eq!(
                        (answer.error_code, found),
                        (0, expected),
                        "{version} {time}"
                    );
                } else {
                    let unsupported = code(ResponseError::UnsupportedVersion);
                    assert_eq!((answer.error_code, answer.offset), (unsupported, -1));
                }
            }
        }
        let missing = client.list_offsets(LIST_OFFSETS, "missing", -1).await;
        assert_eq!(
            missing.error_code,
            code(ResponseError::UnknownTopicOrPartition)
        );
        broker.stop().await;
    });
}
