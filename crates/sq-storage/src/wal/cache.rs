//! What readers keep of segments: open files and indexes, under bounds of the node.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use sq_sim::FileHandle;
use tokio::sync::OnceCell;

use super::index::Index;
use super::lru::Lru;
use super::state::lock;

/// What readers keep of the segments that they read: open files, and the indexes of those that take no
/// more records. What was used longest ago goes first, and comes back with the next read that needs it.
///
/// Cheap to clone: clones are the same cache.
#[derive(Clone)]
pub struct SegmentCache(Arc<Shared>);

struct Shared {
    files: Mutex<Lru<Arc<OpenFile>>>,
    indexes: Mutex<Lru<IndexCell>>,
}

/// An index, or the making of it, which whoever else needs it waits for.
pub(super) type IndexCell = Arc<OnceCell<Arc<SealedIndex>>>;

/// The index of a segment that takes no more records.
#[derive(Debug)]
pub(super) struct SealedIndex {
    pub(super) index: Index,
    /// Whether it is known to be right: made from the segment, or with the checksum that the manifest has.
    pub(super) is_certain: bool,
}

/// A segment's file, opened for reading.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: Arc<dyn FileHandle>,
    /// Where reads ended last, so that those which follow begin right there: offset and position.
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    known: [Option<(u64, u64)>; 8],
    next: usize,
}

impl OpenFile {
    /// Where the frame that begins with `offset` stands, if a read ended there.
    pub(super) fn place(&self, offset: u64) -> Option<u64> {
        let places = lock(&self.places);
        let mut known = places.known.iter().flatten();
        known.find(|(o, _)| *o == offset).map(|(_, p)| *p)
    }

    pub(super) fn ended_at(&self, offset: u64, position: u64) {
        let mut places = lock(&self.places);
        let next = places.next;
        if let Some(slot) = places.known.get_mut(next) {
            *slot = Some((offset, position));
        }
        places.next = (next + 1) % places.known.len();
    }
}

impl SegmentCache {
    /// A cache of at most so many open files, and so many bytes of indexes. Reads that are under way
    /// keep what they use, whatever the bounds.
    pub fn new(max_open_files: usize, max_index_bytes: usize) -> Self {
        Self(Arc::new(Shared {
            files: Mutex::new(Lru::new(max_open_files)),
            indexes: Mutex::new(Lru::new(max_index_bytes)),
        }))
    }

    /// How many files it holds open.
    pub fn open_files(&self) -> usize {
        lock(&self.0.files).weight()
    }

    /// The bytes of indexes that it holds.
    pub fn index_bytes(&self) -> usize {
        lock(&self.0.indexes).weight()
    }

    pub(super) fn file(&self, slot: &Slot) -> Option<Arc<OpenFile>> {
        lock(&self.0.files).get(slot.key)
    }

    pub(super) fn keep_file(&self, slot: &Slot, file: Arc<dyn FileHandle>) -> Arc<OpenFile> {
        slot.use_cache(self);
        let places = Mutex::default();
        let file = Arc::new(OpenFile { file, places });
        let gone = lock(&self.0.files).put(slot.key, Arc::clone(&file), 1);
        drop(gone);
        file
    }

    /// The place of a segment's index, empty where it has to be found yet.
    pub(super) fn index(&self, slot: &Slot) -> IndexCell {
        slot.use_cache(self);
        let mut indexes = lock(&self.0.indexes);
        if let Some(cell) = indexes.get(slot.key) {
            return cell;
        }
        let cell = IndexCell::default();
        // It weighs nothing while it is empty, so nothing goes for it.
        let gone = indexes.put(slot.key, Arc::clone(&cell), 0);
        drop(indexes);
        drop(gone);
        cell
    }

    /// Counts an index that was found.
    pub(super) fn keep_index(&self, slot: &Slot, index: Arc<SealedIndex>) {
        let weight = index.index.memory_bytes();
        let cell = Arc::new(OnceCell::new_with(Some(index)));
        let gone = lock(&self.0.indexes).put(slot.key, cell, weight);
        drop(gone);
    }

    /// Lets go of a segment's index.
    pub(super) fn forget_index(&self, slot: &Slot) {
        let gone = lock(&self.0.indexes).remove(slot.key);
        drop(gone);
    }
}

impl Default for SegmentCache {
    /// 512 files, and 16 MiB of indexes.
    fn default() -> Self {
        Self::new(512, 16 << 20)
    }
}

impl fmt::Debug for SegmentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentCache")
            .field("open_files", &self.open_files())
            .field("index_bytes", &self.index_bytes())
            .finish_non_exhaustive()
    }
}

/// A segment's place in the cache. What is kept of it goes with it: a file that is removed takes up its
/// space for as long as it is open.
#[derive(Debug)]
pub(super) struct Slot {
    key: u64,
    cache: OnceLock<SegmentCache>,
}

impl Default for Slot {
    fn default() -> Self {
        static NEXT_KEY: AtomicU64 = AtomicU64::new(0);
        Self {
            key: NEXT_KEY.fetch_add(1, Ordering::Relaxed),
            cache: OnceLock::new(),
        }
    }
}

impl Slot {
    fn use_cache(&self, cache: &SegmentCache) {
        self.cache.get_or_init(|| cache.clone());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(SegmentCache(shared)) = self.cache.get() {
            let file = lock(&shared.files).remove(self.key);
            let index = lock(&shared.indexes).remove(self.key);
            drop((file, index));
        }
    }
}
