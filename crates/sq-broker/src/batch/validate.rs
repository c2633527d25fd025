//! What a producer may send.

use bytes::Bytes;

use super::codec::Compression;
use super::header::{BatchHeader, HEADER_LEN, MAGIC_AT, checksum};
use crate::protocol::ResponseError;

/// The first Produce version in which zstd may be used (KIP-110).
const ZSTD_SINCE: i16 = 7;

/// Why a partition's records are refused. Each has the error code that Apache Kafka answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// No records at all.
    #[error("there is no record batch")]
    Missing,
    /// The format of Kafka before 0.11, or one that there isn't.
    #[error("record batches of format {magic} are not taken, only those of format 2")]
    Magic {
        /// What the batch says.
        magic: i8,
    },
    /// Fewer bytes than a header.
    #[error("{length} bytes are no record batch")]
    NoHeader {
        /// Bytes there are.
        length: usize,
    },
    /// A batch that is longer than its bytes, or has a negative length.
    #[error("a record batch announces {announced} bytes behind its length, there are {held}")]
    Length {
        /// What the batch says.
        announced: i32,
        /// Bytes there are.
        held: usize,
    },
    /// Something behind the batch.
    #[error("{left} bytes follow the one record batch a partition is sent")]
    Trailing {
        /// Bytes behind the batch.
        left: usize,
    },
    /// More than the topic takes.
    #[error("a record batch of {length} bytes is larger than max.message.bytes, {max}")]
    TooLarge {
        /// The batch's size in bytes.
        length: usize,
        /// The topic's bound in bytes.
        max: usize,
    },
    /// The checksum is wrong.
    #[error("a record batch says that its CRC is {stored:#010x}, it is {computed:#010x}")]
    Checksum {
        /// What the batch says.
        stored: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// A base offset from a producer.
    #[error("a record batch from a producer starts at offset {base_offset} and not at 0")]
    BaseOffset {
        /// What the batch says.
        base_offset: i64,
    },
    /// No records, or a negative number of them.
    #[error("a record batch says that it holds {count} records")]
    Count {
        /// What the batch says.
        count: i32,
    },
    /// Offsets that are not those of the records.
    #[error("a record batch of {count} records ends {delta} offsets behind its start")]
    OffsetDelta {
        /// How many records the batch says it holds.
        count: i32,
        /// The last offset, less the first.
        delta: i32,
    },
    /// A codec that there isn't.
    #[error("a record batch names compression codec {codec}, which there is not")]
    Codec {
        /// The codec's number.
        codec: i16,
    },
    /// A codec that is newer than the request.
    #[error("zstd needs Produce version {ZSTD_SINCE}, this is version {version}")]
    ZstdTooEarly {
        /// The request's version.
        version: i16,
    },
    /// Timestamps that claim to be the broker's.
    #[error("a record batch from a producer has log append time")]
    LogAppendTime,
    /// A mark that only a broker writes.
    #[error("a record batch from a producer is a control batch")]
    Control,
    /// Part of a transaction.
    #[error("transactions are not supported")]
    Transactional,
    /// A producer id without a sequence or an epoch.
    #[error("producer {producer_id} sends sequence {sequence} in epoch {epoch}")]
    Sequence {
        /// The producer's id.
        producer_id: i64,
        /// The producer's epoch.
        epoch: i16,
        /// The first record's sequence number.
        sequence: i32,
    },
}

impl BatchError {
    /// The error to answer.
    pub fn response(&self) -> ResponseError {
        match self {
            Self::Missing
            | Self::Magic { .. }
            | Self::Trailing { .. }
            | Self::BaseOffset { .. }
            | Self::Count { .. }
            | Self::OffsetDelta { .. }
            | Self::Control
            | Self::Sequence { .. } => ResponseError::InvalidRecord,
            Self::NoHeader { .. } | Self::Length { .. } | Self::Checksum { .. } => {
                ResponseError::CorruptMessage
            }
            Self::TooLarge { .. } => ResponseError::MessageTooLarge,
            Self::Codec { .. } | Self::ZstdTooEarly { .. } => {
                ResponseError::UnsupportedCompressionType
            }
            Self::LogAppendTime => ResponseError::InvalidTimestamp,
            Self::Transactional => ResponseError::InvalidTxnState,
        }
    }
}

/// Checks the records that a produce request of version `produce_version` has for a partition whose
/// topic takes batches of up to `max_message_bytes`.
///
/// They must be exactly one batch of format 2, whole, unharmed, and one that a client may write. No
/// record is looked at: that there are as many as the header says is not checked.
///
/// # Errors
/// [`BatchError`], with the error code to answer.
pub fn validate_produced(
    records: &Bytes,
    max_message_bytes: usize,
    produce_version: i16,
) -> Result<BatchHeader, BatchError> {
    let header = check_frame(records, max_message_bytes)?;
    let computed = checksum(records);
    if computed != header.crc {
        return Err(BatchError::Checksum {
            stored: header.crc,
            computed,
        });
    }
    check_offsets(&header)?;
    check_attributes(&header, produce_version)?;
    check_producer(&header)?;
    Ok(header)
}

/// One batch of format 2, no shorter and no longer than it says.
fn check_frame(records: &[u8], max_message_bytes: usize) -> Result<BatchHeader, BatchError> {
    let length = records.len();
    if length == 0 {
        return Err(BatchError::Missing);
    }
    // Before anything else: in other formats the fields around it mean other things.
    let magic = records
        .get(MAGIC_AT)
        .copied()
        .map(|byte| i8::from_be_bytes([byte]));
    if let Some(magic) = magic.filter(|magic| *magic != 2) {
        return Err(BatchError::Magic { magic });
    }
    let header = BatchHeader::parse(records).ok_or(BatchError::NoHeader { length })?;
    let announced = header.batch_length;
    let wrong = BatchError::Length {
        announced,
        held: length,
    };
    match header.size() {
        Some(size) if size < HEADER_LEN || size > length => Err(wrong),
        Some(size) if size < length => Err(BatchError::Trailing {
            left: length - size,
        }),
        Some(_) if length > max_message_bytes => Err(BatchError::TooLarge {
            length,
            max: max_message_bytes,
        }),
        Some(_) => Ok(header),
        None => Err(wrong),
    }
}

fn check_offsets(header: &BatchHeader) -> Result<(), BatchError> {
    let (count, delta) = (header.record_count, header.last_offset_delta);
    if header.base_offset != 0 {
        return Err(BatchError::BaseOffset {
            base_offset: header.base_offset,
        });
    }
    if count <= 0 {
        return Err(BatchError::Count { count });
    }
    if delta != count - 1 {
        return Err(BatchError::OffsetDelta { count, delta });
    }
    Ok(())
}

fn check_attributes(header: &BatchHeader, produce_version: i16) -> Result<(), BatchError> {
    let attributes = header.attributes;
    match attributes.compression() {
        None => {
            return Err(BatchError::Codec {
                codec: attributes.0 & Compression::BITS,
            });
        }
        Some(Compression::Zstd) if produce_version < ZSTD_SINCE => {
            return Err(BatchError::ZstdTooEarly {
                version: produce_version,
            });
        }
        Some(_) => {}
    }
    if attributes.is_log_append_time() {
        return Err(BatchError::LogAppendTime);
    }
    if attributes.is_control() {
        return Err(BatchError::Control);
    }
    if attributes.is_transactional() {
        return Err(BatchError::Transactional);
    }
    Ok(())
}

/// A producer with an id numbers its records. Without one the other two fields mean nothing, and
/// clients put various things there.
fn check_producer(header: &BatchHeader) -> Result<(), BatchError> {
    let (epoch, sequence) = (header.producer_epoch, header.base_sequence);
    if header.is_idempotent() && (epoch < 0 || sequence < 0) {
        return Err(BatchError::Sequence {
            producer_id: header.producer_id,
            epoch,
            sequence,
        });
    }
    Ok(())
}
