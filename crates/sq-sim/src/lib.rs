//! The file system and the clock as traits, so that what decides never touches the machine.
//!
//! [`FileSystem`], [`FileHandle`] and [`Clock`] are what the crates above take from outside.

mod clock;
mod draws;
mod durable_dir;
mod error;
mod fs;
mod memory;
mod os;
mod step;
mod virtual_clock;

pub use clock::{Clock, Instant, SystemClock};
pub use durable_dir::create_dir_durably;
pub use error::{PathError, os_error_number};
pub use fs::{DirEntry, DurableWriteError, EntryKind, FileHandle, FileLock, FileSystem};
pub use memory::{
    ContentFate, Crashed, Effect, EntryFate, Errno, Fault, FileFate, InMemoryFileSystem, Keep,
    LengthFate, Op, OpKind, Outcome, PathPattern, PowerLoss, SectorFate, SyncFailure,
};
pub use os::OsFileSystem;
pub use step::poll_n_then_drop;
pub use virtual_clock::VirtualClock;
