//! What can happen next.

use sq_roll::{Epoch, Event, PrepareFailure, State};

use super::chain::{NONE, Stage};
use super::world::{BROKERS, Broken, File, NOTHING, Sent, World, segment};
use super::{Bounds, Careless};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A producer's record reaches a leader.
    Append(u8),
    /// The next frame of a segment reaches a replica's disk.
    Deliver {
        slot: u8,
        broker: u8,
    },
    /// A leader hears how far a segment is durable.
    Hear {
        epoch: u8,
        slot: u8,
    },
    ApplyPrepare {
        slot: u8,
        replicas: u8,
    },
    ApplyAbandon {
        slot: u8,
    },
    ApplySeal {
        slot: u8,
        index: u8,
    },
    /// A leader hears that its successor is ready.
    Ready {
        epoch: u8,
        slot: u8,
    },
    /// ... that it can never be.
    Unready {
        epoch: u8,
        slot: u8,
    },
    HearAbandoned {
        epoch: u8,
        slot: u8,
    },
    HearSealed {
        epoch: u8,
        slot: u8,
    },
    ReplicaFailed {
        epoch: u8,
        slot: u8,
    },
    SealRequested(u8),
    /// Every answer is overdue.
    Tick(u8),
    HearFenced(u8),
    /// A leader's broker crashes and comes back with what it had on disk.
    Crash(u8),
    BeginFailover,
    Fence {
        broker: u8,
    },
    Elect {
        known: u8,
        replicas: u8,
        broker: u8,
    },
}

impl World {
    /// Everything that can happen, and some things that can't.
    pub(super) fn steps(&self, bounds: &Bounds, steps: &mut Vec<Step>) {
        for epoch in 1..=self.meta.epoch {
            self.leader_steps(bounds, epoch, steps);
        }
        for slot in 0..self.drawn {
            self.segment_steps(bounds, slot, steps);
        }
        if self.meta.epoch < bounds.epochs {
            steps.push(Step::BeginFailover);
        }
        if self.meta.elected {
            return;
        }
        if let Some(active) = self.meta.active() {
            let successor = self.meta.prepared_after(active);
            for slot in [Some(active), successor].into_iter().flatten() {
                steps.extend(self.replicas(slot).map(|broker| Step::Fence { broker }));
            }
        }
        if let Some(ends) = self.verdict() {
            for known in self.known_commits(ends) {
                for broker in bounds.new_leaders(self.meta.epoch) {
                    for replicas in bounds.placements(broker, self.meta.epoch) {
                        steps.push(Step::Elect {
                            known,
                            replicas,
                            broker,
                        });
                    }
                }
            }
        }
    }

    fn leader_steps(&self, bounds: &Bounds, epoch: u8, steps: &mut Vec<Step>) {
        let Some(roll) = self.roll(epoch) else { return };
        if roll.next_offset() < u64::from(bounds.offsets) {
            steps.push(Step::Append(epoch));
        }
        let written = [Some(roll.active()), roll.unsealed().map(|(old, _)| old)];
        for id in written.into_iter().flatten() {
            let slot = super::world::slot(id);
            steps.push(Step::Hear { epoch, slot });
            // A failure that is known before the successor is ready changes nothing that one known
            // right after that doesn't.
            if id != roll.active() || roll.state() == State::Armed || self.is_empty(slot) {
                steps.push(Step::ReplicaFailed { epoch, slot });
            }
        }
        for slot in 0..self.drawn {
            match self.meta.at(slot).stage {
                Stage::Unknown => {}
                Stage::Abandoned => steps.push(Step::HearAbandoned { epoch, slot }),
                Stage::Sealed => steps.push(Step::HearSealed { epoch, slot }),
                _ => {
                    steps.push(Step::Ready { epoch, slot });
                    steps.push(Step::Unready { epoch, slot });
                }
            }
        }
        if bounds.seal_requests {
            steps.push(Step::SealRequested(epoch));
        }
        if bounds.ticks {
            steps.push(Step::Tick(epoch));
        }
        if self.meta.epoch > epoch {
            steps.push(Step::HearFenced(epoch));
        }
        if self.crashes > 0 {
            steps.push(Step::Crash(epoch));
        }
    }

    fn segment_steps(&self, bounds: &Bounds, slot: u8, steps: &mut Vec<Step>) {
        let sent = self.sent(slot);
        if self.is_awaited(slot) {
            steps.extend(
                self.replicas(slot)
                    .map(|broker| Step::Deliver { slot, broker }),
            );
        }
        if sent.writer != self.meta.epoch || !self.meta.elected {
            return;
        }
        if sent.prepare {
            let broker = self.leader(sent.writer).map_or(0, |leader| leader.broker);
            for replicas in bounds.placements(broker, sent.writer) {
                steps.push(Step::ApplyPrepare { slot, replicas });
            }
        }
        if sent.abandon {
            steps.push(Step::ApplyAbandon { slot });
        }
        for (index, _) in (0..).zip(sent.seals.iter().flatten()) {
            steps.push(Step::ApplySeal { slot, index });
        }
    }

    fn is_empty(&self, slot: u8) -> bool {
        self.sent(slot)
            .frames
            .is_none_or(|frames| frames.base == frames.end)
    }

    /// Whether anybody would still take notice of a frame of that segment.
    fn is_awaited(&self, slot: u8) -> bool {
        let id = segment(slot);
        let unsealed = matches!(self.meta.at(slot).stage, Stage::Active | Stage::Prepared);
        unsealed
            || (1..=self.meta.epoch)
                .filter_map(|epoch| self.roll(epoch))
                .any(|roll| {
                    roll.active() == id
                        || roll.successor() == Some(id)
                        || roll.unsealed().is_some_and(|(old, _)| old == id)
                })
    }

    pub(super) fn take(&mut self, bounds: &Bounds, step: Step) -> bool {
        match step {
            Step::Append(epoch) => self.tell(
                epoch,
                Event::Append {
                    bytes: 1,
                    records: 1,
                },
            ),
            Step::Deliver { slot, broker } => {
                (bounds.replicas > 1 || self.is_next_on_disk(slot)) && self.deliver(slot, broker)
            }
            Step::Hear { epoch, slot } => {
                let end = u64::from(self.durable(slot));
                self.tell(
                    epoch,
                    Event::Durable {
                        segment: segment(slot),
                        end,
                    },
                )
            }
            Step::ApplyPrepare { slot, replicas } => {
                let sent = *self.sent(slot);
                let again = bounds.careless == Some(Careless::PreparesAgain);
                if self.meta.placed() >= bounds.segments {
                    return false;
                }
                // A leader that did not wait has chosen them already.
                let guessed = self.meta.at(slot).replicas;
                let replicas = if guessed == 0 || again {
                    replicas
                } else {
                    guessed
                };
                self.meta.prepare(
                    slot,
                    sent.predecessor,
                    replicas,
                    (sent.writer, sent.attempt),
                    again,
                )
            }
            Step::ApplyAbandon { slot } => self.meta.abandon(slot, self.sent(slot).writer),
            Step::ApplySeal { slot, index } => {
                let sent = *self.sent(slot);
                let again = bounds.careless == Some(Careless::SealsAgain);
                sent.seals[usize::from(index)].is_some_and(|(end, successor)| {
                    self.meta.seal(slot, end, successor, sent.writer, again)
                })
            }
            Step::Ready { epoch, slot } => self.tell(
                epoch,
                Event::Ready {
                    successor: Self::ticket(epoch, slot),
                },
            ),
            Step::Unready { epoch, slot } => {
                let (successor, failure) = (Self::ticket(epoch, slot), PrepareFailure::Final);
                self.tell(epoch, Event::PrepareFailed { successor, failure })
            }
            Step::HearAbandoned { epoch, slot } => self.tell(
                epoch,
                Event::Abandoned {
                    successor: Self::ticket(epoch, slot),
                },
            ),
            Step::HearSealed { epoch, slot } => {
                self.meta.at(slot).by_seal
                    && self.tell(
                        epoch,
                        Event::Sealed {
                            segment: Self::ticket(epoch, slot),
                        },
                    )
            }
            Step::ReplicaFailed { epoch, slot } => self.tell(
                epoch,
                Event::ReplicaFailed {
                    segment: segment(slot),
                },
            ),
            Step::SealRequested(epoch) => self.tell(epoch, Event::SealRequested),
            Step::Tick(epoch) => self.tell(epoch, Event::Tick),
            Step::HearFenced(epoch) => {
                let newer = Epoch(u32::from(self.meta.epoch));
                self.tell(epoch, Event::Fenced { epoch: newer })
            }
            Step::Crash(epoch) => self.crash(bounds, epoch),
            Step::BeginFailover => {
                self.meta.begin_failover();
                true
            }
            Step::Fence { broker } => self.fence(broker),
            Step::Elect {
                known,
                replicas,
                broker,
            } => self.elect(bounds, known, replicas, broker),
        }
    }

    /// One broker has one flush in flight: a successor's frames are never durable before the old
    /// segment's, and what is taken back was never under way.
    fn is_next_on_disk(&self, slot: u8) -> bool {
        let Some(roll) = self.roll(self.meta.epoch) else {
            return false;
        };
        match roll.unsealed() {
            Some((old, end)) if u64::from(self.durable(super::world::slot(old))) < end => {
                old == segment(slot)
            }
            _ => roll.active() == segment(slot),
        }
    }

    fn crash(&mut self, bounds: &Bounds, epoch: u8) -> bool {
        self.crashes -= 1;
        if bounds.replicas == 1 {
            return self.resume(bounds, epoch);
        }
        let broker = self.leader(epoch).map(|leader| leader.broker);
        for leader in self.leaders.iter_mut().flatten() {
            if Some(leader.broker) == broker {
                leader.roll = None;
            }
        }
        true
    }

    /// Takes a step, and forgets what can no longer matter.
    pub(super) fn after(&self, bounds: &Bounds, step: Step) -> Option<Self> {
        let mut world = self.clone();
        if self.broken.is_some() || !world.take(bounds, step) {
            return None;
        }
        if !world.keeps_the_seals_of(self) {
            world.broken = Some(Broken::SealedEndChanged);
        }
        if bounds.is_sound() && world.broken.is_none() && world.is_well() {
            world.forget(bounds);
        }
        Some(world)
    }

    /// A leader that can acknowledge nothing any more is gone, and so is what is known about segments
    /// that nobody asks for.
    fn forget(&mut self, bounds: &Bounds) {
        for epoch in 1..self.meta.epoch {
            if self.can_acknowledge_nothing(bounds, epoch)
                && let Some(leader) = &mut self.leaders[usize::from(epoch)]
            {
                leader.roll = None;
            }
        }
        for slot in (0..self.drawn)
            .filter(|slot| !self.is_awaited(*slot))
            .collect::<Vec<_>>()
        {
            match self.meta.at(slot).stage {
                Stage::Abandoned | Stage::Dropped => self.strip(slot, 0),
                // Whole, and it will not change. Where it is plays no part any more.
                Stage::Sealed => self.strip(slot, 1),
                _ => {}
            }
        }
    }

    fn strip(&mut self, slot: u8, replicas: u8) {
        let at = usize::from(slot);
        let placed = &mut self.meta.chain[at];
        (placed.replicas, placed.predecessor) = (replicas, NONE);
        let whole = File {
            base: placed.base,
            end: placed.end,
        };
        for (broker, files) in (0..).zip(self.brokers.iter_mut().map(|broker| &mut broker.files)) {
            files[at] = (replicas & (1 << broker) != 0).then_some(whole);
        }
        self.sent[at] = Sent {
            writer: self.sent[at].writer,
            ..NOTHING
        };
    }

    /// Whether a deposed leader's next offset is kept from it for ever: on the segment where that
    /// would have to be acknowledged, and on the one that it could still switch to, a fenced replica
    /// lacks it.
    fn can_acknowledge_nothing(&self, bounds: &Bounds, epoch: u8) -> bool {
        let Some(roll) = self.roll(epoch) else {
            return false;
        };
        let next = u8::try_from(roll.committed()).unwrap();
        if next == bounds.offsets {
            return true;
        }
        let blocked = |id| {
            let slot = super::world::slot(id);
            slot == NONE
                || self.replicas(slot).any(|broker| {
                    let fenced = !self.brokers[usize::from(broker)]
                        .fence
                        .admits(Epoch(u32::from(epoch)));
                    fenced && self.file(broker, slot).is_none_or(|file| file.end <= next)
                })
        };
        let here = match roll.unsealed() {
            Some((old, end)) if roll.committed() < end => blocked(old),
            _ => blocked(roll.active()),
        };
        let there = match roll.successor() {
            Some(id) => {
                self.meta.at(super::world::slot(id).min(9)).stage == Stage::Unknown || blocked(id)
            }
            None => true,
        };
        here && there && roll.state() != State::Stopped
    }
}

const _: () = assert!(BROKERS <= 8, "a bit for each");
