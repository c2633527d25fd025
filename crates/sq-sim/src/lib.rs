//! The file system and the clock as traits, so that what decides never touches the machine.
//!
//! [`FileSystem`], [`FileHandle`] and [`Clock`] are what the crates above take from outside.

mod clock;
mod fs;

pub use clock::{Clock, SystemClock};
pub use fs::{DirEntry, DurableWriteError, EntryKind, FileHandle, FileLock, FileSystem};
