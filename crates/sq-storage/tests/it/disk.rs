//! The simulated disk as one process sees it, with the habits of a careless program where a test
//! wants to know whether they would be noticed.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sq_sim::{DirEntry, DurableWriteError, FileHandle, FileLock, FileSystem, InMemoryFileSystem};

/// How a process uses its disk; by default as it was told to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Habits {
    /// An operation goes on when its future is dropped, as on a pool of threads.
    pub(crate) detached: bool,
    /// How often zeroing gives way before it takes place.
    pub(crate) zero_lag: usize,
    pub(crate) bad: Option<BadHabit>,
}

/// What loses data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHabit {
    /// Directories are never synced.
    ForgetsDirectories,
    /// A sync that failed is tried once more on the same file.
    RetriesSyncs,
    /// Bytes that the file seems to have already are not written again.
    SkipsKnownBytes,
    /// A segment takes its name from a file that has it.
    OverwritesNames,
}

/// The disk of one process: dead for good when that dies.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    fs: InMemoryFileSystem,
    habits: Habits,
}

#[derive(Clone, Debug)]
struct DiskFile {
    file: Arc<dyn FileHandle>,
    habits: Habits,
}

impl Habits {
    async fn run<T: Send + 'static>(self, work: impl Future<Output = T> + Send + 'static) -> T {
        if self.detached {
            tokio::spawn(work).await.unwrap()
        } else {
            work.await
        }
    }
}

impl Disk {
    pub(crate) fn new(fs: &InMemoryFileSystem, habits: Habits) -> Self {
        let fs = fs.for_this_process();
        Self { fs, habits }
    }

    async fn run<T, Work>(&self, work: impl FnOnce(InMemoryFileSystem) -> Work) -> T
    where
        T: Send + 'static,
        Work: Future<Output = T> + Send + 'static,
    {
        self.habits.run(work(self.fs.clone())).await
    }

    fn wrap(&self, file: Box<dyn FileHandle>) -> Box<dyn FileHandle> {
        let (file, habits) = (Arc::from(file), self.habits);
        Box::new(DiskFile { file, habits })
    }
}

#[async_trait]
impl FileSystem for Disk {
    async fn create_new(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        let is_segment = path.extension() == Some(OsStr::new("wal"));
        let overwrites = self.habits.bad == Some(BadHabit::OverwritesNames) && is_segment;
        let path = path.to_path_buf();
        let created = self.run(|fs| async move {
            match fs.create_new(&path).await {
                Err(e) if overwrites && e.kind() == io::ErrorKind::AlreadyExists => {
                    let file = fs.open(&path).await?;
                    file.set_len(0).await?;
                    Ok(file)
                }
                created => created,
            }
        });
        Ok(self.wrap(created.await?))
    }

    async fn open(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        let path = path.to_path_buf();
        let opened = self.run(|fs| async move { fs.open(&path).await });
        Ok(self.wrap(opened.await?))
    }

    async fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        let path = path.to_path_buf();
        let opened = self.run(|fs| async move { fs.open_read_only(&path).await });
        Ok(self.wrap(opened.await?))
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_path_buf(), to.to_path_buf());
        self.run(|fs| async move { fs.rename(&from, &to).await })
            .await
    }

    async fn remove_file(&self, path: &Path) -> io::Result<()> {
        let path = path.to_path_buf();
        self.run(|fs| async move { fs.remove_file(&path).await })
            .await
    }

    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let path = path.to_path_buf();
        self.run(|fs| async move { fs.remove_dir(&path).await })
            .await
    }

    async fn list_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let path = path.to_path_buf();
        self.run(|fs| async move { fs.list_dir(&path).await }).await
    }

    async fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let path = path.to_path_buf();
        self.run(|fs| async move { fs.create_dir_all(&path).await })
            .await
    }

    async fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if self.habits.bad == Some(BadHabit::ForgetsDirectories) {
            return Ok(());
        }
        let path = path.to_path_buf();
        self.run(|fs| async move { fs.sync_dir(&path).await }).await
    }

    async fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        self.fs.lock(path).await
    }
}

impl DiskFile {
    async fn run<T, Work>(&self, work: impl FnOnce(Self) -> Work) -> T
    where
        T: Send + 'static,
        Work: Future<Output = T> + Send + 'static,
    {
        self.habits.run(work(self.clone())).await
    }

    /// Whether a write may be left out.
    async fn has(&self, offset: u64, data: &[Bytes]) -> bool {
        let wanted = data.concat();
        self.habits.bad == Some(BadHabit::SkipsKnownBytes)
            && self
                .file
                .read_at(offset, wanted.len())
                .await
                .is_ok_and(|found| found == wanted)
    }

    async fn put(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        if self.has(offset, data).await {
            return Ok(());
        }
        self.file.write_at(offset, data).await
    }

    async fn flush(&self) -> io::Result<()> {
        match self.file.sync_data().await {
            Err(_) if self.habits.bad == Some(BadHabit::RetriesSyncs) => {
                self.file.sync_data().await
            }
            synced => synced,
        }
    }

    async fn put_and_flush(&self, offset: u64, data: &[Bytes]) -> Result<(), DurableWriteError> {
        if self.habits.bad.is_some() {
            let written = self.put(offset, data).await;
            written.map_err(DurableWriteError::Write)?;
            return self.flush().await.map_err(DurableWriteError::Sync);
        }
        self.file.write_and_sync_at(offset, data).await
    }
}

#[async_trait]
impl FileHandle for DiskFile {
    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.run(|f| async move { f.file.read_at(offset, len).await })
            .await
    }

    async fn write_at(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let data = data.to_vec();
        self.run(|f| async move { f.put(offset, &data).await })
            .await
    }

    async fn write_and_sync_at(
        &self,
        offset: u64,
        data: &[Bytes],
    ) -> Result<(), DurableWriteError> {
        let data = data.to_vec();
        self.run(|f| async move { f.put_and_flush(offset, &data).await })
            .await
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.run(|f| async move { f.flush().await }).await
    }

    async fn sync_all(&self) -> io::Result<()> {
        self.run(|f| async move {
            match f.file.sync_all().await {
                Err(_) if f.habits.bad == Some(BadHabit::RetriesSyncs) => f.file.sync_all().await,
                synced => synced,
            }
        })
        .await
    }

    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(|f| async move { f.file.allocate(offset, len).await })
            .await
    }

    async fn zero_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(|f| async move {
            for _ in 0..f.habits.zero_lag {
                tokio::task::yield_now().await;
            }
            f.file.zero_range(offset, len).await
        })
        .await
    }

    async fn len(&self) -> io::Result<u64> {
        self.run(|f| async move { f.file.len().await }).await
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        self.run(|f| async move { f.file.set_len(len).await }).await
    }
}
