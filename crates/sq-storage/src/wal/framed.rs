//! What becomes a frame, before its place is known.

use bytes::Bytes;

use super::batch::Batch;
use crate::frame::{FRAME_HEADER_LEN, FrameKind};

/// What the writer lays out as one frame.
pub(crate) trait Framed {
    /// The payload, in parts that follow each other.
    fn parts(&self) -> &[Bytes];

    /// The bytes that it takes in a segment.
    fn frame_len(&self) -> usize {
        FRAME_HEADER_LEN + self.parts().iter().map(Bytes::len).sum::<usize>()
    }

    fn record_count(&self) -> u32;

    fn max_timestamp_ms(&self) -> i64;

    fn leader_epoch(&self) -> u32;

    fn kind(&self) -> FrameKind;

    /// The CRC-32 of the payload, if it was summed before.
    fn payload_crc(&self) -> Option<u32>;
}

impl Framed for Batch {
    fn parts(&self) -> &[Bytes] {
        &self.payload
    }

    fn record_count(&self) -> u32 {
        self.record_count
    }

    fn max_timestamp_ms(&self) -> i64 {
        self.max_timestamp_ms
    }

    fn leader_epoch(&self) -> u32 {
        self.leader_epoch
    }

    fn kind(&self) -> FrameKind {
        FrameKind::Batch
    }

    fn payload_crc(&self) -> Option<u32> {
        None
    }
}

/// What becomes a frame, of whatever kind. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct FrameContent {
    payload: Parts,
    frame_len: usize,
    record_count: u32,
    max_timestamp_ms: i64,
    leader_epoch: u32,
    kind: FrameKind,
    payload_crc: Option<u32>,
}

/// A record is one part, and needs no list of them.
#[derive(Clone, Debug)]
enum Parts {
    One(Bytes),
    Several(Vec<Bytes>),
}

impl FrameContent {
    /// A record, encoded.
    pub(crate) fn record(payload: Bytes, max_timestamp_ms: i64, payload_crc: Option<u32>) -> Self {
        Self {
            frame_len: FRAME_HEADER_LEN + payload.len(),
            payload: Parts::One(payload),
            record_count: 1,
            max_timestamp_ms,
            leader_epoch: 0,
            kind: FrameKind::Record,
            payload_crc,
        }
    }

    /// A batch.
    pub(crate) fn batch(batch: Batch, payload_crc: Option<u32>) -> Self {
        Self {
            frame_len: batch.frame_len(),
            payload: Parts::Several(batch.payload),
            record_count: batch.record_count,
            max_timestamp_ms: batch.max_timestamp_ms,
            leader_epoch: batch.leader_epoch,
            kind: FrameKind::Batch,
            payload_crc,
        }
    }

    /// The same as `frame`.
    pub(super) fn of<B: Framed>(frame: &B) -> Self {
        Self {
            payload: Parts::Several(frame.parts().to_vec()),
            frame_len: frame.frame_len(),
            record_count: frame.record_count(),
            max_timestamp_ms: frame.max_timestamp_ms(),
            leader_epoch: frame.leader_epoch(),
            kind: frame.kind(),
            payload_crc: frame.payload_crc(),
        }
    }
}

impl Framed for FrameContent {
    fn parts(&self) -> &[Bytes] {
        match &self.payload {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Several(parts) => parts,
        }
    }

    fn frame_len(&self) -> usize {
        self.frame_len
    }

    fn record_count(&self) -> u32 {
        self.record_count
    }

    fn max_timestamp_ms(&self) -> i64 {
        self.max_timestamp_ms
    }

    fn leader_epoch(&self) -> u32 {
        self.leader_epoch
    }

    fn kind(&self) -> FrameKind {
        self.kind
    }

    fn payload_crc(&self) -> Option<u32> {
        self.payload_crc
    }
}
