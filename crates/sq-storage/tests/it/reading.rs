//! Reading beside the writer.

use std::time::Duration;

use sq_sim::OpKind;
use sq_storage::{Batch, ReadError};

use crate::oracle::Oracle;
use crate::support::{Machine, block_on, value, values};

fn batch(n: u8, len: usize, timestamp: i64) -> Batch {
    Batch {
        payload: vec![vec![n; len / 2].into(), vec![n; len - len / 2].into()],
        record_count: 3,
        max_timestamp_ms: timestamp,
        leader_epoch: 4,
    }
}

#[test]
fn a_read_gives_whole_frames_within_its_limit_and_the_first_always() {
    block_on(async {
        let machine = Machine::new(60).with_segment_bytes(3000);
        let mut log = machine.open().await;
        let batches: Vec<_> = (0..10).map(|n| batch(n, 500, 0)).collect();
        let mut rest = &batches[..];
        let mut calls = 0;
        while !rest.is_empty() {
            rest = &rest[log.append_batches(rest).await.unwrap()..];
            calls += 1;
        }
        assert!(calls > 1, "a call stops at the segment's end");
        let reader = log.reader();
        for offset in 0..30 {
            for (max, expected) in [(0, 1), (1, 1), (499, 1), (500, 1), (999, 1), (1000, 2)] {
                let frames = reader.read(offset, max).await.unwrap();
                assert_eq!(frames[0].base_offset, offset / 3 * 3);
                assert_eq!(frames[0].leader_epoch, 4);
                assert_eq!(frames[0].payload, vec![(offset / 3) as u8; 500]);
                let left = (10 - offset / 3) as usize;
                assert_eq!(frames.len(), expected.min(left), "{offset} {max}");
            }
        }
        assert_eq!(
            reader.read(0, usize::MAX).await.unwrap().len(),
            10,
            "across segments"
        );
        assert_eq!(reader.read(30, 1000).await.unwrap(), []);
        for offset in [31, u64::MAX] {
            let error = reader.read(offset, 1).await.unwrap_err();
            assert!(matches!(
                error,
                ReadError::OutOfRange {
                    start: 0,
                    end: 30,
                    ..
                }
            ));
        }
    });
}

#[test]
fn little_more_is_read_of_a_file_than_is_given() {
    // A read of records of 1 KiB took the file's bytes twice: its one piece was as long as the answer
    // without its frames' headers, and the few frames that were missing then took another as long. One of
    // large batches read, and verified, one more than went into the answer.
    block_on(async {
        for (len, max) in [
            (1024, 100 << 10),
            (960, 100 << 10),
            (60_000, 100_000),
            (150, 9_000),
        ] {
            let machine = Machine::new(62);
            let mut log = machine.open().await;
            let batches = vec![batch(1, len, 0); (900 << 10) / len];
            let mut rest = &batches[..];
            while !rest.is_empty() {
                rest = &rest[log.append_batches(rest).await.unwrap()..];
            }
            let reader = log.reader();
            let mut next = reader
                .read(0, max)
                .await
                .unwrap()
                .last()
                .unwrap()
                .end_offset();
            let (mut given, mut reads) = (0, 0);
            machine.fs.take_trace();
            while next < reader.end_offset() {
                let frames = reader.read(next, max).await.unwrap();
                next = frames.last().unwrap().end_offset();
                given += frames.iter().map(|f| 64 + f.payload.len()).sum::<usize>();
                reads += 1;
            }
            let trace = machine.fs.take_trace();
            let of_file = trace.iter().filter(|op| op.kind == OpKind::ReadAt);
            let (mut calls, mut read) = (0, 0);
            for op in of_file {
                calls += 1;
                read += op.len;
            }
            assert!(
                calls <= 2 * reads,
                "{calls} calls for {reads} reads of {len} bytes"
            );
            // What did not fit into an answer any more may have been a part of the piece.
            let bound = (given + given / 8 + reads * len) as u64;
            assert!(read <= bound, "{read} read, {given} given, frames of {len}");
        }
    });
}

#[test]
fn a_reader_that_waits_is_woken_by_the_first_record_of_the_next_segment() {
    // Elsewhere a roll after a restart left the old file without an end mark, and a tail reader
    // waited there for ever.
    block_on(async {
        let machine = Machine::new(61).with_segment_bytes(900);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        let reader = log.reader();
        for n in 0..20 {
            let waiting = reader.clone();
            let waiting = tokio::spawn(async move {
                waiting.wait_for(n).await;
                waiting.read(n, 1).await.unwrap()
            });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            oracle.append(&mut log, value(n)).await.unwrap();
            assert_eq!(waiting.await.unwrap()[0].base_offset, n);
        }
    });
}

#[test]
fn a_record_is_seen_only_once_it_is_durable() {
    block_on(async {
        let machine = Machine::new(62);
        let mut log = machine.open().await;
        let reader = log.reader();
        log.append(None, b"a", &[], 0).await.unwrap();
        for polls in 0.. {
            let call = log.append(None, b"b", &[], 0);
            if sq_sim::poll_n_then_drop(call, polls).await.is_some() {
                break;
            }
            assert_eq!(reader.end_offset(), 1);
            assert_eq!(values(&reader).await.len(), 1);
        }
        assert_eq!(reader.end_offset(), 2);
    });
}

#[test]
fn timestamps_are_found_within_and_across_segments() {
    block_on(async {
        let machine = Machine::new(63).with_segment_bytes(100_000);
        let mut log = machine.open().await;
        assert_eq!(log.reader().find_by_timestamp(0).await.unwrap(), None);
        assert_eq!(log.reader().find_max_timestamp().await.unwrap(), None);
        let times: Vec<i64> = (0..60).map(|n| 100 + n * 7 % 40 + n * 5).collect();
        for (n, time) in times.iter().enumerate() {
            log.append_batches(&[batch(n as u8, 9_000, *time)])
                .await
                .unwrap();
        }
        for reopened in [false, true] {
            if reopened {
                log = machine.open().await;
            }
            let reader = log.reader();
            for wanted in 0..500 {
                let expected = times
                    .iter()
                    .position(|&t| t >= wanted)
                    .map(|n| n as u64 * 3);
                let found = reader.find_by_timestamp(wanted).await.unwrap();
                assert_eq!(found.map(|f| f.base_offset), expected, "{wanted}");
            }
            let greatest = times.iter().max().unwrap();
            let found = reader.find_max_timestamp().await.unwrap().unwrap();
            assert_eq!(found.max_timestamp_ms, *greatest);
        }
    });
}

#[test]
fn readers_on_other_threads_never_see_a_gap_or_a_change() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let machine = Machine::new(64).with_segment_bytes(5000);
        let mut log = machine.open().await;
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let reader = log.reader();
                tokio::spawn(async move {
                    let mut next = 0;
                    while next < 500 {
                        reader.wait_for(next).await;
                        for frame in reader.read(next, 2000).await.unwrap() {
                            assert_eq!(frame.base_offset, next);
                            let record = sq_storage::Record::decode(frame.payload).unwrap();
                            assert_eq!(record.value.unwrap(), value(next));
                            next += 1;
                        }
                    }
                })
            })
            .collect();
        for n in 0..500 {
            log.append(None, &value(n), &[], 0).await.unwrap();
            if n % 10 == 0 {
                log.mark().await.unwrap();
            }
        }
        for reader in readers {
            tokio::time::timeout(Duration::from_mins(1), reader)
                .await
                .unwrap()
                .unwrap();
        }
    });
}
