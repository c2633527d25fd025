//! The metadata in one file, written anew at each change.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use sq_sim::FileSystem;
use tokio::sync::Mutex;

use super::format::{self, Damage};
use super::{MetaError, MetaImage, MetaStore, TopicId, TopicRecord};
use crate::atomic_file::{self, ReplaceError};

/// The file's name in the data directory.
pub const META_FILE: &str = "@meta";

/// A file larger than this is not the metadata of any broker that this code could run.
const MAX_FILE_BYTES: usize = 1 << 30;

/// Why the metadata could not be opened. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such file.
    #[error("{0} is missing")]
    Missing(PathBuf),
    /// It is there and cannot be trusted.
    #[error("{path} is damaged: {damage}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// The file system's error.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}

/// A [`MetaStore`] in the file [`META_FILE`].
#[derive(Debug)]
pub struct FileMetaStore<F: FileSystem> {
    inner: Arc<Inner<F>>,
}

#[derive(Debug)]
struct Inner<F: FileSystem> {
    fs: Arc<F>,
    path: PathBuf,
    image: RwLock<Arc<MetaImage>>,
    /// Held across a change; what it holds is why none is taken any more.
    latch: Mutex<Option<Arc<str>>>,
}

impl<F: FileSystem> FileMetaStore<F> {
    /// Opens the file in a data directory.
    ///
    /// What it says is on disk once this returns, also after a crash that left it in the page cache
    /// alone.
    ///
    /// # Errors
    /// It is missing, damaged, or unreadable. It is never repaired.
    pub async fn open(fs: Arc<F>, data_dir: &Path) -> Result<Self, OpenError> {
        let path = data_dir.join(META_FILE);
        let content = atomic_file::read_durably(&*fs, &path, MAX_FILE_BYTES)
            .await
            .map_err(|error| OpenError::Io {
                path: path.clone(),
                error,
            })?
            .ok_or_else(|| OpenError::Missing(path.clone()))?;
        let image = format::decode(&content).map_err(|damage| OpenError::Damaged {
            path: path.clone(),
            damage,
        })?;
        Ok(Self::with_image(fs, path, image))
    }

    /// Writes a file that knows no topic. For a data directory in which there is nothing yet.
    ///
    /// # Errors
    /// The file system's own.
    pub async fn create(fs: Arc<F>, data_dir: &Path) -> Result<Self, OpenError> {
        let path = data_dir.join(META_FILE);
        let image = MetaImage::default();
        atomic_file::replace(&*fs, &path, format::encode(&image))
            .await
            .map_err(|error| OpenError::Io {
                path: path.clone(),
                error: error.into(),
            })?;
        Ok(Self::with_image(fs, path, image))
    }

    fn with_image(fs: Arc<F>, path: PathBuf, image: MetaImage) -> Self {
        let image = RwLock::new(Arc::new(image));
        Self {
            inner: Arc::new(Inner {
                fs,
                path,
                image,
                latch: Mutex::new(None),
            }),
        }
    }

    /// Runs a change to its end even if the caller goes away: a file that has changed beside a
    /// memory that has not would be two truths.
    async fn commit<T, C>(&self, change: C) -> Result<T, MetaError>
    where
        T: Send + 'static,
        C: FnOnce(&mut MetaImage) -> Result<T, MetaError> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        match tokio::spawn(async move { inner.commit(change).await }).await {
            Ok(outcome) => outcome,
            Err(e) => Err(MetaError::Latched(
                format!("a change was cut short: {e}").into(),
            )),
        }
    }
}

impl<F: FileSystem> Inner<F> {
    fn image(&self) -> Arc<MetaImage> {
        Arc::clone(&self.image.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn commit<T, C>(&self, change: C) -> Result<T, MetaError>
    where
        C: FnOnce(&mut MetaImage) -> Result<T, MetaError>,
    {
        let mut latch = self.latch.lock().await;
        if let Some(reason) = &*latch {
            return Err(MetaError::Latched(Arc::clone(reason)));
        }
        let old = self.image();
        let mut new = MetaImage::clone(&old);
        let outcome = change(&mut new)?;
        if new == *old {
            return Ok(outcome);
        }
        match self.write(&new).await {
            Ok(()) => {}
            Err(ReplaceError::Unchanged(error)) => return Err(MetaError::Write(error)),
            Err(ReplaceError::Unknown(error)) => {
                let error = self.take_back(&old, error).await;
                if let MetaError::Latched(reason) = &error {
                    tracing::error!(path = %self.path.display(), %reason, "metadata latched");
                    *latch = Some(Arc::clone(reason));
                }
                return Err(error);
            }
        }
        *self.image.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(outcome)
    }

    /// Puts the old file back. The new one may be there all the same, and a restart would act on a
    /// change that was refused: a topic thought deleted, with records acknowledged since.
    async fn take_back(&self, old: &MetaImage, error: io::Error) -> MetaError {
        match self.write(old).await {
            Ok(()) => MetaError::Write(error),
            Err(second) => MetaError::Latched(
                format!("{error}, and taking it back failed too: {second}").into(),
            ),
        }
    }

    async fn write(&self, image: &MetaImage) -> Result<(), ReplaceError> {
        atomic_file::replace(&*self.fs, &self.path, format::encode(image)).await
    }
}

#[async_trait]
impl<F: FileSystem> MetaStore for FileMetaStore<F> {
    fn image(&self) -> Arc<MetaImage> {
        self.inner.image()
    }

    async fn create_topic(&self, topic: TopicRecord) -> Result<Arc<TopicRecord>, MetaError> {
        self.commit(|image| image.create_topic(topic)).await
    }

    async fn delete_topic(&self, id: TopicId) -> Result<Arc<TopicRecord>, MetaError> {
        self.commit(move |image| image.delete_topic(id)).await
    }

    async fn forget_deleted(&self, id: TopicId) -> Result<(), MetaError> {
        self.commit(move |image| {
            image.forget_deleted(id);
            Ok(())
        })
        .await
    }

    async fn allocate_producer_ids(&self, count: u32) -> Result<Range<i64>, MetaError> {
        self.commit(move |image| image.allocate_producer_ids(count))
            .await
    }
}
