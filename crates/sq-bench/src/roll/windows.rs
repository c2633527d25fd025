//! What is near a roll against what is not.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Records of a window.
pub(super) const WINDOW: usize = 50;

/// How often windows away from rolls are drawn.
const DRAWS: usize = 400;

/// Quantiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quantiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Quantiles {
    /// Of values that are numbers; NaN of none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
        Self::of_vec(&mut values)
    }

    fn of_vec(values: &mut [f64]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self {
            p50: at(values, 0.5),
            p99: at(values, 0.99),
            p999: at(values, 0.999),
            max: values.last().copied().unwrap_or(f64::NAN),
        }
    }
}

/// The least value that this share of them does not exceed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rank among some millions"
)]
pub(super) fn at(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Comparison {
    pub(super) after: Quantiles,
    /// The middle of the draws.
    pub(super) away: Quantiles,
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
    let after = Quantiles::of(windows.after.iter().flat_map(of));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut draws = Vec::new();
    let mut values_of_one = Vec::new();
    for _ in 0..DRAWS.min(windows.away.len() * DRAWS) {
        values_of_one.clear();
        for _ in &windows.after {
            let which = rng.random_range(0..windows.away.len());
            values_of_one.extend(windows.away.get(which).into_iter().flat_map(of));
        }
        values_of_one.retain(|v| !v.is_nan());
        draws.push(Quantiles::of_vec(&mut values_of_one));
    }
    let sorted = |get: fn(&Quantiles) -> f64| {
        let mut values: Vec<f64> = draws.iter().map(get).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    };
    let middle = |get| at(&sorted(get), 0.5);
    Comparison {
        after,
        away: Quantiles {
            p50: middle(|q| q.p50),
            p99: middle(|q| q.p99),
            p999: middle(|q| q.p999),
            max: middle(|q| q.max),
        },
        away_p999_high: at(&sorted(|q| q.p999), 0.95),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approx(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn quantiles_are_values_that_were_there() {
        let q = Quantiles::of((1..=1000).rev().map(f64::from).chain([f64::NAN]));
        assert!(approx(q.p50, 500.0) && approx(q.p99, 990.0));
        assert!(approx(q.p999, 999.0) && approx(q.max, 1000.0));
        assert!(Quantiles::of([]).p50.is_nan());
    }

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
