//! Sets of byte positions, kept as ranges that neither touch nor overlap.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of positions. Every operation costs the ranges it meets, not the positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet {
    /// Start to end, exclusive.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// How many positions are in the set.
    pub(super) fn count(&self) -> u64 {
        self.iter().map(|r| r.end - r.start).sum()
    }

    /// The parts of `range` that are in the set.
    pub(super) fn overlap(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() {
            return Vec::new();
        }
        let first = self
            .ranges
            .range(..=range.start)
            .next_back()
            .map_or(range.start, |(&s, _)| s);
        self.ranges
            .range(first..range.end)
            .map(|(&s, &e)| s.max(range.start)..e.min(range.end))
            .filter(|r| !r.is_empty())
            .collect()
    }

    /// How many positions of `range` are in the set.
    pub(super) fn count_in(&self, range: Range<u64>) -> u64 {
        self.overlap(range).iter().map(|r| r.end - r.start).sum()
    }

    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Whatever begins at or before the end and reaches the start is merged, neighbours too.
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
    }

    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&s, &e)) = self.ranges.range(..range.end).next_back() {
            if e <= range.start {
                break;
            }
            self.ranges.remove(&s);
            if e > range.end {
                self.ranges.insert(range.end, e);
            }
            if s < range.start {
                self.ranges.insert(s, range.start);
            }
        }
    }

    /// Takes out everything from `len` on, and says how many positions that were.
    pub(super) fn truncate(&mut self, len: u64) -> u64 {
        let cut = self.count_in(len..u64::MAX);
        self.remove(len..u64::MAX);
        cut
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::RangeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_positions(
            steps in prop::collection::vec((0_u8..3, 0_u64..64, 0_u64..20), 0..60)
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (kind, start, len) in steps {
                let range = start..start + len;
                match kind {
                    0 => { set.insert(range.clone()); model.extend(range.clone()); }
                    1 => { set.remove(range.clone()); model.retain(|p| !range.contains(p)); }
                    _ => {
                        let cut = model.iter().filter(|&&p| p >= start).count() as u64;
                        prop_assert_eq!(set.truncate(start), cut);
                        model.retain(|&p| p < start);
                    }
                }
                prop_assert_eq!(set.iter().flatten().collect::<BTreeSet<_>>(), model.clone());
                prop_assert_eq!(set.count(), model.len() as u64);
                prop_assert_eq!(
                    set.count_in(range.clone()),
                    model.iter().filter(|p| range.contains(p)).count() as u64
                );
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
            }
        }
    }
}
