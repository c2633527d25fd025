//! A record batch, as a client sends it.

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record,
    RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

/// One uncompressed batch of the values, without keys.
pub(crate) fn batch(values: &[&[u8]]) -> Result<Bytes> {
    // The encoder puts records into one batch whose sequences go up with their offsets.
    let records: Vec<_> = (0_i64..)
        .zip(NO_SEQUENCE..)
        .zip(values)
        .map(|((offset, sequence), value)| Record {
            transactional: false,
            control: false,
            partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            timestamp_type: TimestampType::Creation,
            offset,
            sequence,
            delete_horizon: false,
            timestamp: 1_700_000_000_000,
            key: None,
            value: Some(Bytes::copy_from_slice(value)),
            headers: [].into_iter().collect(),
        })
        .collect();
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut out = BytesMut::new();
    RecordBatchEncoder::encode(&mut out, &records, &options)?;
    Ok(out.freeze())
}

/// A record's value of `bytes` bytes that no codec makes much of.
pub(crate) fn value(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}
