//! A partition's chain of segments, as the properties look at it.

use crate::metadata::Meta;

/// How many segments a world has room for.
pub(crate) const SLOTS: usize = 10;
/// No segment, no offset, no epoch.
pub(crate) const NONE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Unknown,
    Prepared,
    Active,
    Sealed,
    Abandoned,
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Placed {
    pub(crate) stage: Stage,
    /// A bit for each broker.
    pub(crate) replicas: u8,
    pub(crate) predecessor: u8,
    pub(crate) base: u8,
    pub(crate) end: u8,
    /// A leader's seal did it, not a failover.
    pub(crate) by_seal: bool,
}

pub(crate) const UNPLACED: Placed = Placed {
    stage: Stage::Unknown,
    replicas: 0,
    predecessor: NONE,
    base: NONE,
    end: NONE,
    by_seal: false,
};

/// What a failover decided, offsets held exclusively.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    /// Kept up to here.
    pub(crate) keep: u8,
    /// Where the successor begins, if it counts.
    pub(crate) successor_base: Option<u8>,
}

/// How the world looks at the chain, whatever applies the commands to it.
impl Meta {
    pub(crate) fn at(&self, slot: u8) -> &Placed {
        &self.chain[usize::from(slot)]
    }

    pub(crate) fn slots(&self, stage: Stage) -> impl Iterator<Item = u8> + '_ {
        (0..)
            .zip(&self.chain)
            .filter(move |(_, placed)| placed.stage == stage)
            .map(|(slot, _)| slot)
    }

    /// How many segments there ever were.
    pub(crate) fn placed(&self) -> usize {
        self.chain
            .iter()
            .filter(|placed| placed.stage != Stage::Unknown)
            .count()
    }
}
