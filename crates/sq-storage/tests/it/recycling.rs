//! Files of purged segments that are written again: what they held before is never seen, and nothing
//! that is under way ever reaches them.

use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use sq_sim::{
    Effect, Errno, Fault, FileSystem as _, Keep, OpKind, PathPattern, Stop, SyncFailure,
    poll_n_then_drop,
};
use sq_storage::wal::mutants::{Guard, without};
use sq_storage::{Batch, MaintenanceMode, ReadError, Reserve, Rotation, Spares};

use crate::damage::{file, frame};
use crate::mutants::is_torn_and_goes_on;
use crate::oracle::Oracle;
use crate::rolling::{PowerOr, arm, others};
use crate::support::{DIR, Machine, Writer, block_on, is_crash, segment};

const RECORD_BYTES: usize = 1_500;

/// A machine whose segments hold some pages, and which keeps the files of those that are purged.
fn machine(seed: u64) -> Machine {
    let mut machine = Machine::new(seed).with_segment_bytes(20_000);
    machine.config.maintenance = MaintenanceMode::Handed;
    machine.config.zero_ahead_bytes = 8_192;
    machine.config.spares = Spares::default();
    machine
}

/// The files that were put aside.
fn spares(machine: &Machine) -> Vec<PathBuf> {
    let mut files = machine.fs.files();
    files.retain(|path| path.extension().is_some_and(|e| e == "spare"));
    files
}

/// Whether a file says that it was another segment's before.
fn is_recycled(machine: &Machine, path: &Path) -> bool {
    machine.fs.read_file(path).unwrap()[4..6] == [0, 2]
}

async fn append(log: &mut Writer, oracle: &mut Oracle, count: usize) -> Option<()> {
    for _ in 0..count {
        let value = vec![(oracle.end() % 251) as u8; RECORD_BYTES];
        oracle.append(log, value).await.ok()?;
    }
    Some(())
}

/// Fills a segment, goes on in the next one, and lets go of the one before.
async fn turn(log: &mut Writer, oracle: &mut Oracle) -> Option<()> {
    append(log, oracle, 9).await?;
    if log.armed().is_none() {
        arm(log).await.ok()?;
    }
    let end = oracle.end();
    log.switch().then_some(())?;
    append(log, oracle, 2).await?;
    log.maintenance().run().await.ok()?;
    oracle.purge_to(log, end).await.ok()?;
    log.removal().run().await.ok()
}

/// A log whose armed successor is in a file that was a segment's.
async fn recycled(machine: &Machine) -> (Writer, Oracle) {
    let mut log = machine.open().await;
    let mut oracle = Oracle::default();
    turn(&mut log, &mut oracle).await.unwrap();
    assert_eq!(spares(machine).len(), 1);
    arm(&mut log).await.unwrap();
    assert!(spares(machine).is_empty());
    (log, oracle)
}

/// A log that appends to such a file.
async fn in_recycled(machine: &Machine) -> (Writer, Oracle) {
    let (mut log, mut oracle) = recycled(machine).await;
    append(&mut log, &mut oracle, 6).await.unwrap();
    assert!(log.switch());
    append(&mut log, &mut oracle, 2).await.unwrap();
    log.maintenance().run().await.unwrap();
    let active = log.reader().segments().pop().unwrap();
    assert!(is_recycled(machine, &active.path));
    let bytes = machine.fs.read_file(&active.path).unwrap();
    let left = &bytes[usize::try_from(active.bytes)
        .unwrap()
        .next_multiple_of(4096)..];
    assert!(
        left.iter().filter(|&&b| b != 0).count() > 8_000,
        "it holds what it held before"
    );
    (log, oracle)
}

#[test]
fn the_file_of_a_purged_segment_becomes_the_next_successor() {
    block_on(async {
        let machine = machine(1);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        turn(&mut log, &mut oracle).await.unwrap();
        assert_eq!(spares(&machine).len(), 1);
        let held = machine.config.spares.used_bytes();
        assert!((10_000..20_000).contains(&held), "{held}");
        let trace = machine.fs.take_trace();
        let of_wal = |path: &Path| path.extension().is_some_and(|e| e == "wal" || e == "spare");
        let is_removal = |kind| matches!(kind, OpKind::RemoveFile);
        assert!(
            !trace
                .iter()
                .any(|op| is_removal(op.kind) && of_wal(&op.path))
        );

        arm(&mut log).await.unwrap();
        assert_eq!(machine.config.spares.used_bytes(), 0);
        let kinds: Vec<_> = machine.fs.take_trace().iter().map(|op| op.kind).collect();
        let expected = [
            OpKind::Open,
            OpKind::Len,
            OpKind::Allocate,
            OpKind::WriteAt,
            OpKind::SyncData,
            OpKind::Rename,
            OpKind::SyncDir,
            OpKind::Open,
        ];
        assert_eq!(kinds, expected, "nothing is created, and nothing zeroed");
        append(&mut log, &mut oracle, 5).await.unwrap();
        assert!(log.switch());
        machine.fs.take_trace();
        append(&mut log, &mut oracle, 6).await.unwrap();
        log.maintenance().run().await.unwrap();
        let trace = machine.fs.take_trace();
        let mut zeroed = trace.iter().filter(|op| op.kind == OpKind::ZeroRange);
        assert!(
            zeroed.all(|op| op.offset >= held - held % 4096),
            "nor is it later"
        );
        for _ in 0..5 {
            turn(&mut log, &mut oracle).await.unwrap();
            assert!(!spares(&machine).is_empty());
            oracle.verify(&log.reader()).await;
        }
        log.close().await.unwrap();
        assert_eq!(
            others(&machine),
            Vec::<PathBuf>::new(),
            "a close leaves none"
        );
        assert_eq!(machine.config.spares.used_bytes(), 0);
    });
}

#[test]
fn what_a_file_held_before_is_not_replayed() {
    // A file that held the records 0 to 99 was used again for a segment that begins at 500. After three
    // records the process was killed, and replay took up old ones behind the new end.
    for stop in Stop::ALL {
        block_on(async {
            let machine = machine(2);
            let mut log = machine.open().await;
            for n in 0..100_u64 {
                log.append(None, &n.to_be_bytes().repeat(12), &[], 0)
                    .await
                    .unwrap();
            }
            arm(&mut log).await.unwrap();
            assert!(log.switch());
            log.append(None, b"100", &[], 0).await.unwrap();
            log.maintenance().run().await.unwrap();
            log.purge_to(500).await.unwrap();
            log.removal().run().await.unwrap();
            arm(&mut log).await.unwrap();
            for n in 500..503_u64 {
                assert_eq!(log.append(None, b"new", &[], 0).await.unwrap(), n);
            }
            let active = log.reader().segments().pop().unwrap();
            assert!(is_recycled(&machine, &active.path));
            drop(log);
            stop.strike(&machine.fs);

            let mut log = machine.open().await;
            assert_eq!((log.next_offset(), log.reader().start_offset()), (503, 500));
            let report = log.recovery_report();
            assert_eq!(
                (&report.damage[..], &report.unacknowledged_tail),
                (&[][..], &None)
            );
            assert_eq!(report.set_aside, Vec::<PathBuf>::new());
            // A clean end is one: the segment goes on.
            assert_eq!(log.active_segment().map(|s| s.id), Some(active.id));
            assert_eq!(log.append(None, b"new", &[], 0).await.unwrap(), 503);
            assert_eq!(log.reader().segments().len(), 1);
            for n in 500..504 {
                let read = log.reader().read(n, 1).await.unwrap();
                assert_eq!(read[0].base_offset, n);
                assert!(read[0].payload.to_bytes().ends_with(b"new\0\0\0\0"));
            }
        });
    }
}

/// A file that was another segment's before: frames of its own, the zeros that each write ends with, and
/// from there on what was left of the other.
fn used_again(own: Vec<Vec<u8>>, left: &[u8]) -> Vec<u8> {
    let mut bytes = file(own);
    bytes[5] = 2;
    let zeros = (bytes.len() + 4).next_multiple_of(4096);
    bytes.resize(zeros, 0);
    bytes.extend(left);
    bytes
}

/// What was left: whole frames of another id that continue the log, right at the front.
fn left(next: u64) -> Vec<u8> {
    let frames = (next..next + 50).map(|n| frame(1, 0, n, n, &[9; 40]));
    frames.collect::<Vec<_>>().concat()
}

/// Frames of segment 7 of which the last ends at `end`.
fn own(end: usize) -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = (500..502).map(|n| frame(7, 3, n, n, b"own")).collect();
    let so_far = file(frames.clone()).len() + frame(7, 3, 502, 502, b"").len();
    frames.push(frame(7, 3, 502, 502, &vec![5; end - so_far]));
    assert_eq!(file(frames.clone()).len(), end);
    frames
}

async fn open_used_again(bytes: Vec<u8>) -> (Machine, Writer) {
    let mut machine = Machine::new(3);
    // The frames are from 1970.
    machine.config.max_segment_age = Duration::MAX;
    machine.fs.write_file(segment(500), bytes).unwrap();
    let log = machine.open().await;
    (machine, log)
}

#[test]
fn a_log_ends_where_its_own_frames_do_wherever_that_is_in_a_page() {
    for end in [
        1_000, 4_088, 4_091, 4_092, 4_093, 4_095, 4_096, 4_097, 8_190,
    ] {
        block_on(async {
            // The manifest is gone, so that only the frames tell.
            let (_, mut log) = open_used_again(used_again(own(end), &left(503))).await;
            let report = log.recovery_report().clone();
            assert_eq!(
                (log.next_offset(), &report.damage[..]),
                (503, &[][..]),
                "{end}"
            );
            assert_eq!(report.unacknowledged_tail, None, "{end}");
            assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 503);
            assert_eq!(log.reader().segments().len(), 1, "{end}");
        });
    }
}

#[test]
fn the_id_alone_tells_what_was_left_from_what_is_new() {
    // Whatever offsets it has.
    for next in [0, 400, 502, 503, 504, 1 << 40] {
        block_on(async {
            let (_, log) = open_used_again(used_again(own(1_000), &left(next))).await;
            assert_eq!(log.next_offset(), 503, "{next}");
            assert_eq!(log.recovery_report().damage, []);
        });
    }
    let noticed = std::panic::catch_unwind(|| {
        without(Guard::SegmentId, || {
            block_on(async {
                let (_, log) = open_used_again(used_again(own(1_000), &left(503))).await;
                assert_eq!(log.next_offset(), 503);
                assert_eq!(log.recovery_report().unacknowledged_tail, None);
            });
        });
    });
    assert!(noticed.is_err());
}

#[test]
fn zeros_that_are_missing_end_the_log_and_the_file() {
    // Of an append that was torn the frames were written and not the zeros: what follows is nobody's, and
    // nothing is written in front of it.
    for left in [left(503), left(0), vec![1], vec![0, 0, 0, 0, 0, 1]] {
        block_on(async {
            let mut bytes = file(own(1_000));
            bytes[5] = 2;
            bytes.extend(left);
            bytes.resize(50_000, 8);
            let (_, mut log) = open_used_again(bytes).await;
            assert_eq!(log.next_offset(), 503);
            let report = log.recovery_report().clone();
            assert_eq!(report.damage, []);
            let tail = report.unacknowledged_tail.unwrap();
            assert_eq!((tail.position, tail.offset, tail.frames), (1_000, 503, 0));
            assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 503);
            assert_eq!(log.reader().segments().len(), 2);
        });
    }
}

#[test]
fn what_is_left_of_a_torn_write_is_found_among_what_was_there() {
    // Its first pages were lost, and a later one was not: with an append in front of it that is as long as
    // what was lost, it would continue the log.
    let whole = frame(7, 3, 505, 502, &[6; 40]);
    let cut = whole[..20].to_vec();
    for (piece, frames) in [(whole, 1), (cut, 0)] {
        for at in [0, 1, 4_095, 4_096, 30_000] {
            block_on(async {
                let mut bytes = used_again(own(1_000), &left(503).repeat(8));
                let at = 4_096 + at;
                bytes[at..at + piece.len()].copy_from_slice(&piece);
                let (_, mut log) = open_used_again(bytes).await;
                assert_eq!(log.next_offset(), 503);
                let report = log.recovery_report().clone();
                assert_eq!(report.damage, []);
                let tail = report.unacknowledged_tail.unwrap();
                assert_eq!((tail.position, tail.frames), (1_000, frames), "{at}");
                assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 503);
                assert_eq!(log.reader().segments().len(), 2);
            });
        }
    }
}

#[test]
fn damage_within_it_hides_nothing_behind() {
    // As far behind as it may be: what is not zero where zeros should be is looked through to the end.
    block_on(async {
        let mut frames: Vec<_> = (500..700).map(|n| frame(7, 3, n, n, &[1; 900])).collect();
        frames[1] = vec![3; frames[1].len()];
        let mut bytes = used_again(frames, &left(700));
        let from = 60_000;
        bytes[from..from + 50_000].fill(4);
        let mut machine = Machine::new(3);
        machine.config.max_frame_bytes = 4_096;
        machine.fs.write_file(segment(500), bytes).unwrap();
        let log = machine.open().await;
        assert_eq!(log.next_offset(), 700);
        let lost: Vec<_> = log
            .recovery_report()
            .damage
            .iter()
            .map(|d| d.offsets.clone())
            .collect();
        assert_eq!(lost.len(), 2, "{lost:?}");
        assert_eq!(lost[0], 501..502);
        let read = log.reader().read(lost[1].end, 1).await.unwrap();
        assert_eq!(read[0].base_offset, lost[1].end);
    });
}

#[test]
fn a_prepared_file_without_a_frame_of_its_own_is_removed_and_any_other_is_not() {
    block_on(async {
        // No offset looks like one of these.
        const ID: u64 = 0xfeed_0000_0000_0000;
        let machine = Machine::new(4);
        let path = |id: u64| PathBuf::from(format!("{DIR}/{id:016x}.prepared"));
        machine
            .fs
            .write_file(segment(0), file([frame(1, 0, 0, 0, b"a")]))
            .unwrap();
        let unused = used_again(vec![], &left(1));
        let torn = {
            let mut bytes = used_again(vec![], &left(1));
            bytes[5_000..5_020].copy_from_slice(&frame(ID + 3, 1, 1, 1, b"torn")[..20]);
            bytes
        };
        let switched = used_again(vec![frame(ID + 4, 1, 1, 1, b"b")], &left(2));
        let foreign = {
            let mut bytes = file([frame(1, 0, 1, 1, b"of another")]);
            bytes[5] = 2;
            bytes
        };
        for (id, bytes) in [
            (ID + 2, unused),
            (ID + 3, torn),
            (ID + 4, switched),
            (ID + 5, foreign),
        ] {
            machine.fs.write_file(path(id), bytes).unwrap();
        }
        let log = machine.open().await;
        let report = log.recovery_report();
        assert_eq!(report.removed_empty, [path(ID + 2)]);
        assert_eq!(report.set_aside.len(), 2);
        assert_eq!(report.adopted, [segment(1)]);
        assert_eq!(log.next_offset(), 2);
    });
}

/// Goes through some turns until so many operations were done, stops, opens, and goes on. Whether the end
/// came first.
async fn survives_a_crash_at(at: u64, seed: u64, stop: &PowerOr) -> bool {
    let machine = machine(seed);
    let (mut log, mut oracle) = recycled(&machine).await;
    machine.fs.crash_after(at);
    let mut whole = turn(&mut log, &mut oracle).await.is_some();
    whole = whole && arm(&mut log).await.is_ok();
    whole = whole && turn(&mut log, &mut oracle).await.is_some();
    assert!(whole || is_crash(&machine.fs));
    drop(log);
    stop.strike(&machine);

    let context = format!("{stop:?} after {at}, seed {seed}");
    let mut log = machine.open().await;
    let report = log.recovery_report().clone();
    assert_eq!(report.damage, [], "{context}");
    oracle.check(&log).await;
    log.removal().run().await.unwrap();
    assert_eq!(others(&machine), report.set_aside, "{context}");
    assert!(append(&mut log, &mut oracle, 3).await.is_some());
    oracle.verify(&log.reader()).await;
    drop(log);
    stop.strike(&machine);
    let mut log = machine.open().await;
    assert_eq!(log.recovery_report().damage, [], "{context}");
    oracle.check(&log).await;
    assert!(turn(&mut log, &mut oracle).await.is_some(), "{context}");
    oracle.verify(&log.reader()).await;
    whole
}

#[test]
fn a_crash_after_any_operation_of_a_recycling_loses_nothing_and_shows_nothing_old() {
    for stop in PowerOr::all() {
        let mut at = 0;
        while !block_on(survives_a_crash_at(at, at, &stop)) {
            at += 1;
        }
        assert!(at > 90, "{at} operations");
    }
}

#[test]
fn a_crash_within_the_opening_that_finds_a_file_put_aside_changes_nothing() {
    for stop in Stop::ALL {
        for again in 0.. {
            let hit = block_on(async {
                let machine = machine(5);
                let (mut log, mut oracle) = in_recycled(&machine).await;
                let end = log.active_segment().unwrap().base_offset;
                oracle.purge_to(&mut log, end).await.unwrap();
                log.removal().run().await.unwrap();
                assert_eq!(spares(&machine).len(), 1);
                drop(log);
                stop.strike(&machine.fs);
                machine.fs.crash_after(again);
                let opened = machine.try_open().await;
                if let Ok(log) = opened {
                    let _ = log.removal().run().await;
                }
                let hit = is_crash(&machine.fs);
                stop.strike(&machine.fs);
                let mut log = machine.open().await;
                oracle.check(&log).await;
                log.removal().run().await.unwrap();
                assert!(spares(&machine).is_empty());
                turn(&mut log, &mut oracle).await.unwrap();
                hit
            });
            if !hit {
                assert!(again > 10, "{again} operations");
                break;
            }
        }
    }
}

/// A turn whose steps may fail; what did is done by the next.
async fn try_turn(log: &mut Writer, oracle: &mut Oracle) {
    for _ in 0..9 {
        append(log, oracle, 1).await;
        log.allow_writes();
    }
    if log.armed().is_none() {
        let _ = arm(log).await;
    }
    let base = oracle.end();
    let switched = log.switch();
    append(log, oracle, 2).await;
    log.allow_writes();
    let _ = log.maintenance().run().await;
    if switched {
        let _ = oracle.purge_to(log, base).await;
    }
    let _ = log.removal().run().await;
}

#[test]
fn a_fault_in_any_operation_is_survived() {
    let effects = [
        Effect::Fail(Errno::Io),
        Effect::Fail(Errno::NoSpace),
        Effect::FailAfterwards(Errno::Io),
        Effect::FailSync(SyncFailure::Lost),
        Effect::FailSync(SyncFailure::Reverted),
        Effect::FailSync(SyncFailure::Torn),
    ];
    for effect in effects {
        for skipped in 0.. {
            let hit = block_on(async {
                let machine = machine(skipped);
                let (mut log, mut oracle) = recycled(&machine).await;
                machine.fs.inject(Fault::new(effect.clone()).skip(skipped));
                for _ in 0..2 {
                    try_turn(&mut log, &mut oracle).await;
                }
                let hit = machine.fs.faults_left() == 0;
                machine.fs.clear_faults();
                oracle.verify(&log.reader()).await;
                // A power loss takes nothing of it, whatever failed before.
                machine.fs.evict_clean_pages();
                oracle.verify(&log.reader()).await;
                for _ in 0..2 {
                    try_turn(&mut log, &mut oracle).await;
                    oracle.verify(&log.reader()).await;
                }
                drop(log);
                machine.fs.power_loss(Keep::None);
                let log = machine.open().await;
                assert_eq!(
                    log.recovery_report().damage,
                    [],
                    "{effect:?} after {skipped}"
                );
                oracle.check(&log).await;
                hit
            });
            if !hit {
                let least = if matches!(effect, Effect::FailSync(_)) {
                    30
                } else {
                    90
                };
                assert!(skipped > least, "{skipped} operations");
                break;
            }
        }
    }
}

/// Polls a future so many times, whether or not it gets on, and drops it. Whether it was over.
async fn let_run<T>(future: impl Future<Output = T>, polls: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        if poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

#[test]
fn a_step_that_is_dropped_anywhere_reaches_no_later_segment() {
    // On a disk that goes on with what it was asked for: a late cut, rename or write would hit a log that
    // came to have the file.
    for step in 0..4 {
        for detached in [false, true] {
            for polls in 0.. {
                let over = block_on(async {
                    let mut machine = machine(6);
                    machine.habits.detached = detached;
                    let (mut log, mut oracle) = in_recycled(&machine).await;
                    let base = log.active_segment().unwrap().base_offset;
                    let over = match step {
                        0 => {
                            let over = let_run(log.preparation(None).run(), polls).await;
                            oracle.purge_to(&mut log, base).await.unwrap();
                            over
                        }
                        1 => {
                            oracle.purge_to(&mut log, base).await.unwrap();
                            let_run(log.removal().run(), polls).await
                        }
                        2 => {
                            oracle.purge_to(&mut log, base).await.unwrap();
                            log.removal().run().await.unwrap();
                            let_run(log.preparation(None).run(), polls).await
                        }
                        _ => {
                            arm(&mut log).await.unwrap();
                            append(&mut log, &mut oracle, 6).await.unwrap();
                            assert!(log.switch());
                            append(&mut log, &mut oracle, 1).await.unwrap();
                            let_run(log.maintenance().run(), polls).await
                        }
                    };
                    for _ in 0..3 {
                        turn(&mut log, &mut oracle).await.unwrap();
                        for _ in 0..20 {
                            tokio::task::yield_now().await;
                        }
                        oracle.verify(&log.reader()).await;
                    }
                    machine.fs.process_crash();
                    let mut log = machine.open().await;
                    assert_eq!(log.recovery_report().damage, []);
                    oracle.check(&log).await;
                    log.removal().run().await.unwrap();
                    assert_eq!(others(&machine), Vec::<PathBuf>::new());
                    turn(&mut log, &mut oracle).await.unwrap();
                    over
                });
                if over {
                    assert!(polls > 5, "step {step}: {polls}");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_file_that_something_may_still_happen_to_is_not_kept() {
    // An append that was dropped, or whose sync failed; a cut that was dropped; a piece of zeros that was.
    for case in 0..6 {
        block_on(async {
            let mut machine = machine(7);
            machine.config.rotation = Rotation::External;
            machine.config.zero_ahead_bytes = if case == 3 { 1 << 20 } else { 0 };
            machine.habits.zero_lag = 120;
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            append(&mut log, &mut oracle, 9).await.unwrap();
            match case {
                1 => {
                    let late = vec![1; RECORD_BYTES];
                    let call = log.append(None, &late, &[], 1);
                    assert!(poll_n_then_drop(call, 1).await.is_none());
                    oracle.may_hold(&late, 1);
                }
                2 => {
                    let fault = Fault::new(Effect::FailSync(SyncFailure::Kept));
                    machine.fs.inject(fault.on(&[OpKind::SyncData]));
                    assert!(append(&mut log, &mut oracle, 1).await.is_none());
                }
                3 => assert!(!let_run(log.maintenance().run(), 60).await),
                // Nothing happens to it, or not yet.
                _ => {}
            }
            arm(&mut log).await.unwrap();
            log.switch();
            append(&mut log, &mut oracle, 1).await.unwrap();
            if case == 4 {
                machine
                    .fs
                    .inject(Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::SetLen]));
                assert!(log.maintenance().run().await.is_err());
            }
            if case == 5 {
                // It is cut off within, and what is cut off stays in the file.
                oracle.truncate_from(&mut log, 8).await.unwrap();
                append(&mut log, &mut oracle, 1).await.unwrap();
            }
            log.maintenance().run().await.unwrap();
            let base = log.active_segment().unwrap().base_offset;
            oracle.purge_to(&mut log, base).await.unwrap();
            log.removal().run().await.unwrap();
            assert_eq!(spares(&machine).len(), usize::from(case == 0), "{case}");
        });
    }
}

#[test]
fn what_a_truncation_takes_is_not_kept() {
    // Its offsets are given again.
    block_on(async {
        let machine = machine(8);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 2).await.unwrap();
        for _ in 0..2 {
            arm(&mut log).await.unwrap();
            assert!(log.switch());
            append(&mut log, &mut oracle, 9).await.unwrap();
            log.maintenance().run().await.unwrap();
        }
        oracle.truncate_from(&mut log, 1).await.unwrap();
        log.removal().run().await.unwrap();
        assert_eq!(others(&machine), Vec::<PathBuf>::new());
    });
}

#[test]
fn who_reads_a_purged_segment_gets_its_bytes_or_is_told() {
    // A reader held a segment whose file was written again below it: it would have got the new log's
    // bytes, or zeros.
    let (mut kept, mut removed) = (0, 0);
    for polls in 0..40 {
        block_on(async {
            let machine = machine(9);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            append(&mut log, &mut oracle, 9).await.unwrap();
            arm(&mut log).await.unwrap();
            assert!(log.switch());
            append(&mut log, &mut oracle, 2).await.unwrap();
            log.maintenance().run().await.unwrap();
            let reader = log.reader();
            let mut reading = Box::pin(async move { reader.read(2, 1 << 20).await });
            let early = poll_n_then_drop(&mut reading, polls).await;
            oracle.purge_to(&mut log, 9).await.unwrap();
            log.removal().run().await.unwrap();
            if spares(&machine).is_empty() {
                assert!(early.is_none(), "nobody reads it");
                removed += 1;
            } else {
                kept += 1;
            }
            arm(&mut log).await.unwrap();
            append(&mut log, &mut oracle, 7).await.unwrap();
            assert!(log.switch());
            append(&mut log, &mut oracle, 9).await.unwrap();
            let read = match early {
                Some(read) => read,
                None => reading.await,
            };
            match read {
                Ok(frames) => {
                    assert!(!frames.is_empty());
                    for (frame, n) in frames.iter().zip(2_u8..) {
                        assert_eq!(frame.base_offset, u64::from(n));
                        let body = frame.payload.to_bytes();
                        assert!(body[8..8 + RECORD_BYTES].iter().all(|&b| b == n));
                    }
                }
                Err(e) => assert!(matches!(e, ReadError::OutOfRange { .. }), "{e}"),
            }
            oracle.verify(&log.reader()).await;
        });
    }
    assert!(kept > 5 && removed > 2, "{kept} {removed}");
}

#[test]
fn an_idle_log_keeps_none_and_one_that_prepares_nothing_never_has_one() {
    block_on(async {
        let machine = machine(10);
        let (mut log, mut oracle) = in_recycled(&machine).await;
        let base = log.active_segment().unwrap().base_offset;
        oracle.purge_to(&mut log, base).await.unwrap();
        let removal = log.removal();
        removal.run().await.unwrap();
        assert_eq!(spares(&machine).len(), 1);
        machine.clock.advance(Duration::from_secs(599));
        assert!(!removal.is_pending());
        machine.clock.advance(Duration::from_secs(1));
        assert!(removal.is_pending());
        crate::support::as_time_passes(&machine.clock, removal.run())
            .await
            .unwrap();
        assert!(!removal.is_pending());
        assert!(spares(&machine).is_empty());
        assert_eq!(machine.config.spares.used_bytes(), 0);

        // Nobody has prepared anything for long.
        append(&mut log, &mut oracle, 30).await.unwrap();
        log.maintenance().run().await.unwrap();
        let base = log.active_segment().unwrap().base_offset;
        oracle.purge_to(&mut log, base).await.unwrap();
        crate::support::as_time_passes(&machine.clock, removal.run())
            .await
            .unwrap();
        assert!(spares(&machine).is_empty());
    });
}

/// Who looks at retention every few minutes lets go of several segments at once.
#[test]
fn as_many_are_kept_as_were_prepared() {
    block_on(async {
        let machine = machine(14);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for _ in 0..3 {
            append(&mut log, &mut oracle, 9).await.unwrap();
            arm(&mut log).await.unwrap();
            assert!(log.switch());
        }
        // Two more that nobody prepared.
        append(&mut log, &mut oracle, 30).await.unwrap();
        log.maintenance().run().await.unwrap();
        let sealed = log.reader().segments().len() - 1;
        assert!(sealed >= 5, "{sealed}");
        let base = log.active_segment().unwrap().base_offset;
        oracle.purge_to(&mut log, base).await.unwrap();
        log.removal().run().await.unwrap();
        assert_eq!(spares(&machine).len(), 3);
        assert!(!log.removal().is_pending());

        for left in (0..3).rev() {
            arm(&mut log).await.unwrap();
            assert_eq!(spares(&machine).len(), left);
            append(&mut log, &mut oracle, 6).await.unwrap();
            assert!(log.switch());
            append(&mut log, &mut oracle, 2).await.unwrap();
            log.maintenance().run().await.unwrap();
            let active = log.reader().segments().pop().unwrap();
            assert!(is_recycled(&machine, &active.path));
            oracle.verify(&log.reader()).await;
        }
        assert_eq!(machine.config.spares.used_bytes(), 0);
        log.close().await.unwrap();
    });
}

#[test]
fn all_partitions_together_keep_to_the_bound() {
    block_on(async {
        let mut machine = machine(11);
        machine.config.spares = Spares::new(40_000);
        let mut logs = Vec::new();
        for partition in 0..5 {
            let mut log = machine.open_as("orders", partition).await.unwrap();
            let mut oracle = Oracle::default();
            turn(&mut log, &mut oracle).await.unwrap();
            logs.push(log);
        }
        let held = machine.config.spares.used_bytes();
        assert!((20_000..=40_000).contains(&held), "{held}");
        let bytes = |path: &PathBuf| machine.fs.read_file(path).unwrap().len() as u64;
        assert_eq!(spares(&machine).iter().map(bytes).sum::<u64>(), held);
        logs.clear();
        assert_eq!(machine.config.spares.used_bytes(), 0);

        let mut machine = machine.clone();
        machine.config.spares = Spares::none();
        let mut log = machine.open_as("orders", 9).await.unwrap();
        turn(&mut log, &mut Oracle::default()).await.unwrap();
        let of_log = |path: &PathBuf| path.starts_with("/data/orders/9");
        assert!(!spares(&machine).iter().any(of_log));
    });
}

#[test]
fn a_full_disk_takes_the_file_back() {
    for with_reserve in [false, true] {
        block_on(async {
            let mut machine = machine(12);
            if with_reserve {
                let made = machine.fs.create_dir_all("/data".as_ref()).await;
                made.unwrap();
                let (fs, clock) = (
                    Arc::new(machine.fs.clone()),
                    Arc::new(machine.clock.clone()),
                );
                let reserve = Reserve::take(fs, clock, "/data/reserve", 10_000).await;
                machine.config.reserve = Some(reserve.unwrap());
            }
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            turn(&mut log, &mut oracle).await.unwrap();
            assert_eq!(spares(&machine).len(), 1);
            machine.fs.set_free_space(Some(0));
            while append(&mut log, &mut oracle, 1).await.is_some() {}
            log.allow_writes();
            assert!(log.removal().is_pending());
            log.removal().run().await.unwrap();
            assert!(spares(&machine).is_empty());
            machine.clock.advance(Duration::from_secs(2));
            assert!(
                append(&mut log, &mut oracle, 1).await.is_some(),
                "there is room again"
            );
            oracle.verify(&log.reader()).await;
        });
    }
}

#[test]
fn a_file_that_can_not_be_used_again_costs_no_preparation() {
    for kind in [
        OpKind::Open,
        OpKind::Len,
        OpKind::Allocate,
        OpKind::SyncData,
        OpKind::Rename,
    ] {
        for effect in [Effect::Fail(Errno::Io), Effect::FailAfterwards(Errno::Io)] {
            block_on(async {
                let machine = machine(13);
                let mut log = machine.open().await;
                let mut oracle = Oracle::default();
                turn(&mut log, &mut oracle).await.unwrap();
                let spare = spares(&machine).pop().unwrap();
                let at = PathPattern::Exactly(spare);
                machine
                    .fs
                    .inject(Fault::new(effect.clone()).on(&[kind]).path(at));
                arm(&mut log).await.unwrap();
                assert_eq!(machine.fs.faults_left(), 0, "{kind:?}");
                log.removal().run().await.unwrap();
                assert!(spares(&machine).is_empty());
                append(&mut log, &mut oracle, 6).await.unwrap();
                assert!(log.switch());
                append(&mut log, &mut oracle, 2).await.unwrap();
                log.maintenance().run().await.unwrap();
                let active = log.reader().segments().pop().unwrap();
                assert!(!is_recycled(&machine, &active.path));
                turn(&mut log, &mut oracle).await.unwrap();
                oracle.verify(&log.reader()).await;
            });
        }
    }
}

/// A log that begins a segment in a file that was another segment's is torn, and goes on.
fn goes_on_rightly(seed: u64) -> bool {
    let machine = machine(seed).with_segment_bytes(80_000);
    let mut rng = StdRng::seed_from_u64(seed);
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        block_on(async {
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            for _ in 0..30 {
                append(&mut log, &mut oracle, 1).await.unwrap();
            }
            arm(&mut log).await.unwrap();
            assert!(log.switch());
            append(&mut log, &mut oracle, 1).await.unwrap();
            log.maintenance().run().await.unwrap();
            oracle.purge_to(&mut log, 30).await.unwrap();
            log.removal().run().await.unwrap();
            arm(&mut log).await.unwrap();
            assert!(log.switch());
            is_torn_and_goes_on(&machine, log, &mut oracle, &mut rng).await;
        });
    }));
    lived.is_ok()
}

#[test]
fn an_append_never_joins_what_a_tear_left_behind_it() {
    // The zeros that follow it are in between; but a second tear can leave them out, and what the first one left
    // stands in their place. So nothing of the segment may be behind its end.
    for seed in 0..100 {
        assert!(goes_on_rightly(seed), "{seed}");
    }
    let lacking = |seed| without(Guard::Tail, || goes_on_rightly(seed));
    assert!(!(0..100).all(lacking), "no Tail");
}

#[test]
fn what_a_purge_did_not_come_to_take_is_not_kept_when_a_truncation_takes_it() {
    // The purge had named a segment's file, and was dropped while it waited for its turn. A truncation took
    // the segment then: its file was kept, with frames at offsets that were given again.
    block_on(async {
        let machine = machine(14);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        append(&mut log, &mut oracle, 2).await.unwrap();
        arm(&mut log).await.unwrap();
        assert!(log.switch());
        append(&mut log, &mut oracle, 9).await.unwrap();
        arm(&mut log).await.unwrap();
        assert!(log.switch());
        append(&mut log, &mut oracle, 2).await.unwrap();
        let maintenance = log.maintenance();
        {
            let mut purge = pin!(log.purge_to(11));
            let mut other = pin!(maintenance.run());
            for _ in 0..3 {
                assert!(poll_once(&mut purge).await.is_none());
            }
            assert!(
                poll_once(&mut other).await.is_none(),
                "it waits for the purge"
            );
            for _ in 0..500 {
                assert!(
                    poll_once(&mut purge).await.is_none(),
                    "it waits for the other"
                );
            }
        }
        assert_eq!(log.reader().start_offset(), 0, "nothing was taken yet");
        oracle.truncate_from(&mut log, 1).await.unwrap();
        log.removal().run().await.unwrap();
        assert_eq!(spares(&machine), Vec::<PathBuf>::new());
        oracle.verify(&log.reader()).await;
    });
}

async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    tokio::task::yield_now().await;
    let polled = poll_fn(|cx| Poll::Ready(pin!(&mut *future).poll(cx))).await;
    match polled {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn a_full_disk_keeps_no_log_from_being_opened() {
    // An append found no room behind a file's end, and was cut off where a page ends. The next opening wrote
    // zeros there, for which there was no room either.
    block_on(async {
        let mut machine = machine(15);
        machine.config.rotation = Rotation::External;
        let (mut log, mut oracle) = recycled(&machine).await;
        append(&mut log, &mut oracle, 6).await.unwrap();
        assert!(log.switch());
        let page = |len: usize| Batch {
            payload: vec![vec![7; len - 64].into()],
            record_count: 1,
            max_timestamp_ms: 0,
            leader_epoch: 0,
        };
        let first = [page(4096 - 32)];
        oracle.append_batches(&mut log, &first).await.unwrap();
        while log.active_segment().unwrap().bytes < 20_480 {
            oracle
                .append_batches(&mut log, &[page(4096)])
                .await
                .unwrap();
        }
        log.maintenance().run().await.unwrap();
        let active = log.active_segment().unwrap();
        assert_eq!(active.bytes, 20_480);
        machine.fs.set_free_space(Some(0));
        let full = oracle.append_batches(&mut log, &[page(8192)]).await;
        assert!(full.is_err());
        drop(log);
        machine.fs.process_crash();
        machine.fs.set_free_space(Some(0));
        let mut log = machine.open().await;
        oracle.check(&log).await;
        assert_eq!(log.active_segment().map(|s| s.id), Some(active.id));
        machine.fs.set_free_space(None);
        oracle
            .append_batches(&mut log, &[page(4096)])
            .await
            .unwrap();
        machine.fs.power_loss(Keep::None);
        oracle.check(&machine.open().await).await;
    });
}
