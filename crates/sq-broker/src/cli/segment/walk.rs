//! A walk over all that is in a segment file, which goes on behind what is damaged.

use std::io;

use bytes::Bytes;
use memchr::memmem;
use sq_sim::FileHandle;
use sq_storage::frame::{FRAME_HEADER_LEN, Frame, FrameError, FrameHeader, SEGMENT_ID_POSITION};
use sq_storage::wal::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderError};

/// How much is read at a time, in bytes.
const WINDOW: usize = 1 << 20;

/// A write ends with a page.
const PAGE_LEN: u64 = 4096;

/// The zeros that a write ends with at least, where a file was another segment's before.
const END_LEN: u64 = 4;

/// Why there is no frame of a segment at a position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoFrame {
    /// Nothing was ever written here.
    #[error("nothing was written")]
    End,
    /// The bytes are no frame.
    #[error(transparent)]
    Bytes(FrameError),
    /// A frame, and another segment's: what a file held before would look like this.
    #[error("a frame of segment {0:016x}")]
    Foreign(u64),
}

impl From<FrameError> for NoFrame {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::End => Self::End,
            error => Self::Bytes(error),
        }
    }
}

/// What stands in a segment file, from one position to the next.
#[derive(Debug)]
pub(super) enum Part {
    /// A frame whose checksum is right.
    Frame {
        /// Where it starts.
        position: u64,
        /// What it says.
        frame: Frame,
    },
    /// Something else, and then another frame of the segment.
    Hole {
        /// Where it starts.
        position: u64,
        /// Where the next frame starts.
        until: u64,
        /// Why there is no frame here.
        error: NoFrame,
        /// What a frame's header says here, unverified, if it could be one.
        header: Option<FrameHeader>,
    },
    /// The rest of the file, without another frame.
    Rest {
        /// Where it starts.
        position: u64,
        /// Bytes up to the end of the file.
        length: u64,
        /// Why there is no frame here.
        error: NoFrame,
        /// Whether there is anything but zeros, and what an earlier segment left in the file.
        has_data: bool,
    },
}

/// A segment file, read from its front to its end.
#[derive(Debug)]
pub(super) struct Walk {
    file: Box<dyn FileHandle>,
    length: u64,
    window: Bytes,
    window_at: u64,
    position: u64,
    segment_id: Option<u64>,
    /// Whether the file was another segment's before.
    is_recycled: bool,
    done: bool,
}

impl Walk {
    /// Starts behind the header. The id, where it is known, tells the segment's own frames from
    /// others; else the first frame's is taken.
    pub(super) async fn start(
        file: Box<dyn FileHandle>,
        segment_id: Option<u64>,
    ) -> io::Result<(Self, Result<SegmentHeader, SegmentHeaderError>)> {
        let length = file.len().await?;
        let header = SegmentHeader::decode(&file.read_at(0, SEGMENT_HEADER_LEN).await?);
        let is_recycled = header.as_ref().is_ok_and(|header| header.is_recycled);
        let walk = Self {
            file,
            length,
            window: Bytes::new(),
            window_at: 0,
            position: SEGMENT_HEADER_LEN as u64,
            segment_id,
            is_recycled,
            done: false,
        };
        Ok((walk, header))
    }

    /// Bytes of the file.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// What comes next; `None` behind the end.
    pub(super) async fn next(&mut self) -> io::Result<Option<Part>> {
        if self.done {
            return Ok(None);
        }
        let position = self.position;
        let error = match self.frame_at(position).await? {
            Ok(frame) => {
                self.segment_id = Some(frame.header.segment_id);
                self.position += frame.encoded_len() as u64;
                return Ok(Some(Part::Frame { position, frame }));
            }
            Err(error) => error,
        };
        let header = FrameHeader::decode(&self.bytes(position, FRAME_HEADER_LEN).await?);
        let (until, has_data) = self.search(position).await?;
        if let Some(until) = until {
            self.position = until;
            let header = header.ok().map(|(header, _)| header);
            return Ok(Some(Part::Hole {
                position,
                until,
                error,
                header,
            }));
        }
        self.done = true;
        let length = self.length.saturating_sub(position);
        Ok(Some(Part::Rest {
            position,
            length,
            error,
            has_data,
        }))
    }

    /// The segment's frame at a position.
    async fn frame_at(&mut self, position: u64) -> io::Result<Result<Frame, NoFrame>> {
        let mut bytes = self.bytes(position, FRAME_HEADER_LEN).await?;
        if bytes.is_empty() {
            return Ok(Err(NoFrame::End));
        }
        if let Err(FrameError::Truncated { needed, .. }) = Frame::decode(&bytes) {
            bytes = self.bytes(position, needed).await?;
        }
        Ok(match Frame::decode(&bytes) {
            Ok(frame) => match self.segment_id {
                Some(id) if id != frame.header.segment_id => {
                    Err(NoFrame::Foreign(frame.header.segment_id))
                }
                _ => Ok(frame),
            },
            Err(error) => Err(error.into()),
        })
    }

    /// Where the segment's next frame behind `position` starts, at whatever byte; and whether
    /// anything from `position` on is not zero.
    async fn search(&mut self, position: u64) -> io::Result<(Option<u64>, bool)> {
        let (mut at, mut has_data) = (position, false);
        while at < self.length {
            let piece = self.bytes(at, FRAME_HEADER_LEN).await?;
            let own = self.own_len(position, at, piece.len());
            has_data |= piece.iter().take(own).any(|byte| *byte != 0);
            // Of an earlier segment's frames, nothing but the id tells this one's.
            let is_blind = self.is_recycled && self.segment_id.is_none();
            let found = candidates(&piece, self.segment_id).into_iter();
            for found in found.filter(|_| !is_blind) {
                let found = at + found as u64;
                if found > position && self.frame_at(found).await?.is_ok() {
                    return Ok((Some(found), true));
                }
            }
            // Overlapping, so that a header across two pieces is whole in the second.
            at += piece.len().saturating_sub(FRAME_HEADER_LEN - 1).max(1) as u64;
        }
        Ok((None, has_data))
    }

    /// How much of a piece at `at` can only be the segment's own, if its last frame ends at `position`: behind
    /// the zeros of the last write, a file may hold what another segment left.
    fn own_len(&self, position: u64, at: u64, length: usize) -> usize {
        if !self.is_recycled {
            return length;
        }
        let zeros = (position + END_LEN).next_multiple_of(PAGE_LEN);
        let own = usize::try_from(zeros.saturating_sub(at));
        own.unwrap_or(length).min(length)
    }

    /// At least `length` bytes, or all up to the end of the file.
    async fn bytes(&mut self, position: u64, length: usize) -> io::Result<Bytes> {
        let held = position
            .checked_sub(self.window_at)
            .and_then(|skip| usize::try_from(skip).ok())
            .filter(|skip| *skip <= self.window.len())
            .map(|skip| self.window.slice(skip..));
        if let Some(held) = held.filter(|held| held.len() >= length) {
            return Ok(held);
        }
        let left = usize::try_from(self.length.saturating_sub(position)).unwrap_or(usize::MAX);
        self.window = self
            .file
            .read_at(position, length.max(WINDOW).min(left))
            .await?;
        self.window_at = position;
        Ok(self.window.clone())
    }
}

/// Where in a piece a frame could start, by a look at its header alone.
fn candidates(piece: &Bytes, segment_id: Option<u64>) -> Vec<usize> {
    let plausible = |at: &usize| {
        piece
            .get(*at..)
            .is_some_and(|bytes| FrameHeader::decode(bytes).is_ok())
    };
    match segment_id {
        Some(id) => memmem::find_iter(piece, &id.to_be_bytes())
            .filter_map(|at| at.checked_sub(SEGMENT_ID_POSITION))
            .filter(plausible)
            .collect(),
        None => (0..piece.len()).filter(plausible).collect(),
    }
}
