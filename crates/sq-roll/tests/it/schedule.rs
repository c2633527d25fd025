//! Preparations of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use sq_roll::Preparations;

use crate::support::ms;

#[test]
fn the_most_urgent_of_those_that_wait_begins_next() {
    let mut preparations = Preparations::new(2);
    assert!(preparations.ask("a", ms(1)));
    assert!(preparations.ask("b", ms(1)));
    for (who, due) in [("c", 30), ("d", 10), ("e", 20)] {
        assert!(!preparations.ask(who, ms(due)));
    }
    assert!(!preparations.ask("c", ms(5)), "it is written faster by now");
    assert!(preparations.ask("a", ms(9)), "a repeat");
    assert_eq!(preparations.done(&"b"), Some("c"));
    assert_eq!(preparations.done(&"b"), None, "told twice");
    assert_eq!(preparations.done(&"e"), None, "it gave up waiting");
    assert_eq!(preparations.done(&"a"), Some("d"));
    assert_eq!(preparations.done(&"c"), None);
    assert_eq!((preparations.running(), preparations.waiting()), (1, 0));
}

proptest! {
    /// Whatever is asked and done: no more run than may, what begins was waiting and was due first, and
    /// everybody gets a turn.
    #[test]
    fn no_more_run_than_may_and_everybody_gets_a_turn(
        limit in 0..5usize,
        steps in prop::collection::vec((0..12u8, prop::option::of(0..100u64)), 1..200)
    ) {
        let mut preparations = Preparations::new(limit);
        let mut running = BTreeSet::new();
        let mut waiting: BTreeMap<u8, Duration> = BTreeMap::new();
        for (who, due) in steps {
            match due.map(ms) {
                Some(due) if preparations.ask(who, due) => {
                    waiting.remove(&who);
                    running.insert(who);
                }
                Some(due) => {
                    prop_assert!(!running.contains(&who));
                    waiting.insert(who, due);
                }
                None => {
                    waiting.remove(&who);
                    let next = preparations.done(&who);
                    let first = waiting.iter().map(|(who, due)| (*due, *who)).min();
                    if running.remove(&who) {
                        prop_assert_eq!(next, first.map(|(_, who)| who));
                    } else {
                        prop_assert_eq!(next, None);
                    }
                    if let Some(next) = next {
                        waiting.remove(&next);
                        running.insert(next);
                    }
                }
            }
            prop_assert!(running.len() <= limit.max(1));
            prop_assert_eq!(preparations.running(), running.len());
            prop_assert_eq!(preparations.waiting(), waiting.len());
            prop_assert!(waiting.is_empty() || running.len() == limit.max(1));
        }
    }
}
