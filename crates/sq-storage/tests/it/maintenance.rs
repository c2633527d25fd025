//! What a roll leaves to be done behind the appends, whoever does it and however often it is cut short.

use std::path::Path;

use sq_sim::{Effect, Errno, Fault, Op, OpKind, PathPattern, poll_n_then_drop};
use sq_storage::MaintenanceMode;
use sq_storage::wal::manifest::{ManifestContent, ManifestEntry};

use crate::oracle::Oracle;
use crate::support::{DIR, Machine, Stop, Writer, block_on, is_crash, value};

fn handed(seed: u64) -> Machine {
    let mut machine = Machine::new(seed).with_segment_bytes(900);
    machine.config.maintenance = MaintenanceMode::Handed;
    machine
}

async fn append(log: &mut Writer, oracle: &mut Oracle, count: u64) {
    for _ in 0..count {
        let value = value(oracle.end());
        oracle.append(log, value).await.unwrap();
    }
}

fn listed(machine: &Machine) -> Vec<ManifestEntry> {
    let manifest = machine.fs.read_durable(Path::new(DIR).join("manifest"));
    ManifestContent::decode(&manifest.unwrap_or_default()).entries
}

fn is_chore(op: &Op) -> bool {
    op.kind == OpKind::SetLen || op.path.to_string_lossy().contains("manifest")
}

#[test]
fn a_writer_that_is_told_nothing_leaves_nothing_undone() {
    block_on(async {
        let machine = Machine::new(1).with_segment_bytes(900);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for _ in 0..40 {
            append(&mut log, &mut oracle, 1).await;
            assert!(!log.maintenance().is_pending());
            let segments = log.reader().segments();
            let entries = listed(&machine);
            assert_eq!(entries.len(), segments.len());
            for (entry, segment) in entries.iter().zip(&segments) {
                assert_eq!(
                    (entry.id, entry.name.base_offset),
                    (segment.id, segment.base_offset)
                );
                let is_last = segment.end_offset == log.next_offset();
                assert_eq!(
                    entry.seal.map(|s| s.end_offset),
                    (!is_last).then_some(segment.end_offset)
                );
            }
        }
    });
}

#[test]
fn no_append_does_what_somebody_else_was_given_to_do() {
    block_on(async {
        let machine = handed(2);
        let mut log = machine.open().await;
        machine.fs.take_trace();
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 20).await;
        let rolls = log.reader().segments().len();
        assert!(rolls > 4);
        assert_eq!(
            machine.fs.trace().iter().filter(|op| is_chore(op)).count(),
            0
        );
        assert!(listed(&machine).is_empty());

        assert!(log.maintenance().wait().await);
        log.maintenance().run().await.unwrap();
        assert!(!log.maintenance().is_pending());
        assert_eq!(listed(&machine).len(), rolls);
        for segment in &log.reader().segments()[..rolls - 1] {
            let file = machine.fs.read_file(&segment.path).unwrap();
            assert_eq!(file.len() as u64, segment.bytes);
        }
        machine.fs.process_crash();
        let log = machine.open().await;
        assert_eq!(
            log.recovery_report().segments_scanned,
            1,
            "the others are listed"
        );
        oracle.check(&log).await;
    });
}

#[test]
fn what_fails_is_tried_again_in_its_place() {
    block_on(async {
        let machine = handed(3);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 20).await;
        let manifest = PathPattern::Contains("manifest".into());
        let failing = Fault::new(Effect::Fail(Errno::NoSpace)).path(manifest);
        machine.fs.inject(failing);
        let maintenance = log.maintenance();
        assert!(maintenance.run().await.is_err());
        assert!(maintenance.is_pending());
        // Behind what failed.
        append(&mut log, &mut oracle, 20).await;
        maintenance.run().await.unwrap();
        assert_eq!(listed(&machine).len(), log.reader().segments().len());
        assert!(listed(&machine).is_sorted_by_key(|e| e.name.base_offset));
    });
}

#[test]
fn a_file_that_cannot_be_cut_holds_nothing_up_for_long() {
    block_on(async {
        let machine = handed(4);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 9).await;
        let rolls = log.reader().segments().len();
        let failing = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::SetLen]);
        machine.fs.inject(failing.always());
        let maintenance = log.maintenance();
        let mut runs = 0;
        while maintenance.is_pending() {
            let _ = maintenance.run().await;
            runs += 1;
        }
        assert!(runs <= 2 * rolls + 1, "{runs} runs for {rolls} segments");
        assert_eq!(listed(&machine).len(), rolls);
    });
}

#[test]
fn a_writer_whose_chores_nobody_does_does_them_in_the_end() {
    block_on(async {
        let machine = handed(5);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 300).await;
        let (rolls, known) = (log.reader().segments().len(), listed(&machine).len());
        assert!(rolls > 60);
        assert!(rolls - known < 30, "{known} of {rolls} are listed");
    });
}

#[test]
fn a_closed_log_has_nothing_left_to_do_and_says_so() {
    block_on(async {
        let machine = handed(6);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 20).await;
        let (maintenance, rolls) = (log.maintenance(), log.reader().segments().len());
        log.close().await.unwrap();
        assert_eq!(listed(&machine).len(), rolls);
        assert!(!maintenance.wait().await);

        // And one whose writer is gone does nothing to the files of the next.
        let mut log = machine.open().await;
        append(&mut log, &mut oracle, 20).await;
        let maintenance = log.maintenance();
        assert!(maintenance.is_pending());
        drop(log);
        machine.fs.take_trace();
        maintenance.run().await.unwrap();
        assert!(machine.fs.trace().is_empty());
        assert!(!maintenance.wait().await);
        oracle.check(&machine.open().await).await;
    });
}

/// Rolls, does what was left, and stops after so many operations of that. Whether it had not ended.
fn stopped_at(stop: Stop, at: u64) -> bool {
    block_on(async {
        let machine = handed(7);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 12).await;
        machine.fs.crash_after(at);
        let done = log.maintenance().run().await;
        let hit = is_crash(&machine.fs);
        assert!(hit || done.is_ok());
        drop(log);
        stop.strike(&machine.fs);
        let mut log = machine.open().await;
        assert_eq!(log.recovery_report().damage, []);
        oracle.check(&log).await;
        append(&mut log, &mut oracle, 12).await;
        log.maintenance().run().await.unwrap();
        assert_eq!(listed(&machine).len(), log.reader().segments().len());
        hit
    })
}

#[test]
fn a_crash_between_any_two_operations_of_it_loses_nothing() {
    for stop in Stop::ALL {
        let mut at = 0;
        while stopped_at(stop, at) {
            at += 1;
        }
        assert!(at > 10, "{at} operations");
    }
}

#[test]
fn a_run_that_is_dropped_anywhere_leaves_the_rest_to_the_next() {
    for detached in [false, true] {
        let mut polls = 0;
        loop {
            let finished = block_on(async {
                let mut machine = handed(8);
                machine.habits.detached = detached;
                let mut log = machine.open().await;
                let mut oracle = Oracle::default();
                append(&mut log, &mut oracle, 12).await;
                let maintenance = log.maintenance();
                let run = poll_n_then_drop(maintenance.run(), polls).await;
                append(&mut log, &mut oracle, 6).await;
                maintenance.run().await.unwrap();
                assert_eq!(listed(&machine).len(), log.reader().segments().len());
                oracle.verify(&log.reader()).await;
                machine.fs.power_loss(sq_sim::Keep::None);
                let log = machine.open().await;
                assert_eq!(log.recovery_report().segments_scanned, 1);
                oracle.check(&log).await;
                run.is_some()
            });
            if finished {
                break;
            }
            polls += 1;
        }
        assert!(polls > 10, "{polls} polls");
    }
}
