//! How fast a segment is written.

use std::time::Duration;

use super::as_f64;

/// What was written counts for less the older it is: after this time, for 1/e. The short memory sees a
/// burst at once; the long one is right about frames that come seldom.
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);
/// How many segments a rate is remembered for, counting for less with each.
const SEGMENTS: usize = 8;
const FADING: f64 = 0.8;

/// The rate to be ready for: the highest that was seen lately. Bursts come again, and a rate that is
/// averaged over them is too low for every one.
#[derive(Clone, Debug)]
pub(super) struct WriteRate {
    short: Memory,
    long: Memory,
}

impl Default for WriteRate {
    fn default() -> Self {
        Self {
            short: Memory::new(SHORT),
            long: Memory::new(LONG),
        }
    }
}

impl WriteRate {
    pub(super) fn appended(&mut self, now: Duration, bytes: u64) {
        self.short.appended(now, bytes);
        self.long.appended(now, bytes);
    }

    pub(super) fn segment_ended(&mut self) {
        self.short.segment_ended();
        self.long.segment_ended();
    }

    /// The rate to be ready for over the next `horizon`, in bytes a second. A burst that is under way
    /// counts whole, and one that is remembered for what it was over such a time.
    pub(super) fn estimate(&self, horizon: Duration) -> f64 {
        if horizon < LONG {
            self.short.peak()
        } else {
            self.long.peak().max(self.short.rate)
        }
    }
}

/// A rate over one memory.
#[derive(Clone, Debug)]
struct Memory {
    length: f64,
    /// Bytes, faded, as of `at`.
    recent: f64,
    at: Duration,
    /// Before the last append, which says nothing yet about how fast they come.
    rate: f64,
    /// The highest rate of this segment and of those before it.
    peaks: [f64; SEGMENTS],
}

impl Memory {
    fn new(length: Duration) -> Self {
        Self {
            length: length.as_secs_f64(),
            recent: 0.0,
            at: Duration::ZERO,
            rate: 0.0,
            peaks: [0.0; SEGMENTS],
        }
    }

    fn appended(&mut self, now: Duration, bytes: u64) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.recent *= (-passed / self.length).exp();
        self.rate = self.recent / self.length;
        self.recent += as_f64(bytes);
        if let Some(peak) = self.peaks.first_mut() {
            *peak = peak.max(self.rate);
        }
    }

    fn segment_ended(&mut self) {
        self.peaks.rotate_right(1);
        if let Some(peak) = self.peaks.first_mut() {
            *peak = self.rate;
        }
    }

    fn peak(&self) -> f64 {
        let mut weight = 1.0;
        self.peaks.iter().fold(0.0, |highest: f64, peak| {
            let faded = peak * weight;
            weight *= FADING;
            highest.max(faded)
        })
    }
}
