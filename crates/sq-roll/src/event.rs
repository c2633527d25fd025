//! What the state machine is told.

use crate::{Epoch, SegmentId, Ticket};

/// Something that happened. Times are handed to [`Roll::on`](crate::Roll::on) beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A group of records is about to be written, as one frame, or as several that fit
    /// [`Roll::room`](crate::Roll::room) together. Answered by
    /// [`Action::Write`](crate::Action::Write), possibly behind a switch, or by
    /// [`Action::Refuse`](crate::Action::Refuse).
    Append {
        /// The length of what is written.
        bytes: u64,
        /// How many offsets it takes; at least one.
        records: u64,
    },
    /// The end of what was last answered by [`Action::Write`](crate::Action::Write) was not written
    /// after all, and no other broker has heard of it: its offsets are given anew.
    Withdrawn {
        /// The length of what was not written.
        bytes: u64,
        /// How many offsets it would have taken.
        records: u64,
    },
    /// Frames that take no offset went to the active segment: frames that an action asked to write
    /// again, marks.
    Accounted {
        /// Their total length.
        bytes: u64,
    },
    /// Time passed. Wanted at [`Roll::deadline`](crate::Roll::deadline); harmless at any other time.
    Tick,
    /// Every replica of `segment` has all of its frames below `end` on disk, and said so unfenced.
    Durable {
        /// A segment that this leader wrote.
        segment: SegmentId,
        /// The first offset that is not durable on all of them.
        end: u64,
    },
    /// A replica of `segment` can't be written any more: a failed sync, a lost broker.
    ReplicaFailed {
        /// A segment that this leader writes.
        segment: SegmentId,
    },
    /// A successor is ready: its placement is committed, and every replica has its file, a tracker and
    /// a connection.
    Ready {
        /// From [`Action::Request`](crate::Action::Request).
        successor: Ticket,
    },
    /// A preparation failed.
    PrepareFailed {
        /// From [`Action::Request`](crate::Action::Request).
        successor: Ticket,
        /// Whether asking again can help.
        failure: PrepareFailure,
    },
    /// An abandonment is committed: no failover will find that successor.
    Abandoned {
        /// From [`Action::Abandon`](crate::Action::Abandon).
        successor: Ticket,
    },
    /// A seal is committed.
    Sealed {
        /// From [`Action::Seal`](crate::Action::Seal).
        segment: Ticket,
    },
    /// Somebody wants the active segment closed, such as retention when all of its records expired.
    SealRequested,
    /// A newer leader's epoch was heard of.
    Fenced {
        /// That epoch.
        epoch: Epoch,
    },
    /// The partition is deleted.
    Deleted,
}

/// Why a preparation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrepareFailure {
    /// Not done, or not known to be done: the same request is made again after a pause.
    Retry,
    /// The placement is committed, and that successor can never be ready, since a replica of it is
    /// lost: it is abandoned, and another is asked for.
    Final,
}
