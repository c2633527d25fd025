//! One partition: the task that owns its log, and the handle that everybody else has.
//!
//! Appends go through a queue that is bounded in entries and bytes. The task takes all that waits
//! into one write and one sync, so a batch that arrives while the disk is busy shares the next sync
//! with every other that did. It alone decides about duplicates, since it alone knows what is in
//! flight. Reads do not go through the task.

mod append;
mod group;
mod open;
mod pause;
mod snapshots;
mod task;
mod upkeep;
mod waiters;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sq_sim::{Clock, FileSystem};
use sq_storage::{LogReader, Retention, TopicName, WalConfig};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

pub use append::{AppendError, Appended, NewBatch};
pub use waiters::WaitGuard;

use crate::producers::ProducerLimits;
use waiters::Waiters;

/// The epoch of the leader of every partition while there is one broker.
pub const LEADER_EPOCH: u32 = 0;

/// What all partitions of a broker share.
#[derive(Debug)]
pub struct PartitionEnv<F: FileSystem> {
    /// Where the logs are, for readers and all that is not an append.
    pub fs: Arc<F>,
    /// Where appends are made.
    pub appends: Appends<F>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// What is kept in mind and how much of it.
    pub limits: PartitionLimits,
    /// What their logs have in common: where they are, where segment ids come from, and what bounds
    /// them together.
    pub wal: WalConfig,
    /// Bounds how many partitions are opened at a time.
    pub opening: Semaphore,
}

/// How appends reach the disk.
///
/// On a runtime of their own, whose file system works on the thread it is called on, an append goes
/// from its connection to the disk and back with one hop each way: a write and a sync that are handed
/// on to a pool would cost another two.
#[derive(Debug)]
pub struct Appends<F: FileSystem> {
    /// The same files as those of readers; may block the thread if the runtime is the appends' own.
    pub fs: Arc<F>,
    /// Where the partitions' tasks run; the caller's runtime if there is none.
    pub runtime: Option<Handle>,
}

/// Bounds of one partition.
#[derive(Clone, Copy, Debug)]
pub struct PartitionLimits {
    /// Batches that wait to be written.
    pub queue_entries: usize,
    /// Bytes of batches that wait to be written or are being written. A larger batch waits until it
    /// is alone.
    pub queue_bytes: u32,
    /// A write takes no further batch once it has this many bytes.
    pub flush_bytes: usize,
    /// How long after an append the log says by itself how far it is durable.
    pub mark_after: Duration,
    /// Idempotent producers.
    pub producers: ProducerLimits,
}

impl Default for PartitionLimits {
    fn default() -> Self {
        Self {
            queue_entries: 1024,
            queue_bytes: 16 << 20,
            flush_bytes: 1 << 20,
            mark_after: Duration::from_millis(100),
            producers: ProducerLimits::default(),
        }
    }
}

/// Which partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// Of which topic.
    pub topic: TopicName,
    /// Its number.
    pub partition: u32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// Why a partition cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It could not be opened; it is tried again after a while.
    #[error("the log could not be opened: {0}")]
    Failed(Arc<str>),
    /// It was closed: the topic is deleted or the broker stops.
    #[error("the partition is closed")]
    Closed,
}

#[derive(Clone, Debug)]
enum State<F: FileSystem> {
    Opening,
    Open(LogReader<F>),
    Unavailable(Unavailable),
}

/// The handle of a partition.
#[derive(Debug)]
pub struct Partition<F: FileSystem> {
    id: PartitionId,
    queue: mpsc::Sender<Command>,
    queue_bytes: Arc<Semaphore>,
    queue_bytes_limit: u32,
    state: watch::Receiver<State<F>>,
    shared: Arc<Shared>,
}

/// What the task tells its handles beside the state.
#[derive(Debug, Default)]
struct Shared {
    waiters: Waiters,
    appended_bytes: AtomicU64,
}

#[derive(Debug)]
enum Command {
    Append(QueuedAppend),
    Retain(Retention),
    Close(Close),
}

#[derive(Debug)]
struct Close {
    done: oneshot::Sender<()>,
    /// The log will be deleted: nothing need be made durable.
    discard: bool,
}

#[derive(Debug)]
struct QueuedAppend {
    batch: NewBatch,
    reply: oneshot::Sender<Result<Appended, AppendError>>,
    /// Given back when the append is over.
    room: OwnedSemaphorePermit,
}

/// An append on its way. Dropping it does not take the append back.
#[derive(Debug)]
pub struct PendingAppend(oneshot::Receiver<Result<Appended, AppendError>>);

impl PendingAppend {
    /// Waits until the batch is durable or has failed.
    ///
    /// # Errors
    /// Why it was not stored.
    pub async fn outcome(self) -> Result<Appended, AppendError> {
        self.0.await.unwrap_or(Err(AppendError::Closed))
    }
}

impl<F: FileSystem> Partition<F> {
    /// Starts the partition's task, which opens the log. Appends may be queued at once.
    pub fn start(env: Arc<PartitionEnv<F>>, id: PartitionId, config: WalConfig) -> Self {
        let limits = env.limits;
        let runtime = env.appends.runtime.clone();
        let (queue, commands) = mpsc::channel(limits.queue_entries.max(1));
        let (state_sender, state) = watch::channel(State::Opening);
        let shared = Arc::new(Shared::default());
        let directory = directory(&config, &id);
        let start = task::Start {
            env,
            id: id.clone(),
            config,
            directory,
            commands,
            state: state_sender,
            shared: Arc::clone(&shared),
        };
        match &runtime {
            Some(runtime) => runtime.spawn(start.run()),
            None => tokio::spawn(start.run()),
        };
        Self {
            id,
            queue,
            queue_bytes: Arc::new(Semaphore::new(limits.queue_bytes as usize)),
            queue_bytes_limit: limits.queue_bytes,
            state,
            shared,
        }
    }

    /// Which partition this is.
    pub fn id(&self) -> &PartitionId {
        &self.id
    }

    /// Queues a batch. Batches are stored in the order in which these calls return, and calls that
    /// wait for room are served in the order in which they were made.
    ///
    /// # Errors
    /// [`AppendError::Closed`].
    pub async fn enqueue(&self, batch: NewBatch) -> Result<PendingAppend, AppendError> {
        let bytes = u32::try_from(batch.bytes.len()).unwrap_or(u32::MAX);
        let bytes = bytes.min(self.queue_bytes_limit);
        let room = Arc::clone(&self.queue_bytes)
            .acquire_many_owned(bytes)
            .await
            .map_err(|_| AppendError::Closed)?;
        let (reply, outcome) = oneshot::channel();
        let queued = QueuedAppend { batch, reply, room };
        self.queue
            .send(Command::Append(queued))
            .await
            .map_err(|_| AppendError::Closed)?;
        Ok(PendingAppend(outcome))
    }

    /// The log, once it is open.
    ///
    /// # Errors
    /// It could not be opened, or is closed.
    pub async fn reader(&self) -> Result<LogReader<F>, Unavailable> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                State::Open(reader) => return Ok(reader.clone()),
                State::Unavailable(why) => return Err(why.clone()),
                State::Opening => {}
            }
            state.changed().await.map_err(|_| Unavailable::Closed)?;
        }
    }

    /// The log, if it is open now.
    pub fn reader_if_open(&self) -> Option<LogReader<F>> {
        match &*self.state.borrow() {
            State::Open(reader) => Some(reader.clone()),
            State::Opening | State::Unavailable(_) => None,
        }
    }

    /// Whether the log could not be opened, or is closed.
    pub fn is_unavailable(&self) -> bool {
        matches!(&*self.state.borrow(), State::Unavailable(_))
    }

    /// Wakes `waiter` at every append, and when the partition closes, until the guard is dropped.
    pub fn wake_on_append(&self, waiter: &Arc<Notify>) -> WaitGuard<'_> {
        self.shared.waiters.register(waiter)
    }

    /// Bytes of batches stored since the start.
    pub fn appended_bytes(&self) -> u64 {
        self.shared.appended_bytes.load(Ordering::Acquire)
    }

    /// Has the log let go of what is not to be kept any longer, behind all that is queued. Nothing
    /// happens to a log that is not open.
    pub async fn retain(&self, retention: Retention) {
        let is_open = self
            .reader_if_open()
            .is_some_and(|log| !log.segments().is_empty());
        if is_open {
            // An error means that the partition has been closed.
            let _ = self.queue.send(Command::Retain(retention)).await;
        }
    }

    /// Begins to end the partition, behind all that is queued. `discard` is for a log that is going
    /// to be deleted; any other is closed so that it opens quickly.
    pub async fn begin_close(&self, discard: bool) -> Closing {
        let (done, closed) = oneshot::channel();
        // An error means that the task is gone, and so is what there was to close.
        let _ = self
            .queue
            .send(Command::Close(Close { done, discard }))
            .await;
        Closing(closed)
    }
}

/// A partition that is being closed.
#[derive(Debug)]
pub struct Closing(oneshot::Receiver<()>);

impl Closing {
    /// Waits until the log is closed.
    pub async fn closed(self) {
        // An error means that the task is gone.
        let _ = self.0.await;
    }
}

fn directory(config: &WalConfig, id: &PartitionId) -> PathBuf {
    config
        .data_dir
        .join(id.topic.as_str())
        .join(id.partition.to_string())
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
