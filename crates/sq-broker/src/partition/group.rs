//! Batches that are written together.

use std::sync::Arc;

use sq_storage::Batch;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::QueuedAppend;
use super::append::{AppendError, Appended};
use crate::budget::Held;
use crate::producers::{Admission, ProducerStamp, Verdict};

type Reply = oneshot::Sender<Result<Appended, AppendError>>;

/// What is written together.
#[derive(Default)]
pub(super) struct Group {
    pub(super) batches: Vec<Batch>,
    /// One for each batch.
    pub(super) entries: Vec<Entry>,
    pub(super) followers: Followers,
}

/// Who waits for a batch of a group.
pub(super) struct Entry {
    pub(super) base_offset: u64,
    /// The batch's size in bytes.
    pub(super) bytes: u64,
    pub(super) producer: Option<ProducerStamp>,
    reply: Reply,
    /// Room in the queue, taken until the batch is stored.
    _room: OwnedSemaphorePermit,
    /// Its request's memory, with what else of that request is not stored yet.
    _memory: Option<Arc<Held>>,
}

/// Who waits with a copy of a batch of the same group, and for the offset of which.
#[derive(Default)]
pub(super) struct Followers(Vec<(u64, Reply)>);

impl Group {
    /// Takes `first` and what `next` gives into a group, until it has `most` bytes or `next` has no
    /// more. What needs no writing is answered at once.
    pub(super) fn gather(
        first: QueuedAppend,
        mut next: impl FnMut() -> Option<QueuedAppend>,
        most: usize,
        mut admission: Admission<'_>,
        log: Appended,
    ) -> Self {
        let mut group = Self::default();
        let mut next_offset = log.base_offset;
        let mut bytes = 0;
        let mut waiting = Some(first);
        while let Some(queued) = waiting {
            bytes += queued.batch.bytes.len();
            let verdict = match &queued.batch.producer {
                Some(producer) => admission.admit(producer, next_offset),
                None => Verdict::Append,
            };
            match verdict {
                Verdict::Append => {
                    let base_offset = next_offset;
                    next_offset += u64::from(queued.batch.record_count);
                    group.add(queued, base_offset);
                }
                Verdict::DuplicateInGroup { base_offset } => {
                    group.followers.0.push((base_offset, queued.reply));
                }
                Verdict::Duplicate { base_offset } => {
                    // An error means that nobody waits for the answer any more; so below.
                    let _ = queued.reply.send(Ok(Appended { base_offset, ..log }));
                }
                Verdict::OutOfOrder { .. } | Verdict::StaleEpoch { .. } => {
                    let producer = queued.batch.producer;
                    let error = producer.and_then(|p| AppendError::of(verdict, &p));
                    let _ = queued.reply.send(Err(error.unwrap_or(AppendError::Closed)));
                }
            }
            waiting = if bytes < most { next() } else { None };
        }
        group
    }

    fn add(&mut self, queued: QueuedAppend, base_offset: u64) {
        self.batches.push(queued.batch.at(base_offset));
        self.entries.push(Entry {
            base_offset,
            bytes: queued.batch.bytes.len() as u64,
            producer: queued.batch.producer,
            reply: queued.reply,
            _room: queued.room,
            _memory: queued.batch.memory,
        });
    }
}

impl Entry {
    /// Says that the batch is durable.
    pub(super) fn stored(self, log_start_offset: u64) {
        let base_offset = self.base_offset;
        let _ = self.reply.send(Ok(Appended {
            base_offset,
            log_start_offset,
        }));
    }

    /// Says that the batch was not stored.
    pub(super) fn failed(self, reason: &Arc<str>) {
        let _ = self
            .reply
            .send(Err(AppendError::Storage(Arc::clone(reason))));
    }
}

impl Followers {
    /// Says what became of the batches: those from `end` on failed.
    pub(super) fn answer(self, end: u64, log_start_offset: u64, failure: Option<&Arc<str>>) {
        for (base_offset, reply) in self.0 {
            let outcome = match failure {
                Some(reason) if base_offset >= end => Err(AppendError::Storage(Arc::clone(reason))),
                _ => Ok(Appended {
                    base_offset,
                    log_start_offset,
                }),
            };
            let _ = reply.send(outcome);
        }
    }
}
