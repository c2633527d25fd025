//! How the writer follows the machine from segment to segment, and the machine the writer.

use sq_sim::FileSystem;
use sq_storage::Result;

use super::writer::RollingWriter;
use crate::node::lock;
use crate::{Event, SegmentId, State, Switch};

/// How the writer stands to what the machine says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// The active segment takes writes, or nothing is written any more.
    Good,
    /// It takes none any more, and there is no other yet.
    Ended,
}

/// What brings the writer to where the machine is.
enum Step {
    None(Condition),
    Switch(Switch),
    Begin(SegmentId),
}

impl<F: FileSystem> RollingWriter<F> {
    /// Brings the writer to where the machine is, and tells the machine what became of the segment.
    pub(super) async fn take_over(&mut self) -> Result<Condition> {
        loop {
            match self.next_step() {
                Step::None(condition) => return Ok(condition),
                Step::Switch(switch) => self.make_switch(&switch).await,
                Step::Begin(segment) => self.writer.begin(segment.0).await?,
            }
        }
    }

    fn next_step(&mut self) -> Step {
        let shared = &*self.shared;
        let mut core = lock(&shared.core);
        let active = self.writer.active_segment();
        let segment = core.roll.active();
        // What was dropped in the middle of its write has ended the segment.
        if shared.withdraw(&mut core) && active.is_none_or(|active| active.id != segment.0) {
            self.has_failed = true;
        }
        loop {
            if let Some(switch) = &core.switch {
                return Step::Switch(switch.clone());
            }
            if core.roll.state() == State::Stopped {
                return Step::None(Condition::Good);
            }
            let segment = core.roll.active();
            if let Some(active) = active
                && active.id == segment.0
            {
                self.is_begun = true;
                shared.account(&mut core, active.bytes);
                return Step::None(Condition::Good);
            }
            let is_empty = core.roll.next_offset() == core.roll.active_base();
            if is_empty && !self.is_begun {
                return Step::Begin(segment);
            }
            if core.roll.is_ending() {
                return Step::None(Condition::Ended);
            }
            // Retention ends a segment in good order.
            let event = if self.has_failed || is_empty {
                Event::ReplicaFailed { segment }
            } else {
                Event::SealRequested
            };
            self.has_failed = false;
            let _ = shared.tell(&mut core, event);
        }
    }

    /// Whether the writer writes the machine's active segment.
    pub(super) fn is_in_step(&self) -> bool {
        let segment = lock(&self.shared.core).roll.active();
        let active = self.writer.active_segment();
        active.is_some_and(|active| active.id == segment.0)
    }

    /// Makes a switch that the machine has decided on.
    pub(super) async fn make_switch(&mut self, switch: &Switch) {
        let segment = switch.from;
        if self.writer.unsynced_since().is_some() && self.writer.active_segment().is_some() {
            // What a failure leaves is seen below.
            let _ = self.writer.sync().await;
        }
        // A sync that was under way when the switch was decided on tells nothing, nor how it ended.
        let end = self.writer.durable_offset();
        self.tell(Event::Durable { segment, end });
        if end < switch.end {
            self.tell(Event::ReplicaFailed { segment });
            return;
        }
        let prepared = lock(&self.shared.core).prepared.take();
        if let Some(prepared) = prepared {
            // None is armed, unless the switch to it came to nothing.
            drop(self.writer.disarm());
            let _ = self.writer.arm(prepared);
        }
        if self.writer.unsynced_since().is_some()
            && let Err(error) = self.writer.sync().await
        {
            tracing::warn!(%error, "acknowledged records are not on a disk yet");
        }
        if self.writer.armed() == Some(switch.to.0) {
            self.writer.switch();
        }
        self.is_begun = true;
        self.has_failed = false;
        let active = self.writer.active_segment();
        let mut core = lock(&self.shared.core);
        core.switch = None;
        if let Some(active) = active
            && active.id == core.roll.active().0
        {
            self.shared.account(&mut core, active.bytes);
        }
    }

    fn tell(&self, event: Event) {
        let _ = self.shared.tell(&mut lock(&self.shared.core), event);
    }
}
