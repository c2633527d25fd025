//! Operations that fail: the writer says so, loses nothing, and works again when the cause is gone.

use std::path::Path;

use sq_sim::{Effect, Errno, Fault, Keep, OpKind, PathPattern, SyncFailure};
use sq_storage::{Action, Batch, Error};

use crate::oracle::Oracle;
use crate::support::{DIR, Machine, Stop, block_on, segment, value, values};

#[test]
fn a_close_whose_sync_fails_removes_nothing_and_claims_nothing() {
    // Elsewhere a clean close removed the log although the sync just before had failed.
    block_on(async {
        let machine = Machine::new(40);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for n in 0..5 {
            oracle.append(&mut log, value(n)).await.unwrap();
        }
        machine
            .fs
            .inject(Fault::new(Effect::FailSync(SyncFailure::Lost)).on(&[OpKind::SyncData]));
        assert!(matches!(log.close().await, Err(Error::Sync { .. })));
        let unlinked = |op: &sq_sim::Op| op.kind == OpKind::RemoveFile;
        assert!(!machine.fs.trace().iter().any(unlinked));
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        assert_eq!(log.recovery_report().segments_scanned, 1);
        oracle.check(&log).await;
        assert_eq!(oracle.end(), 5);
    });
}

#[test]
fn a_new_segments_name_is_durable_before_its_first_record_is_acknowledged() {
    // Elsewhere the bytes were synced and acknowledged, the directory was not, and the file was
    // gone after a power loss.
    block_on(async {
        let machine = Machine::new(41).with_segment_bytes(900);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for n in 0..9 {
            oracle.append(&mut log, value(n)).await.unwrap();
            let durable = machine.fs.durable_files();
            assert!(machine.segments().iter().all(|s| durable.contains(s)));
        }
        drop(log);
        machine.fs.power_loss(Keep::None);
        oracle.check(&machine.open().await).await;
        assert_eq!(oracle.end(), 9);
    });
}

#[test]
fn nothing_lands_behind_a_write_that_was_cut_short() {
    // Elsewhere the file was opened for appending: a few bytes got in before the disk was full, the
    // next good record landed behind them, and the tear in the middle could not be repaired.
    let len = 76 + value(1).len() as u64;
    for bytes in 0..len {
        for cut_fails in [false, true] {
            block_on(async {
                let machine = Machine::new(42);
                let mut log = machine.open().await;
                let mut oracle = Oracle::default();
                oracle.append(&mut log, value(0)).await.unwrap();
                let short = Effect::ShortWrite {
                    bytes,
                    errno: Errno::NoSpace,
                };
                machine.fs.inject(Fault::new(short).on(&[OpKind::WriteAt]));
                if cut_fails {
                    machine.fs.fail_next(OpKind::SetLen, Errno::Io);
                }
                let error = oracle.append(&mut log, value(1)).await.unwrap_err();
                assert!(matches!(error, Error::Write { .. }), "{error}");
                oracle.append(&mut log, b"x".to_vec()).await.unwrap();
                let written = machine.fs.read_file(segment(0)).unwrap();
                if cut_fails {
                    assert_eq!(machine.segments().len(), 2, "the old file is left alone");
                } else {
                    let end = 32 + 76 + value(0).len() + 76 + 1;
                    assert!(written[end..].iter().all(|&b| b == 0));
                    assert_eq!(machine.segments().len(), 1);
                }
                drop(log);
                machine.fs.power_loss(Keep::None);
                oracle.check(&machine.open().await).await;
                assert_eq!(oracle.end(), 2);
            });
        }
    }
}

#[test]
fn a_write_that_fails_for_want_of_anything_but_space_ends_its_file() {
    block_on(async {
        let machine = Machine::new(55);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for (errno, files) in [(Errno::NoSpace, 1), (Errno::Quota, 1), (Errno::Io, 2)] {
            oracle.append(&mut log, value(0)).await.unwrap();
            let short = Effect::ShortWrite { bytes: 90, errno };
            machine.fs.inject(Fault::new(short).on(&[OpKind::WriteAt]));
            oracle.append(&mut log, value(1)).await.unwrap_err();
            oracle.append(&mut log, value(2)).await.unwrap();
            assert_eq!(machine.segments().len(), files, "{errno:?}");
        }
        oracle.check(&machine.open().await).await;
    });
}

#[test]
fn a_full_disk_refuses_appends_and_nothing_else() {
    // Elsewhere a node could not even start on a full disk.
    block_on(async {
        let machine = Machine::new(43);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for n in 0..10 {
            oracle.append(&mut log, value(n)).await.unwrap();
        }
        drop(log);
        let mut bytes = machine.fs.read_file(segment(0)).unwrap();
        let end = 32 + (0..10).map(|n| 76 + value(n).len()).sum::<usize>();
        bytes[end..end + 50].fill(9);
        machine.fs.write_file(segment(0), bytes).unwrap();
        machine.fs.set_free_space(Some(0));
        let mut log = machine.open().await;
        assert_eq!(log.next_offset(), 10);
        assert_eq!(values(&log.reader()).await.len(), 10);
        for _ in 0..20 {
            let error = log.append(None, b"no room", &[], 0).await.unwrap_err();
            assert_eq!(error.action(), Action::Retry, "{error}");
        }
        machine.fs.set_free_space(None);
        assert_eq!(log.append(None, b"room", &[], 0).await.unwrap(), 10);
        assert_eq!(values(&log.reader()).await.len(), 11);
    });
}

#[test]
fn a_full_disk_that_gets_room_again_needs_no_restart() {
    block_on(async {
        let machine = Machine::new(44).with_segment_bytes(900);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for round in 0..40 {
            machine.fs.set_free_space(Some(round * 301));
            for n in 0..5 {
                let _ = oracle.append(&mut log, value(n)).await;
            }
            machine.fs.set_free_space(None);
            oracle.append(&mut log, value(round)).await.unwrap();
        }
        drop(log);
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        oracle.check(&log).await;
        assert!(oracle.end() > 40);
    });
}

#[test]
fn a_roll_that_fails_is_undone() {
    // Elsewhere a failed roll left a half-made segment, and writes went on into it.
    for (kind, errno) in [
        (OpKind::CreateNew, Errno::TooManyOpenFiles),
        (OpKind::CreateNew, Errno::NoSpace),
        (OpKind::WriteAt, Errno::NoSpace),
        (OpKind::SyncAll, Errno::Io),
        (OpKind::SyncDir, Errno::Io),
    ] {
        block_on(async {
            let machine = Machine::new(45).with_segment_bytes(900);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            for n in 0..2 {
                oracle.append(&mut log, value(n)).await.unwrap();
            }
            let before = machine.segments();
            machine.fs.fail_next(kind, errno);
            let error = oracle.append(&mut log, vec![0; 700]).await.unwrap_err();
            assert_eq!(error.action(), Action::Retry, "{error}");
            assert_eq!(machine.segments(), before, "{kind:?}: no orphan");
            // What fits the old segment still goes there.
            oracle.append(&mut log, b"small".to_vec()).await.unwrap();
            assert_eq!(machine.segments(), before);
            oracle.append(&mut log, vec![0; 700]).await.unwrap();
            assert_eq!(machine.segments().len(), before.len() + 1);
            drop(log);
            machine.fs.power_loss(Keep::Mixed);
            oracle.check(&machine.open().await).await;
        });
    }
}

#[test]
fn a_manifest_that_cannot_be_written_holds_no_append_up() {
    block_on(async {
        let machine = Machine::new(46).with_segment_bytes(900);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        let manifest = PathPattern::Contains("manifest".into());
        machine
            .fs
            .inject(Fault::new(Effect::Fail(Errno::Io)).path(manifest).always());
        for n in 0..9 {
            oracle.append(&mut log, value(n)).await.unwrap();
        }
        machine.fs.clear_faults();
        drop(log);
        machine.fs.power_loss(Keep::Mixed);
        let mut log = machine.open().await;
        assert_eq!(
            log.recovery_report().segments_scanned,
            machine.segments().len()
        );
        oracle.check(&log).await;
        oracle.append(&mut log, vec![0; 800]).await.unwrap();
        drop(log);
        assert_eq!(machine.open().await.recovery_report().segments_scanned, 1);
    });
}

#[test]
fn several_poisoned_files_in_a_row_make_it_read_only_until_told_otherwise() {
    block_on(async {
        let machine = Machine::new(47);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        oracle.append(&mut log, value(0)).await.unwrap();
        let failing = Fault::new(Effect::FailSync(SyncFailure::Lost)).on(&[OpKind::SyncData]);
        machine
            .fs
            .inject(failing.path(PathPattern::EndsWith(".wal".into())).always());
        for _ in 0..3 {
            let error = oracle.append(&mut log, value(1)).await.unwrap_err();
            assert!(matches!(error, Error::Sync { .. }), "{error}");
        }
        let files = machine.segments().len();
        machine.fs.clear_faults();
        for _ in 0..5 {
            let error = oracle.append(&mut log, value(1)).await.unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::ReadOnly {
                        poisoned_in_a_row: 3,
                        ..
                    }
                ),
                "{error}"
            );
        }
        assert_eq!(machine.segments().len(), files, "no further file is made");
        assert_eq!(
            values(&log.reader()).await.len(),
            1,
            "what is there stays readable"
        );
        log.allow_writes();
        oracle.append(&mut log, value(2)).await.unwrap();
        drop(log);
        for stop in Stop::ALL {
            stop.strike(&machine.fs);
            oracle.check(&machine.open().await).await;
        }
        assert_eq!(oracle.end(), 2);
        // Files that hold nothing that was acknowledged are gone, the others stay.
        assert_eq!(machine.segments().len(), 2, "{:?}", machine.segments());
    });
}

#[test]
fn a_failed_directory_sync_is_not_taken_for_a_durable_name() {
    block_on(async {
        for skip in 0..3 {
            let machine = Machine::new(48);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            machine.fs.inject(
                Fault::new(Effect::Fail(Errno::Io))
                    .on(&[OpKind::SyncDir])
                    .skip(skip),
            );
            oracle.append(&mut log, value(0)).await.unwrap_err();
            oracle.append(&mut log, value(1)).await.unwrap();
            drop(log);
            machine.fs.power_loss(Keep::None);
            oracle.check(&machine.open().await).await;
            assert_eq!(oracle.end(), 1);
        }
    });
}

#[test]
fn what_can_never_be_appended_is_refused_for_good() {
    block_on(async {
        let machine = Machine::new(49);
        let mut log = machine.open().await;
        let batch = |len: usize, record_count| Batch {
            payload: vec![vec![0; len].into()],
            record_count,
            max_timestamp_ms: 0,
            leader_epoch: 0,
        };
        for (batch, name) in [(batch(1 << 18, 1), "too large"), (batch(10, 0), "empty")] {
            let error = log.append_batches(&[batch]).await.unwrap_err();
            assert_eq!(error.action(), Action::GiveUp, "{name}: {error}");
        }
        assert!(matches!(
            log.append(None, b"", &[], u64::MAX).await,
            Err(Error::Timestamp(_))
        ));
        assert!(
            machine.fs.files().is_empty(),
            "nothing was created for them"
        );
        assert_eq!(log.append_batches(&[]).await.unwrap(), 0);
        assert_eq!(log.append_batches(&[batch(10, 1)]).await.unwrap(), 1);
    });
}

#[test]
fn batches_of_the_greatest_counts_pass_every_32_bit_limit() {
    // Elsewhere an offset minus its segment's base did not fit 31 bits, and index entries wrapped.
    block_on(async {
        let machine = Machine::new(50);
        let mut log = machine.open().await;
        let mut expected = Vec::new();
        for n in 0..6u8 {
            let batch = Batch {
                payload: vec![vec![n; 20_000].into()],
                record_count: i32::MAX as u32,
                max_timestamp_ms: i64::from(n),
                leader_epoch: 0,
            };
            expected.push(log.next_offset());
            assert_eq!(log.append_batches(&[batch]).await.unwrap(), 1);
        }
        assert!(log.next_offset() > 4_294_967_296 * 2);
        drop(log);
        let log = machine.open().await;
        for (n, base) in expected.iter().enumerate() {
            for offset in [*base, base + 1, base + i32::MAX as u64 - 1] {
                let frames = log.reader().read(offset, 1).await.unwrap();
                assert_eq!(frames[0].base_offset, *base);
                assert_eq!(usize::from(frames[0].payload.to_bytes()[0]), n);
            }
        }
        assert_eq!(Path::new(DIR), log.dir());
    });
}

/// A partition whose newest segment `base.wal` holds nothing but a record whose sync failed.
async fn poisoned_at_its_first_record(
    machine: &Machine,
    oracle: &mut Oracle,
    failure: SyncFailure,
) {
    let mut log = machine.open().await;
    oracle.append(&mut log, value(0)).await.unwrap();
    log.close_active_segment().await.unwrap();
    machine.fs.inject(
        Fault::new(Effect::FailSync(failure))
            .on(&[OpKind::SyncData])
            .path(PathPattern::Exactly(segment(1))),
    );
    oracle.append(&mut log, value(1)).await.unwrap_err();
    log.close().await.unwrap();
}

#[test]
fn a_removed_segment_that_comes_back_is_not_taken_for_more_than_it_was() {
    // Opening removed a segment in which nothing was acknowledged and dropped it from the manifest.
    // The removal was not durable, the file came back with the power, and its failed record with it.
    for keep in Keep::ALL {
        block_on(async {
            let machine = Machine::new(51);
            let mut oracle = Oracle::default();
            poisoned_at_its_first_record(&machine, &mut oracle, SyncFailure::Kept).await;
            machine.fs.inject(
                Fault::new(Effect::Fail(Errno::Io))
                    .on(&[OpKind::SyncDir])
                    .skip(2),
            );
            let log = machine.open().await;
            assert_eq!(log.recovery_report().removed_empty, [segment(1)]);
            assert_eq!(log.next_offset(), 1);
            drop(log);
            machine.fs.power_loss(keep);
            assert_eq!(machine.open().await.next_offset(), 1);
        });
    }
}

#[test]
fn a_new_segment_under_a_removed_ones_name_is_not_taken_for_it() {
    // The manifest still said that the segment of that name was empty, the line of the new one could
    // not be written, and opening removed a file full of acknowledged records.
    block_on(async {
        let machine = Machine::new(52);
        let mut oracle = Oracle::default();
        poisoned_at_its_first_record(&machine, &mut oracle, SyncFailure::Kept).await;
        let mut log = machine.open().await;
        assert_eq!(log.recovery_report().removed_empty, [segment(1)]);
        let manifest = PathPattern::Contains("manifest".into());
        machine.fs.inject(
            Fault::new(Effect::Fail(Errno::NoSpace))
                .path(manifest)
                .always(),
        );
        for n in 2..5 {
            oracle.append(&mut log, value(n)).await.unwrap();
        }
        assert!(machine.segments().contains(&segment(1)));
        machine.fs.clear_faults();
        drop(log);
        for stop in Stop::ALL {
            stop.strike(&machine.fs);
            oracle.check(&machine.open().await).await;
        }
        assert_eq!(oracle.end(), 4);
    });
}

#[test]
fn no_file_is_removed_on_the_word_of_a_manifest_that_may_not_be_durable() {
    // The line that said "empty" was in the page cache only, its sync had failed. Opening read it,
    // removed the file, and after a power loss the manifest missed a segment.
    for failure in SyncFailure::ALL {
        for keep in Keep::ALL {
            block_on(async {
                let machine = Machine::new(53);
                let mut oracle = Oracle::default();
                let lines = Fault::new(Effect::FailSync(failure)).on(&[OpKind::SyncData]);
                let lines = lines
                    .path(PathPattern::Contains("manifest".into()))
                    .always();
                machine.fs.inject(lines.skip(1));
                poisoned_at_its_first_record(&machine, &mut oracle, SyncFailure::Lost).await;
                machine.fs.clear_faults();
                machine.fs.process_crash();
                oracle.check(&machine.open().await).await;
                machine.fs.power_loss(keep);
                oracle.check(&machine.open().await).await;
            });
        }
    }
}

#[test]
fn a_seal_counts_no_mark_that_was_not_synced() {
    // The seal's length took in a mark that was written when the partition was idle. It was lost with
    // the power, and the next opening found the segment too short.
    for keep in Keep::ALL {
        block_on(async {
            let machine = Machine::new(54);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            // The mark lies beyond the page that the record's write padded.
            oracle
                .append(&mut log, vec![7; 4096 - 32 - 76])
                .await
                .unwrap();
            log.mark().await.unwrap();
            log.close_active_segment().await.unwrap();
            oracle.append(&mut log, value(1)).await.unwrap();
            drop(log);
            machine.fs.power_loss(keep);
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage, []);
            oracle.check(&log).await;
        });
    }
}

#[test]
fn no_manifest_line_is_written_behind_one_that_failed() {
    // A line behind a torn one could be read, and the torn one not: its segment would be scanned at
    // every opening from then on, and the manifest be reported as damaged after a full disk.
    block_on(async {
        let machine = Machine::new(55).with_segment_bytes(900);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        oracle.append(&mut log, vec![0; 700]).await.unwrap();
        let torn = Effect::ShortWrite {
            bytes: 20,
            errno: Errno::NoSpace,
        };
        let torn = Fault::new(torn).on(&[OpKind::WriteAt]);
        let manifest = PathPattern::Contains("manifest".into());
        machine.fs.inject(torn.path(manifest));
        for _ in 0..3 {
            oracle.append(&mut log, vec![0; 700]).await.unwrap();
        }
        assert_eq!(machine.fs.faults_left(), 0);
        drop(log);
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        assert_eq!(log.recovery_report().damaged_manifest_lines, 0);
        assert_eq!(log.recovery_report().segments_scanned, 1);
        oracle.check(&log).await;
    });
}

#[test]
fn a_manifest_that_lacks_a_segment_is_written_anew_with_the_next_line() {
    // Its lines could not be written, and then the process ended. Lines that are only added to such a
    // manifest leave out for ever what it lacks.
    block_on(async {
        let machine = Machine::new(56).with_segment_bytes(900);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        oracle.append(&mut log, vec![0; 700]).await.unwrap();
        let manifest = PathPattern::Contains("manifest".into());
        let failing = Fault::new(Effect::Fail(Errno::NoSpace)).path(manifest);
        machine.fs.inject(failing.always());
        for _ in 0..3 {
            oracle.append(&mut log, vec![0; 700]).await.unwrap();
        }
        machine.fs.clear_faults();
        drop(log);
        let mut log = machine.open().await;
        assert_eq!(log.recovery_report().segments_scanned, 4);
        oracle.append(&mut log, vec![0; 700]).await.unwrap();
        drop(log);
        let log = machine.open().await;
        assert_eq!(log.recovery_report().segments_scanned, 1);
        oracle.check(&log).await;
    });
}
