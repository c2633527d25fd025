//! Records taken out of a log, at its end and at its start.

use std::time::Duration;

use bytes::Bytes;
use sq_sim::{
    Effect, Errno, Fault, FileSystem, Keep, OpKind, PathPattern, SyncFailure, poll_n_then_drop,
};
use sq_storage::wal::manifest::{MANIFEST_LINE_LEN, ManifestContent};
use sq_storage::{Action, ActiveSegment, Batch, Error, ReadError, Retention, TailCache};

use crate::oracle::Oracle;
use crate::support::{Machine, Stop, Writer, as_time_passes, block_on, is_crash, segment, value};

const MANIFEST: &str = "/data/orders/7/manifest";

fn batch(first: u64, record_count: u32) -> Batch {
    Batch {
        payload: vec![Bytes::from(value(first))],
        record_count,
        max_timestamp_ms: 0,
        leader_epoch: 0,
    }
}

/// What is done to a log.
#[derive(Clone, Copy, Debug)]
enum Change {
    Truncate(u64),
    Purge(u64),
    /// The same, and appends go on where they are.
    Advance(u64),
    /// Appends as many records.
    Append(u64),
    /// Removes the files that are left over.
    Remove,
}

use Change::{Advance, Append, Purge, Remove, Truncate};

impl Change {
    async fn apply(self, log: &mut Writer, oracle: &mut Oracle) -> bool {
        match self {
            Truncate(offset) => oracle.truncate_from(log, offset).await.is_ok(),
            Purge(offset) => oracle.purge_to(log, offset).await.is_ok(),
            Advance(offset) => oracle.advance_start(log, offset).await.is_ok(),
            Append(count) => {
                for _ in 0..count {
                    let n = log.next_offset() + 1000;
                    if oracle.append(log, value(n)).await.is_err() {
                        return false;
                    }
                }
                true
            }
            Remove => log.removal().run().await.is_ok(),
        }
    }
}

/// Courses of events, over segments that hold four records or so each, twelve to begin with.
const COURSES: &[&[Change]] = &[
    // Within the active segment, within a sealed one, at a segment's start, all of it.
    &[Truncate(11), Append(2)],
    &[Truncate(6), Append(5), Truncate(7), Remove, Append(1)],
    &[
        Truncate(8),
        Append(1),
        Remove,
        Truncate(4),
        Append(6),
        Remove,
    ],
    &[Truncate(0), Append(2), Remove],
    // Within a segment, of whole ones, all, and beyond.
    &[Purge(2), Append(1), Purge(9), Remove],
    &[Purge(12), Remove, Append(2), Purge(13)],
    &[Purge(20), Append(3), Remove],
    &[
        Purge(5),
        Truncate(5),
        Append(4),
        Remove,
        Purge(9),
        Truncate(9),
        Remove,
    ],
    &[Purge(6), Truncate(10), Remove, Append(2), Purge(11)],
    // Within the segment that takes appends, all of it, and what is left of that once it is closed.
    &[Advance(2), Append(1), Advance(9), Advance(11), Remove],
    &[Advance(20), Append(2), Advance(13), Append(7), Remove],
    &[Advance(12), Append(6), Purge(13), Remove],
    &[Advance(12), Advance(12), Purge(15), Append(1), Remove],
    &[Append(1), Advance(13), Truncate(13), Append(1), Advance(14)],
];

async fn begin(machine: &Machine, oracle: &mut Oracle) -> Writer {
    let mut log = machine.open().await;
    Append(12).apply(&mut log, oracle).await;
    log.mark().await.unwrap();
    assert!(machine.segments().len() >= 3);
    log
}

fn machine(seed: u64) -> Machine {
    let mut machine = Machine::new(seed).with_segment_bytes(1100);
    // One log in two has a recovery point in each segment.
    machine.config.recovery_point_bytes = [300, 0][seed as usize % 2];
    machine
}

/// Opens a log that crashed, with another crash after `again` operations of that, as long as that is
/// within it. Whether it was.
async fn reopen(machine: &Machine, oracle: &mut Oracle, stop: Stop, again: Option<u64>) -> bool {
    stop.strike(&machine.fs);
    let mut hit = false;
    if let Some(operations) = again {
        machine.fs.crash_after(operations);
        let opened = machine.try_open().await;
        if let Ok(log) = opened {
            let _ = log.removal().run().await;
        }
        hit = is_crash(&machine.fs);
        machine.fs.crash_after(u64::MAX);
        stop.strike(&machine.fs);
    }
    let mut log = machine.open().await;
    let report = log.recovery_report();
    assert_eq!(report.damage, [], "what is cut off is no damage");
    assert_eq!(report.set_aside, [] as [std::path::PathBuf; 0]);
    oracle.check(&log).await;
    // It goes on, and what was left over goes.
    Append(2).apply(&mut log, oracle).await;
    log.apply_retention(&Retention::default()).await.unwrap();
    log.removal().run().await.unwrap();
    assert!(!log.removal().is_pending());
    oracle.verify(&log.reader()).await;
    log.close().await.unwrap();
    let log = machine.open().await;
    assert_eq!(
        log.recovery_report().to_remove,
        [] as [std::path::PathBuf; 0]
    );
    oracle.check(&log).await;
    let segments: Vec<_> = log
        .reader()
        .segments()
        .into_iter()
        .map(|s| s.path)
        .collect();
    let mut files = machine.segments();
    files.retain(|f| !segments.contains(f));
    assert_eq!(files, [] as [std::path::PathBuf; 0], "no file is forgotten");
    hit
}

#[test]
fn a_crash_after_any_operation_leaves_the_old_log_or_the_new_one() {
    for (n, course) in COURSES.iter().enumerate() {
        for (m, stop) in Stop::ALL.into_iter().enumerate() {
            for operations in 0.. {
                let crashed = block_on(async {
                    let machine = machine((n * 8 + m) as u64);
                    let mut oracle = Oracle::default();
                    let mut log = begin(&machine, &mut oracle).await;
                    machine.fs.crash_after(operations);
                    for change in *course {
                        if !change.apply(&mut log, &mut oracle).await {
                            break;
                        }
                    }
                    drop(log);
                    let crashed = is_crash(&machine.fs);
                    machine.fs.crash_after(u64::MAX);
                    reopen(&machine, &mut oracle, stop, None).await;
                    crashed
                });
                if !crashed {
                    assert!(operations > 5);
                    break;
                }
            }
        }
    }
}

#[test]
fn a_crash_within_the_opening_that_follows_changes_nothing() {
    for (n, course) in COURSES.iter().enumerate() {
        for operations in (0..).step_by(3) {
            let stop = Stop::ALL[(n + operations as usize) % Stop::ALL.len()];
            let mut crashed = true;
            for again in 0.. {
                let hit = block_on(async {
                    let machine = machine(100 + n as u64);
                    let mut oracle = Oracle::default();
                    let mut log = begin(&machine, &mut oracle).await;
                    machine.fs.crash_after(operations);
                    for change in *course {
                        if !change.apply(&mut log, &mut oracle).await {
                            break;
                        }
                    }
                    drop(log);
                    crashed = is_crash(&machine.fs);
                    machine.fs.crash_after(u64::MAX);
                    reopen(&machine, &mut oracle, stop, Some(again)).await
                });
                if !hit {
                    break;
                }
            }
            if !crashed {
                break;
            }
        }
    }
}

#[test]
fn a_fault_in_any_operation_is_survived() {
    let effects = [
        Effect::Fail(Errno::Io),
        Effect::Fail(Errno::NoSpace),
        Effect::Fail(Errno::TooManyOpenFiles),
        Effect::FailAfterwards(Errno::Io),
        Effect::ShortWrite {
            bytes: 40,
            errno: Errno::NoSpace,
        },
        Effect::FailSync(SyncFailure::Lost),
        Effect::FailSync(SyncFailure::Kept),
        Effect::FailSync(SyncFailure::Reverted),
    ];
    for (n, course) in COURSES.iter().enumerate() {
        for (m, effect) in effects.iter().enumerate() {
            for skip in 0.. {
                let hit = block_on(async {
                    let machine = machine((200 + n * 8 + m) as u64);
                    let mut oracle = Oracle::default();
                    let mut log = begin(&machine, &mut oracle).await;
                    machine.fs.inject(Fault::new(effect.clone()).skip(skip));
                    for change in *course {
                        if !change.apply(&mut log, &mut oracle).await {
                            // Once more, and the log is as if nothing had been in the way.
                            assert!(change.apply(&mut log, &mut oracle).await, "{change:?}");
                        }
                    }
                    let hit = machine.fs.faults_left() == 0;
                    machine.fs.clear_faults();
                    oracle.verify(&log.reader()).await;
                    drop(log);
                    let stop = Stop::ALL[skip as usize % Stop::ALL.len()];
                    reopen(&machine, &mut oracle, stop, None).await;
                    hit
                });
                if !hit {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_call_that_is_dropped_at_any_await_leaves_the_old_log_or_the_new_one() {
    for detached in [false, true] {
        for change in [
            Truncate(11),
            Truncate(6),
            Truncate(8),
            Purge(9),
            Purge(12),
            Purge(20),
            Advance(11),
            Advance(12),
        ] {
            for polls in 0.. {
                let done = block_on(async {
                    let mut machine = machine(300 + polls as u64);
                    machine.habits.detached = detached;
                    let mut oracle = Oracle::default();
                    let mut log = begin(&machine, &mut oracle).await;
                    let done = match change {
                        Truncate(offset) => {
                            let call = poll_n_then_drop(log.truncate_from(offset), polls).await;
                            oracle.truncated(&log, offset, matches!(call, Some(Ok(()))));
                            call.is_some()
                        }
                        Purge(offset) => {
                            let call = poll_n_then_drop(log.purge_to(offset), polls).await;
                            oracle.purged(&log, offset, matches!(call, Some(Ok(()))));
                            call.is_some()
                        }
                        Advance(offset) => {
                            let call = poll_n_then_drop(log.advance_start(offset), polls).await;
                            oracle.purged(&log, offset, matches!(call, Some(Ok(()))));
                            call.is_some()
                        }
                        Append(_) | Remove => unreachable!(),
                    };
                    oracle.verify(&log.reader()).await;
                    if polls % 2 == 0 {
                        // The next call that changes the log settles it.
                        Append(3).apply(&mut log, &mut oracle).await;
                    }
                    drop(log);
                    let stop = Stop::ALL[polls % Stop::ALL.len()];
                    reopen(&machine, &mut oracle, stop, None).await;
                    done
                });
                if done {
                    assert!(polls > 5);
                    break;
                }
            }
        }
    }
}

#[test]
fn no_one_damaged_line_brings_back_what_was_cut_off() {
    // Of a truncation there is the line of its own, and those of the segments it concerns; of a purge,
    // too. Where no segment is left to tell where the log was, the manifest is not guessed at.
    for (n, course) in COURSES.iter().enumerate() {
        for removed in [false, true] {
            let lines = |line: Option<usize>| {
                block_on(async {
                    let machine = machine(400 + n as u64);
                    let mut oracle = Oracle::default();
                    let mut log = begin(&machine, &mut oracle).await;
                    for change in *course {
                        if removed || !matches!(change, Remove) {
                            assert!(change.apply(&mut log, &mut oracle).await);
                        }
                    }
                    log.close().await.unwrap();
                    let manifest = machine.fs.read_file(MANIFEST).unwrap();
                    let count = (manifest.len() - 8) / MANIFEST_LINE_LEN;
                    let Some(line) = line else { return count };
                    machine
                        .fs
                        .flip_bit(MANIFEST, (8 + line * MANIFEST_LINE_LEN + 17) as u64, 3)
                        .unwrap();
                    match machine.try_open().await {
                        Ok(log) => {
                            let report = log.recovery_report();
                            assert_eq!(
                                (report.damaged_manifest_lines, &report.damage[..]),
                                (1, &[][..])
                            );
                            assert_eq!(log.next_offset(), oracle.end());
                            // The start may be as far back as the oldest segment's.
                            oracle.starts_at(log.reader().start_offset());
                            oracle.check(&log).await;
                        }
                        Err(e) => {
                            assert!(matches!(e, Error::UnknownStart { .. }), "{e}");
                            assert_eq!(e.action(), Action::Repair);
                            assert!(machine.segments().is_empty() || !removed);
                        }
                    }
                    count
                })
            };
            for line in 0..lines(None) {
                lines(Some(line));
            }
        }
    }
}

#[test]
fn what_the_cut_off_end_said_is_no_evidence() {
    // Marks said that all below 12 was committed, a seal and a successor that 8 was reached. The log
    // was truncated to 6, and every opening since then reported that acknowledged records were lost.
    block_on(async {
        let machine = machine(500);
        let mut oracle = Oracle::default();
        let mut log = begin(&machine, &mut oracle).await;
        oracle.truncate_from(&mut log, 6).await.unwrap();
        drop(log);
        for _ in 0..2 {
            // The line of the segment that was cut, and with it where it ends.
            let manifest = machine.fs.read_file(MANIFEST).unwrap();
            let content = ManifestContent::decode(&manifest);
            let cut = content
                .entries
                .iter()
                .find(|e| e.seal.is_some_and(|s| s.end_offset == 6));
            let lines = manifest[8..].chunks(MANIFEST_LINE_LEN);
            let at = lines
                .enumerate()
                .find(|(_, l)| l[8..16] == cut.unwrap().id.to_be_bytes());
            let at = 8 + at.unwrap().0 * MANIFEST_LINE_LEN;
            machine.fs.flip_bit(MANIFEST, at as u64 + 30, 0).unwrap();
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage, []);
            assert_eq!(log.next_offset(), 6);
            oracle.check(&log).await;
            // Timestamps and offsets of what was cut off are not found either.
            oracle.look_up(&log.reader(), 5, 0).await;
            log.close().await.unwrap();
            machine.fs.write_file(MANIFEST, manifest).unwrap();
        }
    });
}

#[test]
fn a_log_ends_and_starts_where_batches_do_or_says_why_not() {
    block_on(async {
        let machine = Machine::new(501);
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        let batches = [batch(0, 4), batch(4, 3), batch(7, 1)];
        oracle.append_batches(&mut log, &batches).await.unwrap();
        for inside in [1, 2, 3, 5, 6] {
            let error = oracle.truncate_from(&mut log, inside).await.unwrap_err();
            let expected = if inside < 4 { 0..4 } else { 4..7 };
            assert!(
                matches!(&error, Error::InsideBatch { offset, batch }
                if *offset == inside && *batch == expected),
                "{error}"
            );
            assert_eq!(error.action(), Action::GiveUp);
        }
        // A log may begin within a batch: what holds its first record is served whole.
        oracle.purge_to(&mut log, 2).await.unwrap();
        oracle.verify(&log.reader()).await;
        assert_eq!(log.reader().read(2, 1).await.unwrap()[0].base_offset, 0);
        let error = oracle.truncate_from(&mut log, 0).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::BelowStart {
                    offset: 0,
                    start: 2
                }
            ),
            "{error}"
        );
        oracle.truncate_from(&mut log, 7).await.unwrap();
        oracle.truncate_from(&mut log, 9).await.unwrap();
        oracle.purge_to(&mut log, 1).await.unwrap();
        assert_eq!((log.reader().start_offset(), log.next_offset()), (2, 7));
        drop(log);
        oracle.check(&machine.open().await).await;
    });
}

#[test]
fn timestamps_of_what_is_gone_are_not_found() {
    block_on(async {
        let machine = Machine::new(502);
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        for (n, time) in [500, 100, 900, 300, 950, 200].into_iter().enumerate() {
            oracle
                .append_at(&mut log, value(n as u64), time)
                .await
                .unwrap();
        }
        oracle.truncate_from(&mut log, 4).await.unwrap();
        for time in [0, 400, 700, 920] {
            oracle.look_up(&log.reader(), 1, time).await;
        }
        oracle.purge_to(&mut log, 3).await.unwrap();
        for time in [0, 200, 400, 920] {
            oracle.look_up(&log.reader(), 3, time).await;
        }
        drop(log);
        let log = machine.open().await;
        oracle.check(&log).await;
        oracle.look_up(&log.reader(), 3, 150).await;
    });
}

/// Waits for a task that has been woken; one that never is fails the test instead of hanging it.
async fn soon(task: tokio::task::JoinHandle<()>) {
    let limit = Duration::from_secs(10);
    let done = tokio::time::timeout(limit, task).await;
    done.unwrap().unwrap();
}

#[test]
fn who_waits_for_what_is_cut_off_learns_of_it() {
    block_on(async {
        let machine = machine(503);
        let mut oracle = Oracle::default();
        let mut log = begin(&machine, &mut oracle).await;
        let reader = log.reader();
        let mut watch = reader.watch();
        assert_eq!(*watch.borrow_and_update(), 12);
        let (at_end, next) = (reader.clone(), reader.clone());
        let cut_off = tokio::spawn(async move { at_end.wait_for(12).await });
        let waits_on = tokio::spawn(async move { next.wait_for(6).await });
        tokio::task::yield_now().await;
        oracle.truncate_from(&mut log, 6).await.unwrap();
        assert!(watch.has_changed().unwrap());
        assert_eq!(*watch.borrow_and_update(), 6);
        soon(cut_off).await;
        let error = reader.read(12, 1).await.unwrap_err();
        assert!(
            matches!(
                error,
                ReadError::OutOfRange {
                    offset: 12,
                    start: 0,
                    end: 6
                }
            ),
            "{error}"
        );
        // Who waits at the new end gets the next record.
        assert!(reader.read(6, 1).await.unwrap().is_empty());
        oracle.append(&mut log, value(99)).await.unwrap();
        soon(waits_on).await;
        assert_eq!(reader.read(6, 1).await.unwrap().len(), 1);
    });
}

#[test]
fn a_read_beside_a_change_is_of_the_log_before_it_or_after_it() {
    // A reader had one segment of the old log in hand when it was truncated and appended to. It went on
    // in the new one, and its answer was of both.
    for cache in [TailCache::off(), TailCache::new(1 << 20)] {
        for change in [Truncate(3), Truncate(8), Purge(7), Purge(12), Advance(12)] {
            for polls in 0..60 {
                block_on(async {
                    let mut machine = machine(504);
                    machine.config.tail_cache = cache.clone();
                    let mut oracle = Oracle::default();
                    let log = begin(&machine, &mut oracle).await;
                    drop(log);
                    let log = machine.open().await;
                    oracle.check(&log).await;
                    let before = log.reader().read(2, 1 << 20).await.unwrap();
                    drop(log);
                    // Of this one's files nothing is known yet.
                    let mut log = machine.open().await;
                    let reader = log.reader();
                    let mut read = Box::pin(async move { reader.read(2, 1 << 20).await });
                    if let Some(done) = poll_n_then_drop(&mut read, polls).await {
                        assert_eq!(done.unwrap(), before);
                        return;
                    }
                    change.apply(&mut log, &mut oracle).await;
                    Append(9).apply(&mut log, &mut oracle).await;
                    log.removal().run().await.unwrap();
                    match read.await {
                        Ok(frames) => {
                            let now = log.reader().read(2, 1 << 20).await;
                            assert_eq!(frames, now.unwrap(), "{change:?}, dropped after {polls}");
                        }
                        Err(e) => {
                            assert!(matches!(e, ReadError::OutOfRange { .. }), "{e}");
                            assert!(matches!(change, Purge(_) | Advance(_)));
                        }
                    }
                });
            }
        }
    }
}

#[test]
fn a_name_that_was_given_away_is_not_used_again() {
    // The file of a truncated segment was still to be removed when the log came to its base again.
    block_on(async {
        let machine = machine(505);
        let mut oracle = Oracle::default();
        let mut log = begin(&machine, &mut oracle).await;
        let base = log.reader().segments()[1].base_offset;
        let old = segment(base);
        oracle.truncate_from(&mut log, base).await.unwrap();
        let removal = log.removal();
        removal.run().await.unwrap();
        assert!(!machine.segments().contains(&old));
        Append(3).apply(&mut log, &mut oracle).await;
        assert!(!machine.segments().contains(&old));
        // An operation on the old file that was still under way hits nothing.
        let _ = machine.fs.remove_file(&old).await;
        oracle.verify(&log.reader()).await;
        drop(log);
        machine.fs.process_crash();
        oracle.check(&machine.open().await).await;
    });
}

#[test]
fn a_large_file_is_removed_in_steps() {
    block_on(async {
        let machine = Machine::new(506).with_segment_bytes(64 << 20);
        let mut log = machine.open().await;
        for n in 0..40u8 {
            log.append(None, &vec![n; 250_000], &[], 0).await.unwrap();
        }
        let held = log.reader();
        assert_eq!(held.read(0, 1).await.unwrap().len(), 1);
        log.purge_to(40).await.unwrap();
        let removal = log.removal();
        assert!(removal.is_pending());
        let began = machine.fs.trace().len();
        as_time_passes(&machine.clock, removal.run()).await.unwrap();
        let kinds: Vec<_> = machine.fs.trace()[began..]
            .iter()
            .map(|op| op.kind)
            .collect();
        let cuts = kinds.iter().filter(|k| **k == OpKind::SetLen).count();
        assert_eq!(cuts, 9, "10 MB in steps of 1 MiB, the last with the name");
        assert_eq!(machine.clock.elapsed(), Duration::from_millis(90));
        assert!(machine.segments().is_empty() && !removal.is_pending());
        assert_eq!((held.start_offset(), held.end_offset()), (40, 40));
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 40);
    });
}

#[test]
fn the_more_there_is_to_remove_the_less_it_is_put_off() {
    // Where it is little, few syncs are to meet a step; where it is much, or the disk is full, room is wanted.
    for (is_full, microseconds) in [(false, 2 * (2_500 + 3_333 + 5_000 + 10_000)), (true, 8_000)] {
        block_on(async {
            let machine = Machine::new(507).with_segment_bytes(2_700_000);
            let mut log = machine.open().await;
            for n in 0..40u8 {
                log.append(None, &vec![n; 250_000], &[], 0).await.unwrap();
            }
            log.purge_to(40).await.unwrap();
            if is_full {
                machine.fs.set_free_space(Some(0));
                log.append(None, b"next", &[], 0).await.unwrap_err();
                machine.fs.set_free_space(None);
            }
            let removal = log.removal();
            as_time_passes(&machine.clock, removal.run()).await.unwrap();
            let elapsed = machine.clock.elapsed().as_micros();
            // Sleeps are of whole milliseconds.
            assert!(
                (microseconds..microseconds + 8_000).contains(&elapsed),
                "{elapsed}"
            );
            assert!(!removal.is_pending());
        });
    }
}

#[test]
fn a_file_that_cannot_be_removed_holds_up_no_other() {
    block_on(async {
        let machine = machine(507);
        let mut oracle = Oracle::default();
        let mut log = begin(&machine, &mut oracle).await;
        oracle.purge_to(&mut log, 12).await.unwrap();
        let stuck = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::RemoveFile]);
        machine
            .fs
            .inject(stuck.path(PathPattern::Exactly(segment(0))).always());
        let removal = log.removal();
        let error = removal.run().await.unwrap_err();
        assert_eq!(error.action(), Action::Retry);
        assert_eq!(machine.segments(), [segment(0)]);
        machine.fs.clear_faults();
        // A directory sync that fails leaves it to be done again, too.
        machine.fs.fail_next(OpKind::SyncDir, Errno::Io);
        removal.run().await.unwrap_err();
        assert!(removal.is_pending());
        removal.run().await.unwrap();
        assert!(!removal.is_pending());
        Append(1).apply(&mut log, &mut oracle).await;
        drop(log);
        machine.fs.power_loss(Keep::None);
        oracle.check(&machine.open().await).await;
    });
}

/// A Raft group's log: its entries in the partition, its vote in a file of its own.
struct RaftLog {
    machine: Machine,
    log: Writer,
}

impl RaftLog {
    const VOTE: &str = "/data/vote";

    async fn open(machine: &Machine) -> (Self, Option<u64>) {
        let term = machine.fs.read_file(Self::VOTE).ok();
        let term = term.map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
        let log = machine.open().await;
        let machine = machine.clone();
        (Self { machine, log }, term)
    }

    async fn append(&mut self, term: u64) -> sq_storage::Result<u64> {
        self.log.append(None, &term.to_be_bytes(), &[], 0).await
    }

    async fn save_vote(&self, term: u64) -> std::io::Result<()> {
        let fs = self.machine.fs.for_this_process();
        let new = format!("{}-new", Self::VOTE);
        let _ = fs.remove_file(new.as_ref()).await;
        let file = fs.create_new(new.as_ref()).await?;
        file.write_at(0, &[Bytes::copy_from_slice(&term.to_be_bytes())])
            .await?;
        file.sync_all().await?;
        fs.rename(new.as_ref(), Self::VOTE.as_ref()).await?;
        fs.sync_dir("/data".as_ref()).await
    }

    /// The term of each entry, from the first on.
    async fn terms(&self) -> (u64, Vec<u64>) {
        let reader = self.log.reader();
        let mut terms = Vec::new();
        let mut next = reader.start_offset();
        while next < reader.end_offset() {
            for frame in reader.read(next, 1 << 20).await.unwrap() {
                next = frame.end_offset();
                let record = sq_storage::Record::decode(frame.payload.to_bytes()).unwrap();
                terms.push(u64::from_be_bytes(
                    record.value.unwrap()[..].try_into().unwrap(),
                ));
            }
        }
        (reader.start_offset(), terms)
    }
}

#[test]
fn a_raft_log_keeps_a_vote_and_what_was_truncated_before_it_was_acknowledged() {
    // Votes and entries were synced, truncations were not: after a power loss a new vote stood beside
    // the end that its leader had cut off.
    for stop in Stop::ALL {
        for operations in 0.. {
            let crashed = block_on(async {
                let machine = machine(508);
                let (mut raft, _) = RaftLog::open(&machine).await;
                for _ in 0..10 {
                    raft.append(1).await.unwrap();
                }
                raft.save_vote(1).await.unwrap();
                machine.fs.crash_after(operations);
                // A leader of term 2 takes over, and its first entry is number 5. Later, a snapshot.
                let mut done = 0;
                let mut course = async || {
                    raft.save_vote(2).await.map_err(|_| ())?;
                    done = 1;
                    raft.log.truncate_from(5).await.map_err(|_| ())?;
                    done = 2;
                    raft.append(2).await.map_err(|_| ())?;
                    done = 3;
                    raft.log.purge_to(4).await.map_err(|_| ())?;
                    done = 4;
                    raft.log.removal().run().await.map_err(|_| ())
                };
                let _: Result<(), ()> = course().await;
                drop(raft);
                let crashed = is_crash(&machine.fs);
                machine.fs.crash_after(u64::MAX);
                stop.strike(&machine.fs);
                let (raft, vote) = RaftLog::open(&machine).await;
                assert_eq!(raft.log.recovery_report().damage, []);
                let (start, terms) = raft.terms().await;
                let old = vec![1; 10];
                let (cut, led) = (vec![1; 5], vec![1, 1, 1, 1, 1, 2]);
                assert!(vote == Some(2) || (done == 0 && vote == Some(1)));
                let held = |expected: &[u64]| start == 0 && terms == *expected;
                let purged = start == 4 && terms == [1, 2];
                let is_right = match done {
                    0 => held(&old),
                    1 => held(&old) || held(&cut),
                    2 => held(&cut) || held(&led),
                    3 => held(&led) || purged,
                    _ => purged,
                };
                assert!(
                    is_right,
                    "{stop:?} after {operations}: {done} done, {start} {terms:?}"
                );
                crashed
            });
            if !crashed {
                assert!(operations > 20);
                break;
            }
        }
    }
}

#[test]
fn the_log_start_survives_the_loss_of_every_segment() {
    block_on(async {
        let machine = machine(509);
        let mut oracle = Oracle::default();
        let mut log = begin(&machine, &mut oracle).await;
        oracle.purge_to(&mut log, 12).await.unwrap();
        log.removal().run().await.unwrap();
        assert!(machine.segments().is_empty());
        for _ in 0..3 {
            drop(log);
            machine.fs.power_loss(Keep::None);
            log = machine.open().await;
            assert_eq!((log.reader().start_offset(), log.next_offset()), (12, 12));
            oracle.check(&log).await;
        }
        // Without the manifest nothing says it, and nothing is guessed.
        drop(log);
        let manifest = machine.fs.read_file(MANIFEST).unwrap();
        let mut start_lost = manifest.clone();
        start_lost[8 + 20] ^= 1;
        for bytes in [Vec::new(), start_lost] {
            machine.fs.write_file(MANIFEST, bytes).unwrap();
            let error = machine.try_open().await.unwrap_err();
            assert!(matches!(error, Error::UnknownStart { .. }), "{error}");
        }
        machine.fs.write_file(MANIFEST, manifest).unwrap();
        let mut log = machine.open().await;
        Append(1).apply(&mut log, &mut oracle).await;
        drop(log);
        oracle.check(&machine.open().await).await;
        assert_eq!(machine.segments(), [segment(12)]);
    });
}

#[test]
fn a_start_that_is_advanced_leaves_appends_where_they_are() {
    // Whoever deletes up to the end again and again, as stream processors do, had every next append go to
    // a fresh file.
    block_on(async {
        let machine = Machine::new(510);
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        Append(5).apply(&mut log, &mut oracle).await;
        let active = log.active_segment().unwrap();
        for round in 0..3 {
            let end = oracle.end();
            oracle.advance_start(&mut log, end).await.unwrap();
            let ActiveSegment {
                id, base_offset, ..
            } = log.active_segment().unwrap();
            assert_eq!((id, base_offset), (active.id, 0));
            let reader = log.reader();
            assert_eq!((reader.start_offset(), reader.end_offset()), (end, end));
            // Nothing is left, and nothing of it is found in what there is of the file.
            assert!(reader.read(end, 1).await.unwrap().is_empty());
            assert!(reader.read(end - 1, 1).await.is_err());
            assert_eq!(reader.find_by_timestamp(0).await.unwrap(), None);
            assert_eq!(reader.find_max_timestamp().await.unwrap(), None);
            assert!(!log.removal().is_pending());
            Append(round + 1).apply(&mut log, &mut oracle).await;
            oracle.verify(&log.reader()).await;
        }
        assert_eq!(machine.segments(), [segment(0)]);
        // Below the start there is nothing to do.
        let operations = machine.fs.operations();
        oracle.advance_start(&mut log, 3).await.unwrap();
        assert_eq!(machine.fs.operations(), operations);
    });
}

#[test]
fn what_was_let_go_of_while_it_took_appends_goes_once_it_is_closed() {
    for by_retention in [false, true] {
        block_on(async {
            let machine = machine(511);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            Append(2).apply(&mut log, &mut oracle).await;
            oracle.advance_start(&mut log, 2).await.unwrap();
            let closed = log.close_active_segment().await.unwrap().unwrap();
            Append(1).apply(&mut log, &mut oracle).await;
            assert_eq!(machine.segments(), [closed.path, segment(2)]);
            if by_retention {
                let keeps_all = Retention::default();
                assert!(log.apply_retention(&keeps_all).await.unwrap());
                assert!(!log.apply_retention(&keeps_all).await.unwrap());
            } else {
                // It is no matter where the start is moved to.
                oracle.advance_start(&mut log, 0).await.unwrap();
            }
            log.removal().run().await.unwrap();
            assert_eq!(machine.segments(), [segment(2)]);
            assert_eq!(log.reader().start_offset(), 2);
            oracle.verify(&log.reader()).await;
            drop(log);
            machine.fs.power_loss(Keep::None);
            oracle.check(&machine.open().await).await;
        });
    }
}

#[test]
fn what_opening_found_to_be_gone_stays_so_until_its_file_is() {
    // A log that began within a segment was truncated to just there: nothing was left of the segment, which
    // the manifest listed all the same. The next opening left its file to be removed, and the next line of
    // the manifest did not list it any more, nor that anything had been cut off. After a crash before the
    // removal, the file's own frames said that what had been cut off was committed, and damage was reported
    // where the log went on.
    for stop in Stop::ALL {
        block_on(async {
            let machine = Machine::new(513);
            let mut oracle = Oracle::default();
            let mut log = machine.open().await;
            Append(4).apply(&mut log, &mut oracle).await;
            log.mark().await.unwrap();
            oracle.purge_to(&mut log, 2).await.unwrap();
            oracle.truncate_from(&mut log, 2).await.unwrap();
            for appended in 0..3 {
                drop(log);
                stop.strike(&machine.fs);
                log = machine.open().await;
                assert_eq!(log.recovery_report().damage, []);
                assert_eq!(log.recovery_report().to_remove, [segment(0)]);
                assert_eq!(log.next_offset(), 2 + appended);
                oracle.check(&log).await;
                Append(1).apply(&mut log, &mut oracle).await;
            }
            log.removal().run().await.unwrap();
            assert_eq!(machine.segments(), [segment(2)]);
            // What is gone need not be listed for ever.
            oracle.advance_start(&mut log, 3).await.unwrap();
            let manifest = machine.fs.read_file(MANIFEST).unwrap();
            let content = ManifestContent::decode(&manifest);
            assert_eq!((content.removed.len(), content.truncations.len()), (0, 0));
        });
    }
}

#[test]
fn a_log_that_nothing_was_appended_to_can_begin_anywhere() {
    // A replica that begins where another's snapshot ends purged its empty log up to there, and got an
    // error: the directory for the manifest that says so did not exist.
    for stop in Stop::ALL {
        block_on(async {
            let machine = machine(1);
            let mut log = machine.open().await;
            log.purge_to(70).await.unwrap();
            assert_eq!(log.next_offset(), 70);
            drop(log);
            stop.strike(&machine.fs);
            let mut log = machine.open().await;
            assert_eq!(log.reader().start_offset(), 70);
            assert_eq!(log.append(None, b"first", &[], 0).await.unwrap(), 70);
        });
    }
}
