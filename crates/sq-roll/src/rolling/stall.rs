//! Appends that wait for a successor.

use std::time::Duration;

use async_trait::async_trait;
use sq_sim::FileSystem;
use sq_storage::Pace;

use super::shared::{Core, DriverState, Shared};
use crate::State;
use crate::node::lock;

/// Why appends wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// The segment is at its hard limit.
    Full,
    /// It takes no further write.
    Ended,
}

impl<F: FileSystem> Shared<F> {
    /// Waits until appends may go on. `false`: for too long.
    pub(super) async fn wait(&self, stall: Stall) -> bool {
        let began = self.node.now();
        loop {
            let relief = self.relief.notified();
            {
                let mut core = lock(&self.core);
                let is_relieved = stall.is_over(&core);
                if is_relieved || self.gives_up(&mut core) {
                    let waited = self.node.now().saturating_sub(began);
                    let is_switching = core.switch.is_some();
                    core.history.waited(waited, is_switching);
                    return is_relieved;
                }
                self.wake_driver_in_time(&core);
            }
            relief.await;
        }
    }

    /// Whether appends have waited for long enough.
    fn gives_up(&self, core: &mut Core<F>) -> bool {
        let now = self.node.now();
        let since = *core.stalled_since.get_or_insert_with(|| {
            self.stalled.notify_waiters();
            now
        });
        core.is_closed
            || core.driver == DriverState::Gone
            || now.saturating_sub(since) >= self.settings.longest_wait
    }
}

/// How long a preparation leaves the disk to appends at a time.
const PAUSE: Duration = Duration::from_millis(1);

#[async_trait]
impl<F: FileSystem> Pace for Shared<F> {
    /// There is no pause where an append waits, or another log for its turn to prepare.
    async fn pause(&self) {
        let stalled = self.stalled.notified();
        let (_, others) = self.node.preparations();
        if others > 0 || lock(&self.core).stalled_since.is_some() {
            return;
        }
        tokio::select! {
            () = stalled => {}
            () = self.node.clock().sleep(PAUSE) => {}
        }
    }
}

impl Stall {
    fn is_over<F: FileSystem>(self, core: &Core<F>) -> bool {
        core.switch.is_some()
            || match (self, core.roll.state()) {
                (_, State::Stopped) => true,
                (Self::Full, state) => state != State::Backpressure,
                (Self::Ended, _) => false,
            }
    }
}
