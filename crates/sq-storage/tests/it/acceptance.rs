//! What a user of the writer relies on, a test for each promise.

use std::time::Duration;

use bytes::Bytes;
use sq_sim::{Clock, Effect, Fault, Keep, OpKind, SyncFailure, poll_n_then_drop};
use sq_storage::frame::{Frame, FrameKind};
use sq_storage::record::Record;
use sq_storage::wal::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use sq_storage::{Error, Header, TopicName};

use crate::oracle::Oracle;
use crate::support::{Machine, Stop, block_on, is_crash, segment, value, values};

#[test]
fn writes_one_message() {
    block_on(async {
        let machine = Machine::new(1);
        let mut log = machine.open().await;
        let headers = [Header::new("trace", "abc"), Header::null("empty")];
        assert_eq!(
            log.append(Some(b"key"), b"value", &headers, 1234)
                .await
                .unwrap(),
            0
        );

        let bytes = Bytes::from(machine.fs.read_durable(segment(0)).unwrap());
        let header = SegmentHeader::decode(&bytes[..SEGMENT_HEADER_LEN]).unwrap();
        assert_eq!(
            header,
            SegmentHeader::new(&TopicName::new("orders").unwrap(), 7)
        );
        let frame = Frame::decode(&bytes.slice(SEGMENT_HEADER_LEN..)).unwrap();
        assert_eq!(frame.header.kind, FrameKind::Record);
        assert_eq!(
            (frame.header.base_offset, frame.header.record_count),
            (0, 1)
        );
        assert_eq!(frame.header.max_timestamp_ms, 1234);
        assert_eq!(frame.header.append_time_ms, machine.clock.wall_ms());
        let record = Record::decode(frame.body).unwrap();
        assert_eq!(record.key.as_deref(), Some(&b"key"[..]));
        assert_eq!(record.value.as_deref(), Some(&b"value"[..]));
        assert_eq!(record.headers, headers);
        assert_eq!(bytes.len() % 4096, 0, "a write is padded to its page");
    });
}

#[test]
fn offsets_increase_by_one() {
    block_on(async {
        let machine = Machine::new(2);
        let mut log = machine.open().await;
        for n in 0..100 {
            assert_eq!(log.next_offset(), n);
            assert_eq!(log.append(None, &value(n), &[], n).await.unwrap(), n);
        }
        assert_eq!(
            values(&log.reader()).await,
            (0..100).map(value).collect::<Vec<_>>()
        );
    });
}

#[test]
fn rotates_by_size() {
    block_on(async {
        let machine = Machine::new(3).with_segment_bytes(1000);
        let mut log = machine.open().await;
        let mut bases = vec![0];
        for n in 0..50 {
            log.append(None, &value(n), &[], n).await.unwrap();
            for closed in log.take_closed() {
                assert_eq!(closed.path, segment(closed.offsets.start));
                assert_eq!(closed.offsets, *bases.last().unwrap()..n);
                assert_eq!(
                    closed.bytes,
                    machine.fs.read_file(&closed.path).unwrap().len() as u64
                );
                assert!(closed.bytes <= 1000, "{} bytes", closed.bytes);
                // The write that opened the next one would not have fitted this one.
                let frame = 64 + 12 + value(n).len() as u64;
                assert!(
                    closed.bytes + frame + 64 > 1000,
                    "{} and {frame} bytes",
                    closed.bytes
                );
                bases.push(n);
            }
        }
        assert!(bases.len() > 10);
        let expected: Vec<_> = bases.iter().map(|&b| segment(b)).collect();
        assert_eq!(machine.segments(), expected);
        assert_eq!(values(&log.reader()).await.len(), 50);
    });
}

#[test]
fn a_record_larger_than_a_segment_gets_one_of_its_own() {
    // Elsewhere such a batch could never be stored, and the producer retried it for ever.
    block_on(async {
        let machine = Machine::new(3).with_segment_bytes(1024);
        let mut log = machine.open().await;
        for size in [1500, 100, 1500, 1500, 100] {
            log.append(None, &vec![1; size], &[], 0).await.unwrap();
        }
        assert_eq!(machine.segments().len(), 5);
        let sizes: Vec<_> = values(&log.reader()).await.iter().map(Vec::len).collect();
        assert_eq!(sizes, [1500, 100, 1500, 1500, 100]);
    });
}

#[test]
fn rotates_by_age() {
    block_on(async {
        let machine = Machine::new(4);
        let mut log = machine.open().await;
        log.append(None, b"a", &[], 0).await.unwrap();
        machine.clock.advance(Duration::from_secs(3599));
        log.append(None, b"b", &[], 0).await.unwrap();
        assert_eq!(machine.segments().len(), 1);
        machine.clock.advance(Duration::from_secs(1));
        assert_eq!(machine.segments().len(), 1, "time alone opens nothing");
        log.append(None, b"c", &[], 0).await.unwrap();
        assert_eq!(machine.segments(), [segment(0), segment(2)]);

        // Across a restart the age counts from the first frame.
        machine.clock.advance(Duration::from_mins(30));
        log.close().await.unwrap();
        let mut log = machine.open().await;
        machine.clock.advance(Duration::from_secs(1799));
        log.append(None, b"d", &[], 0).await.unwrap();
        assert_eq!(machine.segments().len(), 2);
        machine.clock.advance(Duration::from_secs(1));
        log.append(None, b"e", &[], 0).await.unwrap();
        assert_eq!(machine.segments().last().unwrap(), &segment(4));
    });
}

#[test]
fn a_wall_clock_set_back_neither_stops_rotation_nor_storms() {
    // Elsewhere a roll by wall clock stopped, or came with every batch, after NTP set it back.
    block_on(async {
        let mut machine = Machine::new(4);
        machine.config.max_segment_age = Duration::from_secs(10);
        machine.clock.set_wall_ms(1_000_000);
        let mut log = machine.open().await;
        log.append(None, b"a", &[], 0).await.unwrap();
        machine.clock.set_wall_ms(400_000);
        drop(log);
        let mut log = machine.open().await;
        for _ in 0..99 {
            machine.clock.advance(Duration::from_millis(100));
            log.append(None, b"b", &[], 0).await.unwrap();
        }
        assert_eq!(
            machine.segments().len(),
            1,
            "the age is never below zero, nor above its own"
        );
        machine.clock.advance(Duration::from_millis(100));
        log.append(None, b"c", &[], 0).await.unwrap();
        assert_eq!(machine.segments().len(), 2);
    });
}

#[test]
fn failed_sync_is_an_error() {
    block_on(async {
        let machine = Machine::new(5);
        let mut log = machine.open().await;
        log.append(None, b"good", &[], 0).await.unwrap();
        machine
            .fs
            .inject(Fault::new(Effect::FailSync(SyncFailure::Lost)).path_ends_with(".wal"));
        let error = log.append(None, b"bad", &[], 0).await.unwrap_err();
        assert!(matches!(&error, Error::Sync { path, .. } if *path == segment(0)));
        assert_eq!(error.action(), sq_storage::Action::Retry);
    });
}

#[test]
fn failed_sync_does_not_advance_the_offset() {
    // Elsewhere a second sync of the same file "succeeded", the record was acknowledged, and no
    // disk ever had it: the kernel had marked the pages clean.
    for failure in SyncFailure::ALL {
        for evict in [false, true] {
            for keep in Keep::ALL {
                block_on(async {
                    let machine = Machine::new(6);
                    let mut log = machine.open().await;
                    let mut oracle = Oracle::default();
                    for n in 0..3 {
                        oracle.append(&mut log, value(n)).await.unwrap();
                    }
                    let fault = Fault::new(Effect::FailSync(failure)).path_ends_with(".wal");
                    machine.fs.inject(fault);
                    oracle.append(&mut log, value(3)).await.unwrap_err();
                    assert_eq!(log.next_offset(), 3);
                    if evict {
                        machine.fs.evict_clean_pages();
                    }
                    assert_eq!(oracle.append(&mut log, value(4)).await.unwrap(), 3);
                    assert_eq!(oracle.append(&mut log, value(5)).await.unwrap(), 4);
                    drop(log);
                    machine.fs.process_crash();
                    let mut log = machine.open().await;
                    oracle.check(&log).await;
                    oracle.append(&mut log, value(6)).await.unwrap();
                    drop(log);
                    machine.fs.power_loss(keep);
                    let log = machine.open().await;
                    oracle.check(&log).await;
                    assert_eq!(oracle.end(), 6, "{failure:?}, {evict}, {keep:?}");
                });
            }
        }
    }
}

#[test]
fn a_failed_sync_then_a_restart_without_a_retry() {
    // The page cache shows a record whose sync failed. Opening adopts it, and then nothing may be
    // promised before it was written and synced again.
    for failure in SyncFailure::ALL {
        for keep in Keep::ALL {
            block_on(async {
                let machine = Machine::new(7);
                let mut log = machine.open().await;
                let mut oracle = Oracle::default();
                oracle.append(&mut log, value(0)).await.unwrap();
                let fault = Fault::new(Effect::FailSync(failure)).path_ends_with(".wal");
                machine.fs.inject(fault);
                oracle.append(&mut log, value(1)).await.unwrap_err();
                drop(log);
                machine.fs.process_crash();
                let mut log = machine.open().await;
                oracle.check(&log).await;
                oracle.append(&mut log, value(2)).await.unwrap();
                drop(log);
                machine.fs.power_loss(keep);
                oracle.check(&machine.open().await).await;
            });
        }
    }
}

#[test]
fn directory_structure() {
    block_on(async {
        let machine = Machine::new(8);
        let name = "a-topic.with_a_name-longer-than-20-bytes".repeat(6);
        let mut log = machine.open_as(&name, u32::MAX).await.unwrap();
        log.append(None, b"x", &[], 0).await.unwrap();
        let path = format!("/data/{name}/4294967295/{:020}.wal", 0);
        assert_eq!(machine.segments(), [std::path::PathBuf::from(&path)]);
        let bytes = machine.fs.read_file(&path).unwrap();
        assert_eq!(&bytes[8..28], &name.as_bytes()[..20]);
        assert_eq!(
            usize::from(u16::from_be_bytes([bytes[6], bytes[7]])),
            name.len()
        );
        assert_eq!(&bytes[28..32], &[0xff; 4]);
        log.close().await.unwrap();
        let log = machine.open_as(&name, u32::MAX).await.unwrap();
        assert_eq!(log.next_offset(), 1);

        // The same first 20 bytes and another length are another topic's file.
        machine
            .fs
            .write_file(format!("/data/{}/0/{:020}.wal", &name[..30], 0), bytes)
            .unwrap();
        let error = machine.open_as(&name[..30], 0).await.unwrap_err();
        assert!(matches!(error, Error::SegmentHeader { .. }), "{error}");
    });
}

/// Appends until the machine stops, with two rotations if it does not.
async fn run(machine: &Machine, oracle: &mut Oracle) {
    let Ok(mut log) = machine.try_open().await else {
        assert!(is_crash(&machine.fs));
        return;
    };
    for n in 0..9 {
        if oracle.append(&mut log, value(n)).await.is_err() {
            assert!(is_crash(&machine.fs));
            return;
        }
        if n % 4 == 1 && log.mark().await.is_err() {
            return;
        }
    }
    let _ = log.close().await;
}

/// A machine with small segments, and recovery points in them if that is wanted.
fn small(has_points: bool) -> Machine {
    let mut machine = Machine::new(9).with_segment_bytes(1100);
    if has_points {
        machine.config.recovery_point_bytes = 300;
    }
    machine
}

#[test]
fn reopens_where_it_left_off() {
    // After a clean close.
    let operations = block_on(async {
        let machine = small(true);
        let mut oracle = Oracle::default();
        run(&machine, &mut oracle).await;
        assert_eq!(machine.segments().len(), 3);
        let operations = machine.fs.operations();
        let mut log = machine.open().await;
        oracle.check(&log).await;
        assert_eq!(log.next_offset(), 9);
        oracle.append(&mut log, value(9)).await.unwrap();
        operations
    });
    // After a crash at every operation, and a second one at every operation of the recovery.
    assert!(operations > 40);
    for stop in Stop::ALL {
        for at in 0..operations {
            for again in 0.. {
                if !crash_twice(stop, at, again) {
                    break;
                }
            }
        }
    }
}

/// Crashes after `at` operations of a run, and after `again` of the opening that follows. Whether
/// that opening was long enough to be hit.
fn crash_twice(stop: Stop, at: u64, again: u64) -> bool {
    block_on(async {
        let machine = small(!again.is_multiple_of(3));
        let mut oracle = Oracle::default();
        machine.fs.crash_after(at);
        run(&machine, &mut oracle).await;
        stop.strike(&machine.fs);

        machine.fs.crash_after(again);
        let opened = machine.try_open().await;
        let hit = is_crash(&machine.fs);
        assert!(hit || opened.is_ok());
        drop(opened);
        stop.strike(&machine.fs);

        let mut log = machine.open().await;
        oracle.check(&log).await;
        oracle.append(&mut log, value(100)).await.unwrap();
        drop(log);
        stop.strike(&machine.fs);
        let log = machine.open().await;
        oracle.check(&log).await;
        assert!(
            machine
                .fs
                .files()
                .iter()
                .all(|p| !p.to_string_lossy().contains("tmp")),
            "nothing unfinished is left"
        );
        hit
    })
}

#[test]
fn reopens_after_a_tail_torn_at_every_byte() {
    block_on(async {
        let machine = Machine::new(10);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for n in 0..3 {
            oracle.append(&mut log, value(n)).await.unwrap();
        }
        let acknowledged = machine.fs.read_file(segment(0)).unwrap();
        let end = SEGMENT_HEADER_LEN + (0..3).map(|n| 76 + value(n).len()).sum::<usize>();
        oracle.append(&mut log, value(3)).await.unwrap();
        drop(log);
        let whole = machine.fs.read_file(segment(0)).unwrap();
        let last = 76 + value(3).len();
        for cut in 0..last {
            // The record was written up to here, with zeros or nothing behind it.
            for pad in [false, true] {
                let mut bytes = whole[..end + cut].to_vec();
                if pad {
                    bytes.resize(whole.len(), 0);
                }
                if bytes == whole {
                    continue; // The record itself ends in zeros.
                }
                let machine = Machine::new(11);
                machine.fs.write_file(segment(0), bytes).unwrap();
                let mut log = machine.open().await;
                assert_eq!(log.next_offset(), 3, "cut at {cut}, padded: {pad}");
                assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 3);
                drop(log);
                machine.fs.power_loss(Keep::None);
                let found = values(&machine.open().await.reader()).await;
                assert_eq!(found.len(), 4);
                assert_eq!(found[2], value(2));
                assert_eq!(found[3], b"next");
            }
        }
        assert_eq!(acknowledged[..end], whole[..end]);
    });
}

#[test]
fn dropped_append_is_safe() {
    // An append that rotates, and one that does not, dropped at every await; then the next append,
    // and a restart after each kind of stop.
    for appended_before in [2, 4] {
        for stop in Stop::ALL {
            for polls in 0.. {
                let done = block_on(async {
                    let machine = small(false);
                    let mut log = machine.open().await;
                    let mut oracle = Oracle::default();
                    for n in 0..appended_before {
                        oracle.append(&mut log, value(n)).await.unwrap();
                    }
                    let dropped = value(50);
                    let call = log.append(None, &dropped, &[], 0);
                    let done = poll_n_then_drop(call, polls).await.is_some();
                    if done {
                        return true;
                    }
                    oracle.may_hold(&dropped, 0);
                    oracle.append(&mut log, value(60)).await.unwrap();
                    oracle.append(&mut log, value(61)).await.unwrap();
                    drop(log);
                    stop.strike(&machine.fs);
                    let log = machine.open().await;
                    oracle.check(&log).await;
                    false
                });
                if done {
                    assert!(polls > 2);
                    break;
                }
            }
        }
    }
}

#[test]
fn a_dropped_append_ends_its_file_only_if_it_was_writing() {
    block_on(async {
        let machine = Machine::new(12);
        let mut log = machine.open().await;
        log.append(None, b"a", &[], 0).await.unwrap();
        assert!(
            poll_n_then_drop(log.append(None, b"b", &[], 0), 0)
                .await
                .is_none()
        );
        log.append(None, b"c", &[], 0).await.unwrap();
        assert_eq!(machine.segments().len(), 1);
        assert!(
            poll_n_then_drop(log.append(None, b"d", &[], 0), 1)
                .await
                .is_none()
        );
        log.append(None, b"e", &[], 0).await.unwrap();
        assert_eq!(machine.segments().len(), 2);
        let syncs = machine.fs.trace();
        assert!(syncs.iter().any(|op| op.kind == OpKind::SyncData));
    });
}

#[test]
fn a_segment_that_a_dropped_call_closed_is_told_of_later() {
    // The call took it out of the list first, and whoever followed the list never heard of it.
    for polls in 0.. {
        let done = block_on(async {
            let machine = Machine::new(13);
            let mut log = machine.open().await;
            log.append(None, b"a", &[], 0).await.unwrap();
            let closed = poll_n_then_drop(log.close_active_segment(), polls).await;
            let done = closed.is_some();
            let mut told: Vec<_> = closed.into_iter().filter_map(Result::unwrap).collect();
            log.append(None, b"b", &[], 0).await.unwrap();
            told.extend(log.take_closed());
            let segments = machine.segments();
            let ended = &segments[..segments.len() - 1];
            assert_eq!(
                told.iter().map(|c| &c.path).collect::<Vec<_>>(),
                ended.iter().collect::<Vec<_>>()
            );
            done
        });
        if done {
            assert!(polls > 4);
            break;
        }
    }
}
