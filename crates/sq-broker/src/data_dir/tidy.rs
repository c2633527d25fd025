//! Bringing a data directory in line with the metadata.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sq_sim::{Clock, EntryKind, FileSystem, create_dir_durably};
use sq_storage::TopicName;
use sq_storage::wal::remove_file_in_steps;
use uuid::Uuid;

use super::DataDir;
use crate::meta::TopicId;

const DELETED_PREFIX: &str = "@deleted-";
const ORPHANS: &str = "@orphans";

impl<F: FileSystem> DataDir<F> {
    /// Where a topic's partitions are.
    pub fn topic_path(&self, name: &TopicName) -> PathBuf {
        self.path.join(name.as_str())
    }

    /// Takes a deleted topic's directory out of the way of its name, durably. What is left of it is
    /// at the path that is returned; `None` if it had no directory.
    ///
    /// # Errors
    /// The file system's own; the directory is then at its old place or at the new one, and calling
    /// this again finds it.
    pub async fn move_deleted(&self, name: &TopicName, id: TopicId) -> io::Result<Option<PathBuf>> {
        let target = self.path.join(format!("{DELETED_PREFIX}{id}"));
        match self.fs.rename(&self.topic_path(name), &target).await {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Nothing was written yet, or the rename of an earlier attempt took place.
                self.fs.sync_dir(&self.path).await?;
                return Ok(self.exists(&target).await.then_some(target));
            }
            Err(e) => return Err(e),
        }
        self.fs.sync_dir(&self.path).await?;
        Ok(Some(target))
    }

    /// What removes a directory that [`move_deleted`](Self::move_deleted) made, apart from this.
    pub fn remover(&self) -> Remover<F> {
        Remover {
            fs: Arc::clone(&self.fs),
            data_dir: self.path.clone(),
        }
    }

    /// What earlier deletions left. The directory of a topic that `lives` is not taken for that: the
    /// metadata is older than its deletion then, which whoever put it there has to know.
    ///
    /// # Errors
    /// The file system's own.
    pub async fn leftovers(&self, lives: impl Fn(TopicId) -> bool) -> io::Result<Vec<PathBuf>> {
        let mut leftovers = Vec::new();
        for entry in self.fs.list_dir(&self.path).await? {
            let id = entry.name.to_str().and_then(deleted_id);
            let (Some(id), EntryKind::Directory) = (id, entry.kind) else {
                continue;
            };
            let path = self.path.join(&entry.name);
            if lives(id) {
                tracing::error!(%id, path = %path.display(),
                    "the directory of a deleted topic, which the metadata knows as a living one; kept");
            } else {
                leftovers.push(path);
            }
        }
        Ok(leftovers)
    }

    /// Moves every directory that could be a topic's, and is none's, into `@orphans`, and says what
    /// went where. Nothing is deleted: an unknown directory may be all that is left of something.
    ///
    /// # Errors
    /// The file system's own.
    pub async fn quarantine_orphans(
        &self,
        is_topic: impl Fn(&TopicName) -> bool,
    ) -> io::Result<BTreeMap<TopicName, PathBuf>> {
        let mut moved = BTreeMap::new();
        for entry in self.fs.list_dir(&self.path).await? {
            let name = entry
                .name
                .to_str()
                .and_then(|name| TopicName::new(name).ok());
            let (Some(name), EntryKind::Directory) = (name, entry.kind) else {
                continue;
            };
            if is_topic(&name) {
                continue;
            }
            let target = self.quarantine(Path::new(name.as_str())).await?;
            moved.insert(name, target);
        }
        Ok(moved)
    }

    /// The same with every directory in a topic's that could be a partition's, and is none of the
    /// `count` that it has.
    ///
    /// # Errors
    /// The file system's own.
    pub async fn quarantine_partitions(
        &self,
        topic: &TopicName,
        count: u32,
    ) -> io::Result<Vec<PathBuf>> {
        let entries = match self.fs.list_dir(&self.topic_path(topic)).await {
            // Nothing was written to it yet.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut moved = Vec::new();
        for entry in entries {
            let number = entry
                .name
                .to_str()
                .and_then(|name| name.parse::<u32>().ok());
            let (Some(number), EntryKind::Directory) = (number, entry.kind) else {
                continue;
            };
            if number >= count {
                let path = Path::new(topic.as_str()).join(&entry.name);
                moved.push(self.quarantine(&path).await?);
            }
        }
        Ok(moved)
    }

    /// Moves what is at a path below this directory to a place of its own, durably.
    async fn quarantine(&self, path: &Path) -> io::Result<PathBuf> {
        let orphans = self.path.join(ORPHANS);
        create_dir_durably(&*self.fs, &orphans).await?;
        let taken = self.fs.list_dir(&orphans).await?;
        let number = taken
            .iter()
            .filter_map(|e| e.name.to_str()?.parse::<u64>().ok())
            .max()
            .map_or(1, |highest| highest.saturating_add(1));
        let (from, target) = (
            self.path.join(path),
            orphans.join(number.to_string()).join(path),
        );
        create_dir_durably(&*self.fs, parent(&target)).await?;
        self.fs.rename(&from, &target).await?;
        self.fs.sync_dir(parent(&target)).await?;
        self.fs.sync_dir(parent(&from)).await?;
        Ok(target)
    }

    async fn exists(&self, directory: &Path) -> bool {
        self.fs.list_dir(directory).await.is_ok()
    }
}

/// Which topic a directory was that [`DataDir::move_deleted`] named.
fn deleted_id(name: &str) -> Option<TopicId> {
    let id = Uuid::try_parse(name.strip_prefix(DELETED_PREFIX)?).ok()?;
    Some(TopicId::from_uuid(id))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Removes what is left of deleted topics.
#[derive(Debug)]
pub struct Remover<F: FileSystem> {
    fs: Arc<F>,
    data_dir: PathBuf,
}

impl<F: FileSystem> Remover<F> {
    /// Removes a deleted topic's directory and all below it, its segments in small steps with pauses
    /// by `clock`, so that no append waits for the file system to free them.
    ///
    /// # Errors
    /// The file system's own; calling this again goes on.
    pub async fn remove(&self, clock: &dyn Clock, path: &Path) -> io::Result<()> {
        remove_tree(&*self.fs, clock, path).await?;
        self.fs.sync_dir(&self.data_dir).await
    }
}

/// Removes a directory and all below it.
async fn remove_tree<F: FileSystem>(fs: &F, clock: &dyn Clock, root: &Path) -> io::Result<()> {
    // Depth first without recursion: a directory is looked at again once its children are gone.
    let mut stack = vec![root.to_owned()];
    while let Some(directory) = stack.last().cloned() {
        let mut children = Vec::new();
        for entry in fs.list_dir(&directory).await? {
            let path = directory.join(&entry.name);
            match entry.kind {
                EntryKind::Directory => children.push(path),
                EntryKind::File => remove_file_in_steps(fs, clock, &path).await?,
                EntryKind::Other => fs.remove_file(&path).await?,
            }
        }
        if children.is_empty() {
            fs.remove_dir(&directory).await?;
            stack.pop();
        } else {
            stack.append(&mut children);
        }
    }
    Ok(())
}
