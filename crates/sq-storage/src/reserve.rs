//! Room on the disk for what must still work when it is full.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sq_sim::{Clock, FileSystem, Instant};
use tokio::sync::Mutex;

use crate::error::{Error, Result};

/// How often it is tried to take the room back, at most.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Room on the disk for what must still work when it is full: closing, sealing, deleting, and what is
/// written to say so.
///
/// It is a file that holds space and nothing else. When an append finds the disk full the file is
/// emptied, and appends are refused from then on ([`Error::DiskFull`]), so that they don't use up what
/// others need in order to make room. Once the file can have its size again there is room, and appends
/// are taken again. One reserve serves all the logs of a disk: clones are the same.
#[derive(Clone)]
pub struct Reserve(Arc<Shared>);

struct Shared {
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    path: PathBuf,
    bytes: u64,
    given_back: AtomicBool,
    /// What is made ahead of its need found no room.
    is_short: AtomicBool,
    /// When it may be tried again to take it back.
    next_try: Mutex<Option<Instant>>,
}

impl Reserve {
    /// Takes `bytes` of room into the file at `path`. Where there is not that much, the reserve begins
    /// as given back; so a program can start on a full disk.
    ///
    /// # Errors
    /// The file system's, but for a lack of room.
    pub async fn take(
        fs: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        path: impl Into<PathBuf>,
        bytes: u64,
    ) -> io::Result<Self> {
        let reserve = Self(Arc::new(Shared {
            fs,
            clock,
            path: path.into(),
            bytes,
            given_back: AtomicBool::new(true),
            is_short: AtomicBool::new(false),
            next_try: Mutex::new(None),
        }));
        match reserve.fill().await {
            Err(error) if !is_out_of_space(&error) => Err(error),
            _ => Ok(reserve),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether the room was given back, because the disk is full.
    pub fn is_given_back(&self) -> bool {
        self.0.given_back.load(Ordering::Acquire)
    }

    /// Says whether there was room for something that is made ahead of its need. Nobody is refused for
    /// it yet: what is there already may have room for long.
    pub(crate) fn note_ahead(&self, is_short: bool) {
        self.0.is_short.store(is_short, Ordering::Release);
    }

    /// For whoever can't go on without what was to be made ahead: gives the room back if it is the disk
    /// that had none for it.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if that is so.
    pub async fn give_back_if_short(&self) -> Result<()> {
        if !self.0.is_short.load(Ordering::Acquire) {
            return Ok(());
        }
        self.give_back().await;
        Err(Error::DiskFull {
            path: self.0.path.clone(),
        })
    }

    /// Gives the room back. For whoever finds the disk full.
    pub async fn give_back(&self) {
        let mut next_try = self.0.next_try.lock().await;
        if self.0.given_back.swap(true, Ordering::AcqRel) {
            return;
        }
        let (path, bytes) = (self.0.path.display(), self.0.bytes);
        *next_try = Some(self.0.clock.now() + TRY_EVERY);
        match self.empty().await {
            Ok(()) => tracing::warn!(%path, bytes, "the disk is full: the reserve is given back"),
            Err(error) => tracing::error!(%path, %error, "the reserve could not be given back"),
        }
    }

    /// Takes the room again, if there is some and it was not tried a moment ago.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if there is none.
    pub async fn restore(&self) -> Result<()> {
        if !self.is_given_back() {
            return Ok(());
        }
        let mut next_try = self.0.next_try.lock().await;
        let now = self.0.clock.now();
        let full = || Error::DiskFull {
            path: self.0.path.clone(),
        };
        if !self.is_given_back() {
            return Ok(());
        }
        if next_try.is_some_and(|at| now < at) {
            return Err(full());
        }
        *next_try = Some(now + TRY_EVERY);
        self.fill().await.map_err(|_| full())?;
        tracing::info!(path = %self.0.path.display(), "there is room again: the reserve is taken");
        Ok(())
    }

    /// Has the file take its room. What it took of it is given back if that is not all.
    async fn fill(&self) -> io::Result<()> {
        let fs = &self.0.fs;
        let file = match fs.create_new(&self.0.path).await {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => fs.open(&self.0.path).await?,
            file => file?,
        };
        // Not synced: what a power loss takes of it is taken again by the next start.
        let filled = file.allocate(0, self.0.bytes).await;
        if filled.is_err() {
            // What it holds would be missing elsewhere.
            let _ = file.set_len(0).await;
        }
        filled?;
        self.0.given_back.store(false, Ordering::Release);
        Ok(())
    }

    async fn empty(&self) -> io::Result<()> {
        let file = self.0.fs.open(&self.0.path).await?;
        file.set_len(0).await
    }
}

impl fmt::Debug for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserve")
            .field("path", &self.0.path)
            .field("bytes", &self.0.bytes)
            .field("given_back", &self.is_given_back())
            .finish()
    }
}

/// Whether an operation failed for want of space, which leaves a file's earlier bytes alone.
pub(crate) fn is_out_of_space(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull, WriteZero};
    matches!(
        error.kind(),
        StorageFull | QuotaExceeded | FileTooLarge | WriteZero
    )
}
