//! The one successor: asked for, ready, or being abandoned.

use std::time::Duration;

use super::{Roll, SegmentId, Ticket, Trigger};
use crate::mutants::Guard;
use crate::{Action, PrepareFailure};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Successor {
    None,
    /// Asked for, and asked for again at `again`.
    Asked {
        id: SegmentId,
        again: Duration,
    },
    /// A try failed. The next is made at `again`, under the same id.
    Pausing {
        id: SegmentId,
        again: Duration,
    },
    Ready {
        id: SegmentId,
    },
    /// Never to be used. `hold`: it was written to, and nothing from that offset on is acknowledged
    /// before its abandonment is committed.
    Abandoning {
        id: SegmentId,
        again: Duration,
        hold: Option<u64>,
    },
}

impl Successor {
    pub(super) fn id(self) -> Option<SegmentId> {
        match self {
            Self::None => None,
            Self::Asked { id, .. }
            | Self::Pausing { id, .. }
            | Self::Ready { id }
            | Self::Abandoning { id, .. } => Some(id),
        }
    }

    pub(super) fn unwritten(self) -> Option<SegmentId> {
        match self {
            Self::Abandoning { hold: Some(_), .. } => None,
            other => other.id(),
        }
    }

    pub(super) fn is_ready(self) -> bool {
        matches!(self, Self::Ready { .. })
    }

    pub(super) fn is_asked(self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Pausing { .. })
    }

    pub(super) fn hold(self) -> Option<u64> {
        match self {
            Self::Abandoning { hold, .. } => hold,
            _ => None,
        }
    }

    pub(super) fn deadline(self) -> Option<Duration> {
        match self {
            Self::Asked { again, .. }
            | Self::Pausing { again, .. }
            | Self::Abandoning { again, .. } => Some(again),
            Self::None | Self::Ready { .. } => None,
        }
    }
}

impl Roll {
    /// Begins a preparation if one is due. Not while the segment before the active one is unsealed:
    /// at most two segments of a partition are.
    pub(super) fn ask_for_successor(
        &mut self,
        actions: &mut Vec<Action>,
        draw: &mut dyn FnMut() -> SegmentId,
    ) {
        let due = self.active.trigger.is_some() && self.now >= self.pause_until;
        if due && self.old.is_none() && self.successor == Successor::None {
            let id = draw();
            #[cfg(feature = "mutants")]
            if !self.has(Guard::BaseAtSwitch) {
                self.guessed = self.next;
            }
            self.request(id, actions);
        }
    }

    fn request(&mut self, id: SegmentId, actions: &mut Vec<Action>) {
        self.successor = Successor::Asked {
            id,
            again: self.again(),
        };
        actions.push(Action::Request {
            successor: self.ticket(id),
            predecessor: self.active.id,
            trigger: self.active.trigger.unwrap_or(Trigger::Size),
        });
    }

    fn again(&self) -> Duration {
        self.now.saturating_add(self.patience.answer)
    }

    /// Makes the requests again that were not answered in time.
    pub(super) fn repeat(
        &mut self,
        actions: &mut Vec<Action>,
        draw: &mut dyn FnMut() -> SegmentId,
    ) {
        match self.successor {
            Successor::Asked { id, again } | Successor::Pausing { id, again }
                if again <= self.now =>
            {
                let id = if self.has(Guard::SameId) { id } else { draw() };
                self.request(id, actions);
            }
            Successor::Abandoning { id, again, hold } if again <= self.now => {
                self.abandon(id, hold, actions);
            }
            _ => {}
        }
        if let Some(old) = &mut self.old
            && old.seal.is_some_and(|again| again <= self.now)
        {
            old.seal = None;
        }
    }

    pub(super) fn ready(&mut self, successor: Ticket) {
        if let Successor::Asked { id, .. } | Successor::Pausing { id, .. } = self.successor
            && self.fits(successor, id)
        {
            self.successor = Successor::Ready { id };
            self.pause = self.patience.pause;
        }
    }

    pub(super) fn prepare_failed(
        &mut self,
        successor: Ticket,
        failure: PrepareFailure,
        actions: &mut Vec<Action>,
    ) {
        let Some(id) = self.successor.id().filter(|id| self.fits(successor, *id)) else {
            return;
        };
        match (self.successor, failure) {
            (Successor::Asked { .. }, PrepareFailure::Retry) => {
                let again = self.pause_before_next();
                self.successor = Successor::Pausing { id, again };
            }
            // A successor that was ready can still lose a replica before it is used.
            (
                Successor::Asked { .. } | Successor::Pausing { .. } | Successor::Ready { .. },
                PrepareFailure::Final,
            ) => {
                self.pause_until = self.pause_before_next();
                if self.has(Guard::CleanUp) {
                    self.abandon(id, None, actions);
                } else {
                    self.successor = Successor::None;
                }
            }
            _ => {}
        }
    }

    /// When the next try is due. Each pause is twice as long as the one before.
    fn pause_before_next(&mut self) -> Duration {
        let until = self.now.saturating_add(self.pause);
        self.pause = self
            .pause
            .saturating_mul(2)
            .min(self.patience.longest_pause);
        until
    }

    pub(super) fn abandon(&mut self, id: SegmentId, hold: Option<u64>, actions: &mut Vec<Action>) {
        self.successor = Successor::Abandoning {
            id,
            again: self.again(),
            hold,
        };
        actions.push(Action::Abandon {
            successor: self.ticket(id),
        });
        if !self.has(Guard::Abandoned) {
            self.successor = Successor::Ready { id };
        }
    }

    pub(super) fn abandoned(&mut self, successor: Ticket, actions: &mut Vec<Action>) {
        if let Successor::Abandoning { id, .. } = self.successor
            && self.fits(successor, id)
        {
            self.successor = Successor::None;
            actions.push(Action::Discard { segment: id });
        }
    }
}
