//! The file system and the clock as traits, with twins that tests rule.
//!
//! A log that promises that nothing acknowledged is lost has to be tested against what loses data:
//! power cuts, full disks, syncs that fail, directories that forget. Here are the traits through
//! which it meets the machine ([`FileSystem`], [`FileHandle`], [`Clock`]), what implements them on a
//! real one ([`OsFileSystem`], [`SystemClock`]), and what implements them in a test:
//! [`InMemoryFileSystem`] does to its user what disks and kernels do, by schedule and by seed, and a
//! [`VirtualClock`] stands still until it is moved.
//!
//! It knows nothing of logs or of Kafka. It is not a simulator of networks or of scheduling (run the
//! code under test on one thread for that, under turmoil for a cluster), not a model of any one file
//! system (it takes from each what hurts), and not a measure of speed.
//!
//! # Example
//!
//! A program writes a file beside the old one and renames it. It syncs the bytes but not the
//! directory, so a power loss may bring the old file back; never half of one.
//!
//! ```
//! use bytes::Bytes;
//! use sq_sim::{FileSystem, InMemoryFileSystem, Keep};
//!
//! async fn replace(fs: &impl FileSystem, text: &'static str) -> std::io::Result<()> {
//!     let new = fs.create_new("/new".as_ref()).await?;
//!     new.write_at(0, &[Bytes::from_static(text.as_bytes())]).await?;
//!     new.sync_data().await?;
//!     fs.rename("/new".as_ref(), "/conf".as_ref()).await
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let mut seen = std::collections::BTreeSet::new();
//! for seed in 0..50 {
//!     let disk = InMemoryFileSystem::new(seed);
//!     disk.write_file("/conf", *b"old").unwrap();
//!     replace(&disk.for_this_process(), "new").await.unwrap();
//!     disk.power_loss(Keep::Mixed);
//!     seen.insert(disk.read_file("/conf").unwrap());
//! }
//! assert_eq!(seen.into_iter().collect::<Vec<_>>(), [b"new", b"old"]);
//! # });
//! ```
//!
//! # What is durable
//!
//! | | in the page cache | on the disk |
//! |---|---|---|
//! | bytes and length of a file | once written | once the file is synced |
//! | a name: created, renamed, removed | at once | once `sync_dir` of its directory (of a rename: the new name's) |
//!
//! `close` makes nothing durable, and a sync of a file doesn't make its name durable. Real file
//! systems are often kinder (ext4 logs a new file's name with its `fsync`); a program that relies on
//! it is not portable, and POSIX promises none of it. A rename is one change: after a power loss the
//! file has its old name or its new one. Changes of different names are independent, and a change
//! that builds on a lost one is lost.
//!
//! **Power-safe overwrite is assumed**, as `SQLite` names it ([psow]): writing some bytes of a sector
//! puts no other byte of it at risk: drives finish the sector that they are writing. The
//! model goes a little further: at risk are only the bytes to which an un-synced write gave a *new*
//! value, as a sector that is overwritten with what it holds is the same whether the write took
//! place or not. Frames share sectors, and opening a log rewrites frames in place; on a drive that
//! breaks this, both could harm what was acknowledged long ago. The same holds for a sync that
//! fails.
//!
//! [psow]: https://www.sqlite.org/psow.html
//!
//! # Faults
//!
//! *Survivable* says whether a log on one disk can keep what it acknowledged and go on. Where it
//! can't, it can notice: *detectable*.
//!
//! | fault | stands for | survivable |
//! |---|---|---|
//! | [`power_loss`] with [`Keep::None`] | a power cut before any write-back | yes |
//! | [`Keep::All`] | one after the kernel's own write-back: un-acknowledged data that is there | yes |
//! | [`Keep::Prefix`] | ordered write-back, cut anywhere | yes |
//! | [`Keep::Sectors`], [`SectorFate`] | unordered write-back: sectors old, new, from between, zeroed (unwritten extents), garbage (blocks allocated and not written) or torn | yes |
//! | [`LengthFate`] | delayed allocation: a length without its data, data without its length | yes |
//! | [`EntryFate`] | directory changes that no sync covered | yes |
//! | [`process_crash`] | kill -9, a panic: what the cache shows may be on no disk | yes |
//! | [`crash_after`], [`Effect::Crash`] | either of them, at any operation or in the middle of a write | yes |
//! | [`SyncFailure::Lost`] | a failed write-back: the pages are clean and the next sync succeeds (ext4, XFS) | yes, in a fresh file |
//! | [`SyncFailure::Reverted`] | the same on btrfs: the old bytes and length are back | yes |
//! | [`SyncFailure::Kept`] | an error on the way back: what failed is on the disk and returns | yes |
//! | [`SyncFailure::Torn`] | a write-back that failed half-way | yes |
//! | [`SyncFailure::StillDirty`] | an error after which the kernel tries again later | yes |
//! | [`Effect::Fail`] on [`OpKind::SyncDir`] | a journal that was aborted | yes, retried or elsewhere |
//! | [`Effect::Fail`], on any operation | EIO, ENOSPC, EDQUOT, EROFS, EACCES, EMFILE, ENFILE | yes; a read of lost data is detectable |
//! | [`Effect::FailAfterwards`] | an interrupted or remote call whose answer was lost | yes |
//! | [`Effect::ShortWrite`] | a disk that fills up, a signal | yes |
//! | [`set_free_space`] | a full disk; space that comes back | yes |
//! | [`set_max_open_files`] | `ulimit -n` | yes |
//! | [`Fault::bytes`] with [`Errno::Io`] | a bad sector | detectable |
//! | [`flip_bit`] | rot on the disk or in memory | detectable |
//! | [`Effect::FlipBitOfRead`] | a bit lost on the bus: the next read is right | yes |
//! | [`Effect::Misdirect`] | firmware that writes a sector in the wrong place: whole and well-formed | detectable |
//! | [`Effect::DropWrite`] | firmware that loses a write and reports success | not on one disk |
//! | [`Effect::IgnoreSync`] | a drive that ignores flushes: the negative control of a test of durability | not on one disk |
//! | [`Fault::delay`] | a slow disk, on the file system's clock | yes |
//!
//! Not modelled: hard links, symbolic links, permissions, sparse files (a hole takes memory, though
//! no [`set_free_space`]), a directory sync that fails and leaves its changes clean, a rename after
//! which both names exist, and background write-back before a crash other than as its outcome.
//!
//! # Determinism
//!
//! The same seed and the same calls in the same order give the same results and the same [trace],
//! byte for byte. Every operation gives way once before its effect and once after it, so that a test
//! can stop it on either side ([`poll_n_then_drop`]); a `write_and_sync_at` also gives way between
//! its write and its sync, which count as two operations and take the longer of their two delays.
//! [`for_this_process`] binds a file system to the process that runs now, so that a task that
//! outlives a crash can't touch the files of the next one.
//!
//! [`power_loss`]: InMemoryFileSystem::power_loss
//! [`process_crash`]: InMemoryFileSystem::process_crash
//! [`crash_after`]: InMemoryFileSystem::crash_after
//! [`set_free_space`]: InMemoryFileSystem::set_free_space
//! [`set_max_open_files`]: InMemoryFileSystem::set_max_open_files
//! [`flip_bit`]: InMemoryFileSystem::flip_bit
//! [`for_this_process`]: InMemoryFileSystem::for_this_process
//! [trace]: InMemoryFileSystem::trace

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
pub use error::{PathError, is_out_of_handles, os_error_number};
pub use fs::{DirEntry, DurableWriteError, EntryKind, FileHandle, FileLock, FileSystem, ReadAhead};
pub use memory::{
    ContentFate, Crashed, Effect, EntryFate, Errno, Fault, FileFate, InMemoryFileSystem, Keep,
    LengthFate, Op, OpKind, Outcome, PathPattern, PowerLoss, SectorFate, Stop, SyncFailure,
};
pub use os::OsFileSystem;
pub use step::poll_n_then_drop;
pub use virtual_clock::VirtualClock;
