//! The simulated machine behind all handles: files, names, faults and the trace.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::changes::{Ino, Node};
use super::content::Content;
use super::fate::PowerLoss;
use super::fault::{Effect, Errno, Faults};
use super::names::{Names, View};
use super::trace::{Op, OpKind, Outcome};
use crate::draws::Draws;

/// The error of every operation of a process that has crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crashed;

impl fmt::Display for Crashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated process has crashed")
    }
}

impl std::error::Error for Crashed {}

fn crashed() -> io::Error {
    io::Error::other(Crashed)
}

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) content: Content,
    /// How many handles the running process has on it.
    pub(super) open: usize,
}

/// What an operation is about, before it happens.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) kind: OpKind,
    pub(super) path: Arc<Path>,
    pub(super) to: Option<Arc<Path>>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Request {
    pub(super) fn on(kind: OpKind, path: &Path) -> Self {
        Self::at(kind, path.into(), 0, 0)
    }

    pub(super) fn at(kind: OpKind, path: Arc<Path>, offset: u64, len: u64) -> Self {
        Self {
            kind,
            path,
            to: None,
            offset,
            len,
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) names: Names,
    pub(super) files: BTreeMap<Ino, File>,
    /// Files that lost their last name: open still, or back after a power loss.
    orphans: BTreeSet<Ino>,
    pub(super) locks: BTreeSet<Ino>,
    pub(super) faults: Faults,
    pub(super) draws: Draws,
    /// The process that runs; handles of earlier ones are dead.
    pub(super) generation: u64,
    pub(super) dead: bool,
    /// How many more operations until the process dies.
    pub(super) crash_in: Option<u64>,
    pub(super) operations: u64,
    pub(super) trace: Vec<Op>,
    pub(super) touched: BTreeSet<Arc<Path>>,
    pub(super) free_space: Option<u64>,
    pub(super) max_open_files: Option<usize>,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            names: Names::new(),
            files: BTreeMap::new(),
            orphans: BTreeSet::new(),
            locks: BTreeSet::new(),
            faults: Faults::default(),
            draws: Draws::new(seed),
            generation: 0,
            dead: false,
            crash_in: None,
            operations: 0,
            trace: Vec::new(),
            touched: BTreeSet::new(),
            free_space: None,
            max_open_files: None,
        }
    }

    /// Carries out one operation of the process `generation`, with what faults do to it. The answer
    /// comes with how long it took.
    pub(super) fn perform<T>(
        &mut self,
        request: &Request,
        generation: u64,
        effect: impl FnOnce(&mut Self, Option<Effect>) -> io::Result<T>,
    ) -> (io::Result<T>, Duration) {
        if self.dead || generation != self.generation {
            return (Err(crashed()), Duration::ZERO);
        }
        self.operations += 1;
        let mut op = Op {
            number: self.operations,
            kind: request.kind,
            path: request.path.clone(),
            to: request.to.clone(),
            offset: request.offset,
            len: request.len,
            outcome: Outcome::Done,
        };
        let (fault, delay) = self.faults.decide(&op, &mut self.draws);
        let result = match fault {
            Some(Effect::Fail(errno)) => Err(errno.error()),
            Some(Effect::FailAfterwards(errno)) => effect(self, None).and_then(|_| {
                self.abandon_handle(&op);
                Err(errno.error())
            }),
            Some(Effect::Crash { bytes }) => {
                if matches!(op.kind, OpKind::WriteAt | OpKind::ZeroRange) {
                    let short = Effect::ShortWrite {
                        bytes,
                        errno: Errno::Io,
                    };
                    let _ = effect(self, Some(short));
                }
                self.dead = true;
                Err(crashed())
            }
            other => effect(self, other),
        };
        if let Err(error) = &result {
            op.outcome = Outcome::Failed(error.kind());
        }
        self.record(op);
        self.crash_in = self.crash_in.map(|left| left.saturating_sub(1));
        self.dead |= self.crash_in == Some(0);
        (result, delay)
    }

    /// Takes back the handle or lock of an operation whose caller gets an error instead.
    fn abandon_handle(&mut self, op: &Op) {
        let opens = matches!(
            op.kind,
            OpKind::CreateNew | OpKind::Open | OpKind::OpenReadOnly | OpKind::Lock
        );
        if opens && let Ok(Node::File(ino)) = self.names.resolve(&op.path, View::Now) {
            if op.kind == OpKind::Lock {
                self.locks.remove(&ino);
            }
            self.close(ino, self.generation);
        }
    }

    pub(super) fn record(&mut self, op: Op) {
        self.touched.insert(op.path.clone());
        self.touched.extend(op.to.clone());
        self.trace.push(op);
    }

    /// Records what is not an operation.
    pub(super) fn record_event(&mut self, kind: OpKind) {
        self.trace.push(Op {
            number: self.operations,
            kind,
            path: Path::new("").into(),
            to: None,
            offset: 0,
            len: 0,
            outcome: Outcome::Done,
        });
    }

    pub(super) fn file(&self, ino: Ino) -> io::Result<&Content> {
        let file = self.files.get(&ino).ok_or(io::ErrorKind::NotFound)?;
        Ok(&file.content)
    }

    pub(super) fn file_mut(&mut self, ino: Ino) -> io::Result<&mut Content> {
        let file = self.files.get_mut(&ino).ok_or(io::ErrorKind::NotFound)?;
        Ok(&mut file.content)
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<Ino> {
        self.check_open_files()?;
        let ino = self.names.create_file(path)?;
        self.files.insert(
            ino,
            File {
                content: Content::default(),
                open: 1,
            },
        );
        Ok(ino)
    }

    pub(super) fn open(&mut self, path: &Path) -> io::Result<Ino> {
        self.check_open_files()?;
        match self.names.resolve(path, View::Now)? {
            Node::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
            Node::File(ino) => {
                let file = self.files.get_mut(&ino).ok_or(io::ErrorKind::NotFound)?;
                file.open += 1;
                Ok(ino)
            }
        }
    }

    pub(super) fn lock(&mut self, path: &Path) -> io::Result<Ino> {
        let ino = match self.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.create(path)?,
            opened => opened?,
        };
        if !self.locks.insert(ino) {
            self.close(ino, self.generation);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(ino)
    }

    pub(super) fn open_files(&self) -> usize {
        self.files.values().map(|file| file.open).sum()
    }

    fn check_open_files(&self) -> io::Result<()> {
        match self.max_open_files {
            Some(most) if self.open_files() >= most => Err(Errno::TooManyOpenFiles.error()),
            _ => Ok(()),
        }
    }

    /// Closes a handle. That makes nothing durable.
    pub(super) fn close(&mut self, ino: Ino, generation: u64) {
        if generation != self.generation {
            return;
        }
        if let Some(file) = self.files.get_mut(&ino) {
            file.open = file.open.saturating_sub(1);
        }
        self.reap(ino);
    }

    /// Gives back the space of a file that has neither name nor handle, and forgets it if no power
    /// loss can bring it back.
    pub(super) fn reap(&mut self, ino: Ino) {
        let open = self.files.get(&ino).is_some_and(|file| file.open > 0);
        if open || !self.orphans.contains(&ino) {
            return;
        }
        if let Ok(content) = self.file_mut(ino) {
            let freed = content.allocated.truncate(0);
            self.give_back(freed);
        }
        if !self.names.may_survive(ino) {
            self.files.remove(&ino);
            self.orphans.remove(&ino);
        }
    }

    /// A file lost its last name.
    pub(super) fn unlinked(&mut self, ino: Ino) {
        self.orphans.insert(ino);
        self.reap(ino);
    }

    /// Forgets the files that nothing can bring back.
    pub(super) fn forget_unreachable(&mut self) {
        for ino in self.orphans.clone() {
            self.reap(ino);
        }
    }

    /// A new process: handles of the old one are dead, its locks gone.
    pub(super) fn next_process(&mut self) {
        self.generation += 1;
        self.dead = false;
        self.crash_in = None;
        self.locks.clear();
        for file in self.files.values_mut() {
            file.open = 0;
        }
        self.forget_unreachable();
    }

    /// The power fails: what is un-synced meets its fate, and a new process finds the rest.
    pub(super) fn power_loss(&mut self, loss: &PowerLoss) {
        let paths = self.paths_by_file();
        let used = self.used_space();
        let draws = &mut self.draws;
        self.names
            .power_loss(|index| loss.keeps_entry(index, draws));
        let survivors: BTreeSet<Ino> = self.names.files(View::Now).into_values().collect();
        self.files.retain(|ino, _| survivors.contains(ino));
        for (ino, file) in &mut self.files {
            let names = paths.get(ino).map_or(&[][..], Vec::as_slice);
            file.content
                .power_loss(loss.fate_of(names), &mut self.draws);
            // Its removal had given its space back.
            if self.orphans.contains(ino) {
                file.content.allocated.insert(0..file.content.len());
            }
        }
        self.orphans.clear();
        self.free_space = self
            .free_space
            .map(|free| free.saturating_add(used).saturating_sub(self.used_space()));
        self.next_process();
    }

    fn used_space(&self) -> u64 {
        self.files
            .values()
            .map(|file| file.content.allocated.count())
            .sum()
    }

    /// Every name that a file has or had durably.
    fn paths_by_file(&self) -> BTreeMap<Ino, Vec<PathBuf>> {
        let mut paths: BTreeMap<Ino, Vec<PathBuf>> = BTreeMap::new();
        for view in [View::Now, View::Durable] {
            for (path, ino) in self.names.files(view) {
                paths.entry(ino).or_default().push(path);
            }
        }
        paths
    }
}
