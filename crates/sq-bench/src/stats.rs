//! What is made of many measurements.

use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;

/// The longest that is told apart, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies of one job, to three digits.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .map(Self)
            .context("no histogram")
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(LONGEST_NS);
        self.0.saturating_record(ns);
    }

    pub(crate) fn summary(&self) -> Summary {
        let us = |q| float(self.0.value_at_quantile(q)) / 1e3;
        Summary {
            p50: us(0.5),
            p99: us(0.99),
            p999: us(0.999),
            max: float(self.0.max()) / 1e3,
        }
    }
}

/// Quantiles, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// Of values that are numbers, to the last digit; NaN of none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
        values.sort_unstable_by(f64::total_cmp);
        Self {
            p50: quantile(&values, 0.5),
            p99: quantile(&values, 0.99),
            p999: quantile(&values, 0.999),
            max: quantile(&values, 1.0),
        }
    }

    /// Each quantile's median over the rounds.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |get: fn(&Self) -> f64| median(rounds.iter().map(get));
        Self {
            p50: of(|s| s.p50),
            p99: of(|s| s.p99),
            p999: of(|s| s.p999),
            max: of(|s| s.max),
        }
    }
}

/// The middle one; of an even number, the mean of the two in the middle. NaN of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2).copied();
    let lower = sorted.get(sorted.len().wrapping_sub(1) / 2).copied();
    match (lower, upper) {
        (Some(lower), Some(upper)) => f64::midpoint(lower, upper),
        _ => f64::NAN,
    }
}

/// The least of some values, in order, that so large a share of them does not exceed. NaN of none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rank among some millions"
)]
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

/// A count as a number to calculate with.
#[expect(
    clippy::cast_precision_loss,
    reason = "figures are printed to three digits"
)]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// How many of something there are a second.
pub(crate) fn per_second(count: u64, took: Duration) -> f64 {
    float(count) / took.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::{Latencies, Summary, median};
    use std::time::Duration;

    #[test]
    fn the_median_is_the_middle_one_whatever_the_order() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!((median([7.0]) - 7.0).abs() < 1e-9);
        assert!(median([]).is_nan());
    }

    #[test]
    fn quantiles_are_values_that_were_there() {
        let of = Summary::of((1..=1000).rev().map(f64::from).chain([f64::NAN]));
        let seen = [of.p50, of.p99, of.p999, of.max];
        for (seen, wanted) in seen.into_iter().zip([500.0, 990.0, 999.0, 1000.0]) {
            assert!((seen - wanted).abs() < 1e-9, "{of:?}");
        }
        assert!(Summary::of([]).p50.is_nan());
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latencies = Latencies::new().unwrap();
        for us in 1..=1000 {
            latencies.record(Duration::from_micros(us));
        }
        let summary = latencies.summary();
        assert!((summary.p50 - 500.0).abs() < 5.0, "{summary:?}");
        assert!((summary.p99 - 990.0).abs() < 5.0, "{summary:?}");
        assert!((summary.max - 1000.0).abs() < 5.0, "{summary:?}");
        let doubled = Summary {
            p50: 1000.0,
            ..summary
        };
        let middle = Summary::median(&[summary, doubled, doubled]);
        assert!((middle.p50 - 1000.0).abs() < 1e-9);
    }
}
