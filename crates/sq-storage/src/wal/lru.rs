//! A bounded map that lets go of what was used longest ago.

use std::collections::{BTreeMap, HashMap};

/// Values under a bound on their weights. Every operation takes time that grows with the logarithm of
/// how many there are.
#[derive(Debug)]
pub(super) struct Lru<V> {
    max_weight: usize,
    weight: usize,
    next_turn: u64,
    entries: HashMap<u64, Entry<V>>,
    /// The keys by the turn of their last use.
    order: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Entry<V> {
    turn: u64,
    weight: usize,
    value: V,
}

impl<V: Clone> Lru<V> {
    pub(super) fn new(max_weight: usize) -> Self {
        Self {
            max_weight,
            weight: 0,
            next_turn: 0,
            entries: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// What all values weigh. Never more than the bound.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// The value of a key, which counts as a use.
    pub(super) fn get(&mut self, key: u64) -> Option<V> {
        let entry = self.entries.get_mut(&key)?;
        self.order.remove(&entry.turn);
        entry.turn = self.next_turn;
        self.order.insert(entry.turn, key);
        self.next_turn += 1;
        Some(entry.value.clone())
    }

    /// Sets a key's value, and returns what has to go for it, so that the caller drops it where it
    /// likes. One that is heavier than the bound is among that.
    #[must_use]
    pub(super) fn put(&mut self, key: u64, value: V, weight: usize) -> Vec<V> {
        let mut gone: Vec<V> = self.remove(key).into_iter().collect();
        let turn = self.next_turn;
        self.next_turn += 1;
        self.weight += weight;
        self.order.insert(turn, key);
        let entry = Entry {
            turn,
            weight,
            value,
        };
        self.entries.insert(key, entry);
        while self.weight > self.max_weight
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            gone.extend(self.remove(oldest));
        }
        gone
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<V> {
        let entry = self.entries.remove(&key)?;
        self.order.remove(&entry.turn);
        self.weight -= entry.weight;
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_keeps_what_was_used_last(
            steps in proptest::collection::vec((0..3_u8, 0..8_u64, 0..5_usize), 0..100), max in 0..12_usize,
        ) {
            let mut lru = Lru::new(max);
            // Keys and weights, the one used longest ago first.
            let mut expected: Vec<(u64, usize)> = Vec::new();
            for (step, key, weight) in steps {
                let at = expected.iter().position(|(k, _)| *k == key);
                let known = at.map(|at| expected.remove(at));
                match step {
                    0 => {
                        prop_assert_eq!(lru.get(key), known);
                        expected.extend(known);
                    }
                    1 => prop_assert_eq!(lru.remove(key), known),
                    _ => {
                        let mut gone: Vec<_> = known.into_iter().collect();
                        expected.push((key, weight));
                        while expected.iter().map(|(_, w)| w).sum::<usize>() > max {
                            gone.push(expected.remove(0));
                        }
                        prop_assert_eq!(lru.put(key, (key, weight), weight), gone);
                    }
                }
                prop_assert_eq!(lru.weight(), expected.iter().map(|(_, w)| w).sum::<usize>());
                prop_assert_eq!(lru.entries.len(), expected.len());
                prop_assert_eq!(lru.order.len(), expected.len());
            }
        }
    }
}
