//! I7: from every state, with any one broker gone for good, a new record can be acknowledged.

use sq_roll::Roll;

use super::Bounds;
use super::chain::{NONE, SLOTS, Stage};
use super::steps::Step;
use super::world::{EPOCHS, World, slot};

impl World {
    /// From here on everything that is sent arrives, but for the broker that is gone. The leader has
    /// to manage if it is there, and another has to be able to take over in any case.
    pub(super) fn can_go_on(&self, bounds: &Bounds) -> bool {
        let roomy = Bounds {
            segments: SLOTS,
            offsets: bounds.offsets + 1,
            epochs: 200,
            ..*bounds
        };
        let brokers = if bounds.brokers > 1 {
            bounds.brokers
        } else {
            0
        };
        (0..brokers).chain([NONE]).all(|gone| {
            let healing = Healing {
                bounds: roomy,
                gone,
            };
            self.leader_is_there(gone) <= healing.leader_goes_on(&mut self.clone())
                && healing.fails_over(&mut self.clone())
        })
    }

    fn leader_is_there(&self, gone: u8) -> bool {
        let leader = self.leader(self.meta.epoch).filter(|_| self.meta.elected);
        leader.is_some_and(|leader| leader.roll.is_some() && leader.broker != gone)
    }
}

struct Healing {
    bounds: Bounds,
    gone: u8,
}

impl Healing {
    fn fails_over(&self, world: &mut World) -> bool {
        if usize::from(world.meta.epoch) + 1 >= EPOCHS {
            return true;
        }
        world.meta.begin_failover();
        for broker in self.alive() {
            world.fence(broker);
        }
        let Some(ends) = world.verdict() else {
            return false;
        };
        let known = *world.known_commits(ends).end();
        self.alive().any(|broker| {
            let elected = self
                .placement(broker)
                .is_some_and(|set| world.elect(&self.bounds, known, set, broker));
            elected && self.leader_goes_on(world)
        })
    }

    fn leader_goes_on(&self, world: &mut World) -> bool {
        let epoch = world.meta.epoch;
        let Some(goal) = world.roll(epoch).map(|roll| roll.next_offset() + 1) else {
            return false;
        };
        world.take(&self.bounds, Step::Append(epoch));
        for _ in 0..12 {
            self.carry_everything(world, epoch);
            match world.roll(epoch) {
                Some(roll) if roll.committed() >= goal && roll.unsealed().is_none() => return true,
                Some(_) => {}
                None => return false,
            }
        }
        false
    }

    /// All frames, commands and answers that are under way arrive.
    fn carry_everything(&self, world: &mut World, epoch: u8) {
        for written in Self::written(world, epoch) {
            self.carry_frames(world, epoch, written);
        }
        for at in 0..world.drawn {
            if world.sent(at).writer == epoch {
                self.carry_commands(world, epoch, at);
            }
        }
        world.take(&self.bounds, Step::Tick(epoch));
    }

    fn written(world: &World, epoch: u8) -> Vec<u8> {
        let ids = |roll: &Roll| [Some(roll.active()), roll.unsealed().map(|(old, _)| old)];
        let ids = world.roll(epoch).map(|roll| ids(roll)).unwrap_or_default();
        ids.into_iter().flatten().map(slot).collect()
    }

    fn carry_frames(&self, world: &mut World, epoch: u8, slot: u8) {
        for broker in world.replicas(slot).filter(|broker| *broker != self.gone) {
            while world.deliver(slot, broker) {}
        }
        world.take(&self.bounds, Step::Hear { epoch, slot });
        if self.lost(world, slot) {
            world.take(&self.bounds, Step::ReplicaFailed { epoch, slot });
        }
    }

    fn lost(&self, world: &World, slot: u8) -> bool {
        world.replicas(slot).any(|broker| broker == self.gone)
    }

    fn carry_commands(&self, world: &mut World, epoch: u8, slot: u8) {
        let bounds = &self.bounds;
        let sent = *world.sent(slot);
        let broker = world.leader(epoch).map_or(0, |leader| leader.broker);
        if sent.prepare
            && let Some(replicas) = self.placement(broker)
        {
            world.take(bounds, Step::ApplyPrepare { slot, replicas });
        }
        if sent.abandon {
            world.take(bounds, Step::ApplyAbandon { slot });
        }
        for (index, _) in (0..).zip(sent.seals.iter().flatten()) {
            world.take(bounds, Step::ApplySeal { slot, index });
        }
        let answer = match world.meta.at(slot).stage {
            Stage::Prepared if self.lost(world, slot) => Step::Unready { epoch, slot },
            Stage::Prepared => Step::Ready { epoch, slot },
            Stage::Abandoned => Step::HearAbandoned { epoch, slot },
            Stage::Sealed => Step::HearSealed { epoch, slot },
            _ => return,
        };
        world.take(bounds, answer);
    }

    fn placement(&self, broker: u8) -> Option<u8> {
        self.bounds
            .placements(broker, NONE)
            .find(|set| self.gone == NONE || set & (1 << self.gone) == 0)
    }

    fn alive(&self) -> impl Iterator<Item = u8> + use<> {
        let gone = self.gone;
        (0..self.bounds.brokers).filter(move |broker| *broker != gone)
    }
}
