//! A segmented write-ahead log that is honest after any crash.
//!
//! One [`WalWriter`] appends to the log of one partition: records, or opaque batches that each carry
//! some. A [`log::Log`] is its handle for many callers, whose appends share writes and syncs. The log is a chain of segment files with continuous 64-bit offsets. Any number of
//! [`LogReader`]s follow it, and see a record when it is durable.
//!
//! ```
//! use std::sync::Arc;
//! use sq_sim::OsFileSystem;
//! use sq_storage::{Header, Record, TopicName, WalConfig, WalWriter};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let fs = Arc::new(OsFileSystem::inline());
//! let config = WalConfig { max_segment_bytes: 1 << 20, ..WalConfig::new(dir) };
//! let orders = TopicName::new("orders")?;
//!
//! let mut log = WalWriter::new(fs.clone(), config.clone(), orders.clone(), 0).await?;
//! let headers = [Header::new("trace", "4bf92f")];
//! let offset = log.append(Some(b"customer-7"), b"two of them", &headers, 1_700_000_000_000).await?;
//! assert_eq!(offset, 0); // ... and durable.
//! drop(log); // Not closed: as if the process had died.
//!
//! let log = WalWriter::new(fs, config, orders, 0).await?;
//! assert_eq!(log.next_offset(), 1);
//! let frames = log.reader().read(0, 1 << 20).await?;
//! let record = Record::decode(frames[0].payload.clone())?;
//! assert_eq!(record.value.as_deref(), Some(&b"two of them"[..]));
//! log.close().await?; // The next opening has nothing to find out.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is not
//! Not a database: no keys, no deletes within a segment, no transactions across partitions. It locks
//! nothing: whoever opens a partition holds the data directory's lock
//! ([`FileSystem::lock`](sq_sim::FileSystem::lock)). It starts no thread and no task, unless a
//! [`log::Executor`] is asked for that does: an append takes place on whoever polls it, by way of the
//! file system it was given. It knows nothing of Kafka.
//! A [`Removal`], a [`Scrub`] and the [`Retention`] of a log are there for somebody to run.
//!
//! # What it promises
//! 1. An offset is handed out only after the bytes are durable, with their file's name.
//! 2. What was handed out stays: no crash, failed sync, full disk or dropped call loses it, moves it or
//!    gives its offset to another record.
//! 3. An append that failed or was dropped has appended nothing as far as its caller knows; after a
//!    crash its record may turn up, at the offset that it would have had, or not.
//! 4. A crash is never reported as damage, and damage to what was acknowledged never passes for one,
//!    as far as anything on the disk says that it was acknowledged: a later frame of the segment, its
//!    successor, or the manifest. Only the very last record before a crash has no such witness until
//!    [`WalWriter::mark`] wrote one.
//! 5. Damage hides nothing else. What is around it can be read, what is lost answers with
//!    [`ReadError::Damaged`], and the log takes appends.
//! 6. What [`WalWriter::truncate_from`], [`WalWriter::purge_to`] and [`WalWriter::advance_start`] took
//!    out is gone when they return, wholly; until then a crash leaves the old log or the new one, never a
//!    part. Where the log starts and which offset is next outlives every segment.
//! 7. Opening is idempotent: cut short by any number of crashes, it gives the same log.
//!
//! It assumes of the disk what [`sq_sim`] states: that an overwrite that power cuts short spares bytes
//! that keep their value, and that a sync which reports success has made durable what was written
//! since the last one, unless an earlier sync of that file failed.
//!
//! # What is done behind the appends
//! A roll need cost no append anything. [`WalWriter::preparation`] makes the next segment's file while
//! appends go on, [`WalWriter::arm`] gives it to the writer, and at the cap, or at
//! [`WalWriter::switch`], the log goes on there with one write and one sync like any other. What is left
//! (the file's name, cutting the old one, its index, the manifest) is [`Maintenance`]: done by the writer
//! before the append returns, or, with [`MaintenanceMode::Handed`], by whoever holds it. The active
//! segment is zeroed ahead of its head ([`WalConfig::zero_ahead_bytes`]), within one budget for all
//! partitions ([`Zeroing`]). Where segments are purged as well, their files become the next successors instead
//! of being freed ([`Spares`]): appends to what was written before cost a disk the least.
//!
//! # What opening reads
//! The manifest, and the active segment from its last recovery point on: a small file that says up to where the
//! segment was durable, written behind the appends after each [`WalConfig::recovery_point_bytes`]. So opening
//! after a crash takes as long for a segment of 1 GiB as for one of 64 MiB. What lies in front of the point is
//! as sealed segments are: damage there is found when it is read, or by a [`Scrub`]. Where a
//! [`RecoveryVisitor`] is to see frames, all of the active segment is read. [`WalWriter::recovery_report`] says
//! what was.
//!
//! # Many callers, many readers
//! A [`log::Log`] is one partition's writer for any number of callers, blocking or asynchronous: what
//! arrives while a sync is under way shares the next one. What was appended last is served from memory
//! ([`TailCache`], one bound for all partitions); of sealed segments a sparse index is kept beside the
//! file, and open files and indexes are bounded by a [`SegmentCache`].
//!
//! # A layer above
//! What somebody else makes of the records, a broker of its producers say, comes back together with the
//! log: a [`Sidecar`] is kept beside each sealed segment
//! ([`WalWriter::set_sidecar_source`]), and [`WalWriter::visited`] shows a [`RecoveryVisitor`] the newest
//! good one and then the frames behind it, which opening reads anyway. That of the last segment that was
//! purged is kept until there is a newer one.
//!
//! # How that is tested
//! On [`InMemoryFileSystem`](sq_sim::InMemoryFileSystem), whose crate docs list the faults. Crashes come
//! after every single operation of a run with rotations, and again after every operation of the opening
//! that follows; tears at every byte; a flip of every bit of every file (of padding, a sample); every
//! append dropped at every await; the same for truncations and purges; and a model under random
//! operations, faults and crashes, which compares the whole log with what was acknowledged. `tests/it/` holds them; `SQ_SEEDS=20000 cargo test --release -p sq-storage
//! --test it model` runs the model for longer.
//!
//! # Errors
//! | [`Error::action`] | what it means | what to do |
//! |---|---|---|
//! | [`Action::Retry`] | nothing was appended: a full disk, a failed sync, too many open files | append again, now or when the cause is gone |
//! | [`Action::Reopen`] | several files in a row failed; the partition takes no append | [`WalWriter::allow_writes`], or open it again |
//! | [`Action::Repair`] | files are missing or contradict each other; nothing was changed | restore them, or set [`WalConfig::serve_around_missing`] |
//! | [`Action::GiveUp`] | the call can never succeed as it is | change it: too large, no record, no such timestamp |
//!
//! What opening found that someone may want to look at is in [`WalWriter::recovery_report`].
//!
//! # The format
//! [`wal::segment`], [`frame`], [`record`] and [`wal::manifest`] each begin with a byte diagram. All
//! integers are big-endian. A segment's header carries the version of its format, 1, or 2 in a file that was
//! another segment's before, and a manifest that of its own, 2; one of version 1 is read, and written anew. A
//! segment of another version is refused, unless the manifest lists it: then it is the field that is damaged.
//! Any change that this code could not read raises a version. So code from before version 2 can't read a log
//! that has come to write files again; with [`Spares::none`] from the start it can.

mod error;
pub mod frame;
pub mod log;
pub mod record;
mod reserve;
mod topic;
pub mod wal;

pub use error::{Action, DamageReason, Error, Evidence, ReadError, Result};
pub use record::{Header, Record};
pub use reserve::Reserve;
pub use topic::{InvalidTopicName, MAX_TOPIC_NAME_LEN, TopicName};
pub use wal::{
    ActiveSegment, Batch, ClosedSegment, Damage, LogReader, Maintenance, MaintenanceMode, Pace,
    Payload, Preparation, Prepared, Preparer, RecoveryPoint, RecoveryReport, RecoveryVisitor,
    Removal, Retention, Rotation, Scrub, ScrubFinding, ScrubTotals, SegmentCache, SegmentIds,
    SegmentInfo, Sidecar, Spares, StoredFrame, SyncPolicy, TailCache, WalConfig, WalWriter,
    Zeroing,
};
