//! Time as a trait.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
pub use tokio::time::Instant;

/// Where a component takes its time from.
///
/// Durations are measured on [`Clock::now`], which never runs backwards; [`Clock::wall_ms`] is for
/// what is stored or shown, and may jump in both directions.
#[async_trait]
pub trait Clock: Debug + Send + Sync + 'static {
    /// The monotonic clock.
    fn now(&self) -> Instant;

    /// Milliseconds since the Unix epoch; 0 for a time before it.
    fn wall_ms(&self) -> u64;

    /// Returns once `duration` has passed on the monotonic clock.
    async fn sleep(&self, duration: Duration);
}

/// The machine's own clocks.
///
/// The monotonic one is tokio's, so that a test under `tokio::time::pause` advances it too.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock the others are told to take"
    )]
    fn now(&self) -> Instant {
        Instant::now()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock the others are told to take"
    )]
    fn wall_ms(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock the others are told to take"
    )]
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
