//! How far below the cap the soft mark is.

mod latency;
mod rate;
mod settings;

use std::time::Duration;

pub use latency::Latencies;
use rate::WriteRate;
pub use settings::{InvalidSoftMark, SlackSettings, SoftMark};

use crate::{Limits, SegmentId};

/// Places the marks of one partition's segments.
///
/// The slack between soft mark and cap has to cover the time that a preparation takes, at the rate at
/// which the segment is written by then. Both are measured: the rate here, how long preparations take
/// in [`Latencies`], which partitions of one node can share.
///
/// Partitions that fill together would roll together, so each segment's cap is lower than the configured
/// one by a share that is drawn from the seed and the segment's id. The hard limit stays.
#[derive(Clone, Debug)]
pub struct Slack {
    settings: SlackSettings,
    configured: Limits,
    seed: u64,
    /// Between 0 and 1: how much of the jitter this segment gets.
    draw: f64,
    rate: WriteRate,
    largest_frame: u64,
}

impl Slack {
    /// For a segment that begins now. `configured` has the caps; its soft marks count for nothing.
    pub fn new(settings: SlackSettings, configured: Limits, seed: u64, segment: SegmentId) -> Self {
        let draw = share(seed, segment);
        Self {
            settings,
            configured,
            seed,
            draw,
            rate: WriteRate::default(),
            largest_frame: 0,
        }
    }

    /// Takes a write into account.
    pub fn appended(&mut self, now: Duration, bytes: u64) {
        self.rate.appended(now, bytes);
        self.largest_frame = self.largest_frame.max(bytes);
    }

    /// The next segment was switched to.
    pub fn switched(&mut self, to: SegmentId) {
        self.rate.segment_ended();
        self.draw = share(self.seed, to);
        self.largest_frame /= 2;
    }

    /// Where this segment's marks are by what is known now. Its caps never change.
    pub fn limits(&self, latencies: &Latencies) -> Limits {
        let configured = self.configured;
        let keep = 1.0 - self.settings.jitter() * self.draw;
        let cap_bytes = scale(configured.cap_bytes, keep);
        let cap_age = scale_time(configured.cap_age, keep);
        Limits {
            soft_bytes: cap_bytes.saturating_sub(self.slack_bytes(cap_bytes, latencies)),
            cap_bytes,
            overrun_bytes: configured.hard_bytes().saturating_sub(cap_bytes),
            soft_age: cap_age.saturating_sub(self.slack_age(cap_age, latencies)),
            cap_age,
            idle_after: configured.idle_after,
        }
    }

    fn slack_bytes(&self, cap: u64, latencies: &Latencies) -> u64 {
        let share = self.share(latencies, |time| {
            // The append that passes the mark may be followed by the largest there is.
            let bytes = time.as_secs_f64() * self.rate.estimate(time) + as_f64(self.largest_frame);
            bytes / as_f64(cap).max(1.0)
        });
        scale(cap, share)
    }

    fn slack_age(&self, cap: Duration, latencies: &Latencies) -> Duration {
        if cap == Duration::MAX {
            return Duration::ZERO;
        }
        let share = |time: Duration| time.as_secs_f64() / cap.as_secs_f64().max(1e-9);
        scale_time(cap, self.share(latencies, share))
    }

    /// The slack as a share of the cap. `needed` says what share passes in a time.
    fn share(&self, latencies: &Latencies, needed: impl Fn(Duration) -> f64) -> f64 {
        let fallback = 1.0 - SoftMark::FALLBACK;
        if let SoftMark::Fraction(fraction) = self.settings.soft_mark {
            return (1.0 - fraction).clamp(0.0, 1.0);
        }
        let Some(latency) = latencies.expected(self.settings.percentile) else {
            return fallback;
        };
        let band = self.settings.band();
        let time = latency.mul_f64(self.settings.safety());
        let share = needed(time).clamp(*band.start(), *band.end());
        // A few observations can show that more is needed, but not that less is.
        if latencies.are_enough() {
            share
        } else {
            share.max(fallback)
        }
    }

    /// When a segment of that size and age will be at its cap if it goes on like this, at the latest.
    /// Preparations that wait are ordered by it.
    pub fn due(&self, now: Duration, limits: &Limits, bytes: u64, age: Duration) -> Duration {
        let left = as_f64(limits.cap_bytes.saturating_sub(bytes));
        let rate = self.write_rate();
        let full = if rate > 0.0 { left / rate } else { f64::MAX };
        let full = Duration::try_from_secs_f64(full).unwrap_or(Duration::MAX);
        now.saturating_add(full.min(limits.cap_age.saturating_sub(age)))
    }

    /// The rate to be ready for, over the next second, in bytes a second.
    pub fn write_rate(&self) -> f64 {
        self.rate.estimate(Duration::from_secs(1))
    }
}

/// A number between 0 and 1 that only these two decide: the output function of `SplitMix64`
/// (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
fn share(seed: u64, segment: SegmentId) -> f64 {
    let mut mixed = (seed ^ segment.0).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    as_f64((mixed ^ (mixed >> 31)) >> 11) / as_f64(1 << 53)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "marks need no more than 53 bits"
)]
fn as_f64(value: u64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is between 0 and 1, and the cast saturates"
)]
fn scale(value: u64, share: f64) -> u64 {
    if share >= 1.0 {
        value
    } else {
        (as_f64(value) * share) as u64
    }
}

fn scale_time(time: Duration, share: f64) -> Duration {
    if time == Duration::MAX {
        time
    } else {
        time.mul_f64(share.clamp(0.0, 1.0))
    }
}
