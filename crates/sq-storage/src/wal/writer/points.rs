//! When a recovery point of the active segment is wanted.

use sq_sim::FileSystem;

use super::super::maintenance::Chore;
use super::super::state::Extent;
use super::WalWriter;

impl<F: FileSystem> WalWriter<F> {
    /// Where the next recovery point is due, if the last one is at `position`, or else the first frame.
    pub(super) fn next_point(&self, position: u64) -> u64 {
        match self.config.recovery_point_bytes {
            0 => u64::MAX,
            bytes => position.saturating_add(bytes),
        }
    }

    /// Leaves a recovery point to be written at the active segment's end, if that is durable.
    pub(super) fn reach_point(&mut self) {
        let Some(segment) = self.segment.as_ref().filter(|_| self.is_durable()) else {
            return;
        };
        let (end_offset, bytes) = (self.next_offset, self.segment_position);
        if segment.reached(Extent { end_offset, bytes }) {
            self.backlog.push(Chore::WritePoint(segment.clone()));
        }
        self.has_chores = true;
        self.point_due = self.next_point(bytes);
    }

    /// Whether all of the active segment is.
    fn is_durable(&self) -> bool {
        #[cfg(feature = "mutants")]
        if super::super::mutants::lacks(super::super::mutants::Guard::PointsSync) {
            return true;
        }
        self.unsynced.is_empty() && !self.has_unsynced_write
    }
}
