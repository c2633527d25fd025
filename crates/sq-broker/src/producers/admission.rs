//! Deciding about batches that will be written together.

use std::collections::HashMap;

use super::table::{BatchEntry, Producer};
use super::{ProducerStamp, ProducerTable};

/// What is to be done with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Store it, at the offset that was named.
    Append,
    /// It is in the log already.
    Duplicate {
        /// Where.
        base_offset: u64,
    },
    /// It is a copy of a batch of this very group. What becomes of that becomes of this.
    DuplicateInGroup {
        /// Where that batch will be if it can be stored.
        base_offset: u64,
    },
    /// It is neither the next batch nor a remembered one: `OUT_OF_ORDER_SEQUENCE_NUMBER`.
    OutOfOrder {
        /// The sequence it should have begun with.
        expected: i32,
    },
    /// A later epoch of this producer has written: `INVALID_PRODUCER_EPOCH`.
    StaleEpoch {
        /// That epoch.
        current: i16,
    },
}

/// One group's decisions, on top of what the log holds. They leave no trace there; what was stored in
/// the end is told to the table by [`ProducerTable::record`].
#[derive(Debug, Default)]
pub struct Admission {
    now_ms: u64,
    /// The producers of this group, as they will be if all of it is stored.
    staged: HashMap<i64, Staged>,
}

#[derive(Debug)]
struct Staged {
    producer: Producer,
    /// Batches at or above this offset are not in the log yet.
    group_starts_at: u64,
}

impl Admission {
    /// Begins a group; the one before is over.
    pub fn begin(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.staged.clear();
    }

    /// Decides about the next batch, which will get `next_offset` if it is to be stored. `table` is what
    /// the log holds.
    pub fn admit(
        &mut self,
        table: &ProducerTable,
        batch: &ProducerStamp,
        next_offset: u64,
    ) -> Verdict {
        let entry = BatchEntry {
            first_sequence: batch.first_sequence,
            last_sequence: batch.last_sequence(),
            base_offset: next_offset,
        };
        if let Some(staged) = self.staged.get_mut(&batch.producer_id) {
            return match decide(&staged.producer, batch) {
                Verdict::Append => {
                    staged.producer.push(batch.epoch, entry);
                    Verdict::Append
                }
                Verdict::Duplicate { base_offset } if base_offset >= staged.group_starts_at => {
                    Verdict::DuplicateInGroup { base_offset }
                }
                other => other,
            };
        }
        let known = table.get(batch.producer_id, self.now_ms);
        let verdict = known.map_or(Verdict::Append, |producer| decide(producer, batch));
        if verdict == Verdict::Append {
            let mut producer = known.cloned().unwrap_or_else(|| Producer::new(batch.epoch));
            producer.push(batch.epoch, entry);
            let staged = Staged {
                producer,
                group_starts_at: next_offset,
            };
            self.staged.insert(batch.producer_id, staged);
        }
        verdict
    }
}

fn decide(producer: &Producer, batch: &ProducerStamp) -> Verdict {
    if batch.epoch < producer.epoch {
        return Verdict::StaleEpoch {
            current: producer.epoch,
        };
    }
    if batch.epoch > producer.epoch {
        return match batch.first_sequence {
            0 => Verdict::Append,
            _ => Verdict::OutOfOrder { expected: 0 },
        };
    }
    if let Some(entry) = producer.find(batch.first_sequence, batch.last_sequence()) {
        return Verdict::Duplicate {
            base_offset: entry.base_offset,
        };
    }
    match producer.expected() {
        Some(expected) if expected != batch.first_sequence => Verdict::OutOfOrder { expected },
        _ => Verdict::Append,
    }
}
