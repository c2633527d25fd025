//! What is appended together, and what a segment holds once it takes no more.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use crate::frame::FRAME_HEADER_LEN;

/// Opaque bytes that carry some records: stored and read back byte for byte.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The bytes, in parts that are written one behind the other without being copied together.
    pub payload: Vec<Bytes>,
    /// How many offsets the batch takes; at least 1.
    pub record_count: u32,
    /// The greatest timestamp of its records in milliseconds since the epoch, -1 for none.
    pub max_timestamp_ms: i64,
    /// The epoch of the leader that appends it; 0 where there is only one.
    pub leader_epoch: u32,
}

impl Batch {
    /// The bytes that the batch takes in a segment.
    pub fn frame_len(&self) -> usize {
        FRAME_HEADER_LEN + self.payload.iter().map(Bytes::len).sum::<usize>()
    }
}

/// The segment that appends go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveSegment {
    /// Its id.
    pub id: u64,
    /// Its first offset.
    pub base_offset: u64,
    /// The bytes of its header and frames.
    pub bytes: u64,
    /// Its age, also across restarts.
    pub age: Duration,
}

/// A segment that takes no further append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedSegment {
    /// Its file.
    pub path: PathBuf,
    /// The offsets of its records.
    pub offsets: Range<u64>,
    /// Its id.
    pub id: u64,
    /// The bytes of its header and frames.
    pub bytes: u64,
}
