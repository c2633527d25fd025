//! What a new leader keeps of what the one before it left open: a pure function of what the fenced
//! replicas answered.
//!
//! At most two segments of a partition are unsealed: the active one, A, and its prepared successor, S,
//! to which the old leader may have switched without anyone else knowing. A record counts as
//! acknowledged only once *all* replicas of its segment hold it and every record before it, so any one
//! copy of A and any one of S tell enough. With `a` the least end of A's copies, `b` the base of S and
//! `d` the highest offset that any of them knows everything below to be committed:
//!
//! | copies | kept up to | chain |
//! |---|---|---|
//! | no S, or some copy of S never got a frame | a | A ends at d |
//! | S begun on all, a < b | a | A ends at d, S is dropped |
//! | S begun on all, a ≥ b | the least end of S's copies | d > b: A ends at b and S at d; else A ends at d, S is dropped |
//!
//! What lies between `d` and the end of what is kept may have been acknowledged or not. It is copied
//! to all replicas of a fresh segment, which begins at `d`, before the new leader is elected: so each
//! sealed segment is whole on every replica of its set.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::command::{Ends, Kept};
use crate::ids::{BrokerId, ReplicaSet, SegmentId};
use crate::state::{ActiveSegment, Segment};

/// A broker's copy of a prepared successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuccessorCopy {
    /// It never got a frame: nothing in the successor was ever acknowledged.
    Unbegun,
    /// It holds these offsets.
    Begun {
        /// The first.
        base: u64,
        /// The one behind the last.
        end: u64,
    },
}

/// What a broker answers once it has fenced, durably, at the failover's epoch, and has written or
/// dropped all that it had buffered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FenceAnswer {
    /// The offset behind the last frame of the active segment; `None` if it has no copy, or one that
    /// lacks what the broker knows to be committed.
    pub active_end: Option<u64>,
    /// Its copy of the successor; `None` if it is no replica, or as above.
    pub successor: Option<SuccessorCopy>,
    /// It knows every offset below this one to be committed.
    pub committed_before: u64,
}

/// What to keep, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Where the segments end: what `ElectLeader` says.
    pub ends: Ends,
    /// What to copy to all replicas of the new segment before that. It begins at `ends.end()`; once
    /// elected, all of it counts as committed.
    pub tail: Range<u64>,
    /// The offset from which on the tail is read from the successor; below it from the active
    /// segment. `None`: all of it from there.
    pub successor_from: Option<u64>,
    /// The brokers whose copy of the active segment counted; each holds the tail's part.
    pub active_holders: Vec<BrokerId>,
    /// The same for the successor.
    pub successor_holders: Vec<BrokerId>,
    /// Copies that lack what another broker knows to be committed. They did not count.
    pub damaged: Vec<(BrokerId, SegmentId)>,
}

/// Why nothing can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// No broker answered with a sound copy of this segment. One more answer may help.
    #[error("no sound copy of segment {0} has answered")]
    NoCopy(SegmentId),
    /// Two copies of the successor begin at different offsets, or one of them before the active
    /// segment or behind its own end.
    #[error("copies of segment {segment} begin at {one} and at {other}")]
    Contradiction {
        /// The successor.
        segment: SegmentId,
        /// One base.
        one: u64,
        /// Another base, or the end that it contradicts.
        other: u64,
    },
}

/// Decides a failover by what `BeginFailover` gave and what the fenced brokers answered.
///
/// Every answer more is a better one: ask all, and decide once those that matter are in or time is up.
///
/// # Errors
/// [`Undecided`].
pub fn decide(
    active: &ActiveSegment,
    successor: Option<&Segment>,
    answers: &BTreeMap<BrokerId, FenceAnswer>,
) -> Result<Decision, Undecided> {
    let committed = answers.values().map(|answer| answer.committed_before);
    let d = committed.fold(active.base, u64::max);
    let copies = successor.map(|s| (s, successor_copies(s, answers)));
    let b = copies
        .as_ref()
        .map_or(Ok(None), |(s, copies)| base_of(active, s, copies))?;

    let mut damaged = Vec::new();
    let needed = b.map_or(d, |b| d.min(b));
    let sound = active_copies(active, answers);
    let sound = sort_out(sound, active.segment.id, &mut damaged, |end| *end >= needed)?;
    let a = sound.values().copied().min().unwrap_or(active.base);
    let mut decision = Decision {
        ends: Ends {
            active_end: d,
            successor: None,
        },
        tail: d..a,
        successor_from: None,
        active_holders: sound.into_keys().collect(),
        successor_holders: Vec::new(),
        damaged,
    };
    let Some((segment, copies)) = copies else {
        return Ok(decision);
    };
    let has_committed = |copy: &SuccessorCopy| match (copy, b) {
        (SuccessorCopy::Begun { end, .. }, Some(b)) => d <= b || *end >= d,
        (SuccessorCopy::Unbegun, Some(b)) => d <= b,
        (_, None) => true,
    };
    let sound = sort_out(copies, segment.id, &mut decision.damaged, has_committed)?;
    let ends = sound.values().map(|copy| copy.end());
    let least = ends.min().flatten();
    decision.successor_holders = sound.into_keys().collect();
    if let (Some(z), Some(b)) = (least, b)
        && a >= b
    {
        decision.tail = d..z;
        decision.successor_from = Some(b);
        if d > b {
            decision.ends = Ends {
                active_end: b,
                successor: Some(Kept { base: b, end: d }),
            };
        }
    }
    Ok(decision)
}

impl SuccessorCopy {
    /// `None` is below every end, as it should be: one copy that was not begun decides.
    fn end(self) -> Option<u64> {
        match self {
            Self::Unbegun => None,
            Self::Begun { end, .. } => Some(end),
        }
    }
}

type Copies<T> = BTreeMap<BrokerId, T>;

/// The answers that matter for a segment are those of its replicas.
fn of_replicas<T>(
    replicas: &ReplicaSet,
    answers: &BTreeMap<BrokerId, FenceAnswer>,
    part: impl Fn(&FenceAnswer) -> Option<T>,
) -> Copies<T> {
    let answers = answers.iter().filter(|(b, _)| replicas.contains(**b));
    answers
        .filter_map(|(b, answer)| Some((*b, part(answer)?)))
        .collect()
}

fn active_copies(active: &ActiveSegment, answers: &BTreeMap<BrokerId, FenceAnswer>) -> Copies<u64> {
    let end = |answer: &FenceAnswer| answer.active_end.map(|end| end.max(active.base));
    of_replicas(&active.segment.replicas, answers, end)
}

fn successor_copies(
    successor: &Segment,
    answers: &BTreeMap<BrokerId, FenceAnswer>,
) -> Copies<SuccessorCopy> {
    of_replicas(&successor.replicas, answers, |answer| answer.successor)
}

/// The base that all begun copies of a successor have.
fn base_of(
    active: &ActiveSegment,
    segment: &Segment,
    copies: &Copies<SuccessorCopy>,
) -> Result<Option<u64>, Undecided> {
    let contradiction = |one, other| Undecided::Contradiction {
        segment: segment.id,
        one,
        other,
    };
    let mut found = None;
    for copy in copies.values() {
        let SuccessorCopy::Begun { base, end } = *copy else {
            continue;
        };
        if base < active.base || end < base {
            return Err(contradiction(base, end.min(active.base)));
        }
        match found {
            Some(other) if other != base => return Err(contradiction(base, other)),
            _ => found = Some(base),
        }
    }
    Ok(found)
}

/// Leaves the copies that have what is known to be committed, of which there must be one.
fn sort_out<T>(
    copies: Copies<T>,
    segment: SegmentId,
    damaged: &mut Vec<(BrokerId, SegmentId)>,
    is_sound: impl Fn(&T) -> bool,
) -> Result<Copies<T>, Undecided> {
    let (sound, rest): (Copies<T>, Copies<T>) =
        copies.into_iter().partition(|(_, copy)| is_sound(copy));
    damaged.extend(rest.into_keys().map(|broker| (broker, segment)));
    if sound.is_empty() {
        return Err(Undecided::NoCopy(segment));
    }
    Ok(sound)
}
