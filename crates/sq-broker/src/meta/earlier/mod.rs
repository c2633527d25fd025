//! The metadata of earlier versions: one file in the data directory. It is read once, and removed when
//! the metadata's log holds all of it.

mod format;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
use bytes::Bytes;
#[cfg(test)]
use sq_meta::codec::Damage;
use sq_sim::FileSystem;
use sq_storage::TopicName;

use super::{OpenError, TopicId, TopicRecord};
use crate::atomic_file;

/// The file's name in the data directory.
pub const META_FILE: &str = "@meta";

/// A file larger than this is not the metadata of any broker that this code could run.
const MAX_FILE_BYTES: usize = 1 << 30;

/// Everything the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MetaImage {
    /// How many changes led here.
    pub(super) revision: u64,
    /// The first producer id that was never given out.
    pub(super) next_producer_id: i64,
    /// The topics by name.
    pub(super) topics: BTreeMap<TopicName, Arc<TopicRecord>>,
    /// Topics that were deleted and whose directory may still stand under the name.
    pub(super) deleting: BTreeMap<TopicId, TopicName>,
}

/// Reads the file of a data directory, or `None` if there is none.
///
/// What it says is on disk once this returns, also after a crash that left it in the page cache alone.
///
/// # Errors
/// It is damaged, or unreadable. It is never repaired.
pub(super) async fn read<F: FileSystem>(
    fs: &F,
    data_dir: &Path,
) -> Result<Option<MetaImage>, OpenError> {
    let path = data_dir.join(META_FILE);
    let content = atomic_file::read_durably(fs, &path, MAX_FILE_BYTES)
        .await
        .map_err(|error| OpenError::Io {
            path: path.clone(),
            error,
        })?;
    let Some(content) = content else {
        return Ok(None);
    };
    format::decode(&content)
        .map(Some)
        .map_err(|damage| OpenError::Damaged { path, damage })
}

/// Removes the file, durably.
pub(super) async fn remove<F: FileSystem>(fs: &F, data_dir: &Path) -> io::Result<()> {
    atomic_file::remove_if_there(fs, &data_dir.join(META_FILE)).await?;
    fs.sync_dir(data_dir).await
}

/// What the file says.
#[cfg(test)]
pub(super) fn decode(file: &[u8]) -> Result<MetaImage, Damage> {
    format::decode(file)
}

/// The file that an earlier version would have written.
#[cfg(test)]
pub(super) fn encode(image: &MetaImage) -> Bytes {
    format::encode(image)
}
