//! The state machine, step by step.

use std::collections::BTreeSet;

use sq_roll::{
    Action, Epoch, Event, Limits, PrepareFailure, Refusal, SegmentId, Start, State, Switch, Ticket,
    Trigger,
};

use crate::support::{EPOCH, FIRST, Leader, limits, ms, switched, ticket};

#[test]
fn a_roll_that_is_ready_in_time_costs_an_append_nothing() {
    let mut leader = Leader::new(limits());
    for offset in 0..8 {
        assert_eq!(leader.append(100), Ok((1, offset)));
        assert_eq!(leader.roll.state(), State::Filling);
    }
    assert_eq!(leader.append(100), Ok((1, 8)));
    assert_eq!(leader.roll.state(), State::Preparing);
    assert_eq!(leader.ready(), []);
    assert_eq!(leader.roll.state(), State::Armed);
    assert_eq!(leader.append(100), Ok((1, 9)), "up to the cap");
    let actions = leader.on(Event::Append {
        bytes: 100,
        records: 1,
    });
    let switch = Switch {
        from: FIRST,
        to: SegmentId(2),
        end: 10,
        reissue: 10..10,
        trigger: Trigger::Size,
        overrun_bytes: 0,
    };
    let write = Action::Write {
        segment: SegmentId(2),
        offset: 10,
    };
    assert_eq!(actions, [Action::Switch(switch), write]);
    assert_eq!(leader.roll.state(), State::Filling);
}

#[test]
fn the_seal_follows_once_the_old_segment_is_committed_to_its_end() {
    let mut leader = switched(9);
    assert_eq!(
        leader.durable(2, 11),
        [],
        "offset 9 is missing, so 10 is not acknowledged"
    );
    assert_eq!(leader.durable(2, 10), [], "an older report, late");
    assert_eq!(leader.sealed(1), [], "nobody asked for that");
    let seal = Action::Seal {
        segment: ticket(1),
        end: 10,
        successor: SegmentId(2),
    };
    assert_eq!(leader.durable(1, 10), [Action::Commit { end: 11 }, seal]);
    assert_eq!(leader.sealed(1), [Action::Finish { segment: FIRST }]);
    assert_eq!(leader.sealed(1), [], "told twice");
}

/// A time-based roll fired while the successor of a size-based one was being made: there were two
/// successors, and records went to the one that was then dropped.
#[test]
fn whatever_asks_for_a_roll_meanwhile_there_is_one_successor() {
    let orders = permutations(&["size", "time", "manual", "complete", "complete"]);
    assert_eq!(orders.len(), 120);
    for order in orders {
        let mut leader = Leader::new(limits().with_age(ms(10_000)));
        let mut offset = 0;
        let mut append = |leader: &mut Leader, bytes| {
            assert_eq!(leader.append(bytes).unwrap().1, offset, "{order:?}");
            offset += 1;
        };
        append(&mut leader, 100);
        for step in &order {
            match *step {
                "size" => append(&mut leader, 850),
                "time" => {
                    leader.now += ms(9_500);
                    append(&mut leader, 1);
                    leader.on(Event::Tick);
                }
                "manual" => drop(leader.on(Event::SealRequested)),
                _ if leader.requests().is_empty() => {}
                _ => drop(leader.ready()),
            }
        }
        leader.ready();
        leader.now += ms(9_500);
        append(&mut leader, 10);

        let asked: BTreeSet<Ticket> = leader.requests().into_iter().collect();
        assert_eq!(asked.len(), 1, "{order:?}: {:?}", leader.said);
        assert_eq!(leader.switches().len(), 1, "{order:?}");
        assert_eq!(
            leader.switches()[0].end,
            leader.roll.active_base(),
            "{order:?}"
        );
        let gone = leader.count(|action| matches!(action, Action::Discard { .. }));
        assert_eq!(gone, 0, "{order:?}: the one successor is used");
    }
}

fn permutations(steps: &[&'static str]) -> Vec<Vec<&'static str>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let mut rest = steps.to_vec();
        rest.remove(at);
        all.extend(
            permutations(&rest)
                .into_iter()
                .map(|tail| [vec![*step], tail].concat()),
        );
    }
    all
}

/// Two appends were in flight to the old ledger and both failed. The second failure was handled after
/// the switch, and closed the healthy new ledger.
#[test]
fn a_second_failure_of_the_old_segment_leaves_the_new_one_alone() {
    let mut leader = Leader::new(limits());
    for _ in 0..9 {
        leader.append(100).unwrap();
    }
    leader.durable(1, 7);
    leader.ready();
    let actions = leader.replica_failed(1);
    assert!(matches!(
        &actions[0],
        Action::Switch(Switch {
            end: 7,
            trigger: Trigger::Failure,
            ..
        })
    ));
    assert_eq!(
        leader.switches()[0].reissue,
        7..9,
        "at the same offsets, on the successor"
    );
    let seal = Action::Seal {
        segment: ticket(1),
        end: 7,
        successor: SegmentId(2),
    };
    assert_eq!(actions[1..], [seal]);

    assert_eq!(
        leader.replica_failed(1),
        [],
        "the failure of the second append"
    );
    assert_eq!(leader.roll.active(), SegmentId(2));
    leader.sealed(1);
    assert_eq!(leader.replica_failed(1), []);
    assert_eq!(leader.append(100), Ok((2, 9)));
    assert_eq!(leader.switches().len(), 1);
}

/// An append that was made again on the new ledger was completed by the old one's callback as well.
#[test]
fn what_was_issued_again_is_acknowledged_once_and_by_the_successor() {
    let mut leader = Leader::new(limits());
    for _ in 0..9 {
        leader.append(100).unwrap();
    }
    leader.durable(1, 7);
    leader.ready();
    leader.replica_failed(1);
    assert_eq!(
        leader.durable(1, 9),
        [],
        "the old segment ends at 7, whatever is durable there"
    );
    assert_eq!(leader.roll.committed(), 7);
    assert_eq!(leader.durable(2, 8), [Action::Commit { end: 8 }]);
    assert_eq!(leader.durable(2, 9), [Action::Commit { end: 9 }]);
}

/// A successor's creation failed on a full disk. The failed future was kept, so that every append that
/// followed met it again, logged it and tried once more.
#[test]
fn a_full_disk_costs_one_try_a_pause_and_no_append() {
    let mut leader = Leader::new(limits());
    leader.append(900).unwrap();
    assert_eq!(leader.requests().len(), 1);
    leader.fail(PrepareFailure::Retry);
    for offset in 1..=100 {
        leader.now += ms(1);
        assert_eq!(leader.append(1), Ok((1, offset)));
        leader.on(Event::Tick);
    }
    assert_eq!(
        leader.requests().len(),
        2,
        "100 ms later, and not with each append"
    );
    leader.fail(PrepareFailure::Retry);
    for _ in 0..100 {
        leader.append(1).unwrap();
    }
    assert_eq!(
        leader.append(1),
        Err(Refusal::Backpressure),
        "at the hard limit"
    );
    assert_eq!(leader.requests().len(), 2);

    // There is space again.
    leader.after(ms(200), Event::Tick);
    assert_eq!(leader.requests(), [ticket(2); 3], "under the same id");
    assert_eq!(leader.ready(), [Action::Resume]);
    assert_eq!(leader.append(1), Ok((2, 201)));
    assert_eq!(leader.switches().len(), 1);
}

#[test]
fn pauses_double_up_to_the_longest() {
    let mut leader = Leader::new(limits());
    leader.append(950).unwrap();
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let before = leader.now;
        leader.fail(PrepareFailure::Retry);
        leader.fail(PrepareFailure::Retry);
        leader.now = leader.roll.deadline().unwrap();
        pauses.push(leader.now.saturating_sub(before).as_millis());
        leader.on(Event::Tick);
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
}

#[test]
fn a_success_makes_the_next_pause_short_again() {
    let mut leader = Leader::new(limits());
    leader.append(950).unwrap();
    for _ in 0..3 {
        leader.fail(PrepareFailure::Retry);
        leader.now = leader.roll.deadline().unwrap();
        leader.on(Event::Tick);
    }
    leader.ready();
    assert_eq!(leader.append(950), Ok((2, 1)));
    leader.durable(1, 1);
    leader.sealed(1);
    leader.fail(PrepareFailure::Retry);
    assert_eq!(leader.roll.deadline(), Some(leader.now + ms(100)));
}

#[test]
fn after_an_abandonment_there_is_a_pause_too() {
    let mut leader = Leader::new(limits());
    leader.append(950).unwrap();
    leader.fail(PrepareFailure::Final);
    let discard = Action::Discard {
        segment: SegmentId(2),
    };
    assert_eq!(
        leader.on(Event::Abandoned {
            successor: ticket(2)
        }),
        [discard]
    );
    assert_eq!(leader.roll.deadline(), Some(ms(100)));
    assert_eq!(leader.after(ms(99), Event::Tick), []);
    assert_eq!(leader.after(ms(1), Event::Tick).len(), 1, "a request");
}

#[test]
fn a_request_without_an_answer_is_repeated_word_for_word() {
    let mut leader = Leader::new(limits());
    let first = leader.on(Event::Append {
        bytes: 900,
        records: 1,
    });
    assert_eq!(leader.after(ms(4_999), Event::Tick), []);
    let again = leader.after(ms(1), Event::Tick);
    assert_eq!(first[1..], again[..]);
    // Both tries are answered.
    leader.ready();
    assert_eq!(leader.roll.state(), State::Armed);
    leader.ready();
    leader.fail(PrepareFailure::Retry);
    assert_eq!(leader.roll.state(), State::Armed);
}

#[test]
fn answers_to_others_are_ignored() {
    let mut leader = Leader::new(limits());
    leader.append(900).unwrap();
    let before = leader.roll.clone();
    let other_segment = ticket(7);
    let other_epoch = Ticket {
        segment: SegmentId(2),
        epoch: Epoch(2),
    };
    for successor in [other_segment, other_epoch] {
        for failure in [PrepareFailure::Retry, PrepareFailure::Final] {
            assert_eq!(leader.on(Event::PrepareFailed { successor, failure }), []);
        }
        assert_eq!(leader.on(Event::Ready { successor }), []);
        assert_eq!(leader.on(Event::Abandoned { successor }), []);
        assert_eq!(leader.on(Event::Sealed { segment: successor }), []);
    }
    assert_eq!(leader.replica_failed(7), []);
    assert_eq!(leader.durable(7, 1), []);
    assert_eq!(leader.on(Event::Fenced { epoch: EPOCH }), []);
    assert_eq!(leader.roll, before);
}

#[test]
fn a_late_successor_is_met_by_a_bounded_overrun_and_then_by_backpressure() {
    let mut leader = Leader::new(limits());
    for offset in 0..10 {
        leader.append(100).unwrap();
        assert_eq!(leader.roll.next_offset(), offset + 1);
    }
    assert_eq!(leader.append(50), Ok((1, 10)));
    assert_eq!(leader.roll.state(), State::Overrun);
    assert_eq!(leader.append(51), Err(Refusal::Backpressure));
    assert!(Refusal::Backpressure.is_retriable());
    assert_eq!(leader.roll.state(), State::Backpressure);
    assert_eq!(leader.append(50), Ok((1, 11)), "what still fits is taken");
    assert_eq!(
        leader.roll.active_bytes(),
        leader.roll.limits().hard_bytes()
    );
    assert_eq!(leader.append(1), Err(Refusal::Backpressure));
    assert_eq!(leader.ready(), [Action::Resume]);
    assert_eq!(leader.append(1), Ok((2, 12)));
    assert_eq!(leader.switches()[0].overrun_bytes, 100);
}

/// After a switch that needed no append, those that had been refused were told nothing.
#[test]
fn whatever_switches_lets_refused_appends_try_again() {
    for failed in [false, true] {
        let mut leader = Leader::new(limits());
        for _ in 0..11 {
            leader.append(100).unwrap();
        }
        leader.append(100).unwrap_err();
        if failed {
            leader.replica_failed(1);
        } else {
            leader.on(Event::SealRequested);
        }
        let actions = leader.ready();
        assert!(matches!(actions[0], Action::Switch(_)));
        assert_eq!(
            actions
                .iter()
                .filter(|action| **action == Action::Resume)
                .count(),
            1
        );
        assert_eq!(leader.append(100), Ok((2, 11)));
    }
}

#[test]
fn a_reactive_roll_waits_at_the_cap() {
    let mut leader = Leader::new(limits().reactive());
    for _ in 0..9 {
        leader.append(100).unwrap();
    }
    leader.append(99).unwrap();
    assert_eq!(leader.requests(), []);
    assert_eq!(leader.append(100), Err(Refusal::Backpressure));
    assert_eq!(leader.requests().len(), 1);
    assert_eq!(leader.ready(), [Action::Resume]);
    assert_eq!(leader.append(100), Ok((2, 10)));
}

#[test]
fn a_frame_larger_than_a_segment_gets_one_to_itself() {
    let mut leader = Leader::new(limits());
    assert_eq!(leader.append(5_000), Ok((1, 0)));
    assert_eq!(leader.append(5_000), Err(Refusal::Backpressure));
    leader.ready();
    assert_eq!(leader.append(5_000), Ok((2, 1)));
    assert_eq!(
        leader.append(10),
        Err(Refusal::Backpressure),
        "segment 1 is not sealed yet"
    );
    leader.durable(1, 1);
    leader.sealed(1);
    leader.ready();
    assert_eq!(leader.append(10), Ok((3, 2)));
    assert_eq!(
        leader.switches().len(),
        2,
        "and no empty segment between them"
    );
}

#[test]
fn no_successor_is_asked_for_while_two_segments_are_unsealed() {
    let mut leader = switched(9);
    for _ in 0..9 {
        leader.append(100).unwrap();
    }
    assert_eq!(leader.requests().len(), 1);
    leader.durable(1, 10);
    leader.sealed(1);
    assert_eq!(leader.requests(), [ticket(2), ticket(3)]);
}

#[test]
fn a_successor_that_cannot_be_ready_is_abandoned_before_another_is_asked_for() {
    let mut leader = Leader::new(limits());
    leader.append(900).unwrap();
    leader.ready();
    let abandon = Action::Abandon {
        successor: ticket(2),
    };
    assert_eq!(
        leader.fail(PrepareFailure::Final),
        std::slice::from_ref(&abandon)
    );
    assert_eq!(leader.ready(), [], "too late");
    leader.append(100).unwrap();
    assert_eq!(
        leader.append(100),
        Ok((1, 2)),
        "over the cap, but not to the abandoned one"
    );
    assert_eq!(leader.after(ms(5_000), Event::Tick), [abandon]);
    let actions = leader.on(Event::Abandoned {
        successor: ticket(2),
    });
    assert_eq!(
        actions[0],
        Action::Discard {
            segment: SegmentId(2)
        }
    );
    assert_eq!(leader.requests(), [ticket(2), ticket(3)]);
    assert_eq!(
        leader.on(Event::Abandoned {
            successor: ticket(2)
        }),
        [],
        "told twice"
    );
}

#[test]
fn a_replica_lost_before_the_old_segment_is_whole_takes_the_switch_back() {
    let mut leader = switched(9);
    leader.durable(2, 11);
    let reopen = Action::Reopen {
        segment: FIRST,
        abandoned: SegmentId(2),
        reissue: 10..11,
    };
    assert_eq!(
        leader.replica_failed(1),
        [
            reopen,
            Action::Abandon {
                successor: ticket(2)
            }
        ]
    );
    assert_eq!(leader.append(10), Ok((1, 11)));
    assert_eq!(
        leader.durable(1, 12),
        [Action::Commit { end: 10 }],
        "no further yet"
    );
    assert_eq!(leader.durable(2, 11), [], "no longer counts");
    let actions = leader.on(Event::Abandoned {
        successor: ticket(2),
    });
    let request = Action::Request {
        successor: ticket(3),
        predecessor: FIRST,
        trigger: Trigger::Failure,
    };
    let discard = Action::Discard {
        segment: SegmentId(2),
    };
    assert_eq!(actions, [discard, Action::Commit { end: 12 }, request]);
    leader.append(10).unwrap();
    leader.ready();
    assert_eq!(leader.switches()[1].end, 12, "cut at what is acknowledged");
    assert_eq!(leader.switches()[1].reissue, 12..13);
}

#[test]
fn a_replica_lost_after_the_seal_was_asked_for_changes_nothing() {
    let mut leader = switched(10);
    assert_eq!(leader.replica_failed(1), []);
    assert_eq!(leader.roll.active(), SegmentId(2));
    let seal = Action::Seal {
        segment: ticket(1),
        end: 10,
        successor: SegmentId(2),
    };
    assert_eq!(
        leader.after(ms(5_000), Event::Tick),
        [seal],
        "with the end that it had"
    );
}

#[test]
fn both_segments_losing_a_replica_leave_by_the_old_one() {
    let mut leader = switched(10);
    leader.replica_failed(2);
    assert_eq!(
        leader.requests().len(),
        1,
        "the old segment is sealed first"
    );
    leader.sealed(1);
    assert_eq!(leader.requests().len(), 2);
    leader.ready();
    assert_eq!(
        leader.switches()[1].end,
        10,
        "an empty segment, since nothing on it is committed"
    );
    assert_eq!(leader.switches()[1].reissue, 10..11);
}

/// A deposed writer was in the middle of its roll, and went on writing into the next segment.
#[test]
fn a_deposed_leader_writes_nothing_and_removes_what_it_prepared() {
    let newer = Event::Fenced { epoch: Epoch(4) };
    for armed in [false, true] {
        let mut leader = Leader::new(limits());
        leader.append(950).unwrap();
        if armed {
            leader.ready();
        }
        assert_eq!(
            leader.on(newer),
            [Action::Discard {
                segment: SegmentId(2)
            }]
        );
        assert_eq!(leader.ready(), []);
        assert_eq!(leader.append(100), Err(Refusal::Fenced { epoch: Epoch(4) }));
        assert_eq!(leader.durable(1, 1), [], "nor does it acknowledge");
        assert_eq!(leader.roll.deadline(), None);
    }
    let mut leader = switched(9);
    assert_eq!(
        leader.on(newer),
        [],
        "what was written is for the failover to judge"
    );
}

#[test]
fn a_deleted_partition_lets_go_of_everybody() {
    let mut leader = Leader::new(limits());
    leader.append(900).unwrap();
    leader.append(1000).unwrap_err();
    let discard = Action::Discard {
        segment: SegmentId(2),
    };
    assert_eq!(leader.on(Event::Deleted), [discard, Action::Resume]);
    assert_eq!(leader.append(1), Err(Refusal::Deleted));
}

/// An age-based roll compared the wall clock with the records' own timestamps, so that replayed data
/// rolled with nearly every batch, and data from the future kept a segment open for ever.
#[test]
fn only_elapsed_time_makes_a_segment_old() {
    let mut leader = Leader::new(Limits::bytes(1 << 30).with_age(ms(10_000)));
    for _ in 0..999 {
        leader.append(100).unwrap();
        leader.now += ms(9);
    }
    assert_eq!(
        leader.requests(),
        [],
        "1,000 appends in 9 s, whatever their timestamps are"
    );
    leader.now = ms(9_500);
    leader.append(100).unwrap();
    leader.ready();
    // The time handed in goes backwards: no roll, no negative age.
    leader.now = ms(4_000);
    assert_eq!(leader.append(100).unwrap().0, 1);
    assert_eq!(leader.roll.active_age(), ms(9_500));
    leader.now = ms(10_000);
    assert_eq!(
        leader.append(100).unwrap().0,
        2,
        "and it rolls when it is due"
    );
    assert_eq!(leader.switches()[0].trigger, Trigger::Age);
}

#[test]
fn an_idle_segment_prepares_nothing_for_its_age() {
    let mut leader = Leader::new(limits().with_age(ms(10_000)));
    leader.append(1).unwrap();
    assert_eq!(leader.roll.deadline(), None);
    for _ in 0..20 {
        assert_eq!(leader.after(ms(1_000), Event::Tick), []);
    }
    assert_eq!(
        leader.append(1),
        Ok((1, 1)),
        "too old, but there is nowhere else yet"
    );
    assert_eq!(leader.requests().len(), 1);
    leader.ready();
    assert_eq!(leader.append(1), Ok((2, 2)));
}

#[test]
fn a_segment_in_use_is_prepared_for_before_its_age() {
    let mut leader = Leader::new(limits().with_age(ms(10_000)));
    leader.append(1).unwrap();
    leader.after(
        ms(8_000),
        Event::Append {
            bytes: 1,
            records: 1,
        },
    );
    assert_eq!(leader.roll.deadline(), Some(ms(9_000)));
    assert_eq!(leader.after(ms(1_000), Event::Tick).len(), 1, "a request");
    leader.ready();
    leader.now += ms(5_000);
    assert_eq!(
        leader.on(Event::Tick),
        [],
        "no empty segment is begun without a write"
    );
    assert_eq!(leader.append(1), Ok((2, 2)));
}

#[test]
fn a_seal_needs_no_write_and_an_empty_segment_no_seal() {
    let mut leader = Leader::new(limits());
    assert_eq!(leader.on(Event::SealRequested), []);
    leader.append(1).unwrap();
    assert_eq!(leader.on(Event::SealRequested).len(), 1, "a request");
    leader.ready();
    assert_eq!(leader.switches()[0].trigger, Trigger::Seal);
    assert_eq!(leader.roll.active(), SegmentId(2));
    assert_eq!(leader.on(Event::SealRequested), [], "it is empty");
}

#[test]
fn a_restart_between_switch_and_seal_asks_for_the_seal_again() {
    let start = Start {
        bytes: 100,
        next: 11,
        unsealed: Some(FIRST),
        ..Start::empty(EPOCH, SegmentId(2), 10)
    };
    let mut leader = Leader::from(start, limits());
    assert_eq!(leader.roll.committed(), 11);
    assert_eq!(leader.roll.deadline(), Some(ms(0)));
    let seal = Action::Seal {
        segment: ticket(1),
        end: 10,
        successor: SegmentId(2),
    };
    assert_eq!(leader.on(Event::Tick), [seal]);
    assert_eq!(leader.sealed(1), [Action::Finish { segment: FIRST }]);
}

#[test]
fn what_was_there_at_a_restart_counts_as_acknowledged() {
    let start = Start {
        bytes: 300,
        next: 3,
        ..Start::empty(EPOCH, FIRST, 0)
    };
    let mut leader = Leader::from(start, limits());
    leader.on(Event::SealRequested);
    let seal = Action::Seal {
        segment: ticket(1),
        end: 3,
        successor: SegmentId(2),
    };
    assert_eq!(leader.ready()[1..], [seal]);
    assert_eq!(leader.append(100), Ok((2, 3)));
    assert_eq!(leader.durable(2, 4), [Action::Commit { end: 4 }]);
}

#[test]
fn a_restart_takes_up_the_successor_that_was_prepared() {
    let start = Start {
        bytes: 950,
        next: 10,
        age: ms(7_000),
        prepared: Some(SegmentId(9)),
        ..Start::empty(EPOCH, FIRST, 0)
    };
    let mut leader = Leader::from(start, limits().with_age(ms(10_000)));
    assert_eq!(
        leader.roll.active_age(),
        ms(7_000),
        "age goes on across restarts"
    );
    leader.on(Event::Tick);
    assert_eq!(leader.requests(), [ticket(9)], "the same one, and no other");
    leader.ready();
    assert_eq!(leader.append(100), Ok((9, 10)));
}
