//! What a partition remembers of its idempotent producers, so that a retry is not stored twice
//! (KIP-98, KIP-360).
//!
//! [`ProducerTable`] is what the log says: the last batches of every producer that is remembered.
//! [`Admission`] decides about a group of batches that will be written together, before any of them
//! is durable. Neither has a clock or does I/O.

mod admission;
mod sequence;
mod snapshot;
mod table;

pub use admission::{Admission, Verdict};
pub use snapshot::SnapshotDamage;
pub use table::{BatchEntry, ProducerLimits, ProducerTable};

use crate::batch::BatchHeader;

/// What a batch says about who sent it. Only batches of idempotent producers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStamp {
    /// The producer's id, not negative.
    pub producer_id: i64,
    /// The producer's epoch, not negative.
    pub epoch: i16,
    /// The sequence of the batch's first record, not negative.
    pub first_sequence: i32,
    /// How many records it has, at least one.
    pub record_count: u32,
}

impl ProducerStamp {
    /// What a batch's header says, if an idempotent producer sent it.
    pub fn of(header: &BatchHeader) -> Option<Self> {
        header.is_idempotent().then_some(Self {
            producer_id: header.producer_id,
            epoch: header.producer_epoch,
            first_sequence: header.base_sequence,
            record_count: u32::try_from(header.record_count).unwrap_or(0),
        })
    }

    /// The sequence of the last record. Sequences go from `i32::MAX` on to 0.
    pub fn last_sequence(&self) -> i32 {
        sequence::advance(self.first_sequence, self.record_count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests;
