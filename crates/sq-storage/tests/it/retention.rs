//! What a log keeps, and for how long.

use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, Effect, Errno, Fault, Keep, OpKind, SyncFailure, poll_n_then_drop};
use sq_storage::{Action, MaintenanceMode, ReadError, Reserve, Retention, SyncPolicy};

use crate::oracle::Oracle;
use crate::support::{Machine, Writer, as_time_passes, block_on, is_crash, value};

const MINUTE: Duration = Duration::from_mins(1);

fn older_than(max_age: Duration) -> Retention {
    Retention {
        max_age: Some(max_age),
        ..Retention::default()
    }
}

fn more_than(max_bytes: u64) -> Retention {
    Retention {
        max_bytes: Some(max_bytes),
        ..Retention::default()
    }
}

/// Appends a record with the time that it is.
async fn append(machine: &Machine, log: &mut Writer) -> u64 {
    let now = machine.clock.wall_ms();
    append_from(log, now).await
}

async fn append_from(log: &mut Writer, timestamp_ms: u64) -> u64 {
    let n = log.next_offset();
    log.append(None, &value(n), &[], timestamp_ms)
        .await
        .unwrap()
}

fn offsets(log: &Writer) -> (u64, u64) {
    (log.reader().start_offset(), log.next_offset())
}

async fn remove(machine: &Machine, log: &Writer) {
    as_time_passes(&machine.clock, log.removal().run())
        .await
        .unwrap();
}

#[test]
fn whole_closed_segments_go_oldest_first() {
    block_on(async {
        let machine = Machine::new(71).with_segment_bytes(1100);
        let mut log = machine.open().await;
        for _ in 0..20 {
            append(&machine, &mut log).await;
            machine.clock.advance(MINUTE);
        }
        let segments = log.reader().segments();
        assert!(segments.len() >= 4);
        // All is wanted, or what is wanted is more than there is.
        let total: u64 = segments.iter().map(|s| s.bytes).sum();
        for retention in [
            Retention::default(),
            more_than(total),
            older_than(MINUTE * 60),
        ] {
            assert!(!log.apply_retention(&retention).await.unwrap());
        }
        assert!(
            log.apply_retention(&more_than(total - segments[0].bytes))
                .await
                .unwrap()
        );
        assert_eq!(offsets(&log), (segments[1].base_offset, 20));
        // The last record of the second one is a minute too young, and then it is not.
        let last = segments[1].end_offset - 1;
        let age = MINUTE * u32::try_from(20 - last).unwrap();
        assert!(!log.apply_retention(&older_than(age)).await.unwrap());
        machine.clock.advance(Duration::from_millis(1));
        assert!(log.apply_retention(&older_than(age)).await.unwrap());
        assert_eq!(offsets(&log), (segments[2].base_offset, 20));
        // However little is wanted, the active one stays.
        assert!(log.apply_retention(&more_than(0)).await.unwrap());
        assert_eq!(offsets(&log), (segments.last().unwrap().base_offset, 20));
        remove(&machine, &log).await;
        assert_eq!(machine.segments().len(), 1);
        drop(log);
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        assert_eq!(offsets(&log), (segments.last().unwrap().base_offset, 20));
    });
}

#[test]
fn a_log_nobody_writes_to_any_more_empties_itself() {
    // The active segment was never deleted, so the last records of an idle topic stayed for ever; and
    // when everything was gone, some saw the log begin at 0 again.
    block_on(async {
        let machine = Machine::new(72);
        let mut log = machine.open().await;
        for _ in 0..100 {
            append(&machine, &mut log).await;
        }
        let reader = log.reader();
        machine.clock.advance(MINUTE * 7);
        assert!(!log.apply_retention(&older_than(MINUTE * 7)).await.unwrap());
        machine.clock.advance(MINUTE);
        assert!(log.apply_retention(&older_than(MINUTE * 7)).await.unwrap());
        for _ in 0..2 {
            assert_eq!(offsets(&log), (100, 100));
            assert_eq!((reader.start_offset(), reader.end_offset()), (100, 100));
            assert!(reader.read(100, 1).await.unwrap().is_empty());
            let error = reader.read(99, 1).await.unwrap_err();
            assert!(
                matches!(
                    error,
                    ReadError::OutOfRange {
                        offset: 99,
                        start: 100,
                        end: 100
                    }
                ),
                "{error}"
            );
            assert_eq!(reader.find_by_timestamp(0).await.unwrap(), None);
            assert_eq!(reader.find_max_timestamp().await.unwrap(), None);
            assert!(!log.apply_retention(&older_than(MINUTE)).await.unwrap());
            remove(&machine, &log).await;
            assert!(machine.segments().is_empty());
        }
        drop(log);
        for _ in 0..2 {
            machine.fs.power_loss(Keep::None);
            let log = machine.open().await;
            assert_eq!(offsets(&log), (100, 100));
        }
        let mut log = machine.open().await;
        assert_eq!(append(&machine, &mut log).await, 100);
        assert_eq!(log.reader().read(100, 1).await.unwrap().len(), 1);
    });
}

#[test]
fn a_checkpoint_beside_retention_sees_one_log() {
    // Retention rolled and removed everything while a checkpoint ran: it saw no segment at all, and
    // offsets that did not fit each other.
    for polls in 0.. {
        let done = block_on(async {
            let machine = Machine::new(73).with_segment_bytes(1100);
            let mut log = machine.open().await;
            for _ in 0..12 {
                append(&machine, &mut log).await;
            }
            machine.clock.advance(MINUTE * 8);
            let reader = log.reader();
            let done = poll_n_then_drop(log.apply_retention(&older_than(MINUTE)), polls).await;
            let (start, end) = (reader.start_offset(), reader.end_offset());
            assert_eq!((end, log.next_offset()), (12, 12));
            assert!(start == 0 || start == 12);
            let segments = reader.segments();
            let first = segments.first().map_or(end, |s| s.base_offset);
            assert_eq!(first, start);
            assert!(reader.read(12, 1).await.unwrap().is_empty());
            match reader.read(11, 1).await {
                Ok(frames) => assert_eq!((frames.len(), start), (1, 0)),
                Err(e) => assert!(matches!(e, ReadError::OutOfRange { start: 12, .. }), "{e}"),
            }
            // Whatever was begun, the next append goes on.
            assert_eq!(append(&machine, &mut log).await, 12);
            done.is_some()
        });
        if done {
            assert!(polls > 5);
            break;
        }
    }
}

#[test]
fn who_reads_a_segment_that_goes_gets_its_bytes_or_is_told() {
    // A reader decoded a segment while its file was freed below it: it got zeros, or half a record.
    for polls in 0..80 {
        block_on(async {
            let machine = Machine::new(74).with_segment_bytes(16 << 20);
            let mut log = machine.open().await;
            for n in 0..20u8 {
                log.append(None, &vec![n + 1; 200_000], &[], 1000)
                    .await
                    .unwrap();
            }
            log.close_active_segment().await.unwrap();
            drop(log);
            let mut log = machine.open().await;
            let held = log.reader();
            // A slice that was handed out is not touched by anything.
            let slice = held.read(7, 1).await.unwrap();
            let reader = held.clone();
            let mut reading = Box::pin(async move { reader.read(3, 8 << 20).await });
            let early = poll_n_then_drop(&mut reading, polls).await;
            assert!(
                log.apply_retention(&older_than(Duration::ZERO))
                    .await
                    .unwrap()
            );
            remove(&machine, &log).await;
            assert!(machine.segments().is_empty());
            let read = match early {
                Some(read) => read,
                None => reading.await,
            };
            match read {
                Ok(frames) => {
                    for (frame, n) in frames.iter().zip(3u8..) {
                        let body = frame.payload.to_bytes();
                        assert!(
                            body[body.len() - 200_000 - 4..][..200_000]
                                .iter()
                                .all(|&b| b == n + 1)
                        );
                    }
                    assert_eq!(frames.len(), 17);
                }
                Err(e) => assert!(matches!(e, ReadError::OutOfRange { .. }), "{e}"),
            }
            let body = slice[0].payload.to_bytes();
            assert!(
                body[body.len() - 200_000 - 4..][..200_000]
                    .iter()
                    .all(|&b| b == 8)
            );
            let error = held.read(7, 1).await.unwrap_err();
            assert!(matches!(error, ReadError::OutOfRange { .. }), "{error}");
        });
    }
}

#[test]
fn old_and_future_timestamps_roll_nothing_and_expire_by_themselves() {
    // Rolling by age compared the clock with the records' timestamps, so that moving old data rolled
    // a segment for nearly every batch; and one record from the future stopped rolling for good.
    block_on(async {
        let mut machine = Machine::new(75);
        machine.config.max_segment_age = Duration::from_secs(10);
        let now = 1_000_000_000;
        machine.clock.set_wall_ms(now);
        let hour = 3_600_000;
        let mut log = machine.open().await;
        for _ in 0..1000 {
            append_from(&mut log, now - hour).await;
            machine.clock.advance(Duration::from_millis(5));
        }
        assert_eq!(machine.segments().len(), 1);
        // They are an hour old as they come.
        assert!(!log.apply_retention(&older_than(MINUTE * 61)).await.unwrap());
        assert!(log.apply_retention(&older_than(MINUTE * 59)).await.unwrap());
        assert_eq!(offsets(&log), (1000, 1000));

        append_from(&mut log, now + hour).await;
        for _ in 0..5 {
            append(&machine, &mut log).await;
            machine.clock.advance(Duration::from_secs(4));
        }
        assert_eq!(
            log.reader().segments().len(),
            2,
            "it rolled after ten seconds"
        );
        // What is from the future is kept until then, and what is behind it too.
        machine.clock.advance(Duration::from_mins(59));
        assert!(!log.apply_retention(&older_than(MINUTE)).await.unwrap());
        machine.clock.advance(Duration::from_mins(3));
        assert!(log.apply_retention(&older_than(MINUTE)).await.unwrap());
        assert_eq!(offsets(&log), (1006, 1006));
    });
}

#[test]
fn a_wall_clock_that_jumps_deletes_nothing_that_was_just_written() {
    // The clock was set back and right again by NTP. Ages came out as negative, or as ten minutes for
    // a record of a moment ago, and fresh data was deleted.
    block_on(async {
        let mut machine = Machine::new(76);
        machine.config.max_segment_age = Duration::from_secs(10);
        let retention = older_than(MINUTE);
        machine.clock.set_wall_ms(1_000_000);
        let mut log = machine.open().await;
        append(&machine, &mut log).await;
        for wall_ms in [400_000, 1_000_100, 0, u64::MAX, 1_000_200] {
            machine.clock.set_wall_ms(wall_ms);
            assert!(!log.apply_retention(&retention).await.unwrap(), "{wall_ms}");
            append_from(&mut log, wall_ms.min(1_000_300)).await;
            log.close_active_segment().await.unwrap();
            assert!(!log.apply_retention(&retention).await.unwrap(), "{wall_ms}");
        }
        assert_eq!(offsets(&log), (0, 6));
        // No storm of rolls either: each was closed here once.
        assert_eq!(log.reader().segments().len(), 5);
        let (rolled, began) = (log.reader().segments().len(), machine.clock.now());
        append(&machine, &mut log).await;
        machine.clock.set_wall_ms(400_000);
        machine.clock.advance(Duration::from_secs(9));
        append(&machine, &mut log).await;
        assert_eq!(log.reader().segments().len(), rolled + 1);
        machine.clock.set_wall_ms(1_000_100);
        machine.clock.advance(Duration::from_secs(1));
        append(&machine, &mut log).await;
        assert_eq!(
            log.reader().segments().len(),
            rolled + 2,
            "after ten seconds it rolls"
        );
        assert_eq!(machine.clock.now() - began, Duration::from_secs(10));
        // By the clock that never jumps they go, whatever the other one says; a segment with records from
        // both sides of a jump after so much longer as that was far.
        machine.clock.set_wall_ms(5);
        machine
            .clock
            .advance(Duration::from_secs(62) + Duration::from_mins(10));
        assert!(log.apply_retention(&retention).await.unwrap());
        assert_eq!(offsets(&log).1, 9);
        drop(log);
        // Across a restart it never runs backwards.
        machine.clock.set_wall_ms(0);
        let mut log = machine.open().await;
        append_from(&mut log, 999_999).await;
        assert!(!log.apply_retention(&retention).await.unwrap());
    });
}

#[test]
fn an_active_segment_that_nothing_is_left_of_goes_when_it_is_too_old() {
    block_on(async {
        let machine = Machine::new(82);
        let mut log = machine.open().await;
        append(&machine, &mut log).await;
        log.advance_start(1).await.unwrap();
        let retention = older_than(MINUTE);
        assert!(!log.apply_retention(&retention).await.unwrap());
        machine.clock.advance(MINUTE * 2);
        assert!(log.apply_retention(&retention).await.unwrap());
        assert!(!log.apply_retention(&retention).await.unwrap());
        remove(&machine, &log).await;
        assert!(machine.segments().is_empty());
        assert_eq!(offsets(&log), (1, 1));
        drop(log);
        machine.fs.power_loss(Keep::None);
        assert_eq!(offsets(&machine.open().await), (1, 1));
    });
}

#[test]
fn a_segment_of_unknown_age_is_looked_into() {
    // Manifests of version 1 did not say when records are from.
    block_on(async {
        let machine = Machine::new(77);
        let mut log = machine.open().await;
        for _ in 0..3 {
            append(&machine, &mut log).await;
            log.close_active_segment().await.unwrap();
            machine.clock.advance(MINUTE);
        }
        drop(log);
        let path = "/data/orders/7/manifest";
        let mut manifest = machine.fs.read_file(path).unwrap();
        for line in manifest[8..].chunks_mut(64) {
            line[1] &= !2;
            line[40..56].fill(0);
            let crc = crc32fast::hash(&line[..60]).to_be_bytes();
            line[60..].copy_from_slice(&crc);
        }
        machine.fs.write_file(path, manifest).unwrap();
        let mut log = machine.open().await;
        assert_eq!(log.recovery_report().segments_scanned, 0);
        assert!(
            log.apply_retention(&older_than(Duration::from_secs(90)))
                .await
                .unwrap()
        );
        assert_eq!(offsets(&log), (2, 3));
    });
}

#[test]
fn retention_that_fails_is_made_good_by_the_next() {
    for kind in [
        OpKind::SyncDir,
        OpKind::Rename,
        OpKind::CreateNew,
        OpKind::SyncAll,
        OpKind::RemoveFile,
    ] {
        block_on(async {
            let machine = Machine::new(78).with_segment_bytes(1100);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            for n in 0..12 {
                oracle.append(&mut log, value(n)).await.unwrap();
            }
            machine.fs.fail_next(kind, Errno::Io);
            let applied = log.apply_retention(&more_than(1000)).await;
            assert_eq!(applied.is_err(), kind != OpKind::RemoveFile, "{kind:?}");
            if let Err(e) = applied {
                assert_eq!(e.action(), Action::Retry);
            }
            let removed = log.removal().run().await;
            assert_eq!(removed.is_err(), kind == OpKind::RemoveFile);
            // Nothing that was acknowledged and is to be kept depends on it.
            let start = log.reader().start_offset();
            oracle.purged(&log, start, false);
            oracle.append(&mut log, value(99)).await.unwrap();
            log.apply_retention(&more_than(1000)).await.unwrap();
            let start = log.reader().start_offset();
            oracle.purged(&log, start, true);
            log.removal().run().await.unwrap();
            oracle.verify(&log.reader()).await;
            drop(log);
            machine.fs.power_loss(Keep::None);
            assert!(!is_crash(&machine.fs));
            let log = machine.open().await;
            oracle.check(&log).await;
            assert_eq!(machine.segments().len(), log.reader().segments().len());
        });
    }
}

#[test]
fn a_disk_without_a_byte_left_is_freed() {
    // To let go of segments a small file has to be written, for which there was no room either.
    block_on(async {
        let mut machine = Machine::new(79).with_segment_bytes(1100);
        let made = sq_sim::FileSystem::create_dir_all(&machine.fs, "/data".as_ref());
        made.await.unwrap();
        let (fs, clock) = (
            Arc::new(machine.fs.clone()),
            Arc::new(machine.clock.clone()),
        );
        let reserve = Reserve::take(fs, clock, "/data/reserve", 100_000)
            .await
            .unwrap();
        machine.config.reserve = Some(reserve);
        // What a roll leaves to be done needs room as well.
        machine.config.maintenance = MaintenanceMode::Handed;
        let mut log = machine.open().await;
        for _ in 0..12 {
            append(&machine, &mut log).await;
        }
        machine.fs.set_free_space(Some(0));
        assert!(log.apply_retention(&more_than(1000)).await.unwrap());
        log.removal().run().await.unwrap();
        let left = log.reader().segments();
        assert_eq!(machine.segments().len(), left.len());
        let start = log.reader().start_offset();
        assert!(start > 0 && left.len() < 4);
        drop(log);
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        assert_eq!(offsets(&log), (start, 12));
    });
}

#[test]
fn what_is_acknowledged_and_not_synced_is_before_anything_goes() {
    // Under an interval, the last records are durable only a moment after they were acknowledged. Were a
    // segment let go of or cut in front of them, a failed sync would write them behind a gap.
    for purges in [false, true] {
        block_on(async {
            let mut machine = Machine::new(80);
            machine.config.sync = SyncPolicy::Every(MINUTE);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            for n in 0..6 {
                oracle.append(&mut log, value(n)).await.unwrap();
            }
            let fault = Fault::new(Effect::FailSync(SyncFailure::Lost)).path_ends_with(".wal");
            machine.fs.inject(fault);
            if purges {
                oracle.purge_to(&mut log, 3).await.unwrap();
            } else {
                oracle.truncate_from(&mut log, 3).await.unwrap();
            }
            oracle.verify(&log.reader()).await;
            drop(log);
            machine.fs.power_loss(Keep::None);
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage, []);
            oracle.check(&log).await;
        });
    }
}
