//! A clock that stands still until a test moves it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::clock::{Clock, Instant};

/// A clock that stands still until a test moves it. Clones are the same clock.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use sq_sim::{Clock, VirtualClock};
/// let clock = VirtualClock::new();
/// let start = clock.now();
/// let sleeper = { let clock = clock.clone(); tokio::spawn(async move {
///     clock.sleep(Duration::from_secs(3600)).await;
/// }) };
/// tokio::task::yield_now().await; // lets the sleeper fall asleep
/// clock.advance(Duration::from_secs(3600));
/// sleeper.await.unwrap();
/// assert_eq!(clock.now() - start, Duration::from_secs(3600));
/// # });
/// ```
#[derive(Clone)]
pub struct VirtualClock {
    state: Arc<Mutex<State>>,
}

struct State {
    /// Where the monotonic clock began. Only differences to it mean anything.
    origin: Instant,
    elapsed: Duration,
    /// The wall clock, in milliseconds, as it was at `wall_set_at`.
    wall_ms: u64,
    wall_set_at: Duration,
    /// Sleepers by deadline, then by arrival.
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    arrivals: u64,
}

impl State {
    fn wall_ms(&self) -> u64 {
        let since = self.elapsed.saturating_sub(self.wall_set_at).as_millis();
        self.wall_ms
            .saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn move_to(&mut self, elapsed: Duration) {
        self.elapsed = self.elapsed.max(elapsed);
        while let Some(entry) = self.sleepers.first_entry() {
            if entry.key().0 > self.elapsed {
                break;
            }
            // A sleeper that was dropped does not listen any more.
            let _ = entry.remove().send(());
        }
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("VirtualClock")
            .field("elapsed", &state.elapsed)
            .field("wall_ms", &state.wall_ms())
            .field("sleepers", &state.sleepers.len())
            .finish_non_exhaustive()
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl VirtualClock {
    /// What the wall clock of a new one shows: 2025-01-01T00:00:00Z, in milliseconds.
    pub const INITIAL_WALL_MS: u64 = 1_735_689_600_000;

    /// A clock that no time has passed on.
    #[expect(
        clippy::disallowed_methods,
        reason = "an instant can't be made from nothing; only differences to this one are used"
    )]
    pub fn new() -> Self {
        let state = State {
            origin: Instant::now(),
            elapsed: Duration::ZERO,
            wall_ms: Self::INITIAL_WALL_MS,
            wall_set_at: Duration::ZERO,
            sleepers: BTreeMap::new(),
            arrivals: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves both clocks on, and wakes whose sleep is over in the order of their deadlines.
    ///
    /// All of them then find the clock at its new time. See [`advance_to_next`](Self::advance_to_next)
    /// for a clock that stops at each deadline.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.lock();
        let target = state.elapsed.saturating_add(duration);
        state.move_to(target);
    }

    /// Moves both clocks to the next deadline and wakes whoever waits for it; says how far that was,
    /// or nothing if nobody sleeps.
    pub fn advance_to_next(&self) -> Option<Duration> {
        let mut state = self.lock();
        // A sleeper that was dropped is no reason to stop.
        state.sleepers.retain(|_, sleeper| !sleeper.is_closed());
        let (deadline, _) = *state.sleepers.first_key_value()?.0;
        let passed = deadline.saturating_sub(state.elapsed);
        state.move_to(deadline);
        Some(passed)
    }

    /// Sets the wall clock alone, forwards or backwards; from there it goes on with `advance`.
    pub fn set_wall_ms(&self, wall_ms: u64) {
        let mut state = self.lock();
        state.wall_ms = wall_ms;
        state.wall_set_at = state.elapsed;
    }

    /// How much time has passed since the clock was made.
    pub fn elapsed(&self) -> Duration {
        self.lock().elapsed
    }
}

#[async_trait]
impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        let state = self.lock();
        state.origin + state.elapsed
    }

    fn wall_ms(&self) -> u64 {
        self.lock().wall_ms()
    }

    async fn sleep(&self, duration: Duration) {
        let woken = {
            let mut state = self.lock();
            if duration.is_zero() {
                return;
            }
            let deadline = state.elapsed.saturating_add(duration);
            let arrival = state.arrivals;
            state.arrivals += 1;
            let (sleeper, woken) = oneshot::channel();
            state.sleepers.insert((deadline, arrival), sleeper);
            woken
        };
        // An error means that the clock is gone, which this borrow of it rules out.
        let _ = woken.await;
    }
}
