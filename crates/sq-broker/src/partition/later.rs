//! What is done a while after an append: saying how far the log is durable, and, where appends are
//! acknowledged before they are synced, syncing.
//!
//! A task waits for the time. It is there only while there is something to do: ten thousand idle
//! partitions have none.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sq_sim::{Clock, FileSystem};
use sq_storage::log::Head as _;
use sq_storage::{SyncPolicy, WalWriter};

use super::{PartitionEnv, PartitionLog, Shared};

/// What a task is waiting to do.
#[derive(Debug, Default)]
pub(super) struct Later {
    pub(super) is_to_mark: bool,
    pub(super) is_to_sync: bool,
}

/// Something was appended: has it followed by what is due a while later.
pub(super) fn begin_if_due<F: FileSystem>(
    env: &PartitionEnv<F>,
    shared: &Arc<Shared<F>>,
    later: &mut Later,
    writer: &WalWriter<F>,
) {
    if !std::mem::replace(&mut later.is_to_mark, true) {
        let clock = Arc::clone(&env.clock);
        let seen = shared.appended_bytes();
        let mark = mark(Arc::downgrade(shared), clock, env.limits.mark_after, seen);
        // It ends by itself; so below.
        drop(env.runtime.spawn(mark));
    }
    let SyncPolicy::Every(interval) = env.wal.sync else {
        return;
    };
    if writer.unsynced_since().is_some() && !std::mem::replace(&mut later.is_to_sync, true) {
        let sync = sync(Arc::downgrade(shared), Arc::clone(&env.clock), interval);
        drop(env.runtime.spawn(sync));
    }
}

/// Marks the log once nothing was appended for so long. A log that is busy is looked at once in that
/// time, so that no append pays for it.
async fn mark<F: FileSystem>(
    shared: Weak<Shared<F>>,
    clock: Arc<dyn Clock>,
    idle: Duration,
    mut seen: u64,
) {
    while let Some((log, appended)) = after(&shared, &*clock, idle).await {
        if seen == appended {
            // An error means that the log is closed, which says the same as a mark; so below.
            let _ = log
                .with_writer(|head, intake| {
                    Box::pin(async move {
                        if let Some(head) = head {
                            intake.mark(head.writer_mut()).await;
                        }
                    })
                })
                .await;
            return;
        }
        seen = appended;
    }
}

/// Syncs the log in time, and again if that fails.
async fn sync<F: FileSystem>(shared: Weak<Shared<F>>, clock: Arc<dyn Clock>, interval: Duration) {
    while let Some((log, _)) = after(&shared, &*clock, interval).await {
        let again = log
            .with_writer(|head, intake| {
                Box::pin(async move {
                    match head {
                        Some(head) => intake.sync(head).await,
                        None => false,
                    }
                })
            })
            .await;
        if !again.unwrap_or(false) {
            return;
        }
    }
}

/// The log and how much was appended to it, after a while; `None` once it is closed.
async fn after<F: FileSystem>(
    shared: &Weak<Shared<F>>,
    clock: &dyn Clock,
    pause: Duration,
) -> Option<(PartitionLog<F>, u64)> {
    clock.sleep(pause).await;
    let shared = shared.upgrade()?;
    let log = shared.log_now()?.log.clone();
    Some((log, shared.appended_bytes()))
}
