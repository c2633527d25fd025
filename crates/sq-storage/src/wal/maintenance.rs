//! What no append waits for: chores, and who does them.
//!
//! A writer that goes on to the next segment leaves work behind: a file to be cut, lines for the
//! manifest. None of it is needed for what was acknowledged to be safe, so it is put on a [`Backlog`]
//! and done behind the append. Chores are done one at a time, strictly in the order in which they
//! were put there. Each may be done again, and a crash between any two leaves a directory that opens
//! to the same log.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sq_sim::{Clock, FileHandle, FileSystem};
use tokio::sync::{MutexGuard, Notify};
use tokio::time::Instant;

use super::ahead::Ahead;
use super::cache::SegmentCache;
use super::companion::{Companion, dir};
use super::manifest::{MANIFEST_NAME, Manifest, ManifestEntry};
use super::sidecar::Sidecar;
use super::state::{Segment, lock};
use super::{index, points, sidecar};
use crate::error::{Error, Result};

/// With so many chores waiting, a writer does them itself, whoever else should have.
pub(super) const MAX_HANDED: usize = 128;

/// How often a chore is tried whose outcome is only tidiness.
const MAX_ATTEMPTS: u32 = 3;

/// Something to do for a partition behind its appends. To add one: a variant here, what it does in
/// [`Chore::run`], and the place in the writer that puts it on the backlog.
///
/// A chore may be run again after it failed, after it was dropped half-way, and beside the late rest
/// of a run that was dropped. It opens files by their paths, through the file system of whoever runs it.
#[derive(Clone, Debug)]
pub(super) enum Chore {
    /// Give the prepared file that became a segment its name, durably.
    Name(Arc<Segment>),
    /// Remove a prepared file that nobody wants any more.
    Discard(PathBuf),
    /// Close the file of a segment that takes no further write, and cut it down to its first `length` bytes.
    Trim {
        /// The segment.
        segment: Arc<Segment>,
        /// The bytes of its header and frames, a last mark included.
        length: u64,
        /// What it was written through: the first append to the next segment would wait for the system to
        /// close that.
        written_through: WrittenThrough,
    },
    /// Write the index of a segment that takes no more records, and let go of it in memory.
    WriteIndex(Arc<Segment>, SegmentCache),
    /// Write the sidecar of a segment that takes no more records, durably: what the layer above knew
    /// at its end.
    WriteSidecar(Arc<Segment>, Sidecar),
    /// Write the recovery point that an active segment waits for.
    WritePoint(Arc<Segment>),
    /// Tell the manifest of a segment that began.
    ListCreated(Arc<Segment>),
    /// Tell the manifest of a segment that ended.
    ListSealed(Arc<Segment>),
}

/// A handle that is closed once, by whoever gets to it first.
pub(super) type WrittenThrough = Arc<Mutex<Option<Box<dyn FileHandle>>>>;

impl Chore {
    async fn run<F: FileSystem>(&self, fs: &F) -> Result<()> {
        match self {
            Self::Name(segment) => name(fs, segment).await,
            Self::Discard(path) => discard(fs, path).await,
            Self::Trim {
                segment,
                length,
                written_through,
            } => {
                let file = lock(written_through).take();
                drop(file);
                trim(fs, segment, *length).await
            }
            Self::WriteIndex(segment, cache) => {
                write_index(fs, segment, cache).await;
                Ok(())
            }
            Self::WriteSidecar(segment, sidecar) => {
                let written = sidecar::write(fs, dir(segment), &segment.name, segment.id, sidecar);
                let path = Companion::Sidecar.path(dir(segment), &segment.name);
                written.await.map_err(Error::io("write", path))
            }
            Self::WritePoint(segment) => {
                points::write(fs, segment).await;
                Ok(())
            }
            // Done together with those behind them.
            Self::ListCreated(_) | Self::ListSealed(_) => Ok(()),
        }
    }

    /// The manifest's line, if that is what the chore is about.
    fn line(&self) -> Option<ManifestEntry> {
        let (segment, seal) = match self {
            Self::ListCreated(segment) => (segment, None),
            Self::ListSealed(segment) => (segment, Some(segment.seal())),
            Self::Name(_)
            | Self::Discard(_)
            | Self::Trim { .. }
            | Self::WriteIndex(..)
            | Self::WriteSidecar(..)
            | Self::WritePoint(_) => return None,
        };
        Some(segment.entry(seal))
    }

    /// The recovery point that is of no use any more once the chore is done.
    fn outdated_point(&self) -> Option<PathBuf> {
        match self {
            Self::ListSealed(segment) if segment.points.may_be_there() => {
                Some(Companion::Point.path(dir(segment), &segment.name))
            }
            _ => None,
        }
    }

    /// Whether it may be left undone, so that it never holds up those behind it for long.
    fn is_tidying(&self) -> bool {
        match self {
            Self::Discard(_)
            | Self::Trim { .. }
            | Self::WriteIndex(..)
            | Self::WriteSidecar(..)
            | Self::WritePoint(_) => true,
            Self::Name(_) | Self::ListCreated(_) | Self::ListSealed(_) => false,
        }
    }
}

/// Renames a prepared file. No other file has the new name: it was settled at the switch.
async fn name<F: FileSystem>(fs: &F, segment: &Segment) -> Result<()> {
    let path = &segment.path;
    if let Some(from) = segment.prepared() {
        match fs.rename(&from, path).await {
            Ok(()) => {}
            // An earlier attempt, that was dropped, got that far.
            Err(e) if e.kind() == io::ErrorKind::NotFound && exists(fs, path).await => {}
            Err(e) => return Err(Error::io("rename", from)(e)),
        }
        segment.named();
    }
    // Also if an earlier attempt failed at just this.
    let dir = path.parent().unwrap_or(path);
    let synced = fs.sync_dir(dir).await;
    synced.map_err(Error::io("sync", dir))
}

async fn exists<F: FileSystem>(fs: &F, path: &Path) -> bool {
    fs.open_read_only(path).await.is_ok()
}

async fn discard<F: FileSystem>(fs: &F, path: &Path) -> Result<()> {
    match fs.remove_file(path).await {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(e)),
        _ => Ok(()),
    }
}

async fn trim<F: FileSystem>(fs: &F, segment: &Segment, length: u64) -> Result<()> {
    let path = &segment.path;
    let operation = segment.wear.begin();
    let file = fs.open(path).await.map_err(Error::io("open", path))?;
    file.set_len(length).await.map_err(Error::io("cut", path))?;
    // Or else what was allocated and not used is back after a power loss, for ever.
    let synced = file.sync_data().await;
    synced.map_err(Error::io("sync", path))?;
    operation.done();
    Ok(())
}

/// Writes a segment's index. A reader that needs one which is not there makes it, so a failure is not
/// worth another attempt.
pub(super) async fn write_index<F: FileSystem>(fs: &F, segment: &Segment, cache: &SegmentCache) {
    let subject = segment.subject();
    // Whether it is as a recovery point told it, and may be wrong: a reader may mend it before it is written.
    let encoded =
        segment.in_live_index(|index| (index.encode(&subject), segment.points.told_below() > 0));
    if let Some((file, is_told)) = encoded {
        let checksum = index::checksum(&file);
        let written = Companion::Index.write(fs, dir(segment), &segment.name, file);
        match written.await {
            Ok(()) if is_told => {}
            Ok(()) => segment.set_index_checksum(checksum),
            Err(error) => tracing::warn!(%error, "index not written"),
        }
    }
    segment.hand_on_index(cache);
}

/// The chores of one partition, shared by its writer and whoever does them.
#[derive(Debug)]
pub(super) struct Backlog {
    pending: Mutex<Pending>,
    /// Held by whoever does chores.
    manifest: tokio::sync::Mutex<Manifest>,
    news: Notify,
    ahead: Ahead,
}

#[derive(Debug, Default)]
struct Pending {
    chores: VecDeque<Chore>,
    /// How often the first one failed.
    attempts: u32,
    /// The writer is gone: nothing more is done.
    has_ended: bool,
    /// The ids of preparations, and of those that were dropped half-way.
    claimed_ids: BTreeSet<u64>,
}

impl Backlog {
    pub(super) fn new(manifest: Manifest) -> Self {
        Self {
            pending: Mutex::default(),
            manifest: tokio::sync::Mutex::new(manifest),
            news: Notify::new(),
            ahead: Ahead::default(),
        }
    }

    pub(super) fn push(&self, chore: Chore) {
        let mut pending = lock(&self.pending);
        if !pending.has_ended {
            pending.chores.push_back(chore);
            self.news.notify_waiters();
        }
    }

    /// Takes an id for a preparation; whether it was free.
    pub(super) fn claim(&self, id: u64) -> bool {
        lock(&self.pending).claimed_ids.insert(id)
    }

    /// Frees the id of a preparation of which nothing is left.
    pub(super) fn release(&self, id: u64) {
        lock(&self.pending).claimed_ids.remove(&id);
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.pending).chores.len()
    }

    /// Nothing is done from now on, but what is under way.
    pub(super) fn end(&self) {
        let mut pending = lock(&self.pending);
        pending.has_ended = true;
        pending.chores.clear();
        self.ahead.end();
        self.news.notify_waiters();
    }

    /// The zeros in front of the active segment's head.
    pub(super) fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    /// Makes room for a write that ends at byte `end` of the active segment. `false` if there is none:
    /// the segment has to end.
    pub(super) async fn make_way(&self, end: u64) -> bool {
        let (is_free, is_news) = self.ahead.make_way(end).await;
        if is_news {
            self.news.notify_waiters();
        }
        is_free
    }

    /// When there is something to do: after so long, or now.
    fn due_in(&self, now: Instant) -> Option<Duration> {
        if self.len() > 0 {
            return Some(Duration::ZERO);
        }
        self.ahead.due_in(now)
    }

    /// [`end`](Self::end), and waits for what is under way.
    pub(super) async fn end_and_settle(&self) {
        self.end();
        let _ = self.manifest.lock().await;
    }

    /// The manifest, once whoever does chores has let go of it.
    pub(super) async fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().await
    }

    /// Does what is pending, in order, up to the first chore that fails: that one is tried again with
    /// the next call.
    pub(super) async fn run<F: FileSystem>(&self, fs: &Arc<F>) -> Result<()> {
        let mut manifest = self.manifest.lock().await;
        loop {
            let Some(next) = self.next() else {
                return Ok(());
            };
            let count = next.len();
            let done = match next {
                Next::Lines { lines, outdated } => {
                    let recorded = record(fs, &mut manifest, &lines).await;
                    if recorded.is_ok() {
                        remove_all(&**fs, &outdated).await;
                    }
                    recorded
                }
                Next::Chore(chore) => chore.run(&**fs).await,
            };
            self.settle(count, done)?;
        }
    }

    /// The first chore, with those behind it that are done in one go.
    fn next(&self) -> Option<Next> {
        let pending = lock(&self.pending);
        let lines: Vec<_> = pending.chores.iter().map_while(Chore::line).collect();
        if !lines.is_empty() {
            let chores = pending.chores.iter().take(lines.len());
            let outdated = chores.filter_map(Chore::outdated_point).collect();
            return Some(Next::Lines { lines, outdated });
        }
        pending.chores.front().cloned().map(Next::Chore)
    }

    /// Strikes off what was done, or counts a failure.
    fn settle(&self, count: usize, done: Result<()>) -> Result<()> {
        let mut pending = lock(&self.pending);
        if let Err(error) = done {
            pending.attempts += 1;
            tracing::warn!(%error, attempts = pending.attempts, "maintenance failed");
            let gives_up = pending.attempts >= MAX_ATTEMPTS
                && pending.chores.front().is_some_and(Chore::is_tidying);
            if !gives_up {
                return Err(error);
            }
        }
        // Fewer are left if the backlog ended meanwhile.
        let count = count.min(pending.chores.len());
        pending.chores.drain(..count);
        pending.attempts = 0;
        Ok(())
    }
}

enum Next {
    Lines {
        lines: Vec<ManifestEntry>,
        /// Files that can go once the lines are written.
        outdated: Vec<PathBuf>,
    },
    Chore(Chore),
}

impl Next {
    /// How many chores it stands for.
    fn len(&self) -> usize {
        match self {
            Self::Lines { lines, .. } => lines.len(),
            Self::Chore(_) => 1,
        }
    }
}

/// Removes files, as best it can: what stays is removed when the partition is opened next.
async fn remove_all<F: FileSystem>(fs: &F, paths: &[PathBuf]) {
    for path in paths {
        let _ = fs.remove_file(path).await;
    }
}

async fn record<F: FileSystem>(
    fs: &Arc<F>,
    manifest: &mut Manifest,
    lines: &[ManifestEntry],
) -> Result<()> {
    let recorded = manifest.record(fs, lines).await;
    recorded.map_err(Error::io("write", manifest.dir().join(MANIFEST_NAME)))
}

/// What a writer leaves to be done behind its appends. Cheap to clone; outlives the writer, and has
/// nothing to do from then on.
///
/// With [`MaintenanceMode::Handed`](super::MaintenanceMode::Handed) somebody has to run it: a task or a
/// thread that waits for something to do, or that is started whenever
/// [`is_pending`](Self::is_pending) says so after an append.
#[derive(Debug)]
pub struct Maintenance<F: FileSystem> {
    fs: Arc<F>,
    backlog: Arc<Backlog>,
    clock: Arc<dyn Clock>,
}

impl<F: FileSystem> Clone for Maintenance<F> {
    fn clone(&self) -> Self {
        Self {
            fs: Arc::clone(&self.fs),
            backlog: Arc::clone(&self.backlog),
            clock: Arc::clone(&self.clock),
        }
    }
}

impl<F: FileSystem> Maintenance<F> {
    pub(super) fn new(fs: Arc<F>, backlog: Arc<Backlog>, clock: Arc<dyn Clock>) -> Self {
        Self { fs, backlog, clock }
    }

    /// Whether there is something to do, now or after a pause.
    pub fn is_pending(&self) -> bool {
        self.due_in().is_some()
    }

    /// How long what there is to do can wait; `None` if there is nothing. Some of it is best done bit by
    /// bit, at a pace that leaves the disk to the appends.
    pub fn due_in(&self) -> Option<Duration> {
        self.backlog.due_in(self.clock.now())
    }

    /// Does what is due, without a pause. Any number of calls may be made at once; they take turns. One
    /// that is dropped leaves the rest to the next.
    ///
    /// # Errors
    /// What went wrong with the first thing that could not be done. It stays pending, and so does
    /// what is behind it: call again after a while. Nothing that was acknowledged depends on it.
    pub async fn run(&self) -> Result<()> {
        loop {
            let done = self.backlog.run(&self.fs).await;
            let now = Some(self.clock.now());
            if !self.backlog.ahead.zero(&*self.fs, now).await {
                return done;
            }
        }
    }

    /// Waits until something is due. `false` once nothing ever will be: the writer is gone.
    pub async fn wait(&self) -> bool {
        loop {
            let news = self.backlog.news.notified();
            if lock(&self.backlog.pending).has_ended {
                return false;
            }
            if self.backlog.len() > 0 {
                return true;
            }
            match self.backlog.ahead.wait_for(self.clock.now()) {
                Some(Duration::ZERO) => return true,
                None => news.await,
                Some(pause) => tokio::select! {
                    biased;
                    () = news => {}
                    () = self.clock.sleep(pause) => {}
                },
            }
        }
    }
}
