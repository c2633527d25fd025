//! The log, its positions and the snapshot, as records in a log of sq-storage.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ::bytes::Bytes;
use sq_sim::FileSystem;
use sq_storage::{Action, Batch, LogReader, ReadError, TopicName, WalConfig, WalWriter};
use tokio::sync::Mutex;

use super::record::{Body, Piece, Record};
use super::view::{StoredSnapshot, View};
use super::{Entry, LogId, SnapshotMeta, StoreConfig};
use crate::codec::Damage;

/// What the journal's directory is called within the node's.
const TOPIC: &str = "log";

/// A snapshot is written in pieces of this size, so that entries get in between.
const PIECE_LEN: usize = 256 << 10;

/// How much of the journal is read at a time when it is opened.
const READ_LEN: usize = 4 << 20;

/// A failed sync ends a file, and the next try goes to a fresh one: so one failure is no reason to
/// stop, and a few in a row are.
const MAX_TRIES: u32 = 3;

/// Why the journal can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// sq-storage can't.
    #[error(transparent)]
    Storage(#[from] sq_storage::Error),
    /// A part of it can't be read back.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record makes no sense.
    #[error("{dir}: the record at offset {offset} of the metadata's journal: {damage}")]
    Damaged {
        /// The node's directory.
        dir: PathBuf,
        /// Which record.
        offset: u64,
        /// What is wrong with it.
        damage: Damage,
    },
    /// It was retired: another one took its place.
    #[error("the metadata's journal takes no more records")]
    Retired,
    /// Entries were purged, and no snapshot holds what they did.
    #[error("{dir}: the log begins behind {purged}, and there is no snapshot of what was before")]
    SnapshotLost {
        /// The node's directory.
        dir: PathBuf,
        /// Up to where entries were purged.
        purged: u64,
    },
}

/// The journal. Cheap to clone: clones share it.
#[derive(Debug)]
pub(crate) struct Journal<F: FileSystem> {
    inner: Arc<Inner<F>>,
}

#[derive(Debug)]
struct Inner<F: FileSystem> {
    dir: PathBuf,
    /// Held from a record's writing until the view has followed it.
    /// Gone once the journal is retired.
    writer: Mutex<Option<WalWriter<F>>>,
    view: RwLock<View>,
}

impl<F: FileSystem> Clone for Journal<F> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<F: FileSystem> Journal<F> {
    /// Opens the journal of a node, and reads all of it.
    ///
    /// # Errors
    /// [`JournalError`]: nothing was changed.
    pub(crate) async fn open(fs: Arc<F>, config: &StoreConfig) -> Result<Self, JournalError> {
        let wal = WalConfig {
            max_segment_bytes: config.segment_bytes,
            max_segment_age: Duration::MAX,
            segment_ids: config.segment_ids.clone(),
            ..WalConfig::new(&config.dir)
        };
        let topic = TopicName::new(TOPIC).map_err(|_| JournalError::Damaged {
            dir: config.dir.clone(),
            offset: 0,
            damage: Damage::Content("no such name"),
        })?;
        let clock = Arc::clone(&config.clock);
        let writer = WalWriter::with_clock(fs, wal, topic, 0, clock).await?;
        let view = read_all(&writer.reader(), config).await?;
        let held = view.snapshot.as_ref().and_then(|s| s.meta.last_log_id);
        if let Some(purged) = view.purged
            && held < Some(purged)
        {
            return Err(JournalError::SnapshotLost {
                dir: config.dir.clone(),
                purged: purged.index,
            });
        }
        Ok(Self {
            inner: Arc::new(Inner {
                dir: config.dir.clone(),
                writer: Mutex::new(Some(writer)),
                view: RwLock::new(view),
            }),
        })
    }

    /// An error that says of the snapshot what is wrong with it.
    pub(super) fn damaged(&self, damage: Damage) -> JournalError {
        JournalError::Damaged {
            dir: self.inner.dir.clone(),
            offset: self.view().snapshot.as_ref().map_or(0, |s| s.first),
            damage,
        }
    }

    fn view(&self) -> RwLockReadGuard<'_, View> {
        self.inner
            .view
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        let view = self.inner.view.write();
        view.unwrap_or_else(PoisonError::into_inner)
    }

    /// The term of the last entry, or of what was purged or snapshotted last.
    pub(super) fn last_term(&self) -> u64 {
        let view = self.view();
        let held = view.snapshot.as_ref().and_then(|s| s.meta.last_log_id);
        let last = view.last_log_id().max(held);
        last.map_or(0, |id| id.leader_id.term)
    }

    pub(super) fn purged(&self) -> Option<LogId> {
        self.view().purged
    }

    pub(super) fn last_log_id(&self) -> Option<LogId> {
        self.view().last_log_id()
    }

    pub(super) fn committed(&self) -> Option<LogId> {
        self.view().committed
    }

    /// Notes a position, to be written with the next record.
    pub(super) fn set_committed(&self, committed: Option<LogId>) {
        self.view_mut().committed = committed;
    }

    pub(super) fn snapshot(&self) -> Option<StoredSnapshot> {
        self.view().snapshot.clone()
    }

    pub(super) fn entries(&self, from: u64, to: Option<u64>) -> Vec<Entry> {
        self.view().entries(from, to)
    }

    pub(super) async fn append(&self, entries: Vec<Entry>) -> Result<(), JournalError> {
        self.write(entries.into_iter().map(Body::Entry).collect())
            .await
    }

    pub(super) async fn truncate(&self, since: u64) -> Result<(), JournalError> {
        self.write(vec![Body::Truncated { since }]).await
    }

    pub(super) async fn purge(&self, upto: LogId) -> Result<(), JournalError> {
        self.write(vec![Body::Purged { upto }]).await?;
        self.trim().await;
        Ok(())
    }

    /// Removes the files that nothing needs any more. Where that fails the next time will do.
    async fn trim(&self) {
        let mut writer = self.inner.writer.lock().await;
        let Some(writer) = writer.as_mut() else {
            return;
        };
        let needed = self.view().needed_from(writer.next_offset());
        let segments = writer.reader().segments();
        if segments.iter().all(|s| s.end_offset > needed) {
            return;
        }
        let trimmed = match writer.purge_to(needed).await {
            Ok(()) => writer.removal().run().await,
            failed => failed,
        };
        if let Err(error) = trimmed {
            tracing::warn!(%error, "files of the metadata's journal were not removed");
        }
    }

    /// Keeps a snapshot. The one before it is no longer needed then.
    pub(super) async fn keep_snapshot(
        &self,
        meta: &SnapshotMeta,
        bytes: &Bytes,
    ) -> Result<(), JournalError> {
        let count = bytes.len().div_ceil(PIECE_LEN).max(1);
        let of = u32::try_from(count).unwrap_or(u32::MAX);
        let mut first = 0;
        for number in 0..of {
            let from = (number as usize).saturating_mul(PIECE_LEN);
            let to = from.saturating_add(PIECE_LEN).min(bytes.len());
            let mut writer = self.inner.writer.lock().await;
            let writer = writer.as_mut().ok_or(JournalError::Retired)?;
            if number == 0 {
                first = writer.next_offset();
            }
            let body = Body::Snapshot(Piece {
                first,
                number,
                of,
                meta: (number == 0).then(|| meta.clone()),
                bytes: bytes.slice(from..to),
            });
            self.write_with(writer, vec![body]).await?;
        }
        self.trim().await;
        Ok(())
    }

    /// Takes no further record: whoever opens the journal again is its only writer. What is known only
    /// in memory is written down first, so that the next opening has nothing to find out.
    ///
    /// # Errors
    /// As for any record. Nothing that was acknowledged is in danger, and the journal is retired.
    pub(super) async fn retire(&self) -> Result<(), JournalError> {
        let mut slot = self.inner.writer.lock().await;
        let Some(mut writer) = slot.take() else {
            return Ok(());
        };
        if self.committed().is_some() {
            self.write_with(&mut writer, vec![Body::Committed]).await?;
        }
        writer.close().await?;
        Ok(())
    }

    /// Takes no further record, and writes nothing down.
    pub(crate) async fn let_go(&self) {
        self.inner.writer.lock().await.take();
    }

    async fn write(&self, bodies: Vec<Body>) -> Result<(), JournalError> {
        let mut writer = self.inner.writer.lock().await;
        let writer = writer.as_mut().ok_or(JournalError::Retired)?;
        self.write_with(writer, bodies).await
    }

    /// Writes records, durably, and lets the view follow.
    async fn write_with(
        &self,
        writer: &mut WalWriter<F>,
        bodies: Vec<Body>,
    ) -> Result<(), JournalError> {
        let committed = self.committed();
        let records = bodies.into_iter().map(|body| Record { committed, body });
        let mut records: Vec<_> = records.collect();
        let mut batches: Vec<_> = records.iter().map(batch).collect();
        while !batches.is_empty() {
            let offset = writer.next_offset();
            let written = append(writer, &batches).await?;
            batches.drain(..written);
            let mut view = self.view_mut();
            for (record, offset) in records.drain(..written).zip(offset..) {
                view.follow(record, offset)
                    .and_then(|()| view.check_begin())
                    .map_err(|damage| JournalError::Damaged {
                        dir: self.inner.dir.clone(),
                        offset,
                        damage,
                    })?;
            }
        }
        Ok(())
    }
}

async fn append<F: FileSystem>(
    writer: &mut WalWriter<F>,
    batches: &[Batch],
) -> Result<usize, sq_storage::Error> {
    let mut tries = 1;
    loop {
        match writer.append_batches(batches).await {
            Err(error) if error.action() == Action::Retry && tries < MAX_TRIES => {
                tracing::warn!(%error, tries, "a record of the metadata's journal was not written");
                tries += 1;
            }
            outcome => return outcome,
        }
    }
}

fn batch(record: &Record) -> Batch {
    Batch {
        payload: vec![record.encode()],
        record_count: 1,
        max_timestamp_ms: -1,
        leader_epoch: 0,
    }
}

async fn read_all<F: FileSystem>(
    reader: &LogReader<F>,
    config: &StoreConfig,
) -> Result<View, JournalError> {
    let mut view = View::default();
    let mut next = reader.start_offset();
    let damaged = |offset, damage| JournalError::Damaged {
        dir: config.dir.clone(),
        offset,
        damage,
    };
    while next < reader.end_offset() {
        for frame in reader.read(next, READ_LEN).await? {
            let offset = frame.base_offset;
            let record = Record::decode(&frame.payload.to_bytes());
            record
                .and_then(|record| view.follow(record, offset))
                .map_err(|damage| damaged(offset, damage))?;
            next = frame.end_offset();
        }
    }
    view.check_begin().map_err(|damage| damaged(next, damage))?;
    Ok(view)
}
