//! What can happen while a partition is opened, and what its files can hold when it is.

use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;

use bytes::{Bytes, BytesMut};
use sq_sim::{
    Effect, EntryFate, Errno, Fault, FileSystem as _, Keep, OpKind, PathPattern, PowerLoss,
    SectorFate, SyncFailure,
};
use sq_storage::frame::{FrameHeader, FrameKind};
use sq_storage::{Action, Batch};

use crate::damage::{file, frame};
use crate::oracle::Oracle;
use crate::support::{DIR, Machine, block_on, segment, value, values};

fn manifest() -> PathBuf {
    format!("{DIR}/manifest").into()
}

fn batch(payload: impl Into<Bytes>) -> Batch {
    Batch {
        payload: vec![payload.into()],
        record_count: 1,
        max_timestamp_ms: 0,
        leader_epoch: 0,
    }
}

/// A frame such as a client can put into a record: its segment is none of the log's.
fn forged() -> Vec<u8> {
    let header = FrameHeader {
        segment_id: 0x1234_5678_9abc_def0,
        base_offset: 1 << 40,
        committed_before: 1 << 40,
        max_timestamp_ms: 0,
        append_time_ms: 0,
        record_count: 1,
        leader_epoch: 0,
        ordinal: 1 << 20,
        kind: FrameKind::Batch,
    };
    let mut out = BytesMut::new();
    header.encode(&[], &mut out).unwrap();
    out.to_vec()
}

/// Polls a future to its end, and does something before the `n`th poll.
async fn at_poll<T>(n: usize, future: impl Future<Output = T>, act: impl Fn()) -> (T, usize) {
    let (mut future, mut polls) = (pin!(future), 0);
    let output = poll_fn(|cx| {
        if polls == n {
            act();
        }
        polls += 1;
        future.as_mut().poll(cx)
    });
    let output = output.await;
    (output, polls)
}

/// Two segments, the second open, the last records covered by no mark.
async fn two_segments(machine: &Machine, oracle: &mut Oracle) {
    let mut log = machine.open().await;
    for n in 0..8 {
        oracle.append(&mut log, value(n)).await.unwrap();
    }
    assert_eq!(machine.segments().len(), 2);
}

#[test]
fn a_bit_lost_on_the_way_from_the_disk_loses_nothing() {
    // One read of the newest record was wrong, it passed for a tear, and its offset was given again.
    // Another was of bytes about to be rewritten, and put the wrong bit on the disk.
    for seed in 0..60 {
        for skip in 0.. {
            let hit = block_on(async {
                let machine = Machine::new(seed).with_segment_bytes(1700);
                let mut oracle = Oracle::default();
                two_segments(&machine, &mut oracle).await;
                let before = machine.segments().into_iter();
                let before: Vec<_> = before.map(|s| machine.fs.read_file(s).unwrap()).collect();
                let flip = Fault::new(Effect::FlipBitOfRead).on(&[OpKind::ReadAt]);
                machine.fs.inject(flip.skip(skip));
                let log = machine.open().await;
                let hit = machine.fs.faults_left() == 0;
                machine.fs.clear_faults();
                let report = log.recovery_report();
                assert_eq!(report.damage, [], "seed {seed}, read {skip}");
                assert_eq!(report.segments_scanned, 1, "the manifest was read rightly");
                oracle.check(&log).await;
                assert_eq!(oracle.end(), 8);
                for (path, before) in machine.segments().into_iter().zip(before) {
                    assert_eq!(machine.fs.read_file(path).unwrap(), before);
                }
                hit
            });
            if !hit {
                assert!(skip > 4);
                break;
            }
        }
    }
}

#[test]
fn a_page_dropped_while_the_log_is_opened_is_not_counted() {
    // The cache showed a record whose sync had failed. It was found, the kernel dropped its page, and
    // what stood below was written down in its place: the log ended behind a record it did not have.
    for n in 0.. {
        let polls = block_on(async {
            let machine = Machine::new(1);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            oracle.append(&mut log, value(0)).await.unwrap();
            let fault = Fault::new(Effect::FailSync(SyncFailure::Lost)).path_ends_with(".wal");
            machine.fs.inject(fault);
            oracle.append(&mut log, value(1)).await.unwrap_err();
            drop(log);
            machine.fs.process_crash();
            let evict = || machine.fs.evict_clean_pages();
            let (opened, polls) = at_poll(n, machine.try_open(), evict).await;
            match opened {
                Ok(log) => oracle.check(&log).await,
                Err(e) => assert_eq!(e.action(), Action::Retry, "{e}"),
            }
            for keep in [Keep::None, Keep::All] {
                let log = machine.open().await;
                assert_eq!(log.recovery_report().damage, []);
                oracle.check(&log).await;
                drop(log);
                machine.fs.power_loss(keep);
            }
            polls
        });
        if n > polls {
            break;
        }
    }
}

#[test]
fn a_mark_at_the_end_of_an_older_segment_is_made_durable_before_it_counts() {
    // The manifest was lost and the older segment was read. The unsynced mark at its end counted for
    // its length, but as later segments prove its records nothing was written again; the next power
    // loss took the mark, and the segment was reported too short.
    for keep in Keep::ALL {
        block_on(async {
            let machine = Machine::new(2).with_segment_bytes(5000);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            // The mark lies beyond the page that the record's write padded.
            oracle
                .append(&mut log, vec![7; 4096 - 32 - 76])
                .await
                .unwrap();
            log.mark().await.unwrap();
            let lines = Fault::new(Effect::Fail(Errno::Io));
            let lines = lines.path(PathPattern::Contains("manifest".into()));
            machine.fs.inject(lines.always());
            // The old segment is not cut, either.
            machine.fs.fail_next(OpKind::SetLen, Errno::Io);
            oracle.append(&mut log, vec![8; 900]).await.unwrap();
            oracle.append(&mut log, value(2)).await.unwrap();
            assert_eq!(machine.segments().len(), 2);
            machine.fs.clear_faults();
            drop(log);
            machine.fs.process_crash();
            let mut log = machine.open().await;
            oracle.check(&log).await;
            log.close_active_segment().await.unwrap();
            drop(log);
            machine.fs.power_loss(keep);
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage, []);
            oracle.check(&log).await;
        });
    }
}

#[test]
fn the_greatest_timestamp_is_that_of_a_record_the_log_holds() {
    // A record whose sync failed had the greatest timestamp, and the log went on in another file.
    // After a restart it still counted when the greatest was looked for, and nothing was found.
    block_on(async {
        let machine = Machine::new(3);
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        oracle.append_at(&mut log, value(0), 100).await.unwrap();
        let fault = Fault::new(Effect::FailSync(SyncFailure::Kept)).path_ends_with(".wal");
        machine.fs.inject(fault);
        oracle.append_at(&mut log, value(1), 900).await.unwrap_err();
        oracle.append_at(&mut log, value(2), 200).await.unwrap();
        drop(log);
        machine.fs.delete_file(manifest()).unwrap();
        let log = machine.open().await;
        oracle.check(&log).await;
        let found = log.reader().find_max_timestamp().await.unwrap().unwrap();
        assert_eq!((found.base_offset, found.max_timestamp_ms), (1, 200));
        oracle.look_up(&log.reader(), 0, 150).await;
    });
}

#[test]
fn what_is_left_of_a_large_torn_write_is_found() {
    // One call wrote many frames, more bytes than a frame can have. The power failed and only the
    // last of them were there, behind more zeros than opening looked through: it went on in front of
    // them, with frames of the same lengths, and after a crash the old ones were records of the log.
    block_on(async {
        let machine = Machine::new(4).with_segment_bytes(64 << 20);
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        // Whole pages, so that no padding comes over what is left.
        let end = 4096;
        let first = [batch(vec![0; 4096 - 32 - 64])];
        oracle.append_batches(&mut log, &first).await.unwrap();
        let len = (1 << 18) - 64;
        let many: Vec<_> = (0..12u8).map(|n| batch(vec![n + 1; len])).collect();
        machine
            .fs
            .inject(Fault::new(Effect::Crash { bytes: 0 }).on(&[OpKind::SyncData]));
        oracle.append_batches(&mut log, &many).await.unwrap_err();
        drop(log);
        // The last one that was written is on the disk.
        let written = machine.fs.read_file(segment(0)).unwrap().len() as u64;
        assert_eq!((written - end) % (1 << 18), 0);
        let kept = written - (1 << 18)..written;
        let fate = sq_sim::FileFate::new(sq_sim::ContentFate::NewIn(vec![kept]));
        machine.fs.power_loss(PowerLoss::new(fate, EntryFate::Kept));
        let mut log = machine.open().await;
        oracle.check(&log).await;
        for n in 0..11u8 {
            let one = [batch(vec![n + 101; len])];
            oracle.append_batches(&mut log, &one).await.unwrap();
        }
        drop(log);
        machine.fs.power_loss(Keep::None);
        oracle.check(&machine.open().await).await;
        assert!(oracle.end() >= 12);
    });
}

#[test]
fn a_forged_frame_in_a_torn_first_record_is_no_evidence() {
    // A client's record held a frame that says all below 2^40 was committed. It was the first of its
    // segment, of which the manifest did not know yet, and a crash tore it: opening took the forged
    // frame for one of the segment's, and the log was damaged from there to 2^40. Where the manifest
    // did know, but that the segment is empty, the forged one passed for the youngest of its base,
    // and the partition did not open.
    for lines_fail in [false, true] {
        for fate in [SectorFate::Zero, SectorFate::Garbage, SectorFate::Old] {
            block_on(async {
                let machine = Machine::new(5);
                let mut oracle = Oracle::default();
                let mut log = machine.open().await;
                oracle.append(&mut log, value(0)).await.unwrap();
                log.close_active_segment().await.unwrap();
                if lines_fail {
                    let lines = Fault::new(Effect::Fail(Errno::Io));
                    let lines = lines.path(PathPattern::Contains("manifest".into()));
                    machine.fs.inject(lines.always());
                }
                let value = [vec![1; 600], forged(), vec![2; 600]].concat();
                let crash = Fault::new(Effect::Crash { bytes: 0 }).on(&[OpKind::SyncData]);
                machine
                    .fs
                    .inject(crash.path(PathPattern::Exactly(segment(1))));
                oracle
                    .append_batches(&mut log, &[batch(value)])
                    .await
                    .unwrap_err();
                drop(log);
                machine.fs.clear_faults();
                machine.fs.power_loss(Keep::All);
                // What the first sector holds beside the segment's header is as the power left it.
                let bytes = match fate {
                    SectorFate::Garbage => vec![0xa7; 480],
                    _ => vec![0; 480],
                };
                machine.fs.overwrite(segment(1), 32, &bytes).unwrap();
                for round in 1..4 {
                    let mut log = machine.open().await;
                    assert_eq!(log.recovery_report().damage, []);
                    assert_eq!(log.next_offset(), round);
                    oracle.append(&mut log, b"next".to_vec()).await.unwrap();
                    oracle.check(&log).await;
                }
            });
        }
    }
}

#[test]
fn a_segment_with_an_unreadable_first_record_keeps_the_others() {
    // Without a line of the manifest, what the first frame says of itself tells the others' id, and
    // where that is damaged, the frame that stands where the first one ends.
    for bit in 32 * 8..(32 + 64) * 8 {
        block_on(async {
            let machine = Machine::new(6);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            for n in 0..4 {
                oracle.append(&mut log, value(n)).await.unwrap();
            }
            drop(log);
            machine.fs.delete_file(manifest()).unwrap();
            machine
                .fs
                .flip_bit(segment(0), bit / 8, (bit % 8) as u8)
                .unwrap();
            let log = machine.open().await;
            let damage = &log.recovery_report().damage;
            assert_eq!(damage.len(), 1, "bit {bit}");
            assert_eq!((damage[0].offsets.clone(), damage[0].position), (0..1, 32));
            assert_eq!(log.next_offset(), 4);
            assert_eq!(log.reader().read(1, 1).await.unwrap()[0].base_offset, 1);
        });
    }
}

#[test]
fn a_segment_whose_bytes_are_all_gone_is_damage_and_is_kept() {
    // The manifest was lost, and a segment between others held nothing but zeros. That is how a roll
    // that came to nothing leaves a file, so it was removed, and its neighbour was blamed.
    for left in [0, 32] {
        block_on(async {
            let machine = Machine::new(7).with_segment_bytes(1100);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            for n in 0..9 {
                oracle.append(&mut log, value(n)).await.unwrap();
            }
            drop(log);
            let segments = machine.segments();
            assert_eq!(segments, [segment(0), segment(5), segment(8)]);
            machine.fs.delete_file(manifest()).unwrap();
            let mut bytes = machine.fs.read_file(segment(5)).unwrap();
            bytes[left..].fill(0);
            machine.fs.write_file(segment(5), bytes).unwrap();
            for _ in 0..2 {
                let log = machine.open().await;
                let damage = &log.recovery_report().damage;
                assert_eq!((damage.len(), damage[0].offsets.clone()), (1, 5..8));
                assert_eq!(damage[0].path, segment(5));
                assert_eq!(log.next_offset(), 9);
                assert_eq!(machine.segments(), segments);
                log.close().await.unwrap();
            }
        });
    }
}

#[test]
fn a_removal_is_durable_before_the_manifest_forgets_the_segment() {
    // Both files of a partition held only a record whose sync had failed. The first was removed, not
    // durably, the second could not be; the next opening wrote a manifest that knew of the second
    // only. The power brought the first back, and its record with it.
    for (kept, failing, crash_at) in (0..1024).map(|n| (n % 16, n / 16 % 4, n / 64)) {
        block_on(async {
            let machine = Machine::new(8);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            let poison = Fault::new(Effect::FailSync(SyncFailure::Kept));
            let poison = poison.on(&[OpKind::SyncData]).path_ends_with(".wal");
            machine.fs.inject(poison.times(2));
            oracle.append(&mut log, value(0)).await.unwrap_err();
            oracle.append(&mut log, value(1)).await.unwrap_err();
            log.close().await.unwrap();
            let stays = PathPattern::Exactly(machine.segments()[1].clone());
            let stays = Fault::new(Effect::Fail(Errno::Io)).path(stays);
            machine.fs.inject(stays.on(&[OpKind::RemoveFile]));
            let unsynced = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::SyncDir]);
            machine.fs.inject(unsynced.skip(failing));
            if let Ok(log) = machine.try_open().await {
                oracle.check(&log).await;
            }
            machine.fs.clear_faults();
            machine.fs.crash_after(crash_at);
            let _ = machine.try_open().await;
            machine
                .fs
                .power_loss(PowerLoss::from(Keep::All).with_entries(EntryFate::These(kept)));
            oracle.check(&machine.open().await).await;
        });
    }
}

#[test]
fn an_end_that_only_the_manifest_tells_is_durable_before_it_is_told() {
    // An append was dropped, or its sync failed, and the log was closed without it: the manifest's last
    // line said where its segment ends. The process crashed before that line was synced, opening went
    // by it all the same, and after a power loss there was a record behind the end that had been told.
    for first_of_segment in [false, true] {
        for at in 0.. {
            let whole = block_on(async {
                let machine = Machine::new(9);
                let mut oracle = Oracle::default();
                let mut log = machine.open().await;
                oracle.append(&mut log, value(0)).await.unwrap();
                if first_of_segment {
                    log.close_active_segment().await.unwrap();
                }
                let fault = Fault::new(Effect::FailSync(SyncFailure::Kept));
                let fault = fault.on(&[OpKind::SyncData]).path_ends_with(".wal");
                machine.fs.inject(fault);
                oracle.append(&mut log, value(1)).await.unwrap_err();
                machine.fs.crash_after(at);
                let whole = log.close().await.is_ok() && !machine.fs.is_crashed();
                machine.fs.process_crash();
                // The lines may be written anew in vain, too.
                let anew = Fault::new(Effect::Fail(Errno::NoSpace)).on(&[OpKind::CreateNew]);
                machine.fs.inject(anew);
                oracle.check(&machine.open().await).await;
                machine.fs.power_loss(Keep::None);
                oracle.check(&machine.open().await).await;
                whole
            });
            if whole {
                assert!(at > 1);
                break;
            }
        }
    }
}

#[test]
fn an_end_that_only_a_torn_file_tells_is_durable_before_it_is_told() {
    // The sync of an append failed, and the append of the next file was torn: after a process crash the log
    // ended where that file begins, though there was nothing in it but a piece of a frame that was never
    // synced. After a power loss the file was empty, nothing ended the one in front of it, and the record
    // whose append had failed was back behind the end that had been told.
    for torn in [4, 20, 70] {
        block_on(async {
            let mut machine = Machine::new(10);
            // The frames are from 1970.
            machine.config.max_segment_age = std::time::Duration::MAX;
            let frames = (0..3).map(|n| frame(1, 0, n, n, &value(n)));
            machine.fs.write_file(segment(0), file(frames)).unwrap();
            let next = file([]);
            machine.fs.write_file(segment(2), next.clone()).unwrap();
            let piece = frame(2, 1, 2, 2, &value(9));
            let fs = machine.fs.for_this_process();
            let torn_file = fs.open(&segment(2)).await.unwrap();
            let piece = Bytes::copy_from_slice(&piece[..torn]);
            torn_file
                .write_at(next.len() as u64, &[piece])
                .await
                .unwrap();
            machine.fs.process_crash();
            for _ in 0..2 {
                let log = machine.open().await;
                assert_eq!(log.next_offset(), 2, "{torn}");
                assert_eq!(values(&log.reader()).await, [value(0), value(1)]);
                assert_eq!(log.recovery_report().damage, []);
                drop(log);
                machine.fs.power_loss(Keep::None);
            }
            let mut log = machine.open().await;
            assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 2);
        });
    }
}
