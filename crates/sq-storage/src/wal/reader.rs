//! Reading a partition's log, beside its writer.

mod places;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use sq_sim::FileSystem;
use tokio::sync::watch;

use super::index::Index;
use super::manifest::SegmentTimes;
use super::payload::Payload;
use super::scan::{Walk, Window};
use super::state::{Extent, LogState, Segment};
use crate::error::{Error, Evidence, ReadError};
use crate::frame::{FRAME_HEADER_LEN, Frame, FrameHeader, FrameKind};

/// How much more than asked for is read at once, in bytes, to reach the first frame wanted from the
/// nearest one whose place is known.
const READ_AHEAD_LEN: usize = 40 * 1024;

/// What a frame is taken to carry, in bytes, where it is not known yet.
const USUAL_LEN: usize = 1024;

/// The most frames for which room is made at once in an answer.
const MAX_RESERVED: usize = 2048;

/// A frame as it is stored, with its checksum verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFrame {
    /// The offset of its first record.
    pub base_offset: u64,
    /// How many offsets it takes.
    pub record_count: u32,
    /// The greatest timestamp of its records in milliseconds since the epoch, -1 for none.
    pub max_timestamp_ms: i64,
    /// The wall clock at its append, milliseconds since the epoch.
    pub append_time_ms: u64,
    /// The epoch of the leader that appended it.
    pub leader_epoch: u32,
    /// Whether the payload is a record of [`crate::record`] or an opaque batch.
    pub kind: FrameKind,
    /// What was appended, byte for byte.
    pub payload: Payload,
}

impl StoredFrame {
    /// The offset behind its last record.
    pub fn end_offset(&self) -> u64 {
        self.base_offset
            .saturating_add(u64::from(self.record_count))
    }
}

impl StoredFrame {
    pub(super) fn new(header: &FrameHeader, payload: Payload) -> Self {
        Self {
            base_offset: header.base_offset,
            record_count: header.record_count,
            max_timestamp_ms: header.max_timestamp_ms,
            append_time_ms: header.append_time_ms,
            leader_epoch: header.leader_epoch,
            kind: header.kind,
            payload,
        }
    }
}

impl From<Frame> for StoredFrame {
    fn from(frame: Frame) -> Self {
        Self::new(&frame.header, frame.body.into())
    }
}

/// A segment as [`LogReader::segments`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its file.
    pub path: PathBuf,
    /// Its id.
    pub id: u64,
    /// The offset of its first record.
    pub base_offset: u64,
    /// The offset behind its last readable record.
    pub end_offset: u64,
    /// The bytes up to there.
    pub bytes: u64,
}

/// A reader of a partition's log. It sees what is durable, as soon as it is. Cheap to clone.
#[derive(Debug)]
pub struct LogReader<F: FileSystem> {
    fs: Arc<F>,
    state: Arc<LogState>,
}

impl<F: FileSystem> Clone for LogReader<F> {
    fn clone(&self) -> Self {
        Self {
            fs: Arc::clone(&self.fs),
            state: Arc::clone(&self.state),
        }
    }
}

impl<F: FileSystem> LogReader<F> {
    pub(super) fn new(fs: Arc<F>, state: Arc<LogState>) -> Self {
        Self { fs, state }
    }

    pub(super) fn fs(&self) -> &Arc<F> {
        &self.fs
    }

    pub(super) fn state(&self) -> &LogState {
        &self.state
    }

    /// The first offset that the log still holds, or would hold.
    pub fn start_offset(&self) -> u64 {
        self.state.start()
    }

    /// The offset behind the last durable record.
    pub fn end_offset(&self) -> u64 {
        self.state.end()
    }

    /// Follows [`end_offset`](Self::end_offset). The channel closes with the last handle of the log.
    ///
    /// The end moves back where the log is truncated. A value that was overtaken is not seen, so whoever
    /// has to know of every truncation is told by whoever truncates.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.state.subscribe()
    }

    /// Waits until the log holds the record at `offset`, or is truncated below it: then a read there
    /// answers [`ReadError::OutOfRange`].
    pub async fn wait_for(&self, offset: u64) {
        let mut watch = self.watch();
        let removals = self.state.removals();
        loop {
            let end = *watch.borrow_and_update();
            let is_cut_off = end < offset && self.state.removals() != removals;
            // The sender lives in the state that this reader shares, so the channel can't close.
            if end > offset || is_cut_off || watch.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads once more what was read while something was taken out of the log: it may be of two logs, or
    /// an error that is none, of a file that is being removed.
    async fn undisturbed<T, Attempt>(&self, attempt: impl Fn() -> Attempt) -> T
    where
        Attempt: Future<Output = T>,
    {
        loop {
            let before = self.state.removals();
            let read = attempt().await;
            // Odd while it is under way.
            if before.is_multiple_of(2) && self.state.removals() == before {
                return read;
            }
        }
    }

    /// The segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let segments = self.state.segments();
        let info = |s: &Arc<Segment>| {
            let Extent { end_offset, bytes } = s.extent();
            let (path, base_offset) = (s.current_path(), s.name.base_offset);
            SegmentInfo {
                path,
                id: s.id,
                base_offset,
                end_offset,
                bytes,
            }
        };
        segments.iter().map(info).collect()
    }

    /// The frames from the one that holds `offset` on, as many whole ones as fit `max_bytes` of
    /// payload, but always the first. At the log's end there are none.
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`] below the start and above the end, [`ReadError::Damaged`] if the
    /// frame that holds `offset` can't be read back (damage behind it ends the answer before it),
    /// [`ReadError::Io`] if the file system fails.
    pub async fn read(&self, offset: u64, max_bytes: usize) -> Result<Vec<StoredFrame>, ReadError> {
        self.undisturbed(|| self.read_once(offset, max_bytes)).await
    }

    async fn read_once(
        &self,
        offset: u64,
        max_bytes: usize,
    ) -> Result<Vec<StoredFrame>, ReadError> {
        let (start, end) = (self.start_offset(), self.end_offset());
        if offset < start || offset > end {
            return Err(ReadError::OutOfRange { offset, start, end });
        }
        let mut frames = Vec::new();
        let mut next = offset;
        let mut left = max_bytes;
        while next < end && (frames.is_empty() || left > 0) {
            let before = frames.len();
            if !self.state.tail().read(next, end, &mut left, &mut frames) {
                // What is in memory is read from there, as far as it still is by then.
                let end = self
                    .state
                    .tail()
                    .start()
                    .map_or(end, |start| end.min(start));
                let read = self.read_file(next, end, &mut left, &mut frames).await;
                match read {
                    Err(e) if frames.is_empty() => return Err(e),
                    Err(_) => break,
                    Ok(()) => {}
                }
            }
            if frames.len() == before {
                break;
            }
            next = frames.last().map_or(end, StoredFrame::end_offset);
        }
        Ok(frames)
    }

    /// The first offset at or behind `offset` that can be read, past what is damaged; the log's end if
    /// there is none.
    ///
    /// # Errors
    /// As for [`read`](Self::read), but for damage.
    pub async fn skip_damage(&self, mut offset: u64) -> Result<u64, ReadError> {
        while offset < self.end_offset() {
            match self.read(offset, 0).await {
                Ok(_) => return Ok(offset),
                Err(ReadError::Damaged(_)) => {}
                Err(e) => return Err(e),
            }
            let segments = self.state.segments();
            let later = segments
                .iter()
                .map(|s| s.name.base_offset)
                .find(|base| *base > offset);
            let within = match self.segment_at(offset) {
                // A file that is missing or can't be read has no place to go on from.
                Some(segment) => self.next_behind(&segment, offset).await.unwrap_or(None),
                None => None,
            };
            offset = within.or(later).unwrap_or_else(|| self.end_offset());
        }
        Ok(self.end_offset())
    }

    /// The first frame whose greatest timestamp is at least `timestamp_ms`; `None` if there is none.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub async fn find_by_timestamp(
        &self,
        timestamp_ms: i64,
    ) -> Result<Option<StoredFrame>, ReadError> {
        self.undisturbed(|| self.find_by_timestamp_once(timestamp_ms))
            .await
    }

    async fn find_by_timestamp_once(
        &self,
        timestamp_ms: i64,
    ) -> Result<Option<StoredFrame>, ReadError> {
        let end = self.end_offset();
        for segment in self.state.segments().iter() {
            let is_before = |times: SegmentTimes| times.max_timestamp_ms < timestamp_ms;
            if segment.times().is_some_and(is_before) {
                continue;
            }
            let found = self.find_in(segment, timestamp_ms, end).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The first frame of a segment with such a timestamp, past what is damaged.
    async fn find_in(
        &self,
        segment: &Segment,
        timestamp_ms: i64,
        end: u64,
    ) -> Result<Option<StoredFrame>, ReadError> {
        let start = self.start_offset();
        let opened = match self.open(segment).await {
            // What is missing hides nothing else.
            Err(ReadError::Damaged(_)) => return Ok(None),
            opened => opened?,
        };
        let look = |index: &Index| index.before_timestamp(timestamp_ms);
        let Some((offset, position)) = self.place(segment, &opened, look).await? else {
            return Ok(None);
        };
        let window = Window::new(&*opened.file, segment.extent().bytes);
        let mut walk = Walk::from(window, position, Some(segment.id), offset);
        loop {
            let found = match self.step(&mut walk, segment, end).await {
                Err(ReadError::Damaged(_)) if walk.skip().await.map_err(read_error(segment))? => {
                    continue;
                }
                Ok(None) | Err(ReadError::Damaged(_)) => return Ok(None),
                Ok(Some((_, frame))) => frame,
                Err(e) => return Err(e),
            };
            let FrameHeader {
                record_count,
                max_timestamp_ms,
                ..
            } = found.header;
            let is_there = record_count > 0 && found.header.end_offset() > start;
            if is_there && max_timestamp_ms >= timestamp_ms {
                return Ok(Some(found.into()));
            }
        }
    }

    /// Where the first frame of a segment behind `offset` begins, past what is damaged.
    async fn next_behind(&self, segment: &Segment, offset: u64) -> Result<Option<u64>, ReadError> {
        let end = segment.extent().end_offset;
        let opened = self.open(segment).await?;
        let mut walk = self
            .walk_to(segment, &opened, offset, READ_AHEAD_LEN)
            .await?;
        loop {
            match self.step(&mut walk, segment, end).await {
                Err(ReadError::Damaged(_)) if walk.skip().await.map_err(read_error(segment))? => {}
                Ok(Some((_, Frame { header, .. }))) => {
                    if header.base_offset > offset && header.record_count > 0 {
                        return Ok(Some(header.base_offset));
                    }
                }
                Ok(None) | Err(ReadError::Damaged(_)) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// The first frame with the greatest timestamp of the log; `None` if the log is empty.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub async fn find_max_timestamp(&self) -> Result<Option<StoredFrame>, ReadError> {
        self.undisturbed(|| self.find_max_timestamp_once()).await
    }

    async fn find_max_timestamp_once(&self) -> Result<Option<StoredFrame>, ReadError> {
        // A seal can say too much: then indexes alone tell, and frames, where the log begins within a
        // segment.
        for trusts_seals in [true, false] {
            let start = self.start_offset();
            let mut greatest = None;
            for segment in self.state.segments().iter() {
                let of_segment = match segment.times().filter(|_| trusts_seals) {
                    Some(times) => Some(times.max_timestamp_ms),
                    None if segment.name.base_offset < start => {
                        self.max_timestamp_from(segment, start).await?
                    }
                    None => self.max_timestamp(segment).await?,
                };
                greatest = greatest.max(of_segment);
            }
            let Some(timestamp_ms) = greatest else {
                return Ok(None);
            };
            if let Some(found) = self.find_by_timestamp_once(timestamp_ms).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The greatest timestamp of a segment's records from `start` on.
    async fn max_timestamp_from(
        &self,
        segment: &Segment,
        start: u64,
    ) -> Result<Option<i64>, ReadError> {
        let opened = match self.open(segment).await {
            // What is missing hides nothing else.
            Err(ReadError::Damaged(_)) => return Ok(None),
            opened => opened?,
        };
        let end = segment.extent().end_offset;
        let mut greatest = None;
        let mut walk = self.walk_to(segment, &opened, start, usize::MAX).await?;
        loop {
            match self.step(&mut walk, segment, end).await {
                Err(ReadError::Damaged(_)) if walk.skip().await.map_err(read_error(segment))? => {}
                Ok(Some((_, Frame { header, .. }))) => {
                    if header.record_count > 0 && header.end_offset() > start {
                        greatest = greatest.max(Some(header.max_timestamp_ms));
                    }
                }
                Ok(None) | Err(ReadError::Damaged(_)) => return Ok(greatest),
                Err(e) => return Err(e),
            }
        }
    }

    /// The segment that holds `offset`: the last that begins at or before it and holds a record.
    fn segment_at(&self, offset: u64) -> Option<Arc<Segment>> {
        let segments = self.state.segments();
        let behind = segments.partition_point(|s| s.name.base_offset <= offset);
        let candidates = segments.get(..behind)?;
        candidates
            .iter()
            .rev()
            .find(|s| s.extent().end_offset > offset)
            .cloned()
    }

    /// Adds frames from the file that holds `offset`, of those that begin below `end`.
    async fn read_file(
        &self,
        offset: u64,
        end: u64,
        left: &mut usize,
        frames: &mut Vec<StoredFrame>,
    ) -> Result<(), ReadError> {
        let Some(segment) = self.segment_at(offset) else {
            return Ok(());
        };
        let segment = &*segment;
        let end = segment.extent().end_offset.min(end);
        let opened = self.open(segment).await?;
        let to_the_first = match opened.place(offset) {
            Some(_) => 0,
            None => READ_AHEAD_LEN,
        };
        let piece = piece_len(*left, USUAL_LEN).saturating_add(to_the_first);
        let mut walk = self.walk_to(segment, &opened, offset, piece).await?;
        while walk.expected.offset < end {
            let (position, frame) = match walk.next_frame_held() {
                Some(found) => found,
                None if self.is_too_long(&mut walk, segment, *left, frames).await? => {
                    *left = 0;
                    break;
                }
                None => match self.step(&mut walk, segment, end).await {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    // What is damaged may lie in front of what is wanted.
                    Err(ReadError::Damaged(e)) if frames.is_empty() => {
                        let found = walk.skip().await.map_err(read_error(segment))?;
                        if !found || walk.expected.offset > offset {
                            return Err(ReadError::Damaged(e));
                        }
                        continue;
                    }
                    Err(e) => return Err(e),
                },
            };
            if frame.header.end_offset() <= offset || frame.header.record_count == 0 {
                continue;
            }
            let len = frame.body.len();
            if len > *left && !frames.is_empty() {
                *left = 0;
                opened.ended_at(frame.header.base_offset, position);
                return Ok(());
            }
            if frames.len() == frames.capacity() {
                let behind = segment.extent().bytes.saturating_sub(position);
                frames.reserve(more_like(len, behind, *left));
            }
            *left = left.saturating_sub(len);
            frames.push(frame.into());
            if *left == 0 {
                break;
            }
        }
        opened.ended_at(walk.expected.offset, walk.position);
        Ok(())
    }

    /// Whether the next frame is longer than what is left, as far as it says itself: then none of it is
    /// read. Called where it is not in memory; what is read for it is no more than is left.
    async fn is_too_long(
        &self,
        walk: &mut Walk<'_>,
        segment: &Segment,
        left: usize,
        frames: &[StoredFrame],
    ) -> Result<bool, ReadError> {
        let Some(last) = frames.last() else {
            return Ok(false);
        };
        walk.read_at_most(piece_len(left, last.payload.len()));
        let len = walk.next_len().await.map_err(read_error(segment))?;
        Ok(len.saturating_sub(FRAME_HEADER_LEN) > left)
    }

    /// The next frame of a walk that begins below `end`.
    async fn step(
        &self,
        walk: &mut Walk<'_>,
        segment: &Segment,
        end: u64,
    ) -> Result<Option<(u64, Frame)>, ReadError> {
        if walk.expected.offset >= end {
            return Ok(None);
        }
        let (position, offset) = (walk.position, walk.expected.offset);
        let stop = match walk.next().await.map_err(read_error(segment))? {
            Ok(found) => return Ok(Some(found)),
            Err(stop) => stop,
        };
        Err(ReadError::Damaged(Error::Damaged {
            path: segment.path.clone(),
            position,
            offset,
            reason: stop.reason(),
            evidence: Evidence::Readable(segment.extent().end_offset),
        }))
    }
}

/// For how many frames to make room if the others are like one of `len` bytes, with so many bytes `behind`
/// it in the segment and so many `left` of the answer.
fn more_like(len: usize, behind: u64, left: usize) -> usize {
    let bytes = usize::try_from(behind).map_or(left, |behind| behind.min(left));
    let more = bytes.checked_div(len).unwrap_or(0);
    more.clamp(1, MAX_RESERVED)
}

/// How much to read for so many bytes of payload, in frames like one with so much of it. Where that is not
/// enough, the rest takes another read, of no more than is missing.
fn piece_len(payload: usize, like: usize) -> usize {
    let frames = payload.checked_div(like).unwrap_or(0);
    let headers = frames.saturating_mul(FRAME_HEADER_LEN).min(payload);
    payload
        .saturating_add(headers)
        .saturating_add(FRAME_HEADER_LEN)
}

fn read_error(segment: &Segment) -> impl Fn(io::Error) -> ReadError + '_ {
    move |source| ReadError::Io {
        path: segment.path.clone(),
        source,
    }
}
