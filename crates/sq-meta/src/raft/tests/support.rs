//! A node's storage on a simulated disk.

use std::future::Future;
use std::sync::Arc;

use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{EntryPayload, LeaderId, RaftLogReader, RaftSnapshotBuilder};
pub(super) use sq_sim::Stop;
use sq_sim::{FileSystem, InMemoryFileSystem, VirtualClock};
use sq_storage::SegmentIds;

use crate::command::Command;
use crate::raft::log_store::LogStore;
use crate::raft::machine::Store;
use crate::raft::{
    Entry, LogId, Machine, OpenError, StorageError, StoreConfig, StoredMembership, Vote, read,
};

pub(super) const DIR: &str = "/data/node";

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

pub(super) fn id(term: u64, index: u64) -> LogId {
    LogId::new(LeaderId::new(term, 1), index)
}

/// An entry that tells its term and index from any other's.
pub(super) fn entry(term: u64, index: u64) -> Entry {
    let below = i64::try_from(term * 1_000_000 + index).unwrap();
    Entry {
        log_id: id(term, index),
        payload: EntryPayload::Normal(Command::SkipProducerIds { below }),
    }
}

pub(super) fn entries(term: u64, indexes: std::ops::Range<u64>) -> Vec<Entry> {
    indexes.map(|index| entry(term, index)).collect()
}

pub(super) fn config(seed: u64) -> StoreConfig {
    StoreConfig {
        segment_bytes: 2048,
        segment_ids: SegmentIds::seeded(seed),
        clock: Arc::new(VirtualClock::new()),
        ..StoreConfig::new(DIR)
    }
}

/// Opens a node's storage, up to where it takes votes and entries.
pub(super) async fn open<F: FileSystem>(
    fs: Arc<F>,
    config: &StoreConfig,
    machine: &Machine,
) -> Result<LogStore<F>, OpenError> {
    let store = read(fs, config, machine).await?;
    store.settle().await?;
    Ok(store)
}

/// A node's storage, open.
pub(super) struct Opened {
    pub(super) log: LogStore<InMemoryFileSystem>,
    pub(super) machine: Machine,
    pub(super) store: Store<InMemoryFileSystem>,
}

/// All that a restart has to bring back, or one state of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Durable {
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<LogId>,
    pub(super) entries: Vec<Entry>,
    pub(super) snapshot: Option<LogId>,
}

impl Opened {
    pub(super) async fn try_on(fs: &InMemoryFileSystem, seed: u64) -> Result<Self, OpenError> {
        let config = config(seed);
        let machine = Machine::default();
        let log = open(Arc::new(fs.for_this_process()), &config, &machine).await?;
        let store = machine.on(log.journal());
        Ok(Self {
            log,
            machine,
            store,
        })
    }

    pub(super) async fn on(fs: &InMemoryFileSystem, seed: u64) -> Self {
        Self::try_on(fs, seed).await.unwrap()
    }

    pub(super) async fn append(&mut self, entries: Vec<Entry>) -> Result<(), StorageError> {
        self.log.blocking_append(entries).await
    }

    pub(super) async fn vote(&mut self, term: u64) -> Result<(), StorageError> {
        self.log.save_vote(&Vote::new(term, 1)).await
    }

    /// Applies what the log holds up to an index, and makes a snapshot of it.
    pub(super) async fn snapshot(&mut self, upto: u64) -> Result<(), StorageError> {
        let applied = self.store.applied_state().await?.0;
        let from = applied.map_or(0, |id| id.index + 1);
        let entries = self.log.try_get_log_entries(from..=upto).await?;
        self.store.apply(entries).await?;
        let mut builder = self.store.get_snapshot_builder().await;
        builder.build_snapshot().await.map(drop)
    }

    pub(super) async fn durable(&mut self) -> Durable {
        Durable {
            vote: self.log.read_vote().await.unwrap(),
            purged: self.log.get_log_state().await.unwrap().last_purged_log_id,
            entries: self.log.try_get_log_entries(..).await.unwrap(),
            snapshot: self
                .store
                .get_current_snapshot()
                .await
                .unwrap()
                .and_then(|s| s.meta.last_log_id),
        }
    }

    pub(super) async fn membership(&mut self) -> StoredMembership {
        self.store.applied_state().await.unwrap().1
    }
}
