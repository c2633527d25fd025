//! openraft's state machine: the metadata in memory, and its snapshots in the journal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::bytes::Bytes;
use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, RaftSnapshotBuilder, Snapshot, StorageIOError};
use sq_sim::FileSystem;
use tokio::sync::watch;

use super::{
    Entry, Journal, JournalError, LogId, Outcome, SnapshotMeta, StorageError, StoredMembership,
    Types, fatal,
};
use crate::codec::{Damage, snapshot};
use crate::state::MetaState;

/// What was applied. Cheap to clone: clones share it.
///
/// It outlives the storage that it was restored from: what was applied was committed, so a node that
/// opens its log again goes on with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: watch::Sender<Arc<MetaState>>,
    position: Mutex<Position>,
}

#[derive(Clone, Debug, Default)]
struct Position {
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(Arc::default()),
            position: Mutex::default(),
        }
    }
}

impl Machine {
    /// Follows the state: each value is the state after some command.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<MetaState>> {
        self.inner.state.subscribe()
    }

    /// The last entry that was applied.
    #[cfg(test)]
    pub(crate) fn applied_index(&self) -> Option<u64> {
        self.position().applied.map(|id| id.index)
    }

    fn position(&self) -> MutexGuard<'_, Position> {
        let position = self.inner.position.lock();
        position.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the journal's snapshot, if it is ahead of what was applied.
    pub(super) fn restore<F: FileSystem>(&self, journal: &Journal<F>) -> Result<(), JournalError> {
        let Some(stored) = journal.snapshot() else {
            return Ok(());
        };
        if self.position().applied < stored.meta.last_log_id {
            self.take(&stored.meta, &stored.bytes)
                .map_err(|damage| journal.damaged(damage))?;
        }
        Ok(())
    }

    /// Applies all that the log holds: where there is one voter, what is durable there is committed, or
    /// will be before anything else is.
    pub(crate) fn apply_all<F: FileSystem>(&self, journal: &Journal<F>) {
        let applied = self.position().applied;
        self.apply(journal.entries(applied.map_or(0, |id| id.index.saturating_add(1)), None));
    }

    fn take(&self, meta: &SnapshotMeta, bytes: &[u8]) -> Result<(), Damage> {
        let state = snapshot::decode(bytes)?;
        let mut position = self.position();
        position.applied = meta.last_log_id;
        position.membership = meta.last_membership.clone();
        self.inner.state.send_replace(Arc::new(state));
        Ok(())
    }

    fn apply(&self, entries: impl IntoIterator<Item = Entry>) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let mut position = self.position();
        // The state is changed in place unless someone still holds an earlier one.
        self.inner.state.send_if_modified(|state| {
            let before = state.revision();
            for entry in entries {
                position.applied = Some(entry.log_id);
                outcomes.push(match entry.payload {
                    EntryPayload::Blank => Outcome::Own,
                    EntryPayload::Normal(command) => {
                        Outcome::Command(Arc::make_mut(state).apply(&command))
                    }
                    EntryPayload::Membership(membership) => {
                        position.membership = StoredMembership::new(Some(entry.log_id), membership);
                        Outcome::Own
                    }
                });
            }
            state.revision() != before
        });
        outcomes
    }

    /// openraft's handle on it.
    pub(crate) fn on<F: FileSystem>(&self, journal: &Journal<F>) -> Store<F> {
        Store {
            machine: self.clone(),
            journal: journal.clone(),
        }
    }
}

/// The state machine with where its snapshots go.
#[derive(Debug)]
pub(crate) struct Store<F: FileSystem> {
    machine: Machine,
    journal: Journal<F>,
}

/// A state to make a snapshot of.
#[derive(Debug)]
pub(crate) struct SnapshotBuilder<F: FileSystem> {
    state: Arc<MetaState>,
    position: Position,
    journal: Journal<F>,
}

impl<F: FileSystem> RaftSnapshotBuilder<Types> for SnapshotBuilder<F> {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        let bytes = snapshot::encode(&self.state);
        // The same entries give the same bytes everywhere, so their last one names them.
        let last = self.position.applied;
        let meta = SnapshotMeta {
            last_log_id: last,
            last_membership: self.position.membership.clone(),
            snapshot_id: last.map_or_else(|| "none".to_owned(), |id| id.to_string()),
        };
        let kept = self.journal.keep_snapshot(&meta, &bytes).await;
        kept.map_err(|e| fatal(|e| StorageIOError::write_snapshot(None, e), &e))?;
        Ok(Snapshot {
            meta,
            snapshot: Box::new(bytes),
        })
    }
}

impl<F: FileSystem> RaftStateMachine<Types> for Store<F> {
    type SnapshotBuilder = SnapshotBuilder<F>;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let position = self.machine.position();
        Ok((position.applied, position.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        Ok(self.machine.apply(entries))
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<F> {
        let position = self.machine.position();
        SnapshotBuilder {
            state: Arc::clone(&self.machine.inner.state.borrow()),
            position: position.clone(),
            journal: self.journal.clone(),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Bytes>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        bytes: Box<Bytes>,
    ) -> Result<(), StorageError> {
        // Looked at before it is kept: one that can't be read would take the place of one that can.
        let bad = |damage| {
            fatal(
                |e| StorageIOError::read_snapshot(Some(meta.signature()), e),
                &damage,
            )
        };
        snapshot::decode(&bytes).map_err(bad)?;
        let kept = self.journal.keep_snapshot(meta, &bytes).await;
        kept.map_err(|e| {
            fatal(
                |e| StorageIOError::write_snapshot(Some(meta.signature()), e),
                &e,
            )
        })?;
        self.machine.take(meta, &bytes).map_err(bad)
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        let stored = self.journal.snapshot();
        Ok(stored.map(|stored| Snapshot {
            meta: stored.meta,
            snapshot: Box::new(stored.bytes),
        }))
    }
}
