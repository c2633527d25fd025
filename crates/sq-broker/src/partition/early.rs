//! Batches that come before the log is open.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::append::AppendError;
use super::intake::{Answer, Queued};

/// Keeps what is queued until there is a log to give it to, within the bounds of the log's own queue.
#[derive(Debug)]
pub(super) struct Early {
    most_entries: usize,
    most_bytes: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    entries: Vec<Queued>,
    bytes: usize,
    /// The log is open, or could not be opened: nothing is kept here any longer.
    is_over: bool,
}

impl Early {
    pub(super) fn new(most_entries: usize, most_bytes: usize) -> Self {
        Self {
            most_entries,
            most_bytes,
            waiting: Mutex::default(),
        }
    }

    /// Keeps a batch, and gives back one that does not fit or comes too late. One that is larger than
    /// all that may wait waits alone.
    pub(super) fn keep(&self, mut queued: Queued) -> Result<oneshot::Receiver<Answer>, Queued> {
        let len = queued.batch.bytes.len();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = waiting.entries.len() >= self.most_entries
            || waiting.bytes.saturating_add(len) > self.most_bytes;
        if waiting.is_over || (is_full && !waiting.entries.is_empty()) {
            return Err(queued);
        }
        let (reply, answer) = oneshot::channel();
        queued.reply = Some(reply);
        waiting.bytes += len;
        waiting.entries.push(queued);
        Ok(answer)
    }

    /// Takes everything out. Nothing is kept from now on.
    pub(super) fn end(&self) -> Vec<Queued> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.is_over = true;
        std::mem::take(&mut waiting.entries)
    }

    /// Answers everything: there is no log to give it to.
    pub(super) fn refuse(&self, reason: &Arc<str>) {
        for queued in self.end() {
            queued.refuse(AppendError::Unavailable(Arc::clone(reason)));
        }
    }
}
