//! Leaving a segment: the switch, what is acknowledged meanwhile, the seal, and going back.

use super::{Old, Roll, Segment, SegmentId, Successor, Ticket, Trigger};
use crate::mutants::Guard;
use crate::{Action, Switch};

impl Roll {
    /// Binds the successor to the active segment's end and goes on there, if it is ready.
    pub(super) fn switch(&mut self, actions: &mut Vec<Action>) {
        let to = match self.successor {
            Successor::Ready { id } => id,
            Successor::Asked { id, .. } if !self.has(Guard::Readiness) => id,
            _ => return,
        };
        if self.old.is_some() {
            return;
        }
        // What a failed replica may lack goes out again on the successor.
        let end = if self.active.failed && self.has(Guard::CutAtCommitted) {
            self.committed
        } else if self.active.failed {
            self.active.base
        } else {
            self.next
        };
        let fresh = Segment::new(to, self.bind(end));
        let segment = std::mem::replace(&mut self.active, fresh);
        self.successor = Successor::None;
        actions.push(Action::Switch(Switch {
            from: segment.id,
            to,
            end,
            reissue: end..self.next,
            trigger: segment.trigger.unwrap_or(Trigger::Size),
            overrun_bytes: segment.bytes.saturating_sub(self.limits.cap_bytes),
        }));
        self.old = Some(Old {
            segment,
            end,
            seal: None,
        });
        self.relieve(actions);
    }

    /// Where the successor of a segment that ends at `end` begins.
    #[cfg_attr(
        not(feature = "mutants"),
        expect(clippy::unused_self, reason = "it has every guard")
    )]
    fn bind(&self, end: u64) -> u64 {
        #[cfg(feature = "mutants")]
        if !self.has(Guard::BaseAtSwitch) {
            return self.guessed;
        }
        end
    }

    pub(super) fn durable(&mut self, segment: SegmentId, end: u64) {
        let old = self.old.as_mut().map(|old| &mut old.segment);
        for written in [Some(&mut self.active), old].into_iter().flatten() {
            if written.id == segment {
                written.durable = written.durable.max(end.min(self.next));
            }
        }
    }

    /// Acknowledges what every replica of its segment has, in order.
    pub(super) fn commit(&mut self, actions: &mut Vec<Action>) {
        let mut end = self.active.durable;
        if let Some(old) = &self.old
            && old.segment.durable < old.end
            && self.has(Guard::Order)
        {
            end = old.segment.durable;
        }
        if let Some(hold) = self.successor.hold()
            && self.has(Guard::Hold)
        {
            end = end.min(hold);
        }
        if end > self.committed {
            self.committed = end;
            actions.push(Action::Commit { end });
        }
    }

    /// Asks for the seal once the old segment is whole. After that there is no way back.
    pub(super) fn ask_for_seal(&mut self, actions: &mut Vec<Action>) {
        let again = self.now.saturating_add(self.patience.answer);
        let epoch = self.epoch;
        let whole = !self.has(Guard::SealWhenWhole);
        let same_end = self.has(Guard::SameEnd);
        let Some(old) = &mut self.old else { return };
        if old.seal.is_none() && (self.committed >= old.end || whole) {
            let end = if same_end { old.end } else { self.committed };
            old.seal = Some(again);
            actions.push(Action::Seal {
                segment: Ticket {
                    segment: old.segment.id,
                    epoch,
                },
                end,
                successor: self.active.id,
            });
        }
    }

    pub(super) fn sealed(&mut self, segment: Ticket, actions: &mut Vec<Action>) {
        if let Some(old) = &self.old
            && old.seal.is_some()
            && self.fits(segment, old.segment.id)
        {
            actions.push(Action::Finish {
                segment: old.segment.id,
            });
            self.old = None;
        }
    }

    pub(super) fn replica_failed(&mut self, segment: SegmentId, actions: &mut Vec<Action>) {
        if self.active.id == segment {
            self.active.fail();
            return;
        }
        let open = !self.has(Guard::SealIsFinal);
        let reopens = |old: &mut Old| old.segment.id == segment && (old.seal.is_none() || open);
        if self.has(Guard::Reopen)
            && let Some(old) = self.old.take_if(reopens)
        {
            self.reopen(old, actions);
        }
    }

    /// The old segment lost a replica before it was whole, so it can't be sealed where it was to end.
    fn reopen(&mut self, old: Old, actions: &mut Vec<Action>) {
        let abandoned = std::mem::replace(&mut self.active, old.segment);
        self.active.fail();
        actions.push(Action::Reopen {
            segment: self.active.id,
            abandoned: abandoned.id,
            reissue: old.end..self.next,
        });
        self.abandon(abandoned.id, Some(old.end), actions);
    }
}

impl Segment {
    fn fail(&mut self) {
        self.failed = true;
        self.at_once = true;
        self.trigger = Some(Trigger::Failure);
    }
}
