//! The file system as a trait: positional, asynchronous, and explicit about what is durable.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;

/// What an entry of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Anything else: a link, a socket, a device.
    Other,
}

/// One entry of a directory, as [`FileSystem::list_dir`] gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The entry's name, without its directory.
    pub name: OsString,
    /// What it is.
    pub kind: EntryKind,
    /// A file's length in bytes; 0 for anything else.
    pub len: u64,
}

/// How [`FileHandle::write_and_sync_at`] failed: the two failures leave a file in different states.
#[derive(Debug)]
pub enum DurableWriteError {
    /// The write failed or was cut short: a prefix of the data may be in the file.
    Write(io::Error),
    /// The data was written, the sync failed: what the disk holds is unknown, and a second sync of
    /// the same file that succeeds would prove nothing (the kernel may have marked the pages clean).
    Sync(io::Error),
}

impl DurableWriteError {
    /// The error of the operating system.
    pub fn io(&self) -> &io::Error {
        match self {
            Self::Write(e) | Self::Sync(e) => e,
        }
    }
}

impl std::fmt::Display for DurableWriteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write(e) => write!(f, "write failed: {e}"),
            Self::Sync(e) => write!(f, "sync failed: {e}"),
        }
    }
}

/// For whoever does the same about both.
impl From<DurableWriteError> for io::Error {
    fn from(error: DurableWriteError) -> Self {
        match error {
            DurableWriteError::Write(e) | DurableWriteError::Sync(e) => e,
        }
    }
}

impl std::error::Error for DurableWriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.io())
    }
}

/// Files and directories.
///
/// Nothing is durable until it is synced: a file's bytes by [`FileHandle::sync_data`] or
/// [`FileHandle::sync_all`], a name (created, renamed, removed) by [`FileSystem::sync_dir`] of the
/// directory that holds it. Dropping a handle makes nothing durable.
///
/// Every error is the operating system's own, its kind kept: `NotFound`, `AlreadyExists`,
/// `StorageFull`, `WouldBlock` (a lock that is held), and so on.
#[async_trait]
pub trait FileSystem: Debug + Send + Sync + 'static {
    /// Creates a file and opens it for reading and writing; `AlreadyExists` if the name is taken.
    async fn create_new(&self, path: &Path) -> io::Result<Box<dyn FileHandle>>;

    /// Opens an existing file for reading and writing.
    async fn open(&self, path: &Path) -> io::Result<Box<dyn FileHandle>>;

    /// Opens an existing file for reading; writes through the handle fail.
    async fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn FileHandle>>;

    /// Renames a file or directory, replacing a file that has the new name.
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Unlinks a file. Handles that are open on it keep working.
    async fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    async fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// The entries of a directory, sorted by name.
    async fn list_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>>;

    /// Creates a directory and its missing parents; one that exists is fine.
    async fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable (`fsync` of the directory).
    async fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Takes an exclusive lock on a file, creating it if missing; `WouldBlock` if it is held.
    ///
    /// The lock is released when the guard is dropped, and when the process dies.
    async fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>>;
}

/// An exclusive lock on a file, held until dropped. See [`FileSystem::lock`].
pub trait FileLock: Debug + Send + Sync {}

/// A range of a file that is read ahead. See [`FileHandle::read_ahead`].
#[async_trait]
pub trait ReadAhead: Debug + Send {
    /// The next piece: as long as was asked for but at the end of the range or of the file, and empty
    /// behind it. After an error there is no more.
    async fn next(&mut self) -> io::Result<Bytes>;
}

/// An open file. Positions are bytes from its start.
///
/// Data is taken as [`Bytes`], so that an implementation can hand it to another thread without a
/// copy. A call whose future is dropped may still take place, wholly or in part.
#[async_trait]
#[expect(
    clippy::len_without_is_empty,
    reason = "a length that can fail; nobody asks for emptiness"
)]
pub trait FileHandle: Debug + Send + Sync {
    /// Reads up to `len` bytes; fewer only at the end of the file, none beyond it.
    ///
    /// What it allocates is bounded by what the file holds behind `offset`.
    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes>;

    /// Reads a range from its start to its end in pieces of `piece_len`, the next ones while the caller
    /// looks at the one before. `None` where that would gain nothing.
    fn read_ahead(&self, range: Range<u64>, piece_len: usize) -> Option<Box<dyn ReadAhead>> {
        let _ = (range, piece_len);
        None
    }

    /// Writes all of `data`, one buffer behind the other, growing the file where needed.
    ///
    /// On an error a prefix of the data may have been written.
    async fn write_at(&self, offset: u64, data: &[Bytes]) -> io::Result<()>;

    /// [`write_at`](Self::write_at) and then [`sync_data`](Self::sync_data), as one call.
    async fn write_and_sync_at(&self, offset: u64, data: &[Bytes])
    -> Result<(), DurableWriteError>;

    /// Says that the next [`write_and_sync_at`](Self::write_and_sync_at) is going to be at `offset`, and
    /// what its page of the file holds in front of that, so that it finds done what a first write would
    /// have to do. A hint: nothing is written, and whoever gives none gets the same bytes.
    async fn expect_write_at(&self, offset: u64, before: Bytes) {
        let _ = (offset, before);
    }

    /// Makes the file's bytes and its length durable (`fdatasync`).
    async fn sync_data(&self) -> io::Result<()>;

    /// Makes the file's bytes and all its metadata durable (`fsync`).
    async fn sync_all(&self) -> io::Result<()>;

    /// Reserves space for a range, growing the file with zeros where it is shorter.
    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Overwrites a range with zeros that are really written, past the page cache where the system
    /// can, growing the file where needed. Not durable until synced.
    async fn zero_range(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The file's length in bytes.
    async fn len(&self) -> io::Result<u64>;

    /// Cuts the file, or grows it with zeros.
    async fn set_len(&self, len: u64) -> io::Result<()>;
}
