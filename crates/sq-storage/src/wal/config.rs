//! How a partition's log is kept.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::cache::SegmentCache;
use super::spare::Spares;
use super::tail::TailCache;
use super::zeroing::Zeroing;
use crate::reserve::Reserve;

/// Who decides when a segment is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rotation {
    /// The writer: by size and by age, at the append that would pass the limit.
    #[default]
    Internal,
    /// Whoever holds the writer, through
    /// [`close_active_segment`](super::WalWriter::close_active_segment); a segment may then pass
    /// `max_segment_bytes`.
    External,
}

/// Who does what a segment's end leaves to be done: cutting its file, telling the manifest; and who writes
/// recovery points. No acknowledged record depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaintenanceMode {
    /// The writer, before the append that went on to the next segment returns, and at the close. A recovery
    /// point ([`WalConfig::recovery_point_bytes`]) before the append behind it.
    #[default]
    Inline,
    /// Whoever holds the writer's [`Maintenance`](super::Maintenance), behind the appends. If nobody
    /// does it, the writer does after all once several segments' work has piled up, and at the close.
    Handed,
}

/// When what was appended is synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Before it is acknowledged.
    #[default]
    Always,
    /// At most so long after it was acknowledged.
    ///
    /// What was acknowledged longer ago than this, and than a write and a sync take, is durable. What
    /// is younger can be lost when the machine loses power or crashes, from the end of the log and
    /// with nothing in between; a process that dies loses none of it. A sync that fails loses nothing
    /// either: what it was to make durable is kept in memory until then, and goes to a fresh file. Where
    /// none can be made yet, it goes with the process as well.
    ///
    /// The time is looked at by each append. Where appends may stop, someone has to call
    /// [`sync`](super::WalWriter::sync) in time; [`Log::keep_synced`](crate::log::Log::keep_synced)
    /// does so.
    Every(Duration),
}

/// How much is acknowledged and not synced at most, in bytes of frames. The write that would pass it is
/// synced.
pub(super) const MAX_UNSYNCED_BYTES: u64 = 8 << 20;

/// How a partition's log is kept. Cheap to clone; one serves many partitions.
#[derive(Clone, Debug)]
pub struct WalConfig {
    /// The directory that holds a directory for each topic.
    pub data_dir: PathBuf,
    /// The size that a segment does not pass, in bytes of frames and header; a single larger append
    /// gets a segment of its own.
    pub max_segment_bytes: u64,
    /// The age at which a segment takes no further append.
    pub max_segment_age: Duration,
    /// Who decides to rotate.
    pub rotation: Rotation,
    /// The largest frame, in bytes with its header. It bounds an append, and how far recovery looks
    /// through zeros for what a tear may have left behind them.
    pub max_frame_bytes: usize,
    /// After how many files in a row with a failed write or sync the partition becomes read-only.
    pub max_poisoned_in_a_row: u32,
    /// Whether a partition opens although a segment that its manifest lists is not there. Its offsets
    /// then answer with an error; without this the partition does not open.
    pub serve_around_missing: bool,
    /// Keeps what was appended last in memory, for readers. A configuration that is cloned shares it, and
    /// so do all partitions that are opened with clones.
    pub tail_cache: TailCache,
    /// Bounds what readers keep of segments: open files and indexes. Shared like the tail cache.
    pub segment_cache: SegmentCache,
    /// Where segment ids come from.
    pub segment_ids: SegmentIds,
    /// When what was appended is synced.
    pub sync: SyncPolicy,
    /// Room that is given back when the disk is full.
    pub reserve: Option<Reserve>,
    /// Who does what no append has to wait for.
    pub maintenance: MaintenanceMode,
    /// How far ahead of the last record a segment is zeroed at most, in bytes; 0 to leave that out. An
    /// append to zeros that are on the disk needs no change of the file's metadata.
    pub zero_ahead_bytes: u64,
    /// Bounds what is zeroed and not written yet. A configuration that is cloned shares it, and so do all
    /// partitions that are opened with clones.
    pub zeroing: Zeroing,
    /// After how many bytes of the active segment that are durable a recovery point is written, behind the
    /// appends: opening begins to read the segment there, so that what it reads is about so much at most,
    /// however large segments are. 0, and `u64::MAX`, for none: then all of the active segment is read, as
    /// it is wherever a [`RecoveryVisitor`](super::RecoveryVisitor) is to see its frames. A point that is
    /// there counts in any case.
    pub recovery_point_bytes: u64,
    /// Bounds the files of purged segments that are kept to be written again. Shared like the budget of zeros.
    pub spares: Spares,
}

impl WalConfig {
    /// The defaults (1 GiB, 7 days, internal rotation, a tail cache of 64 MiB) for a data directory.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            max_segment_bytes: 1 << 30,
            max_segment_age: Duration::from_hours(7 * 24),
            rotation: Rotation::Internal,
            max_frame_bytes: 64 << 20,
            max_poisoned_in_a_row: 3,
            serve_around_missing: false,
            tail_cache: TailCache::default(),
            segment_cache: SegmentCache::default(),
            segment_ids: SegmentIds::from_system(),
            sync: SyncPolicy::Always,
            reserve: None,
            maintenance: MaintenanceMode::Inline,
            zero_ahead_bytes: 16 << 20,
            zeroing: Zeroing::default(),
            recovery_point_bytes: 64 << 20,
            spares: Spares::default(),
        }
    }
}

impl Default for WalConfig {
    /// [`WalConfig::new`] for `sq-data` in the working directory.
    fn default() -> Self {
        Self::new("sq-data")
    }
}

/// Where segment ids come from: random, so that no client can guess one and forge a frame of a
/// segment inside a record's value.
#[derive(Clone)]
pub struct SegmentIds(Arc<Mutex<StdRng>>);

impl SegmentIds {
    /// Ids seeded from the system's entropy.
    pub fn from_system() -> Self {
        // The standard library keys each `RandomState` from the system, and keyed SipHash gives
        // nothing of its key away; unlike a call of our own it has no failure to hand on.
        let mut seed = <StdRng as SeedableRng>::Seed::default();
        for chunk in seed.chunks_mut(8) {
            chunk.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
        }
        Self(Arc::new(Mutex::new(StdRng::from_seed(seed))))
    }

    /// Ids that are the same in every run, for tests and simulations.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// The next id. Never 0 and never all ones, which stand for themselves too often in a file.
    pub fn draw(&self) -> u64 {
        let mut rng = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let id = rng.next_u64();
            if id != 0 && id != u64::MAX {
                return id;
            }
        }
    }
}

impl fmt::Debug for SegmentIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SegmentIds")
    }
}
