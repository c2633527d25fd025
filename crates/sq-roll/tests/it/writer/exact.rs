//! What a roll costs, in operations and in virtual time, exactly.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sq_roll::{Epoch, Limits, Mode, RollRecord, RollSettings, SourceError, State};
use sq_sim::{Clock, Effect, Fault, Keep, Op, OpKind, SyncFailure};
use sq_storage::log::Head;
use sq_storage::{Action, Error, SyncPolicy};

use super::world::{SEGMENT_BYTES, SYNC, World, record, value, values};
use crate::support::ms;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

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

#[test]
fn an_append_that_comes_to_nothing_is_no_part_of_the_segment_that_it_was_to_end_in() {
    // A switch that was decided on while an append was under way counted that into the old segment's
    // end. The append was dropped, and the successor began behind a record that there never was.
    block_on(async {
        let world = World::new(7).with_slow_syncs();
        let mut open = world.open().await;
        for n in 0..5 {
            world.append(&mut open, n).await.unwrap();
        }
        let dropped = [record(99)];
        {
            let mut append = pin!(open.writer.append(&dropped));
            let polled = poll_fn(|context| Poll::Ready(append.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            let rolls = open.rolls.clone();
            drop(tokio::spawn(async move { rolls.seal().await }));
            world.pass(ms(50)).await;
        }
        for n in 5..300 {
            world.append(&mut open, n).await.unwrap();
            world.pass(ms(5)).await;
        }
        let bases: Vec<u64> = open
            .writer
            .writer()
            .reader()
            .segments()
            .iter()
            .map(|s| s.base_offset)
            .collect();
        let ends = world
            .source
            .with(|source| source.sealed.iter().map(|s| s.end).collect::<Vec<_>>());
        assert_eq!(bases[1..=ends.len()], ends);
        assert_eq!(ends[0], 5);
        assert!(ends.len() >= 4);
        let stored = values(open.writer.writer()).await;
        assert!(
            stored
                .iter()
                .enumerate()
                .all(|(n, v)| *v == value(n as u64))
        );
    });
}

#[test]
fn a_source_that_never_answers_is_asked_until_it_does() {
    // Calls without an answer used up the number of those that may be under way, and no further one was
    // made, for ever.
    block_on(async {
        let world = World::new(8).with_slow_syncs();
        world.source.with(|source| source.unanswered = 20);
        let mut open = world.open().await;
        let mut n = 0;
        while world.append(&mut open, n).await.is_ok() {
            n += 1;
        }
        world.pass(22 * world.settings.patience.answer).await;
        assert_eq!(world.append(&mut open, n).await.unwrap(), SYNC);
    });
}

#[test]
fn a_successor_is_not_placed_behind_its_abandonment() {
    block_on(async {
        let world = World::new(9).with_slow_syncs();
        let mut open = world.open().await;
        // The first call takes longer than a second one, which says that it can never be.
        world.source.with(|source| source.delay = ms(9_000));
        for n in 0..57 {
            world.append(&mut open, n).await.unwrap();
        }
        world.pass(ms(100)).await;
        world.source.with(|source| {
            assert_eq!(source.prepared.len(), 1);
            source.delay = ms(0);
            source.failures.push(SourceError::Final("never".into()));
        });
        world.pass(ms(20_000)).await;
        world.source.with(|source| {
            assert_eq!(source.abandoned.len(), 1);
            assert_eq!(source.wrong, Vec::<String>::new());
            assert_eq!(source.open.len(), 1);
        });
        assert_eq!(open.rolls.state(), State::Armed);
    });
}

#[test]
fn a_close_brings_to_a_disk_what_a_failed_sync_left_in_memory() {
    // It needs a successor for that, and the driver was ended first.
    block_on(async {
        let mut world = World::new(10);
        world.config.sync = SyncPolicy::Every(ms(20));
        let mut open = world.open().await;
        for n in 0..5 {
            world.append(&mut open, n).await.unwrap();
        }
        let lost = Effect::FailSync(SyncFailure::Lost);
        world.fs.inject(Fault::new(lost).on(&[OpKind::SyncData]));
        let (writer, tasks) = open.into_parts();
        world.wait(writer.close()).await.unwrap();
        drop(tasks);
        world.fs.power_loss(Keep::None);
        let open = world.open().await;
        assert_eq!(values(open.writer.writer()).await.len(), 5);
    });
}

#[test]
fn a_deposed_leader_writes_nothing_more_and_leaves_no_file_behind() {
    // Elsewhere one that was in the middle of a roll went on writing to the segment that it had made.
    block_on(async {
        let world = World::new(11).with_slow_syncs();
        let mut open = world.open().await;
        let mut n = 0;
        while open.rolls.state() != State::Armed {
            world.append(&mut open, n).await.unwrap();
            world.pass(ms(5)).await;
            n += 1;
        }
        assert_eq!(world.prepared_files().len(), 1);
        open.rolls.fence(Epoch(2));
        world.pass(ms(50)).await;
        assert_eq!(world.prepared_files().len(), 0);
        let refused = world.append(&mut open, n).await.unwrap_err();
        assert!(matches!(refused, Error::Stopped { .. }), "{refused}");
        assert_eq!(refused.action(), Action::Reopen);
        assert_eq!(open.writer.writer().next_offset(), n);
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
