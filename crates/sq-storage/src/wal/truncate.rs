//! Taking records out of a log, at its end and at its start.
//!
//! Both change the log in memory first and the manifest then, in one step that either took place or
//! did not; no file is touched before. A segment of which a part is left is not written to again: the
//! next append goes to a fresh file. Files of which nothing is left go last ([`Removal`]).

use std::sync::Arc;

use sq_sim::{FileSystem, create_dir_durably};

use super::manifest::{LogStart, MANIFEST_NAME, ManifestContent, ManifestEntry, Truncation};
use super::removal::Removal;
use super::scan::{Walk, Window, stands_at};
use super::segment::SEGMENT_HEADER_LEN;
use super::state::{Extent, Segment};
use super::writer::WalWriter;
use crate::error::{Error, Evidence, Result};
use crate::reserve::is_out_of_space;

/// What is left of a log.
struct Change {
    /// Its segments, those as they are of which a part is cut off.
    left: Vec<Arc<Segment>>,
    removed: Vec<ManifestEntry>,
    /// Those of the removed segments whose files may be written again.
    purged: Vec<Arc<Segment>>,
    start: u64,
    end: u64,
}

impl<F: FileSystem> WalWriter<F> {
    /// Takes every record from `offset` on out of the log: the next one gets that offset. From the
    /// log's end on, there is nothing to do.
    ///
    /// For a log that may have to take back what it holds: that of a Raft group, or a replica's.
    ///
    /// Readers see it at once: the end moves back ([`LogReader::watch`](super::LogReader::watch) shows it), and a read across
    /// the change is made again. When the call returns, it is durable. The files that hold nothing any
    /// more are left to [`removal`](Self::removal).
    ///
    /// # Errors
    /// [`Error::InsideBatch`] and [`Error::BelowStart`] where the log can't end there, and
    /// [`Error::Damaged`] where damage hides whether it can; nothing was changed.
    /// [`Error::Io`] while `next_offset` is as before: nothing was changed; the active segment may have
    /// been closed. [`Error::Io`] once it is `offset`, also if the call was dropped by then: what was
    /// cut off comes back if the process ends now. It does not once this or any other call that changes
    /// the log has succeeded.
    pub async fn truncate_from(&mut self, offset: u64) -> Result<()> {
        self.retire_if_abandoned();
        self.commit().await?;
        self.sync().await?;
        if offset >= self.next_offset {
            return Ok(());
        }
        let start = self.state.start();
        if offset < start {
            return Err(Error::BelowStart { offset, start });
        }
        let cut = self.cut_at(offset).await?;
        self.retire();
        self.do_all_chores().await?;
        let mut change = Change {
            left: Vec::new(),
            removed: Vec::new(),
            purged: Vec::new(),
            start,
            end: offset,
        };
        for segment in self.state.segments().iter() {
            match &cut {
                _ if segment.name.base_offset >= offset => change.remove(segment),
                Some((id, extent)) if segment.id == *id => {
                    change.left.push(Arc::new(segment.cut(*extent)));
                }
                _ => change.left.push(Arc::clone(segment)),
            }
        }
        let cut = cut
            .and_then(|_| change.left.last())
            .map(|s| s.entry(Some(s.seal())));
        let truncation = Truncation {
            offset,
            before_ordinal: self.next_ordinal,
        };
        self.apply(change, |known| {
            known.truncations.push(truncation);
            if let Some(entry) = cut {
                known.set(entry);
            }
        })
        .await;
        self.commit().await
    }

    /// Takes every record below `offset` out of the log, which begins there from now on, also when
    /// nothing is left in it. Below the log's start there is nothing to do. Beyond its end, the log is
    /// empty then and the next record gets `offset`.
    ///
    /// Readers see it at once: they get [`ReadError::OutOfRange`](crate::ReadError::OutOfRange) for what is gone. When the call
    /// returns, it is durable. Whole segments are left to [`removal`](Self::removal), the active one as
    /// well if all of it is gone; where `offset` lies within one, that stays as it is.
    ///
    /// # Errors
    /// [`Error::Io`]: while the log's start is as before, nothing was changed; the active segment may
    /// have been closed. Once it has moved, also if the call was dropped by then, it may be back if the
    /// process ends now. It is not once this or another purge or truncation has succeeded.
    pub async fn purge_to(&mut self, offset: u64) -> Result<()> {
        self.let_go_before(offset, false).await
    }

    /// [`purge_to`](Self::purge_to) that leaves the active segment where it is, also if all of it is
    /// gone: appends go on in it, and wait for no other. Once it is closed it goes with the next purge, or
    /// with [`apply_retention`](Self::apply_retention), whatever that keeps. Beyond the log's end, the log
    /// begins at its end.
    ///
    /// # Errors
    /// As for [`purge_to`](Self::purge_to).
    pub async fn advance_start(&mut self, offset: u64) -> Result<()> {
        self.let_go_before(offset.min(self.next_offset), true).await
    }

    async fn let_go_before(&mut self, offset: u64, keeps_active: bool) -> Result<()> {
        self.retire_if_abandoned();
        self.commit().await?;
        self.sync().await?;
        let start = self.state.start();
        if offset <= start && !self.has_leftovers() {
            return Ok(());
        }
        let offset = offset.max(start);
        if !keeps_active && self.segment.as_ref().is_some_and(|s| is_gone(s, offset)) {
            self.retire();
        }
        if self.state.segments().is_empty() {
            // Nothing was ever appended, and only the manifest can say where the log begins.
            let dir = &self.place.dir;
            let made = create_dir_durably(&*self.fs, dir).await;
            made.map_err(Error::io("create", dir))?;
        }
        self.do_all_chores().await?;
        let mut change = Change {
            left: Vec::new(),
            removed: Vec::new(),
            purged: Vec::new(),
            start: offset,
            end: offset.max(self.next_offset),
        };
        for segment in self.state.segments().iter() {
            if is_gone(segment, offset) && !self.is_active(segment) {
                change.remove(segment);
                change.purged.push(Arc::clone(segment));
            } else {
                change.left.push(Arc::clone(segment));
            }
        }
        self.apply(change, |_| {}).await;
        self.commit().await
    }

    /// Whether segments are listed that took appends when all of them was let go of, and take none now.
    pub(super) fn has_leftovers(&self) -> bool {
        let start = self.state.start();
        let segments = self.state.segments();
        segments
            .iter()
            .any(|segment| is_gone(segment, start) && !self.is_active(segment))
    }

    fn is_active(&self, segment: &Segment) -> bool {
        self.segment.as_ref().is_some_and(|s| s.id == segment.id)
    }

    /// What removes the files that a purge or a truncation left. Files that are still there when the
    /// log is opened next are found again.
    pub fn removal(&self) -> Removal<F> {
        self.removal_through(Arc::clone(&self.fs))
    }

    /// [`removal`](Self::removal) through another file system, as with
    /// [`reader_through`](Self::reader_through).
    pub fn removal_through(&self, fs: Arc<F>) -> Removal<F> {
        let (clock, dir) = (Arc::clone(&self.clock), self.place.dir.clone());
        Removal::new(fs, clock, dir, Arc::clone(&self.trash))
    }

    /// Changes the log, all at once, and what the manifest will say of it.
    async fn apply(&mut self, change: Change, also: impl FnOnce(&mut ManifestContent)) {
        let mut manifest = self.backlog.manifest().await;
        let Change {
            left,
            removed,
            purged,
            start,
            end,
        } = change;
        // Not before: where this is dropped, they stay, and a truncation may take them.
        for segment in &purged {
            self.trash.offer(segment);
        }
        let next_ordinal = self.next_ordinal;
        let moves_start = start > self.state.start() || left.is_empty();
        manifest.change(|known| {
            known.remove(&removed);
            if moves_start {
                known.log_start = Some(LogStart {
                    offset: start,
                    next_ordinal,
                });
            }
            also(known);
        });
        self.trash.reserve(&removed);
        self.closed.retain(|c| c.offsets.start < end);
        for closed in &mut self.closed {
            closed.offsets.end = closed.offsets.end.min(end);
        }
        self.state.remove(left, start..end);
        if end != self.next_offset {
            self.next_offset = end;
            self.segment_base_offset = end;
            self.moved_end = Some(end);
        }
    }

    /// Does what is left to be done, so that nothing of it is about a segment that goes.
    async fn do_all_chores(&self) -> Result<()> {
        let done = self.backlog.run(&self.fs).await;
        match (done, &self.config.reserve) {
            (Err(Error::Io { source, .. }), Some(reserve)) if is_out_of_space(&source) => {
                reserve.give_back().await;
                self.backlog.run(&self.fs).await
            }
            (done, _) => done,
        }
    }

    /// Makes durable what [`apply`](Self::apply) did, if that has not been done yet.
    pub(super) async fn commit(&mut self) -> Result<()> {
        let mut manifest = self.backlog.manifest().await;
        let mut committed = manifest.commit(&self.fs).await;
        if let (Err(e), Some(reserve)) = (&committed, &self.config.reserve)
            && is_out_of_space(e)
        {
            // This is what makes room on a full disk.
            reserve.give_back().await;
            committed = manifest.commit(&self.fs).await;
        }
        committed.map_err(Error::io("write", manifest.dir().join(MANIFEST_NAME)))?;
        self.moved_end = None;
        Ok(())
    }

    /// Where the segment ends of which a part is cut off, if the log is to end at `offset`; `None` if
    /// that is where a segment begins.
    async fn cut_at(&self, offset: u64) -> Result<Option<(u64, Extent)>> {
        let segments = self.state.segments();
        let holds =
            |s: &&Arc<Segment>| s.name.base_offset < offset && s.extent().end_offset > offset;
        let Some(segment) = segments.iter().rev().find(holds) else {
            return Ok(None);
        };
        let bytes = end_of(&*self.fs, segment, offset).await?;
        let end_offset = offset;
        Ok(Some((segment.id, Extent { end_offset, bytes })))
    }
}

/// Whether nothing is left of a segment in a log that begins at `start`.
fn is_gone(segment: &Segment, start: u64) -> bool {
    segment.name.base_offset < start && segment.extent().end_offset <= start
}

impl Change {
    fn remove(&mut self, segment: &Segment) {
        self.removed.push(segment.entry(Some(segment.seal())));
    }
}

/// The position in a segment behind its last record below `offset`, which it holds.
///
/// It waits for no reader, and for none of what they open.
async fn end_of<F: FileSystem>(fs: &F, segment: &Segment, offset: u64) -> Result<u64> {
    let path = &segment.path;
    let opened = segment.open_read_only(fs).await;
    let file = opened.map_err(Error::io("open", path))?;
    let known = segment.in_live_index(|index| index.before_offset(offset));
    let start = (segment.name.base_offset, SEGMENT_HEADER_LEN as u64);
    let extent = segment.extent();
    let (first, position) = match known.flatten() {
        // What a recovery point said may be wrong.
        Some(place) if place.1 < segment.points.told_below() => {
            let is_there = stands_at(&*file, extent.bytes, segment.id, place).await;
            let is_there = is_there.map_err(Error::io("read", path))?;
            if is_there { place } else { start }
        }
        known => known.unwrap_or(start),
    };
    let window = Window::new(&*file, extent.bytes);
    let mut walk = Walk::from(window, position, Some(segment.id), first);
    loop {
        if walk.expected.offset == offset {
            return Ok(walk.position);
        }
        let position = walk.position;
        match walk.next().await.map_err(Error::io("read", path))? {
            Ok((_, frame)) if frame.header.end_offset() > offset => {
                let batch = frame.header.base_offset..frame.header.end_offset();
                return Err(Error::InsideBatch { offset, batch });
            }
            Ok(_) => {}
            Err(stop) => {
                let damage = Error::Damaged {
                    path: path.clone(),
                    position,
                    offset: walk.expected.offset,
                    reason: stop.reason(),
                    evidence: Evidence::Readable(extent.end_offset),
                };
                let found = walk.skip().await.map_err(Error::io("read", path))?;
                if !found || walk.expected.offset > offset {
                    return Err(damage);
                }
            }
        }
    }
}
