//! The first record at or after a point in time, within one batch.

use std::io::{self, BufRead, Read};

use bytes::Bytes;

use super::header::{BatchHeader, HEADER_LEN};

/// Why a stored batch's records can't be read.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The bytes are no batch of format 2.
    #[error("not a record batch of format 2")]
    NoBatch,
    /// The attributes name a codec that there isn't.
    #[error("unknown compression codec")]
    Codec,
    /// The records hold more than is allowed once they are decompressed.
    #[error("the records of a batch hold more than {max} bytes")]
    TooLarge {
        /// The bound, in bytes.
        max: usize,
    },
    /// The records are not what their header or their codec says.
    #[error("the records of a batch can't be read: {0}")]
    Corrupt(#[from] io::Error),
}

/// The first record of a stored batch whose timestamp is `timestamp` (ms) or later, of those at `from`
/// or behind it, as the log may begin within the batch: its offset and its own timestamp. `None` if the
/// batch holds none.
///
/// What the header says comes first: nothing is decoded where its greatest timestamp is earlier.
/// Where it is later than any record's, against the truth, the answer is `None` all the same.
/// Decompression stops at the answer, and is an error past `max_decompressed_bytes`.
///
/// # Errors
/// [`LookupError`] if the records up to the answer can't be read.
pub fn lookup_timestamp(
    batch: &Bytes,
    timestamp: i64,
    from: i64,
    max_decompressed_bytes: usize,
) -> Result<Option<(i64, i64)>, LookupError> {
    let header = BatchHeader::parse(batch).filter(|header| header.magic == 2);
    let header = header.ok_or(LookupError::NoBatch)?;
    if header.max_timestamp < timestamp || header.record_count <= 0 {
        return Ok(None);
    }
    if header.attributes.is_log_append_time() {
        let last = header
            .base_offset
            .saturating_add(header.last_offset_delta.into());
        let first = header.base_offset.max(from);
        return Ok((first <= last).then_some((first, header.max_timestamp)));
    }
    let size = header
        .size()
        .filter(|size| (HEADER_LEN..=batch.len()).contains(size));
    let records = batch.slice(HEADER_LEN..size.ok_or(LookupError::NoBatch)?);
    let codec = header.attributes.compression().ok_or(LookupError::Codec)?;
    let source = codec.reader(records, max_decompressed_bytes)?;
    let mut records = Records {
        source,
        left: max_decompressed_bytes,
    };
    match records.find(&header, timestamp, from) {
        Err(_) if records.left == 0 => Err(LookupError::TooLarge {
            max: max_decompressed_bytes,
        }),
        result => Ok(result?),
    }
}

/// A batch's records, read as far as they are needed.
struct Records {
    source: Box<dyn BufRead>,
    /// Bytes that may still be read.
    left: usize,
}

impl Records {
    fn find(
        &mut self,
        header: &BatchHeader,
        timestamp: i64,
        from: i64,
    ) -> io::Result<Option<(i64, i64)>> {
        for _ in 0..header.record_count {
            let (timestamp_delta, offset_delta) = self.record()?;
            let own = header.base_timestamp.checked_add(timestamp_delta);
            let own = own.ok_or_else(|| invalid("a timestamp out of range"))?;
            if !(0..=i64::from(header.last_offset_delta)).contains(&offset_delta) {
                return Err(invalid("an offset outside its batch"));
            }
            let offset = header.base_offset.saturating_add(offset_delta);
            if own >= timestamp && offset >= from {
                return Ok(Some((offset, own)));
            }
        }
        Ok(None)
    }

    /// One record's timestamp and offset, as deltas; the rest of it is skipped.
    fn record(&mut self) -> io::Result<(i64, i64)> {
        let length = usize::try_from(self.zigzag()?).map_err(|_| invalid("a negative length"))?;
        let before = self.left;
        let _attributes = self.byte()?;
        let timestamp_delta = self.zigzag()?;
        let offset_delta = self.zigzag()?;
        let rest = length.checked_sub(before - self.left);
        self.skip(rest.ok_or_else(|| invalid("a record longer than its length"))?)?;
        Ok((timestamp_delta, offset_delta))
    }

    /// A signed varint of up to 64 bits.
    fn zigzag(&mut self) -> io::Result<i64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(invalid("a varint of more than 64 bits"))
    }

    fn byte(&mut self) -> io::Result<u8> {
        self.spend(1)?;
        let mut byte = [0];
        self.source.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn skip(&mut self, mut length: usize) -> io::Result<()> {
        self.spend(length)?;
        while length > 0 {
            let held = self.source.fill_buf()?.len().min(length);
            if held == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.source.consume(held);
            length -= held;
        }
        Ok(())
    }

    /// Counts bytes before they are read. Past the bound nothing is left.
    fn spend(&mut self, length: usize) -> io::Result<()> {
        let left = self.left.checked_sub(length);
        self.left = left.unwrap_or(0);
        left.map(|_| ())
            .ok_or_else(|| invalid("more than is allowed"))
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
