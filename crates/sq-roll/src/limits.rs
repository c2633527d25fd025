//! Where a segment ends, and how patient its leader is.

use std::time::Duration;

/// The marks of a segment. Anything is a valid value: a soft mark above the cap counts as the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The size at which a successor is asked for, in bytes.
    pub soft_bytes: u64,
    /// The size that a frame may not take the segment past once the successor is ready, in bytes.
    pub cap_bytes: u64,
    /// How far past the cap appends may go while it is not, in bytes.
    pub overrun_bytes: u64,
    /// The age at which a successor is asked for.
    pub soft_age: Duration,
    /// The age at which an append goes to the successor, if that is ready. A segment too old is no
    /// reason to refuse an append.
    pub cap_age: Duration,
    /// A segment that was not written for so long prepares nothing for its age.
    pub idle_after: Duration,
}

impl Limits {
    /// A cap in bytes, with a soft mark at nine tenths, a tenth of overrun, and no limit of age.
    pub fn bytes(cap_bytes: u64) -> Self {
        Self {
            soft_bytes: cap_bytes - cap_bytes / 10,
            cap_bytes,
            overrun_bytes: cap_bytes / 10,
            soft_age: Duration::MAX,
            cap_age: Duration::MAX,
            idle_after: Duration::MAX,
        }
    }

    /// Adds a limit of age, with a soft mark at nine tenths. A segment that was idle for a quarter of
    /// it prepares nothing.
    #[must_use]
    pub fn with_age(self, cap_age: Duration) -> Self {
        Self {
            soft_age: cap_age.saturating_sub(cap_age / 10),
            cap_age,
            idle_after: cap_age / 4,
            ..self
        }
    }

    /// Asks for a successor only at the cap, where appends then wait for it: what brokers without an
    /// anticipated roll do.
    #[must_use]
    pub fn reactive(self) -> Self {
        Self {
            soft_bytes: self.cap_bytes,
            soft_age: self.cap_age,
            overrun_bytes: 0,
            ..self
        }
    }

    /// The size that no append takes the segment past, in bytes.
    pub fn hard_bytes(&self) -> u64 {
        self.cap_bytes.saturating_add(self.overrun_bytes)
    }
}

/// How requests are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    /// A request that was not answered for so long is made again.
    pub answer: Duration,
    /// The pause after the first failed preparation. It doubles with each that follows.
    pub pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(5),
            pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
        }
    }
}
