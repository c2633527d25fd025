//! The state machine of one partition's leader, for one epoch.

mod append;
mod leave;
mod successor;

use std::time::Duration;

use crate::mutants::Guard;
use crate::{Action, Epoch, Event, Limits, Patience, Refusal, SegmentId, Ticket, Trigger};
use successor::Successor;

/// Decides when and how the segments of one partition follow each other, for as long as one epoch of
/// its leadership lasts.
///
/// [`Roll::on`] takes what happened and says what to do. There is no clock, no randomness and no I/O
/// in it, so the same events give the same actions, and a model checker can walk through it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Roll {
    epoch: Epoch,
    limits: Limits,
    patience: Patience,
    now: Duration,
    /// The next offset to give.
    next: u64,
    /// The first offset that is not acknowledged.
    committed: u64,
    active: Segment,
    /// The segment before it, from the switch until its seal is committed.
    old: Option<Old>,
    successor: Successor,
    /// No preparation is begun before then, and how long the next pause is.
    pause_until: Duration,
    pause: Duration,
    /// An append was refused, and nobody was told yet that it can be tried again.
    backpressure: bool,
    stopped: Option<Refusal>,
    #[cfg(feature = "mutants")]
    lacking: Option<Guard>,
    #[cfg(feature = "mutants")]
    guessed: u64,
}

/// A segment that this leader writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Segment {
    id: SegmentId,
    base: u64,
    bytes: u64,
    /// Every replica has its frames below this offset.
    durable: u64,
    /// When the first frame was written, less the age that it had when this leader began.
    began: Option<Duration>,
    age_before: Duration,
    last_append: Duration,
    /// What first made it end, once something did.
    trigger: Option<Trigger>,
    /// It ends as soon as a successor is ready, whatever its size.
    at_once: bool,
    failed: bool,
}

impl Segment {
    fn new(id: SegmentId, base: u64) -> Self {
        Self {
            id,
            base,
            bytes: 0,
            durable: base,
            began: None,
            age_before: Duration::ZERO,
            last_append: Duration::ZERO,
            trigger: None,
            at_once: false,
            failed: false,
        }
    }

    fn age(&self, now: Duration) -> Duration {
        self.began.map_or(Duration::ZERO, |began| {
            self.age_before.saturating_add(now.saturating_sub(began))
        })
    }
}

/// A segment that takes no more offsets, and that the metadata still calls the active one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Old {
    segment: Segment,
    /// The first offset that it doesn't hold.
    end: u64,
    /// When to ask for the seal again, once it was asked for.
    seal: Option<Duration>,
}

/// Where a leader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Start {
    /// The epoch that it was elected in.
    pub epoch: Epoch,
    /// The segment that it writes: a fresh one after a failover; on one broker, after a restart, the
    /// last one that holds a frame.
    pub active: SegmentId,
    /// That segment's first offset.
    pub base: u64,
    /// What it holds already, in bytes.
    pub bytes: u64,
    /// How long ago its first frame was written.
    pub age: Duration,
    /// The next offset to give. What is below it is acknowledged.
    pub next: u64,
    /// A segment before it that the metadata still calls the active one, and which ends at `base`: a
    /// restart came between the switch and the seal.
    pub unsealed: Option<SegmentId>,
    /// A prepared successor that the metadata knows of and that holds no frame.
    pub prepared: Option<SegmentId>,
}

impl Start {
    /// An empty segment, with no past.
    pub fn empty(epoch: Epoch, active: SegmentId, base: u64) -> Self {
        Self {
            epoch,
            active,
            base,
            bytes: 0,
            age: Duration::ZERO,
            next: base,
            unsealed: None,
            prepared: None,
        }
    }
}

/// What a leader is doing about its next roll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing: the soft mark is not reached, or an earlier roll is still being finished.
    Filling,
    /// A successor was asked for.
    Preparing,
    /// It is ready.
    Armed,
    /// It is not, and the segment is past its cap.
    Overrun,
    /// It is not, and an append was refused since the segment is at its hard limit.
    Backpressure,
    /// Another leads, or the partition is deleted.
    Stopped,
}

impl Roll {
    /// A leader that was just elected, or that goes on after a restart. `now` is measured from any
    /// fixed point, here and in [`Roll::on`].
    pub fn new(start: Start, limits: Limits, patience: Patience, now: Duration) -> Self {
        let mut active = Segment::new(start.active, start.base);
        active.bytes = start.bytes;
        active.durable = start.next;
        active.began = (start.next > start.base).then_some(now);
        active.age_before = start.age;
        active.last_append = now;
        let old = start.unsealed.map(|id| {
            let mut segment = Segment::new(id, start.base);
            segment.trigger = Some(Trigger::Size);
            Old {
                segment,
                end: start.base,
                seal: Some(now),
            }
        });
        Self {
            epoch: start.epoch,
            limits,
            patience,
            now,
            next: start.next,
            committed: start.next,
            active,
            old,
            successor: start
                .prepared
                .map_or(Successor::None, |id| Successor::Asked { id, again: now }),
            pause_until: now,
            pause: patience.pause,
            backpressure: false,
            stopped: None,
            #[cfg(feature = "mutants")]
            lacking: None,
            #[cfg(feature = "mutants")]
            guessed: 0,
        }
    }

    /// Takes what happened at `now` and says what to do, in order. `draw` gives a fresh segment id,
    /// and is called once for each successor that is asked for.
    pub fn on(
        &mut self,
        now: Duration,
        event: Event,
        draw: &mut dyn FnMut() -> SegmentId,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        self.handle(now, event, draw, &mut actions);
        actions
    }

    /// [`on`](Self::on) that says what to do behind what is in `actions` already, whose room serves one
    /// event after the other.
    pub fn handle(
        &mut self,
        now: Duration,
        event: Event,
        draw: &mut dyn FnMut() -> SegmentId,
        actions: &mut Vec<Action>,
    ) {
        self.now = self.now.max(now);
        if let Some(refusal) = self.stopped {
            if matches!(event, Event::Append { .. }) {
                actions.push(Action::Refuse(refusal));
            }
            return;
        }
        match event {
            Event::Append { bytes, records } => self.append(bytes, records, actions),
            Event::Withdrawn { bytes, records } => self.withdraw(bytes, records),
            Event::Accounted { bytes } => self.account(bytes),
            Event::Tick => self.repeat(actions, draw),
            Event::Durable { segment, end } => self.durable(segment, end),
            Event::ReplicaFailed { segment } => self.replica_failed(segment, actions),
            Event::Ready { successor } => self.ready(successor),
            Event::PrepareFailed { successor, failure } => {
                self.prepare_failed(successor, failure, actions);
            }
            Event::Abandoned { successor } => self.abandoned(successor, actions),
            Event::Sealed { segment } => self.sealed(segment, actions),
            Event::SealRequested => self.seal_requested(),
            Event::Fenced { epoch } => self.fenced(epoch, actions),
            Event::Deleted => self.stop(Refusal::Deleted, actions),
        }
        if self.stopped.is_none() {
            self.proceed(actions, draw);
        }
    }

    /// Does what the state allows by now, whatever led to it.
    fn proceed(&mut self, actions: &mut Vec<Action>, draw: &mut dyn FnMut() -> SegmentId) {
        self.commit(actions);
        if self.active.at_once {
            self.switch(actions);
        }
        self.ask_for_seal(actions);
        self.judge();
        self.ask_for_successor(actions, draw);
        if self.successor.is_ready() {
            self.relieve(actions);
        }
    }

    fn fenced(&mut self, epoch: Epoch, actions: &mut Vec<Action>) {
        if epoch > self.epoch && self.has(Guard::Fence) {
            self.stop(Refusal::Fenced { epoch }, actions);
        }
    }

    /// A successor that was never written to is removed. One that was is left to the failover.
    fn stop(&mut self, refusal: Refusal, actions: &mut Vec<Action>) {
        self.stopped = Some(refusal);
        if let Some(segment) = self.successor.unwritten() {
            actions.push(Action::Discard { segment });
        }
        self.successor = Successor::None;
        self.relieve(actions);
    }

    fn ticket(&self, segment: SegmentId) -> Ticket {
        Ticket {
            segment,
            epoch: self.epoch,
        }
    }

    /// Whether an answer is to a request of this leader about that segment.
    fn fits(&self, ticket: Ticket, segment: SegmentId) -> bool {
        ticket == self.ticket(segment)
    }

    /// Changes the marks, from the next event on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The marks.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The epoch that this leader was elected in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What it is doing about its next roll.
    pub fn state(&self) -> State {
        if self.stopped.is_some() {
            State::Stopped
        } else if self.backpressure {
            State::Backpressure
        } else if self.successor.is_ready() {
            State::Armed
        } else if self.active.bytes > self.limits.cap_bytes {
            State::Overrun
        } else if self.successor.is_asked() {
            State::Preparing
        } else {
            State::Filling
        }
    }

    /// The segment that takes appends.
    pub fn active(&self) -> SegmentId {
        self.active.id
    }

    /// Its first offset.
    pub fn active_base(&self) -> u64 {
        self.active.base
    }

    /// Its size in bytes.
    pub fn active_bytes(&self) -> u64 {
        self.active.bytes
    }

    /// Its age, from its first frame on; zero while it is empty.
    pub fn active_age(&self) -> Duration {
        self.active.age(self.now)
    }

    /// What will make it end, once something will: its soft mark is passed.
    pub fn trigger(&self) -> Option<Trigger> {
        self.active.trigger
    }

    /// Whether it will not be written any more, and ends as soon as there is a successor.
    pub fn is_ending(&self) -> bool {
        self.active.at_once
    }

    /// How many bytes it takes before an append goes to the successor, or is refused where that is not
    /// ready. A single frame that is larger still has a place where the segment is empty.
    pub fn room(&self) -> u64 {
        let limit = if self.successor.is_ready() {
            self.limits.cap_bytes
        } else {
            self.limits.hard_bytes()
        };
        limit.saturating_sub(self.active.bytes)
    }

    /// Whether an append of so many bytes would go to the successor by now.
    pub fn switches_for(&self, now: Duration, bytes: u64) -> bool {
        let age = self.active.age(now);
        self.successor.is_ready() && self.old.is_none() && self.passes_cap(bytes, age).is_some()
    }

    /// The segment before it and the first offset that it doesn't hold, until its seal is committed.
    pub fn unsealed(&self) -> Option<(SegmentId, u64)> {
        self.old.as_ref().map(|old| (old.segment.id, old.end))
    }

    /// A successor that was asked for, is ready, or is being abandoned.
    pub fn successor(&self) -> Option<SegmentId> {
        self.successor.id()
    }

    /// The next offset to give.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// The first offset that is not acknowledged.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// When to call [`Roll::on`] with [`Event::Tick`], if nothing happens before.
    pub fn deadline(&self) -> Option<Duration> {
        if self.stopped.is_some() {
            return None;
        }
        let seal = self.old.as_ref().and_then(|old| old.seal);
        let successor = self.successor.deadline();
        let prepare = (self.old.is_none() && self.successor == Successor::None)
            .then(|| self.next_preparation())
            .flatten();
        [seal, successor, prepare].into_iter().flatten().min()
    }

    /// When a preparation can begin that waits for nothing but time.
    fn next_preparation(&self) -> Option<Duration> {
        if self.active.trigger.is_some() {
            return Some(self.pause_until);
        }
        if self.limits.soft_age == Duration::MAX {
            return None;
        }
        let began = self.active.began?;
        let soft_age = self.limits.soft_age.min(self.limits.cap_age);
        let mark = began.checked_add(soft_age.saturating_sub(self.active.age_before))?;
        let at = mark.max(self.pause_until).max(self.now);
        let idle = at.saturating_sub(self.active.last_append) >= self.limits.idle_after;
        (!idle).then_some(at)
    }

    /// Takes a guard away.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub fn without(mut self, guard: Option<Guard>) -> Self {
        self.lacking = guard;
        self
    }

    #[cfg(feature = "mutants")]
    fn has(&self, guard: Guard) -> bool {
        self.lacking != Some(guard)
    }

    #[cfg(not(feature = "mutants"))]
    #[expect(clippy::unused_self, reason = "it has every guard")]
    const fn has(&self, _: Guard) -> bool {
        true
    }
}
