//! What the writer and the readers of a partition share.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use sq_sim::{FileHandle, FileSystem, Instant};
use tokio::sync::watch;

use super::cache::{SealedIndex, SegmentCache, Slot};
use super::index::{Index, Subject};
use super::manifest::{ManifestEntry, Seal, SegmentTimes};
use super::points::Points;
use super::segment::SegmentName;
use super::spare::Wear;
use super::tail::{Tail, TailCache};
use crate::frame::FrameHeader;

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
    /// When the last record was appended, if that was in this life of the process.
    appended_at: Mutex<Option<Instant>>,
    /// When the records of a segment are from that takes no more of them.
    times: OnceLock<SegmentTimes>,
    /// What is known of the frames' places while the segment takes records, and until that is in a file.
    live_index: Mutex<Option<Index>>,
    /// The checksum of its index file, 0 if that is not known.
    index_checksum: AtomicU32,
    /// What there is of recovery points while it takes records.
    pub(super) points: Points,
    /// What readers keep of it.
    pub(super) slot: Slot,
    /// What was done to its file.
    pub(super) wear: Arc<Wear>,
    /// How much of its file was written when it was an earlier segment's, if it was.
    pub(super) recycled: Option<u64>,
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
            appended_at: Mutex::new(None),
            times: OnceLock::new(),
            live_index: Mutex::default(),
            index_checksum: AtomicU32::new(0),
            points: Points::default(),
            slot: Slot::default(),
            wear: Arc::default(),
            recycled: None,
        }
    }

    /// The same segment in a file of which so much was written when it was an earlier segment's.
    pub(super) fn recycled(self, written: Option<u64>) -> Self {
        Self {
            recycled: written,
            ..self
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

    /// Opens its file for writing, wherever it is.
    pub(super) async fn open<F: FileSystem>(&self, fs: &F) -> io::Result<Box<dyn FileHandle>> {
        match fs.open(&self.current_path()).await {
            Err(e) if e.kind() == io::ErrorKind::NotFound => fs.open(&self.path).await,
            opened => opened,
        }
    }

    /// Where its file is, unless it is being renamed just now.
    pub(super) fn current_path(&self) -> PathBuf {
        self.prepared().unwrap_or_else(|| self.path.clone())
    }

    pub(super) fn with_index(self, index: Index) -> Self {
        Self {
            live_index: Mutex::new(Some(index)),
            ..self
        }
    }

    /// The same segment, of which opening knows these recovery points.
    pub(super) fn with_points(self, points: Points) -> Self {
        Self { points, ..self }
    }

    /// When its records are from: as its seal says, or else its index, if either is there.
    pub(super) fn times(&self) -> Option<SegmentTimes> {
        let sealed = self.times.get().copied();
        sealed.or_else(|| self.in_live_index(Index::times).flatten())
    }

    /// Looks into the index while the segment has it in memory.
    pub(super) fn in_live_index<T>(&self, look: impl FnOnce(&Index) -> T) -> Option<T> {
        lock(&self.live_index).as_ref().map(look)
    }

    /// Notes frames that were appended: position and header.
    pub(super) fn note(&self, frames: &[(u64, FrameHeader)]) {
        if let Some(index) = &mut *lock(&self.live_index) {
            for (position, header) in frames {
                index.note(*position, header, false);
            }
        }
    }

    /// Takes over an index that was made of what the segment holds in front of `position`.
    pub(super) fn mend_index(&self, position: u64, front: Index) {
        if let Some(index) = &mut *lock(&self.live_index) {
            index.mend(position, front);
            self.points.confirmed();
        }
    }

    /// Takes back what lies behind `extent`: it may not be durable, and is appended elsewhere.
    pub(super) fn cut_back(&self, extent: Extent) {
        self.extend(extent);
        // It would go on telling the time of what is behind the cut: one is made of what is left, when needed.
        *lock(&self.live_index) = None;
    }

    /// Hands the index on to the readers' cache: the segment takes no more records.
    pub(super) fn hand_on_index(&self, cache: &SegmentCache) {
        self.set_times(self.times());
        if let Some(index) = lock(&self.live_index).take() {
            let is_certain = self.points.told_below() == 0;
            cache.keep_index(&self.slot, Arc::new(SealedIndex { index, is_certain }));
        }
    }

    /// What its index speaks of.
    pub(super) fn subject(&self) -> Subject {
        Subject {
            id: self.id,
            base_offset: self.name.base_offset,
            extent: self.extent(),
        }
    }

    /// The checksum that its index file has, 0 if that is not known.
    pub(super) fn index_checksum(&self) -> u32 {
        self.index_checksum.load(Ordering::Acquire)
    }

    pub(super) fn set_index_checksum(&self, checksum: u32) {
        self.index_checksum.store(checksum, Ordering::Release);
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
            index_checksum: self.index_checksum(),
            ..Seal::from(self.extent())
        }
    }

    /// Its line in the manifest.
    pub(super) fn entry(&self, seal: Option<Seal>) -> ManifestEntry {
        ManifestEntry {
            id: self.id,
            ordinal: self.ordinal,
            name: self.name,
            seal,
        }
    }

    /// The same segment, of which less counts.
    pub(super) fn cut(&self, extent: Extent) -> Self {
        let (name, path) = (self.name, self.path.clone());
        let cut = Self::new(self.id, self.ordinal, name, path, extent);
        // What was cut off stays in its file.
        cut.wear.spoil();
        // Its records may be older than that: then it is kept for longer.
        cut.set_times(self.times());
        *lock(&cut.appended_at) = self.appended_at();
        cut
    }

    pub(super) fn extent(&self) -> Extent {
        *lock(&self.extent)
    }

    /// When its last record was appended, if that was in this life of the process.
    pub(super) fn appended_at(&self) -> Option<Instant> {
        *lock(&self.appended_at)
    }

    /// Takes in what was appended at a time.
    pub(super) fn append(&self, extent: Extent, at: Instant) {
        *lock(&self.appended_at) = Some(at);
        self.extend(extent);
    }

    pub(super) fn extend(&self, extent: Extent) {
        *lock(&self.extent) = extent;
    }
}

/// The state of a partition's log that its writer publishes.
#[derive(Debug)]
pub(super) struct LogState {
    segments: RwLock<Arc<Vec<Arc<Segment>>>>,
    start: AtomicU64,
    tail: Arc<Tail>,
    segment_cache: SegmentCache,
    end: watch::Sender<u64>,
    /// How often something was taken out of the log, twice each: before and after.
    removals: AtomicU64,
}

impl LogState {
    pub(super) fn new(
        segments: Vec<Arc<Segment>>,
        start: u64,
        end: u64,
        tail_cache: TailCache,
        segment_cache: SegmentCache,
    ) -> Self {
        Self {
            tail: Tail::new(tail_cache),
            segment_cache,
            segments: RwLock::new(Arc::new(segments)),
            start: AtomicU64::new(start),
            end: watch::Sender::new(end),
            removals: AtomicU64::new(0),
        }
    }

    /// Takes something out of the log, at either end: these segments are left, and these offsets.
    pub(super) fn remove(&self, segments: Vec<Arc<Segment>>, offsets: Range<u64>) {
        self.removals.fetch_add(1, Ordering::AcqRel);
        self.start.store(offsets.start, Ordering::Release);
        *self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(segments);
        self.tail.forget_before(offsets.start);
        self.tail.forget_from(offsets.end);
        self.end.send_if_modified(|end| {
            let moved = *end != offsets.end;
            *end = offsets.end;
            moved
        });
        self.removals.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes whenever something is taken out of the log: what was read of it across a change may be
    /// of two logs, or of a file that is being removed.
    pub(super) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
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

    /// What readers keep of segments.
    pub(super) fn segment_cache(&self) -> &SegmentCache {
        &self.segment_cache
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// Makes everything below `end` readable. It never moves the end backwards: only
    /// [`remove`](Self::remove) does.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_end_never_moves_backwards() {
        // Two flushes were in flight and ended in the other order: the committed offset went back, and who
        // waited for the later one waited for ever.
        let (tail, cache) = (TailCache::off(), SegmentCache::default());
        let state = LogState::new(Vec::new(), 0, 10, tail, cache);
        let mut waiting = state.subscribe();
        for (flushed, end) in [(12, 12), (10, 12), (12, 12), (13, 13)] {
            state.publish(flushed);
            assert_eq!(state.end(), end);
        }
        assert!(waiting.has_changed().unwrap());
        assert_eq!(*waiting.borrow_and_update(), 13);
    }
}
