//! What a roll costs, in operations and in virtual time, exactly.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sq_roll::{Limits, Mode, RollRecord, RollSettings, State};
use sq_sim::{Clock, Op, OpKind};
use sq_storage::log::Head;
use sq_storage::{Action, Error};

use super::world::{SEGMENT_BYTES, SYNC, World, block_on, record, value, values};
use crate::support::ms;

/// What an append asks of the file system.
fn shape(trace: &[Op]) -> Vec<OpKind> {
    trace.iter().map(|op| op.kind).collect()
}

/// What a future gives, and the operations that it carries out itself, whatever others do meanwhile.
async fn with_operations<T>(world: &World, work: impl Future<Output = T>) -> (T, Vec<Op>) {
    let mut work = pin!(work);
    let mut own = Vec::new();
    let output = poll_fn(|context| {
        world.fs.take_trace();
        let polled = work.as_mut().poll(context);
        own.extend(world.fs.take_trace());
        polled
    });
    (output.await, own)
}

/// The file that an append was written to.
fn written(trace: &[Op]) -> &Path {
    let write = trace.iter().find(|op| op.kind == OpKind::WriteAt);
    &write.unwrap().path
}

#[test]
fn the_first_append_after_a_switch_is_like_any_other() {
    block_on(async {
        let world = World::new(1).with_slow_syncs();
        let mut open = world.open().await;
        let reader = open.writer.writer().reader();
        let mut files = BTreeSet::new();
        let mut usual = None;
        for n in 0..400 {
            // What is done behind the appends is done before the next one.
            world.pass(ms(5)).await;
            let tail = reader.clone();
            let clock = world.clock.clone();
            let tail = tokio::spawn(async move {
                tail.wait_for(n).await;
                clock.now()
            });
            world.settle().await;
            let began = world.clock.now();
            let record = [record(n)];
            let append = with_operations(&world, open.writer.append(&record));
            let (appended, trace) = world.wait(append).await;
            assert_eq!(appended.unwrap(), 1);
            let took = world.clock.now() - began;
            let waited = world.wait(tail).await.unwrap() - began;
            files.insert(written(&trace).to_owned());
            if n > 0 {
                let this = (shape(&trace), took, waited);
                let usual = usual.get_or_insert_with(|| this.clone());
                assert_eq!(*usual, this, "append {n}");
            }
        }
        let writes = [OpKind::WriteAt, OpKind::SyncData];
        assert_eq!(usual.unwrap(), (writes.to_vec(), SYNC, SYNC));
        let rolls = open.rolls.records();
        assert!(
            files.len() > 6 && rolls.len() == files.len() - 1,
            "{files:?}"
        );
        for roll in rolls {
            assert_eq!((roll.waited, roll.overrun_bytes), (Duration::ZERO, 0));
            assert_eq!(roll.producer_gap, roll.usual_gap);
            assert_eq!(roll.tail_gap, roll.usual_gap);
            assert!(roll.soft_mark.bytes < roll.switch.bytes);
            assert!(roll.switch.bytes <= SEGMENT_BYTES);
        }
    });
}

#[test]
fn nothing_is_asked_of_the_source_before_the_record_that_crosses_is_acknowledged() {
    // The metadata is on the same disk, and the first record of each segment took half as long again as
    // others: the commit that sealed the one before was synced at the same time.
    block_on(async {
        let world = World::new(12).with_slow_syncs();
        let mut open = world.open().await;
        let mut crossings = 0;
        for n in 0..400 {
            let before = open.rolls.active();
            world.source.with(|source| source.asked.clear());
            let took = world.append(&mut open, n).await.unwrap();
            let acknowledged = world.clock.now();
            let has_crossed = open.rolls.active() != before;
            world.pass(ms(5)).await;
            if has_crossed {
                crossings += 1;
                assert_eq!(took, SYNC);
                let asked = world.source.with(|source| source.asked.clone());
                assert_eq!(asked, [acknowledged], "at {n}");
            }
        }
        assert!(crossings > 5, "{crossings}");
    });
}

#[test]
fn reacting_at_the_cap_makes_an_append_wait_for_the_successor() {
    block_on(async {
        let mut world = World::new(2).with_slow_syncs();
        world.settings.mode = Mode::Reactive;
        world.source.with(|source| source.delay = ms(50));
        let mut open = world.open().await;
        let mut waits = Vec::new();
        for n in 0..400 {
            let took = world.append(&mut open, n).await.unwrap();
            if n > 0 && took > SYNC {
                waits.push(took);
            }
            world.pass(ms(5)).await;
        }
        world.pass(ms(200)).await;
        let rolls = open.rolls.records();
        assert!(rolls.len() >= 5);
        assert_eq!(waits.len(), rolls.len());
        for (roll, wait) in rolls.iter().zip(waits) {
            assert_eq!(roll.waited + SYNC, wait);
            assert!(roll.waited >= ms(50) && roll.waited < ms(51), "{roll:?}");
            assert_eq!(roll.overrun_bytes, 0);
            let gap = roll.producer_gap.unwrap();
            assert!(gap >= ms(50) + roll.usual_gap.unwrap(), "{roll:?}");
            assert!(roll.tail_gap.unwrap() >= ms(50));
        }
        let written = values(open.writer.writer()).await;
        assert!(
            written
                .iter()
                .enumerate()
                .all(|(n, v)| *v == value(n as u64))
        );
    });
}

/// Delays of the source, where a tenth of a segment takes longer to fill.
#[test]
fn no_append_waits_where_the_successor_can_be_ready() {
    for delay in [0, 5, 50, 500] {
        block_on(async {
            let world = World::new(delay).with_slow_syncs();
            world.source.with(|source| source.delay = ms(delay));
            let mut open = world.open().await;
            for n in 0..500 {
                let took = world.append(&mut open, n).await.unwrap();
                assert!(n == 0 || took == SYNC, "{took:?} at {n}");
                world.pass(ms(20.max(delay / 5))).await;
            }
            let rolls = open.rolls.records();
            assert!(rolls.len() >= 5, "{}", rolls.len());
            let cost = |roll: &Arc<RollRecord>| (roll.waited, roll.overrun_bytes);
            assert!(rolls.iter().all(|roll| cost(roll) == (Duration::ZERO, 0)));
        });
    }
}

#[test]
fn a_successor_that_is_late_is_met_by_overrun_then_a_wait_then_an_error_and_nothing_is_lost() {
    block_on(async {
        let world = World::new(3).with_slow_syncs();
        world.source.with(|source| source.unanswered = usize::MAX);
        let mut open = world.open().await;
        let (mut n, mut states) = (0, BTreeSet::new());
        let failed = loop {
            match world.append(&mut open, n).await {
                Ok(took) => assert!(n == 0 || took == SYNC),
                Err(error) => break error,
            }
            states.insert(format!("{:?}", open.rolls.state()));
            n += 1;
        };
        assert!(matches!(failed, Error::NoSuccessor { .. }), "{failed}");
        assert_eq!(failed.action(), Action::Retry);
        let names = ["Filling", "Overrun", "Preparing"].map(str::to_owned);
        assert!(states.into_iter().eq(names));
        assert_eq!(open.rolls.state(), State::Backpressure);
        assert_eq!(open.writer.writer().next_offset(), n);
        let held = open.writer.writer().active_segment().unwrap().bytes;
        let hard = world.settings.limits.hard_bytes();
        assert!(held > SEGMENT_BYTES && held <= hard, "{held} bytes");
        // Those behind it fail at once, until it is over.
        let began = world.clock.now();
        assert!(world.append(&mut open, n).await.is_err());
        assert_eq!(world.clock.now(), began);
        world.source.with(|source| source.unanswered = 0);
        world.pass(world.settings.patience.answer + ms(1)).await;
        assert_eq!(world.append(&mut open, n).await.unwrap(), SYNC);
        world.pass(ms(10)).await;
        let roll = open.rolls.records().pop().unwrap();
        assert!(roll.overrun_bytes > 0 && roll.waited >= world.settings.longest_wait);
        assert_eq!(values(open.writer.writer()).await.len() as u64, n + 1);
    });
}

#[test]
fn an_append_that_waits_goes_on_when_the_successor_comes() {
    block_on(async {
        let world = World::new(4).with_slow_syncs();
        world.source.with(|source| source.delay = ms(700));
        let mut open = world.open().await;
        let mut longest = Duration::ZERO;
        for n in 0..200 {
            longest = longest.max(world.append(&mut open, n).await.unwrap());
        }
        assert!(longest > ms(600) && longest < ms(1_500), "{longest:?}");
        assert_eq!(values(open.writer.writer()).await.len(), 200);
    });
}

/// Segments whose preparation zeroes eight pieces.
fn world_with_large_segments(seed: u64) -> World {
    let mut world = World::new(seed);
    world.config.max_segment_bytes = 2 << 20;
    world.config.zero_ahead_bytes = 2 << 20;
    world.settings.limits = Limits::bytes(2 << 20);
    world
}

/// How many pieces were zeroed of files that nothing was written to yet.
fn pieces(world: &World) -> usize {
    let trace = world.fs.take_trace();
    let is_piece = |op: &&Op| {
        op.kind == OpKind::ZeroRange && op.path.extension().is_some_and(|e| e == "prepared")
    };
    trace.iter().filter(is_piece).count()
}

#[test]
fn a_preparation_leaves_the_disk_to_appends_for_a_moment_again_and_again() {
    // The zeros that a successor begins with were written in one go, and appends meanwhile took twice as
    // long.
    block_on(async {
        let world = world_with_large_segments(7);
        let mut open = world.open().await;
        let mut n = 0;
        while open.rolls.state() == State::Filling {
            world.append(&mut open, n).await.unwrap();
            n += 1;
        }
        world.settle().await;
        assert_eq!(pieces(&world), 1);
        for _ in 1..8 {
            assert_eq!(open.rolls.state(), State::Preparing);
            world.clock.advance(ms(1));
            world.settle().await;
            assert_eq!(pieces(&world), 1);
        }
        assert_eq!(open.rolls.state(), State::Armed);
    });
}

#[test]
fn a_preparation_hurries_for_an_append_that_waits_and_for_others_that_wait_for_their_turn() {
    for mode in [Mode::Anticipatory, Mode::Reactive] {
        block_on(async {
            let mut world = world_with_large_segments(8);
            world.settings.mode = mode;
            let mut open = world.open().await;
            let mut zeroed = 0;
            for n in 0..6_500 {
                // No time passes.
                let frames = [record(n)];
                let mut append = pin!(open.writer.append(&frames));
                let mut polls = 0;
                let appended = poll_fn(|context| match append.as_mut().poll(context) {
                    Poll::Pending if polls < 100 => {
                        polls += 1;
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                    polled => Poll::Ready(polled),
                });
                let appended = appended.await;
                assert!(matches!(appended, Poll::Ready(Ok(1))), "{mode:?}, {n}");
                zeroed += pieces(&world);
            }
            assert!(open.rolls.records().len() >= 2, "{mode:?}");
            assert!(zeroed >= 16, "{mode:?}");
        });
    }
    block_on(async {
        let world = world_with_large_segments(9);
        let mut open = Vec::new();
        for partition in 0..5 {
            let mut log = world.open_partition(partition).await;
            world.append(&mut log, 0).await.unwrap();
            open.push(log);
        }
        for log in &open {
            let rolls = log.rolls.clone();
            tokio::spawn(async move { rolls.seal().await });
        }
        world.settle().await;
        assert_eq!(world.node.preparations(), (1, 0), "the last has time");
        assert_eq!(pieces(&world), 4 * 8 + 1);
    });
}

#[test]
fn an_idle_log_costs_nothing() {
    // A new cluster elsewhere preallocated the next file of everything straight away.
    block_on(async {
        let world = World::new(5);
        let mut open = Vec::new();
        for partition in 0..200 {
            open.push(world.open_partition(partition).await);
        }
        world.settle().await;
        assert!(world.fs.files().is_empty());
        for open in &mut open {
            world.append(open, 0).await.unwrap();
        }
        world.settle().await;
        assert_eq!(
            world.fs.files().len(),
            2 * open.len(),
            "a segment and a manifest each"
        );
        world.fs.take_trace();
        assert_eq!(
            world.clock.advance_to_next(),
            None,
            "nobody has set a timer"
        );
        assert!(world.source.with(|source| source.prepared.is_empty()));
    });
}

#[test]
fn a_node_prepares_a_few_at_a_time() {
    // Elsewhere all partitions of a topic rolled at the same moment.
    block_on(async {
        let world = World::new(6);
        world.source.with(|source| source.delay = ms(5));
        let settings = RollSettings::new(Limits::bytes(SEGMENT_BYTES));
        assert!(settings.slack.jitter > 0.0);
        let mut open = Vec::new();
        for partition in 0..40 {
            open.push(world.open_partition(partition).await);
        }
        let mut most = 0;
        for n in 0..150 {
            for open in &mut open {
                let took = world.append(open, n).await.unwrap();
                assert!(took < ms(1));
                most = most.max(world.node.preparations().0);
            }
            world.pass(ms(20)).await;
            most = most.max(world.node.preparations().0);
        }
        assert_eq!(most, 4);
        for open in &open {
            assert!(open.rolls.records().len() >= 2);
        }
    });
}
