//! Whether a write is worth holding back for a moment, so that more share its sync.

use std::time::Duration;

use sq_sim::Instant;

/// So many turns are measured together, either with waits or without.
const TURNS: u32 = 32;

/// The first of them still show what was before.
const SETTLING_TURNS: u32 = 4;

/// After so many measurements of what is the better, the other is tried: the load may have changed.
const TRY_EVERY: u32 = 24;

/// How much of the newest measurement goes into an average, as a share of this.
const WEIGHT: u64 = 4;

/// Waiting has to be better by a share of this: where it is not, it only makes callers wait.
const MARGIN: u64 = 32;

/// Decides about waiting, from how many entries turns take in a second with it and without.
///
/// Callers that wait for each other's syncs come back at about the same time. When a turn ends, those
/// that it wrote for are about to come back, and those that came meanwhile wait already; a write that
/// starts at once takes only the latter, and each sync serves half of the callers. With few callers, a short
/// wait for the others lets a sync serve all. With many, waking them takes as long as a sync: then it is better
/// to have one half woken while the other is written. Which of the two it is depends on the disk, the
/// processors and the callers, so it is tried.
#[derive(Clone, Debug)]
pub(super) struct FillWait {
    most: Duration,
    /// How many callers there seem to be.
    callers: usize,
    /// Whether this measurement is one with waits.
    waits: bool,
    /// Whether waits are the better, as far as is known.
    is_better: bool,
    /// Average entries in 1,024 seconds without waits and with them; 0 where that is not known.
    without: u64,
    with: u64,
    until_try: u32,
    measured: Measured,
}

/// What was measured so far.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    turns: u32,
    entries: u64,
    /// When the turns began that count.
    since: Option<Instant>,
    /// Whether there was anything to wait for.
    matters: bool,
}

impl FillWait {
    pub(super) fn new(most: Duration) -> Self {
        Self {
            most,
            callers: 0,
            waits: false,
            is_better: false,
            without: 0,
            with: 0,
            until_try: TRY_EVERY,
            measured: Measured::default(),
        }
    }

    /// The longest wait.
    pub(super) fn most(&self) -> Duration {
        self.most
    }

    /// How many entries to wait for, where `queued` are there; `None` if the write is to start.
    pub(super) fn target(&mut self, queued: usize) -> Option<usize> {
        if queued >= self.callers || self.most.is_zero() {
            return None;
        }
        self.measured.matters = true;
        self.waits.then_some(self.callers)
    }

    /// Takes in that a turn ended at `now`: how many entries it wrote, and how many had come by then.
    pub(super) fn note(&mut self, entries: usize, queued: usize, now: Instant) {
        self.callers = entries + queued;
        let measured = &mut self.measured;
        measured.turns += 1;
        let Some(since) = measured.since else {
            if measured.turns >= SETTLING_TURNS {
                measured.since = Some(now);
            }
            return;
        };
        measured.entries += entries as u64;
        if measured.turns >= TURNS {
            let rate = rate(measured.entries, now.saturating_duration_since(since));
            let matters = measured.matters;
            self.measured = Measured::default();
            if matters {
                self.judge(rate);
            }
        }
    }

    /// Takes in a measurement, and decides what the next is of.
    fn judge(&mut self, rate: u64) {
        let (of_this, of_other) = if self.waits {
            (&mut self.with, &mut self.without)
        } else {
            (&mut self.without, &mut self.with)
        };
        if *of_this == 0 {
            *of_this = rate;
        } else if (*of_this / 3 * 2..=*of_this / 2 * 3).contains(&rate) {
            *of_this = (*of_this * (WEIGHT - 1) + rate) / WEIGHT;
        } else {
            // The load is another, of which nothing is known yet.
            (*of_this, *of_other) = (rate, 0);
        }
        if *of_other == 0 {
            self.waits = !self.waits;
            return;
        }
        let is_better = self.with > self.without + self.without / MARGIN;
        let was_tried = self.waits != self.is_better;
        self.until_try = if was_tried || is_better != self.is_better {
            TRY_EVERY
        } else {
            self.until_try.saturating_sub(1)
        };
        self.is_better = is_better;
        self.waits = is_better != (self.until_try == 0);
    }
}

/// Entries in 1,024 seconds.
fn rate(entries: u64, time: Duration) -> u64 {
    let nanoseconds = time.as_nanos().max(1);
    let rate = u128::from(entries) * 1024 * 1_000_000_000 / nanoseconds;
    u64::try_from(rate)
        .unwrap_or(u64::MAX / WEIGHT)
        .min(u64::MAX / WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sq_sim::{Clock, VirtualClock};

    /// Lives through so many turns with callers that all come back, of whom half are there when a turn begins.
    /// What a turn takes is told by whether it waited. How many waited.
    fn live(
        fill: &mut FillWait,
        turns: u32,
        callers: usize,
        takes: impl Fn(bool) -> Duration,
    ) -> u32 {
        let mut now = VirtualClock::new().now();
        let mut waited = 0;
        for _ in 0..turns {
            let queued = callers.div_ceil(2);
            let target = fill.target(queued);
            let waits = target.is_some();
            waited += u32::from(waits);
            now += takes(waits);
            let entries = target.unwrap_or(queued);
            fill.note(entries, callers - entries, now);
        }
        waited
    }

    fn fill() -> FillWait {
        FillWait::new(Duration::from_micros(80))
    }

    #[test]
    fn a_lone_caller_never_waits() {
        let takes = |_| Duration::from_micros(90);
        assert_eq!(live(&mut fill(), 10_000, 1, takes), 0);
    }

    /// Half of the callers come while a flush is under way, the others soon after it: waiting for them
    /// doubles what a sync does.
    #[test]
    fn a_wait_goes_on_as_long_as_it_pays() {
        let takes = |waits| Duration::from_micros(if waits { 110 } else { 90 });
        let waited = live(&mut fill(), 10_000, 8, takes);
        assert!(waited > 9_000, "{waited}");
    }

    /// To wake so many takes longer than a flush, which no longer goes on meanwhile.
    #[test]
    fn a_wait_that_does_not_pay_is_tried_now_and_then() {
        let takes = |waits| Duration::from_micros(if waits { 300 } else { 140 });
        let waited = live(&mut fill(), 10_000, 64, takes);
        assert!((100..1_000).contains(&waited), "{waited}");
        // Nor is it made for nothing.
        let takes = |waits| Duration::from_micros(if waits { 180 } else { 90 });
        let waited = live(&mut fill(), 10_000, 8, takes);
        assert!((100..1_000).contains(&waited), "{waited}");
    }

    #[test]
    fn what_was_right_is_given_up_when_the_load_changes() {
        let mut fill = fill();
        let pays = |waits| Duration::from_micros(if waits { 110 } else { 90 });
        let does_not = |waits| Duration::from_micros(if waits { 300 } else { 140 });
        for _ in 0..3 {
            assert!(live(&mut fill, 10_000, 8, pays) > 8_000);
            assert!(live(&mut fill, 10_000, 64, does_not) < 2_000);
        }
    }

    #[test]
    fn no_wait_is_made_that_is_not_allowed() {
        let mut fill = FillWait::new(Duration::ZERO);
        let takes = |_| Duration::from_micros(90);
        assert_eq!(live(&mut fill, 1_000, 8, takes), 0);
    }
}
