//! The producer snapshots in a partition's directory, `{offset:020}.producers`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use sq_sim::FileSystem;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::PartitionId;
use crate::atomic_file::{self, TEMPORARY_SUFFIX};
use crate::producers::{ProducerLimits, ProducerTable};

const SUFFIX: &str = ".producers";

/// How many are kept: should the newest turn out damaged, the log is replayed from the one before.
const KEPT: usize = 2;

/// The largest that is read; ten thousand producers take one megabyte.
const MAX_FILE_BYTES: usize = 256 << 20;

/// Writes a partition's snapshots, beside its appends: a sync of one must hold none of them up.
#[derive(Debug)]
pub(super) struct Snapshots<F: FileSystem> {
    fs: Arc<F>,
    id: PartitionId,
    directory: PathBuf,
    /// Where they are written: appends have threads of their own.
    runtime: Handle,
    /// Whether the log rolled since the last one was begun.
    is_due: bool,
    /// Where the newest one that is known to be good ends.
    newest: Option<u64>,
    running: Option<JoinHandle<Option<u64>>>,
}

impl<F: FileSystem> Snapshots<F> {
    pub(super) fn new(
        fs: Arc<F>,
        id: PartitionId,
        directory: PathBuf,
        runtime: Handle,
        newest: Option<u64>,
    ) -> Self {
        Self {
            fs,
            id,
            directory,
            runtime,
            is_due: false,
            newest,
            running: None,
        }
    }

    /// Says that the log rolled, so that a snapshot is due.
    pub(super) fn rolled(&mut self) {
        self.is_due = true;
    }

    /// Begins to write one if it is due. While another is being written it waits, and then covers
    /// what came in between.
    pub(super) fn begin_if_due(&mut self, producers: &ProducerTable, end: u64) {
        let is_running = self.running.as_ref().is_some_and(|job| !job.is_finished());
        if self.is_due && !is_running {
            self.is_due = false;
            self.begin(producers, end);
        }
    }

    /// Writes one, behind any that is being written, unless there is one that says the same.
    pub(super) async fn write(&mut self, producers: &ProducerTable, end: u64) {
        self.finish_running().await;
        if self.newest != Some(end) {
            self.begin(producers, end);
            self.finish_running().await;
        }
    }

    /// Waits for the one that is being written.
    pub(super) async fn finish(&mut self) {
        self.finish_running().await;
    }

    fn begin(&mut self, producers: &ProducerTable, end: u64) {
        let (fs, id) = (Arc::clone(&self.fs), self.id.clone());
        let directory = self.directory.clone();
        let content = producers.encode_snapshot(end);
        self.running = Some(self.runtime.spawn(async move {
            match write(&*fs, &directory, end, content).await {
                Ok(()) => Some(end),
                Err(error) => {
                    // The one before and the log itself say the same.
                    tracing::warn!(%id, end, %error, "producer snapshot not written");
                    None
                }
            }
        }));
    }

    async fn finish_running(&mut self) {
        if let Some(job) = self.running.take() {
            self.newest = job.await.ok().flatten().or(self.newest);
        }
    }
}

/// Writes a snapshot and removes those that are no longer needed.
async fn write<F: FileSystem>(
    fs: &F,
    directory: &Path,
    offset: u64,
    content: Bytes,
) -> io::Result<()> {
    atomic_file::replace(fs, &path(directory, offset), content).await?;
    let offsets = list(fs, directory).await?;
    let superseded = offsets.len().saturating_sub(KEPT);
    for offset in offsets.into_iter().take(superseded) {
        atomic_file::remove_if_there(fs, &path(directory, offset)).await?;
    }
    Ok(())
}

/// The newest snapshot that can be read and lies within the log, and where it ends. Those beyond the
/// log's end are removed: they speak of batches that are not there, and the log will grow past them.
pub(super) async fn load<F: FileSystem>(
    fs: &F,
    directory: &Path,
    id: &PartitionId,
    log_end: u64,
    limits: ProducerLimits,
) -> io::Result<Option<(ProducerTable, u64)>> {
    for offset in list(fs, directory).await?.into_iter().rev() {
        let path = path(directory, offset);
        if offset > log_end {
            tracing::warn!(%id, offset, log_end, "producer snapshot beyond the log's end removed");
            atomic_file::remove_if_there(fs, &path).await?;
            continue;
        }
        let content = match atomic_file::read_whole(fs, &path, MAX_FILE_BYTES).await {
            Ok(content) => content.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%id, offset, %error, "producer snapshot unreadable, passed over");
                continue;
            }
        };
        match ProducerTable::decode_snapshot(&content, limits) {
            Ok((table, stated)) if stated == offset => return Ok(Some((table, offset))),
            Ok((_, stated)) => {
                tracing::warn!(%id, offset, stated, "producer snapshot misnamed, passed over");
            }
            Err(damage) => {
                tracing::warn!(%id, offset, %damage, "producer snapshot damaged, passed over");
            }
        }
    }
    Ok(None)
}

/// The offsets of the snapshots there are, ascending. Clears away what a crash left half written.
async fn list<F: FileSystem>(fs: &F, directory: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs.list_dir(directory).await {
        Ok(entries) => entries,
        // Nothing was ever appended.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut offsets = Vec::new();
    for entry in entries {
        let Some(name) = entry.name.to_str() else {
            continue;
        };
        if name
            .strip_suffix(TEMPORARY_SUFFIX)
            .is_some_and(|name| name.ends_with(SUFFIX))
        {
            atomic_file::remove_if_there(fs, &directory.join(name)).await?;
        } else if let Some(offset) = name.strip_suffix(SUFFIX).and_then(|o| o.parse().ok()) {
            offsets.push(offset);
        }
    }
    offsets.sort_unstable();
    Ok(offsets)
}

fn path(directory: &Path, offset: u64) -> PathBuf {
    directory.join(format!("{offset:020}{SUFFIX}"))
}
