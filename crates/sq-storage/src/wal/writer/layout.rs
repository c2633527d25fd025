//! How frames are laid out in one write.

use bytes::{Bytes, BytesMut};
use sq_sim::FileSystem;

use super::super::config::Rotation;
use super::super::framed::Framed;
use super::WalWriter;
use crate::error::{Error, Result};
use crate::frame::{BodyTooLong, FRAME_HEADER_LEN, FrameHeader};

/// The most buffers handed to one write; Linux takes 1,024 (`IOV_MAX`).
const MAX_WRITE_BUFFERS: usize = 1000;

/// Parts of up to this many bytes are copied behind their header, so that small frames make one
/// buffer together: the system takes longer over a buffer of its own than over such a copy.
const COPY_BYTES: usize = 4096;

/// One write: frames laid out behind each other.
#[derive(Default)]
pub(super) struct Group {
    pub(super) buffers: Vec<Bytes>,
    /// Each frame's position and header.
    pub(super) headers: Vec<(u64, FrameHeader)>,
    pub(super) bytes: u64,
    pub(super) end_offset: u64,
    /// What its frames say is committed.
    pub(super) committed_before: u64,
    pub(super) count: usize,
}

impl Group {
    fn push_buffer(&mut self, buffer: Bytes) {
        if !buffer.is_empty() {
            self.buffers.push(buffer);
        }
    }

    /// Adds a frame's bytes. What is small of it goes into the buffer of those that are.
    fn add<B: Framed>(
        &mut self,
        header: &FrameHeader,
        frame: &B,
        small: &mut BytesMut,
    ) -> Result<()> {
        let parts = frame.parts();
        let too_large = |e: BodyTooLong| Error::TooLarge {
            bytes: e.0,
            limit: u32::MAX as usize,
        };
        let is_small = parts.iter().all(|part| part.len() <= COPY_BYTES);
        match frame.summary().payload_crc {
            None if is_small => return header.encode_whole(parts, small).map_err(too_large),
            None => header.encode(parts, small),
            Some(crc) => header.encode_summed(frame.frame_len() - FRAME_HEADER_LEN, crc, small),
        }
        .map_err(too_large)?;
        for part in parts {
            if part.len() <= COPY_BYTES {
                small.extend_from_slice(part);
            } else {
                self.push_buffer(small.split().freeze());
                self.push_buffer(part.clone());
            }
        }
        Ok(())
    }
}

impl<F: FileSystem> WalWriter<F> {
    /// Lays out one write from `base_offset` on: the first frame, and those behind it that still fit the
    /// segment and the size of a largest frame. A write that is torn leaves no more zeros in front of
    /// what is left of it than recovery looks through.
    pub(super) fn group<B: Framed>(&self, frames: &[B], base_offset: u64) -> Result<Group> {
        let append_time_ms = self.clock.wall_ms();
        let (segment_id, ordinal) = self.segment.as_ref().map_or((0, 0), |s| (s.id, s.ordinal));
        let mut group = Group {
            end_offset: base_offset,
            committed_before: self.durable_offset(),
            headers: Vec::with_capacity(frames.len()),
            ..Group::default()
        };
        let mut small = BytesMut::with_capacity(frames.iter().map(small_bytes).sum());
        for frame in frames {
            let len = frame.frame_len();
            let position = self.segment_position + group.bytes;
            let buffers = group.buffers.len() + buffers(frame) + 1;
            let fits = self.check(frame, group.end_offset).is_ok()
                && buffers <= MAX_WRITE_BUFFERS
                && group.bytes + len as u64 <= self.config.max_frame_bytes as u64
                && (self.config.rotation == Rotation::External || self.has_room(position, len));
            if group.count > 0 && !fits {
                break;
            }
            let of = frame.summary();
            let header = FrameHeader {
                segment_id,
                base_offset: group.end_offset,
                committed_before: group.committed_before,
                max_timestamp_ms: of.max_timestamp_ms,
                append_time_ms,
                record_count: of.record_count,
                leader_epoch: of.leader_epoch,
                ordinal,
                kind: of.kind,
            };
            group.add(&header, frame, &mut small)?;
            group.headers.push((position, header));
            group.end_offset = header.end_offset();
            group.bytes += len as u64;
            group.count += 1;
        }
        group.push_buffer(small.freeze());
        Ok(group)
    }
}

/// How many bytes of a frame are copied.
fn small_bytes<B: Framed>(frame: &B) -> usize {
    let parts = frame.parts().iter().map(Bytes::len);
    FRAME_HEADER_LEN + parts.filter(|len| *len <= COPY_BYTES).sum::<usize>()
}

/// The most buffers that a frame adds to a write.
fn buffers<B: Framed>(frame: &B) -> usize {
    let parts = frame.parts().iter();
    2 * parts.filter(|part| part.len() > COPY_BYTES).count() + 1
}
