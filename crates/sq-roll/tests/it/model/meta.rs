//! The metadata log's part: a partition's chain, and the guards of its five commands.

/// How many segments a world has room for.
pub(super) const SLOTS: usize = 10;
/// No segment, no offset, no epoch.
pub(super) const NONE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Unknown,
    Prepared,
    Active,
    Sealed,
    Abandoned,
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Placed {
    pub(super) stage: Stage,
    /// A bit for each broker.
    pub(super) replicas: u8,
    pub(super) predecessor: u8,
    pub(super) base: u8,
    pub(super) end: u8,
    /// A leader's seal did it, not a failover.
    pub(super) by_seal: bool,
}

pub(super) const UNPLACED: Placed = Placed {
    stage: Stage::Unknown,
    replicas: 0,
    predecessor: NONE,
    base: NONE,
    end: NONE,
    by_seal: false,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Meta {
    pub(super) epoch: u8,
    pub(super) elected: bool,
    pub(super) chain: [Placed; SLOTS],
}

/// What a failover decided, offsets held exclusively.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    /// Kept up to here.
    pub(super) keep: u8,
    /// Where the successor begins, if it counts.
    pub(super) successor_base: Option<u8>,
}

impl Meta {
    pub(super) fn new(replicas: u8) -> Self {
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

    pub(super) fn at(&self, slot: u8) -> &Placed {
        &self.chain[usize::from(slot)]
    }

    fn at_mut(&mut self, slot: u8) -> &mut Placed {
        &mut self.chain[usize::from(slot)]
    }

    pub(super) fn slots(&self, stage: Stage) -> impl Iterator<Item = u8> + '_ {
        (0..)
            .zip(&self.chain)
            .filter(move |(_, placed)| placed.stage == stage)
            .map(|(slot, _)| slot)
    }

    /// How many segments there ever were.
    pub(super) fn placed(&self) -> usize {
        self.chain
            .iter()
            .filter(|placed| placed.stage != Stage::Unknown)
            .count()
    }

    pub(super) fn active(&self) -> Option<u8> {
        self.slots(Stage::Active).next()
    }

    pub(super) fn prepared_after(&self, slot: u8) -> Option<u8> {
        self.slots(Stage::Prepared)
            .find(|other| self.at(*other).predecessor == slot)
    }

    fn is_current(&self, epoch: u8) -> bool {
        self.elected && self.epoch == epoch
    }

    /// `again`: without the guard that an id is prepared once only.
    pub(super) fn prepare(
        &mut self,
        slot: u8,
        predecessor: u8,
        replicas: u8,
        epoch: u8,
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
    pub(super) fn seal(
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

    pub(super) fn abandon(&mut self, slot: u8, epoch: u8) -> bool {
        let applies = self.is_current(epoch) && self.at(slot).stage == Stage::Prepared;
        if applies {
            self.at_mut(slot).stage = Stage::Abandoned;
        }
        applies
    }

    pub(super) fn begin_failover(&mut self) {
        self.epoch += 1;
        self.elected = false;
    }

    /// `ends` holds what the failover keeps and `known` the highest commit it knows; `fresh` takes what
    /// lies between.
    pub(super) fn elect(
        &mut self,
        epoch: u8,
        ends: Verdict,
        known: u8,
        fresh: u8,
        replicas: u8,
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
