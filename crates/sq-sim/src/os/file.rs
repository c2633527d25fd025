//! Handles of the machine's files.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::direct::Direct;
use super::{Executor, ahead, calls, on_pool, zero};
use crate::error::name_path;
use crate::fs::{DurableWriteError, FileHandle, ReadAhead};

/// An open file and the path it was opened with.
#[derive(Debug)]
pub(super) struct OsFile {
    fd: OwnedFd,
    direct: Direct,
    /// Whether durable writes go past the page cache.
    writes_directly: bool,
    path: PathBuf,
}

impl OsFile {
    pub(super) fn new(fd: OwnedFd, path: PathBuf, writes_directly: bool) -> Self {
        Self {
            fd,
            direct: Direct::default(),
            writes_directly,
            path,
        }
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        calls::read(&self.fd, offset, len).map_err(self.named("read"))
    }

    fn named(&self, operation: &'static str) -> impl FnOnce(io::Error) -> io::Error + '_ {
        move |e| name_path(operation, &self.path, e)
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        self.direct.forget();
        calls::write(&self.fd, offset, data).map_err(self.named("write"))
    }

    fn write_directly(&self, offset: u64, data: &[Bytes]) -> Result<bool, DurableWriteError> {
        let written = self.direct.write(&self.fd, offset, data);
        let error = |e| DurableWriteError::Write(self.named("write")(e));
        written.map_err(error)
    }

    fn sync_data(&self) -> io::Result<()> {
        calls::fdatasync(&self.fd).map_err(self.named("sync"))
    }

    fn write_and_sync(&self, offset: u64, data: &[Bytes]) -> Result<(), DurableWriteError> {
        let is_written = self.writes_directly && self.write_directly(offset, data)?;
        if !is_written {
            self.write(offset, data).map_err(DurableWriteError::Write)?;
        }
        self.sync_data().map_err(DurableWriteError::Sync)
    }
}

/// A handle that runs its system calls where its file system does.
#[derive(Debug)]
pub(super) struct OsHandle {
    file: Arc<OsFile>,
    executor: Executor,
}

impl OsHandle {
    pub(super) fn new(file: OsFile, executor: Executor) -> Self {
        Self {
            file: Arc::new(file),
            executor,
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OsFile) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self.executor {
            Executor::Inline => work(&self.file),
            Executor::BlockingPool => {
                let file = self.file.clone();
                on_pool(move || work(&file)).await?
            }
        }
    }
}

#[async_trait]
impl FileHandle for OsHandle {
    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.run(move |f| f.read(offset, len)).await
    }

    fn read_ahead(&self, range: Range<u64>, piece_len: usize) -> Option<Box<dyn ReadAhead>> {
        ahead::start(Arc::clone(&self.file), self.executor, range, piece_len)
    }

    async fn write_at(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        match self.executor {
            Executor::Inline => self.file.write(offset, data),
            Executor::BlockingPool => {
                let (file, data) = (self.file.clone(), data.to_vec());
                on_pool(move || file.write(offset, &data)).await?
            }
        }
    }

    async fn write_and_sync_at(
        &self,
        offset: u64,
        data: &[Bytes],
    ) -> Result<(), DurableWriteError> {
        match self.executor {
            Executor::Inline => self.file.write_and_sync(offset, data),
            Executor::BlockingPool => {
                let (file, data) = (self.file.clone(), data.to_vec());
                on_pool(move || file.write_and_sync(offset, &data))
                    .await
                    // Whether it ran is not known, so neither is what the disk holds.
                    .map_err(DurableWriteError::Sync)?
            }
        }
    }

    async fn expect_write_at(&self, offset: u64, before: Bytes) {
        if !self.file.writes_directly {
            return;
        }
        // What can't be made ready is met by the write.
        let _ = self
            .run(move |f| {
                f.direct.expect(&f.fd, offset, &before);
                Ok(())
            })
            .await;
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.run(OsFile::sync_data).await
    }

    async fn sync_all(&self) -> io::Result<()> {
        self.run(|f| calls::fsync(&f.fd).map_err(f.named("sync")))
            .await
    }

    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(move |f| calls::allocate(&f.fd, offset, len).map_err(f.named("allocate")))
            .await
    }

    async fn zero_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(move |f| {
            f.direct.forget();
            zero::zero_range(&f.fd, &f.direct, offset, len).map_err(f.named("zero"))
        })
        .await
    }

    async fn len(&self) -> io::Result<u64> {
        self.run(|f| calls::len(&f.fd).map_err(f.named("measure")))
            .await
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        self.run(move |f| {
            f.direct.forget();
            calls::set_len(&f.fd, len).map_err(f.named("set length of"))
        })
        .await
    }
}
