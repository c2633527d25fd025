//! The task that owns a partition's log.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sq_sim::FileSystem;
use sq_storage::{Action, Error, LogReader, Maintenance, Removal, Retention, WalConfig, WalWriter};
use tokio::sync::{mpsc, watch};

use super::append::{AppendError, Appended};
use super::group::{Entry, Group};
use super::open::{self, Opened};
use super::pause::{self, Pause};
use super::snapshots::Snapshots;
use super::upkeep::Upkeep;
use super::{Close, Command, PartitionEnv, PartitionId, QueuedAppend, Shared, State, Unavailable};
use crate::producers::{Admission, ProducerTable};

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
    commands: mpsc::Receiver<Command>,
    /// A command that was taken from the queue and did not fit the group before it.
    held_back: Option<Command>,
    shared: Arc<Shared>,
    writer: WalWriter<F>,
    reader: LogReader<F>,
    producers: ProducerTable,
    /// Whether something was appended since the log last said how far it is durable.
    unmarked: bool,
    snapshots: Snapshots<F>,
    maintenance: Upkeep<Maintenance<F>>,
    removal: Upkeep<Removal<F>>,
    pause: Pause,
}

impl<F: FileSystem> Start<F> {
    /// Opens the log and serves it. One that can't be opened is tried again after a pause, and after
    /// longer ones: what was short then, open files or memory, may be there now.
    pub(super) async fn run(mut self) {
        let mut pause = pause::FIRST;
        loop {
            let reason = match self.open().await {
                Ok(opened) => return self.serve(opened).await,
                Err(reason) => reason,
            };
            tracing::error!(id = %self.id, reason, ?pause, "partition could not be opened");
            let reason: Arc<str> = reason.into();
            let failed = Unavailable::Failed(Arc::clone(&reason));
            self.state.send_replace(State::Unavailable(failed));
            self.shared.waiters.wake();
            tokio::select! {
                biased;
                () = refuse_all(&mut self.commands, &reason) => return,
                () = self.env.clock.sleep(pause) => {}
            }
            pause = (pause * 2).min(pause::LONGEST);
        }
    }

    async fn open(&self) -> Result<Opened<F>, String> {
        // The semaphore is never closed; should it be, opening goes on unbounded.
        let _permit = self.env.opening.acquire().await;
        open::open(&self.env, &self.id, self.config.clone(), &self.directory).await
    }

    async fn serve(self, opened: Opened<F>) {
        let Opened {
            writer,
            producers,
            snapshot,
        } = opened;
        let reader = writer.reader_through(Arc::clone(&self.env.fs));
        self.state.send_replace(State::Open(reader.clone()));
        let state = self.state;
        let fs = Arc::clone(&self.env.fs);
        let clock = || Arc::clone(&self.env.clock);
        let maintenance = writer.maintenance_through(Arc::clone(&fs));
        let removal = writer.removal_through(Arc::clone(&fs));
        let mut task = Task {
            maintenance: Upkeep::new(self.id.clone(), maintenance, clock()),
            removal: Upkeep::new(self.id.clone(), removal, clock()),
            snapshots: Snapshots::new(fs, self.id.clone(), self.directory, snapshot),
            env: self.env,
            id: self.id,
            commands: self.commands,
            held_back: None,
            shared: Arc::clone(&self.shared),
            reader,
            writer,
            producers,
            unmarked: false,
            pause: Pause::default(),
        };
        // What the last life of the process took out and did not get to remove.
        task.removal.begin_if_due();
        let close = task.run().await;
        state.send_replace(State::Unavailable(Unavailable::Closed));
        self.shared.waiters.wake();
        task.end(close).await;
    }
}

/// Answers for a partition that has no log, until it is closed or nobody has a handle of it. Dropping
/// the future loses no command.
async fn refuse_all(commands: &mut mpsc::Receiver<Command>, reason: &Arc<str>) {
    while let Some(command) = commands.recv().await {
        match command {
            Command::Append(queued) => {
                // An error means that nobody waits for the answer any more; so below.
                let _ = queued
                    .reply
                    .send(Err(AppendError::Unavailable(Arc::clone(reason))));
            }
            Command::Retain(_) => {}
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
                Command::Retain(retention) => self.retain(retention).await,
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

    /// Takes what waits in the queue into one group.
    fn gather(&mut self, first: QueuedAppend) -> Group {
        let now_ms = self.env.clock.wall_ms();
        self.producers.expire(now_ms);
        let admission = Admission::new(&self.producers, now_ms);
        let log = Appended {
            base_offset: self.writer.next_offset(),
            log_start_offset: self.reader.start_offset(),
        };
        let next = || match self.commands.try_recv() {
            Ok(Command::Append(queued)) => Some(queued),
            Ok(other) => {
                self.held_back = Some(other);
                None
            }
            Err(_) => None,
        };
        Group::gather(first, next, self.env.limits.flush_bytes, admission, log)
    }

    /// Writes a group, in as few writes as its segments allow, and answers for all of it.
    async fn store(&mut self, group: Group) {
        let mut entries = group.entries.into_iter();
        let mut rest = group.batches.as_slice();
        let mut failure = None;
        if self.pause.may_try(self.env.clock.now()) {
            self.writer.allow_writes();
        }
        while !rest.is_empty() {
            match self.writer.append_batches(rest).await {
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    self.stored(entries.by_ref().take(count));
                }
                Err(error) => {
                    failure = Some(self.failed(entries, &error));
                    break;
                }
            }
        }
        let (end, start) = (self.writer.next_offset(), self.reader.start_offset());
        group.followers.answer(end, start, failure.as_ref());
        self.snapshots.begin_if_due(&self.producers, end);
        self.maintenance.begin_if_due();
    }

    /// Lets go of what is not to be kept any longer. Its files go behind the appends, in small steps.
    async fn retain(&mut self, retention: Retention) {
        let before = self.reader.start_offset();
        if let Err(error) = self.writer.apply_retention(&retention).await {
            // The next check tries again.
            tracing::warn!(id = %self.id, %error, "retention failed");
        }
        let start = self.reader.start_offset();
        if start != before {
            tracing::info!(id = %self.id, before, start, "old segments are let go of");
        }
        if !self.writer.take_closed().is_empty() {
            self.snapshots.rolled();
        }
        let end = self.writer.next_offset();
        self.snapshots.begin_if_due(&self.producers, end);
        self.maintenance.begin_if_due();
        self.removal.begin_if_due();
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
            entry.stored(log_start_offset);
        }
        self.unmarked = true;
        self.pause.over();
        if !self.writer.take_closed().is_empty() {
            self.snapshots.rolled();
        }
        self.shared
            .appended_bytes
            .fetch_add(bytes, Ordering::Release);
        self.shared.waiters.wake();
    }

    /// Tells of batches that were not stored, and returns why in words.
    fn failed(&mut self, entries: impl Iterator<Item = Entry>, error: &Error) -> Arc<str> {
        let action = error.action();
        tracing::error!(id = %self.id, %error, ?action, "append failed");
        if action == Action::Reopen {
            self.pause.read_only(self.env.clock.now());
        }
        let reason: Arc<str> = error.to_string().into();
        let now_ms = self.env.clock.wall_ms();
        for entry in entries {
            if let Some(producer) = &entry.producer {
                self.producers.record_failure(producer, now_ms);
            }
            entry.failed(&reason);
        }
        reason
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
        // What is being written is in the directory that is about to go.
        self.snapshots.finish().await;
        self.writer.abandon().await;
    }

    /// Leaves a log from which the next opening has the least to find out.
    async fn close(mut self) {
        let end = self.writer.next_offset();
        if let Err(error) = self.writer.close().await {
            // The next opening finds out by itself what is durable.
            tracing::error!(id = %self.id, %error, "the log was not closed cleanly");
            self.snapshots.finish().await;
            return;
        }
        // Where nothing was ever appended there is not even a directory.
        if end > 0 {
            self.snapshots.write(&self.producers, end).await;
        }
    }
}
