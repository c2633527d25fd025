//! What the state machine wants done, in the order in which it says so.

use std::fmt;
use std::ops::Range;

use crate::{Epoch, SegmentId, Ticket};

/// One thing to do. None of them has to be done by the time [`Roll::on`](crate::Roll::on) is called
/// again, but for what appends wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Write the append that was asked about.
    Write {
        /// The segment that takes it.
        segment: SegmentId,
        /// The offset of its first record.
        offset: u64,
    },
    /// The append that was asked about has no place.
    Refuse(Refusal),
    /// Appends that were refused for [`Refusal::Backpressure`] can be tried again.
    Resume,
    /// Prepare a successor: commit its placement, make its files, connect. Repeated with the same
    /// ticket until it is answered.
    Request {
        /// What the answer has to carry.
        successor: Ticket,
        /// The segment that it will follow.
        predecessor: SegmentId,
        /// What asked for it first.
        trigger: Trigger,
    },
    /// From now on frames go to the successor. In memory: nothing waits for it.
    Switch(Switch),
    /// The switch is taken back: from now on frames go to the old segment again.
    Reopen {
        /// The segment that is active again.
        segment: SegmentId,
        /// The one that was active.
        abandoned: SegmentId,
        /// Frames to write again there, with the offsets and payloads that they have.
        reissue: Range<u64>,
    },
    /// Ask the metadata to forget a successor. Repeated until it is answered.
    Abandon {
        /// What the answer has to carry.
        successor: Ticket,
    },
    /// Remove what was made of a successor, or what may still be made of it.
    Discard {
        /// That successor.
        segment: SegmentId,
    },
    /// Every record below `end` is acknowledged.
    Commit {
        /// The first offset that is not.
        end: u64,
    },
    /// Ask the metadata to seal a segment. Repeated, word for word, until it is answered.
    Seal {
        /// What the answer has to carry.
        segment: Ticket,
        /// Where it ends: the first offset that it doesn't hold, and its successor's base.
        end: u64,
        /// Becomes the active one by it.
        successor: SegmentId,
    },
    /// A segment is sealed: write its index, release its handles.
    Finish {
        /// That segment.
        segment: SegmentId,
    },
}

/// The change from one segment to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Switch {
    /// The segment that takes no further offset.
    pub from: SegmentId,
    /// The one that does.
    pub to: SegmentId,
    /// The first offset that `from` doesn't hold, and the base of `to`.
    pub end: u64,
    /// Frames to write again on `to`, with the offsets and payloads that they have. Empty but after a
    /// replica of `from` failed.
    pub reissue: Range<u64>,
    /// What made `from` end here.
    pub trigger: Trigger,
    /// By how much `from` passed its cap.
    pub overrun_bytes: u64,
}

/// What made a segment end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// Its size.
    Size,
    /// Its age.
    Age,
    /// Somebody asked.
    Seal,
    /// A replica of it failed.
    Failure,
}

/// Why an append has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The segment is at its hard limit, and no successor is ready. Nothing was written; wait for
    /// [`Action::Resume`] for as long as you like, then give the producer a retriable error.
    Backpressure,
    /// Another leads this partition, or will.
    Fenced {
        /// The newest epoch heard of.
        epoch: Epoch,
    },
    /// The partition is deleted.
    Deleted,
}

impl Refusal {
    /// Whether the same append, made again to the same leader, can succeed.
    pub fn is_retriable(self) -> bool {
        self == Self::Backpressure
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backpressure => {
                f.write_str("the segment is full and its successor is not ready yet")
            }
            Self::Fenced { epoch } => {
                write!(f, "the partition has a newer leader, of epoch {epoch}")
            }
            Self::Deleted => f.write_str("the partition is deleted"),
        }
    }
}

impl std::error::Error for Refusal {}
