//! The bytes of a producer snapshot, `{offset:020}.producers`, version 1. Integers are big-endian.
//!
//! ```text
//!   0  magic "SQPR"        4
//!   4  version = 1         2
//!   6  zero                2
//!   8  offset              8   the state is that of the log below this offset
//!  16  producers           4
//!  20  then for each, the one that wrote longest ago first:
//!        producer id       8
//!        last append, ms   8
//!        epoch             2
//!        batches           2   then for each, oldest first:
//!          first sequence  4
//!          last sequence   4
//!          base offset     8
//!   …  CRC-32              4   of all before, and nothing behind it
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::table::{BATCHES_PER_PRODUCER, BatchEntry, Producer, ProducerLimits, ProducerTable};

const MAGIC: &[u8; 4] = b"SQPR";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 20;
const PRODUCER_LEN: usize = 20;
const BATCH_LEN: usize = 16;
const CRC_LEN: usize = 4;

/// Why a snapshot cannot be read. An older one, or the log itself, then has to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotDamage {
    /// It does not begin as a snapshot does, or is too short for one.
    #[error("it does not begin as a producer snapshot does")]
    Header,
    /// A later version wrote it.
    #[error("format version {0} is not known here (this is version {VERSION})")]
    Version(u16),
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
    /// The checksum matches, but the content makes no sense.
    #[error("its entries do not fill it")]
    Content,
}

impl ProducerTable {
    /// The snapshot of this table, as the state below `offset`.
    pub fn encode_snapshot(&self, offset: u64) -> Bytes {
        let worst = PRODUCER_LEN + BATCHES_PER_PRODUCER * BATCH_LEN;
        let mut file = BytesMut::with_capacity(HEADER_LEN + self.len() * worst + CRC_LEN);
        file.put_slice(MAGIC);
        file.put_u16(VERSION);
        file.put_u16(0);
        file.put_u64(offset);
        let stored: Vec<_> = self.iter().filter(|(_, p)| !p.batches.is_empty()).collect();
        file.put_u32(u32::try_from(stored.len()).unwrap_or(u32::MAX));
        for (id, producer) in stored {
            file.put_i64(id);
            file.put_u64(producer.last_append_ms);
            file.put_i16(producer.epoch);
            file.put_u16(u16::try_from(producer.batches.len()).unwrap_or(u16::MAX));
            for batch in &producer.batches {
                file.put_i32(batch.first_sequence);
                file.put_i32(batch.last_sequence);
                file.put_u64(batch.base_offset);
            }
        }
        let crc = crc32fast::hash(&file);
        file.put_u32(crc);
        file.freeze()
    }

    /// The table in a snapshot, and the offset below which it is the log's state.
    ///
    /// # Errors
    /// The snapshot is damaged.
    pub fn decode_snapshot(
        file: &[u8],
        limits: ProducerLimits,
    ) -> Result<(Self, u64), SnapshotDamage> {
        let (content, crc) = file
            .split_last_chunk::<CRC_LEN>()
            .ok_or(SnapshotDamage::Header)?;
        let mut rest = content;
        if rest.len() < HEADER_LEN || !rest.starts_with(MAGIC) {
            return Err(SnapshotDamage::Header);
        }
        rest.advance(MAGIC.len());
        let version = rest.get_u16();
        if version != VERSION {
            return Err(SnapshotDamage::Version(version));
        }
        if crc32fast::hash(content) != u32::from_be_bytes(*crc) {
            return Err(SnapshotDamage::Checksum);
        }
        let _zero = rest.get_u16();
        let offset = rest.get_u64();
        let mut table = Self::new(limits);
        for _ in 0..rest.get_u32() {
            let (id, producer) = decode_producer(&mut rest)?;
            table.put(id, producer);
        }
        if rest.is_empty() {
            Ok((table, offset))
        } else {
            Err(SnapshotDamage::Content)
        }
    }
}

fn decode_producer(rest: &mut &[u8]) -> Result<(i64, Producer), SnapshotDamage> {
    if rest.len() < PRODUCER_LEN {
        return Err(SnapshotDamage::Content);
    }
    let id = rest.get_i64();
    let last_append_ms = rest.get_u64();
    let mut producer = Producer::new(rest.get_i16());
    producer.last_append_ms = last_append_ms;
    let batches = usize::from(rest.get_u16());
    if batches > BATCHES_PER_PRODUCER || rest.len() < batches * BATCH_LEN {
        return Err(SnapshotDamage::Content);
    }
    for _ in 0..batches {
        producer.batches.push_back(BatchEntry {
            first_sequence: rest.get_i32(),
            last_sequence: rest.get_i32(),
            base_offset: rest.get_u64(),
        });
    }
    Ok((id, producer))
}
