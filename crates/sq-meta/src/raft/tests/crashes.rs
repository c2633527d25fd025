//! A crash after every operation of the storage, and after every operation of the opening behind it.

use openraft::storage::RaftLogStorage;
use sq_sim::{InMemoryFileSystem, Keep};

use super::support::{Durable, Opened, Stop, block_on, entries, id};
use crate::raft::{StorageError, Vote};

/// What a node is asked to do, one after the other.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Vote(u64),
    /// Entries of a term, from an index on, so many.
    Append(u64, u64, u64),
    Truncate(u64, u64),
    Snapshot(u64),
    Purge(u64, u64),
}

/// A follower's life: two leaders, a tail that gives way, two snapshots, entries that go.
fn life() -> Vec<Step> {
    vec![
        Step::Vote(1),
        Step::Append(1, 0, 5),
        Step::Append(1, 5, 5),
        Step::Vote(2),
        Step::Truncate(1, 6),
        Step::Append(2, 6, 4),
        Step::Snapshot(4),
        Step::Purge(1, 3),
        Step::Append(2, 10, 12),
        Step::Vote(3),
        Step::Truncate(2, 20),
        Step::Snapshot(15),
        Step::Purge(2, 15),
        Step::Append(3, 20, 3),
    ]
}

pub(super) async fn perform(node: &mut Opened, step: &Step) -> Result<(), StorageError> {
    match step {
        Step::Vote(term) => node.vote(*term).await,
        Step::Append(term, from, count) => node.append(entries(*term, *from..from + count)).await,
        Step::Truncate(term, since) => node.log.truncate(id(*term, *since)).await,
        Step::Snapshot(upto) => node.snapshot(*upto).await,
        Step::Purge(term, upto) => node.log.purge(id(*term, *upto)).await,
    }
}

/// What a step leaves, and what it may leave when it is cut short.
pub(super) fn after(before: &Durable, step: &Step) -> (Durable, Vec<Durable>) {
    let mut done = before.clone();
    let mut between = vec![before.clone()];
    match step {
        Step::Vote(term) => done.vote = Some(Vote::new(*term, 1)),
        Step::Append(term, from, count) => {
            for entry in entries(*term, *from..from + count) {
                done.entries.push(entry);
                between.push(done.clone());
            }
        }
        Step::Truncate(_, since) => done.entries.retain(|e| e.log_id.index < *since),
        Step::Snapshot(upto) => {
            let at = done.entries.iter().find(|e| e.log_id.index == *upto);
            done.snapshot = at.map(|e| e.log_id);
        }
        Step::Purge(term, upto) => {
            done.entries.retain(|e| e.log_id.index > *upto);
            done.purged = Some(id(*term, *upto));
        }
    }
    between.push(done.clone());
    (done, between)
}

/// Lives until the crash, and gives what the disk may hold then.
async fn live(fs: &InMemoryFileSystem, seed: u64) -> Vec<Durable> {
    let mut state = Durable::default();
    let Ok(mut node) = Opened::try_on(fs, seed).await else {
        return vec![state];
    };
    for step in life() {
        let (done, between) = after(&state, &step);
        match perform(&mut node, &step).await {
            Ok(()) => state = done,
            Err(_) => return between,
        }
    }
    vec![state]
}

fn operations_of_a_life() -> u64 {
    let fs = InMemoryFileSystem::new(1);
    let end = block_on(live(&fs, 1));
    assert_eq!(end.len(), 1, "a life without a crash");
    fs.operations()
}

#[test]
fn after_a_crash_at_any_operation_everything_answered_is_there_and_nothing_is_half_there() {
    // A vote and appended entries were synced, truncations and purges were not: after a power loss a
    // new vote stood beside a tail that it had truncated.
    let operations = operations_of_a_life();
    let mut cut_short = 0;
    for at in 0..operations {
        for (n, stop) in (0..).zip(Stop::ALL) {
            let seed = at * 16 + n;
            let fs = InMemoryFileSystem::new(seed);
            fs.crash_after(at);
            let may_be = block_on(live(&fs, seed));
            stop.strike(&fs);
            cut_short += u32::from(may_be.len() > 1);
            let found = block_on(async { Opened::on(&fs, seed).await.durable().await });
            assert!(
                may_be.contains(&found),
                "{stop:?} after {at} operations: {found:?} is none of {may_be:?}"
            );
        }
    }
    assert!(
        cut_short > 100,
        "most crashes are in the middle of something"
    );
}

#[test]
fn after_a_crash_while_it_is_opened_everything_is_still_there() {
    let operations = operations_of_a_life();
    for at in (0..operations).step_by(3) {
        let stops = [Stop::Process, Stop::Power(Keep::Mixed)];
        for again in 0.. {
            let seed = at * 1000 + again;
            let fs = InMemoryFileSystem::new(seed);
            fs.crash_after(at);
            let may_be = block_on(live(&fs, seed));
            stops[(again % 2) as usize].strike(&fs);
            fs.crash_after(again);
            let told = block_on(async {
                let mut node = Opened::try_on(&fs, seed).await.ok()?;
                Some(node.durable().await)
            });
            let is_whole = told.is_some();
            Stop::Power(Keep::Mixed).strike(&fs);
            let found = block_on(async { Opened::on(&fs, seed).await.durable().await });
            assert!(may_be.contains(&found), "after {at} and {again}: {found:?}");
            // Whoever was told may have acted on it.
            if let Some(told) = told {
                assert_eq!(told, found, "after {at} and {again}");
            }
            if is_whole {
                break;
            }
        }
    }
}

#[test]
fn a_restart_goes_on_where_the_node_was() {
    let fs = InMemoryFileSystem::new(7);
    let (end, again) = block_on(async {
        let end = live(&fs, 7).await.remove(0);
        let mut node = Opened::on(&fs, 8).await;
        assert_eq!(node.durable().await, end);
        node.append(entries(3, 23..25)).await.unwrap();
        let (again, _) = after(&end, &Step::Append(3, 23, 2));
        (again, Opened::on(&fs, 9).await.durable().await)
    });
    assert_eq!(end, again);
}
