//! What was done to a file system, operation by operation.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "each is the method of `FileSystem` or `FileHandle` of its name"
)]
pub enum OpKind {
    CreateNew,
    Open,
    OpenReadOnly,
    Rename,
    RemoveFile,
    RemoveDir,
    ListDir,
    CreateDirAll,
    SyncDir,
    Lock,
    ReadAt,
    WriteAt,
    SyncData,
    SyncAll,
    Allocate,
    ZeroRange,
    Len,
    SetLen,
    /// Not an operation: the process died. See `InMemoryFileSystem::process_crash`.
    ProcessCrash,
    /// Not an operation: the power was lost. See `InMemoryFileSystem::power_loss`.
    PowerLoss,
}

impl OpKind {
    /// How an error names what was tried.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::CreateNew => "create",
            Self::Open | Self::OpenReadOnly => "open",
            Self::Rename => "rename",
            Self::RemoveFile | Self::RemoveDir => "remove",
            Self::ListDir => "list",
            Self::CreateDirAll => "create directory",
            Self::SyncDir => "sync directory",
            Self::Lock => "lock",
            Self::ReadAt => "read",
            Self::WriteAt => "write",
            Self::SyncData | Self::SyncAll => "sync",
            Self::Allocate => "allocate",
            Self::ZeroRange => "zero",
            Self::Len => "measure",
            Self::SetLen => "set length of",
            Self::ProcessCrash | Self::PowerLoss => "crash",
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It reported success.
    Done,
    /// It reported an error of this kind.
    Failed(io::ErrorKind),
}

/// One operation. A `write_and_sync_at` is two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its number, from 1; a crash has that of the operation before it.
    pub number: u64,
    /// What it did.
    pub kind: OpKind,
    /// The path it was given, or the one its handle was opened with.
    pub path: Arc<Path>,
    /// A rename's new path.
    pub to: Option<Arc<Path>>,
    /// Where in the file, in bytes; 0 where that has no meaning. The new length of `set_len`.
    pub offset: u64,
    /// How many bytes were asked for; 0 where that has no meaning.
    pub len: u64,
    /// How it ended.
    pub outcome: Outcome,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.number, self.kind, self.path.display())?;
        if let Some(to) = &self.to {
            write!(f, " -> {}", to.display())?;
        }
        write!(f, " {}+{}", self.offset, self.len)?;
        match self.outcome {
            Outcome::Done => write!(f, " ok"),
            Outcome::Failed(kind) => write!(f, " {kind:?}"),
        }
    }
}
