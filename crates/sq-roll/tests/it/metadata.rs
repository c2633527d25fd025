//! The metadata log's part, modelled: a partition's chain, and the guards of its five commands.

use crate::model::chain::{Placed, SLOTS, Stage, UNPLACED, Verdict};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Meta {
    pub(crate) epoch: u8,
    pub(crate) elected: bool,
    pub(crate) chain: [Placed; SLOTS],
}

impl Meta {
    pub(crate) fn new(replicas: u8) -> Self {
        let mut chain = [UNPLACED; SLOTS];
        chain[0] = Placed {
            stage: Stage::Active,
            replicas,
            base: 0,
            ..UNPLACED
        };
        Self {
            epoch: 1,
            elected: true,
            chain,
        }
    }

    fn at_mut(&mut self, slot: u8) -> &mut Placed {
        &mut self.chain[usize::from(slot)]
    }

    pub(crate) fn active(&self) -> Option<u8> {
        self.slots(Stage::Active).next()
    }

    pub(crate) fn prepared_after(&self, slot: u8) -> Option<u8> {
        self.slots(Stage::Prepared)
            .find(|other| self.at(*other).predecessor == slot)
    }

    fn is_current(&self, epoch: u8) -> bool {
        self.elected && self.epoch == epoch
    }

    /// What a request of now will say, so that it does nothing once it is late. Here ids are told apart
    /// for ever, and so none needs to.
    #[expect(clippy::unused_self, reason = "another metadata has to look")]
    pub(crate) fn attempt(&self) -> u32 {
        0
    }

    /// `again`: without the guard that an id is prepared once only.
    pub(crate) fn prepare(
        &mut self,
        slot: u8,
        predecessor: u8,
        replicas: u8,
        (epoch, _attempt): (u8, u32),
        again: bool,
    ) -> bool {
        let fresh = match self.at(slot).stage {
            Stage::Unknown => true,
            Stage::Abandoned => again,
            _ => false,
        };
        let applies = self.is_current(epoch)
            && fresh
            && self.at(predecessor).stage == Stage::Active
            && self.prepared_after(predecessor).is_none();
        if applies {
            *self.at_mut(slot) = Placed {
                stage: Stage::Prepared,
                replicas,
                predecessor,
                ..UNPLACED
            };
        }
        applies
    }

    /// `again`: without the guard that a sealed segment stays as it is.
    pub(crate) fn seal(
        &mut self,
        slot: u8,
        end: u8,
        successor: u8,
        epoch: u8,
        again: bool,
    ) -> bool {
        if again && self.at(slot).stage == Stage::Sealed {
            self.at_mut(slot).end = end;
            return true;
        }
        let next = self.at(successor);
        let applies = self.is_current(epoch)
            && self.at(slot).stage == Stage::Active
            && next.stage == Stage::Prepared
            && next.predecessor == slot;
        if applies {
            let sealed = self.at_mut(slot);
            (sealed.stage, sealed.end, sealed.by_seal) = (Stage::Sealed, end, true);
            let next = self.at_mut(successor);
            (next.stage, next.base) = (Stage::Active, end);
        }
        applies
    }

    pub(crate) fn abandon(&mut self, slot: u8, epoch: u8) -> bool {
        let applies = self.is_current(epoch) && self.at(slot).stage == Stage::Prepared;
        if applies {
            self.at_mut(slot).stage = Stage::Abandoned;
        }
        applies
    }

    pub(crate) fn begin_failover(&mut self) {
        self.epoch += 1;
        self.elected = false;
    }

    /// `ends` holds what the failover keeps and `known` the highest commit it knows; `fresh` takes what
    /// lies between.
    pub(crate) fn elect(
        &mut self,
        epoch: u8,
        ends: Verdict,
        known: u8,
        fresh: u8,
        (_leader, replicas): (u8, u8),
    ) -> bool {
        let Some(active) = self
            .active()
            .filter(|_| self.epoch == epoch && !self.elected)
        else {
            return false;
        };
        let successor = self.prepared_after(active);
        let bound = ends.successor_base.filter(|base| known > *base);
        self.end_at(active, self.at(active).base, bound.unwrap_or(known));
        if let Some(successor) = successor {
            match bound {
                Some(base) => self.end_at(successor, base, known),
                None => self.at_mut(successor).stage = Stage::Dropped,
            }
        }
        *self.at_mut(fresh) = Placed {
            stage: Stage::Active,
            replicas,
            base: known,
            ..UNPLACED
        };
        self.elected = true;
        true
    }

    fn end_at(&mut self, slot: u8, base: u8, end: u8) {
        let placed = self.at_mut(slot);
        placed.stage = if base == end {
            Stage::Dropped
        } else {
            Stage::Sealed
        };
        (placed.base, placed.end) = (base, end);
    }
}
