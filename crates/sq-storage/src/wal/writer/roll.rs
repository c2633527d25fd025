//! From one segment to the next: opening, ending, sealing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sq_sim::{FileHandle, FileSystem, create_dir_durably};

use super::super::manifest::{ManifestEntry, Seal};
use super::super::segment::{SEGMENT_HEADER_LEN, SegmentName};
use super::super::state::{Extent, Index, Segment};
use super::{ClosedSegment, WalWriter};
use crate::error::{Error, Result};

impl<F: FileSystem> WalWriter<F> {
    /// Ends the active file after a failure: nothing is ever written to it again.
    pub(super) fn poison(&mut self) {
        self.poisoned_in_a_row = self.poisoned_in_a_row.saturating_add(1);
        self.retire();
    }

    /// Ends the active file if an earlier call was dropped while it wrote.
    pub(super) fn retire_if_abandoned(&mut self) {
        if std::mem::take(&mut self.write_under_way) {
            self.retire();
        }
    }

    /// Lets go of the active segment; it ends at what is acknowledged.
    fn retire(&mut self) {
        self.active_segment = None;
        let Some(segment) = self.segment.take() else {
            return;
        };
        let extent = segment.extent();
        self.unlisted.push(ManifestEntry {
            id: segment.id,
            ordinal: segment.ordinal,
            name: segment.name,
            seal: Some(Seal::from(extent)),
        });
        self.closed.push(ClosedSegment {
            path: segment.path.clone(),
            offsets: segment.name.base_offset..extent.end_offset,
            id: segment.id,
            bytes: extent.bytes,
        });
    }

    /// Creates the next segment and makes it the active one. Where that fails, the segment before
    /// it stays as it is.
    pub(super) async fn open_segment(&mut self) -> Result<()> {
        let base_offset = self.next_offset;
        let id = self.config.segment_ids.draw();
        let (name, file) = self.create_file(base_offset, id).await?;
        let path = self.place.dir.join(name.file_name());
        if let Err(e) = self.finish_file(&*file, &path).await {
            // Best effort: an empty file that stays is removed when the partition is next opened.
            let _ = self.fs.remove_file(&path).await;
            return Err(e);
        }
        // From here to the cut there is no await: a call that is dropped leaves one segment active
        // or the other, and no operation under way on the one that takes the next write.
        let filled = self.take_active();
        let ordinal = self.next_ordinal;
        self.next_ordinal = self.next_ordinal.saturating_add(1);
        let bytes = SEGMENT_HEADER_LEN as u64;
        let extent = Extent {
            end_offset: base_offset,
            bytes,
        };
        let segment = Segment::new(id, ordinal, name, path, extent);
        let segment = Arc::new(segment.with_index(Index::default()));
        self.state.push(Arc::clone(&segment));
        self.active_segment = Some(file);
        self.segment = Some(segment);
        self.segment_base_offset = base_offset;
        self.segment_position = bytes;
        self.segment_opened_at = self.clock.now();
        self.segment_age_when_opened = Duration::ZERO;
        self.told_committed = 0;
        self.has_unsynced_mark = false;
        self.unlisted.push(ManifestEntry {
            id,
            ordinal,
            name,
            seal: None,
        });
        cut_padding(filled).await;
        self.list_in_manifest().await;
        Ok(())
    }

    /// Creates a file under the plain name, or with the id in it where an older one has that.
    async fn create_file(
        &self,
        base_offset: u64,
        id: u64,
    ) -> Result<(SegmentName, Box<dyn FileHandle>)> {
        let dir = &self.place.dir;
        if self.state.segments().is_empty() {
            let made = create_dir_durably(&*self.fs, dir).await;
            made.map_err(Error::io("create", dir))?;
        }
        let plain = SegmentName {
            base_offset,
            id: None,
        };
        let path = dir.join(plain.file_name());
        match self.fs.create_new(&path).await {
            Ok(file) => return Ok((plain, file)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io("create", path)(e)),
        }
        let name = SegmentName {
            base_offset,
            id: Some(id),
        };
        let path = dir.join(name.file_name());
        let file = self
            .fs
            .create_new(&path)
            .await
            .map_err(Error::io("create", path))?;
        Ok((name, file))
    }

    /// Writes a new file's header and makes it and its name durable.
    async fn finish_file(&self, file: &dyn FileHandle, path: &Path) -> Result<()> {
        let header = Bytes::copy_from_slice(&self.place.header.encode());
        file.write_at(0, &[header])
            .await
            .map_err(Error::io("write", path))?;
        file.sync_all().await.map_err(Error::io("sync", path))?;
        let dir = &self.place.dir;
        self.fs
            .sync_dir(dir)
            .await
            .map_err(Error::io("sync", dir))?;
        Ok(())
    }

    /// Lets go of the active segment, all of whose records are durable, and returns its file and the
    /// length of what it holds.
    fn take_active(&mut self) -> Option<(Box<dyn FileHandle>, u64)> {
        let file = self.active_segment.take()?;
        self.retire();
        Some((file, self.segment_position))
    }

    /// Tells the manifest of segments that ended and of one that began. It is evidence for recovery
    /// and nothing waits for it, so a failure is logged and made good with the next line.
    pub(super) async fn list_in_manifest(&mut self) {
        let lines = std::mem::take(&mut self.unlisted);
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.manifest.record(&*self.fs, &lines).await {
            tracing::warn!(dir = %self.place.dir.display(), %error, "manifest not written");
        }
    }

    /// Seals the active segment and returns what it holds; `None` if there is none, or no record in
    /// it. The next append opens another.
    ///
    /// # Errors
    /// [`Error::Sync`] or [`Error::Write`] if the seal could not be made durable: every acknowledged
    /// record is as durable as before, and the segment takes no further append.
    pub async fn close_active_segment(&mut self) -> Result<Option<ClosedSegment>> {
        self.write_mark(true).await?;
        self.sync_mark().await?;
        if self.segment.is_none() || self.segment_is_empty() {
            return Ok(None);
        }
        if let Some(segment) = &self.segment {
            let bytes = self.segment_position;
            segment.extend(Extent {
                end_offset: self.next_offset,
                bytes,
            });
        }
        let filled = self.take_active();
        cut_padding(filled).await;
        self.list_in_manifest().await;
        // Taken out last: a call that is dropped leaves it to `take_closed`.
        Ok(self.closed.pop())
    }
}

/// Cuts a segment that takes no further write down to what it holds.
async fn cut_padding(filled: Option<(Box<dyn FileHandle>, u64)>) {
    if let Some((file, length)) = filled {
        // A file that stays longer than its records is only untidy.
        let _ = file.set_len(length).await;
    }
}
