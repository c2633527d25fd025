//! A file system in memory that does to its user what disks and kernels do.

mod changes;
mod content;
mod failed_sync;
mod fate;
mod fault;
mod handle;
mod inspect;
mod names;
mod power_loss;
mod ranges;
mod state;
mod stop;
mod trace;
mod transfer;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

pub use self::fate::{ContentFate, EntryFate, FileFate, Keep, LengthFate, PowerLoss, SectorFate};
pub use self::fault::{Effect, Errno, Fault, PathPattern, SyncFailure};
pub use self::state::Crashed;
pub use self::stop::Stop;
pub use self::trace::{Op, OpKind, Outcome};

use self::changes::Node;
use self::handle::{MemoryFile, MemoryLock};
use self::state::{Request, State};
use crate::clock::Clock;
use crate::error::name_path;
use crate::fs::{DirEntry, EntryKind, FileHandle, FileLock, FileSystem};
use crate::step::yield_once;

/// A disk, its page cache, and the process that uses them.
///
/// Cloning gives another handle on the same one. Every operation gives way once before its effect
/// and once after it, so that a test can stop it on either side. The same seed and the same calls in
/// the same order give the same trace, byte for byte.
#[derive(Clone)]
pub struct InMemoryFileSystem {
    shared: Arc<Shared>,
    /// The process that this one belongs to, if it is that of one process.
    process: Option<u64>,
}

struct Shared {
    state: Mutex<State>,
    clock: Option<Arc<dyn Clock>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemoryFileSystem")
    }
}

impl fmt::Debug for InMemoryFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("InMemoryFileSystem")
            .field("files", &state.files.len())
            .field("operations", &state.operations)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// A panic in a test that holds the lock must not hide its message behind a poisoned mutex.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out an operation; what its fault asks for beyond that is left to `finish`.
    async fn start<T>(
        &self,
        request: &Request,
        generation: u64,
        effect: impl FnOnce(&mut State, Option<Effect>) -> io::Result<T> + Send,
    ) -> (io::Result<T>, Duration) {
        yield_once().await;
        let (result, delay) = self.lock().perform(request, generation, effect);
        (
            result.map_err(|e| name_path(request.kind.verb(), &request.path, e)),
            delay,
        )
    }

    /// The effect comes before the delay: a sync covers what was written before it was called, not
    /// what is written while it runs.
    async fn finish(&self, delay: Duration) {
        if let Some(clock) = &self.clock
            && !delay.is_zero()
        {
            clock.sleep(delay).await;
        }
        yield_once().await;
    }

    async fn run<T>(
        &self,
        request: Request,
        generation: u64,
        effect: impl FnOnce(&mut State, Option<Effect>) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let (result, delay) = self.start(&request, generation, effect).await;
        self.finish(delay).await;
        result
    }
}

impl InMemoryFileSystem {
    /// An empty disk, on which delays take no time.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, None)
    }

    /// An empty disk, on which delays are slept on `clock`.
    pub fn with_clock(seed: u64, clock: Arc<dyn Clock>) -> Self {
        Self::with(seed, Some(clock))
    }

    fn with(seed: u64, clock: Option<Arc<dyn Clock>>) -> Self {
        let state = Mutex::new(State::new(seed));
        Self {
            shared: Arc::new(Shared { state, clock }),
            process: None,
        }
    }

    /// The same disk for the process that runs now: when that dies, this is dead for ever.
    ///
    /// Given to what is tested, it keeps a task that outlives a crash from touching the files of the
    /// next process. Without it every operation belongs to the process that runs when it starts.
    #[must_use]
    pub fn for_this_process(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            process: Some(self.generation()),
        }
    }

    fn generation(&self) -> u64 {
        self.process
            .unwrap_or_else(|| self.shared.lock().generation)
    }

    /// An operation of the process that runs now.
    async fn run<T>(
        &self,
        request: Request,
        effect: impl FnOnce(&mut State) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let generation = self.generation();
        self.shared
            .run(request, generation, |state, _| effect(state))
            .await
    }

    async fn run_open(
        &self,
        kind: OpKind,
        path: &Path,
        writable: bool,
        effect: impl FnOnce(&mut State) -> io::Result<changes::Ino> + Send,
    ) -> io::Result<Box<dyn FileHandle>> {
        let request = Request::on(kind, path);
        let generation = self.generation();
        let (opened, delay) = self
            .shared
            .start(&request, generation, |state, _| effect(state))
            .await;
        // The handle exists before the next yield: dropped there, it closes.
        let file =
            opened.map(|ino| MemoryFile::new(self.shared.clone(), ino, generation, path, writable));
        self.shared.finish(delay).await;
        Ok(Box::new(file?))
    }
}

#[async_trait]
impl FileSystem for InMemoryFileSystem {
    async fn create_new(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        self.run_open(OpKind::CreateNew, path, true, |state| state.create(path))
            .await
    }

    async fn open(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        self.run_open(OpKind::Open, path, true, |state| state.open(path))
            .await
    }

    async fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        self.run_open(OpKind::OpenReadOnly, path, false, |state| state.open(path))
            .await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let request = Request {
            to: Some(to.into()),
            ..Request::on(OpKind::Rename, from)
        };
        self.run(request, |state| {
            if let Some(replaced) = state.names.rename(from, to)? {
                state.unlinked(replaced);
            }
            Ok(())
        })
        .await
    }

    async fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.run(Request::on(OpKind::RemoveFile, path), |state| {
            let ino = state.names.remove_file(path)?;
            state.unlinked(ino);
            Ok(())
        })
        .await
    }

    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.run(Request::on(OpKind::RemoveDir, path), |state| {
            state.names.remove_dir(path)
        })
        .await
    }

    async fn list_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.run(Request::on(OpKind::ListDir, path), |state| {
            let entries = state.names.list(path)?;
            let entry = |(name, node)| match node {
                Node::Directory(_) => DirEntry {
                    name,
                    kind: EntryKind::Directory,
                    len: 0,
                },
                Node::File(ino) => {
                    let len = state.file(ino).map_or(0, content::Content::len);
                    DirEntry {
                        name,
                        kind: EntryKind::File,
                        len,
                    }
                }
            };
            Ok(entries.into_iter().map(entry).collect())
        })
        .await
    }

    async fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let request = Request::on(OpKind::CreateDirAll, path);
        self.run(request, |state| state.names.create_dir_all(path))
            .await
    }

    async fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let request = Request::on(OpKind::SyncDir, path);
        let effect =
            |state: &mut State, fault: Option<Effect>| state.sync_dir(path, fault.as_ref());
        self.shared.run(request, self.generation(), effect).await
    }

    async fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        let request = Request::on(OpKind::Lock, path);
        let generation = self.generation();
        let (taken, delay) = self
            .shared
            .start(&request, generation, |state, _| state.lock(path))
            .await;
        let lock = taken.map(|ino| MemoryLock::new(self.shared.clone(), ino, generation));
        self.shared.finish(delay).await;
        Ok(Box::new(lock?))
    }
}
