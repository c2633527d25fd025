//! Whether the record batch in a frame is what its frame says.

use sq_storage::frame::{Frame, FrameKind};

use crate::batch::{BatchHeader, checksum};

/// What is wrong with a batch although its frame is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BatchProblem {
    /// No header of format 2, or another length than the frame's body.
    #[error("the frame holds no whole record batch of format 2")]
    NoBatch,
    /// The batch has other offsets than its frame.
    #[error("the record batch starts at offset {base_offset} and holds {count} records")]
    Offsets {
        /// What the batch says.
        base_offset: i64,
        /// What the batch says.
        count: i32,
    },
    /// The batch's own checksum is wrong.
    #[error("the record batch's CRC-32C is {stored:08x}, over its bytes {computed:08x}")]
    Checksum {
        /// What the batch says.
        stored: u32,
        /// What its bytes give.
        computed: u32,
    },
}

/// The header of a frame's batch, or what is wrong with it; `None` for a frame that holds no batch.
pub(super) fn batch_in(frame: &Frame) -> Option<Result<BatchHeader, BatchProblem>> {
    (frame.header.kind == FrameKind::Batch).then(|| check(frame))
}

fn check(frame: &Frame) -> Result<BatchHeader, BatchProblem> {
    let batch = BatchHeader::parse(&frame.body)
        .filter(|batch| batch.magic == 2 && batch.size() == Some(frame.body.len()))
        .ok_or(BatchProblem::NoBatch)?;
    let base = u64::try_from(batch.base_offset);
    let count = u32::try_from(batch.record_count);
    if base != Ok(frame.header.base_offset) || count != Ok(frame.header.record_count) {
        let (base_offset, count) = (batch.base_offset, batch.record_count);
        return Err(BatchProblem::Offsets { base_offset, count });
    }
    let computed = checksum(&frame.body);
    if computed != batch.crc {
        return Err(BatchProblem::Checksum {
            stored: batch.crc,
            computed,
        });
    }
    Ok(batch)
}
