//! The machine's own file system, through plain system calls.

mod ahead;
mod buffers;
mod calls;
mod direct;
mod file;
mod zero;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use async_trait::async_trait;
use rustix::fs::{FlockOperation, OFlags};

use self::file::{OsFile, OsHandle};
use crate::error::name_path;
use crate::fs::{DirEntry, FileHandle, FileLock, FileSystem};

/// The machine's own file system. Written for Linux.
///
/// Every error names its path; [`os_error_number`](crate::os_error_number) gives its number.
#[derive(Clone, Copy, Debug)]
pub struct OsFileSystem {
    executor: Executor,
    writes_directly: bool,
}

impl OsFileSystem {
    /// System calls on the caller's thread, which they block: for tools, embedders and threads of
    /// their own.
    pub fn inline() -> Self {
        Self {
            executor: Executor::Inline,
            writes_directly: false,
        }
    }

    /// System calls on the blocking pool of the tokio runtime that polls the future; without one,
    /// the call panics. A call whose future is dropped still takes place.
    pub fn blocking_pool() -> Self {
        Self {
            executor: Executor::BlockingPool,
            writes_directly: false,
        }
    }

    /// Has [`write_and_sync_at`](FileHandle::write_and_sync_at) go past the page cache where the data
    /// ends with a page of the file and the file system takes that (open(2), `O_DIRECT`): durable sooner,
    /// the more so the more there is to write, and without crowding out what the cache holds. What was
    /// written so is not in the cache: who reads it for the first time waits for the disk.
    ///
    /// A descriptor more for each file that is written so, and one page of memory, in which the handle
    /// keeps the page that its last write ended with: while a log goes on in it, nothing else may write
    /// to that page through another handle. The process keeps both for 512 such files; of more, those
    /// that were not written to lately do without until they are again.
    #[must_use]
    pub fn with_direct_writes(self) -> Self {
        Self {
            writes_directly: true,
            ..self
        }
    }

    async fn open_with(&self, path: &Path, flags: OFlags) -> io::Result<Box<dyn FileHandle>> {
        let writes_directly = self.writes_directly;
        let file = self
            .at_path(path, move |path| {
                let operation = if flags.contains(OFlags::CREATE) {
                    "create"
                } else {
                    "open"
                };
                let fd = calls::open(path, flags).map_err(|e| name_path(operation, path, e))?;
                Ok(OsFile::new(fd, path.to_owned(), writes_directly))
            })
            .await?;
        Ok(Box::new(OsHandle::new(file, self.executor)))
    }

    /// Runs `work` where this file system runs its system calls.
    async fn at_path<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self.executor {
            Executor::Inline => work(path),
            Executor::BlockingPool => {
                let path = path.to_owned();
                on_pool(move || work(&path)).await?
            }
        }
    }
}

/// Where system calls run.
#[derive(Clone, Copy, Debug)]
enum Executor {
    Inline,
    BlockingPool,
}

/// Runs `work` on tokio's blocking pool. Its panic is the caller's.
async fn on_pool<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(cancelled) => Err(io::Error::other(cancelled)),
        },
    }
}

#[async_trait]
impl FileSystem for OsFileSystem {
    async fn create_new(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        self.open_with(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
            .await
    }

    async fn open(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        self.open_with(path, OFlags::RDWR).await
    }

    async fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        self.open_with(path, OFlags::RDONLY).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let to = to.to_owned();
        self.at_path(from, move |from| {
            calls::rename(from, &to).map_err(|e| name_path("rename", from, e))
        })
        .await
    }

    async fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.at_path(path, |path| {
            calls::unlink(path).map_err(|e| name_path("remove", path, e))
        })
        .await
    }

    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.at_path(path, |path| {
            calls::rmdir(path).map_err(|e| name_path("remove", path, e))
        })
        .await
    }

    async fn list_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.at_path(path, |path| {
            calls::list(path).map_err(|e| name_path("list", path, e))
        })
        .await
    }

    async fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.at_path(path, |path| {
            calls::create_dir_all(path).map_err(|e| name_path("create directory", path, e))
        })
        .await
    }

    async fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.at_path(path, |path| {
            calls::sync_dir(path).map_err(|e| name_path("sync directory", path, e))
        })
        .await
    }

    async fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        let fd = self
            .at_path(path, |path| {
                calls::open(path, OFlags::RDWR | OFlags::CREATE)
                    .and_then(|fd| {
                        calls::flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
                        Ok(fd)
                    })
                    .map_err(|e| name_path("lock", path, e))
            })
            .await?;
        Ok(Box::new(OsLock { _fd: fd }))
    }
}

/// A lock that is held. It belongs to the open file description, so that a second one conflicts in
/// the same process too, and it goes with the descriptor (flock(2)).
#[derive(Debug)]
struct OsLock {
    _fd: OwnedFd,
}

impl FileLock for OsLock {}
