//! Removing files without anyone noticing: a large one is freed in small steps.
//!
//! To unlink a file of 1 GiB holds up every sync of the file system for as long as its blocks are being
//! freed (measured: 47 ms). Cut down a piece at a time, with pauses, it holds up nobody.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sq_sim::{Clock, FileSystem};

use super::companion::Companion;
use super::manifest::{ManifestContent, ManifestEntry};
use super::segment::SegmentName;
use super::sidecar;
use super::state::lock;
use crate::error::{Error, Result};

/// How much of a file is freed at a time, in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// How long to let others have the disk in between.
const PAUSE: Duration = Duration::from_millis(1);

/// Removes a file in steps of 1 MiB with pauses of 1 ms between them. One that is not there is fine.
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
    free(fs, clock, path, || true).await;
    unlink(fs, path).await
}

/// Cuts a file down in steps, while `goes_on` says so. A file that can't be cut is left as it is.
async fn free<F: FileSystem>(fs: &F, clock: &dyn Clock, path: &Path, goes_on: impl Fn() -> bool) {
    let Ok(file) = fs.open(path).await else {
        return;
    };
    let mut left = file.len().await.unwrap_or(0);
    while left > STEP_BYTES && goes_on() {
        left = (left - 1) / STEP_BYTES * STEP_BYTES;
        if file.set_len(left).await.is_err() {
            return;
        }
        clock.sleep(PAUSE).await;
    }
}

async fn unlink<F: FileSystem>(fs: &F, path: &Path) -> io::Result<()> {
    match fs.remove_file(path).await {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The files of a partition's removed segments.
#[derive(Debug, Default)]
pub(super) struct Trash {
    state: Mutex<TrashState>,
    /// Held by whoever removes files.
    turn: tokio::sync::Mutex<()>,
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
    pub(super) fn found(removed: &[ManifestEntry], files: &[(PathBuf, Option<u64>)]) -> Arc<Self> {
        let trash = Self::default();
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

    /// Nothing more is removed from now on.
    pub(super) fn end(&self) {
        lock(&self.state).has_ended = true;
    }

    /// [`end`](Self::end), and waits for what is under way.
    pub(super) async fn end_and_settle(&self) {
        self.end();
        let _ = self.turn.lock().await;
    }

    fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    fn len(&self) -> usize {
        let state = lock(&self.state);
        if state.has_ended {
            0
        } else {
            state.waiting.len()
        }
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
        state.gone.extend(removed.iter().filter_map(|c| c.id));
    }

    async fn run<F: FileSystem>(&self, fs: &F, clock: &dyn Clock, dir: &Path) -> Result<()> {
        let _turn = self.turn.lock().await;
        let mut removed = Vec::new();
        let mut failed = None;
        let mut n = 0;
        while let Some(condemned) = self.nth(n) {
            n += 1;
            let path = &condemned.path;
            free(fs, clock, path, || !self.has_ended()).await;
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
        failed.map_or(Ok(()), Err)
    }
}

impl Condemned {
    /// Removes what there is of the segment, but for what is to outlive it.
    async fn remove<F: FileSystem>(&self, fs: &F) -> io::Result<()> {
        let beside = |companion: Companion| self.path.with_extension(companion.extension());
        unlink(fs, &self.path).await?;
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

    /// Whether there is a file to remove.
    pub fn is_pending(&self) -> bool {
        self.trash.len() > 0
    }

    /// Removes the files, oldest first, in steps of 1 MiB with pauses of 1 ms. Readers that have one of
    /// them open get its bytes or [`ReadError::OutOfRange`](crate::ReadError::OutOfRange). Any number of
    /// calls may be made at once; they take turns. One that is dropped leaves the rest to the next.
    ///
    /// # Errors
    /// What went wrong with the first file that could not be removed. It stays pending: call again
    /// after a while. No other file waits for it.
    pub async fn run(&self) -> Result<()> {
        self.trash.run(&*self.fs, &*self.clock, &self.dir).await
    }
}
