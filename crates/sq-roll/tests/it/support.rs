//! A leader under test, and what it asked for.

use std::time::Duration;

use sq_roll::{
    Action, Epoch, Event, Limits, Patience, PrepareFailure, Refusal, Roll, SegmentId, Start,
    Switch, Ticket,
};

pub(crate) const EPOCH: Epoch = Epoch(3);
pub(crate) const FIRST: SegmentId = SegmentId(1);
pub(crate) const PATIENCE: Patience = Patience {
    answer: Duration::from_secs(5),
    pause: Duration::from_millis(100),
    longest_pause: Duration::from_secs(1),
};

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn ticket(segment: u64) -> Ticket {
    Ticket {
        segment: SegmentId(segment),
        epoch: EPOCH,
    }
}

/// A roll whose ids are 2, 3, 4, and all that it ever said.
pub(crate) struct Leader {
    pub(crate) roll: Roll,
    pub(crate) said: Vec<Action>,
    pub(crate) now: Duration,
    pub(crate) last_id: u64,
}

impl Leader {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::from(Start::empty(EPOCH, FIRST, 0), limits)
    }

    pub(crate) fn from(start: Start, limits: Limits) -> Self {
        let roll = Roll::new(start, limits, PATIENCE, Duration::ZERO);
        Self {
            roll,
            said: Vec::new(),
            now: Duration::ZERO,
            last_id: 1,
        }
    }

    pub(crate) fn on(&mut self, event: Event) -> Vec<Action> {
        let mut draw = || {
            self.last_id += 1;
            SegmentId(self.last_id)
        };
        let actions = self.roll.on(self.now, event, &mut draw);
        self.said.extend(actions.iter().cloned());
        actions
    }

    pub(crate) fn after(&mut self, time: Duration, event: Event) -> Vec<Action> {
        self.now += time;
        self.on(event)
    }

    /// Appends one record; where it went, or why not.
    pub(crate) fn append(&mut self, bytes: u64) -> Result<(u64, u64), Refusal> {
        let actions = self.on(Event::Append { bytes, records: 1 });
        let mut placed = actions.iter().filter_map(|action| match action {
            Action::Write { segment, offset } => Some(Ok((segment.0, *offset))),
            Action::Refuse(refusal) => Some(Err(*refusal)),
            _ => None,
        });
        let answer = placed.next().unwrap();
        assert_eq!(placed.next(), None, "one answer to one append");
        answer
    }

    /// The successor that was asked for last is ready.
    pub(crate) fn ready(&mut self) -> Vec<Action> {
        let successor = self.requests().last().copied().unwrap();
        self.on(Event::Ready { successor })
    }

    pub(crate) fn fail(&mut self, failure: PrepareFailure) -> Vec<Action> {
        let successor = self.requests().last().copied().unwrap();
        self.on(Event::PrepareFailed { successor, failure })
    }

    pub(crate) fn durable(&mut self, segment: u64, end: u64) -> Vec<Action> {
        self.on(Event::Durable {
            segment: SegmentId(segment),
            end,
        })
    }

    pub(crate) fn replica_failed(&mut self, segment: u64) -> Vec<Action> {
        self.on(Event::ReplicaFailed {
            segment: SegmentId(segment),
        })
    }

    pub(crate) fn sealed(&mut self, segment: u64) -> Vec<Action> {
        self.on(Event::Sealed {
            segment: ticket(segment),
        })
    }

    pub(crate) fn requests(&self) -> Vec<Ticket> {
        let request = |action: &Action| match action {
            Action::Request { successor, .. } => Some(*successor),
            _ => None,
        };
        self.said.iter().filter_map(request).collect()
    }

    pub(crate) fn switches(&self) -> Vec<Switch> {
        let switch = |action: &Action| match action {
            Action::Switch(switch) => Some(switch.clone()),
            _ => None,
        };
        self.said.iter().filter_map(switch).collect()
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Action) -> bool) -> usize {
        self.said.iter().filter(|action| wanted(action)).count()
    }
}

/// One of 100-byte records: nine reach the soft mark, ten the cap, eleven the hard limit.
pub(crate) fn limits() -> Limits {
    Limits::bytes(1000)
}

/// A leader whose segment 1 is full, whose segment 2 has one record, and which is committed to
/// `committed`.
pub(crate) fn switched(committed: u64) -> Leader {
    let mut leader = Leader::new(limits());
    for _ in 0..10 {
        leader.append(100).unwrap();
    }
    leader.ready();
    assert_eq!(leader.append(100), Ok((2, 10)));
    leader.durable(1, committed);
    leader
}
