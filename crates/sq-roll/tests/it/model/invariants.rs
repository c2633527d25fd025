//! What holds in every world.

use std::ops::Range;

use super::chain::{SLOTS, Stage};
use super::world::{OFFSETS, World};

impl World {
    /// I1: the chain's segments follow each other without gap or overlap, the active one last, and
    /// files begin where the metadata says.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut chain: Vec<(u8, u8, u8)> = self.chain().collect();
        // An empty segment has the base of the one behind it, which the active one is at the latest.
        chain.sort_by_key(|(slot, base, end)| (*base, self.is_active(*slot), *end));
        let mut next = 0;
        for (slot, base, end) in chain {
            let elsewhere = |broker| {
                self.file(broker, slot)
                    .is_some_and(|file| file.base != base)
            };
            if base != next || self.replicas(slot).any(elsewhere) {
                return false;
            }
            next = end;
        }
        next == u8::MAX
    }

    /// The sealed segments and the active one: slot, base, end.
    fn chain(&self) -> impl Iterator<Item = (u8, u8, u8)> + '_ {
        let sealed = self.meta.slots(Stage::Sealed);
        let sealed = sealed.map(|slot| (slot, self.meta.at(slot).base, self.meta.at(slot).end));
        let active = self.meta.slots(Stage::Active);
        sealed.chain(active.map(|slot| (slot, self.meta.at(slot).base, u8::MAX)))
    }

    fn is_active(&self, slot: u8) -> bool {
        self.meta.at(slot).stage == Stage::Active
    }

    /// I2: what was acknowledged is at its offset, with the same bytes, on every replica of the sealed
    /// segment that covers it, or of one of the unsealed.
    pub(super) fn keeps_what_it_acknowledged(&self) -> bool {
        (0..)
            .zip(&self.acknowledged)
            .filter(|(_, record)| **record != 0)
            .all(|(at, record)| {
                let whole = |slot| {
                    self.payload(slot, at) == *record
                        && self
                            .replicas(slot)
                            .all(|broker| self.covers(broker, slot, at..at + 1))
                };
                let covers = |slot: &u8| {
                    let sealed = self.meta.at(*slot);
                    sealed.base <= at && at < sealed.end
                };
                match self.meta.slots(Stage::Sealed).find(covers) {
                    Some(sealed) => whole(sealed),
                    None => self
                        .meta
                        .slots(Stage::Active)
                        .chain(self.meta.slots(Stage::Prepared))
                        .any(whole),
                }
            })
    }

    fn covers(&self, broker: u8, slot: u8, offsets: Range<u8>) -> bool {
        let file = self.file(broker, slot);
        file.is_some_and(|file| file.base <= offsets.start && offsets.end <= file.end)
    }

    /// Every replica of a sealed segment has all of it.
    pub(super) fn seals_whole_segments(&self) -> bool {
        self.meta.slots(Stage::Sealed).all(|slot| {
            let sealed = self.meta.at(slot);
            let (base, end) = (sealed.base, sealed.end);
            base == end
                || self
                    .replicas(slot)
                    .all(|broker| self.covers(broker, slot, base..end))
        })
    }

    /// I6: a segment has one successor at most, and one that is prepared is known to the leader: it
    /// will use it or have it removed.
    pub(super) fn has_no_stray_successor(&self) -> bool {
        let prepared: Vec<u8> = self.meta.slots(Stage::Prepared).collect();
        if prepared.len() > 1 {
            return false;
        }
        let Some(roll) = self.roll(self.meta.epoch).filter(|_| self.meta.elected) else {
            return true;
        };
        prepared.iter().all(|slot| {
            let id = super::world::segment(*slot);
            roll.successor() == Some(id) || roll.active() == id
        })
    }

    pub(super) fn is_well(&self) -> bool {
        self.is_contiguous() && self.keeps_what_it_acknowledged() && self.seals_whole_segments()
    }

    /// I4: no sealed segment of `before` changed.
    pub(super) fn keeps_the_seals_of(&self, before: &World) -> bool {
        (0..SLOTS).all(|slot| {
            let (old, new) = (&before.meta.chain[slot], &self.meta.chain[slot]);
            old.stage != Stage::Sealed || old == new
        })
    }

    /// How many offsets were acknowledged.
    pub(super) fn acknowledged_count(&self) -> usize {
        (0..OFFSETS)
            .take_while(|at| self.acknowledged[*at] != 0)
            .count()
    }
}
