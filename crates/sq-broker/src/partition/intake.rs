//! What is decided about batches where they are written: which are retries, where each goes, and what
//! is to be done behind them.

use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use sq_sim::FileSystem;
use sq_storage::log::{Append, Head as _, Intake, Outcome, Stage};
use sq_storage::{Action, Error, LogReader, Maintenance, Removal, Retention, WalWriter};

use super::append::{AppendError, Appended, NewBatch};
use super::delete::{DeleteError, DeleteTo};
use super::gather::{Producers, SharedProducers};
use super::head::PartitionHead;
use super::later::{self, Later};
use super::open::Opened;
use super::pause::Pause;
use super::upkeep::Upkeep;
use super::{PartitionEnv, PartitionId, Shared};
use crate::budget::Held;
use crate::producers::{Admission, ProducerStamp, Verdict};

/// What became of a batch.
pub(super) type Answer = Result<Appended, AppendError>;

/// A batch that is being written, or a copy of one.
pub(super) struct Staged {
    base_offset: u64,
    /// The batch is stored if the log reaches this offset.
    end_offset: u64,
    /// The batch's size in bytes; of a copy, none.
    bytes: usize,
    producer: Option<ProducerStamp>,
    /// Its request's memory, with what else of that request is not stored yet.
    _memory: Option<Arc<Held>>,
}

/// The intake of one partition's log. It alone decides about duplicates, since it alone knows what is
/// in flight.
pub(super) struct Batches<F: FileSystem> {
    env: Arc<PartitionEnv<F>>,
    id: PartitionId,
    shared: Weak<Shared<F>>,
    reader: LogReader<F>,
    producers: SharedProducers,
    admission: Admission,
    /// The log's start when the turn began.
    log_start_offset: u64,
    /// The wall clock when the turn began.
    now_ms: u64,
    /// Bytes of batches that were stored since the last turn's end.
    stored_bytes: usize,
    /// Why the turn failed, in words.
    reason: Option<Arc<str>>,
    pause: Pause,
    later: Later,
    maintenance: Upkeep<Maintenance<F>>,
    removal: Upkeep<Removal<F>>,
}

/// Nobody else ever waits for it for long: a sidecar is made of it between two turns' decisions.
fn lock(producers: &SharedProducers) -> MutexGuard<'_, Producers> {
    producers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FileSystem> Batches<F> {
    /// The intake of a log that was just opened, and its writer.
    pub(super) fn new(
        env: Arc<PartitionEnv<F>>,
        id: PartitionId,
        shared: Weak<Shared<F>>,
        opened: Opened<F>,
    ) -> (Self, PartitionHead<F>) {
        let Opened { head, producers } = opened;
        let writer = head.writer();
        let (fs, clock, runtime) = (&env.fs, &env.clock, &env.runtime);
        let maintenance = writer.maintenance_through(Arc::clone(fs));
        let removal = writer.removal_through(Arc::clone(fs));
        let intake = Self {
            reader: writer.reader_through(Arc::clone(fs)),
            maintenance: Upkeep::new(id.clone(), maintenance, Arc::clone(clock), runtime.clone()),
            removal: Upkeep::new(id.clone(), removal, Arc::clone(clock), runtime.clone()),
            shared,
            producers,
            admission: Admission::default(),
            log_start_offset: 0,
            now_ms: 0,
            stored_bytes: 0,
            reason: None,
            pause: Pause::default(),
            later: Later::default(),
            id,
            env,
        };
        // What the last life of the process took out and did not get to remove.
        intake.removal.begin_if_due();
        (intake, head)
    }

    pub(super) fn reader(&self) -> LogReader<F> {
        self.reader.clone()
    }

    /// Lets go of what is not to be kept any longer. Its files go behind the appends, in small steps.
    pub(super) async fn retain(&mut self, writer: &mut WalWriter<F>, retention: Retention) {
        let before = self.reader.start_offset();
        if let Err(error) = writer.apply_retention(&retention).await {
            // The next check tries again.
            tracing::warn!(id = %self.id, %error, "retention failed");
        }
        let start = self.reader.start_offset();
        if start != before {
            tracing::info!(id = %self.id, before, start, "old segments are let go of");
        }
        self.look_after(writer);
        self.removal.begin_if_due();
    }

    /// Deletes records, and says where the log begins then. Appends go on in the segment that they went
    /// to; the files of those of which nothing is left go behind the appends, in small steps.
    pub(super) async fn delete(
        &mut self,
        head: &mut PartitionHead<F>,
        to: DeleteTo,
    ) -> Result<u64, DeleteError> {
        let offset = to.within(self.reader.end_offset())?;
        let before = self.reader.start_offset();
        // Where a sync fails, what it left in memory finds its place in the next segment first.
        let deleted = match head.sync().await {
            Ok(()) => head.writer_mut().advance_start(offset).await,
            failed => failed,
        };
        self.look_after(head.writer_mut());
        self.removal.begin_if_due();
        if let Err(error) = deleted {
            tracing::error!(id = %self.id, offset, %error, "records could not be deleted");
            return Err(DeleteError::Storage(error.to_string().into()));
        }
        let start = self.reader.start_offset();
        if start != before {
            tracing::info!(id = %self.id, before, start, "records are deleted");
        }
        Ok(start)
    }

    /// Has the log say how far it is durable.
    pub(super) async fn mark(&mut self, writer: &mut WalWriter<F>) {
        self.later.is_to_mark = false;
        if let Err(error) = writer.mark().await {
            // Nothing depends on it: the next append or the next opening says the same.
            tracing::warn!(id = %self.id, %error, "the log could not be marked");
        }
    }

    /// Makes durable what was acknowledged. Whether that is to be tried again.
    pub(super) async fn sync(&mut self, head: &mut PartitionHead<F>) -> bool {
        let synced = head.sync().await;
        if let Err(error) = &synced {
            tracing::error!(id = %self.id, %error, "acknowledged records are not durable yet");
        }
        self.later.is_to_sync = synced.is_err();
        synced.is_err()
    }

    /// Leaves a log from which the next opening has the least to find out.
    pub(super) async fn close(&mut self, head: PartitionHead<F>) {
        if let Err(error) = head.close().await {
            // The next opening finds out by itself what is durable.
            tracing::error!(id = %self.id, %error, "the log was not closed cleanly");
        }
    }

    fn producers(&self) -> MutexGuard<'_, Producers> {
        lock(&self.producers)
    }

    /// Begins what the log leaves to be done behind its appends.
    fn look_after(&mut self, writer: &mut WalWriter<F>) {
        // What is to be known of them is in their sidecars.
        drop(writer.take_closed());
        self.maintenance.begin_if_due();
    }

    fn appended(&self, base_offset: u64) -> Appended {
        Appended {
            base_offset,
            log_start_offset: self.log_start_offset,
        }
    }

    /// Notes why a turn failed, and gives it in words.
    fn reason(&mut self, error: &Error) -> Arc<str> {
        if let Some(reason) = &self.reason {
            return Arc::clone(reason);
        }
        let action = error.action();
        tracing::error!(id = %self.id, %error, ?action, "append failed");
        if action == Action::Reopen {
            self.pause.read_only(self.env.clock.now());
        }
        let reason: Arc<str> = error.to_string().into();
        Arc::clone(self.reason.insert(reason))
    }
}

impl<F: FileSystem> Intake<F> for Batches<F> {
    type Entry = NewBatch;
    type Staged = Staged;
    type Answer = Answer;

    fn bytes(batch: &NewBatch) -> usize {
        batch.bytes.len()
    }

    fn begin(&mut self, writer: &mut WalWriter<F>) {
        self.now_ms = self.env.clock.wall_ms();
        self.log_start_offset = self.reader.start_offset();
        {
            let mut producers = self.producers();
            producers.end_offset = writer.next_offset();
            producers.table.expire(self.now_ms);
        }
        self.admission.begin(self.now_ms);
        if self.pause.may_try(self.env.clock.now()) {
            writer.allow_writes();
        }
    }

    fn stage(
        &mut self,
        batch: NewBatch,
        offset: u64,
        frames: &mut Vec<Append>,
    ) -> Stage<Staged, Answer> {
        let verdict = match &batch.producer {
            Some(producer) => {
                // Not through a method, as the admission is changed meanwhile.
                let producers = lock(&self.producers);
                self.admission.admit(&producers.table, producer, offset)
            }
            None => Verdict::Append,
        };
        match verdict {
            Verdict::Append => {
                frames.push(batch.at(offset));
                Stage::Settle(Staged {
                    base_offset: offset,
                    end_offset: offset.saturating_add(u64::from(batch.record_count)),
                    bytes: batch.bytes.len(),
                    producer: batch.producer,
                    _memory: batch.memory,
                })
            }
            Verdict::DuplicateInGroup { base_offset } => Stage::Settle(Staged {
                base_offset,
                end_offset: base_offset.saturating_add(1),
                bytes: 0,
                producer: None,
                _memory: None,
            }),
            Verdict::Duplicate { base_offset } => Stage::Answer(Ok(self.appended(base_offset))),
            Verdict::OutOfOrder { .. } | Verdict::StaleEpoch { .. } => {
                let producer = batch.producer;
                let error = producer.and_then(|p| AppendError::of(verdict, &p));
                Stage::Answer(Err(error.unwrap_or(AppendError::Closed)))
            }
        }
    }

    fn settle(&mut self, staged: Staged, outcome: Outcome<'_>) -> Answer {
        let failure = match outcome.failure {
            Some(failure) if staged.end_offset > outcome.end_offset => failure,
            _ => {
                let (base_offset, now_ms) = (staged.base_offset, self.now_ms);
                let mut producers = self.producers();
                if let Some(producer) = &staged.producer {
                    producers.table.record(producer, base_offset, now_ms);
                }
                producers.end_offset = producers.end_offset.max(staged.end_offset);
                drop(producers);
                self.stored_bytes += staged.bytes;
                return Ok(self.appended(staged.base_offset));
            }
        };
        let reason = self.reason(failure);
        if let Some(producer) = &staged.producer {
            let now_ms = self.now_ms;
            self.producers().table.record_failure(producer, now_ms);
        }
        Err(match **failure {
            // Another leads by now, or nobody: whoever sent it has to ask again.
            Error::Stopped { .. } => AppendError::Closed,
            Error::NoSuccessor { .. } => AppendError::NoSegment(reason),
            _ => AppendError::Storage(reason),
        })
    }

    fn end(&mut self, writer: &mut WalWriter<F>, _outcome: Outcome<'_>) {
        if self.reason.take().is_some() {
            // On a full disk a file that is kept to be written again makes room.
            self.removal.begin_if_due();
        }
        let stored = std::mem::take(&mut self.stored_bytes);
        if stored > 0 {
            self.pause.over();
            if let Some(shared) = self.shared.upgrade() {
                shared.appended(stored as u64);
                later::begin_if_due(&self.env, &shared, &mut self.later, writer);
            }
        }
        self.look_after(writer);
    }

    fn closed() -> Answer {
        Err(AppendError::Closed)
    }
}
