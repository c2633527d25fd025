//! Seeded random numbers.

use std::ops::RangeInclusive;

/// A `SplitMix64` generator (Steele, Lea and Flood, 2014).
///
/// It is spelt out here so that a seed that found a bug finds it again after any upgrade of a crate.
#[derive(Clone, Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number of the range; its start if the range is empty.
    ///
    /// The modulo favours small numbers by less than one part in 2^32 for any range used here.
    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (start, end) = range.into_inner();
        let span = end.saturating_sub(start);
        match span.checked_add(1) {
            Some(count) => start + self.next() % count,
            None => self.next(),
        }
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// True once in `n` draws on average; always for 0 and 1.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.within(1..=n.max(1)) == 1
    }

    /// One of `items`, if there are any.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(items.len())
            .unwrap_or(u64::MAX)
            .checked_sub(1)?;
        items.get(usize::try_from(self.within(0..=last)).unwrap_or(0))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a random byte is any eight of the bits"
    )]
    pub(crate) fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}
