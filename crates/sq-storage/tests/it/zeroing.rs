//! Zeros in front of the write head: that appends find them, that nothing that was written is ever
//! zeroed, and that there are never more of them than allowed.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use async_trait::async_trait;
use sq_sim::{Clock, Effect, Errno, Fault, Keep, Op, OpKind, VirtualClock};
use sq_storage::{Maintenance, MaintenanceMode, Pace, Rotation, Zeroing};

use crate::disk::Disk;
use crate::oracle::Oracle;
use crate::support::{Machine, Writer, as_time_passes, block_on, segment, value};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn machine(seed: u64, maintenance: MaintenanceMode) -> Machine {
    let mut machine = Machine::new(seed).with_segment_bytes(8 * MIB);
    machine.config.maintenance = maintenance;
    machine.config.zero_ahead_bytes = 2 * MIB;
    machine
}

/// What a file was asked for.
#[derive(Default)]
struct Asked {
    zeroed: Vec<Range<u64>>,
    written: u64,
    /// How many bytes were written where no zeros were.
    onto_none: u64,
}

impl Asked {
    fn take(&mut self, op: &Op) {
        let range = op.offset..op.offset + op.len;
        match op.kind {
            OpKind::ZeroRange => {
                assert!(range.start >= self.written, "{op} over what was written");
                self.zeroed.push(range);
            }
            OpKind::WriteAt => {
                let found = self.zeroed.iter().map(|zeroed| {
                    let (start, end) = (zeroed.start.max(self.written), zeroed.end.min(range.end));
                    end.saturating_sub(start)
                });
                let new = range.end.saturating_sub(self.written);
                self.onto_none += new - found.sum::<u64>().min(new);
                self.written = self.written.max(range.end);
            }
            _ => {}
        }
    }

    fn ahead(&self) -> u64 {
        let ahead = self
            .zeroed
            .iter()
            .map(|r| r.end.saturating_sub(r.start.max(self.written)));
        ahead.sum()
    }
}

/// What every file was asked for so far.
fn asked(machine: &Machine, files: &mut BTreeMap<Arc<Path>, Asked>) {
    for op in machine.fs.take_trace() {
        let path = Arc::clone(op.to.as_ref().unwrap_or(&op.path));
        match op.kind {
            OpKind::Rename => {
                let asked = files.remove(&op.path).unwrap_or_default();
                files.insert(path, asked);
            }
            OpKind::RemoveFile => drop(files.remove(&op.path)),
            _ => files.entry(path).or_default().take(&op),
        }
    }
}

fn total_ahead(files: &BTreeMap<Arc<Path>, Asked>) -> u64 {
    files.values().map(Asked::ahead).sum()
}

async fn append(log: &mut Writer, bytes: usize) {
    log.append(None, &vec![7; bytes], &[], 0).await.unwrap();
}

#[test]
fn appends_find_zeros_and_nothing_written_is_zeroed_whoever_does_it() {
    for maintenance in [MaintenanceMode::Inline, MaintenanceMode::Handed] {
        block_on(async {
            let machine = machine(1, maintenance);
            let mut log = machine.open().await;
            let mut files = BTreeMap::new();
            for n in 0..1500 {
                append(&mut log, if n % 100 == 0 { 150_000 } else { 8_000 }).await;
                if maintenance == MaintenanceMode::Handed {
                    machine.clock.advance(Duration::from_millis(1));
                    log.maintenance().run().await.unwrap();
                }
                asked(&machine, &mut files);
            }
            let segments = log.reader().segments();
            assert!(segments.len() > 1);
            for info in &segments {
                let Asked {
                    written, onto_none, ..
                } = files[info.path.as_path()];
                // The first frames are written before the first piece is in front of them.
                assert!(
                    onto_none <= 512 * KIB,
                    "{onto_none} of {written}, {maintenance:?}"
                );
            }
            assert_eq!(
                machine.config.zeroing.used_bytes(),
                total_ahead_of(&files, &segments)
            );
            log.close().await.unwrap();
            assert_eq!(machine.config.zeroing.used_bytes(), 0);
        });
    }
}

/// What is zeroed ahead in the newest segment; the others take no further write.
fn total_ahead_of(files: &BTreeMap<Arc<Path>, Asked>, segments: &[sq_storage::SegmentInfo]) -> u64 {
    files[segments.last().unwrap().path.as_path()].ahead()
}

#[test]
fn the_lead_grows_with_what_a_segment_takes_up_to_a_bound() {
    block_on(async {
        let machine = machine(2, MaintenanceMode::Inline);
        let mut log = machine.open().await;
        let mut files = BTreeMap::new();
        let path = segment(0);
        let mut greatest = 0;
        for n in 0..900_u64 {
            append(&mut log, 8_000).await;
            asked(&machine, &mut files);
            let asked = &files[path.as_path()];
            if n == 0 {
                assert!(asked.ahead() <= 256 * KIB, "one record costs little");
            }
            assert!(asked.ahead() <= (asked.written / 4).clamp(256 * KIB, 2 * MIB));
            let end = asked.zeroed.last().map_or(0, |r| r.end);
            assert!(end <= 8 * MIB, "not beyond the segment");
            greatest = greatest.max(asked.ahead());
        }
        assert!(greatest > MIB, "{greatest}");
    });
}

#[test]
fn it_goes_no_faster_than_the_head_needs() {
    block_on(async {
        let machine = machine(3, MaintenanceMode::Handed);
        let mut log = machine.open().await;
        let maintenance = log.maintenance();
        let mut files = BTreeMap::new();
        for _ in 0..530 {
            append(&mut log, 8_000).await;
        }
        maintenance.run().await.unwrap();
        asked(&machine, &mut files);
        let path = segment(0);
        let first = files[path.as_path()].ahead();
        assert!(first >= 256 * KIB, "as much as is needed soon, at once");
        assert!(first < 600 * KIB, "and the rest bit by bit: {first}");
        let pause = maintenance.due_in().unwrap();
        assert!(!pause.is_zero());
        maintenance.run().await.unwrap();
        asked(&machine, &mut files);
        assert_eq!(files[path.as_path()].ahead(), first, "not before its time");

        let waiting = maintenance.wait();
        let woken = async { machine.clock.advance(pause) };
        assert!(tokio::join!(waiting, woken).0);
        let mut pauses = 0;
        while let Some(pause) = maintenance.due_in() {
            machine.clock.advance(pause);
            maintenance.run().await.unwrap();
            pauses += 1;
        }
        assert!(pauses > 1);
        asked(&machine, &mut files);
        let lead = files[path.as_path()].ahead();
        assert!(lead > 900 * KIB, "{lead}");
    });
}

/// Large writes were once zeroed for as well: the disk wrote every byte twice, and a log of batches of 1 MiB
/// went at less than half the speed that it has without.
#[test]
fn large_writes_are_not_zeroed_for_until_small_ones_follow() {
    block_on(async {
        let machine = machine(4, MaintenanceMode::Inline);
        let mut log = machine.open().await;
        let mut files = BTreeMap::new();
        let path = segment(0);
        let mut zeroed = Vec::new();
        for len in [vec![200_000; 12], vec![2_000; 100]].concat() {
            append(&mut log, len).await;
            asked(&machine, &mut files);
            let ranges = &files[path.as_path()].zeroed;
            zeroed.push(ranges.iter().map(|r| r.end - r.start).sum::<u64>());
        }
        let (first, after_large, last) = (zeroed[6], zeroed[11], zeroed[111]);
        assert_eq!(
            first, after_large,
            "what is zeroed before it is known at most"
        );
        assert!(last > after_large, "{zeroed:?}");
    });
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn whoever_waits_is_woken_by_what_is_new_and_not_by_every_append() {
    // Every append once woke the thread that did the chores, which took a processor from the next.
    block_on(async {
        let machine = machine(30, MaintenanceMode::Handed);
        let mut log = machine.open().await;
        let maintenance = log.maintenance();
        append(&mut log, 8_000).await;
        maintenance.run().await.unwrap();
        let counted = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&counted));
        let mut context = Context::from_waker(&waker);
        let mut appends = 0;
        for _ in 0..30 {
            let mut waiting = pin!(maintenance.wait());
            let mut polled = waiting.as_mut().poll(&mut context);
            while polled.is_pending() {
                let before = counted.0.load(Ordering::Relaxed);
                let mut left = 10_000;
                // Nothing comes of waiting alone, and one that is wanted is never missed.
                while counted.0.load(Ordering::Relaxed) == before {
                    append(&mut log, 100).await;
                    machine.clock.advance(Duration::from_millis(1));
                    appends += 1;
                    left -= 1;
                    assert!(left > 0, "nobody was woken");
                }
                polled = waiting.as_mut().poll(&mut context);
            }
            maintenance.run().await.unwrap();
        }
        let woken = counted.0.load(Ordering::Relaxed);
        assert!(
            appends > 20 * woken,
            "woken {woken} times by {appends} appends"
        );
    });
}

#[test]
fn a_write_that_reaches_a_piece_waits_until_it_is_zeroed() {
    block_on(async {
        let machine = machine(4, MaintenanceMode::Handed);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        oracle.append(&mut log, value(0)).await.unwrap();
        machine
            .fs
            .inject(Fault::delay(Duration::from_secs(1)).on(&[OpKind::ZeroRange]));
        let maintenance = log.maintenance();
        let zeroing = tokio::spawn(async move { maintenance.run().await });
        let clock = machine.clock.clone();
        let pass_time = async {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(1));
        };
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        // A small one does not reach it.
        oracle.append(&mut log, value(1)).await.unwrap();
        let write = async {
            oracle.append(&mut log, vec![5; 200_000]).await.unwrap();
            machine.clock.elapsed()
        };
        assert_eq!(tokio::join!(write, pass_time).0, Duration::from_secs(1));
        zeroing.await.unwrap().unwrap();
        assert_eq!(log.reader().segments().len(), 1);
        oracle.verify(&log.reader()).await;
    });
}

/// Runs maintenance for so many polls, whether or not it gets on, and drops it. Whether it was over.
async fn let_run(maintenance: Maintenance<Disk>, polls: usize) -> bool {
    let mut run = pin!(maintenance.run());
    for _ in 0..polls {
        if poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

#[test]
fn a_piece_that_was_dropped_and_comes_late_zeroes_nothing_that_was_written() {
    // Wherever the run is dropped, on a disk that goes on with what it was asked for.
    let mut ended_early = 0;
    for polls in 0..80 {
        let segments = block_on(async {
            let mut machine = machine(5, MaintenanceMode::Handed);
            machine.habits.detached = true;
            machine.habits.zero_lag = 120;
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            oracle.append(&mut log, value(0)).await.unwrap();
            let finished = let_run(log.maintenance(), polls).await;
            for n in 0..30 {
                let large = vec![n; 30_000];
                oracle.append(&mut log, large).await.unwrap();
            }
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            oracle.verify(&log.reader()).await;
            let segments = log.reader().segments().len();
            log.maintenance().run().await.unwrap();
            drop(log);
            machine.fs.power_loss(Keep::All);
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage, []);
            oracle.check(&log).await;
            assert!(!finished, "a piece takes longer");
            segments
        });
        ended_early += usize::from(segments > 1);
    }
    assert!(
        ended_early > 5,
        "{ended_early} of 80 with a piece under way"
    );
}

#[test]
fn a_disk_that_cannot_zero_is_left_in_peace_soon() {
    block_on(async {
        let machine = machine(6, MaintenanceMode::Handed);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        let failing = Fault::new(Effect::Fail(Errno::NoSpace)).on(&[OpKind::ZeroRange]);
        machine.fs.inject(failing.always());
        for n in 0..60 {
            oracle.append(&mut log, vec![n; 8_000]).await.unwrap();
            machine.clock.advance(Duration::from_millis(50));
            log.maintenance().run().await.unwrap();
        }
        let trace = machine.fs.take_trace();
        let tries = trace
            .iter()
            .filter(|op| op.kind == OpKind::ZeroRange)
            .count();
        assert_eq!(tries, 3);
        assert_eq!(machine.config.zeroing.used_bytes(), 0);
        assert!(!log.maintenance().is_pending());
    });
}

#[test]
fn a_write_without_space_takes_the_zeros_back_and_the_next_finds_its_way() {
    block_on(async {
        let machine = machine(7, MaintenanceMode::Inline);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for n in 0..40 {
            oracle.append(&mut log, vec![n; 8_000]).await.unwrap();
        }
        assert!(machine.config.zeroing.used_bytes() > 0);
        let short = Fault::new(Effect::ShortWrite {
            bytes: 100,
            errno: Errno::NoSpace,
        });
        machine.fs.inject(short.on(&[OpKind::WriteAt]));
        oracle.append(&mut log, vec![1; 8_000]).await.unwrap_err();
        assert_eq!(machine.config.zeroing.used_bytes(), 0);
        for n in 0..40 {
            oracle.append(&mut log, vec![n; 8_000]).await.unwrap();
        }
        assert_eq!(log.reader().segments().len(), 1);
        oracle.verify(&log.reader()).await;
        machine.fs.process_crash();
        oracle.check(&machine.open().await).await;
    });
}

#[test]
fn ten_thousand_partitions_keep_to_the_budget_and_leave_some_for_one_in_a_hurry() {
    block_on(async {
        let mut machine = machine(8, MaintenanceMode::Handed).with_segment_bytes(4 * MIB);
        let limit = 4 * MIB;
        machine.config.zeroing = Zeroing::new(limit);
        let mut files = BTreeMap::new();
        let mut logs = Vec::new();
        let mut spare = Vec::new();
        for partition in 0..10_000 {
            let mut log = machine.open_as("orders", partition).await.unwrap();
            append(&mut log, 100).await;
            log.maintenance().run().await.unwrap();
            if partition % 1_000 == 999 {
                spare.push(log.preparation(None).run().await.unwrap());
                asked(&machine, &mut files);
                let ahead = total_ahead(&files);
                assert!(ahead <= limit, "{ahead} bytes with {partition} partitions");
                assert!(machine.config.zeroing.used_bytes() <= limit);
            }
            logs.push(log);
        }
        // The prepared ones have taken what the small ones had to leave.
        assert!(total_ahead(&files) > limit - 64 * KIB);
        spare.clear();
        assert!(machine.config.zeroing.used_bytes() <= limit / 2);

        let log = logs.last_mut().unwrap();
        let maintenance = log.maintenance();
        for _ in 0..300 {
            append(log, 16_000).await;
            machine.clock.advance(Duration::from_millis(1));
            maintenance.run().await.unwrap();
            assert!(machine.config.zeroing.used_bytes() <= limit);
        }
        asked(&machine, &mut files);
        let hurried = &log.reader().segments()[0];
        let Asked {
            written, onto_none, ..
        } = files[hurried.path.as_path()];
        assert!(written > 3 * MIB);
        assert!(onto_none < MIB + 512 * KIB, "{onto_none} of {written}");
        drop(logs);
        assert_eq!(machine.config.zeroing.used_bytes(), 0);
    });
}

/// A pause, as time.
#[derive(Debug)]
struct Pause(VirtualClock);

#[async_trait]
impl Pace for Pause {
    async fn pause(&self) {
        self.0.sleep(Duration::from_millis(1)).await;
    }
}

/// 4 MiB written in one go held up appends: their p99 beside a preparation was twice that of others.
#[test]
fn a_preparation_pauses_between_two_pieces_if_it_is_paced() {
    block_on(async {
        let machine = machine(9, MaintenanceMode::Handed).with_segment_bytes(4 * MIB);
        let mut log = machine.open().await;
        append(&mut log, 10).await;
        for (is_paced, pieces) in [(true, 8), (false, 1)] {
            let mut preparation = log.preparation(None);
            if is_paced {
                preparation = preparation.paced_by(Arc::new(Pause(machine.clock.clone())));
            }
            machine.fs.take_trace();
            let began = machine.clock.now();
            let prepared = as_time_passes(&machine.clock, preparation.run())
                .await
                .unwrap();
            let took = machine.clock.now().duration_since(began);
            let trace = machine.fs.take_trace();
            let zeroed = trace.iter().filter(|op| op.kind == OpKind::ZeroRange);
            let zeroed: Vec<_> = zeroed.map(|op| (op.offset, op.len)).collect();
            let len = 2 * MIB / pieces;
            let expected: Vec<_> = (0..pieces).map(|n| (n * len, len)).collect();
            assert_eq!(zeroed, expected);
            assert_eq!(took, Duration::from_millis(pieces - 1));
            prepared.discard().await.unwrap();
        }
    });
}

#[test]
fn what_is_left_of_a_last_page_keeps_nobody_busy() {
    // A segment of 290,000 bytes was zeroed up to there by its preparation. The 816 bytes to the end of
    // its last page were due from then on and never taken, since budget is given out in pages: whoever
    // did the maintenance did nothing, over and over, until the segment was full, and took half of the
    // processor from the appends.
    for bytes in [290_000, 4 * MIB + 1, 4 * MIB, 100, 70 * KIB + 4_095] {
        block_on(async {
            let mut machine = machine(1, MaintenanceMode::Handed).with_segment_bytes(bytes);
            machine.config.rotation = Rotation::External;
            let mut log = machine.open().await;
            let maintenance = log.maintenance();
            append(&mut log, 10).await;
            let prepared = log.preparation(None).run().await.unwrap();
            log.arm(prepared).unwrap();
            assert!(log.switch());
            let mut left = bytes;
            while left > 0 {
                append(&mut log, 3_000).await;
                left = left.saturating_sub(3_000);
                machine.clock.advance(Duration::from_millis(10));
                maintenance.run().await.unwrap();
                assert_ne!(
                    maintenance.due_in(),
                    Some(Duration::ZERO),
                    "{left} of {bytes}"
                );
            }
            log.close().await.unwrap();
        });
    }
}
