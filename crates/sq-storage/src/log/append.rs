//! What becomes one frame.

use crate::error::{Error, Result};
use crate::frame::FrameKind;
use crate::record::{Header, encode_record};
use crate::wal::{Batch, Framed};

/// Payloads from this many bytes on are summed by whoever submits them, while the disk is busy with
/// others. Smaller ones are summed with their header as fast as the two sums are joined.
const SUM_EARLY_BYTES: usize = 4096;

/// What becomes one frame of the log.
#[derive(Debug)]
pub struct Append {
    batch: Batch,
    kind: FrameKind,
    payload_crc: Option<u32>,
}

impl Append {
    /// A frame of one record. `timestamp_ms` counts from the Unix epoch.
    ///
    /// # Errors
    /// [`Error::Record`], [`Error::Timestamp`].
    pub fn record(
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header],
        timestamp_ms: u64,
    ) -> Result<Self> {
        let max_timestamp_ms =
            i64::try_from(timestamp_ms).map_err(|_| Error::Timestamp(timestamp_ms))?;
        let batch = Batch {
            payload: vec![encode_record(key, value, headers)?],
            record_count: 1,
            max_timestamp_ms,
            leader_epoch: 0,
        };
        Ok(Self::new(batch, FrameKind::Record))
    }

    fn new(batch: Batch, kind: FrameKind) -> Self {
        let mut crc = crc32fast::Hasher::new();
        let sum = batch.frame_len() >= SUM_EARLY_BYTES;
        if sum {
            batch.payload.iter().for_each(|part| crc.update(part));
        }
        let payload_crc = sum.then(|| crc.finalize());
        Self {
            batch,
            kind,
            payload_crc,
        }
    }

    /// The batch.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The bytes that it takes in a segment.
    pub fn frame_len(&self) -> usize {
        self.batch.frame_len()
    }
}

impl From<Batch> for Append {
    fn from(batch: Batch) -> Self {
        Self::new(batch, FrameKind::Batch)
    }
}

impl Framed for Append {
    fn batch(&self) -> &Batch {
        &self.batch
    }

    fn kind(&self) -> FrameKind {
        self.kind
    }

    fn payload_crc(&self) -> Option<u32> {
        self.payload_crc
    }
}
