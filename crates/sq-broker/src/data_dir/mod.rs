//! The directory a broker keeps everything in.
//!
//! A topic's segments are under `{topic}/{partition}/`. The broker's own names all begin with `@`,
//! which no topic's name can hold:
//!
//! | name | what it is |
//! |---|---|
//! | `@lock` | locked by the process that uses the directory |
//! | `@stamp` | format version, cluster id, broker id |
//! | `@reserve` | room for what must still work when the disk is full; holds nothing |
//! | `@raft` | the log of the metadata: topics, their segments, producer-id blocks |
//! | `@meta` | the metadata of an earlier version, until it is taken over |
//! | `@deleted-{id}` | what is left of a deleted topic, removed in the background |
//! | `@orphans/{n}/{topic}` | a directory that belonged to no topic, moved out of the way, kept |
//! | `@orphans/{n}/{topic}/{partition}` | one that belonged to no partition of its topic, the same |

mod stamp;
mod tidy;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sq_sim::{DirEntry, EntryKind, FileLock, FileSystem, create_dir_durably};
use sq_storage::TopicName;
use uuid::Uuid;

pub use stamp::{Stamp, StampDamage};

use crate::atomic_file::{self, TEMPORARY_SUFFIX};
use stamp::STAMP_LEN;

const LOCK_FILE: &str = "@lock";
const STAMP_FILE: &str = "@stamp";
const RESERVE_FILE: &str = "@reserve";

/// Why a data directory is not used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process uses it.
    #[error("{0} is in use by another process (its lock is held)")]
    Locked(PathBuf),
    /// Its stamp cannot be trusted.
    #[error("{path} is not a stamp this version can read: {damage}")]
    Stamp {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: StampDamage,
    },
    /// It is another broker's.
    #[error("{path} belongs to broker {found}, and this is broker {expected}")]
    OtherBroker {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: i32,
        /// Who we are.
        expected: i32,
    },
    /// It has no stamp, yet there is something in it that could be a topic, or a broker's.
    #[error("{path} has no stamp, yet it holds {name}: it is not an empty directory to begin in")]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// An entry that stands in the way.
        name: String,
    },
    /// The file system's error.
    #[error("{path}: {error}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}

/// A data directory in use. Its lock is held until this is dropped.
#[derive(Debug)]
pub struct DataDir<F: FileSystem> {
    fs: Arc<F>,
    path: PathBuf,
    stamp: Stamp,
    holds_topics: bool,
    _lock: Box<dyn FileLock>,
}

impl<F: FileSystem> DataDir<F> {
    /// Takes a directory: locks it, and checks its stamp, or stamps it if it is empty.
    ///
    /// `new_cluster_id` is used for a new directory only.
    ///
    /// # Errors
    /// It is in use, another broker's, damaged, or not empty and not stamped.
    pub async fn open(
        fs: Arc<F>,
        path: &Path,
        broker_id: i32,
        new_cluster_id: Uuid,
    ) -> Result<Self, DataDirError> {
        let io = |error| DataDirError::Io {
            path: path.to_owned(),
            error,
        };
        create_dir_durably(&*fs, path).await.map_err(io)?;
        let lock = fs
            .lock(&path.join(LOCK_FILE))
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => DataDirError::Locked(path.to_owned()),
                _ => io(error),
            })?;
        let entries = fs.list_dir(path).await.map_err(io)?;
        let ours: Vec<&DirEntry> = entries.iter().filter(|e| counts_as_data(e)).collect();

        let stamp_path = path.join(STAMP_FILE);
        let content = atomic_file::read_durably(&*fs, &stamp_path, STAMP_LEN + 1)
            .await
            .map_err(io)?;
        let stamp = if let Some(content) = content {
            Stamp::decode(&content).map_err(|damage| DataDirError::Stamp {
                path: stamp_path,
                damage,
            })?
        } else {
            if let Some(entry) = ours.first() {
                let name = entry.name.to_string_lossy().into_owned();
                return Err(DataDirError::NotOurs {
                    path: path.to_owned(),
                    name,
                });
            }
            let stamp = Stamp {
                cluster_id: new_cluster_id,
                broker_id,
            };
            atomic_file::replace(&*fs, &stamp_path, stamp.encode())
                .await
                .map_err(|e| io(e.into()))?;
            stamp
        };
        if stamp.broker_id != broker_id {
            let (path, found) = (path.to_owned(), stamp.broker_id);
            return Err(DataDirError::OtherBroker {
                path,
                found,
                expected: broker_id,
            });
        }
        let holds_topics = entries.iter().any(is_topics);
        Ok(Self {
            fs,
            path: path.to_owned(),
            stamp,
            holds_topics,
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Where room is kept for what must work on a full disk.
    pub fn reserve_path(&self) -> PathBuf {
        self.path.join(RESERVE_FILE)
    }

    /// Whether there was a directory in it that could be a topic's: then there has to be metadata, too.
    pub fn holds_topics(&self) -> bool {
        self.holds_topics
    }
}

/// Whether an entry shows that the directory was used: by us, or by something that our topics would
/// collide with. A `lost+found` does not.
fn counts_as_data(entry: &DirEntry) -> bool {
    let Some(name) = entry.name.to_str() else {
        return false;
    };
    let is_ours_and_empty = [LOCK_FILE, STAMP_FILE, RESERVE_FILE].contains(&name);
    if is_ours_and_empty || name.ends_with(TEMPORARY_SUFFIX) {
        return false;
    }
    name.starts_with('@') || is_topics(entry)
}

/// Whether an entry could be a topic's directory.
fn is_topics(entry: &DirEntry) -> bool {
    let name = entry.name.to_str();
    entry.kind == EntryKind::Directory && name.is_some_and(|name| TopicName::new(name).is_ok())
}

#[cfg(test)]
mod tests;
