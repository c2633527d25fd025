//! What is near a roll against what is not.

use std::ops::Range;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::stats::{Summary, quantile};

/// Records of a window.
pub(super) const WINDOW: usize = 50;

/// How often windows away from rolls are drawn.
const DRAWS: usize = 400;

/// Which records are near a roll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Windows {
    /// The first records of a segment.
    pub(super) after: Vec<Range<usize>>,
    /// Those of as many as that which are in the midst of one.
    pub(super) away: Vec<Range<usize>>,
}

impl Windows {
    /// `ends`: the first offset of each segment but the first, in order, of so many records.
    pub(super) fn new(ends: &[usize], records: usize) -> Self {
        let mut windows = Self::default();
        let next = ends.iter().skip(1).copied().chain([records]);
        for (&end, next) in ends.iter().zip(next) {
            let next = next.min(records);
            if end + WINDOW > next {
                continue;
            }
            windows.after.push(end..end + WINDOW);
            let mut start = end + 2 * WINDOW;
            while start + 2 * WINDOW <= next {
                windows.away.push(start..start + WINDOW);
                start += WINDOW;
            }
        }
        windows
    }
}

/// The values after rolls against equally many windows away from them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    pub(super) after: Summary,
    /// The middle of the draws.
    pub(super) away: Summary,
    /// What 95 of 100 draws' p99.9 do not exceed.
    pub(super) away_p999_high: f64,
}

pub(super) fn compare(values: &[f64], windows: &Windows, seed: u64) -> Comparison {
    let of = |window: &Range<usize>| {
        values
            .get(window.clone())
            .unwrap_or_default()
            .iter()
            .copied()
    };
    let mut rng = StdRng::seed_from_u64(seed);
    let draws: Vec<Summary> = (0..DRAWS)
        .map(|_| {
            let drawn = windows.after.iter();
            let drawn = drawn.filter_map(|_| windows.away.choose(&mut rng));
            Summary::of(drawn.flat_map(of))
        })
        .collect();
    let at = |get: fn(&Summary) -> f64, share| {
        let mut values: Vec<f64> = draws.iter().map(get).collect();
        values.sort_unstable_by(f64::total_cmp);
        quantile(&values, share)
    };
    Comparison {
        after: Summary::of(windows.after.iter().flat_map(of)),
        away: Summary {
            p50: at(|s| s.p50, 0.5),
            p99: at(|s| s.p99, 0.5),
            p999: at(|s| s.p999, 0.5),
            max: at(|s| s.max, 0.5),
        },
        away_p999_high: at(|s| s.p999, 0.95),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_keep_away_from_both_ends_of_a_segment() {
        let windows = Windows::new(&[400, 500, 530, 1000], 1_060);
        // The third segment is too short for a window, and the last one just long enough.
        assert_eq!(windows.after, [400..450, 530..580, 1000..1050]);
        let away: Vec<_> = (630..=900).step_by(50).map(|s| s..s + 50).collect();
        assert_eq!(windows.away, away);
    }

    /// What is slow after rolls only is found, and what is slow everywhere is not held against them.
    #[test]
    fn a_cost_of_rolls_shows_and_noise_does_not() {
        let ends: Vec<usize> = (1..200).map(|n| n * 400).collect();
        let windows = Windows::new(&ends, 80_000);
        let noise = |n: u32| {
            if n.is_multiple_of(997) {
                900.0
            } else {
                100.0 + f64::from(n % 7)
            }
        };
        let mut values: Vec<f64> = (0..80_000).map(noise).collect();
        let same = compare(&values, &windows, 1);
        assert!(same.after.p50 <= 1.01 * same.away.p50);
        assert!(same.after.p999 <= same.away_p999_high);
        for end in ends {
            for value in &mut values[end..end + 5] {
                *value += 3_000.0;
            }
        }
        let slow = compare(&values, &windows, 1);
        assert!(slow.after.p99 > 10.0 * slow.away.p99, "{slow:?}");
        assert!(slow.after.p999 > slow.away_p999_high);
        assert!(slow.after.p50 <= 1.1 * slow.away.p50);
    }
}
