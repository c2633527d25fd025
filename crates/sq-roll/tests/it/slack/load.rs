//! What partitions are written with, and how long preparations take.

use std::fmt;
use std::time::Duration;

/// How fast a partition is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    /// In bytes a second.
    Constant(u64),
    /// From a hundredth of it to all of it.
    Ramp(u64),
    /// A hundredth of it, but for half a second in every ten.
    Burst(u64),
    /// Three seconds of it, then five of nothing.
    StopAndGo(u64),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, rate) = match *self {
            Self::Constant(rate) => ("constant", rate),
            Self::Ramp(rate) => ("ramp to", rate),
            Self::Burst(rate) => ("bursts of", rate),
            Self::StopAndGo(rate) => ("stop and go", rate),
        };
        f.pad(&format!("{name} {} KiB/s", rate >> 10))
    }
}

impl Load {
    /// When a partition that wrote `bytes` at `now` writes next. `offset` sets partitions apart.
    pub(super) fn next(
        self,
        now: Duration,
        bytes: u64,
        whole: Duration,
        offset: Duration,
    ) -> Duration {
        let (at, second) = (now + offset, Duration::from_secs(1));
        let within =
            |period: Duration| Duration::from_nanos_u128(at.as_nanos() % period.as_nanos());
        let (rate, from) = match self {
            Self::Constant(rate) => (rate, now),
            Self::Ramp(rate) => {
                let share = now.as_secs_f64() / whole.as_secs_f64();
                (share_of(rate, share.clamp(0.01, 1.0)), now)
            }
            Self::Burst(rate) => {
                let burst = within(10 * second) < second / 2;
                (if burst { rate } else { rate / 100 }, now)
            }
            Self::StopAndGo(rate) => {
                let phase = within(8 * second);
                let pause = if phase < 3 * second {
                    Duration::ZERO
                } else {
                    (8 * second).saturating_sub(phase)
                };
                (rate, now + pause)
            }
        };
        from + Duration::from_nanos(bytes * 1_000_000_000 / rate.max(1))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a rate"
)]
fn share_of(rate: u64, share: f64) -> u64 {
    (rate as f64 * share) as u64
}

/// How long preparations take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Delay {
    /// 50 ms.
    Fixed,
    /// A Pareto distribution from 20 ms on with an exponent of 1.5, cut at a second: a mean of about
    /// 55 ms, and one in a hundred above 430.
    HeavyTailed,
    /// From 20 to 400 ms in the course of the run, give or take a quarter.
    Drifting,
}

impl Delay {
    pub(super) fn draw(self, now: Duration, whole: Duration, random: &mut Random) -> Duration {
        let seconds = match self {
            Self::Fixed => 0.05,
            Self::HeavyTailed => (0.02 / (1.0 - random.share()).powf(1.0 / 1.5)).min(1.0),
            Self::Drifting => {
                let passed = (now.as_secs_f64() / whole.as_secs_f64()).min(1.0);
                (0.02 + 0.38 * passed) * (0.75 + 0.5 * random.share())
            }
        };
        Duration::from_secs_f64(seconds)
    }
}

/// A generator that its seed decides.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2016).
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits are a float's")]
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
