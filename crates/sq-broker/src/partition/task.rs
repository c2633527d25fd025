//! The task that owns a partition's log.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sq_sim::{FileSystem, Instant};
use sq_storage::{Action, Batch, LogReader, WalConfig, WalWriter};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::append::{AppendError, Appended};
use super::open::{self, Opened};
use super::{
    Close, Command, PartitionEnv, PartitionId, QueuedAppend, Shared, State, Unavailable, snapshots,
};
use crate::producers::{Admission, ProducerStamp, ProducerTable, Verdict};

/// What a task begins with.
pub(super) struct Start<F: FileSystem> {
    pub(super) env: Arc<PartitionEnv<F>>,
    pub(super) id: PartitionId,
    pub(super) config: WalConfig,
    pub(super) directory: PathBuf,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) state: watch::Sender<State<F>>,
    pub(super) shared: Arc<Shared>,
}

struct Task<F: FileSystem> {
    env: Arc<PartitionEnv<F>>,
    id: PartitionId,
    directory: PathBuf,
    commands: mpsc::Receiver<Command>,
    /// A command that was taken from the queue and did not fit the group before it.
    held_back: Option<Command>,
    shared: Arc<Shared>,
    writer: WalWriter<F>,
    reader: LogReader<F>,
    producers: ProducerTable,
    /// Whether something was appended since the log last said how far it is durable.
    unmarked: bool,
    /// Whether the log rolled since the last producer snapshot was begun.
    snapshot_due: bool,
    snapshot: Option<JoinHandle<()>>,
    /// While the log takes no writes: when it is asked to again, and how long the next wait is.
    read_only: Option<(Instant, Duration)>,
}

/// How long a log that has become read-only is left alone at first; doubled each time it becomes so
/// again without a good append in between, up to [`LONGEST_PAUSE`]. A disk that was full, or a device
/// that came back, is written to again without a restart, and one that keeps failing is not made to
/// fill with abandoned files.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

type Reply = oneshot::Sender<Result<Appended, AppendError>>;

/// What is written together.
#[derive(Default)]
struct Group {
    batches: Vec<Batch>,
    /// One for each batch.
    entries: Vec<Entry>,
    /// Copies of a batch of this group, with the offset of that.
    followers: Vec<(u64, Reply)>,
}

struct Entry {
    base_offset: u64,
    bytes: u64,
    producer: Option<ProducerStamp>,
    reply: Reply,
    /// Room in the queue, taken until the batch is stored.
    _room: OwnedSemaphorePermit,
}

impl<F: FileSystem> Start<F> {
    pub(super) async fn run(mut self) {
        let opened = {
            // The semaphore is never closed; should it be, opening goes on unbounded.
            let _permit = self.env.opening.acquire().await;
            open::open(&self.env, &self.id, self.config.clone(), &self.directory).await
        };
        match opened {
            Ok(Opened { writer, producers }) => {
                let reader = writer.reader_through(Arc::clone(&self.env.fs));
                self.state.send_replace(State::Open(reader.clone()));
                let state = self.state;
                let mut task = Task {
                    env: self.env,
                    id: self.id,
                    directory: self.directory,
                    commands: self.commands,
                    held_back: None,
                    shared: Arc::clone(&self.shared),
                    reader,
                    writer,
                    producers,
                    unmarked: false,
                    snapshot_due: false,
                    snapshot: None,
                    read_only: None,
                };
                let close = task.run().await;
                state.send_replace(State::Unavailable(Unavailable::Closed));
                self.shared.waiters.wake();
                task.end(close).await;
            }
            Err(reason) => {
                tracing::error!(id = %self.id, reason, "partition could not be opened");
                let reason: Arc<str> = reason.into();
                let failed = Unavailable::Failed(Arc::clone(&reason));
                self.state.send_replace(State::Unavailable(failed));
                self.shared.waiters.wake();
                refuse_all(&mut self.commands, &reason).await;
            }
        }
    }
}

/// Answers for a partition that has no log, until it is closed.
async fn refuse_all(commands: &mut mpsc::Receiver<Command>, reason: &Arc<str>) {
    while let Some(command) = commands.recv().await {
        match command {
            Command::Append(queued) => {
                // An error means that nobody waits for the answer any more; so below.
                let _ = queued
                    .reply
                    .send(Err(AppendError::Unavailable(Arc::clone(reason))));
            }
            Command::Close(close) => {
                let _ = close.done.send(());
                return;
            }
        }
    }
}

impl<F: FileSystem> Task<F> {
    /// Serves appends until the partition is closed or its last handle is gone.
    async fn run(&mut self) -> Option<Close> {
        loop {
            match self.next().await? {
                Command::Close(close) => return Some(close),
                Command::Append(first) => {
                    let group = self.gather(first);
                    self.store(group).await;
                }
            }
        }
    }

    /// The next command. Marks the log while there is none for a moment.
    async fn next(&mut self) -> Option<Command> {
        if let Some(command) = self.held_back.take() {
            return Some(command);
        }
        if self.unmarked {
            let clock = Arc::clone(&self.env.clock);
            tokio::select! {
                biased;
                command = self.commands.recv() => return command,
                () = clock.sleep(self.env.limits.mark_after) => self.mark().await,
            }
        }
        self.commands.recv().await
    }

    async fn mark(&mut self) {
        self.unmarked = false;
        if let Err(error) = self.writer.mark().await {
            // Nothing depends on it: the next append or the next opening says the same.
            tracing::warn!(id = %self.id, %error, "the log could not be marked");
        }
    }

    /// Takes what waits in the queue into one group, and answers at once what needs no writing.
    fn gather(&mut self, first: QueuedAppend) -> Group {
        let now_ms = self.env.clock.wall_ms();
        self.producers.expire(now_ms);
        let mut admission = Admission::new(&self.producers, now_ms);
        let mut group = Group::default();
        let mut next_offset = self.writer.next_offset();
        let mut bytes = 0;
        let mut waiting = Some(first);
        while let Some(queued) = waiting.take() {
            bytes += queued.batch.bytes.len();
            let verdict = queued
                .batch
                .producer
                .as_ref()
                .map_or(Verdict::Append, |producer| {
                    admission.admit(producer, next_offset)
                });
            match verdict {
                Verdict::Append => {
                    let base_offset = next_offset;
                    next_offset += u64::from(queued.batch.record_count);
                    group.add(queued, base_offset);
                }
                Verdict::Duplicate { base_offset } => {
                    let log_start_offset = self.reader.start_offset();
                    let _ = queued.reply.send(Ok(Appended {
                        base_offset,
                        log_start_offset,
                    }));
                }
                Verdict::DuplicateInGroup { base_offset } => {
                    group.followers.push((base_offset, queued.reply));
                }
                refused @ (Verdict::OutOfOrder { .. } | Verdict::StaleEpoch { .. }) => {
                    let error = queued
                        .batch
                        .producer
                        .and_then(|p| AppendError::of(refused, &p));
                    let _ = queued.reply.send(Err(error.unwrap_or(AppendError::Closed)));
                }
            }
            if bytes < self.env.limits.flush_bytes {
                match self.commands.try_recv() {
                    Ok(Command::Append(queued)) => waiting = Some(queued),
                    Ok(close @ Command::Close(_)) => self.held_back = Some(close),
                    Err(_) => {}
                }
            }
        }
        group
    }

    /// Writes a group, in as few writes as its segments allow, and answers for all of it.
    async fn store(&mut self, group: Group) {
        let Group {
            batches,
            entries,
            followers,
        } = group;
        let mut entries = entries.into_iter();
        let mut rest = batches.as_slice();
        let mut failure = None;
        self.lift_read_only();
        while !rest.is_empty() {
            match self.writer.append_batches(rest).await {
                Ok(count) => {
                    self.read_only = None;
                    let (_, behind) = rest.split_at_checked(count).unwrap_or((rest, &[]));
                    rest = behind;
                    self.stored(entries.by_ref().take(count));
                }
                Err(error) => {
                    tracing::error!(id = %self.id, %error, action = ?error.action(), "append failed");
                    self.note_read_only(&error);
                    let reason: Arc<str> = error.to_string().into();
                    self.failed(entries.by_ref(), &reason);
                    failure = Some(reason);
                    break;
                }
            }
        }
        let log_start_offset = self.reader.start_offset();
        for (base_offset, reply) in followers {
            let outcome = match &failure {
                Some(reason) if base_offset >= self.writer.next_offset() => {
                    Err(AppendError::Storage(Arc::clone(reason)))
                }
                _ => Ok(Appended {
                    base_offset,
                    log_start_offset,
                }),
            };
            let _ = reply.send(outcome);
        }
        self.begin_snapshot_if_due();
    }

    /// Notes when a log that has become read-only is to be tried again.
    fn note_read_only(&mut self, error: &sq_storage::Error) {
        let now = self.env.clock.now();
        if error.action() == Action::Reopen && self.read_only.is_none_or(|(until, _)| now >= until)
        {
            let pause = self.read_only.map_or(FIRST_PAUSE, |(_, pause)| pause);
            self.read_only = Some((now + pause, (pause * 2).min(LONGEST_PAUSE)));
        }
    }

    /// Lets a read-only log be written to once its pause is over.
    fn lift_read_only(&mut self) {
        if self
            .read_only
            .is_some_and(|(until, _)| self.env.clock.now() >= until)
        {
            self.writer.allow_writes();
        }
    }

    /// Tells of batches that are durable.
    fn stored(&mut self, entries: impl Iterator<Item = Entry>) {
        let now_ms = self.env.clock.wall_ms();
        let log_start_offset = self.reader.start_offset();
        let mut bytes = 0;
        for entry in entries {
            if let Some(producer) = &entry.producer {
                self.producers.record(producer, entry.base_offset, now_ms);
            }
            bytes += entry.bytes;
            let base_offset = entry.base_offset;
            let _ = entry.reply.send(Ok(Appended {
                base_offset,
                log_start_offset,
            }));
        }
        self.unmarked = true;
        self.snapshot_due |= !self.writer.take_closed().is_empty();
        self.shared
            .appended_bytes
            .fetch_add(bytes, Ordering::Release);
        self.shared.waiters.wake();
    }

    /// Tells of batches that were not stored.
    fn failed(&mut self, entries: impl Iterator<Item = Entry>, reason: &Arc<str>) {
        let now_ms = self.env.clock.wall_ms();
        for entry in entries {
            if let Some(producer) = &entry.producer {
                self.producers.record_failure(producer, now_ms);
            }
            let _ = entry
                .reply
                .send(Err(AppendError::Storage(Arc::clone(reason))));
        }
    }

    /// Writes a producer snapshot beside the appends: a sync of it must hold none of them up. While
    /// one is being written the next waits, and then covers what came in between.
    fn begin_snapshot_if_due(&mut self) {
        if !self.snapshot_due || self.snapshot.as_ref().is_some_and(|job| !job.is_finished()) {
            return;
        }
        self.snapshot_due = false;
        let (env, id, directory) = (
            Arc::clone(&self.env),
            self.id.clone(),
            self.directory.clone(),
        );
        let offset = self.writer.next_offset();
        let content = self.producers.encode_snapshot(offset);
        self.snapshot = Some(tokio::spawn(async move {
            if let Err(error) = snapshots::write(&*env.fs, &directory, offset, content).await {
                tracing::warn!(%id, offset, %error, "producer snapshot not written");
            }
        }));
    }

    async fn end(self, close: Option<Close>) {
        match close {
            Some(Close { done, discard }) => {
                if discard {
                    self.discard().await;
                } else {
                    self.close().await;
                }
                // An error means that whoever closed the partition is gone.
                let _ = done.send(());
            }
            None => self.close().await,
        }
    }

    /// Lets go of a log that will be deleted.
    async fn discard(self) {
        if let Some(job) = self.snapshot {
            // It writes into the directory that is about to go; it reports its own failure.
            let _ = job.await;
        }
    }

    /// Leaves a log from which the next opening has the least to find out.
    async fn close(self) {
        let Self {
            env,
            id,
            directory,
            writer,
            producers,
            snapshot,
            ..
        } = self;
        if let Some(job) = snapshot {
            // It reports its own failure.
            let _ = job.await;
        }
        let offset = writer.next_offset();
        if let Err(error) = writer.close().await {
            // The next opening finds out by itself what is durable.
            tracing::error!(%id, %error, "the log was not closed cleanly");
            return;
        }
        if offset == 0 {
            // Nothing was ever appended: there is not even a directory.
            return;
        }
        let content = producers.encode_snapshot(offset);
        if let Err(error) = snapshots::write(&*env.fs, &directory, offset, content).await {
            tracing::warn!(%id, offset, %error, "producer snapshot not written");
        }
    }
}

impl Group {
    fn add(&mut self, queued: QueuedAppend, base_offset: u64) {
        self.batches.push(queued.batch.at(base_offset));
        self.entries.push(Entry {
            base_offset,
            bytes: queued.batch.bytes.len() as u64,
            producer: queued.batch.producer,
            reply: queued.reply,
            _room: queued.room,
        });
    }
}
