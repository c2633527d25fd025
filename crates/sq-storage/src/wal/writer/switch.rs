//! From one segment to a successor that was prepared for it.

use std::sync::Arc;

use sq_sim::FileSystem;

use super::super::config::Rotation;
use super::super::prepared::{Preparation, Prepared, Preparer};
use super::super::segment::SegmentName;
use super::super::state::Segment;
use super::{Opens, WalWriter};
use crate::error::Result;

impl<F: FileSystem> WalWriter<F> {
    /// What it takes to prepare a successor, whose id is drawn unless it is given. An id is used for
    /// one segment only, ever.
    pub fn preparation(&self, id: Option<u64>) -> Preparation<F> {
        self.preparation_through(id, Arc::clone(&self.fs))
    }

    /// [`preparation`](Self::preparation) that does its work through another file system, as with
    /// [`reader_through`](Self::reader_through).
    pub fn preparation_through(&self, id: Option<u64>, fs: Arc<F>) -> Preparation<F> {
        self.preparer_through(fs).preparation(id)
    }

    /// What prepares successors without the writer, through another file system.
    pub fn preparer_through(&self, fs: Arc<F>) -> Preparer<F> {
        Preparer {
            dir: self.place.dir.clone(),
            header: self.place.header,
            length: self.config.max_segment_bytes,
            zero_ahead_bytes: self.config.zero_ahead_bytes,
            zeroing: self.config.zeroing.clone(),
            segment_ids: self.config.segment_ids.clone(),
            fs,
            append_fs: Arc::clone(&self.fs),
            backlog: Arc::clone(&self.backlog),
            state: Arc::clone(&self.state),
            reserve: self.config.reserve.clone(),
            trash: Arc::clone(&self.trash),
            clock: Arc::clone(&self.clock),
        }
    }

    /// From now on the writer ends no segment by itself, as with
    /// [`Rotation::External`](super::super::Rotation::External), and opens none either: it goes on in an
    /// armed successor only, or in what [`begin`](Self::begin) opens. Where it has neither, an append fails
    /// with [`Error::NoSuccessor`](crate::Error::NoSuccessor).
    pub fn take_no_step_alone(&mut self) {
        self.config.rotation = Rotation::External;
        self.opens = Opens::OnlyTold;
    }

    /// Creates a segment under an id that is given, and goes on there. What opening such a segment costs
    /// is paid here and now: it is for the first segment of a log, and for one of which a restart left
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io); the segment before stays as it is, and the same call may be made again.
    pub async fn begin(&mut self, id: u64) -> Result<()> {
        self.retire_if_abandoned();
        self.settle_unsynced(true).await?;
        let Some(reserve) = self.config.reserve.clone() else {
            return self.open_segment(id).await;
        };
        reserve.restore().await?;
        let opened = self.open_segment(id).await;
        if matches!(&opened, Err(error) if error.is_out_of_space()) {
            reserve.give_back().await;
        }
        opened
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
        if self.segment.is_some() && self.segment_is_empty() || self.waits_for_sync() {
            return false;
        }
        self.begin_armed(self.next_offset)
    }

    /// Whether the active segment holds what is acknowledged and not synced.
    fn waits_for_sync(&self) -> bool {
        #[cfg(feature = "mutants")]
        if super::super::mutants::lacks(super::super::mutants::Guard::SwitchSync) {
            return false;
        }
        !self.unsynced.is_empty()
    }

    /// Makes the armed successor the active segment, from `base_offset` on.
    pub(super) fn begin_armed(&mut self, base_offset: u64) -> bool {
        let Some(prepared) = self.armed.take() else {
            return false;
        };
        let id = prepared.id();
        let Some((file, origin)) = prepared.into_segment() else {
            return false;
        };
        let name = SegmentName {
            base_offset,
            id: self.is_base_taken(base_offset).then_some(id),
        };
        self.begin_segment(id, name, file, Some(origin));
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
