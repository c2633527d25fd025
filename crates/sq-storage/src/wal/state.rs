//! What the writer and the readers of a partition share.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use sq_sim::{FileHandle, FileSystem};
use tokio::sync::{OnceCell, watch};

use super::manifest::{Seal, SegmentTimes};
use super::segment::SegmentName;
use super::tail::{Tail, TailCache};
use crate::frame::FrameHeader;

/// A frame's place is remembered for every so many bytes of a segment.
const INDEX_INTERVAL_BYTES: u64 = 32 * 1024;

/// One segment as readers see it.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) id: u64,
    pub(super) ordinal: u32,
    pub(super) name: SegmentName,
    /// Where its file is, or will be.
    pub(super) path: PathBuf,
    /// Where its file is until it has its name.
    prepared: Mutex<Option<PathBuf>>,
    extent: Mutex<Extent>,
    /// When the records of a segment are from that takes no more of them.
    times: OnceLock<SegmentTimes>,
    /// What is known of the frames' places. Filled by the writer as it writes, or by the first
    /// reader of a segment that was sealed before the partition was opened.
    pub(super) index: OnceCell<Mutex<Index>>,
    /// The reader's handle, opened with the first read.
    pub(super) handle: OnceCell<Arc<dyn FileHandle>>,
}

/// How much of a segment may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// The offset behind its last readable record.
    pub(super) end_offset: u64,
    /// The bytes up to there.
    pub(super) bytes: u64,
}

impl Segment {
    pub(super) fn new(
        id: u64,
        ordinal: u32,
        name: SegmentName,
        path: PathBuf,
        extent: Extent,
    ) -> Self {
        Self {
            id,
            ordinal,
            name,
            path,
            prepared: Mutex::new(None),
            extent: Mutex::new(extent),
            times: OnceLock::new(),
            index: OnceCell::new(),
            handle: OnceCell::new(),
        }
    }

    /// The same segment in a file that does not have its name yet.
    pub(super) fn prepared_at(self, path: Option<PathBuf>) -> Self {
        Self {
            prepared: Mutex::new(path),
            ..self
        }
    }

    /// Where its file is while it does not have its name.
    pub(super) fn prepared(&self) -> Option<PathBuf> {
        lock(&self.prepared).clone()
    }

    /// Its file has its name.
    pub(super) fn named(&self) {
        *lock(&self.prepared) = None;
    }

    /// Opens its file for reading, wherever it is.
    pub(super) async fn open_read_only<F: FileSystem>(
        &self,
        fs: &F,
    ) -> io::Result<Box<dyn FileHandle>> {
        match fs.open_read_only(&self.current_path()).await {
            // It may have got its name in between.
            Err(e) if e.kind() == io::ErrorKind::NotFound => fs.open_read_only(&self.path).await,
            opened => opened,
        }
    }

    /// Where its file is, unless it is being renamed just now.
    pub(super) fn current_path(&self) -> PathBuf {
        self.prepared().unwrap_or_else(|| self.path.clone())
    }

    pub(super) fn with_index(self, index: Index) -> Self {
        Self {
            index: OnceCell::new_with(Some(Mutex::new(index))),
            ..self
        }
    }

    /// When its records are from: as its seal says, or else its index, if either is there.
    pub(super) fn times(&self) -> Option<SegmentTimes> {
        let sealed = self.times.get().copied();
        sealed.or_else(|| self.index.get().and_then(|index| lock(index).times()))
    }

    /// Fixes when the records of a segment are from that takes no more of them.
    pub(super) fn set_times(&self, times: Option<SegmentTimes>) {
        if let Some(times) = times {
            // A segment is sealed once, and what it was sealed with stays.
            let _ = self.times.set(times);
        }
    }

    /// What the manifest says of it once it takes no more records.
    pub(super) fn seal(&self) -> Seal {
        self.set_times(self.times());
        Seal {
            times: self.times(),
            ..Seal::from(self.extent())
        }
    }

    pub(super) fn extent(&self) -> Extent {
        *lock(&self.extent)
    }

    pub(super) fn extend(&self, extent: Extent) {
        *lock(&self.extent) = extent;
    }
}

/// Where some frames of a segment stand, in the order of their offsets.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    entries: Vec<IndexEntry>,
    max_timestamp_ms: Option<i64>,
    last_append_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    offset: u64,
    position: u64,
    /// The greatest timestamp of any frame before this one.
    max_timestamp_before_ms: Option<i64>,
}

impl Index {
    /// Notes a frame; frames come in the order of their offsets. One that can't be reached from the
    /// frame before it, because something between them is damaged, `begins` a run.
    pub(super) fn note(&mut self, position: u64, header: &FrameHeader, begins: bool) {
        if header.record_count == 0 {
            return;
        }
        let last = self.entries.last();
        if begins || last.is_none_or(|e| position - e.position >= INDEX_INTERVAL_BYTES) {
            let (offset, max_timestamp_before_ms) = (header.base_offset, self.max_timestamp_ms);
            self.entries.push(IndexEntry {
                offset,
                position,
                max_timestamp_before_ms,
            });
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(Some(header.max_timestamp_ms));
        self.last_append_ms = header.append_time_ms;
    }

    /// A frame at or before the one that holds `offset`: its offset and position.
    pub(super) fn before_offset(&self, offset: u64) -> Option<(u64, u64)> {
        let behind = self.entries.partition_point(|e| e.offset <= offset);
        self.entries
            .get(behind.checked_sub(1)?)
            .map(|e| (e.offset, e.position))
    }

    /// A frame at or before the first one whose greatest timestamp is at least `timestamp_ms`.
    pub(super) fn before_timestamp(&self, timestamp_ms: i64) -> Option<(u64, u64)> {
        let behind = self
            .entries
            .partition_point(|e| e.max_timestamp_before_ms.is_none_or(|t| t < timestamp_ms));
        self.entries
            .get(behind.checked_sub(1)?)
            .map(|e| (e.offset, e.position))
    }

    /// When the frames are from; `None` while there is none.
    pub(super) fn times(&self) -> Option<SegmentTimes> {
        self.max_timestamp_ms.map(|max_timestamp_ms| SegmentTimes {
            max_timestamp_ms,
            last_append_ms: self.last_append_ms,
        })
    }

    /// The greatest timestamp of any frame.
    pub(super) fn max_timestamp_ms(&self) -> Option<i64> {
        self.max_timestamp_ms
    }
}

/// The state of a partition's log that its writer publishes.
#[derive(Debug)]
pub(super) struct LogState {
    segments: RwLock<Arc<Vec<Arc<Segment>>>>,
    start: AtomicU64,
    tail: Arc<Tail>,
    end: watch::Sender<u64>,
}

impl LogState {
    pub(super) fn new(segments: Vec<Arc<Segment>>, start: u64, end: u64, cache: TailCache) -> Self {
        Self {
            tail: Tail::new(cache),
            segments: RwLock::new(Arc::new(segments)),
            start: AtomicU64::new(start),
            end: watch::Sender::new(end),
        }
    }

    /// The segments, oldest first.
    pub(super) fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        Arc::clone(&self.segments.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a segment is part of the log still.
    pub(super) fn holds(&self, id: u64) -> bool {
        self.segments().iter().any(|s| s.id == id)
    }

    pub(super) fn push(&self, segment: Arc<Segment>) {
        let mut slot = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut slot).push(segment);
    }

    pub(super) fn start(&self) -> u64 {
        self.start.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) -> u64 {
        *self.end.borrow()
    }

    /// What of the log is held in memory.
    pub(super) fn tail(&self) -> &Arc<Tail> {
        &self.tail
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// Makes everything below `end` readable. The end never moves backwards.
    pub(super) fn publish(&self, end: u64) {
        self.end.send_if_modified(|current| {
            let forward = end > *current;
            *current = end.max(*current);
            forward
        });
    }
}

/// Locks a mutex whose data is whole at every unlock, so that a panic elsewhere spoils nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
