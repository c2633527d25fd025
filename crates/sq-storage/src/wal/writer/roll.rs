//! From one segment to the next: opening, ending, sealing.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sq_sim::{FileHandle, FileSystem, create_dir_durably};

use super::super::ahead::Zone;
use super::super::config::MaintenanceMode;
use super::super::index::Index;
use super::super::maintenance::{Chore, MAX_HANDED};
use super::super::prepared::Origin;
use super::super::segment::{SEGMENT_HEADER_LEN, SegmentName};
use super::super::sidecar::Sidecar;
use super::super::state::{Extent, Segment};
use super::super::zeroing::Held;
use super::{ClosedSegment, Opens, WalWriter};
use crate::error::{Error, Result};

impl<F: FileSystem> WalWriter<F> {
    /// Ends the active file after a failure: nothing is ever written to it again.
    pub(super) fn poison(&mut self) {
        self.poisoned_in_a_row = self.poisoned_in_a_row.saturating_add(1);
        self.wear();
        self.retire();
    }

    /// Ends the active file if an earlier call was dropped while it wrote.
    pub(in super::super) fn retire_if_abandoned(&mut self) {
        if std::mem::take(&mut self.write_under_way) {
            self.unsynced.leave_remains();
            self.wear();
            self.retire();
        }
    }

    /// What the active file holds is not known, or may change: it is never another segment's.
    fn wear(&self) {
        if let Some(segment) = &self.segment {
            segment.wear.spoil();
        }
    }

    /// Lets go of the active segment; it ends at what is acknowledged.
    pub(in super::super) fn retire(&mut self) {
        self.active_segment = None;
        self.backlog.ahead().end();
        let Some(segment) = self.segment.take() else {
            return;
        };
        self.unsynced.strand(&segment);
        let extent = segment.extent();
        let cache = self.config.segment_cache.clone();
        self.backlog
            .push(Chore::WriteIndex(Arc::clone(&segment), cache));
        if let Some(source) = &mut self.sidecar_source
            && extent.end_offset > segment.name.base_offset
            && let Some(content) = source(extent.end_offset)
        {
            let end_offset = extent.end_offset;
            let sidecar = Sidecar {
                end_offset,
                content,
            };
            let segment = Arc::clone(&segment);
            self.backlog.push(Chore::WriteSidecar(segment, sidecar));
        }
        self.backlog.push(Chore::ListSealed(Arc::clone(&segment)));
        self.closed.push(ClosedSegment {
            path: segment.path.clone(),
            offsets: segment.name.base_offset..extent.end_offset,
            id: segment.id,
            bytes: extent.bytes,
        });
    }

    /// Goes on in the next segment: the armed successor, or else one that is created now.
    pub(super) async fn go_on(&mut self) -> Result<()> {
        if self.switch() {
            return Ok(());
        }
        self.may_open()?;
        self.open_segment(self.config.segment_ids.draw()).await
    }

    /// Whether the writer opens segments by itself.
    pub(super) fn may_open(&self) -> Result<()> {
        if self.opens == Opens::Itself {
            return Ok(());
        }
        let path = self.place.dir.clone();
        Err(Error::NoSuccessor { path })
    }

    /// Zeroes ahead of the active segment's head, if that is up to the writer and some is wanted.
    pub(super) async fn zero_a_piece(&self) {
        if self.config.maintenance == MaintenanceMode::Inline {
            self.backlog.ahead().zero(&*self.fs, None).await;
        }
    }

    /// Creates the next segment and makes it the active one. Where that fails, the segment before
    /// it stays as it is.
    pub(super) async fn open_segment(&mut self, id: u64) -> Result<()> {
        let base_offset = self.durable_offset();
        let (name, file) = self.create_file(base_offset, id).await?;
        let path = self.place.dir.join(name.file_name());
        if let Err(e) = self.finish_file(&*file, &path).await {
            // Best effort: an empty file that stays is removed when the partition is next opened.
            let _ = self.fs.remove_file(&path).await;
            return Err(e);
        }
        self.begin_segment(id, name, file, None);
        Ok(())
    }

    /// Makes a file that holds a header and nothing else the active segment. It does not have its name
    /// yet if it is `prepared` somewhere.
    ///
    /// There is no await in here: a call that is dropped leaves one segment active or the other, and no
    /// operation under way on the one that takes the next write.
    pub(super) fn begin_segment(
        &mut self,
        id: u64,
        name: SegmentName,
        file: Box<dyn FileHandle>,
        prepared: Option<Origin>,
    ) {
        let ordinal = self.next_ordinal;
        self.next_ordinal = self.next_ordinal.saturating_add(1);
        let bytes = SEGMENT_HEADER_LEN as u64;
        let extent = Extent {
            end_offset: name.base_offset,
            bytes,
        };
        let path = self.place.dir.join(name.file_name());
        let is_prepared = prepared.is_some();
        let recycled = prepared.as_ref().and_then(|origin| origin.recycled);
        let (prepared, zeroed) = prepared.map(|o| (o.path, o.zeroed)).unzip();
        let segment = Segment::new(id, ordinal, name, path, extent)
            .prepared_at(prepared)
            .recycled(recycled);
        let segment = Arc::new(segment.with_index(Index::default()));
        // The manifest lists a segment under the name that it has, durably.
        if is_prepared {
            self.backlog.push(Chore::Name(Arc::clone(&segment)));
        }
        self.fill_active();
        self.state.push(Arc::clone(&segment));
        self.backlog.push(Chore::ListCreated(Arc::clone(&segment)));
        self.zero_ahead(&segment, bytes, zeroed);
        self.active_segment = Some(file);
        self.segment = Some(segment);
        self.segment_base_offset = name.base_offset;
        self.segment_position = bytes;
        self.segment_opened_at = self.clock.now();
        self.segment_age_when_opened = Duration::ZERO;
        self.told_committed = 0;
        self.has_unsynced_write = false;
        self.point_due = self.next_point(bytes);
        self.has_chores = true;
    }

    /// Has the active segment zeroed in front of its head, which is at `position`.
    pub(super) fn zero_ahead(&self, segment: &Arc<Segment>, position: u64, zeroed: Option<Held>) {
        let (end, most) = (self.config.max_segment_bytes, self.config.zero_ahead_bytes);
        if most == 0 {
            return;
        }
        let zone = Zone::new(
            Arc::clone(segment),
            &self.config.zeroing,
            end,
            most,
            position,
        );
        let zone = match zeroed {
            Some(zeroed) => zone.zeroed(zeroed),
            None => zone,
        };
        let zone = match segment.recycled {
            Some(written) => zone.recycled(written),
            None => zone,
        };
        self.backlog.ahead().begin(zone);
    }

    /// Creates a file under the plain name, or with the id in it where an older one has that.
    async fn create_file(
        &mut self,
        base_offset: u64,
        id: u64,
    ) -> Result<(SegmentName, Box<dyn FileHandle>)> {
        let dir = self.place.dir.clone();
        if self.state.segments().is_empty() {
            let made = create_dir_durably(&*self.fs, &dir).await;
            made.map_err(Error::io("create", &dir))?;
        }
        let plain = SegmentName {
            base_offset,
            id: None,
        };
        // A segment that begins here too, not the last one maybe, gets the name only later.
        let segments = self.state.segments();
        let from_here = segments.iter().rev();
        let from_here = from_here.take_while(|s| s.name.base_offset == base_offset);
        let is_given = from_here
            .filter(|s| s.name == plain)
            .any(|s| s.prepared().is_some());
        if !is_given && !self.trash.knows(plain) {
            self.last_attempt = Some(base_offset);
            let path = dir.join(plain.file_name());
            match self.fs.create_new(&path).await {
                Ok(file) => return Ok((plain, file)),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("create", path)(e)),
            }
        }
        let name = SegmentName {
            base_offset,
            id: Some(id),
        };
        let path = dir.join(name.file_name());
        let created = match self.fs.create_new(&path).await {
            // Only an earlier attempt under the same id, which came to nothing, can have left it.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                let removed = self.fs.remove_file(&path).await;
                removed.map_err(Error::io("remove", &path))?;
                self.fs.create_new(&path).await
            }
            created => created,
        };
        Ok((name, created.map_err(Error::io("create", path))?))
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

    /// Lets go of the active segment, all of whose records are durable.
    pub(super) fn fill_active(&mut self) {
        let length = self.segment_position;
        if let (Some(file), Some(segment)) = (self.active_segment.take(), &self.segment) {
            self.backlog.push(Chore::Trim {
                segment: Arc::clone(segment),
                length,
                written_through: Arc::new(Mutex::new(Some(file))),
            });
        }
        self.retire();
    }

    /// Does what is left to be done, if that is up to the writer.
    pub(super) async fn keep_up(&mut self) {
        match self.config.maintenance {
            MaintenanceMode::Handed if self.backlog.len() <= MAX_HANDED => {}
            MaintenanceMode::Inline | MaintenanceMode::Handed => self.do_chores().await,
        }
    }

    /// Does what is left to be done. Nothing waits for it, so a failure is logged and made good with
    /// the next attempt.
    pub(super) async fn do_chores(&mut self) {
        // What failed is logged where it did.
        let _ = self.backlog.run(&self.fs).await;
    }

    /// Seals the active segment and returns what it holds; `None` if there is none, or no record in
    /// it. The next append opens another.
    ///
    /// # Errors
    /// [`Error::Sync`] or [`Error::Write`] if the seal could not be made durable: every acknowledged
    /// record is as durable as before, and the segment takes no further append.
    pub async fn close_active_segment(&mut self) -> Result<Option<ClosedSegment>> {
        self.write_mark(true).await?;
        self.sync_file().await?;
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
        self.fill_active();
        self.keep_up().await;
        // Taken out last: a call that is dropped leaves it to `take_closed`.
        Ok(self.closed.pop())
    }
}
