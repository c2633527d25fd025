//! Rules that hold whatever happens, in whatever order.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use sq_roll::{Action, Event, Limits, PrepareFailure, Refusal, SegmentId, State, Ticket};

use crate::support::{EPOCH, Leader, limits, ms, ticket};

/// A step: an event, or one whose ticket is any that was ever handed out.
fn event() -> impl Strategy<Value = Event> {
    let id = 1..8u64;
    let ticket = id.clone().prop_map(|segment| Ticket {
        segment: SegmentId(segment),
        epoch: EPOCH,
    });
    let failure = prop_oneof![Just(PrepareFailure::Retry), Just(PrepareFailure::Final)];
    prop_oneof![
        8 => (1..400u64, 1..4u64).prop_map(|(bytes, records)| Event::Append { bytes, records }),
        4 => Just(Event::Tick),
        4 => ticket.clone().prop_map(|successor| Event::Ready { successor }),
        4 => (id.clone(), 0..60u64)
            .prop_map(|(segment, end)| Event::Durable { segment: SegmentId(segment), end }),
        3 => ticket.clone().prop_map(|segment| Event::Sealed { segment }),
        2 => ticket.clone().prop_map(|successor| Event::Abandoned { successor }),
        1 => (ticket, failure)
            .prop_map(|(successor, failure)| Event::PrepareFailed { successor, failure }),
        1 => id.prop_map(|segment| Event::ReplicaFailed { segment: SegmentId(segment) }),
        1 => Just(Event::SealRequested),
    ]
}

/// Time passes to the next deadline, and whatever is asked for succeeds.
fn answer_everything(leader: &mut Leader) {
    let before = leader.said.len();
    leader.now = leader.roll.deadline().unwrap_or(leader.now).max(leader.now);
    leader.on(Event::Tick);
    let end = leader.roll.next_offset();
    if let Some((segment, _)) = leader.roll.unsealed() {
        leader.on(Event::Durable { segment, end });
    }
    let segment = leader.roll.active();
    leader.on(Event::Durable { segment, end });
    let said = leader.said.split_off(before);
    leader.said.extend(said.iter().cloned());
    for action in said {
        match action {
            Action::Request { successor, .. } => drop(leader.on(Event::Ready { successor })),
            Action::Abandon { successor } => drop(leader.on(Event::Abandoned { successor })),
            Action::Seal { segment, .. } => drop(leader.on(Event::Sealed { segment })),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Offsets are given once and in order, what is acknowledged grows, a segment passes its hard limit
    /// by no append, one successor exists at a time, and a seal is the same each time.
    #[test]
    fn the_rules_hold_after_any_events(
        steps in prop::collection::vec((event(), 0..3_000u64), 1..120)
    ) {
        let mut leader = Leader::new(limits().with_age(ms(60_000)));
        let (mut next, mut committed) = (0, 0);
        let mut seals = BTreeSet::new();
        let mut abandoned = BTreeSet::new();
        for (event, wait) in steps {
            let armed = leader.roll.state() == State::Armed;
            for action in leader.after(ms(wait), event) {
                match action {
                    Action::Write { segment, offset } => {
                        prop_assert_eq!(offset, next);
                        prop_assert_eq!(segment, leader.roll.active());
                        next = leader.roll.next_offset();
                    }
                    Action::Commit { end } => {
                        prop_assert!(committed < end && end <= next);
                        committed = end;
                    }
                    Action::Switch(switch) => {
                        let ready = matches!(event, Event::Ready { .. });
                        prop_assert!(armed || ready);
                        prop_assert!(committed <= switch.end && switch.end <= next);
                        prop_assert!(!abandoned.contains(&switch.to));
                        prop_assert_eq!(switch.end, leader.roll.active_base());
                    }
                    Action::Refuse(refusal) => {
                        prop_assert_eq!(refusal, Refusal::Backpressure);
                        prop_assert!(!armed, "a successor was ready before the cap");
                    }
                    Action::Seal { segment, end, successor } => {
                        prop_assert!(end <= committed);
                        seals.insert((segment, end, successor));
                    }
                    Action::Abandon { successor } => {
                        let sealed = seals.iter().any(|(_, _, other)| *other == successor.segment);
                        prop_assert!(!sealed, "after its seal was asked for");
                        abandoned.insert(successor.segment);
                    }
                    Action::Request { successor, .. } => {
                        prop_assert_eq!(leader.roll.successor(), Some(successor.segment));
                        prop_assert_eq!(leader.roll.unsealed(), None);
                    }
                    Action::Resume | Action::Reopen { .. } | Action::Discard { .. }
                    | Action::Finish { .. } => {}
                }
            }
            let segments: BTreeSet<_> = seals.iter().map(|(segment, ..)| segment).collect();
            prop_assert_eq!(segments.len(), seals.len(), "one seal of a segment");
            let asked: BTreeSet<_> = leader.requests().into_iter().collect();
            prop_assert!(asked.len() <= leader.switches().len() + abandoned.len() + 1);
            prop_assert_eq!(committed, leader.roll.committed());
        }
    }

    /// With a tick at each deadline and every request answered, an append always gets through.
    #[test]
    fn answers_always_lead_on(
        steps in prop::collection::vec((event(), 0..3_000u64), 1..60)
    ) {
        let mut leader = Leader::new(limits());
        for (event, wait) in steps {
            leader.after(ms(wait), event);
        }
        for _ in 0..40 {
            answer_everything(&mut leader);
        }
        // A frame that jumps from below the soft mark past the hard limit waits for one preparation.
        if leader.append(400) == Err(Refusal::Backpressure) {
            answer_everything(&mut leader);
            prop_assert!(leader.append(400).is_ok(), "{:?}", leader.roll);
        }
    }

    /// A tick at the deadline does something or moves it: nobody is woken in vain for ever.
    #[test]
    fn a_deadline_is_never_in_vain(
        steps in prop::collection::vec((event(), 0..3_000u64), 1..60)
    ) {
        let mut leader = Leader::new(Limits { idle_after: ms(2_500), ..limits().with_age(ms(10_000)) });
        for (event, wait) in steps {
            leader.after(ms(wait), event);
            if let Some(deadline) = leader.roll.deadline() {
                prop_assert!(deadline < Duration::MAX);
                let mut twin = Leader { roll: leader.roll.clone(), ..Leader::new(limits()) };
                twin.now = deadline.max(leader.now);
                let said = !twin.on(Event::Tick).is_empty();
                prop_assert!(said || twin.roll.deadline() != Some(deadline), "{:?}", leader.roll);
            }
        }
    }
}

#[test]
fn the_answers_above_can_be_wrong() {
    // A successor that is never ready: the hard limit is met.
    let mut leader = Leader::new(limits());
    let refused = (0..12).filter(|_| leader.append(100).is_err()).count();
    assert_eq!(refused, 1);
    assert_eq!(leader.requests(), [ticket(2)]);
}
