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

    /// What there is to say of the payload.
    fn summary(&self) -> Summary;
}

/// What a frame's header says of its payload, wherever that is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) record_count: u32,
    pub(crate) max_timestamp_ms: i64,
    pub(crate) leader_epoch: u32,
    pub(crate) kind: FrameKind,
    /// The CRC-32 of the payload, if it was summed before.
    pub(crate) payload_crc: Option<u32>,
}

impl Framed for Batch {
    fn parts(&self) -> &[Bytes] {
        &self.payload
    }

    fn summary(&self) -> Summary {
        Summary {
            record_count: self.record_count,
            max_timestamp_ms: self.max_timestamp_ms,
            leader_epoch: self.leader_epoch,
            kind: FrameKind::Batch,
            payload_crc: None,
        }
    }
}

/// What becomes a frame, of whatever kind. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct FrameContent {
    payload: Parts,
    frame_len: usize,
    summary: Summary,
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
            summary: Summary {
                record_count: 1,
                max_timestamp_ms,
                leader_epoch: 0,
                kind: FrameKind::Record,
                payload_crc,
            },
        }
    }

    /// A batch.
    pub(crate) fn batch(batch: Batch, payload_crc: Option<u32>) -> Self {
        Self {
            frame_len: batch.frame_len(),
            summary: Summary {
                payload_crc,
                ..batch.summary()
            },
            payload: Parts::Several(batch.payload),
        }
    }

    /// The same as `frame`.
    pub(super) fn of<B: Framed>(frame: &B) -> Self {
        Self {
            payload: Parts::Several(frame.parts().to_vec()),
            frame_len: frame.frame_len(),
            summary: frame.summary(),
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

    fn summary(&self) -> Summary {
        self.summary
    }
}
