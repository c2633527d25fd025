//! openraft's log storage on a journal and a vote file.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{LogState, RaftLogReader, StorageIOError};
use sq_sim::FileSystem;
use tokio::sync::Mutex;

use super::{Entry, Journal, LogId, StorageError, Types, Vote, VoteFile, VoteFileError, fatal};

/// The log of a node. Cheap to clone: clones share it.
#[derive(Debug)]
pub(crate) struct LogStore<F: FileSystem> {
    journal: Journal<F>,
    vote: Arc<Mutex<VoteFile<F>>>,
}

impl<F: FileSystem> Clone for LogStore<F> {
    fn clone(&self) -> Self {
        Self {
            journal: self.journal.clone(),
            vote: Arc::clone(&self.vote),
        }
    }
}

impl<F: FileSystem> LogStore<F> {
    pub(super) fn new(journal: Journal<F>, vote: VoteFile<F>) -> Self {
        Self {
            journal,
            vote: Arc::new(Mutex::new(vote)),
        }
    }

    /// Whether the node has voted, and there is no log of anything.
    pub(crate) async fn has_only_a_vote(&self) -> bool {
        let voted = self.vote.lock().await.vote().is_some();
        let nothing = self.journal.last_log_id().is_none() && self.journal.snapshot().is_none();
        voted && nothing
    }

    /// Makes the node's directory, and the vote that was read, durable. Entries and votes can be taken
    /// from then on.
    ///
    /// # Errors
    /// [`VoteFileError::Io`].
    pub(super) async fn settle(&self) -> Result<(), VoteFileError> {
        self.vote.lock().await.settle().await
    }

    /// The journal.
    pub(crate) fn journal(&self) -> &Journal<F> {
        &self.journal
    }
}

impl<F: FileSystem> RaftLogReader<Types> for LogStore<F> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, StorageError> {
        let from = match range.start_bound() {
            Bound::Included(index) => Some(*index),
            Bound::Excluded(index) => index.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let to = match range.end_bound() {
            Bound::Included(index) => index.checked_add(1),
            Bound::Excluded(index) => Some(*index),
            Bound::Unbounded => None,
        };
        Ok(from.map_or_else(Vec::new, |from| self.journal.entries(from, to)))
    }
}

impl<F: FileSystem> RaftLogStorage<Types> for LogStore<F> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        Ok(LogState {
            last_purged_log_id: self.journal.purged(),
            last_log_id: self.journal.last_log_id(),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let saved = self.vote.lock().await.save(*vote).await;
        saved.map_err(|e| fatal(StorageIOError::write_vote, &e))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.vote.lock().await.vote())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        self.journal.set_committed(committed);
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        Ok(self.journal.committed())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let appended = self.journal.append(entries.into_iter().collect()).await;
        match appended {
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(e) => Err(fatal(StorageIOError::write_logs, &e)),
        }
    }

    async fn truncate(&mut self, since: LogId) -> Result<(), StorageError> {
        let truncated = self.journal.truncate(since.index).await;
        truncated.map_err(|e| fatal(StorageIOError::write_logs, &e))
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        let purged = self.journal.purge(upto).await;
        purged.map_err(|e| fatal(StorageIOError::write_logs, &e))
    }
}
