//! What a log leaves to be done behind its appends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sq_sim::{Clock, FileSystem};
use sq_storage::{Error, Maintenance, Removal};
use tokio::runtime::Handle;

use super::PartitionId;

/// How long after a failure it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Something that piles up, and is done by whoever comes.
#[async_trait]
pub(super) trait Work: Clone + Send + Sync + 'static {
    /// What it is, for the log.
    const NAME: &str;

    fn is_pending(&self) -> bool;

    async fn run(&self) -> Result<(), Error>;

    /// How long to wait before what is pending goes on.
    fn due_in(&self) -> Option<Duration> {
        None
    }
}

#[async_trait]
impl<F: FileSystem> Work for Maintenance<F> {
    const NAME: &str = "maintenance";

    fn is_pending(&self) -> bool {
        self.is_pending()
    }

    async fn run(&self) -> Result<(), Error> {
        self.run().await
    }

    fn due_in(&self) -> Option<Duration> {
        self.due_in()
    }
}

#[async_trait]
impl<F: FileSystem> Work for Removal<F> {
    const NAME: &str = "removal of old segments";

    fn is_pending(&self) -> bool {
        self.is_pending()
    }

    async fn run(&self) -> Result<(), Error> {
        self.run().await
    }
}

/// Has a partition's work done by a task that is there only while there is something to do: ten
/// thousand idle partitions cost nothing.
pub(super) struct Upkeep<W> {
    id: PartitionId,
    work: W,
    clock: Arc<dyn Clock>,
    /// Where the task runs: appends have threads of their own.
    runtime: Handle,
    /// Whether a task is at it.
    is_running: Arc<AtomicBool>,
}

impl<W: Work> Upkeep<W> {
    pub(super) fn new(id: PartitionId, work: W, clock: Arc<dyn Clock>, runtime: Handle) -> Self {
        Self {
            id,
            work,
            clock,
            runtime,
            is_running: Arc::default(),
        }
    }

    /// Starts on what is pending, unless that is being done already.
    pub(super) fn begin_if_due(&self) {
        if !self.work.is_pending() || self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (id, work) = (self.id.clone(), self.work.clone());
        let (clock, is_running) = (Arc::clone(&self.clock), Arc::clone(&self.is_running));
        let upkeep = async move {
            // Answers to what was appended just now go first.
            tokio::task::yield_now().await;
            loop {
                let pause = match work.run().await {
                    Ok(()) => work.due_in().unwrap_or_default(),
                    Err(error) => {
                        tracing::warn!(%id, %error, "{} failed, to be tried again", W::NAME);
                        RETRY_AFTER
                    }
                };
                if !pause.is_zero() {
                    clock.sleep(pause).await;
                }
                // What came up in between is ours, unless the next task has begun with it.
                is_running.store(false, Ordering::Release);
                if !work.is_pending() || is_running.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        };
        // It ends by itself.
        drop(self.runtime.spawn(upkeep));
    }
}
