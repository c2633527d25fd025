//! Disks that fail while the process lives.

use proptest::prelude::*;
use sq_sim::{Effect, Errno, Fault, InMemoryFileSystem, Keep, OpKind, SyncFailure};

use super::crashes::{Step, after, perform};
use super::support::{Durable, Opened, Stop, block_on, entries};

#[test]
fn one_failed_sync_costs_a_file_and_no_entry() {
    for failure in SyncFailure::ALL {
        block_on(async {
            let fs = InMemoryFileSystem::new(1);
            let mut node = Opened::on(&fs, 1).await;
            node.append(entries(0, 0..3)).await.unwrap();
            fs.inject(Fault::new(Effect::FailSync(failure)));
            node.append(entries(0, 3..6)).await.unwrap();
            assert_eq!(fs.faults_left(), 0);
            fs.power_loss(Keep::None);
            let found = Opened::on(&fs, 2).await.durable().await;
            assert_eq!(found.entries, entries(0, 0..6), "{failure:?}");
        });
    }
}

#[test]
fn a_vote_whose_sync_failed_is_not_answered_and_no_other_is_taken() {
    for failure in SyncFailure::ALL {
        block_on(async {
            let fs = InMemoryFileSystem::new(1);
            let mut node = Opened::on(&fs, 1).await;
            node.vote(1).await.unwrap();
            fs.inject(Fault::new(Effect::FailSync(failure)));
            assert!(node.vote(2).await.is_err(), "{failure:?}");
            assert!(node.vote(3).await.is_err(), "the file is finished");
            fs.power_loss(Keep::Mixed);
            let term = Opened::on(&fs, 2).await.durable().await.vote.unwrap();
            assert!([1, 2].contains(&term.leader_id.term), "{failure:?}");
        });
    }
}

fn fault(draw: u8) -> Fault {
    let effect = match draw % 8 {
        0 => Effect::Fail(Errno::Io),
        1 => Effect::Fail(Errno::NoSpace),
        2 => Effect::FailAfterwards(Errno::Io),
        3 => Effect::ShortWrite {
            bytes: u64::from(draw),
            errno: Errno::NoSpace,
        },
        n => Effect::FailSync(SyncFailure::ALL[usize::from(n - 4)]),
    };
    Fault::new(effect)
        .skip(u64::from(draw / 8 % 8))
        .times(u64::from(draw / 64) + 1)
}

/// A step that a follower could be asked for in this state.
fn step(state: &Durable, what: u8, x: u8) -> Option<Step> {
    let term = state.vote.map_or(0, |v| v.leader_id.term);
    let purged = state.purged.map(|id| id.index);
    let first = state.entries.first().map(|e| e.log_id);
    let last = state.entries.last().map(|e| e.log_id.index).or(purged);
    let held = state.snapshot.map(|id| id.index);
    let nth = state
        .entries
        .get(usize::from(x) % state.entries.len().max(1));
    match what % 8 {
        0 => Some(Step::Vote(term + 1)),
        // What the snapshot holds was committed.
        1 => nth
            .filter(|e| Some(e.log_id.index) > held)
            .map(|e| Step::Truncate(e.log_id.leader_id.term, e.log_id.index)),
        2 => nth
            .filter(|e| Some(e.log_id.index) > held)
            .map(|e| Step::Snapshot(e.log_id.index)),
        3 => first
            .and(nth)
            .filter(|e| Some(e.log_id.index) <= held)
            .map(|e| Step::Purge(e.log_id.leader_id.term, e.log_id.index)),
        _ => Some(Step::Append(
            term,
            last.map_or(0, |i| i + 1),
            u64::from(x % 6) + 1,
        )),
    }
}

/// What an opening finds must be one of these.
async fn reopen(fs: &InMemoryFileSystem, seed: u64, may_be: &[Durable]) -> (Opened, Durable) {
    let mut node = Opened::on(fs, seed).await;
    let found = node.durable().await;
    assert!(may_be.contains(&found), "{found:?} is none of {may_be:?}");
    (node, found)
}

async fn run(seed: u64, draws: Vec<(u8, u8, u8)>) -> u32 {
    let fs = InMemoryFileSystem::new(seed);
    let mut state = Durable::default();
    let mut node = Opened::on(&fs, seed).await;
    let mut failures = 0;
    for (n, (what, x, bad)) in (1..).zip(draws) {
        let Some(step) = step(&state, what, x) else {
            continue;
        };
        let (done, may_be) = after(&state, &step);
        if bad < 80 {
            fs.inject(fault(x.wrapping_mul(31) ^ bad));
        }
        let outcome = perform(&mut node, &step).await;
        fs.clear_faults();
        let crash = bad > 220;
        let may_be = match outcome {
            Ok(()) => vec![done.clone()],
            Err(_) => may_be,
        };
        state = done;
        if crash || may_be.len() > 1 {
            failures += 1;
            // A node that stopped is opened again by its process, or by the next one.
            if crash || x % 2 == 0 {
                Stop::ALL[usize::from(x) % Stop::ALL.len()].strike(&fs);
            } else {
                let _ = node.log.journal().retire().await;
            }
            (node, state) = reopen(&fs, seed + n, &may_be).await;
        }
    }
    failures
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn what_was_answered_is_there_whatever_the_disk_does(
        seed in 0_u64..1 << 40,
        draws in prop::collection::vec(any::<(u8, u8, u8)>(), 1..60),
    ) {
        block_on(run(seed, draws));
    }
}

#[test]
fn the_disk_fails_often_enough_to_show_something() {
    let draws = (0..60_u8).map(|n| (n.wrapping_mul(37), n.wrapping_mul(101), n.wrapping_mul(59)));
    let failures = block_on(run(3, draws.collect()));
    assert!(failures > 10, "{failures}");
}

#[test]
fn a_full_disk_keeps_what_there_is() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut node = Opened::on(&fs, 1).await;
        node.append(entries(0, 0..3)).await.unwrap();
        fs.inject(
            Fault::new(Effect::Fail(Errno::NoSpace))
                .on(&[OpKind::WriteAt])
                .always(),
        );
        assert!(node.append(entries(0, 3..4)).await.is_err());
        fs.clear_faults();
        let _ = node.log.journal().retire().await;
        let mut node = Opened::on(&fs, 2).await;
        assert_eq!(node.durable().await.entries, entries(0, 0..3));
        node.append(entries(0, 3..4)).await.unwrap();
    });
}
