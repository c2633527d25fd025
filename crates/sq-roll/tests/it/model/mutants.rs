//! Each guard is taken away once, and the search notices.

use sq_roll::mutants::Guard;
use stateright::{Checker, HasDiscoveries, Model};

use super::chain::Stage;
use super::steps::Step;
use super::world::World;
use super::{
    Bounds, CONTIGUOUS, Careless, GOES_ON, KEPT, ONCE, ONE_SUCCESSOR, SEALED, SMALL, STOPPED, WHOLE,
};

/// A world in which no broker crashes, and where nobody asks whether there is a way on.
const QUIET: Bounds = Bounds {
    crashes: 0,
    liveness: false,
    ..SMALL
};

fn without(guard: Guard) -> Bounds {
    Bounds {
        lacking: Some(guard),
        ..QUIET
    }
}

/// The search comes upon a world in which `property` does not hold.
fn is_caught(bounds: Bounds, property: &'static str) {
    let wanted = HasDiscoveries::AnyOf([property].into());
    let checker = bounds
        .checker()
        .threads(2)
        .finish_when(wanted)
        .spawn_bfs()
        .join();
    let states = checker.unique_state_count();
    let path = checker
        .discovery(property)
        .unwrap_or_else(|| panic!("{states} states, {bounds:?}"));
    let steps = path.into_actions();
    println!(
        "{:?}: {states} states; {} steps to {property}",
        bounds.lacking,
        steps.len()
    );
}

#[test]
fn a_switch_before_the_successor_is_ready_is_noticed() {
    is_caught(without(Guard::Readiness), KEPT);
}

#[test]
fn a_base_bound_when_the_successor_is_prepared_is_noticed() {
    is_caught(without(Guard::BaseAtSwitch), CONTIGUOUS);
}

#[test]
fn a_second_request_under_another_id_is_noticed() {
    is_caught(
        Bounds {
            ticks: true,
            ..without(Guard::SameId)
        },
        ONE_SUCCESSOR,
    );
}

#[test]
fn an_append_accepted_after_a_fence_is_noticed() {
    is_caught(without(Guard::Fence), ONCE);
    is_caught(without(Guard::Fence), STOPPED);
}

#[test]
fn an_unused_successor_that_is_left_behind_is_noticed() {
    is_caught(without(Guard::CleanUp), ONE_SUCCESSOR);
}

#[test]
fn a_seal_repeated_with_another_end_is_noticed() {
    is_caught(
        Bounds {
            ticks: true,
            ..without(Guard::SameEnd)
        },
        CONTIGUOUS,
    );
}

/// ... and by that name too, if the metadata applies it.
#[test]
fn a_sealed_end_that_changes_is_noticed() {
    is_caught(
        Bounds {
            ticks: true,
            careless: Some(Careless::SealsAgain),
            ..without(Guard::SameEnd)
        },
        SEALED,
    );
}

#[test]
fn an_old_segment_that_is_not_reopened_is_noticed() {
    is_caught(
        Bounds {
            liveness: true,
            ..without(Guard::Reopen)
        },
        GOES_ON,
    );
}

#[test]
fn a_record_acknowledged_before_those_in_front_of_it_is_noticed() {
    is_caught(without(Guard::Order), KEPT);
}

#[test]
fn a_seal_of_a_segment_that_is_not_whole_is_noticed() {
    is_caught(without(Guard::SealWhenWhole), WHOLE);
}

#[test]
fn an_abandonment_after_the_seal_is_noticed() {
    is_caught(without(Guard::SealIsFinal), KEPT);
}

#[test]
fn an_acknowledgement_before_the_switch_is_taken_back_is_noticed() {
    is_caught(
        Bounds {
            offsets: 2,
            ..without(Guard::Hold)
        },
        KEPT,
    );
}

#[test]
fn a_switch_to_an_abandoned_successor_is_noticed() {
    is_caught(without(Guard::Abandoned), KEPT);
}

#[test]
fn an_end_below_what_is_acknowledged_is_noticed() {
    is_caught(without(Guard::CutAtCommitted), KEPT);
}

/// A request for a successor was delayed until that successor had been used, found wanting and
/// abandoned. Applied then, it brought back a segment with old frames in it: the failover that
/// followed took them for the newest, and dropped what had been acknowledged on the reopened segment.
#[test]
fn a_late_request_may_not_bring_back_what_was_abandoned() {
    let story = [
        Step::Append(1),
        Step::ApplyPrepare {
            slot: 1,
            replicas: 0b011,
        },
        Step::Ready { epoch: 1, slot: 1 },
        Step::Append(1),
        Step::Deliver { slot: 1, broker: 1 },
        Step::ReplicaFailed { epoch: 1, slot: 0 },
        Step::ApplyAbandon { slot: 1 },
        Step::HearAbandoned { epoch: 1, slot: 1 },
        Step::Append(1),
        Step::Deliver { slot: 0, broker: 0 },
        Step::Deliver { slot: 0, broker: 0 },
        Step::Deliver { slot: 0, broker: 0 },
        Step::Deliver { slot: 0, broker: 1 },
        Step::Deliver { slot: 0, broker: 1 },
        Step::Deliver { slot: 0, broker: 1 },
        Step::Hear { epoch: 1, slot: 0 },
        Step::ApplyPrepare {
            slot: 1,
            replicas: 0b011,
        },
        Step::BeginFailover,
        Step::Fence { broker: 1 },
        Step::Elect {
            known: 0,
            replicas: 0b110,
            broker: 2,
        },
    ];
    for careless in [None, Some(Careless::PreparesAgain)] {
        let bounds = Bounds {
            careless,
            segments: 4,
            ..QUIET
        };
        let mut world = World::new(&bounds);
        for step in story {
            let applies = world.take(&bounds, step);
            let guarded = careless.is_none() && world.meta.at(1).stage == Stage::Abandoned;
            let repeated = matches!(step, Step::ApplyPrepare { .. }) && guarded;
            assert_eq!(applies, !repeated, "{step:?}");
        }
        assert_eq!(world.acknowledged_count(), 3);
        assert_eq!(world.keeps_what_it_acknowledged(), careless.is_none());
    }
}
