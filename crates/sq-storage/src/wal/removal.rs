//! Removing files without anyone noticing: a large one is freed in small steps.
//!
//! To unlink a file of 1 GiB holds up every sync of the file system for as long as its blocks are being
//! freed (measured: 47 ms). Cut down a piece at a time, with pauses, it holds up nobody. A file that can
//! be written again is not freed at all: it becomes a [`spare`].

use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sq_sim::{Clock, FileSystem, Instant};

use super::companion::Companion;
use super::manifest::{ManifestContent, ManifestEntry};
use super::segment::SegmentName;
use super::sidecar;
use super::spare::{self, Offer, Shelf, Spare};
use super::state::{Segment, lock};
use crate::error::{Error, Result};

/// How much of a file is freed at a time, in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// How long to let others have the disk in between, where nothing else waits to be removed. A sync that meets a
/// step takes several times as long as others: of those of 100 µs, fewer than one in a hundred does.
const PAUSE: Duration = Duration::from_millis(10);

/// The same where the disk is full, or much waits.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// The pause where so many files are to be removed: as they become more, it becomes shorter.
fn pause(files: usize) -> Duration {
    let files = u32::try_from(files.max(1)).unwrap_or(u32::MAX);
    (PAUSE / files).max(LEAST_PAUSE)
}

/// Removes a file in steps of 1 MiB with pauses of 10 ms between them. One that is not there is fine.
///
/// Its name is as durably gone as a name ever is: once the directory was synced. Cut short, it leaves a
/// file that may be shorter, of which the next call removes the rest. Whoever has the file open reads
/// what is left of it.
///
/// # Errors
/// The file system's, if the file could not be unlinked.
pub async fn remove_file_in_steps<F: FileSystem>(
    fs: &F,
    clock: &dyn Clock,
    path: &Path,
) -> io::Result<()> {
    free(fs, clock, path, || Some(PAUSE)).await;
    unlink(fs, path).await
}

/// Cuts a file down in steps, with the pauses that `pause` says, until it says none. A file that can't be cut is
/// left as it is.
async fn free<F: FileSystem>(
    fs: &F,
    clock: &dyn Clock,
    path: &Path,
    pause: impl Fn() -> Option<Duration>,
) {
    let Ok(file) = fs.open(path).await else {
        return;
    };
    let mut left = file.len().await.unwrap_or(0);
    while left > STEP_BYTES
        && let Some(pause) = pause()
    {
        left = (left - 1) / STEP_BYTES * STEP_BYTES;
        if file.set_len(left).await.is_err() {
            return;
        }
        clock.sleep(pause).await;
    }
}

async fn unlink<F: FileSystem>(fs: &F, path: &Path) -> io::Result<()> {
    match fs.remove_file(path).await {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The files of a partition's removed segments.
#[derive(Debug)]
pub(super) struct Trash {
    state: Mutex<TrashState>,
    /// Held by whoever removes files.
    turn: tokio::sync::Mutex<()>,
    /// The files that are kept to be written again.
    shelf: Shelf,
}

#[derive(Debug, Default)]
struct TrashState {
    /// Files that may be removed: the manifest durably says so.
    waiting: VecDeque<Condemned>,
    /// Segments whose files are durably gone, and that the manifest may forget.
    gone: HashSet<u64>,
    /// Names that the log used. They are not used again while the process lives: an operation on the
    /// old file may still be under way.
    names: HashSet<SegmentName>,
    /// Ids that the manifest knew, or knows. It can't tell two segments with the same id apart.
    ids: HashSet<u64>,
    /// The disk is full: what waits goes quickly.
    is_urgent: bool,
    has_ended: bool,
}

/// A file to remove, and the segment it was, where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Condemned {
    path: PathBuf,
    id: Option<u64>,
    /// Its sidecar is kept, if it is that of this end.
    keeps: Option<u64>,
}

impl Trash {
    /// What recovery found: segments that were removed, and the files that hold nothing of the log.
    pub(super) fn found(
        removed: &[ManifestEntry],
        files: &[(PathBuf, Option<u64>)],
        shelf: Shelf,
    ) -> Arc<Self> {
        let trash = Self {
            state: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            shelf,
        };
        {
            let mut state = lock(&trash.state);
            state.names = removed.iter().map(|e| e.name).collect();
            state.ids = removed.iter().map(|e| e.id).collect();
            let condemned = |(path, id): &(PathBuf, Option<u64>)| Condemned {
                path: path.clone(),
                id: *id,
                // Opening has done that.
                keeps: None,
            };
            state.waiting = files.iter().map(condemned).collect();
            let there: HashSet<_> = files.iter().filter_map(|(_, id)| *id).collect();
            let gone = removed
                .iter()
                .map(|e| e.id)
                .filter(|id| !there.contains(id));
            state.gone = gone.collect();
        }
        Arc::new(trash)
    }

    /// Whether the log ever gave this name away.
    pub(super) fn knows(&self, name: SegmentName) -> bool {
        lock(&self.state).names.contains(&name)
    }

    /// Whether a segment had this id whose file may still be there.
    pub(super) fn knows_id(&self, id: u64) -> bool {
        lock(&self.state).ids.contains(&id)
    }

    /// Notes names and ids that are not to be used again.
    pub(super) fn reserve(&self, removed: &[ManifestEntry]) {
        let mut state = lock(&self.state);
        state.names.extend(removed.iter().map(|e| e.name));
        state.ids.extend(removed.iter().map(|e| e.id));
    }

    /// Notes ids that are not to be used again.
    pub(super) fn reserve_ids(&self, ids: impl Iterator<Item = u64>) {
        lock(&self.state).ids.extend(ids);
    }

    /// Takes out of a list the segments whose files are gone.
    pub(super) fn strike_off(&self, removed: &mut Vec<ManifestEntry>) {
        let state = lock(&self.state);
        removed.retain(|e| !state.gone.contains(&e.id));
    }

    /// The manifest durably says that these are removed: their files may go.
    pub(super) fn condemn(&self, dir: &Path, manifest: &ManifestContent) {
        let (removed, last) = (&manifest.removed, manifest.last_purged());
        let mut state = lock(&self.state);
        for entry in removed {
            let known = state.waiting.iter().any(|c| c.id == Some(entry.id));
            if !known && !state.gone.contains(&entry.id) {
                state.waiting.push_back(Condemned {
                    path: dir.join(entry.name.file_name()),
                    id: Some(entry.id),
                    keeps: last.filter(|(e, _)| e.id == entry.id).map(|(_, end)| end),
                });
            }
        }
        // Of what the manifest has forgotten nothing need be known.
        let listed: HashSet<_> = removed.iter().map(|e| e.id).collect();
        state.gone.retain(|id| listed.contains(id));
    }

    /// Nothing more is removed from now on. The next opening finds what is left.
    pub(super) fn end(&self) {
        lock(&self.state).has_ended = true;
        while let Some(spare) = self.shelf.take() {
            drop(spare);
        }
    }

    /// [`end`](Self::end), and waits for what is under way.
    pub(super) async fn end_and_settle(&self) {
        self.end();
        let _ = self.turn.lock().await;
    }

    /// How long to pause where so many of those that wait are removed already; `None` to stop.
    fn pause(&self, removed: usize) -> Option<Duration> {
        let state = lock(&self.state);
        let left = state.waiting.len().saturating_sub(removed);
        let pause = if state.is_urgent {
            LEAST_PAUSE
        } else {
            pause(left)
        };
        (!state.has_ended).then_some(pause)
    }

    fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    fn is_pending(&self, now: Instant) -> bool {
        let state = lock(&self.state);
        !state.has_ended && (!state.waiting.is_empty() || self.shelf.is_overdue(now))
    }

    /// A segment is about to be purged: its file may be written again.
    pub(super) fn offer(&self, segment: &Arc<Segment>) {
        self.shelf.offer(segment);
    }

    /// A successor is prepared: before long, another will be.
    pub(super) fn want_spare(&self, now: Instant) {
        self.shelf.want(now);
    }

    /// A file that can be written again, if there is one.
    pub(super) fn take_spare(&self) -> Option<TakenSpare<'_>> {
        let spare = self.shelf.take()?;
        Some(TakenSpare {
            trash: self,
            path: Some(spare.path.clone()),
            spare,
        })
    }

    /// The disk is full: there is to be no spare for now, and what can be removed is wanted soon.
    pub(super) fn give_up_spares(&self) {
        lock(&self.state).is_urgent = true;
        self.shelf.give_up();
        while let Some(spare) = self.take_spare() {
            drop(spare);
        }
    }

    /// Lets go of the spares that were kept for too long, or, on a full disk, of all.
    fn give_up_overdue(&self, now: Instant) {
        while self.shelf.is_overdue(now) {
            drop(self.take_spare());
        }
    }

    /// A file that nothing knows of any more.
    fn discard(&self, path: PathBuf) {
        let (id, keeps) = (None, None);
        let condemned = Condemned { path, id, keeps };
        lock(&self.state).waiting.push_back(condemned);
    }

    fn nth(&self, n: usize) -> Option<Condemned> {
        let state = lock(&self.state);
        let waiting = (!state.has_ended).then_some(&state.waiting)?;
        waiting.get(n).cloned()
    }

    /// Notes that files are durably gone.
    fn settle(&self, removed: &[Condemned]) {
        let mut state = lock(&self.state);
        state.waiting.retain(|c| !removed.contains(c));
        state.is_urgent &= !state.waiting.is_empty();
        state.gone.extend(removed.iter().filter_map(|c| c.id));
    }

    /// Whether a file is to be kept, beside `more` than there are.
    fn claim(&self, condemned: &Condemned, more: usize, now: Instant) -> Option<Offer> {
        self.shelf.claim(condemned.id?, more, now)
    }

    /// Puts the file of a removed segment aside instead of removing it, where it is fit for that.
    ///
    /// Until it is a spare, it waits to be removed under its new name: so it is if this is dropped, or fails.
    async fn keep<F: FileSystem>(
        &self,
        fs: &F,
        condemned: &Condemned,
        offer: &Offer,
        now: Instant,
    ) -> Option<Spare> {
        let (id, path) = (condemned.id?, &condemned.path);
        let spare_path = path.with_file_name(spare::file_name(id));
        let len = fs.open_read_only(path).await.ok()?.len().await.ok()?;
        let spare = self.shelf.accept(offer, len, &spare_path, now)?;
        if self.has_ended() {
            return None;
        }
        self.discard(spare_path);
        fs.rename(path, &spare.path).await.ok()?;
        condemned.remove_beside(fs).await.ok()?;
        Some(spare)
    }

    /// The name of a file that was put aside is durable: it can be used.
    fn shelve(&self, spare: Spare) {
        let mut state = lock(&self.state);
        if !state.has_ended {
            state.waiting.retain(|c| c.path != spare.path);
            self.shelf.put(spare);
        }
    }

    async fn run<F: FileSystem>(&self, fs: &F, clock: &dyn Clock, dir: &Path) -> Result<()> {
        let _turn = self.turn.lock().await;
        let now = clock.now();
        self.give_up_overdue(now);
        let mut removed = Vec::new();
        let mut failed = None;
        let mut kept: Vec<Spare> = Vec::new();
        let mut n = 0;
        while let Some(condemned) = self.nth(n) {
            n += 1;
            let path = &condemned.path;
            if kept.iter().any(|spare| spare.path == *path) {
                continue;
            }
            if let Some(offer) = self.claim(&condemned, kept.len(), now)
                && let Some(spare) = self.keep(fs, &condemned, &offer, now).await
            {
                kept.push(spare);
                removed.push(condemned);
                continue;
            }
            free(fs, clock, path, || self.pause(removed.len())).await;
            if self.has_ended() {
                break;
            }
            match condemned.remove(fs).await {
                Ok(()) => removed.push(condemned),
                Err(e) => failed = failed.or(Some(Error::io("remove", path)(e))),
            }
        }
        if !removed.is_empty() {
            fs.sync_dir(dir).await.map_err(Error::io("sync", dir))?;
            self.settle(&removed);
        }
        for spare in kept {
            self.shelve(spare);
        }
        failed.map_or(Ok(()), Err)
    }
}

/// A spare that is about to be used. If that comes to nothing, what is left is removed.
pub(super) struct TakenSpare<'a> {
    trash: &'a Trash,
    /// `None` once it is used.
    path: Option<PathBuf>,
    spare: Spare,
}

impl TakenSpare<'_> {
    pub(super) fn path(&self) -> &Path {
        &self.spare.path
    }

    /// It is somebody else's now.
    pub(super) fn used(mut self) {
        self.path = None;
    }
}

impl Drop for TakenSpare<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            self.trash.discard(path);
        }
    }
}

impl Condemned {
    /// Removes what there is of the segment, but for what is to outlive it.
    async fn remove<F: FileSystem>(&self, fs: &F) -> io::Result<()> {
        unlink(fs, &self.path).await?;
        self.remove_beside(fs).await
    }

    /// Removes what is beside the segment's file.
    async fn remove_beside<F: FileSystem>(&self, fs: &F) -> io::Result<()> {
        let beside = |companion: Companion| self.path.with_extension(companion.extension());
        if let (Some(id), Some(end_offset)) = (self.id, self.keeps) {
            sidecar::keep(fs, &beside(Companion::Sidecar), id, end_offset).await?;
        }
        for companion in Companion::ALL {
            unlink(fs, &beside(companion)).await?;
        }
        Ok(())
    }
}

/// The files that a purge or a truncation left to be removed. Cheap to clone; outlives the writer, and
/// has nothing to do from then on: what is left is found when the log is opened next.
#[derive(Debug)]
pub struct Removal<F: FileSystem> {
    fs: Arc<F>,
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    trash: Arc<Trash>,
}

impl<F: FileSystem> Clone for Removal<F> {
    fn clone(&self) -> Self {
        Self {
            fs: Arc::clone(&self.fs),
            clock: Arc::clone(&self.clock),
            dir: self.dir.clone(),
            trash: Arc::clone(&self.trash),
        }
    }
}

impl<F: FileSystem> Removal<F> {
    pub(super) fn new(fs: Arc<F>, clock: Arc<dyn Clock>, dir: PathBuf, trash: Arc<Trash>) -> Self {
        Self {
            fs,
            clock,
            dir,
            trash,
        }
    }

    /// Whether there is a file to remove, one that was kept for too long among them.
    pub fn is_pending(&self) -> bool {
        self.trash.is_pending(self.clock.now())
    }

    /// Removes the files, oldest first, in steps of 1 MiB with pauses of 1 ms. Some may be kept to be written
    /// again ([`Spares`](super::Spares)). Readers that have one of them open get its bytes or
    /// [`ReadError::OutOfRange`](crate::ReadError::OutOfRange). Any number of calls may be made at once; they
    /// take turns. One that is dropped leaves the rest to the next.
    ///
    /// # Errors
    /// What went wrong with the first file that could not be removed. It stays pending: call again
    /// after a while. No other file waits for it.
    pub async fn run(&self) -> Result<()> {
        self.trash.run(&*self.fs, &*self.clock, &self.dir).await
    }
}
