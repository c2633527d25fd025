//! What others see of a log's rolls, and ask of them.

use std::sync::Arc;

use sq_sim::FileSystem;

use super::record::RollRecord;
use super::shared::Shared;
use crate::node::lock;
use crate::{Epoch, Event, SegmentId, State};

/// What others see of a log's rolls, and ask of them. Cheap to clone.
pub struct RollHandle<F: FileSystem> {
    pub(super) shared: Arc<Shared<F>>,
}

impl<F: FileSystem> Clone for RollHandle<F> {
    fn clone(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        Self { shared }
    }
}

impl<F: FileSystem> std::fmt::Debug for RollHandle<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let core = lock(&self.shared.core);
        f.debug_struct("RollHandle")
            .field("roll", &core.roll)
            .field("switch", &core.switch)
            .field("driver", &core.driver)
            .finish_non_exhaustive()
    }
}

impl<F: FileSystem> RollHandle<F> {
    /// What the log is doing about its next roll.
    pub fn state(&self) -> State {
        lock(&self.shared.core).roll.state()
    }

    /// The segment that takes appends.
    pub fn active(&self) -> SegmentId {
        lock(&self.shared.core).roll.active()
    }

    /// The records of the last rolls, the oldest first.
    pub fn records(&self) -> Vec<Arc<RollRecord>> {
        lock(&self.shared.core).history.records()
    }

    /// Ends the active segment, however small, if it holds a record: asks for a successor, and returns
    /// when the next append, or [`RollingWriter::settle`](super::RollingWriter::settle), goes there. No
    /// append waits for it.
    pub async fn seal(&self) {
        let segment = {
            let mut core = lock(&self.shared.core);
            let segment = core.roll.active();
            self.shared.tell_between(&mut core, Event::SealRequested);
            segment
        };
        loop {
            let relief = self.shared.relief.notified();
            {
                let core = lock(&self.shared.core);
                let is_over = core.roll.active() != segment
                    || !core.roll.is_ending() && core.inbox.is_empty()
                    || core.roll.state() == State::Stopped
                    || core.is_closed;
                if is_over {
                    return;
                }
            }
            relief.await;
        }
    }

    /// A leader of a newer epoch is there: appends fail from now on, and what was prepared is removed.
    pub fn fence(&self, epoch: Epoch) {
        self.tell(Event::Fenced { epoch });
    }

    /// The partition is deleted: as [`fence`](Self::fence).
    pub fn delete(&self) {
        self.tell(Event::Deleted);
    }

    fn tell(&self, event: Event) {
        self.shared
            .tell_between(&mut lock(&self.shared.core), event);
    }
}
