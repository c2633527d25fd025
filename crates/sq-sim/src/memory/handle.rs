//! Handles of simulated files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::Shared;
use super::changes::Ino;
use super::state::Request;
use super::trace::OpKind;
use crate::fs::{DurableWriteError, FileHandle, FileLock};

/// Zeroing writes pieces of this many bytes.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

#[derive(Debug)]
pub(super) struct MemoryFile {
    shared: Arc<Shared>,
    ino: Ino,
    generation: u64,
    path: Arc<Path>,
    writable: bool,
}

impl MemoryFile {
    pub(super) fn new(
        shared: Arc<Shared>,
        ino: Ino,
        generation: u64,
        path: &Path,
        writable: bool,
    ) -> Self {
        Self {
            shared,
            ino,
            generation,
            path: path.into(),
            writable,
        }
    }

    fn request(&self, kind: OpKind, offset: u64, len: u64) -> Request {
        Request::at(kind, self.path.clone(), offset, len)
    }

    /// Writing nothing succeeds on any handle: it takes no system call.
    fn check_writable(&self, len: u64) -> io::Result<()> {
        if self.writable || len == 0 {
            return Ok(());
        }
        Err(rustix::io::Errno::BADF.into())
    }

    async fn sync(&self, kind: OpKind) -> io::Result<()> {
        let ino = self.ino;
        self.shared
            .run(self.request(kind, 0, 0), self.generation, |state, fault| {
                state.sync(ino, fault.as_ref())
            })
            .await
    }
}

fn total(data: &[Bytes]) -> u64 {
    data.iter().map(|d| d.len() as u64).sum()
}

fn zeros(len: u64) -> Vec<Bytes> {
    let piece = Bytes::from_static(&ZEROS);
    let mut left = len;
    let mut pieces = Vec::new();
    while left > 0 {
        let now = left.min(ZEROS.len() as u64);
        pieces.push(piece.slice(..super::content::at(now)));
        left -= now;
    }
    pieces
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.shared.lock().close(self.ino, self.generation);
    }
}

#[async_trait]
impl FileHandle for MemoryFile {
    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let request = self.request(OpKind::ReadAt, offset, len as u64);
        let ino = self.ino;
        self.shared
            .run(request, self.generation, |state, fault| {
                state.read(ino, offset, len, fault.as_ref())
            })
            .await
    }

    async fn write_at(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let request = self.request(OpKind::WriteAt, offset, total(data));
        self.shared
            .run(request, self.generation, |state, fault| {
                self.check_writable(total(data))?;
                state.write(self.ino, offset, data, fault)
            })
            .await
    }

    async fn write_and_sync_at(
        &self,
        offset: u64,
        data: &[Bytes],
    ) -> Result<(), DurableWriteError> {
        let write = self.request(OpKind::WriteAt, offset, total(data));
        let (written, write_delay) = self
            .shared
            .start(&write, self.generation, |state, fault| {
                self.check_writable(total(data))?;
                state.write(self.ino, offset, data, fault)
            })
            .await;
        if let Err(error) = written {
            self.shared.finish(write_delay).await;
            return Err(DurableWriteError::Write(error));
        }
        let ino = self.ino;
        let request = self.request(OpKind::SyncData, 0, 0);
        let (synced, sync_delay) = self
            .shared
            .start(&request, self.generation, |state, fault| {
                state.sync(ino, fault.as_ref())
            })
            .await;
        // One call is one hop: the longer delay of its two halves is its delay.
        self.shared.finish(write_delay.max(sync_delay)).await;
        synced.map_err(DurableWriteError::Sync)
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.sync(OpKind::SyncData).await
    }

    async fn sync_all(&self) -> io::Result<()> {
        self.sync(OpKind::SyncAll).await
    }

    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let request = self.request(OpKind::Allocate, offset, len);
        self.shared
            .run(request, self.generation, |state, _| {
                self.check_writable(len)?;
                state.allocate(self.ino, offset, len)
            })
            .await
    }

    async fn zero_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let request = self.request(OpKind::ZeroRange, offset, len);
        self.shared
            .run(request, self.generation, |state, fault| {
                self.check_writable(len)?;
                state.write(self.ino, offset, &zeros(len), fault)
            })
            .await
    }

    async fn len(&self) -> io::Result<u64> {
        let request = self.request(OpKind::Len, 0, 0);
        let ino = self.ino;
        self.shared
            .run(request, self.generation, |state, _| {
                Ok(state.file(ino)?.len())
            })
            .await
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        let request = self.request(OpKind::SetLen, len, 0);
        self.shared
            .run(request, self.generation, |state, _| {
                // ftruncate(2) has an error of its own for this.
                self.check_writable(1)
                    .map_err(|_| rustix::io::Errno::INVAL)?;
                state.set_len(self.ino, len)
            })
            .await
    }
}

/// A lock that is held.
#[derive(Debug)]
pub(super) struct MemoryLock {
    shared: Arc<Shared>,
    ino: Ino,
    generation: u64,
}

impl MemoryLock {
    pub(super) fn new(shared: Arc<Shared>, ino: Ino, generation: u64) -> Self {
        Self {
            shared,
            ino,
            generation,
        }
    }
}

impl FileLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if self.generation == state.generation {
            state.locks.remove(&self.ino);
            state.close(self.ino, self.generation);
        }
    }
}
