//! The producer snapshots of earlier versions, `{offset:020}.producers`: taken over once, and removed
//! when the log has sidecars that say as much.

use std::io;
use std::path::{Path, PathBuf};

use sq_sim::FileSystem;

use super::PartitionId;
use crate::atomic_file::{self, TEMPORARY_SUFFIX};
use crate::producers::{ProducerLimits, ProducerTable};

const SUFFIX: &str = ".producers";

/// The largest that is read; ten thousand producers take one megabyte.
const MAX_FILE_BYTES: usize = 256 << 20;

/// What an earlier version left in a partition's directory.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// The newest snapshot that can be read, and where it ends.
    pub(super) newest: Option<(ProducerTable, u64)>,
    /// Every such file, whole or not.
    files: Vec<PathBuf>,
}

impl Earlier {
    /// Removes the files. One that stays is removed another time.
    pub(super) async fn remove<F: FileSystem>(&self, fs: &F) {
        for path in &self.files {
            if let Err(error) = atomic_file::remove_if_there(fs, path).await {
                let path = path.display();
                tracing::debug!(%path, %error, "an old producer snapshot could not be removed");
            }
        }
    }
}

/// Looks for snapshots of an earlier version.
pub(super) async fn load<F: FileSystem>(
    fs: &F,
    directory: &Path,
    id: &PartitionId,
    limits: ProducerLimits,
) -> io::Result<Earlier> {
    let entries = match fs.list_dir(directory).await {
        Ok(entries) => entries,
        // Nothing was ever appended.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Earlier::default()),
        Err(e) => return Err(e),
    };
    let mut earlier = Earlier::default();
    let mut snapshots = Vec::new();
    for entry in entries {
        let Some(name) = entry.name.to_str() else {
            continue;
        };
        let path = directory.join(name);
        let whole = name.strip_suffix(SUFFIX);
        if let Some(offset) = whole.and_then(|offset| offset.parse::<u64>().ok()) {
            snapshots.push((offset, path.clone()));
        }
        let unfinished = name.strip_suffix(TEMPORARY_SUFFIX);
        if whole.is_some() || unfinished.is_some_and(|name| name.ends_with(SUFFIX)) {
            earlier.files.push(path);
        }
    }
    snapshots.sort_unstable();
    for (offset, path) in snapshots.into_iter().rev() {
        earlier.newest = read(fs, &path, offset, id, limits).await;
        if earlier.newest.is_some() {
            break;
        }
    }
    Ok(earlier)
}

async fn read<F: FileSystem>(
    fs: &F,
    path: &Path,
    offset: u64,
    id: &PartitionId,
    limits: ProducerLimits,
) -> Option<(ProducerTable, u64)> {
    let content = match atomic_file::read_whole(fs, path, MAX_FILE_BYTES).await {
        Ok(content) => content.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%id, offset, %error, "producer snapshot unreadable, passed over");
            return None;
        }
    };
    match ProducerTable::decode_snapshot(&content, limits) {
        Ok((table, stated)) if stated == offset => return Some((table, offset)),
        Ok((_, stated)) => {
            tracing::warn!(%id, offset, stated, "producer snapshot misnamed, passed over");
        }
        Err(damage) => {
            tracing::warn!(%id, offset, %damage, "producer snapshot damaged, passed over");
        }
    }
    None
}
