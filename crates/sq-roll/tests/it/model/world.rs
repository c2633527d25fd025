//! Brokers, leaders and what is on its way between them.

use std::sync::Arc;
use std::time::Duration;

use sq_roll::{
    Action, Epoch, Event, Fence, Limits, Patience, Roll, SegmentId, Start, State, Switch, Ticket,
};

use super::Bounds;
use super::chain::{NONE, SLOTS};
use crate::metadata::Meta;

pub(super) const BROKERS: usize = 4;
pub(super) const OFFSETS: usize = 7;
pub(super) const EPOCHS: usize = 5;

/// A replica's file: which offsets it has, durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct File {
    pub(super) base: u8,
    pub(super) end: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Broker {
    pub(super) fence: Fence,
    pub(super) files: [Option<File>; SLOTS],
}

/// What was ever sent about a segment. It arrives late, repeatedly or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) writer: u8,
    /// Frames, from the base on.
    pub(super) frames: Option<File>,
    pub(super) prepare: bool,
    pub(super) predecessor: u8,
    /// What the metadata said when it was asked for first.
    pub(super) attempt: u32,
    pub(super) abandon: bool,
    /// Ends and successors of the seals. A sound leader asks for one.
    pub(super) seals: [Option<(u8, u8)>; 3],
}

pub(super) const NOTHING: Sent = Sent {
    writer: 0,
    frames: None,
    prepare: false,
    predecessor: NONE,
    attempt: 0,
    abandon: false,
    seals: [None; 3],
};

/// The leader of one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leader {
    pub(super) broker: u8,
    /// Gone with a crash, or once nothing that it does can matter.
    pub(super) roll: Option<Arc<Roll>>,
    /// It heard of a newer epoch.
    pub(super) deposed: bool,
    /// Which epoch's record each offset holds.
    pub(super) payload: [u8; OFFSETS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Broken {
    /// I3: two records were acknowledged at one offset.
    TwoAcknowledged,
    /// I4: a sealed end changed.
    SealedEndChanged,
    /// An offset that a failover keeps is held by nobody who answered.
    Hole,
    /// An offset was acknowledged by a leader that had heard that it was deposed, or given by it.
    WentOnDeposed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) meta: Meta,
    pub(super) brokers: [Broker; BROKERS],
    pub(super) sent: [Sent; SLOTS],
    /// By epoch, from 1 on.
    pub(super) leaders: [Option<Leader>; EPOCHS],
    /// The record that was acknowledged at each offset; 0 is none.
    pub(super) acknowledged: [u8; OFFSETS],
    /// Segment ids drawn so far.
    pub(super) drawn: u8,
    pub(super) crashes: u8,
    pub(super) broken: Option<Broken>,
}

/// Two bytes reach soft mark and cap at once: every segment wants to end as soon as it has a record,
/// and does so wherever the successor happens to be ready.
const LIMITS: Limits = Limits {
    soft_bytes: 1,
    cap_bytes: 1,
    overrun_bytes: 100,
    soft_age: Duration::MAX,
    cap_age: Duration::MAX,
    idle_after: Duration::MAX,
};

/// Time stands still, and every answer is overdue.
const PATIENCE: Patience = Patience {
    answer: Duration::ZERO,
    pause: Duration::ZERO,
    longest_pause: Duration::ZERO,
};

pub(super) fn slot(segment: SegmentId) -> u8 {
    u8::try_from(segment.0).unwrap()
}

pub(super) fn segment(slot: u8) -> SegmentId {
    SegmentId(u64::from(slot))
}

fn offset(offset: u64) -> u8 {
    u8::try_from(offset).unwrap()
}

fn reissued(action: &Action) -> u64 {
    match action {
        Action::Switch(Switch { reissue, .. }) | Action::Reopen { reissue, .. } => {
            reissue.end - reissue.start
        }
        _ => 0,
    }
}

impl World {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let fence = Fence::new(Epoch(1)).without(bounds.lacking);
        let replicas = (1 << bounds.replicas) - 1;
        let mut world = Self {
            meta: Meta::new(replicas),
            brokers: std::array::from_fn(|_| Broker {
                fence,
                files: [None; SLOTS],
            }),
            sent: [NOTHING; SLOTS],
            leaders: Default::default(),
            acknowledged: [0; OFFSETS],
            drawn: 1,
            crashes: bounds.crashes,
            broken: None,
        };
        world.sent[0].writer = 1;
        world.lead(
            bounds,
            1,
            0,
            Start::empty(Epoch(1), segment(0), 0),
            [1; OFFSETS],
        );
        world
    }

    /// A leader begins.
    pub(super) fn lead(
        &mut self,
        bounds: &Bounds,
        epoch: u8,
        broker: u8,
        start: Start,
        payload: [u8; OFFSETS],
    ) {
        let roll = Roll::new(start, LIMITS, PATIENCE, Duration::ZERO).without(bounds.lacking);
        let roll = Some(Arc::new(roll));
        let leader = Leader {
            broker,
            roll,
            deposed: false,
            payload,
        };
        self.leaders[usize::from(epoch)] = Some(leader);
        // What is below its start can be read from it.
        for at in 0..start.next {
            self.acknowledge(epoch, offset(at));
        }
    }

    pub(super) fn leader(&self, epoch: u8) -> Option<&Leader> {
        self.leaders[usize::from(epoch)].as_ref()
    }

    pub(super) fn roll(&self, epoch: u8) -> Option<&Arc<Roll>> {
        self.leader(epoch)?.roll.as_ref()
    }

    pub(super) fn file(&self, broker: u8, slot: u8) -> Option<File> {
        self.brokers[usize::from(broker)].files[usize::from(slot)]
    }

    pub(super) fn sent(&self, slot: u8) -> &Sent {
        &self.sent[usize::from(slot)]
    }

    fn sent_mut(&mut self, slot: u8) -> &mut Sent {
        &mut self.sent[usize::from(slot)]
    }

    /// The record at an offset of a segment.
    pub(super) fn payload(&self, slot: u8, at: u8) -> u8 {
        self.leader(self.sent(slot).writer)
            .map_or(0, |leader| leader.payload[usize::from(at)])
    }

    pub(super) fn replicas(&self, slot: u8) -> impl Iterator<Item = u8> + use<> {
        let mask = self.meta.at(slot).replicas;
        (0..u8::try_from(BROKERS).unwrap()).filter(move |broker| mask & (1 << broker) != 0)
    }

    /// The first offset that some replica of a segment lacks.
    pub(super) fn durable(&self, slot: u8) -> u8 {
        let end = |broker| self.file(broker, slot).map_or(0, |file| file.end);
        self.replicas(slot).map(end).min().unwrap_or(0)
    }

    /// Tells a leader what happened, and sends what it says.
    pub(super) fn tell(&mut self, epoch: u8, event: Event) -> bool {
        let Some(before) = self.roll(epoch).cloned() else {
            return false;
        };
        let mut roll = Roll::clone(&before);
        let deposed = self.meta.epoch > epoch;
        let stopped = self.leader(epoch).is_some_and(|leader| leader.deposed);
        let mut drawn = self.drawn;
        let mut draw = || {
            let id = if deposed { NONE } else { drawn };
            drawn += u8::from(id != NONE);
            segment(id)
        };
        let mut actions = roll.on(Duration::ZERO, event, &mut draw);
        // Frames are written again right away.
        let again = actions.iter().map(reissued).sum();
        if again > 0 {
            let bytes = again;
            actions.extend(roll.on(Duration::ZERO, Event::Accounted { bytes }, &mut draw));
        }
        // A deposed leader's request is lost for good.
        let outside = roll.active() == segment(NONE);
        let unmoved = actions.is_empty() && roll == *before;
        let heard = matches!(event, Event::Fenced { .. }) && !stopped;
        if outside || (unmoved && !heard) {
            return false;
        }
        self.drawn = drawn;
        for action in actions {
            let went_on = matches!(action, Action::Write { .. } | Action::Commit { .. });
            if stopped && went_on {
                self.broken = Some(Broken::WentOnDeposed);
            }
            self.obey(epoch, &before, &roll, action, deposed);
        }
        let gone = roll.state() == State::Stopped;
        if let Some(leader) = &mut self.leaders[usize::from(epoch)] {
            leader.roll = (!gone).then(|| Arc::new(roll));
            leader.deposed |= heard;
        }
        true
    }

    fn obey(&mut self, epoch: u8, before: &Roll, roll: &Roll, action: Action, deposed: bool) {
        match action {
            Action::Write {
                segment,
                offset: at,
            } => {
                self.frames(slot(segment), epoch, roll.active_base(), at + 1);
            }
            Action::Switch(switch) => {
                self.frames(
                    slot(switch.to),
                    epoch,
                    roll.active_base(),
                    switch.reissue.end,
                );
                if self.meta.at(slot(switch.to)).replicas == 0 {
                    self.guess_replicas(slot(switch.to), epoch);
                }
            }
            Action::Reopen {
                segment, reissue, ..
            } => {
                self.frames(slot(segment), epoch, roll.active_base(), reissue.end);
            }
            Action::Commit { end } => {
                for at in before.committed()..end {
                    self.acknowledge(epoch, offset(at));
                }
            }
            // No command of an older epoch applies.
            _ if deposed => {}
            Action::Request {
                successor,
                predecessor,
                ..
            } if slot(successor.segment) != NONE => {
                let attempt = self.meta.attempt();
                let sent = self.sent_mut(slot(successor.segment));
                if !sent.prepare {
                    sent.attempt = attempt;
                }
                (sent.prepare, sent.predecessor, sent.writer) = (true, slot(predecessor), epoch);
            }
            Action::Abandon { successor } => self.sent_mut(slot(successor.segment)).abandon = true,
            Action::Seal {
                segment,
                end,
                successor,
            } => {
                let seal = (offset(end), slot(successor));
                let seals = &mut self.sent_mut(slot(segment.segment)).seals;
                if !seals.contains(&Some(seal))
                    && let Some(free) = seals.iter_mut().find(|free| free.is_none())
                {
                    *free = Some(seal);
                }
            }
            Action::Request { .. }
            | Action::Refuse(_)
            | Action::Resume
            | Action::Discard { .. }
            | Action::Finish { .. } => {}
        }
    }

    fn frames(&mut self, slot: u8, epoch: u8, base: u64, end: u64) {
        let sent = self.sent_mut(slot);
        sent.writer = epoch;
        let frames = sent.frames.get_or_insert(File {
            base: offset(base),
            end: offset(base),
        });
        frames.end = frames.end.max(offset(end));
    }

    /// A leader that writes to a successor before it knows where that is placed.
    fn guess_replicas(&mut self, slot: u8, epoch: u8) {
        let broker = self.leader(epoch).map_or(0, |leader| leader.broker);
        self.meta.chain[usize::from(slot)].replicas = (1 << broker) | (1 << ((broker + 1) % 3));
    }

    fn acknowledge(&mut self, epoch: u8, at: u8) {
        let record = self
            .leader(epoch)
            .map_or(0, |leader| leader.payload[usize::from(at)]);
        let acknowledged = &mut self.acknowledged[usize::from(at)];
        if *acknowledged != 0 && *acknowledged != record {
            self.broken = Some(Broken::TwoAcknowledged);
        }
        *acknowledged = record;
    }

    /// The next frame of a segment reaches a replica and its disk.
    pub(super) fn deliver(&mut self, slot: u8, broker: u8) -> bool {
        let sent = *self.sent(slot);
        let Some(frames) = sent.frames else {
            return false;
        };
        let broker = &mut self.brokers[usize::from(broker)];
        let file = &mut broker.files[usize::from(slot)];
        let end = file.map_or(frames.base, |file| file.end);
        if end >= frames.end || !broker.fence.admits(Epoch(u32::from(sent.writer))) {
            return false;
        }
        let base = file.map_or(frames.base, |file| file.base);
        *file = Some(File { base, end: end + 1 });
        true
    }

    pub(super) fn ticket(epoch: u8, slot: u8) -> Ticket {
        Ticket {
            segment: segment(slot),
            epoch: Epoch(u32::from(epoch)),
        }
    }
}
