//! Where answers wait for whoever asked.

use std::task::Waker;

/// The place of one answer in [`Slots`].
pub(super) type SlotId = usize;

/// Answers that are awaited or not yet fetched. A place that is free again is used again, so that an
/// append that waits for one allocates nothing.
#[derive(Debug)]
pub(super) struct Slots<A> {
    slots: Vec<Slot<A>>,
    free: Vec<SlotId>,
}

#[derive(Debug)]
enum Slot<A> {
    Free,
    Waiting(Option<Waker>),
    /// Nobody waits any more; the place is free once the answer is there.
    Abandoned,
    Answered(Answered<A>),
}

/// What became of an entry of the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered<A> {
    /// An append was answered.
    Append(A),
    /// A job was run.
    Job,
    /// The log was closed, or its turn panicked, before it came to the job.
    Closed,
}

impl<A> Slots<A> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn take_place(&mut self) -> SlotId {
        if let Some(id) = self.free.pop() {
            self.set(id, Slot::Waiting(None));
            return id;
        }
        self.slots.push(Slot::Waiting(None));
        self.slots.len() - 1
    }

    /// Answers, and returns whom to wake.
    pub(super) fn answer(&mut self, id: SlotId, answer: Answered<A>) -> Option<Waker> {
        match self.set(id, Slot::Answered(answer)) {
            Slot::Waiting(waker) => waker,
            Slot::Abandoned => {
                self.set(id, Slot::Free);
                self.free.push(id);
                None
            }
            Slot::Free | Slot::Answered(_) => None,
        }
    }

    /// The answer, if it is there. Its place is free then.
    pub(super) fn fetch(&mut self, id: SlotId) -> Option<Answered<A>> {
        let slot = self.slots.get_mut(id)?;
        if !matches!(slot, Slot::Answered(_)) {
            return None;
        }
        let Slot::Answered(answer) = std::mem::replace(slot, Slot::Free) else {
            return None;
        };
        self.free.push(id);
        Some(answer)
    }

    /// Who is woken when the answer is there.
    pub(super) fn wait(&mut self, id: SlotId, waker: &Waker) {
        match self.slots.get_mut(id) {
            Some(Slot::Waiting(Some(known))) => known.clone_from(waker),
            Some(slot @ Slot::Waiting(None)) => *slot = Slot::Waiting(Some(waker.clone())),
            _ => {}
        }
    }

    /// Gives up waiting. Whether the answer was still to come.
    pub(super) fn abandon(&mut self, id: SlotId) -> bool {
        match self.slots.get_mut(id) {
            Some(slot @ Slot::Waiting(_)) => {
                *slot = Slot::Abandoned;
                true
            }
            Some(slot @ Slot::Answered(_)) => {
                *slot = Slot::Free;
                self.free.push(id);
                false
            }
            _ => false,
        }
    }

    /// Who waits for this one.
    pub(super) fn waker(&self, id: SlotId) -> Option<&Waker> {
        match self.slots.get(id) {
            Some(Slot::Waiting(waker)) => waker.as_ref(),
            _ => None,
        }
    }

    /// All who wait.
    pub(super) fn wakers(&self) -> impl Iterator<Item = &Waker> {
        (0..self.slots.len()).filter_map(|id| self.waker(id))
    }

    /// The places of answers that are still to come.
    pub(super) fn unanswered(&self) -> Vec<SlotId> {
        let open = |slot: &Slot<A>| matches!(slot, Slot::Waiting(_) | Slot::Abandoned);
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, s)| open(s)).map(|(id, _)| id).collect()
    }

    fn set(&mut self, id: SlotId, slot: Slot<A>) -> Slot<A> {
        match self.slots.get_mut(id) {
            Some(place) => std::mem::replace(place, slot),
            None => Slot::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut slots = Slots::new();
        let (a, b) = (slots.take_place(), slots.take_place());
        assert!(slots.answer(a, Answered::Append(1)).is_none());
        assert_eq!(slots.fetch(b), None);
        assert_eq!(slots.fetch(a), Some(Answered::Append(1)));
        assert_eq!(slots.take_place(), a);
        assert!(slots.abandon(a));
        assert_eq!(slots.unanswered(), [a, b]);
        assert!(slots.answer(a, Answered::Append(2)).is_none());
        assert_eq!(slots.take_place(), a);
        assert!(slots.answer(b, Answered::Append(3)).is_none());
        assert!(!slots.abandon(b));
        assert_eq!(slots.take_place(), b);
        assert_eq!(slots.take_place(), 2);
    }
}
