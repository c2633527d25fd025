//! Whether a write is worth holding back for a moment, so that more share its sync.

use std::time::Duration;

/// A wait that did not pay is tried again after this many turns: the load may have changed.
const PROBE_EVERY: u32 = 64;

/// How much of the newest measurement goes into an average, as a share of this.
const WEIGHT: u32 = 8;

/// Decides about waiting, from what recent turns gained by it.
///
/// Callers that wait for each other's syncs come back at about the same time. When a turn ends, those
/// that it wrote for are about to come back, and those that came meanwhile wait already; a write that
/// starts at once takes only the latter, and each sync serves half of the callers. A short wait for
/// the others pays if it gains more entries than the disk would have synced in that time.
#[derive(Clone, Debug)]
pub(super) struct FillWait {
    most: Duration,
    /// How many callers there seem to be.
    callers: usize,
    /// Average entries of a turn, in 256ths.
    entries: u64,
    /// Average time of a write and sync, in nanoseconds.
    flush_ns: u64,
    /// Average entries that a wait gained, in 256ths.
    gained: u64,
    /// Average time that a wait took, in nanoseconds.
    wait_ns: u64,
    until_probe: u32,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Entries that it wrote.
    pub(super) entries: usize,
    /// Entries that had come when it was over.
    pub(super) queued: usize,
    /// How long the write and the sync took.
    pub(super) flush: Duration,
    /// What was gained in which time, if it waited.
    pub(super) waited: Option<(usize, Duration)>,
}

impl FillWait {
    pub(super) fn new(most: Duration) -> Self {
        Self {
            most,
            callers: 0,
            entries: 0,
            flush_ns: 0,
            gained: 0,
            wait_ns: 0,
            until_probe: 0,
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
        if !self.pays() {
            self.until_probe = self.until_probe.saturating_sub(1);
            if self.until_probe > 0 {
                return None;
            }
            self.until_probe = PROBE_EVERY;
        }
        Some(self.callers)
    }

    /// Entries gained per time waited, against entries synced per time flushed.
    fn pays(&self) -> bool {
        let gain = u128::from(self.gained) * u128::from(self.flush_ns);
        let loss = u128::from(self.entries) * u128::from(self.wait_ns);
        gain > loss
    }

    /// Takes in what a turn came to.
    pub(super) fn note(&mut self, turn: Turn) {
        self.callers = turn.entries + turn.queued;
        average(&mut self.entries, turn.entries as u64 * 256);
        average(&mut self.flush_ns, nanoseconds(turn.flush));
        if let Some((gained, time)) = turn.waited {
            average(&mut self.gained, gained as u64 * 256);
            average(&mut self.wait_ns, nanoseconds(time));
        }
    }
}

fn average(average: &mut u64, new: u64) {
    let weight = u64::from(WEIGHT);
    *average = if *average == 0 {
        new
    } else {
        (*average * (weight - 1) + new) / weight
    };
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(90);

    fn turn(entries: usize, queued: usize) -> Turn {
        Turn {
            entries,
            queued,
            flush: FLUSH,
            waited: None,
        }
    }

    #[test]
    fn a_lone_caller_never_waits() {
        let mut fill = FillWait::new(Duration::from_micros(40));
        for _ in 0..1000 {
            assert_eq!(fill.target(1), None);
            fill.note(turn(1, 0));
        }
    }

    /// Half of the callers come while a flush is under way, the others soon after it: waiting for them
    /// doubles what a sync does.
    #[test]
    fn a_wait_goes_on_as_long_as_it_pays() {
        let mut fill = FillWait::new(Duration::from_micros(40));
        let mut waits = 0;
        fill.note(turn(4, 4));
        for _ in 0..100 {
            let target = fill.target(4);
            let waited = target.map(|target| (target - 4, Duration::from_micros(20)));
            waits += usize::from(target == Some(8));
            let entries = target.unwrap_or(4);
            fill.note(Turn {
                waited,
                ..turn(entries, 8 - entries)
            });
        }
        assert_eq!(waits, 100);
    }

    /// Nobody comes: it is tried now and then.
    #[test]
    fn a_wait_that_does_not_pay_is_left_alone() {
        let mut fill = FillWait::new(Duration::from_micros(40));
        let mut waits = 0;
        for _ in 0..1000 {
            let target = fill.target(4);
            let waited = target.map(|_| (0, Duration::from_micros(40)));
            waits += usize::from(target.is_some());
            fill.note(Turn {
                waited,
                ..turn(4, 4)
            });
        }
        assert!((10..20).contains(&waits), "{waits}");
    }

    #[test]
    fn no_wait_is_made_that_is_not_allowed() {
        let mut fill = FillWait::new(Duration::ZERO);
        fill.note(turn(4, 4));
        assert_eq!(fill.target(1), None);
    }
}
