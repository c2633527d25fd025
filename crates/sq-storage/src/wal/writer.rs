//! The writer of a partition's log.

mod file;
mod interval;
mod layout;
mod opening;
mod points;
mod roll;
mod switch;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sq_sim::{Clock, FileHandle, FileSystem};
use tokio::time::Instant;

use interval::Unsynced;

use super::batch::{ActiveSegment, Batch, ClosedSegment};
use super::config::{Rotation, WalConfig};
use super::framed::{FrameContent, Framed};
use super::maintenance::{Backlog, Chore, Maintenance};
use super::prepared::Prepared;
use super::reader::LogReader;
use super::recovery::{Place, RecoveryReport};
use super::removal::Trash;
use super::sidecar::SidecarSource;
use super::state::{Extent, LogState, Segment};
use super::written::Written;
use crate::error::{Error, Result};
use crate::frame::FRAME_HEADER_LEN;
use crate::record::{Header, Record, encode_record};
use crate::topic::TopicName;

/// The one writer of a partition's log.
///
/// An offset is handed out only once its record is durable. An append that fails has appended
/// nothing: the next one gets the same offset. A failed sync, and a call whose future was dropped
/// while a write was under way, end the file; the next append goes to a fresh one.
///
/// Two writers on one partition at a time would destroy each other's work: lock the data directory.
/// For the same reason, open a partition again within a process only once no dropped call's operation
/// can still be under way: where a file system has threads of its own, such an operation goes on.
pub struct WalWriter<F: FileSystem> {
    pub(super) fs: Arc<F>,
    pub(super) config: WalConfig,
    topic: TopicName,
    partition: u32,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) place: Place,
    active_segment: Option<Box<dyn FileHandle>>,
    pub(super) segment_base_offset: u64,
    /// Where the next frame starts, in bytes.
    segment_position: u64,
    pub(super) next_offset: u64,
    segment_opened_at: Instant,
    /// How old the segment already was then, from before a restart.
    segment_age_when_opened: Duration,
    /// What the readers see of the active segment.
    pub(super) segment: Option<Arc<Segment>>,
    /// The highest `committed_before` that a frame of the active segment says.
    told_committed: u64,
    /// Something was written that no sync covers yet.
    has_unsynced_write: bool,
    /// What is acknowledged and may not be durable yet.
    unsynced: Unsynced,
    /// A write is under way; still set at the next call, it was dropped and its fate is unknown.
    write_under_way: bool,
    pub(super) closed: Vec<ClosedSegment>,
    /// The successor that is ready.
    armed: Option<Prepared<F>>,
    opens: Opens,
    /// The base of the last file that was created, or was about to be.
    last_attempt: Option<u64>,
    /// The bases of files that opening left and that are no part of the log.
    leftover_bases: BTreeSet<u64>,
    /// Chores were left that were not looked at yet.
    has_chores: bool,
    /// Once so much of the active segment is durable, a recovery point is wanted.
    point_due: u64,
    pub(super) next_ordinal: u32,
    poisoned_in_a_row: u32,
    /// When the log was opened, by either clock.
    pub(super) opened_at: Instant,
    pub(super) opened_ms: u64,
    pub(super) backlog: Arc<Backlog>,
    pub(super) trash: Arc<Trash>,
    /// Where the end was moved to, which only the manifest can say: until it does, nothing is appended.
    pub(super) moved_end: Option<u64>,
    pub(super) state: Arc<LogState>,
    /// Where the sidecars of segments that end come from.
    sidecar_source: Option<SidecarSource>,
    report: RecoveryReport,
}

impl<F: FileSystem> WalWriter<F> {
    /// The topic.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The partition.
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// The directory that holds the partition's files.
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// The offset that the next record will get.
    pub fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// How the log is kept.
    pub fn config(&self) -> &WalConfig {
        &self.config
    }

    /// The segment that the next append goes to, if it is there already.
    pub fn active_segment(&self) -> Option<ActiveSegment> {
        // A write that was dropped half-way has ended it.
        let segment = self.segment.as_ref().filter(|_| !self.write_under_way)?;
        Some(ActiveSegment {
            id: segment.id,
            base_offset: self.segment_base_offset,
            bytes: self.segment_position,
            age: self.segment_age(),
        })
    }

    /// How old the active segment is.
    fn segment_age(&self) -> Duration {
        let now = self.clock.now();
        let open_for = now.saturating_duration_since(self.segment_opened_at);
        open_for.saturating_add(self.segment_age_when_opened)
    }

    /// The clock that the log goes by.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// What opening the partition found and did.
    pub fn recovery_report(&self) -> &RecoveryReport {
        &self.report
    }

    /// A reader of this log, which follows what the writer appends.
    pub fn reader(&self) -> LogReader<F> {
        LogReader::new(Arc::clone(&self.fs), Arc::clone(&self.state))
    }

    /// [`reader`](Self::reader) that reads through another file system: where the writer's blocks the
    /// thread it is called on, a reader may need one that does not.
    pub fn reader_through(&self, fs: Arc<F>) -> LogReader<F> {
        LogReader::new(fs, Arc::clone(&self.state))
    }

    /// What this writer leaves to be done behind its appends.
    pub fn maintenance(&self) -> Maintenance<F> {
        self.maintenance_through(Arc::clone(&self.fs))
    }

    /// [`maintenance`](Self::maintenance) through another file system, as with
    /// [`reader_through`](Self::reader_through).
    pub fn maintenance_through(&self, fs: Arc<F>) -> Maintenance<F> {
        Maintenance::new(fs, Arc::clone(&self.backlog), Arc::clone(&self.clock))
    }

    /// Has a sidecar written behind the end of each segment from now on. `source` is called with the
    /// offset at which the segment ends, before anything behind that is acknowledged, and gives what the
    /// layer above knows of all records below it: [`Sidecar`](super::Sidecar). `None` where it stands
    /// elsewhere, or has nothing to say. The append that goes on to the next segment waits for the call,
    /// and not for what is done with its result.
    pub fn set_sidecar_source(
        &mut self,
        source: impl FnMut(u64) -> Option<Bytes> + Send + Sync + 'static,
    ) {
        self.sidecar_source = Some(Box::new(source));
    }

    /// The segments that were closed since the last call, by rotation or by a failure. They are kept
    /// until they are taken.
    pub fn take_closed(&mut self) -> Vec<ClosedSegment> {
        std::mem::take(&mut self.closed)
    }

    /// Lifts the read-only state that several failed files in a row bring about.
    pub fn allow_writes(&mut self) {
        self.poisoned_in_a_row = 0;
    }

    /// Appends one record and returns its offset once it is durable.
    ///
    /// `timestamp_ms` counts from the Unix epoch.
    ///
    /// # Errors
    /// Nothing was appended; [`Error::action`] says what to do.
    pub async fn append(
        &mut self,
        key: Option<&[u8]>,
        value: &[u8],
        headers: &[Header],
        timestamp_ms: u64,
    ) -> Result<u64> {
        let body = encode_record(key, Some(value), headers)?;
        self.append_encoded(body, timestamp_ms).await
    }

    /// Appends one record, whose value may be null, and returns its offset once it is durable.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub async fn append_record(&mut self, record: &Record, timestamp_ms: u64) -> Result<u64> {
        self.append_encoded(record.encode()?, timestamp_ms).await
    }

    async fn append_encoded(&mut self, body: Bytes, timestamp_ms: u64) -> Result<u64> {
        let max_timestamp_ms =
            i64::try_from(timestamp_ms).map_err(|_| Error::Timestamp(timestamp_ms))?;
        let offset = self.next_offset;
        let record = FrameContent::record(body, max_timestamp_ms, None);
        self.append_frames(&[record]).await?;
        Ok(offset)
    }

    /// Appends as many of `batches`, from the first on, as go into one segment with one write and
    /// one sync, and returns how many that were: at least one, unless `batches` is empty.
    ///
    /// Their offsets are consecutive from [`next_offset`](Self::next_offset) on.
    ///
    /// # Errors
    /// Nothing was appended; [`Error::action`] says what to do.
    pub async fn append_batches(&mut self, batches: &[Batch]) -> Result<usize> {
        self.append_frames(batches).await
    }

    /// [`append_batches`](Self::append_batches) for whatever becomes frames.
    pub(crate) async fn append_frames<B: Framed + Sync>(&mut self, frames: &[B]) -> Result<usize> {
        let reserve = self.config.reserve.clone();
        if let Some(reserve) = &reserve {
            reserve.restore().await?;
        }
        let appended = self.append_now(frames).await;
        if matches!(&appended, Err(error) if error.is_out_of_space()) {
            self.trash.give_up_spares();
            if let Some(reserve) = &reserve {
                reserve.give_back().await;
            }
        }
        appended
    }

    async fn append_now<B: Framed + Sync>(&mut self, frames: &[B]) -> Result<usize> {
        let Some(first) = frames.first() else {
            return Ok(0);
        };
        self.check(first, self.next_offset)?;
        self.retire_if_abandoned();
        if self.moved_end.is_some() {
            self.commit().await?;
        }
        self.check_writable()?;
        self.settle_unsynced(self.is_full_for(first)).await?;
        if self.active_segment.is_none() || self.is_full_for(first) {
            self.go_on().await?;
        }
        if std::mem::take(&mut self.has_chores) {
            self.keep_up().await;
        }
        self.zero_a_piece().await;
        let mut group = loop {
            let group = self.group(frames, self.next_offset)?;
            let end = self.segment_position + group.bytes;
            if self.backlog.make_way(end).await {
                break group;
            }
            self.settle_unsynced(true).await?;
            self.fill_active();
            self.go_on().await?;
        };
        let Some(segment) = self.segment.clone() else {
            return Ok(0);
        };
        let (durable, sync) = (segment.extent(), self.syncs_now(group.bytes));
        if let Err(error) = self.write(&mut group.buffers, group.bytes, sync).await {
            self.rescue_unsynced().await;
            return Err(error);
        }
        segment.note(&group.headers);
        if sync {
            self.unsynced.clear();
        } else {
            let written = frames.iter().take(group.count);
            self.unsynced.add(written, durable, self.clock.now());
        }
        self.told_committed = group.committed_before;
        self.next_offset = group.end_offset;
        self.poisoned_in_a_row = 0;
        let bytes = self.segment_position;
        let extent = Extent {
            end_offset: self.next_offset,
            bytes,
        };
        segment.append(extent, self.clock.now());
        if self.state.tail().is_on() {
            let written = Written::new(group.buffers, group.headers, group.bytes);
            self.state.tail().push(written);
        }
        self.state.publish(self.next_offset);
        if self.segment_position >= self.point_due {
            self.reach_point();
        }
        Ok(group.count)
    }

    fn check_writable(&self) -> Result<()> {
        let (path, poisoned_in_a_row) = (self.place.dir.clone(), self.poisoned_in_a_row);
        if poisoned_in_a_row < self.config.max_poisoned_in_a_row {
            return Ok(());
        }
        Err(Error::ReadOnly {
            path,
            poisoned_in_a_row,
        })
    }

    /// Whether a frame can be appended at `offset` at all.
    fn check<B: Framed>(&self, frame: &B, offset: u64) -> Result<()> {
        let (bytes, limit) = (frame.frame_len(), self.config.max_frame_bytes);
        if bytes > limit {
            return Err(Error::TooLarge { bytes, limit });
        }
        let records = frame.summary().record_count;
        if records == 0 {
            return Err(Error::EmptyBatch);
        }
        match offset.checked_add(u64::from(records)) {
            Some(_) => Ok(()),
            None => Err(Error::OffsetsExhausted(offset)),
        }
    }

    /// Whether the active segment has to be closed before `frame`.
    fn is_full_for<B: Framed>(&self, frame: &B) -> bool {
        if self.config.rotation == Rotation::External || self.segment_is_empty() {
            return false;
        }
        self.segment_age() >= self.config.max_segment_age
            || !self.has_room(self.segment_position, frame.frame_len())
    }

    fn segment_is_empty(&self) -> bool {
        self.segment_base_offset == self.next_offset
    }

    /// Whether a frame at `position` leaves the segment within its size, and room for a mark.
    fn has_room(&self, position: u64, frame_len: usize) -> bool {
        let len = (frame_len + FRAME_HEADER_LEN) as u64;
        position.saturating_add(len) <= self.config.max_segment_bytes
    }

    /// Closes the log: everything acknowledged is marked as committed, durably. The segment goes on
    /// as the active one when the partition is opened again.
    ///
    /// # Errors
    /// [`Error::Sync`] or [`Error::Write`]: opening will recover as after a crash. Every
    /// acknowledged record is as durable as before.
    pub async fn close(mut self) -> Result<()> {
        self.write_mark(true).await?;
        self.sync_file().await?;
        // An armed successor is removed as a chore.
        self.armed = None;
        while let Some(spare) = self.trash.take_spare() {
            self.backlog.push(Chore::Discard(spare.path().to_owned()));
            spare.used();
        }
        self.do_chores().await;
        self.backlog.end();
        self.commit().await
    }

    /// Lets go of a log that nobody will open again: makes nothing durable, and returns when
    /// [`Maintenance`] has nothing more under way in its directory.
    pub async fn abandon(mut self) {
        self.let_go().await;
    }

    /// [`abandon`](Self::abandon) for whoever writes through something that has the writer. Nothing but
    /// dropping it may follow.
    pub async fn let_go(&mut self) {
        self.backlog.end_and_settle().await;
        self.trash.end_and_settle().await;
    }
}

impl<F: FileSystem> Drop for WalWriter<F> {
    fn drop(&mut self) {
        // Whoever opens the partition next must not meet what this writer left to be done.
        self.backlog.end();
        self.trash.end();
    }
}

impl<F: FileSystem> std::fmt::Debug for WalWriter<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalWriter")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("segment_base_offset", &self.segment_base_offset)
            .field("segment_position", &self.segment_position)
            .field("next_offset", &self.next_offset)
            .finish_non_exhaustive()
    }
}

/// Who opens segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opens {
    /// The writer, where it finds no armed successor.
    Itself,
    /// Whoever holds it.
    OnlyTold,
}
