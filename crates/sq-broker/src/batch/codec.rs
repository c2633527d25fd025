//! The codecs of a batch's records, as streams that decompress no further than they are read.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use bytes::{Buf, Bytes};

/// How a batch's records are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip.
    Gzip,
    /// Snappy, raw or in the framing of its Java library.
    Snappy,
    /// An LZ4 frame.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// What the Java library's Snappy streams begin with; two version numbers follow.
const SNAPPY_FRAMING: &[u8] = b"\x82SNAPPY\0";

/// Bytes of those two numbers.
const SNAPPY_VERSIONS: usize = 8;

/// The most that Snappy can expand its input: its densest element is three bytes for 64.
const SNAPPY_EXPANSION: usize = 22;

/// The largest zstd window that is allowed, whatever may be decompressed, and the largest that is
/// allowed at all, as powers of two: what levels up to 19 ask for, and what any level does.
const ZSTD_WINDOW_LOG: (u32, u32) = (23, 27);

impl Compression {
    /// The attributes' bits that name the codec.
    pub const BITS: i16 = 0x07;

    /// The codec that a batch's attributes name; `None` for a number that stands for none.
    pub fn from_bits(attributes: i16) -> Option<Self> {
        match attributes & Self::BITS {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// A stream of what `records` hold.
    ///
    /// It holds no more than `max` bytes of them, or the codec's window where that is larger: 8 MiB
    /// for LZ4 and for zstd.
    pub(super) fn reader(self, records: Bytes, max: usize) -> io::Result<Box<dyn BufRead>> {
        let source = Cursor::new(records.clone());
        Ok(match self {
            Self::None => Box::new(source),
            Self::Gzip => Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(source))),
            Self::Snappy if records.starts_with(SNAPPY_FRAMING) => {
                Box::new(BufReader::new(SnappyBlocks {
                    rest: records,
                    block: Bytes::new(),
                    max,
                }))
            }
            Self::Snappy => Box::new(Cursor::new(snappy_block(&records, max)?)),
            Self::Lz4 => Box::new(BufReader::new(lz4_flex::frame::FrameDecoder::new(source))),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
                let (least, most) = ZSTD_WINDOW_LOG;
                decoder.window_log_max(max.checked_ilog2().unwrap_or(0).clamp(least, most))?;
                Box::new(BufReader::new(decoder))
            }
        })
    }
}

/// The blocks of the Java library's Snappy framing, each behind its length.
struct SnappyBlocks {
    rest: Bytes,
    block: Bytes,
    max: usize,
}

impl Read for SnappyBlocks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.block.is_empty() && !self.rest.is_empty() {
            // Streams that were written one behind the other each have their own beginning.
            if self.rest.starts_with(SNAPPY_FRAMING) {
                let begin = SNAPPY_FRAMING.len() + SNAPPY_VERSIONS;
                self.rest.advance(begin.min(self.rest.len()));
                continue;
            }
            let length = self
                .rest
                .try_get_i32()
                .map_err(|_| invalid("a cut snappy block"))?;
            let length = usize::try_from(length)
                .ok()
                .filter(|length| *length <= self.rest.len());
            let length = length.ok_or_else(|| invalid("a snappy block longer than its stream"))?;
            self.block = snappy_block(&self.rest.split_to(length), self.max)?.into();
        }
        let take = self.block.len().min(out.len());
        if let Some(out) = out.get_mut(..take) {
            self.block.copy_to_slice(out);
        }
        Ok(take)
    }
}

fn snappy_block(block: &[u8], max: usize) -> io::Result<Vec<u8>> {
    let length = snap::raw::decompress_len(block).map_err(io::Error::other)?;
    if length > max || length > SNAPPY_EXPANSION.saturating_mul(block.len()) {
        return Err(invalid(
            "a snappy block that claims more than it can hold or than is allowed",
        ));
    }
    snap::raw::Decoder::new()
        .decompress_vec(block)
        .map_err(io::Error::other)
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
