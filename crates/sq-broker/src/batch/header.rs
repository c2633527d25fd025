//! The batch header, and the two fields of it that the broker writes.

use bytes::{BufMut, Bytes, BytesMut};

use super::codec::Compression;

/// Bytes of the header: what comes before the first record.
pub const HEADER_LEN: usize = 61;

/// Bytes before those that the batch length counts.
pub(super) const LENGTH_OVERHEAD: usize = 12;

/// Where the magic is.
pub(super) const MAGIC_AT: usize = 16;

/// Where what the checksum covers begins.
const CRC_FROM: usize = 21;

/// The header of a record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The first record's offset; 0 from a producer.
    pub base_offset: i64,
    /// Bytes behind this field: the batch's size less 12.
    pub batch_length: i32,
    /// The leader's epoch when it appended the batch; any from a producer.
    pub leader_epoch: i32,
    /// The format's version, 2.
    pub magic: i8,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Codec and flags.
    pub attributes: Attributes,
    /// The last record's offset less the first one's.
    pub last_offset_delta: i32,
    /// The first record's timestamp, in ms.
    pub base_timestamp: i64,
    /// The greatest timestamp, in ms.
    pub max_timestamp: i64,
    /// The producer's id, −1 for none.
    pub producer_id: i64,
    /// The producer's epoch.
    pub producer_epoch: i16,
    /// The first record's sequence number.
    pub base_sequence: i32,
    /// How many records there are.
    pub record_count: i32,
}

/// A batch's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes(pub i16);

impl Attributes {
    /// The codec; `None` for a number that stands for none.
    pub fn compression(self) -> Option<Compression> {
        Compression::from_bits(self.0)
    }

    /// Whether the timestamps are the broker's and not the producer's: then each is the greatest.
    pub fn is_log_append_time(self) -> bool {
        self.0 & 0x08 != 0
    }

    /// Whether the batch is part of a transaction.
    pub fn is_transactional(self) -> bool {
        self.0 & 0x10 != 0
    }

    /// Whether the batch is a broker's own mark and not data.
    pub fn is_control(self) -> bool {
        self.0 & 0x20 != 0
    }
}

impl BatchHeader {
    /// The header at the front of `bytes`; `None` if there are fewer than [`HEADER_LEN`].
    ///
    /// Nothing is checked: not even that the magic is 2.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(..HEADER_LEN)?;
        Some(Self {
            base_offset: i64::from_be_bytes(take(&mut rest)?),
            batch_length: i32::from_be_bytes(take(&mut rest)?),
            leader_epoch: i32::from_be_bytes(take(&mut rest)?),
            magic: i8::from_be_bytes(take(&mut rest)?),
            crc: u32::from_be_bytes(take(&mut rest)?),
            attributes: Attributes(i16::from_be_bytes(take(&mut rest)?)),
            last_offset_delta: i32::from_be_bytes(take(&mut rest)?),
            base_timestamp: i64::from_be_bytes(take(&mut rest)?),
            max_timestamp: i64::from_be_bytes(take(&mut rest)?),
            producer_id: i64::from_be_bytes(take(&mut rest)?),
            producer_epoch: i16::from_be_bytes(take(&mut rest)?),
            base_sequence: i32::from_be_bytes(take(&mut rest)?),
            record_count: i32::from_be_bytes(take(&mut rest)?),
        })
    }

    /// The batch's size in bytes, as its header tells it; `None` if it tells a negative one.
    pub fn size(&self) -> Option<usize> {
        usize::try_from(self.batch_length)
            .ok()?
            .checked_add(LENGTH_OVERHEAD)
    }

    /// Whether the batch is from a producer with an id, so that a retry can be told.
    pub fn is_idempotent(&self) -> bool {
        self.producer_id >= 0
    }

    /// The last record's sequence number. They wrap around to 0 behind the greatest `i32`.
    pub fn last_sequence(&self) -> i32 {
        let last = i64::from(self.base_sequence) + i64::from(self.last_offset_delta);
        let wrapped = last.rem_euclid(i64::from(i32::MAX) + 1);
        i32::try_from(wrapped).unwrap_or(i32::MAX)
    }

    /// The last record's offset, once the batch has been given a base offset.
    pub fn last_offset(&self) -> i64 {
        self.base_offset
            .saturating_add(self.last_offset_delta.into())
    }
}

/// The CRC-32C of a whole batch's covered part.
pub(crate) fn checksum(batch: &[u8]) -> u32 {
    crc32c::crc32c(batch.get(CRC_FROM..).unwrap_or_default())
}

/// The batch with its base offset and leader epoch set, as two buffers: the first few bytes anew,
/// and the rest as it is. The checksum covers neither field and stays valid.
///
/// `batch` is one that [`validate_produced`](super::validate_produced) let through; anything shorter
/// than a header comes back unchanged.
pub fn assign(batch: &Bytes, base_offset: i64, leader_epoch: i32) -> [Bytes; 2] {
    let Some((&length, _)) = batch.get(8..).and_then(<[u8]>::split_first_chunk::<4>) else {
        return [Bytes::new(), batch.clone()];
    };
    if batch.len() < MAGIC_AT {
        return [Bytes::new(), batch.clone()];
    }
    let mut front = BytesMut::with_capacity(MAGIC_AT);
    front.put_i64(base_offset);
    front.put_slice(&length);
    front.put_i32(leader_epoch);
    [front.freeze(), batch.slice(MAGIC_AT..)]
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*bytes)
}
