//! What a log leaves to be done behind its appends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sq_sim::{Clock, FileSystem};
use sq_storage::Maintenance;

use super::PartitionId;

/// How long after a failure it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Has a partition's maintenance done by a task that is there only while there is something to do: ten
/// thousand idle partitions cost nothing.
pub(super) struct Upkeep<F: FileSystem> {
    id: PartitionId,
    maintenance: Maintenance<F>,
    clock: Arc<dyn Clock>,
    /// Whether a task is at it.
    is_running: Arc<AtomicBool>,
}

impl<F: FileSystem> Upkeep<F> {
    pub(super) fn new(id: PartitionId, maintenance: Maintenance<F>, clock: Arc<dyn Clock>) -> Self {
        Self {
            id,
            maintenance,
            clock,
            is_running: Arc::default(),
        }
    }

    /// Starts on what is pending, unless that is being done already.
    pub(super) fn begin_if_due(&self) {
        if !self.maintenance.is_pending() || self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (id, maintenance) = (self.id.clone(), self.maintenance.clone());
        let (clock, is_running) = (Arc::clone(&self.clock), Arc::clone(&self.is_running));
        tokio::spawn(async move {
            loop {
                let pause = match maintenance.run().await {
                    Ok(()) => maintenance.due_in().unwrap_or_default(),
                    Err(error) => {
                        tracing::warn!(%id, %error, "maintenance failed, to be tried again");
                        RETRY_AFTER
                    }
                };
                if !pause.is_zero() {
                    clock.sleep(pause).await;
                }
                // What came up in between is ours, unless the next task has begun with it.
                is_running.store(false, Ordering::Release);
                if !maintenance.is_pending() || is_running.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}
