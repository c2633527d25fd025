//! openraft's own test suite for storages.

use std::sync::Arc;

use openraft::testing::{StoreBuilder, Suite};
use sq_sim::{FileSystem, InMemoryFileSystem, OsFileSystem};
use tempfile::TempDir;

use super::support::open;
use crate::raft::log_store::LogStore;
use crate::raft::machine::Store;
use crate::raft::{Machine, StorageError, StoreConfig, Types};

struct OnDisk;

struct InMemory;

async fn build<F: FileSystem>(fs: F, config: StoreConfig) -> (LogStore<F>, Store<F>) {
    let machine = Machine::default();
    let store = open(Arc::new(fs), &config, &machine).await.unwrap();
    let on = machine.on(store.journal());
    (store, on)
}

impl StoreBuilder<Types, LogStore<OsFileSystem>, Store<OsFileSystem>, TempDir> for OnDisk {
    async fn build(
        &self,
    ) -> Result<(TempDir, LogStore<OsFileSystem>, Store<OsFileSystem>), StorageError> {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::new(dir.path().join("node"));
        let (log, machine) = build(OsFileSystem::blocking_pool(), config).await;
        Ok((dir, log, machine))
    }
}

impl StoreBuilder<Types, LogStore<InMemoryFileSystem>, Store<InMemoryFileSystem>> for InMemory {
    async fn build(
        &self,
    ) -> Result<((), LogStore<InMemoryFileSystem>, Store<InMemoryFileSystem>), StorageError> {
        let config = StoreConfig::new("/data/node");
        let (log, machine) = build(InMemoryFileSystem::new(1), config).await;
        Ok(((), log, machine))
    }
}

#[test]
fn the_suite_passes_on_a_disk() {
    Suite::test_all(OnDisk).unwrap();
}

#[test]
fn the_suite_passes_in_memory() {
    Suite::test_all(InMemory).unwrap();
}
