//! What a test does to a simulated file system from outside, past the model.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::InMemoryFileSystem;
use super::changes::Node;
use super::content::{self, Content};
use super::fate::PowerLoss;
use super::fault::{Effect, Errno, Fault};
use super::names::View;
use super::state::{File, State};
use super::trace::{Op, OpKind};

impl State {
    fn at_path(&self, path: &Path, view: View) -> io::Result<&Content> {
        match self.names.resolve(path, view)? {
            Node::File(ino) => self.file(ino),
            Node::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn at_path_mut(&mut self, path: &Path) -> io::Result<&mut Content> {
        match self.names.resolve(path, View::Now)? {
            Node::File(ino) => self.file_mut(ino),
            Node::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }
}

/// Crashes.
impl InMemoryFileSystem {
    /// The power fails and comes back: what was not synced meets the fate that `loss` draws for it,
    /// handles are dead, locks are free, and what is left is durable.
    pub fn power_loss(&self, loss: impl Into<PowerLoss>) {
        let mut state = self.shared.lock();
        state.power_loss(&loss.into());
        state.record_event(OpKind::PowerLoss);
    }

    /// The process dies and another starts: handles are dead, locks are free, and what the page
    /// cache held is still there to read, also what no disk has.
    pub fn process_crash(&self) {
        let mut state = self.shared.lock();
        state.next_process();
        state.record_event(OpKind::ProcessCrash);
    }

    /// After so many more operations every one fails with [`Crashed`](super::Crashed), until
    /// [`process_crash`](Self::process_crash) or [`power_loss`](Self::power_loss) is called.
    pub fn crash_after(&self, operations: u64) {
        let mut state = self.shared.lock();
        state.crash_in = Some(operations);
        state.dead = operations == 0;
    }

    /// Whether the process has crashed and no other has started.
    pub fn is_crashed(&self) -> bool {
        self.shared.lock().dead
    }

    /// The kernel drops its clean pages: where a sync has failed before, a read sees the disk again.
    pub fn evict_clean_pages(&self) {
        for file in self.shared.lock().files.values_mut() {
            file.content.evict();
        }
    }
}

/// Faults.
impl InMemoryFileSystem {
    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.shared.lock().faults.add(fault);
    }

    /// The next operation of this kind fails with `errno` and does nothing.
    pub fn fail_next(&self, kind: OpKind, errno: Errno) {
        self.inject(Fault::new(Effect::Fail(errno)).on(&[kind]));
    }

    /// Takes every fault away, delays too.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// How many faults have not happened as often as they are to.
    pub fn faults_left(&self) -> usize {
        self.shared.lock().faults.count()
    }

    /// How many bytes can still be allocated before `StorageFull`; `None` for no limit. Writing over
    /// bytes that a file has takes none, removing and cutting files gives theirs back.
    pub fn set_free_space(&self, bytes: Option<u64>) {
        self.shared.lock().free_space = bytes;
    }

    /// What is left of the free space.
    pub fn free_space(&self) -> Option<u64> {
        self.shared.lock().free_space
    }

    /// How many handles and locks may be open at once before EMFILE; `None` for no limit.
    pub fn set_max_open_files(&self, most: Option<usize>) {
        self.shared.lock().max_open_files = most;
    }

    /// How many handles and locks are open.
    pub fn open_files(&self) -> usize {
        self.shared.lock().open_files()
    }

    /// Flips a bit (0 is the lowest) of a byte, in the cache and on the disk.
    ///
    /// # Errors
    /// `NotFound` for a file that is not there, `UnexpectedEof` for an offset beyond its end.
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.shared.lock();
        let content = state.at_path_mut(path.as_ref())?;
        let mask = 1_u8 << (bit % 8);
        let at = content::at(offset);
        *content
            .cached
            .get_mut(at)
            .ok_or(io::ErrorKind::UnexpectedEof)? ^= mask;
        if let Some(byte) = content.disk.get_mut(at) {
            *byte ^= mask;
        }
        Ok(())
    }
}

/// Looking and touching past the model: none of these counts as an operation.
impl InMemoryFileSystem {
    /// A file as a process sees it.
    ///
    /// # Errors
    /// `NotFound` for a file that is not there.
    pub fn read_file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        Ok(self
            .shared
            .lock()
            .at_path(path.as_ref(), View::Now)?
            .cached
            .clone())
    }

    /// A file as it would be if the power failed and nothing un-synced survived.
    ///
    /// # Errors
    /// `NotFound` for a file that would not be there.
    pub fn read_durable(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        Ok(self
            .shared
            .lock()
            .at_path(path.as_ref(), View::Durable)?
            .disk
            .clone())
    }

    /// Puts a file there, durably, with its directories, whatever was there before.
    ///
    /// # Errors
    /// `NotADirectory` or `IsADirectory` where the path leads through a file or to a directory.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> io::Result<()> {
        let path = path.as_ref();
        let mut state = self.shared.lock();
        let state = &mut *state;
        let made = state.names.durably(|names| {
            if let Some(parent) = path.parent() {
                names.create_dir_all(parent)?;
            }
            names.create_file(path)
        });
        match made {
            Ok(ino) => {
                let content = Content::durable(bytes.into());
                state.files.insert(
                    ino,
                    File {
                        content,
                        ..File::default()
                    },
                );
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                *state.at_path_mut(path)? = Content::durable(bytes.into());
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Takes a file away, durably. Handles that are open on it keep working.
    ///
    /// # Errors
    /// `NotFound` for a file that is not there.
    pub fn delete_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut state = self.shared.lock();
        let ino = state
            .names
            .durably(|names| names.remove_file(path.as_ref()))?;
        state.unlinked(ino);
        Ok(())
    }

    /// Overwrites bytes in the cache and on the disk, growing both where needed.
    ///
    /// # Errors
    /// `NotFound` for a file that is not there.
    pub fn overwrite(&self, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.shared.lock();
        let content = state.at_path_mut(path.as_ref())?;
        put(&mut content.cached, offset, bytes);
        put(&mut content.disk, offset, bytes);
        Ok(())
    }

    /// Overwrites bytes on the disk only, growing it where needed; what the cache shows is then
    /// lost when it is evicted or the power fails.
    ///
    /// # Errors
    /// `NotFound` for a file that is not there.
    pub fn overwrite_durable(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        let mut state = self.shared.lock();
        let content = state.at_path_mut(path.as_ref())?;
        put(&mut content.disk, offset, bytes);
        content.lost.insert(offset..offset + bytes.len() as u64);
        Ok(())
    }

    /// The paths of all files, as a process sees them, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        self.shared
            .lock()
            .names
            .files(View::Now)
            .into_keys()
            .collect()
    }

    /// The paths of all files as they would be if the power failed and nothing un-synced survived.
    pub fn durable_files(&self) -> Vec<PathBuf> {
        self.shared
            .lock()
            .names
            .files(View::Durable)
            .into_keys()
            .collect()
    }

    /// How many changes of names no directory sync has made durable; see `EntryFate::These`.
    pub fn unsynced_names(&self) -> usize {
        self.shared.lock().names.unsynced()
    }

    /// How many bytes of a file occupy space: what was written or allocated, without holes.
    ///
    /// # Errors
    /// `NotFound` for a file that is not there.
    pub fn allocated_bytes(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        Ok(self
            .shared
            .lock()
            .at_path(path.as_ref(), View::Now)?
            .allocated
            .count())
    }
}

fn put(target: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (content::at(offset), content::at(offset) + bytes.len());
    target.resize(target.len().max(end), 0);
    if let Some(target) = target.get_mut(start..end) {
        target.copy_from_slice(bytes);
    }
}

/// The trace.
impl InMemoryFileSystem {
    /// How many operations there were.
    pub fn operations(&self) -> u64 {
        self.shared.lock().operations
    }

    /// What was done since the trace was last taken.
    pub fn trace(&self) -> Vec<Op> {
        self.shared.lock().trace.clone()
    }

    /// The trace, which then begins anew; numbers go on.
    pub fn take_trace(&self) -> Vec<Op> {
        std::mem::take(&mut self.shared.lock().trace)
    }

    /// The trace as text, a line for each operation.
    pub fn trace_text(&self) -> String {
        self.shared
            .lock()
            .trace
            .iter()
            .fold(String::new(), |mut text, op| {
                let _ = writeln!(text, "{op}");
                text
            })
    }

    /// Every path that an operation was ever given, also in vain.
    pub fn paths_touched(&self) -> BTreeSet<PathBuf> {
        self.shared
            .lock()
            .touched
            .iter()
            .map(|path: &Arc<Path>| path.to_path_buf())
            .collect()
    }
}
