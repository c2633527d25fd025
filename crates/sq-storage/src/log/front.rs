//! What those who append and the one who writes share: the queue, and the places of answers.

use std::collections::VecDeque;
use std::task::Waker;

use super::slots::{Answered, SlotId, Slots};

/// What waits for a turn.
#[derive(Debug)]
pub(super) struct Queued<E, J> {
    pub(super) slot: SlotId,
    /// Permits of the queue's room that it holds.
    pub(super) weight: u32,
    pub(super) work: Work<E, J>,
}

#[derive(Debug)]
pub(super) enum Work<E, J> {
    Append(E),
    /// Runs alone, in its place in the queue.
    Job(J),
}

/// Where a log is on its way to its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nobody is about to take a turn.
    Idle,
    /// The executor was told that there is something to do.
    Scheduled,
    /// A turn is being polled.
    Running {
        /// It is to be polled again.
        again: bool,
    },
    /// A turn waits for its file system.
    Suspended,
}

#[derive(Debug)]
pub(super) struct Front<E, A, J> {
    pub(super) queue: VecDeque<Queued<E, J>>,
    pub(super) slots: Slots<A>,
    pub(super) phase: Phase,
    /// Who waits for room, and could take a turn to make some.
    pub(super) room_waiters: Vec<Waker>,
    /// Nothing is taken any more.
    pub(super) closed: bool,
}

impl<E, A, J> Front<E, A, J> {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            slots: Slots::new(),
            phase: Phase::Idle,
            room_waiters: Vec::new(),
            closed: false,
        }
    }

    /// Becomes the one to take the next turn, if nobody is and there is something to do.
    pub(super) fn lead(&mut self) -> bool {
        let free = match self.phase {
            Phase::Idle => !self.queue.is_empty(),
            Phase::Suspended => true,
            Phase::Scheduled | Phase::Running { .. } => false,
        };
        if free {
            self.phase = Phase::Running { again: false };
        }
        free
    }

    /// Who should take the next turn: the first that waits in the queue, or else whoever could.
    pub(super) fn successors(&mut self) -> Vec<Waker> {
        if self.queue.is_empty() && self.phase != Phase::Suspended {
            return Vec::new();
        }
        let waiting = self.queue.iter().find_map(|q| self.slots.waker(q.slot));
        match waiting.or_else(|| self.slots.wakers().next()) {
            Some(waker) => vec![waker.clone()],
            None => std::mem::take(&mut self.room_waiters),
        }
    }

    /// Everybody who could go on with a turn that waited for its file system.
    pub(super) fn everybody(&mut self) -> Vec<Waker> {
        let mut all: Vec<_> = self.slots.wakers().cloned().collect();
        all.append(&mut self.room_waiters);
        all
    }

    pub(super) fn wait_for_room(&mut self, waker: &Waker) {
        if !self.room_waiters.iter().any(|w| w.will_wake(waker)) {
            self.room_waiters.push(waker.clone());
        }
    }

    /// Ends everything that is still to be answered, and returns whom to wake.
    pub(super) fn wreck(&mut self, mut closed: impl FnMut() -> A) -> Vec<Waker> {
        self.closed = true;
        self.phase = Phase::Idle;
        for queued in std::mem::take(&mut self.queue) {
            let answer = match queued.work {
                Work::Append(_) => Answered::Append(closed()),
                Work::Job(_) => Answered::Closed,
            };
            let waker = self.slots.answer(queued.slot, answer);
            self.room_waiters.extend(waker);
        }
        for slot in self.slots.unanswered() {
            let waker = self.slots.answer(slot, Answered::Closed);
            self.room_waiters.extend(waker);
        }
        std::mem::take(&mut self.room_waiters)
    }
}
