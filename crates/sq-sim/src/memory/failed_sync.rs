//! What a failed sync leaves behind.

use super::content::{Content, Unsynced, at, copy_range, length};
use super::fate::{ContentFate, FileFate, SectorFate};
use super::fault::SyncFailure;
use crate::draws::Draws;

impl Content {
    /// A sync that fails, and how much space that gave back.
    pub(super) fn fail_sync(&mut self, failure: SyncFailure, draws: &mut Draws) -> u64 {
        match failure {
            SyncFailure::StillDirty => {}
            SyncFailure::Kept => self.sync(),
            SyncFailure::Lost => self.mark_clean(),
            SyncFailure::Torn => {
                let fate = FileFate::new(ContentFate::Sectors(SectorFate::ALL.to_vec()));
                let (image, cut) = self.resolve(&fate, draws);
                self.disk = image;
                if cut {
                    self.cut_to = None;
                }
                self.mark_clean();
            }
            SyncFailure::Reverted => return self.revert(),
        }
        0
    }

    /// The dirty bytes are clean without having been written. The length is metadata, which a later
    /// sync still writes.
    fn mark_clean(&mut self) {
        for range in self.dirty.iter() {
            self.lost.insert(range);
        }
        self.dirty.clear();
        self.cut_to = self.cut_to.filter(|cut| *cut < length(&self.disk));
        let lens = self.cut_to.into_iter().chain([self.len()]);
        self.journal = lens.map(Unsynced::SetLen).collect();
    }

    fn revert(&mut self) -> u64 {
        let keep = self
            .cut_to
            .take()
            .unwrap_or(length(&self.disk))
            .min(self.len());
        self.cached.truncate(at(keep));
        self.cached
            .extend_from_slice(self.disk.get(at(keep)..).unwrap_or_default());
        for range in self.dirty.iter() {
            copy_range(&self.disk, &mut self.cached, range);
        }
        self.dirty.clear();
        self.lost.truncate(length(&self.disk));
        self.journal.clear();
        self.allocated.truncate(length(&self.disk))
    }

    /// The kernel drops clean pages: where their sync had failed, a read sees the disk again.
    pub(super) fn evict(&mut self) {
        for range in self.lost.iter() {
            copy_range(&self.disk, &mut self.cached, range);
        }
        self.lost.clear();
    }
}
