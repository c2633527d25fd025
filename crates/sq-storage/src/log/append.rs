//! What becomes one frame.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};

use crate::error::{Error, Result};
use crate::record::{Header, RecordError, encode_record, put_record, record_len};
use crate::wal::{Batch, FrameContent, Framed, Summary};

/// Payloads from this many bytes on are summed by whoever submits them, while the disk is busy with
/// others. Smaller ones are summed with their header as fast as the two sums are joined.
const SUM_EARLY_BYTES: usize = 4096;

/// Encoded records of up to this many bytes share memory with others of their thread.
const SHARED_RECORD_BYTES: usize = 4096;

/// How much memory they share at a time. A record that waits may keep all of it: no more than what an
/// entry of a log's queue counts as at least, by default.
const SHARED_BYTES: usize = 16 << 10;

thread_local! {
    /// Where this thread encodes its small records, one behind the other. An allocation for each, freed by
    /// another thread, would cost both more than the copy of a record of 1 KiB.
    static SHARED: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// What becomes one frame of the log.
#[derive(Debug)]
pub struct Append(FrameContent);

/// Bytes that are to be appended, with their checksum taken: by whoever has them at hand, so that whoever
/// writes them need not look at them.
#[derive(Clone, Debug)]
pub struct Summed {
    bytes: Bytes,
    /// Left out where it does not pay.
    crc: Option<u32>,
}

impl Summed {
    /// Sums `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        let crc = sum_early(&bytes);
        Self { bytes, crc }
    }
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
        let payload = encoded(key, value, headers)?;
        let crc = sum_early(&payload);
        Ok(Self(FrameContent::record(payload, max_timestamp_ms, crc)))
    }

    /// The frame of a batch that goes on behind its payload with `rest`, which is not looked at.
    pub fn batch_with(mut batch: Batch, rest: Summed) -> Self {
        let Summed { bytes, crc } = rest;
        let crc = crc.map(|crc| {
            let mut all = sum(&batch.payload);
            let rest = crc32fast::Hasher::new_with_initial_len(crc, bytes.len() as u64);
            all.combine(&rest);
            all.finalize()
        });
        batch.payload.push(bytes);
        Self(FrameContent::batch(batch, crc))
    }

    /// The payload, in parts that follow each other.
    pub fn payload(&self) -> &[Bytes] {
        self.0.parts()
    }

    /// How many offsets it takes.
    pub fn record_count(&self) -> u32 {
        self.0.summary().record_count
    }

    /// The bytes that it takes in a segment.
    pub fn frame_len(&self) -> usize {
        self.0.frame_len()
    }
}

impl From<Batch> for Append {
    fn from(batch: Batch) -> Self {
        let sums = batch.frame_len() >= SUM_EARLY_BYTES;
        let crc = sums.then(|| sum(&batch.payload).finalize());
        Self(FrameContent::batch(batch, crc))
    }
}

fn sum_early(bytes: &[u8]) -> Option<u32> {
    (bytes.len() >= SUM_EARLY_BYTES).then(|| crc32fast::hash(bytes))
}

fn sum(parts: &[Bytes]) -> crc32fast::Hasher {
    let mut crc = crc32fast::Hasher::new();
    for part in parts {
        crc.update(part);
    }
    crc
}

/// An encoded record.
fn encoded(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[Header],
) -> Result<Bytes, RecordError> {
    let len = record_len(key, value, headers);
    if len > SHARED_RECORD_BYTES {
        return encode_record(key, value, headers);
    }
    let shared = SHARED.try_with(|shared| {
        let mut shared = shared.borrow_mut();
        if shared.capacity() < len {
            *shared = BytesMut::with_capacity(SHARED_BYTES);
        }
        let put = put_record(&mut shared, key, value, headers);
        let record = shared.split().freeze();
        put.map(|()| record)
    });
    // While the thread ends, its locals may be gone already.
    shared.unwrap_or_else(|_| encode_record(key, value, headers))
}

impl Framed for Append {
    fn parts(&self) -> &[Bytes] {
        self.0.parts()
    }

    fn frame_len(&self) -> usize {
        self.0.frame_len()
    }

    fn summary(&self) -> Summary {
        self.0.summary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FRAME_HEADER_LEN;
    use crate::record::Record;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn batch(payload: Vec<Bytes>) -> Batch {
        Batch {
            payload,
            record_count: 1,
            max_timestamp_ms: 0,
            leader_epoch: 0,
        }
    }

    proptest! {
        #[test]
        fn records_that_share_memory_are_each_its_own(
            lens in vec((0..3_000_usize, 0..3_000_usize), 1..60),
        ) {
            let records: Vec<_> = lens.iter().zip(0_u8..).map(|((key, value), n)| {
                let (key, value) = (vec![n; *key], vec![!n; *value]);
                let headers = [Header::new("n", vec![n])];
                let append = Append::record(Some(&key), Some(&value), &headers, 7).unwrap();
                (append, Record { key: Some(key.into()), value: Some(value.into()), headers: headers.to_vec() })
            }).collect();
            for (append, record) in records {
                let [payload] = append.payload() else { panic!("one part") };
                prop_assert_eq!(append.frame_len(), FRAME_HEADER_LEN + payload.len());
                prop_assert_eq!(Record::decode(payload.clone()).unwrap(), record);
            }
        }

        #[test]
        fn a_batch_summed_in_advance_has_the_sum_of_its_bytes(
            front in vec(any::<u8>(), 0..50), rest in vec(any::<u8>(), 3_900..4_300),
        ) {
            let (front, rest) = (Bytes::from(front), Bytes::from(rest));
            let append = Append::batch_with(batch(vec![front.clone()]), Summed::new(rest.clone()));
            let all = [&front[..], &rest].concat();
            prop_assert_eq!(append.payload().concat(), all.clone());
            prop_assert_eq!(append.frame_len(), FRAME_HEADER_LEN + all.len());
            let sum = (rest.len() >= SUM_EARLY_BYTES).then(|| crc32fast::hash(&all));
            prop_assert_eq!(append.summary().payload_crc, sum);
        }
    }
}
