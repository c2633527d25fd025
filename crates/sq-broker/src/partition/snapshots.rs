//! The producer snapshots in a partition's directory, `{offset:020}.producers`.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sq_sim::FileSystem;

use super::PartitionId;
use crate::atomic_file::{self, TEMPORARY_SUFFIX};
use crate::producers::{ProducerLimits, ProducerTable};

const SUFFIX: &str = ".producers";

/// How many are kept: should the newest turn out damaged, the log is replayed from the one before.
const KEPT: usize = 2;

/// The largest that is read; ten thousand producers take one megabyte.
const MAX_FILE_BYTES: usize = 256 << 20;

/// Writes a snapshot and removes those that are no longer needed.
pub(super) async fn write<F: FileSystem>(
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
