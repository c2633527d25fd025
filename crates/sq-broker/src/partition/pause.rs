//! When a log that has become read-only is written to again.

use std::time::Duration;

use sq_sim::Instant;

/// How long it is left alone at first.
pub(super) const FIRST: Duration = Duration::from_secs(1);

/// The longest that it is left alone.
pub(super) const LONGEST: Duration = Duration::from_mins(5);

/// The pauses of a log that becomes read-only after several failed writes in a row.
///
/// Each is twice as long as the one before, until an append succeeds. So a disk that was full, or a
/// device that came back, is written to again without a restart, and one that keeps failing is not
/// made to fill with abandoned files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pause {
    until: Option<Instant>,
    next: Option<Duration>,
}

impl Pause {
    /// The log is read-only.
    pub(super) fn read_only(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        let pause = self.next.unwrap_or(FIRST);
        self.until = Some(now + pause);
        self.next = Some((pause * 2).min(LONGEST));
    }

    /// The log took an append.
    pub(super) fn over(&mut self) {
        *self = Self::default();
    }

    /// Whether the log is read-only and may be tried again.
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sq_sim::{Clock, VirtualClock};

    #[test]
    fn each_pause_is_longer_until_an_append_succeeds() {
        let mut now = VirtualClock::new().now();
        let mut pause = Pause::default();
        assert!(!pause.may_try(now));
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            pause.read_only(now);
            let expected = Duration::from_secs(expected);
            assert!(!pause.may_try(now + expected - Duration::from_millis(1)));
            // An append that is refused in between makes it no longer.
            pause.read_only(now + expected / 2);
            now += expected;
            assert!(pause.may_try(now));
        }
        pause.over();
        assert!(!pause.may_try(now));
        pause.read_only(now);
        assert!(pause.may_try(now + FIRST));
    }
}
