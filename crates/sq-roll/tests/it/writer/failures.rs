//! What goes wrong around a roll, one thing at a time.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use sq_roll::{Epoch, SourceError, State};
use sq_sim::{Clock, Effect, Errno, Fault, Keep, OpKind, SyncFailure, poll_n_then_drop};
use sq_storage::log::Head;
use sq_storage::{Action, Error, SyncPolicy};

use super::world::{SYNC, World, block_on, record, value, values};
use crate::support::ms;

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
            let (rolls, active) = (open.rolls.clone(), open.rolls.active());
            drop(tokio::spawn(async move { rolls.seal().await }));
            world.pass(ms(50)).await;
            assert_eq!(open.rolls.active(), active);
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
        // A second call, made while the first is under way, says that it can never be. The first would be
        // done when the abandonment is committed, and before that is answered.
        let answer = world.settings.patience.answer;
        world.source.with(|source| source.delay = answer + ms(750));
        for n in 0..57 {
            world.append(&mut open, n).await.unwrap();
        }
        world.pass(ms(100)).await;
        world.source.with(|source| {
            assert_eq!(source.prepared.len(), 1);
            source.delay = ms(500);
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
fn a_switch_whose_append_is_dropped_is_followed_all_the_same() {
    // What a switch leaves to be done waits for the append that brought it about.
    block_on(async {
        let world = World::new(13).with_slow_syncs();
        let mut open = world.open().await;
        let n = world.fill(&mut open).await;
        let frames = [record(n)];
        let append = poll_n_then_drop(open.writer.append(&frames), 1);
        assert!(append.await.is_none());
        world.pass(ms(5)).await;
        let ends = world
            .source
            .with(|source| source.sealed.iter().map(|s| s.end).collect::<Vec<_>>());
        assert_eq!(ends, [n]);
    });
}

#[test]
fn a_first_record_whose_write_fails_goes_to_the_next_successor() {
    // That one is asked for once the old segment is sealed, which is among what waits for the append.
    block_on(async {
        let world = World::new(14).with_slow_syncs();
        let mut open = world.open().await;
        let n = world.fill(&mut open).await;
        let failure = Effect::Fail(Errno::Io);
        world.fs.inject(Fault::new(failure).on(&[OpKind::WriteAt]));
        world.append(&mut open, n).await.unwrap();
        world.pass(ms(5)).await;
        let ends = world
            .source
            .with(|source| source.sealed.iter().map(|s| s.end).collect::<Vec<_>>());
        assert_eq!(ends, [n, n]);
        let stored = values(open.writer.writer()).await;
        assert_eq!(stored.len() as u64, n + 1);
        assert_eq!(stored.last(), Some(&value(n)));
    });
}

#[test]
fn an_append_that_waits_hears_of_a_newer_leader_at_once() {
    // One whose segment had failed went on waiting for a successor until its time was over.
    block_on(async {
        let world = World::new(15).with_slow_syncs();
        let mut open = world.open().await;
        world.append(&mut open, 0).await.unwrap();
        world.source.with(|source| source.unanswered = usize::MAX);
        let failure = Effect::Fail(Errno::Io);
        world.fs.inject(Fault::new(failure).on(&[OpKind::WriteAt]));
        let frames = [record(1)];
        let mut append = pin!(open.writer.append(&frames));
        let waits = async {
            tokio::select! {
                biased;
                _ = &mut append => false,
                () = world.clock.sleep(ms(100)) => true,
            }
        };
        assert!(world.wait(waits).await);
        let began = world.clock.now();
        open.rolls.fence(Epoch(2));
        let refused = world.wait(append).await.unwrap_err();
        assert!(matches!(refused, Error::Stopped { .. }), "{refused}");
        assert_eq!(world.clock.now(), began);
    });
}
