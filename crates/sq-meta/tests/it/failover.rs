//! What a failover keeps, over all that a leader and its replicas can have done.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sq_meta::failover::{Decision, FenceAnswer, SuccessorCopy, Undecided, decide};
use sq_meta::{ActiveSegment, BrokerId, Ends, Segment, SegmentId};

use crate::support::{ends, ends_with, replicas};

const A: u64 = 1;
const S: u64 = 2;

fn open(id: u64, on: &[u32]) -> Segment {
    Segment {
        id: SegmentId(id),
        replicas: replicas(on),
        predecessor: None,
        writer_epoch: 0,
    }
}

fn active(base: u64, on: &[u32]) -> ActiveSegment {
    ActiveSegment {
        segment: open(A, on),
        base,
    }
}

fn answers<const N: usize>(of: [(u32, FenceAnswer); N]) -> BTreeMap<BrokerId, FenceAnswer> {
    of.map(|(id, answer)| (BrokerId(id), answer)).into()
}

fn holds(active_end: u64, committed_before: u64) -> FenceAnswer {
    FenceAnswer {
        active_end: Some(active_end),
        successor: None,
        committed_before,
    }
}

fn and_begun(answer: FenceAnswer, base: u64, end: u64) -> FenceAnswer {
    FenceAnswer {
        successor: Some(SuccessorCopy::Begun { base, end }),
        ..answer
    }
}

fn and_unbegun(answer: FenceAnswer) -> FenceAnswer {
    FenceAnswer {
        successor: Some(SuccessorCopy::Unbegun),
        ..answer
    }
}

#[test]
fn each_row_of_the_table() {
    let a = active(10, &[0, 1]);
    let s = open(S, &[0, 1]);
    let alone = |answer| answers([(1, answer)]);
    let rows: [(_, FenceAnswer, Ends, _, Option<u64>); 7] = [
        ("no successor", holds(16, 14), ends(14), 14..16, None),
        ("nothing written", holds(0, 0), ends(10), 10..10, None),
        (
            "a successor, never begun",
            and_unbegun(holds(16, 14)),
            ends(14),
            14..16,
            None,
        ),
        (
            "begun behind what is held",
            and_begun(holds(14, 12), 15, 18),
            ends(12),
            12..14,
            None,
        ),
        (
            "nothing of it committed",
            and_begun(holds(16, 14), 15, 18),
            ends(14),
            14..18,
            Some(15),
        ),
        (
            "committed to its base",
            and_begun(holds(15, 15), 15, 18),
            ends(15),
            15..18,
            Some(15),
        ),
        (
            "committed within it",
            and_begun(holds(15, 17), 15, 18),
            ends_with(15, 17),
            17..18,
            Some(15),
        ),
    ];
    for (row, answer, ends, tail, successor_from) in rows {
        let s = answer.successor.map(|_| &s);
        let decision = decide(&a, s, &alone(answer)).unwrap();
        assert_eq!(decision.ends, ends, "{row}");
        assert_eq!(decision.tail, tail, "{row}");
        assert_eq!(decision.successor_from, successor_from, "{row}");
        assert!(decision.damaged.is_empty(), "{row}");
    }
}

#[test]
fn one_replica_of_each_open_segment_has_to_answer() {
    let a = active(10, &[0, 1]);
    let s = open(S, &[0, 2]);
    let none = Err(Undecided::NoCopy(SegmentId(S)));
    assert_eq!(decide(&a, Some(&s), &answers([(1, holds(12, 11))])), none);
    let none = Err(Undecided::NoCopy(SegmentId(A)));
    let only_s = and_unbegun(FenceAnswer::default());
    assert_eq!(decide(&a, Some(&s), &answers([(2, only_s)])), none);
    // An answer for a segment of which the broker is no replica counts for nothing.
    assert_eq!(decide(&a, None, &answers([(3, holds(12, 11))])), none);
    let both = answers([(1, holds(12, 11)), (2, only_s)]);
    assert_eq!(decide(&a, Some(&s), &both).unwrap().tail, 11..12);
}

#[test]
fn a_copy_that_lacks_what_another_knows_to_be_committed_does_not_count() {
    // A disk that lost acknowledged records answered with less, and the failover cut there.
    let a = active(10, &[0, 1, 2]);
    let damaged = answers([(0, holds(13, 13)), (1, holds(16, 15)), (2, holds(17, 11))]);
    let decision = decide(&a, None, &damaged).unwrap();
    assert_eq!((decision.ends, decision.tail), (ends(15), 15..16));
    assert_eq!(decision.damaged, [(BrokerId(0), SegmentId(A))]);
    assert_eq!(decision.active_holders, [1, 2].map(BrokerId));
    let s = open(S, &[0, 1, 2]);
    let damaged = answers([
        (0, and_unbegun(holds(14, 13))),
        (1, and_begun(holds(15, 18), 15, 20)),
        (2, and_begun(holds(15, 11), 15, 17)),
    ]);
    let decision = decide(&a, Some(&s), &damaged).unwrap();
    assert_eq!((decision.ends, decision.tail), (ends_with(15, 18), 18..20));
    assert_eq!(decision.damaged.len(), 3);
    assert_eq!(decision.successor_holders, [BrokerId(1)]);
}

#[test]
fn copies_that_contradict_each_other_decide_nothing() {
    let a = active(10, &[0, 1]);
    let s = open(S, &[0, 1]);
    for other in [(16, 18), (15, 14), (9, 12)] {
        let both = answers([
            (0, and_begun(holds(17, 12), 15, 18)),
            (1, and_begun(holds(17, 12), other.0, other.1)),
        ]);
        let outcome = decide(&a, Some(&s), &both);
        assert!(
            matches!(outcome, Err(Undecided::Contradiction { .. })),
            "{other:?}"
        );
    }
}

/// What a leader did before it went: how far each replica has a segment, how much was acknowledged,
/// what each broker heard of that, and who answers.
#[derive(Clone, Debug)]
struct Past {
    base: u64,
    /// Of each broker: whether it is a replica, and the end of its copy.
    a: Vec<Option<u64>>,
    /// The leader switched there.
    switch: u64,
    /// As `a`; a copy that ends at the switch was not begun, or was begun with no record left.
    s: Option<Vec<Option<u64>>>,
    begun: Vec<bool>,
    committed: u64,
    heard: Vec<u64>,
    answers: Vec<bool>,
}

prop_compose! {
    fn pasts()(
        base in 0_u64..3,
        switch in 0_u64..5,
        a in prop::collection::vec(prop::option::weighted(0.7, 0_u64..8), 4),
        s in prop::option::of(prop::collection::vec(prop::option::weighted(0.7, 0_u64..5), 4)),
        begun in prop::collection::vec(any::<bool>(), 4),
        committed in 0_u64..12,
        heard in prop::collection::vec(0_u64..12, 4),
        answers in prop::collection::vec(any::<bool>(), 4),
    ) -> Past {
        let mut past = Past {
            base,
            a: a.into_iter().map(|c| c.map(|c| base + c)).collect(),
            switch: base + switch,
            s: s.map(|s| s.into_iter().map(|c| c.map(|c| base + switch + c)).collect()),
            begun,
            committed: base + committed,
            heard: heard.into_iter().map(|h| base + h).collect(),
            answers,
        };
        // The leader is broker 0, a replica of both, and neither is acknowledged beyond what all hold.
        past.a[0].get_or_insert(past.switch);
        let all_of_a = past.a.iter().flatten().copied().min().unwrap();
        let mut limit = all_of_a;
        if let Some(s) = &mut past.s {
            s[0].get_or_insert(past.switch);
            limit = limit.min(past.switch);
            if all_of_a >= past.switch {
                limit = s.iter().flatten().copied().min().unwrap();
            }
            // What holds a record was begun.
            for (copy, begun) in s.iter().zip(&mut past.begun) {
                *begun |= copy.is_some_and(|end| end > past.switch);
            }
        }
        past.committed = past.committed.min(limit);
        for heard in &mut past.heard {
            *heard = (*heard).min(past.committed);
        }
        past
    }
}

impl Past {
    fn ids(copies: &[Option<u64>]) -> Vec<u32> {
        (0..)
            .zip(copies)
            .filter(|(_, c)| c.is_some())
            .map(|(id, _)| id)
            .collect()
    }

    fn answers(&self) -> BTreeMap<BrokerId, FenceAnswer> {
        let answer = |broker: usize| FenceAnswer {
            active_end: self.a[broker],
            successor: self.s.as_ref().and_then(|s| s[broker]).map(|end| {
                if self.begun[broker] {
                    SuccessorCopy::Begun {
                        base: self.switch,
                        end,
                    }
                } else {
                    SuccessorCopy::Unbegun
                }
            }),
            committed_before: self.heard[broker],
        };
        let who = (0_u32..).zip(0..4).filter(|(_, at)| self.answers[*at]);
        who.map(|(id, at)| (BrokerId(id), answer(at))).collect()
    }

    fn decide(&self) -> Result<Decision, Undecided> {
        let a = active(self.base, &Self::ids(&self.a));
        let s = self.s.as_ref().map(|s| open(S, &Self::ids(s)));
        decide(&a, s.as_ref(), &self.answers())
    }

    fn check(&self, decision: &Decision) {
        let Ends {
            active_end,
            successor,
        } = decision.ends;
        assert!(decision.damaged.is_empty(), "no copy lacks anything");
        assert_eq!(decision.tail.start, decision.ends.end());
        assert!(
            decision.tail.end >= self.committed,
            "what was acknowledged stays"
        );
        assert!(
            decision.ends.end() <= self.committed,
            "a sealed segment holds what was acknowledged"
        );
        assert!(active_end >= self.base);
        for end in self.a.iter().flatten() {
            assert!(
                *end >= active_end,
                "each replica of a sealed segment has all of it"
            );
        }
        if let Some(kept) = successor {
            assert_eq!(kept.base, active_end);
            assert_eq!(kept.base, self.switch);
            for end in self.s.iter().flatten().flatten() {
                assert!(
                    *end >= kept.end,
                    "each replica of a sealed segment has all of it"
                );
            }
        }
        // The tail can be read where the decision says.
        let tail = &decision.tail;
        let from_active = tail.end.min(decision.successor_from.unwrap_or(u64::MAX));
        for holder in &decision.active_holders {
            let end = self.a[holder.0 as usize].unwrap();
            assert!(from_active <= tail.start || end >= from_active);
        }
        if let Some(from) = decision.successor_from {
            assert_eq!(from, self.switch);
            for holder in &decision.successor_holders {
                let end = self.s.as_ref().unwrap()[holder.0 as usize].unwrap();
                assert!(end >= decision.tail.end);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn nothing_acknowledged_is_lost_and_every_sealed_segment_is_whole(past in pasts()) {
        let answered = |copies: &[Option<u64>]| {
            (0..4).any(|b| copies[b].is_some() && past.answers[b])
        };
        let enough = answered(&past.a) && past.s.as_ref().is_none_or(|s| answered(s));
        match past.decide() {
            Ok(decision) => {
                prop_assert!(enough);
                past.check(&decision);
            }
            Err(Undecided::NoCopy(_)) => prop_assert!(!enough),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
