//! Time.

use sq_sim::{Clock as _, Instant, SystemClock};

/// Now, on the monotonic clock.
pub(crate) fn now() -> Instant {
    SystemClock.now()
}
