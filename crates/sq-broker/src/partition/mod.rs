//! One partition: its log, what stands in front of it, and the handle that everybody has.
//!
//! Appends go through the log's queue, which is bounded in entries and bytes. All that waits there goes
//! into one write and one sync, so a batch that arrives while the disk is busy shares the next sync
//! with every other that did. Where it is written it is decided about, too: nobody else knows what is
//! in flight (`intake`). Reads do not go through the queue. A partition that nobody appends to has one
//! task, which sleeps (`head`), and no timer.

mod append;
mod delete;
mod gather;
mod head;
mod intake;
mod later;
mod life;
mod open;
mod pause;
mod snapshots;
mod upkeep;
mod waiters;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use sq_roll::{Node, RollHandle, RollRecord};
use sq_sim::{Clock, FileSystem};
use sq_storage::log::{Executor, Head as _, Log, Pending};
use sq_storage::{LogReader, Retention, TopicName, WalConfig};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify, Semaphore, watch};

pub use append::{AppendError, Appended, NewBatch};
pub use delete::{DeleteError, DeleteTo};
pub use waiters::WaitGuard;

use crate::config::RollConfig;
use crate::meta::Metadata;
use crate::producers::ProducerLimits;
use head::PartitionHead;
use intake::Batches;
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
    /// Who else knows of their segments; `None` for logs that nobody else knows of.
    pub metadata: Option<Metadata<F>>,
    /// How logs roll that the metadata knows of.
    pub roll: RollConfig,
    /// What their rolls have in common.
    pub node: Node,
    /// Bounds how many partitions are opened at a time.
    pub opening: Semaphore,
    /// Where everything runs that is not an append.
    pub runtime: Handle,
}

/// How appends reach the disk.
///
/// On threads of their own, with a file system that works on the thread it is called on, an append goes
/// from its connection to the disk and back with one hop each way: a write and a sync that are handed
/// on to a pool would cost another two.
#[derive(Debug)]
pub struct Appends<F: FileSystem> {
    /// The same files as those of readers; blocks the thread it is called on if, and only if, the
    /// executor has threads.
    pub fs: Arc<F>,
    /// Who writes.
    pub executor: Executor,
}

/// Bounds of one partition.
#[derive(Clone, Copy, Debug)]
pub struct PartitionLimits {
    /// Batches that wait to be written.
    pub queue_entries: usize,
    /// Bytes of batches that wait to be written or are being written, where each counts as at least
    /// its part of the entries. A larger batch waits until it is alone.
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

type PartitionLog<F> = Log<F, Batches<F>, PartitionHead<F>>;

/// A log that is open.
#[derive(Debug)]
struct Open<F: FileSystem> {
    log: PartitionLog<F>,
    reader: LogReader<F>,
    rolls: RollHandle<F>,
}

/// What stands between a partition's handles and its log.
#[derive(Debug)]
enum Gate<F: FileSystem> {
    Opening,
    Open(Arc<Open<F>>),
    /// It could not be opened, and is tried again.
    Failed(Arc<str>),
    /// To be closed once everything is stored that was queued before.
    Closing {
        /// The log will be deleted: nothing need be made durable.
        discard: bool,
    },
    Closed,
}

impl<F: FileSystem> Gate<F> {
    /// The log, or why there is none; nothing while it is being opened.
    fn log(&self) -> Option<Result<Arc<Open<F>>, Unavailable>> {
        match self {
            Self::Opening => None,
            Self::Open(open) => Some(Ok(Arc::clone(open))),
            Self::Failed(reason) => Some(Err(Unavailable::Failed(Arc::clone(reason)))),
            Self::Closing { .. } | Self::Closed => Some(Err(Unavailable::Closed)),
        }
    }
}

/// The handle of a partition.
///
/// Dropping it closes nothing: what was queued is still written, and then the log is left as a process
/// that dies leaves it. The next opening finds everything that is durable, and has to look for where that
/// ends; where syncs come at intervals, what was acknowledged since the last one is synced by nobody.
/// [`begin_close`](Self::begin_close) is what ends a partition in good order.
#[derive(Debug)]
pub struct Partition<F: FileSystem> {
    id: PartitionId,
    runtime: Handle,
    shared: Arc<Shared<F>>,
}

/// What a partition's handle and those at work for it share.
#[derive(Debug)]
struct Shared<F: FileSystem> {
    gate: watch::Sender<Gate<F>>,
    waiters: Waiters,
    appended_bytes: AtomicU64,
    /// Held by whoever deletes records.
    deleting: Arc<Mutex<()>>,
}

impl<F: FileSystem> Shared<F> {
    fn log_now(&self) -> Option<Arc<Open<F>>> {
        self.gate.borrow().log()?.ok()
    }

    /// Waits until the log is open, or is known not to be.
    async fn log(&self) -> Result<Arc<Open<F>>, Unavailable> {
        if let Some(open) = self.log_now() {
            return Ok(open);
        }
        let mut gate = self.gate.subscribe();
        loop {
            let log = gate.borrow_and_update().log();
            if let Some(log) = log {
                return log;
            }
            gate.changed().await.map_err(|_| Unavailable::Closed)?;
        }
    }

    fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Acquire)
    }

    /// Tells of batches that are stored.
    fn appended(&self, bytes: u64) {
        self.appended_bytes.fetch_add(bytes, Ordering::Release);
        self.waiters.wake();
    }
}

/// An append on its way. Dropping it does not take the append back.
#[derive(Debug)]
pub struct PendingAppend<F: FileSystem>(Pending<F, Batches<F>, PartitionHead<F>>);

impl<F: FileSystem> PendingAppend<F> {
    /// Waits until the batch is durable or has failed.
    ///
    /// # Errors
    /// Why it was not stored.
    pub async fn outcome(self) -> Result<Appended, AppendError> {
        self.0.await
    }
}

impl<F: FileSystem> Partition<F> {
    /// Begins to open the log. What is asked of it meanwhile waits.
    pub fn start(env: Arc<PartitionEnv<F>>, id: PartitionId, config: WalConfig) -> Self {
        let shared = Arc::new(Shared {
            gate: watch::Sender::new(Gate::Opening),
            waiters: Waiters::default(),
            appended_bytes: AtomicU64::new(0),
            deleting: Arc::default(),
        });
        let runtime = env.runtime.clone();
        life::begin(env, id.clone(), config, &shared);
        Self {
            id,
            runtime,
            shared,
        }
    }

    /// Which partition this is.
    pub fn id(&self) -> &PartitionId {
        &self.id
    }

    /// Queues a batch, once the log is open. Batches are stored in the order in which these calls return,
    /// and calls that wait for room are served in the order in which they were made.
    ///
    /// # Errors
    /// [`AppendError::Closed`], and [`AppendError::Unavailable`] if the log could not be opened.
    pub async fn enqueue(&self, batch: NewBatch) -> Result<PendingAppend<F>, AppendError> {
        let open = self.shared.log().await?;
        Ok(PendingAppend(open.log.enter(batch).await))
    }

    /// The log, once it is open.
    ///
    /// # Errors
    /// It could not be opened, or is closed.
    pub async fn reader(&self) -> Result<LogReader<F>, Unavailable> {
        Ok(self.shared.log().await?.reader.clone())
    }

    /// The log, if it is open now.
    pub fn reader_if_open(&self) -> Option<LogReader<F>> {
        self.shared.log_now().map(|open| open.reader.clone())
    }

    /// The records of the log's last rolls since it was opened, the oldest first.
    ///
    /// # Errors
    /// It could not be opened, or is closed.
    pub async fn rolls(&self) -> Result<Vec<Arc<RollRecord>>, Unavailable> {
        Ok(self.shared.log().await?.rolls.records())
    }

    /// Whether the log could not be opened, or is closed.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.shared.gate.borrow().log(), Some(Err(_)))
    }

    /// Whether it was closed, for good.
    pub fn is_closed(&self) -> bool {
        let gate = self.shared.gate.borrow();
        matches!(&*gate, Gate::Closing { .. } | Gate::Closed)
    }

    /// Wakes `waiter` at every append, and when the partition closes, until the guard is dropped.
    pub fn wake_on_append(&self, waiter: &Arc<Notify>) -> WaitGuard<'_> {
        self.shared.waiters.register(waiter)
    }

    /// Bytes of batches stored since the start.
    pub fn appended_bytes(&self) -> u64 {
        self.shared.appended_bytes()
    }

    /// Has the log let go of what is not to be kept any longer, behind all that is queued. Nothing
    /// happens to a log that is not open.
    pub async fn retain(&self, retention: Retention) {
        let open = self.shared.log_now();
        // Of a log that was emptied there may be files that are overdue.
        let was_used = |open: &Arc<Open<F>>| open.reader.end_offset() > 0;
        let Some(open) = open.filter(was_used) else {
            return;
        };
        let retained = open.log.with_writer(move |head, intake| {
            Box::pin(async move {
                if let Some(head) = head {
                    intake.retain(head.writer_mut(), retention).await;
                }
            })
        });
        // The first poll queues it. Nobody waits for more: the next partition's turn must not come later
        // for a disk that is slow.
        let mut retained = std::pin::pin!(retained);
        std::future::poll_fn(|context| {
            let _ = retained.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }

    /// Begins to end the partition, behind all that is queued; nothing is queued any more. `discard` is
    /// for a log that is going to be deleted; any other is closed so that it opens quickly.
    pub fn begin_close(&self, discard: bool) -> Closing<F> {
        let closed = Closing(self.shared.gate.subscribe());
        if let Some(open) = life::begin_to_close(&self.shared, discard) {
            let end = life::end(Arc::clone(&self.shared), open, discard);
            // Whoever wants to know when it has ended has the other half.
            drop(self.runtime.spawn(end));
        }
        closed
    }
}

/// A partition that is being closed.
#[derive(Debug)]
pub struct Closing<F: FileSystem>(watch::Receiver<Gate<F>>);

impl<F: FileSystem> Closing<F> {
    /// Waits until the log is closed.
    pub async fn closed(mut self) {
        // An error means that the partition is gone.
        let _ = self.0.wait_for(|gate| matches!(gate, Gate::Closed)).await;
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
