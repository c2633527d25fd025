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
    /// What it counts of a turn's limit.
    pub(super) bytes: usize,
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
    /// What the queue's entries count together.
    queued_bytes: usize,
    queued_jobs: usize,
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
            queued_bytes: 0,
            queued_jobs: 0,
            slots: Slots::new(),
            phase: Phase::Idle,
            room_waiters: Vec::new(),
            closed: false,
        }
    }

    pub(super) fn push(&mut self, queued: Queued<E, J>) {
        self.queued_bytes += queued.bytes;
        self.queued_jobs += usize::from(matches!(queued.work, Work::Job(_)));
        self.queue.push_back(queued);
    }

    pub(super) fn pop(&mut self) -> Option<Queued<E, J>> {
        let queued = self.queue.pop_front()?;
        self.queued_bytes -= queued.bytes;
        self.queued_jobs -= usize::from(matches!(queued.work, Work::Job(_)));
        Some(queued)
    }

    /// The whole queue, if it is within a turn's limits and has no job; it goes on in `empty`. Nothing in
    /// it is looked at, so that whoever wants to queue something is not held up.
    pub(super) fn take_all(
        &mut self,
        most_bytes: usize,
        most_entries: usize,
        empty: VecDeque<Queued<E, J>>,
    ) -> Option<VecDeque<Queued<E, J>>> {
        let fits = self.queued_jobs == 0
            && self.queued_bytes <= most_bytes
            && self.queue.len() <= most_entries;
        fits.then(|| {
            self.queued_bytes = 0;
            std::mem::replace(&mut self.queue, empty)
        })
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
        while let Some(queued) = self.pop() {
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
