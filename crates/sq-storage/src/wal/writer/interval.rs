//! Acknowledged first, synced a moment later: what is kept in between.

use std::sync::Arc;

use sq_sim::{FileSystem, Instant};

use super::super::config::{MAX_UNSYNCED_BYTES, SyncPolicy};
use super::super::framed::{FrameContent, Framed};
use super::super::state::{Extent, Segment};
use super::WalWriter;
use crate::error::Result;

/// Frames that are acknowledged and not known to be durable, in the order of their offsets.
#[derive(Default)]
pub(super) struct Unsynced {
    frames: Vec<FrameContent>,
    bytes: u64,
    /// What is durable of the segment that they were written to.
    durable: Option<Extent>,
    /// When the first was acknowledged.
    since: Option<Instant>,
    /// That segment is lost: they have to be written to another.
    stranded: bool,
    /// From the next offset on, a write that failed or was dropped may have left frames on the disk: in this
    /// file, where the cut after it is not durable, or in the one before it.
    has_remains: bool,
}

impl Unsynced {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// They are durable.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frames were written at `now`; `durable` is what the segment held before, if these are the
    /// first.
    pub(super) fn add<'a, B: Framed + 'a>(
        &mut self,
        frames: impl Iterator<Item = &'a B>,
        durable: Extent,
        now: Instant,
    ) {
        self.durable.get_or_insert(durable);
        self.since.get_or_insert(now);
        for frame in frames {
            self.bytes += frame.frame_len() as u64;
            self.frames.push(FrameContent::of(frame));
        }
    }

    /// A write failed or was dropped. The next one is synced: until then a power loss may bring back a frame that
    /// was refused in the place of one that was acknowledged, and have those that follow that one follow it.
    pub(super) fn leave_remains(&mut self) {
        #[cfg(feature = "mutants")]
        if super::super::mutants::lacks(super::super::mutants::Guard::RefusalSync) {
            return;
        }
        self.has_remains = true;
    }

    /// The segment that they were written to takes no further write, and may not hold them.
    pub(super) fn strand(&mut self, segment: &Segment) {
        if let Some(durable) = self.durable
            && !self.frames.is_empty()
        {
            self.stranded = true;
            segment.cut_back(durable);
        }
    }
}

impl<F: FileSystem> WalWriter<F> {
    /// Everything below this offset is durable.
    pub fn durable_offset(&self) -> u64 {
        match self.unsynced.durable {
            Some(durable) if !self.unsynced.is_empty() => durable.end_offset,
            _ => self.next_offset,
        }
    }

    /// Since when something has been acknowledged without being durable
    /// ([`SyncPolicy::Every`]); `None` if everything is durable.
    pub fn unsynced_since(&self) -> Option<Instant> {
        self.unsynced.since
    }

    /// Whether the write of another `bytes` is to be synced.
    pub(super) fn syncs_now(&self, bytes: u64) -> bool {
        let SyncPolicy::Every(interval) = self.config.sync else {
            return true;
        };
        let is_due = |since| self.clock.now().saturating_duration_since(since) >= interval;
        self.unsynced.has_remains
            || self.unsynced.since.is_some_and(is_due)
            || self.unsynced.bytes + bytes > MAX_UNSYNCED_BYTES
    }

    /// Makes everything durable that was acknowledged. Does nothing under [`SyncPolicy::Always`].
    ///
    /// If the sync fails, that file takes no further write, and what it may have lost is written to a
    /// fresh one; so a sync that returns an error has lost nothing, and is to be called again.
    ///
    /// # Errors
    /// What was acknowledged is in memory only, in part; [`Error::action`](crate::Error::action) says
    /// what to do.
    pub async fn sync(&mut self) -> Result<()> {
        self.retire_if_abandoned();
        self.settle_unsynced(true).await
    }

    /// Writes what is stranded anew, and makes the rest durable where that is wanted.
    pub(super) async fn settle_unsynced(&mut self, all: bool) -> Result<()> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        if all && !self.unsynced.stranded && self.sync_file().await.is_ok() {
            self.unsynced.clear();
            if self.segment_position >= self.point_due {
                self.reach_point();
            }
        }
        self.rescue().await
    }

    /// Writes what is stranded anew if that is possible now; the next append or sync tries again.
    pub(super) async fn rescue_unsynced(&mut self) {
        if let Err(error) = self.rescue().await {
            let (dir, from) = (self.place.dir.display(), self.durable_offset());
            tracing::error!(%dir, from, %error, "acknowledged records are in memory only");
        }
    }

    async fn rescue(&mut self) -> Result<()> {
        while self.unsynced.stranded {
            let base_offset = self.durable_offset();
            if self.active_segment.is_none() {
                self.check_writable()?;
                if !self.begin_armed(base_offset) {
                    self.may_open()?;
                    self.open_segment(self.config.segment_ids.draw()).await?;
                }
                let segment = self.segment.as_ref();
                self.unsynced.durable = segment.map(|segment| segment.extent());
            }
            let mut group = self.group(&self.unsynced.frames, base_offset)?;
            if !self
                .backlog
                .make_way(self.segment_position + group.bytes)
                .await
            {
                self.fill_active();
                continue;
            }
            let Some(segment) = self.segment.as_ref().map(Arc::clone) else {
                return Ok(());
            };
            self.write(&mut group.buffers, group.bytes, true).await?;
            segment.note(&group.headers);
            let extent = Extent {
                end_offset: group.end_offset,
                bytes: self.segment_position,
            };
            segment.extend(extent);
            self.told_committed = group.committed_before;
            self.poisoned_in_a_row = 0;
            self.unsynced.frames.drain(..group.count);
            self.unsynced.durable = Some(extent);
            if self.unsynced.is_empty() {
                self.unsynced.clear();
            }
        }
        Ok(())
    }
}
