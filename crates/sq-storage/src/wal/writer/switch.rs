//! From one segment to a successor that was prepared for it.

use std::sync::Arc;

use sq_sim::FileSystem;

use super::super::prepared::{Preparation, Prepared};
use super::super::segment::SegmentName;
use super::super::state::Segment;
use super::WalWriter;

/// How much of a successor is zeroed before it counts as ready, in bytes.
const ZEROED_WHEN_READY: u64 = 4 << 20;

impl<F: FileSystem> WalWriter<F> {
    /// What it takes to prepare a successor, whose id is drawn unless it is given. An id is used for
    /// one segment only, ever.
    pub fn preparation(&self, id: Option<u64>) -> Preparation<F> {
        self.preparation_through(id, Arc::clone(&self.fs))
    }

    /// [`preparation`](Self::preparation) that does its work through another file system, as with
    /// [`reader_through`](Self::reader_through).
    pub fn preparation_through(&self, id: Option<u64>, fs: Arc<F>) -> Preparation<F> {
        let id = id.unwrap_or_else(|| self.config.segment_ids.draw());
        let is_segment = self.state.segments().iter().any(|s| s.id == id);
        let length = self.config.max_segment_bytes;
        let wanted = ZEROED_WHEN_READY
            .min(self.config.zero_ahead_bytes)
            .min(length);
        Preparation {
            id,
            dir: self.place.dir.clone(),
            header: self.place.header.encode(),
            length,
            zeroed: self.config.zeroing.take(wanted, 1, false),
            fs,
            append_fs: Arc::clone(&self.fs),
            backlog: Arc::clone(&self.backlog),
            is_taken: is_segment || !self.backlog.claim(id),
        }
    }

    /// Gives the writer the successor that it goes on in when the active segment is full, or at the
    /// next [`switch`](Self::switch). In memory only.
    ///
    /// # Errors
    /// The successor, where the writer has one already or it was prepared for another writer.
    pub fn arm(&mut self, prepared: Prepared<F>) -> Result<(), Prepared<F>> {
        if self.armed.is_some() || !prepared.is_for(&self.backlog) {
            return Err(prepared);
        }
        self.armed = Some(prepared);
        Ok(())
    }

    /// Takes the armed successor back, if there is one.
    pub fn disarm(&mut self) -> Option<Prepared<F>> {
        self.armed.take()
    }

    /// The id of the armed successor.
    pub fn armed(&self) -> Option<u64> {
        self.armed.as_ref().map(Prepared::id)
    }

    /// Makes the armed successor the active segment: the one before it ends here, and the next append
    /// goes there, with one write and one sync like any other. In memory only; what is left to be done
    /// for both is [`Maintenance`](super::super::Maintenance).
    ///
    /// Returns whether it took place. Not without an armed successor, nor while the active segment
    /// has no record: that would leave an empty one behind. Nor while something is acknowledged and not
    /// synced ([`SyncPolicy::Every`](super::super::SyncPolicy::Every)): call [`sync`](Self::sync) first.
    pub fn switch(&mut self) -> bool {
        self.retire_if_abandoned();
        if self.segment.is_some() && self.segment_is_empty() || !self.unsynced.is_empty() {
            return false;
        }
        let Some(prepared) = self.armed.take() else {
            return false;
        };
        let id = prepared.id();
        let Some((file, path, zeroed)) = prepared.into_segment() else {
            return false;
        };
        let base_offset = self.next_offset;
        let name = SegmentName {
            base_offset,
            id: self.is_base_taken(base_offset).then_some(id),
        };
        self.begin_segment(id, name, file, Some((path, zeroed)));
        true
    }

    /// Whether a file may have the plain name of a segment with this base. The name of a switched-to
    /// successor is settled here, before it has it, so that no two segments ever reach for the same.
    pub(super) fn is_base_taken(&self, base_offset: u64) -> bool {
        let plain = SegmentName {
            base_offset,
            id: None,
        };
        self.last_attempt == Some(base_offset)
            || self.trash.knows(plain)
            || self.leftover_bases.contains(&base_offset)
            || self.last_segment_from(base_offset).is_some()
    }

    /// The last segment, if it begins at this offset.
    pub(super) fn last_segment_from(&self, base_offset: u64) -> Option<Arc<Segment>> {
        let segments = self.state.segments();
        let last = segments
            .last()
            .filter(|s| s.name.base_offset == base_offset);
        last.cloned()
    }
}
