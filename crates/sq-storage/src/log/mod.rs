//! A partition's log for many callers at once.
//!
//! A [`Log`] is a handle that any number of callers clone and append through. What they append while
//! a write is under way waits in a queue, and goes out together with the next one: one write, one
//! sync, never two at a time. Each caller is answered when what it appended is durable, in the order
//! of the offsets.
//!
//! ```
//! # use std::sync::Arc;
//! # use sq_sim::OsFileSystem;
//! # use sq_storage::{TopicName, WalConfig, WalWriter};
//! use sq_storage::log::{Append, Log, LogConfig};
//!
//! # let dir = tempfile::tempdir()?;
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # let config = WalConfig { max_segment_bytes: 1 << 20, ..WalConfig::new(dir.path()) };
//! # let fs = Arc::new(OsFileSystem::inline());
//! # let orders = TopicName::new("orders")?;
//! let writer = runtime.block_on(WalWriter::new(fs, config, orders, 0))?;
//! let log = Log::new(writer, LogConfig::default());
//!
//! // Threads that block: one of those that wait writes for all of them.
//! std::thread::scope(|threads| {
//!     for n in 0..4_u8 {
//!         let log = log.clone();
//!         threads.spawn(move || log.append_blocking(None, &[n], &[], 1_700_000_000_000));
//!     }
//! });
//!
//! // A producer that keeps some appends on their way. They are stored in the order of submission.
//! runtime.block_on(async {
//!     let mut window = std::collections::VecDeque::new();
//!     for n in 0..100_u8 {
//!         if window.len() == 16 {
//!             let oldest: sq_storage::log::Pending<_> = window.pop_front().unwrap();
//!             oldest.await?;
//!         }
//!         let record = Append::record(None, Some(&[n]), &[], 1_700_000_000_000)?;
//!         window.push_back(log.submit(record).await?);
//!     }
//!     for pending in window {
//!         pending.await?;
//!     }
//!     assert_eq!(log.reader().end_offset(), 104);
//!     log.close().await?;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Who writes
//! That is the [`Executor`]'s choice. [`Executor::Inline`] has the first of those who wait take a turn
//! for all: it hands that on before it wakes anyone, so that the disk is never idle for the time that
//! waking takes. [`Executor::Threads`] has a group of threads take the turns of many partitions.
//!
//! # What can be relied on
//! - Appends are stored in the order in which `submit` returned, and so are those of one thread.
//! - A failed write or sync fails those appends that were in it, and no others; everything before is
//!   durable, and the next append gets the offset of the first that failed.
//! - Dropping a [`Pending`], or the future of any call here, takes nothing back and holds nobody up.
//!   What was submitted is stored with the next turn.
//! - A panic in a turn closes the log, as a crash would, and everybody is told.
//! - The queue is bounded ([`LogConfig`]); where it is full, calls wait.

mod append;
mod core;
mod error;
mod executor;
mod fill;
mod flusher;
mod front;
mod head;
mod intake;
mod park;
mod slots;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use sq_sim::FileSystem;

pub use append::{Append, Summed};
pub use error::AppendError;
pub use executor::{AppendThreads, Executor};
pub use head::Head;
pub use intake::{Direct, DirectEntry, Intake, Outcome, Stage};

use self::core::{Core, Size};
use crate::error::{Error, Result};
use crate::record::Header;
use crate::wal::{Batch, LogReader, SyncPolicy, WalWriter, lock};
use fill::FillWait;
use flusher::{Flusher, Job, TurnLimits};
use front::Work;
use park::{block_on, block_on_begun};
use slots::{Answered, SlotId};

/// How a log's appends are queued and gathered.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// How many entries may wait. Further ones wait for room.
    pub queue_entries: u32,
    /// How many bytes may wait or be on their way to the disk. A larger entry waits until it is
    /// alone.
    pub queue_bytes: u32,
    /// A write takes no further entry once it has this many bytes.
    pub turn_bytes: usize,
    /// How long a blocking caller that is about to write may wait for others. It does so only while
    /// that makes more of them durable in the same time.
    pub fill_wait: Duration,
    /// Who writes.
    pub executor: Executor,
}

impl Default for LogConfig {
    /// 4,096 entries, 64 MiB, 1 MiB a write, 80 µs, [`Executor::Inline`].
    fn default() -> Self {
        Self {
            queue_entries: 4096,
            queue_bytes: 64 << 20,
            turn_bytes: 1 << 20,
            fill_wait: Duration::from_micros(80),
            executor: Executor::default(),
        }
    }
}

/// A handle of a partition's log, to be cloned for everyone who appends.
///
/// See the [module](self) for what it does. An [`Intake`] other than [`Direct`] decides about entries
/// when their offset is known, and a [`Head`] other than a [`WalWriter`] about where segments end.
pub struct Log<F: FileSystem, I: Intake<F> = Direct, H: Head<F> = WalWriter<F>> {
    core: Arc<Core<F, I, H>>,
    reader: LogReader<F>,
    limits: Limits,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    queue_bytes: u32,
    /// An entry counts as at least this many bytes.
    least_weight: u32,
    frame_bytes: usize,
    sync: SyncPolicy,
}

impl<F: FileSystem, H: Head<F>> Log<F, Direct, H> {
    /// A log whose entries need no decision.
    pub fn new(head: H, config: LogConfig) -> Self {
        Self::with_intake(head, Direct, config)
    }

    /// Appends one record and returns its offset once it is durable. Blocks the thread.
    ///
    /// `timestamp_ms` counts from the Unix epoch.
    ///
    /// # Errors
    /// Nothing was appended; [`AppendError::action`] says what to do.
    pub fn append_blocking(
        &self,
        key: Option<&[u8]>,
        value: &[u8],
        headers: &[Header],
        timestamp_ms: u64,
    ) -> Result<u64, AppendError> {
        let append = Append::record(key, Some(value), headers, timestamp_ms)?;
        self.enter_blocking(DirectEntry::One(self.checked(append)?))
    }

    /// Appends batches, one behind the other with nothing between them, and returns the offset of the
    /// first once all are durable. Blocks the thread.
    ///
    /// # Errors
    /// [`AppendError::Failed`] says what was stored of them.
    pub fn append_batches_blocking(&self, batches: Vec<Batch>) -> Result<u64, AppendError> {
        let entry = self.batches(batches)?;
        self.enter_blocking(entry)
    }

    /// [`append_blocking`](Self::append_blocking), asynchronous.
    ///
    /// # Errors
    /// As there.
    pub async fn append(
        &self,
        key: Option<&[u8]>,
        value: &[u8],
        headers: &[Header],
        timestamp_ms: u64,
    ) -> Result<u64, AppendError> {
        let append = Append::record(key, Some(value), headers, timestamp_ms)?;
        self.submit(append).await?.await
    }

    /// [`append_batches_blocking`](Self::append_batches_blocking), asynchronous.
    ///
    /// # Errors
    /// As there.
    pub async fn append_batches(&self, batches: Vec<Batch>) -> Result<u64, AppendError> {
        let entry = self.batches(batches)?;
        self.enter(entry).await.await
    }

    /// Queues an append, waiting for room if there is none. What is submitted one after the other is
    /// stored in that order. The answer is the offset of its first record.
    ///
    /// # Errors
    /// [`AppendError::Failed`] for what can't be appended at all; anything else is the answer's.
    pub async fn submit(
        &self,
        append: impl Into<Append>,
    ) -> Result<Pending<F, Direct, H>, AppendError> {
        let append = self.checked(append.into())?;
        Ok(self.enter(DirectEntry::One(append)).await)
    }

    fn batches(&self, batches: Vec<Batch>) -> Result<DirectEntry> {
        let checked = batches.into_iter().map(|b| self.checked(b.into()));
        Ok(DirectEntry::Many(checked.collect::<Result<_>>()?))
    }

    /// Refuses what the writer would refuse, so that it does not fail what it is written with.
    fn checked(&self, append: Append) -> Result<Append> {
        let (bytes, limit) = (append.frame_len(), self.limits.frame_bytes);
        if bytes > limit {
            return Err(Error::TooLarge { bytes, limit });
        }
        if append.record_count() == 0 {
            return Err(Error::EmptyBatch);
        }
        Ok(append)
    }
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Log<F, I, H> {
    /// A log whose entries go through an intake.
    pub fn with_intake(head: H, intake: I, config: LogConfig) -> Self {
        let writer = head.writer();
        let reader = writer.reader();
        let entries = config.queue_entries.max(1);
        let limits = Limits {
            queue_bytes: config.queue_bytes.max(1),
            least_weight: config.queue_bytes.max(1).div_ceil(entries),
            frame_bytes: writer.config().max_frame_bytes,
            sync: writer.config().sync,
        };
        let turn = TurnLimits {
            bytes: config.turn_bytes,
            entries: entries as usize,
        };
        let clock = writer.clock();
        let fill = FillWait::new(config.fill_wait);
        let flusher = Flusher::new(head, intake, turn, fill);
        let room = limits.queue_bytes as usize;
        let core = Core::new(flusher, room, config.executor, clock);
        Self {
            core: Arc::new(core),
            reader,
            limits,
        }
    }

    /// A reader of this log, which follows what is appended.
    pub fn reader(&self) -> LogReader<F> {
        self.reader.clone()
    }

    /// Queues an entry, waiting for room if there is none.
    pub async fn enter(&self, entry: I::Entry) -> Pending<F, I, H> {
        let size = self.size(&entry);
        self.core.room(size.weight).await;
        self.pending(self.core.push(size, Work::Append(entry)))
    }

    /// Queues an entry and waits for the answer. Blocks the thread.
    pub fn enter_blocking(&self, entry: I::Entry) -> I::Answer {
        let size = self.size(&entry);
        if !self.core.try_room(size.weight) {
            block_on(self.core.room(size.weight));
        }
        block_on_begun(|waker| {
            let work = Work::Append(entry);
            let (slot, waits) = self.core.push_and_lead(size, work, waker);
            let mut pending = self.pending(slot);
            pending.may_wait = true;
            (pending, waits)
        })
    }

    /// Runs `work` on the writer, or whatever else is its [`Head`], behind everything that is queued and
    /// before anything that is queued later, where appends are made. It is gone once the log is closed.
    ///
    /// # Errors
    /// [`AppendError::Closed`] if the log was closed before it came to that.
    pub async fn with_writer<T: Send + 'static>(
        &self,
        work: impl for<'a> FnOnce(
            &'a mut Option<H>,
            &'a mut I,
        ) -> Pin<Box<dyn Future<Output = T> + Send + 'a>>
        + Send
        + 'static,
    ) -> Result<T, AppendError> {
        let output = Arc::new(Mutex::new(None));
        let slot = self
            .core
            .push(Size::default(), Work::Job(job(work, Arc::clone(&output))));
        Finished(self.pending(slot)).await;
        lock(&output).take().ok_or(AppendError::Closed)
    }

    /// Makes durable what was acknowledged, again and again, in the time that
    /// [`SyncPolicy::Every`] allows, until the log is closed. To be polled
    /// beside the log where appends may pause; it returns at once under
    /// [`SyncPolicy::Always`].
    pub async fn keep_synced(&self) {
        let SyncPolicy::Every(interval) = self.limits.sync else {
            return;
        };
        let mut closed = self.core.closed();
        tokio::select! {
            biased;
            // What the close leaves is durable.
            _ = closed.wait_for(|closed| *closed) => {}
            () = self.sync_again_and_again(interval) => {}
        }
    }

    async fn sync_again_and_again(&self, interval: Duration) {
        let mut end = self.reader.watch();
        // What was appended before counts as new.
        end.mark_changed();
        let mut is_durable = true;
        while !is_durable || end.changed().await.is_ok() {
            self.core.clock().sleep(interval).await;
            is_durable = match self.sync().await {
                Ok(()) => true,
                Err(AppendError::Closed) => return,
                Err(error) => {
                    tracing::error!(%error, "acknowledged records are not durable yet");
                    false
                }
            };
        }
    }

    /// Makes everything durable that was acknowledged before: [`WalWriter::sync`].
    ///
    /// # Errors
    /// As there.
    pub async fn sync(&self) -> Result<(), AppendError> {
        let synced = self.with_writer(|head, _| {
            Box::pin(async move {
                match head {
                    Some(head) => head.sync().await.map_err(AppendError::from),
                    None => Err(AppendError::Closed),
                }
            })
        });
        synced.await?
    }

    /// Closes the log behind everything that is queued; further appends are refused from now on. The
    /// next opening has nothing to find out.
    ///
    /// # Errors
    /// As for [`WalWriter::close`]; every append that was answered is as durable as before.
    /// [`AppendError::Closed`] if it was closed before.
    pub async fn close(&self) -> Result<(), AppendError> {
        let closed = self.with_writer(|head, _| {
            let head = head.take();
            Box::pin(async move {
                match head {
                    Some(head) => head.close().await.map_err(AppendError::from),
                    None => Err(AppendError::Closed),
                }
            })
        });
        let mut closed = std::pin::pin!(closed);
        // The first poll queues it.
        let mut refused = false;
        std::future::poll_fn(|context| {
            let polled = closed.as_mut().poll(context);
            if !std::mem::replace(&mut refused, true) {
                self.core.refuse_more();
            }
            polled
        })
        .await?
    }

    fn size(&self, entry: &I::Entry) -> Size {
        let bytes = I::bytes(entry);
        let weight = u32::try_from(bytes).unwrap_or(u32::MAX);
        let weight = weight
            .max(self.limits.least_weight)
            .min(self.limits.queue_bytes);
        Size { weight, bytes }
    }

    fn pending(&self, slot: SlotId) -> Pending<F, I, H> {
        Pending {
            core: Arc::clone(&self.core),
            slot: Some(slot),
            may_wait: false,
        }
    }
}

/// Work on the head, as a job that leaves its output where it is looked for.
fn job<I, H, T: Send + 'static>(
    work: impl for<'a> FnOnce(
        &'a mut Option<H>,
        &'a mut I,
    ) -> Pin<Box<dyn Future<Output = T> + Send + 'a>>
    + Send
    + 'static,
    output: Arc<Mutex<Option<T>>>,
) -> Job<I, H> {
    Box::new(move |writer, intake| {
        let work = work(writer, intake);
        Box::pin(async move {
            let done = work.await;
            *lock(&output) = Some(done);
        })
    })
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Clone for Log<F, I, H> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            reader: self.reader.clone(),
            limits: self.limits,
        }
    }
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> fmt::Debug for Log<F, I, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}

/// An append on its way: a future of its answer. Dropping it does not take the append back.
#[must_use = "the answer says whether it was stored"]
pub struct Pending<F: FileSystem, I: Intake<F> = Direct, H: Head<F> = WalWriter<F>> {
    core: Arc<Core<F, I, H>>,
    /// Gone once the answer was fetched.
    slot: Option<SlotId>,
    may_wait: bool,
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Pending<F, I, H> {
    fn poll_answered(&mut self, context: &Context<'_>) -> Poll<Answered<I::Answer>> {
        let Some(slot) = self.slot else {
            return Poll::Ready(Answered::Closed);
        };
        let polled = self.core.poll_answer(slot, context, self.may_wait);
        if polled.is_ready() {
            self.slot = None;
        }
        polled
    }
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Future for Pending<F, I, H> {
    type Output = I::Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<I::Answer> {
        self.poll_answered(context).map(|answered| match answered {
            Answered::Append(answer) => answer,
            Answered::Job | Answered::Closed => I::closed(),
        })
    }
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Drop for Pending<F, I, H> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.core.abandon(slot);
        }
    }
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> fmt::Debug for Pending<F, I, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

/// A job on its way.
struct Finished<F: FileSystem, I: Intake<F>, H: Head<F>>(Pending<F, I, H>);

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Future for Finished<F, I, H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_answered(context).map(drop)
    }
}
