//! What goes into an append and what comes out.

use std::sync::Arc;

use bytes::Bytes;
use sq_storage::Batch;
use sq_storage::log::{Append, Summed};

use super::{LEADER_EPOCH, Unavailable};
use crate::batch::{BatchHeader, assign};
use crate::budget::Held;
use crate::producers::{ProducerStamp, Verdict};

/// A validated record batch, as it came from the client.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// The batch (format version 2), untouched.
    pub bytes: Bytes,
    /// What of it is stored as it is: summed where it came in, while the disk is busy with others.
    rest: Summed,
    /// How many offsets it takes.
    pub record_count: u32,
    /// The greatest timestamp of its records, in milliseconds.
    pub max_timestamp_ms: i64,
    /// Who sent it, if it was an idempotent producer.
    pub producer: Option<ProducerStamp>,
    /// What is held while the batch waits to be stored.
    pub memory: Option<Arc<Held>>,
}

/// A batch that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of its first record.
    pub base_offset: u64,
    /// The log's first offset.
    pub log_start_offset: u64,
}

/// Why a batch was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Neither the producer's next batch nor one of its last.
    #[error("the batch begins at sequence {found}, the producer's next is {expected}")]
    OutOfOrder {
        /// Where it begins.
        found: i32,
        /// Where it should have begun.
        expected: i32,
    },
    /// A later epoch of the producer has written.
    #[error("the producer's epoch is {current} by now, the batch has {found}")]
    StaleEpoch {
        /// The batch's.
        found: i16,
        /// The latest.
        current: i16,
    },
    /// The log did not take it. Whether it may be tried again is for the log to say then.
    #[error("{0}")]
    Storage(Arc<str>),
    /// There was no segment to go to for too long, and nothing was written. It may be tried again.
    #[error("{0}")]
    NoSegment(Arc<str>),
    /// The log could not be opened.
    #[error("the log could not be opened: {0}")]
    Unavailable(Arc<str>),
    /// The partition was closed first.
    #[error("the partition is closed")]
    Closed,
}

impl From<Unavailable> for AppendError {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::Failed(reason) => Self::Unavailable(reason),
            Unavailable::Closed => Self::Closed,
        }
    }
}

impl AppendError {
    /// The error that a verdict stands for, if it is one.
    pub(super) fn of(verdict: Verdict, batch: &ProducerStamp) -> Option<Self> {
        match verdict {
            Verdict::OutOfOrder { expected } => Some(Self::OutOfOrder {
                found: batch.first_sequence,
                expected,
            }),
            Verdict::StaleEpoch { current } => Some(Self::StaleEpoch {
                found: batch.epoch,
                current,
            }),
            Verdict::Append | Verdict::Duplicate { .. } | Verdict::DuplicateInGroup { .. } => None,
        }
    }
}

impl NewBatch {
    /// A batch whose header was validated.
    pub fn new(bytes: Bytes, header: &BatchHeader) -> Self {
        let [_, rest] = assign(&bytes, 0, 0);
        Self {
            bytes,
            rest: Summed::new(rest),
            record_count: u32::try_from(header.record_count).unwrap_or(0),
            max_timestamp_ms: header.max_timestamp,
            producer: ProducerStamp::of(header),
            memory: None,
        }
    }

    /// The same batch, holding its request's memory until it is stored or refused.
    #[must_use]
    pub fn holding(self, memory: &Arc<Held>) -> Self {
        Self {
            memory: Some(Arc::clone(memory)),
            ..self
        }
    }

    /// The batch as it is stored at `base_offset`.
    pub(super) fn at(&self, base_offset: u64) -> Append {
        let base_offset = offset_on_the_wire(base_offset);
        let [front, _] = assign(&self.bytes, base_offset, epoch_on_the_wire());
        let batch = Batch {
            payload: vec![front],
            record_count: self.record_count,
            max_timestamp_ms: self.max_timestamp_ms,
            leader_epoch: LEADER_EPOCH,
        };
        Append::batch_with(batch, self.rest.clone())
    }
}

/// Offsets have 63 bits on the wire, and so they do in the log.
fn offset_on_the_wire(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

const fn epoch_on_the_wire() -> i32 {
    LEADER_EPOCH.cast_signed()
}
