//! Successors that fail to be made, are thrown away, or are found by an opening that must say what
//! they are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sq_sim::{
    Effect, Errno, Fault, FileSystem as _, Keep, OpKind, OsFileSystem, PathPattern, SyncFailure,
    poll_n_then_drop,
};
use sq_storage::{
    Action, Batch, Error, Evidence, MaintenanceMode, Rotation, TopicName, WalConfig, WalWriter,
};

use crate::damage::{file, frame};
use crate::oracle::Oracle;
use crate::rolling::{arm, handed, others};
use crate::support::{DIR, Machine, Stop, Writer, block_on, segment, value, values};

fn prepared(id: u64) -> PathBuf {
    format!("{DIR}/{id:016x}.prepared").into()
}

fn prepared_fault(effect: Effect) -> Fault {
    Fault::new(effect).path(PathPattern::EndsWith(".prepared".into()))
}

fn batch(payload: &[u8]) -> Batch {
    Batch {
        payload: vec![payload.to_vec().into()],
        record_count: 1,
        max_timestamp_ms: 0,
        leader_epoch: 0,
    }
}

async fn append(log: &mut Writer, oracle: &mut Oracle, count: u64) {
    for _ in 0..count {
        let value = value(oracle.end());
        oracle.append(log, value).await.unwrap();
    }
}

#[test]
fn a_successor_that_cannot_be_made_leaves_the_segment_as_it_is() {
    // Its directory's sync failed, or its creation; the half-made file stayed, or writes went on in it.
    for kind in [
        OpKind::CreateNew,
        OpKind::Allocate,
        OpKind::ZeroRange,
        OpKind::WriteAt,
        OpKind::SyncData,
        OpKind::SyncDir,
        OpKind::Open,
    ] {
        block_on(async {
            let machine = handed(1);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            append(&mut log, &mut oracle, 2).await;
            // The first sync of a directory is of what is above it.
            let skipped = u64::from(kind == OpKind::SyncDir);
            let fault = Fault::new(Effect::Fail(Errno::Io)).on(&[kind]);
            machine.fs.inject(fault.skip(skipped));
            let error = log.preparation(Some(9)).run().await.unwrap_err();
            assert_eq!(error.action(), Action::Retry, "{kind:?}");
            assert_eq!(machine.fs.faults_left(), 0, "{kind:?}");
            assert!(others(&machine).is_empty(), "{kind:?} leaves something");
            append(&mut log, &mut oracle, 2).await;
            assert_eq!(log.reader().segments().len(), 1);

            let again = log.preparation(Some(9)).run().await.unwrap();
            log.arm(again).unwrap();
            assert!(log.switch());
            append(&mut log, &mut oracle, 2).await;
            machine.fs.power_loss(Keep::None);
            oracle.check(&machine.open().await).await;
        });
    }
}

#[test]
fn a_name_whose_directory_cannot_be_synced_holds_nothing_up_and_comes_later() {
    block_on(async {
        let machine = handed(2);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 2).await;
        log.maintenance().run().await.unwrap();
        arm(&mut log).await.unwrap();
        assert!(log.switch());
        machine
            .fs
            .inject(Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::SyncDir]));
        append(&mut log, &mut oracle, 2).await;
        assert!(log.maintenance().run().await.is_err());
        append(&mut log, &mut oracle, 2).await;
        let manifest = Path::new(DIR).join("manifest");
        let listed = machine.fs.read_durable(&manifest).unwrap().len();
        log.maintenance().run().await.unwrap();
        assert!(machine.fs.read_durable(&manifest).unwrap().len() > listed);
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        assert!(log.recovery_report().adopted.is_empty());
        assert_eq!(machine.segments().len(), 2);
        oracle.check(&log).await;
    });
}

#[test]
fn the_manifest_lists_no_segment_whose_name_may_be_lost() {
    // It did, the rename was lost with the power, and the partition missed a segment.
    block_on(async {
        let machine = handed(3);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 2).await;
        arm(&mut log).await.unwrap();
        assert!(log.switch());
        append(&mut log, &mut oracle, 2).await;
        let fault = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::SyncDir]);
        machine.fs.inject(fault.always());
        for _ in 0..5 {
            assert!(log.maintenance().run().await.is_err());
        }
        machine.fs.clear_faults();
        drop(log);
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        assert_eq!(log.recovery_report().adopted, [segment(2)]);
        oracle.check(&log).await;
    });
}

#[test]
fn a_file_is_closed_behind_the_append_that_goes_on_in_the_next() {
    // The first append to a successor waited for the system to close the file before it: a tenth of what
    // an append takes.
    block_on(async {
        let machine = handed(6);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 2).await;
        arm(&mut log).await.unwrap();
        let open = machine.fs.open_files();
        assert!(log.switch());
        append(&mut log, &mut oracle, 1).await;
        assert_eq!(machine.fs.open_files(), open);
        log.maintenance().run().await.unwrap();
        assert_eq!(machine.fs.open_files(), open - 1);
        oracle.check(&log).await;
    });
}

/// Whether a durable write there does what it was told of the page in front of it.
async fn takes_hints(dir: &Path) -> bool {
    let fs = OsFileSystem::inline().with_direct_writes();
    let file = fs.create_new(&dir.join("probe")).await.unwrap();
    file.write_at(0, &[vec![1; 4096].into()]).await.unwrap();
    file.expect_write_at(32, vec![2; 32].into()).await;
    let written = file.write_and_sync_at(32, &[vec![3; 4064].into()]).await;
    written.unwrap();
    file.read_at(0, 1).await.unwrap()[0] == 2
}

/// The first frame shares its page with the header, which a direct write writes again as it was told: to
/// read it back would take a turn to the disk.
#[test]
fn a_successor_that_is_written_past_the_cache_is_told_its_header() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let is_told = takes_hints(dir.path()).await;
        let open = || async {
            let mut config = WalConfig::new(dir.path());
            config.maintenance = MaintenanceMode::Inline;
            let fs = Arc::new(OsFileSystem::inline().with_direct_writes());
            let topic = TopicName::new("orders").unwrap();
            WalWriter::new(fs, config, topic, 7).await.unwrap()
        };
        let mut log = open().await;
        for n in 0..4_u8 {
            log.append(None, &[n; 100], &[], 0).await.unwrap();
            log.append(None, &[n; 5000], &[], 0).await.unwrap();
            let prepared = log.preparation(Some(n.into())).run().await.unwrap();
            if is_told {
                // Read back, this would be written again.
                let path = format!("orders/7/{n:016x}.prepared");
                let file = OsFileSystem::inline().open(&dir.path().join(path)).await;
                file.unwrap()
                    .write_at(0, &[vec![0; 32].into()])
                    .await
                    .unwrap();
            }
            log.arm(prepared).unwrap();
            assert!(log.switch());
        }
        log.append(None, b"last", &[], 0).await.unwrap();
        drop(log);
        let log = open().await;
        let report = log.recovery_report();
        assert_eq!(
            (&report.damage[..], &report.set_aside[..]),
            (&[][..], &[][..])
        );
        assert_eq!(log.reader().segments().len(), 5);
        assert_eq!(log.next_offset(), 9);
    });
}

#[test]
fn a_full_disk_fails_one_preparation_and_no_append() {
    // The failed attempt was kept, and every append tried it again.
    block_on(async {
        let mut machine = handed(4);
        machine.config.rotation = Rotation::External;
        machine.config.max_segment_bytes = 1 << 20;
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 1).await;
        machine.fs.set_free_space(Some(60_000));
        let error = log.preparation(None).run().await.unwrap_err();
        assert_eq!(error.action(), Action::Retry);
        machine.fs.take_trace();
        append(&mut log, &mut oracle, 100).await;
        let trace = machine.fs.take_trace();
        let of_append = |kind| matches!(kind, OpKind::WriteAt | OpKind::SyncData);
        assert!(trace.iter().all(|op| of_append(op.kind)));

        machine.fs.set_free_space(None);
        arm(&mut log).await.unwrap();
        assert!(log.switch());
        append(&mut log, &mut oracle, 3).await;
        assert_eq!(log.reader().segments().len(), 2);
        oracle.verify(&log.reader()).await;
    });
}

#[test]
fn without_a_handle_to_spare_appends_go_on_to_the_end_of_the_segment() {
    // The limit of open files was hit at a roll, and the broker died of it.
    block_on(async {
        let machine = handed(5);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 2).await;
        machine.fs.set_max_open_files(Some(machine.fs.open_files()));
        assert!(log.preparation(None).run().await.is_err());
        let mut refused = 0;
        for n in 0..50 {
            let end = oracle.end();
            match oracle.append(&mut log, vec![n; 200]).await {
                Ok(offset) => assert_eq!((offset, refused), (end, 0)),
                Err(error) => {
                    assert_eq!(error.action(), Action::Retry, "{error}");
                    refused += 1;
                }
            }
        }
        assert!(oracle.end() > 8 && refused > 30);
        assert_eq!(log.reader().segments().len(), 1);
        machine.fs.set_max_open_files(None);
        arm(&mut log).await.unwrap();
        append(&mut log, &mut oracle, 3).await;
        assert_eq!(log.reader().segments().len(), 2, "one roll");
        drop(log);
        machine.fs.power_loss(Keep::None);
        oracle.check(&machine.open().await).await;
    });
}

#[test]
fn a_writer_has_one_successor_at_most_and_only_its_own() {
    block_on(async {
        let machine = handed(6);
        let mut log = machine.open().await;
        let first = log.preparation(None).run().await.unwrap();
        let second = log.preparation(None).run().await.unwrap();
        assert!(!log.switch(), "nothing is armed");
        let (id, other) = (first.id(), second.id());
        log.arm(first).unwrap();
        let second = log.arm(second).unwrap_err();
        assert_eq!((log.armed(), second.id()), (Some(id), other));
        second.discard().await.unwrap();
        assert_eq!(others(&machine), [prepared(id)]);

        let mut foreign = machine.open_as("orders", 8).await.unwrap();
        let first = foreign.arm(log.disarm().unwrap()).unwrap_err();
        log.arm(first).unwrap();
        log.append(None, b"a", &[], 0).await.unwrap();
        assert_eq!(log.armed(), None, "also the first segment may be prepared");
        arm(&mut log).await.unwrap();
        assert!(log.switch());
        arm(&mut log).await.unwrap();
        assert!(!log.switch(), "no empty segment is left behind");
        assert!(log.armed().is_some());
        log.close().await.unwrap();
        assert!(others(&machine).is_empty(), "a close leaves none");
    });
}

#[test]
fn an_id_is_for_one_segment_only() {
    block_on(async {
        let machine = handed(7);
        let mut log = machine.open().await;
        let first = log.preparation(Some(5)).run().await.unwrap();
        let taken = |error: &Error| match error {
            Error::Io { source, .. } => source.kind() == std::io::ErrorKind::AlreadyExists,
            _ => false,
        };
        let again = log.preparation(Some(5)).run().await.unwrap_err();
        assert!(taken(&again), "{again}");
        assert!(
            machine.fs.files().contains(&prepared(5)),
            "it is still there"
        );
        log.arm(first).unwrap();
        log.append(None, b"a", &[], 0).await.unwrap();
        let again = log.preparation(Some(5)).run().await.unwrap_err();
        assert!(taken(&again), "{again}");
        log.close().await.unwrap();
        let mut log = machine.open().await;
        let again = log.preparation(Some(5)).run().await.unwrap_err();
        assert!(taken(&again), "{again}");

        // The id of a segment that was taken out of the log was given to another, and the manifest, in which
        // that had been removed, never listed the new one.
        log.purge_to(log.next_offset()).await.unwrap();
        let again = log.preparation(Some(5)).run().await.unwrap_err();
        assert!(taken(&again), "{again}");
        drop(log);
        let log = machine.open().await;
        let again = log.preparation(Some(5)).run().await.unwrap_err();
        assert!(taken(&again), "{again}");
        let _ = log.preparation(Some(6)).run().await.unwrap();
    });
}

#[test]
fn a_preparation_that_is_dropped_anywhere_is_cleared_away() {
    for detached in [false, true] {
        for polls in 0.. {
            let finished = block_on(async {
                let mut machine = handed(8);
                machine.habits.detached = detached;
                let mut log = machine.open().await;
                let mut oracle = Oracle::default();
                append(&mut log, &mut oracle, 2).await;
                let dropped = poll_n_then_drop(log.preparation(None).run(), polls).await;
                let finished = dropped.is_some();
                drop(dropped);
                log.maintenance().run().await.unwrap();
                append(&mut log, &mut oracle, 2).await;
                arm(&mut log).await.unwrap();
                assert!(log.switch());
                append(&mut log, &mut oracle, 2).await;
                log.maintenance().run().await.unwrap();
                assert!(others(&machine).len() <= usize::from(detached));
                machine.fs.power_loss(Keep::All);
                oracle.check(&machine.open().await).await;
                assert!(others(&machine).is_empty());
                finished
            });
            if finished {
                assert!(polls > 5, "{polls}");
                break;
            }
        }
    }
}

#[test]
fn the_name_of_a_switched_file_is_never_taken_by_another() {
    // The first write of a segment failed before it had its name, and the file that took its place,
    // with the same base, took the name as well: one of the two was overwritten.
    for named_in_between in [false, true] {
        block_on(async {
            let machine = handed(9);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            append(&mut log, &mut oracle, 2).await;
            arm(&mut log).await.unwrap();
            assert!(log.switch());
            let fault = prepared_fault(Effect::FailSync(SyncFailure::Kept));
            machine.fs.inject(fault.on(&[OpKind::SyncData]));
            oracle.append(&mut log, value(2)).await.unwrap_err();
            if named_in_between {
                log.maintenance().run().await.unwrap();
            }
            append(&mut log, &mut oracle, 3).await;
            log.maintenance().run().await.unwrap();
            assert_eq!(machine.segments().len(), 3);
            oracle.verify(&log.reader()).await;
            drop(log);
            machine.fs.power_loss(Keep::None);
            let log = machine.open().await;
            oracle.check(&log).await;
        });
    }
}

#[test]
fn a_switched_file_takes_no_name_that_a_failed_creation_may_have_left() {
    block_on(async {
        let machine = handed(10);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 2).await;
        log.close_active_segment().await.unwrap();
        machine
            .fs
            .inject(Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::SyncAll]));
        machine
            .fs
            .inject(Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::RemoveFile]));
        oracle.append(&mut log, value(2)).await.unwrap_err();
        assert!(machine.segments().contains(&segment(2)), "it is left");
        arm(&mut log).await.unwrap();
        append(&mut log, &mut oracle, 2).await;
        log.maintenance().run().await.unwrap();
        assert_ne!(log.reader().segments()[1].path, segment(2));
        assert!(machine.segments().contains(&segment(2)));
        drop(log);
        machine.fs.process_crash();
        oracle.check(&machine.open().await).await;
    });
}

/// The files of a log whose old segment holds 0 to 99, the last ten of them not durable, and whose
/// new one, a prepared file, holds 100 to 104. The log's own writer syncs the old one first.
async fn lay_out(machine: &Machine, is_new_synced: bool) {
    let frames = |r: std::ops::Range<u64>| r.map(|n| frame(1, 0, n, n.min(90), &value(n)));
    let durable = file(frames(0..90));
    machine.fs.write_file(segment(0), durable.clone()).unwrap();
    let fs = machine.fs.for_this_process();
    let old = fs.open(&segment(0)).await.unwrap();
    let tail = frames(90..100).collect::<Vec<_>>().concat();
    old.write_at(durable.len() as u64, &[tail.into()])
        .await
        .unwrap();
    let new = fs.create_new(&prepared(2)).await.unwrap();
    let later = file((100..105).map(|n| frame(2, 1, n, 90, &value(n))));
    new.write_at(0, &[later.into()]).await.unwrap();
    if is_new_synced {
        new.sync_all().await.unwrap();
        fs.sync_dir(Path::new(DIR)).await.unwrap();
    }
}

#[test]
fn a_successor_of_a_tail_that_was_lost_unacknowledged_is_set_aside() {
    // There was a hole between the segments, or the log began to miss what nobody had been promised.
    let mut lost = 0;
    for seed in 0..200 {
        for (is_new_synced, keep) in [(true, Keep::None), (false, Keep::Sectors)] {
            block_on(async {
                let machine = Machine::new(seed);
                lay_out(&machine, is_new_synced).await;
                machine.fs.power_loss(keep);
                let mut log = machine.open().await;
                let report = log.recovery_report().clone();
                assert_eq!(report.damage, []);
                assert_eq!(others(&machine), report.set_aside);
                let found = values(&log.reader()).await;
                assert!(found.iter().zip(0..).all(|(v, n)| *v == value(n)));
                assert!((90..=105).contains(&found.len()));
                if is_new_synced {
                    assert_eq!(found.len(), 90);
                    assert_eq!(report.set_aside.len(), 1);
                }
                lost += usize::from(!report.set_aside.is_empty());
                let next = log.append(None, b"next", &[], 0).await.unwrap();
                assert_eq!(next, found.len() as u64);
                drop(log);
                machine.fs.power_loss(Keep::None);
                let log = machine.open().await;
                assert_eq!(log.next_offset(), next + 1);
                assert_eq!(log.recovery_report().set_aside, Vec::<PathBuf>::new());
            });
        }
    }
    assert!(lost > 210, "{lost} of 400");
}

#[test]
fn a_successor_that_says_the_lost_tail_was_acknowledged_makes_it_damage() {
    block_on(async {
        let machine = Machine::new(11);
        let frames = (0..90).map(|n| frame(1, 0, n, n, &value(n)));
        machine.fs.write_file(segment(0), file(frames)).unwrap();
        let later = file((100..105).map(|n| frame(2, 1, n, n, &value(n))));
        machine.fs.write_file(prepared(2), later).unwrap();
        let mut log = machine.open().await;
        let report = log.recovery_report();
        assert_eq!(report.adopted, [segment(100)]);
        assert_eq!(report.damage.len(), 1);
        assert_eq!(report.damage[0].path, segment(0));
        assert_eq!(report.damage[0].offsets, 90..100);
        assert_eq!(report.damage[0].evidence, Evidence::LaterFrame(104));
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 105);
        let read = log.reader().read(100, 1 << 20).await.unwrap();
        assert_eq!(read.len(), 6);
    });
}

#[test]
fn a_first_frame_that_cannot_be_read_is_damage_where_it_continues_the_log() {
    block_on(async {
        let machine = Machine::new(12);
        let frames = (0..10).map(|n| frame(1, 0, n, n, &value(n)));
        machine.fs.write_file(segment(0), file(frames)).unwrap();
        let mut later = file((10..15).map(|n| frame(2, 1, n, n, &value(n))));
        later[32 + 70] ^= 1;
        machine.fs.write_file(prepared(2), later).unwrap();
        let mut log = machine.open().await;
        let report = log.recovery_report();
        assert_eq!(report.adopted, [segment(10)]);
        assert_eq!(report.damage.len(), 1);
        assert_eq!(report.damage[0].path, segment(10));
        assert_eq!(report.damage[0].offsets, 10..11);
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 15);
        assert_eq!(log.reader().read(11, 1 << 20).await.unwrap().len(), 5);
    });
}

#[test]
fn a_base_that_nothing_proves_never_ends_another_segment() {
    // A flipped bit of the base would have made the file begin within the segment before it.
    block_on(async {
        let machine = Machine::new(13);
        let frames = (0..10).map(|n| frame(1, 0, n, n, &value(n)));
        machine.fs.write_file(segment(0), file(frames)).unwrap();
        let mut later = file((10..15).map(|n| frame(2, 1, n, n, &value(n))));
        later[32 + 23] ^= 2;
        machine.fs.write_file(prepared(2), later).unwrap();
        let log = machine.open().await;
        let report = log.recovery_report();
        assert_eq!(report.damage.len(), 1);
        assert_eq!(report.damage[0].offsets, 10..11);
        assert_eq!(log.next_offset(), 15);
        assert_eq!(log.reader().read(0, 1 << 20).await.unwrap().len(), 10);
    });
}

#[test]
fn what_is_left_of_a_torn_first_write_ends_no_segment_that_came_after_it() {
    // The first write to a successor was dropped, and the log went on in another file at the same offset. A
    // power loss left of the dropped write its second frame. The file was taken for a segment that begins
    // there, and ended the one that held what was acknowledged: all of that was reported as lost.
    for stated in [false, true] {
        block_on(async {
            let machine = Machine::new(15);
            let mut torn = file((0..3).map(|n| frame(1, 0, n, 0, &value(90 + n))));
            let first = frame(1, 0, 0, 0, &value(90)).len();
            let lost = if stated { 32 + 64 } else { 32 }..32 + first;
            torn[lost].fill(0);
            machine.fs.write_file(prepared(1), torn).unwrap();
            let came_after = format!("{DIR}/{:020}-{:016x}.wal", 0, 2);
            let frames = (0..9).map(|n| frame(2, 1, n, n, &value(n)));
            machine.fs.write_file(came_after, file(frames)).unwrap();
            let next = file((9..11).map(|n| frame(3, 2, n, n, &value(n))));
            machine.fs.write_file(prepared(3), next).unwrap();
            for _ in 0..2 {
                let log = machine.open().await;
                assert_eq!(log.recovery_report().damage, []);
                let expected: Vec<_> = (0..11).map(value).collect();
                assert_eq!(values(&log.reader()).await, expected);
            }
        });
    }
}

/// Of a write of several frames, the first to a successor in front of which all was purged, a power loss left the
/// last ones. The log was taken to begin with these: at an offset that nothing had been acknowledged below.
#[test]
fn what_is_left_of_a_torn_first_write_moves_no_start() {
    let mut torn = 0;
    for seed in 0..100 {
        block_on(async {
            let machine = handed(seed);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            append(&mut log, &mut oracle, 3).await;
            log.maintenance().run().await.unwrap();
            let successor = log.preparation(None).run().await.unwrap();
            log.arm(successor).unwrap();
            oracle.purge_to(&mut log, 3).await.unwrap();
            log.removal().run().await.unwrap();
            let batches: Vec<_> = (0..6).map(|n| batch(&vec![n; 900])).collect();
            let lost = Fault::new(Effect::FailSync(SyncFailure::StillDirty));
            machine.fs.inject(lost.on(&[OpKind::SyncData]));
            oracle.append_batches(&mut log, &batches).await.unwrap_err();
            drop(log);
            machine.fs.power_loss(Keep::Sectors);
            let mut log = machine.open().await;
            torn += usize::from(log.recovery_report().unacknowledged_tail.is_some());
            oracle.check(&log).await;
            append(&mut log, &mut oracle, 2).await;
            machine.fs.power_loss(Keep::None);
            oracle.check(&machine.open().await).await;
        });
    }
    assert!(torn > 10, "{torn}");
}

#[test]
fn what_cannot_be_explained_is_set_aside_and_what_is_empty_removed() {
    block_on(async {
        let mut machine = Machine::new(14);
        machine.config.max_frame_bytes = 4096;
        machine
            .fs
            .write_file(segment(0), file([frame(1, 0, 0, 0, b"a")]))
            .unwrap();
        let far = [file([]), vec![0; 100_000], vec![1]].concat();
        let foreign = file([frame(99, 0, 1, 1, b"of another segment")]);
        let empty = [file([]), vec![0; 100_000]].concat();
        let torn = [file([]), frame(6, 1, 1, 1, b"torn")[..70].to_vec()].concat();
        for (id, bytes) in [(2, far), (3, foreign), (4, empty), (5, vec![]), (6, torn)] {
            machine.fs.write_file(prepared(id), bytes).unwrap();
        }
        let not_ours = Path::new(DIR).join("1.prepared");
        machine.fs.write_file(&not_ours, "?").unwrap();
        for _ in 0..2 {
            let log = machine.open().await;
            assert_eq!(log.next_offset(), 1);
            let mut aside = others(&machine);
            aside.retain(|path| *path != not_ours);
            assert_eq!(aside.len(), 3);
            let report = log.recovery_report();
            if !report.set_aside.is_empty() {
                assert_eq!(report.set_aside, aside);
                assert_eq!(report.removed_empty, [prepared(4), prepared(5)]);
            }
            drop(log);
            machine.fs.power_loss(Keep::None);
        }
    });
}

#[test]
fn a_successor_that_was_never_used_is_gone_after_any_stop() {
    for stop in Stop::ALL {
        block_on(async {
            let machine = handed(15);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            append(&mut log, &mut oracle, 2).await;
            arm(&mut log).await.unwrap();
            drop(log);
            stop.strike(&machine.fs);
            let log = machine.open().await;
            assert_eq!(log.recovery_report().removed_empty.len(), 1);
            assert!(others(&machine).is_empty());
            oracle.check(&log).await;
        });
    }
}

#[test]
fn a_bit_that_is_lost_when_a_prepared_file_is_read_loses_no_record() {
    // It held one frame, acknowledged, in which a bit was wrong once: the file was set aside, and the log
    // ended in front of it.
    for skip in 0..40 {
        block_on(async {
            let machine = Machine::new(16);
            let first = file([frame(1, 0, 0, 0, b"a")]);
            machine.fs.write_file(segment(0), first).unwrap();
            let second = file([frame(2, 1, 1, 1, &[7; 4000])]);
            machine.fs.write_file(prepared(2), second).unwrap();
            machine
                .fs
                .inject(Fault::new(Effect::FlipBitOfRead).skip(skip));
            let log = machine.open().await;
            assert_eq!(log.next_offset(), 2, "{skip}");
            assert_eq!(log.recovery_report().adopted, [segment(1)]);
        });
    }
}

#[test]
fn a_bit_that_is_lost_when_a_prepared_file_is_read_moves_no_start() {
    // It held a log's first frames, and a bit of the first was wrong once: the file was given the name of a
    // segment that begins with the second, and so did the log.
    for skip in 0..40 {
        block_on(async {
            let machine = Machine::new(17);
            let frames = (0..2).map(|n| frame(2, 0, n, n, &value(n)));
            machine.fs.write_file(prepared(2), file(frames)).unwrap();
            machine
                .fs
                .inject(Fault::new(Effect::FlipBitOfRead).skip(skip));
            let log = machine.open().await;
            let reader = log.reader();
            assert_eq!((reader.start_offset(), log.next_offset()), (0, 2), "{skip}");
            assert_eq!(log.recovery_report().adopted, [segment(0)]);
        });
    }
}

#[test]
fn no_segment_takes_the_name_that_an_earlier_one_of_its_base_is_yet_to_get() {
    // The first two syncs behind a switch failed, and the third segment of that base was created under the
    // name that the switched file was to get. It got it, and the acknowledged record was gone.
    for failures in 1..=4 {
        block_on(async {
            let mut machine = handed(18);
            machine.config.max_poisoned_in_a_row = 9;
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            append(&mut log, &mut oracle, 2).await;
            arm(&mut log).await.unwrap();
            assert!(log.switch());
            for _ in 0..failures {
                let fault = Fault::new(Effect::FailSync(SyncFailure::Lost));
                machine.fs.inject(fault.on(&[OpKind::SyncData]));
                let value = value(oracle.end());
                oracle.append(&mut log, value).await.unwrap_err();
            }
            append(&mut log, &mut oracle, 1).await;
            log.maintenance().run().await.unwrap();
            oracle.verify(&log.reader()).await;
            drop(log);
            machine.fs.power_loss(Keep::None);
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage, [], "{failures}");
            oracle.check(&log).await;
        });
    }
}
