//! How a partition's log is opened and closed.

use std::sync::{Arc, Weak};

use sq_sim::FileSystem;
use sq_storage::WalConfig;
use sq_storage::log::{Executor, Log, LogConfig};
use tokio::sync::watch;

use super::intake::Batches;
use super::open::{self, Opened};
use super::{Gate, Open, PartitionEnv, PartitionId, PartitionLimits, Shared, pause};

/// Opens a log and hands it over, and is gone then.
struct Opener<F: FileSystem> {
    env: Arc<PartitionEnv<F>>,
    id: PartitionId,
    config: WalConfig,
    shared: Weak<Shared<F>>,
    gate: watch::Receiver<Gate<F>>,
}

/// Begins to open a partition's log.
pub(super) fn begin<F: FileSystem>(
    env: Arc<PartitionEnv<F>>,
    id: PartitionId,
    config: WalConfig,
    shared: &Arc<Shared<F>>,
) {
    let runtime = env.runtime.clone();
    let opener = Opener {
        env,
        id,
        config,
        shared: Arc::downgrade(shared),
        gate: shared.gate.subscribe(),
    };
    // It ends once the log is open, or once nobody wants it any more.
    drop(runtime.spawn(opener.run()));
}

impl<F: FileSystem> Opener<F> {
    /// A log that can't be opened is tried again after a pause, and after longer ones: what was short
    /// then, open files or memory, may be there now.
    async fn run(mut self) {
        let mut pause = pause::FIRST;
        loop {
            let reason = match self.open().await {
                Ok(opened) => return self.hand_over(opened).await,
                Err(reason) => reason,
            };
            tracing::error!(id = %self.id, reason, ?pause, "partition could not be opened");
            let is_wanted = self.shared.upgrade().is_some_and(|s| s.fail(&reason));
            if !is_wanted || self.closed_within(pause).await {
                return;
            }
            pause = (pause * 2).min(pause::LONGEST);
        }
    }

    async fn open(&self) -> Result<Opened<F>, String> {
        // The semaphore is never closed; should it be, opening goes on unbounded.
        let _permit = self.env.opening.acquire().await;
        let (env, id, config) = (Arc::clone(&self.env), self.id.clone(), self.config.clone());
        let opening = async move { open::open(&env, &id, config).await };
        if !matches!(self.env.appends.executor, Executor::Threads(_)) {
            return opening.await;
        }
        // The file system blocks whoever calls it.
        let runtime = self.env.runtime.clone();
        let opened = self
            .env
            .runtime
            .spawn_blocking(move || runtime.block_on(opening));
        opened.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Lets a pause pass. Whether the partition was closed meanwhile, or nobody has a handle of it.
    async fn closed_within(&mut self, pause: std::time::Duration) -> bool {
        let is_closing = |gate: &Gate<F>| matches!(gate, Gate::Closing { .. });
        let is_over = tokio::select! {
            biased;
            // An error means that nobody has a handle; what this gives must not be kept, being a lock.
            closing = self.gate.wait_for(is_closing) => { drop(closing); true }
            () = self.env.clock.sleep(pause) => false,
        };
        if let (true, Some(shared)) = (is_over, self.shared.upgrade()) {
            shared.gate.send_replace(Gate::Closed);
        }
        is_over
    }

    /// Gives the log to everybody.
    async fn hand_over(self, opened: Opened<F>) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let config = log_config(&self.env.limits, &self.env.appends.executor);
        let (intake, head) = Batches::new(self.env, self.id, self.shared, opened);
        let reader = intake.reader();
        let rolls = head.rolls();
        let log = Log::with_intake(head, intake, config);
        let open = Arc::new(Open { log, reader, rolls });
        if let Some(discard) = shared.open(&open) {
            end(shared, open, discard).await;
        }
    }
}

fn log_config(limits: &PartitionLimits, executor: &Executor) -> LogConfig {
    LogConfig {
        queue_entries: u32::try_from(limits.queue_entries).unwrap_or(u32::MAX),
        queue_bytes: limits.queue_bytes,
        turn_bytes: limits.flush_bytes,
        executor: executor.clone(),
        ..LogConfig::default()
    }
}

impl<F: FileSystem> Shared<F> {
    /// Says that the log could not be opened. Whether it is still wanted.
    fn fail(&self, reason: &str) -> bool {
        let mut is_wanted = true;
        self.gate.send_modify(|gate| {
            is_wanted = !matches!(gate, Gate::Closing { .. });
            *gate = if is_wanted {
                Gate::Failed(reason.into())
            } else {
                Gate::Closed
            };
        });
        self.waiters.wake();
        is_wanted
    }

    /// Gives the log to everybody, unless it is to be closed: then this says how.
    fn open(&self, open: &Arc<Open<F>>) -> Option<bool> {
        let mut closing = None;
        self.gate.send_if_modified(|gate| {
            if let Gate::Closing { discard } = gate {
                closing = Some(*discard);
                return false;
            }
            *gate = Gate::Open(Arc::clone(open));
            true
        });
        closing
    }
}

/// Lets nothing more be queued. Gives the log, which the caller is to [`end`], if it is open; whoever
/// is opening it does so otherwise.
pub(super) fn begin_to_close<F: FileSystem>(
    shared: &Shared<F>,
    discard: bool,
) -> Option<Arc<Open<F>>> {
    let mut open = None;
    shared.gate.send_if_modified(|gate| {
        if matches!(gate, Gate::Closing { .. } | Gate::Closed) {
            return false;
        }
        if let Gate::Open(log) = std::mem::replace(gate, Gate::Closing { discard }) {
            open = Some(log);
        }
        true
    });
    shared.waiters.wake();
    open
}

/// Ends the log behind everything that is queued.
pub(super) async fn end<F: FileSystem>(shared: Arc<Shared<F>>, open: Arc<Open<F>>, discard: bool) {
    // An error means that a turn panicked, and everybody was told; so below.
    let _ = open
        .log
        .with_writer(move |head, intake| {
            let head = head.take();
            Box::pin(async move {
                match head {
                    Some(head) if discard => head.abandon().await,
                    Some(head) => intake.close(head).await,
                    None => {}
                }
            })
        })
        .await;
    let _ = open.log.close().await;
    shared.gate.send_replace(Gate::Closed);
}
