//! A segment file's header and its name.
//!
//! ```text
//!  0       4     6     8                                   28      32
//!  +-------+-----+-----+-----------------------------------+-------+
//!  | "SQWL"| ver | len | topic, padded with zeros or cut   | part. |
//!  +-------+-----+-----+-----------------------------------+-------+
//! ```
//!
//! All integers are big-endian. The header holds no offset, so that it can be written before the
//! segment's base is known; frames and the file's name hold it.
//!
//! `ver` is 1, or 2 of a file that was a purged segment's before. Of version 1, nothing but zeros stands
//! behind the last write, which is padded with zeros to its page's end (4096 bytes). Of version 2, what the
//! earlier segment left may stand there, valid frames with another id among it: there each write ends with
//! at least four zeros, a frame's length of zero, and they go on to a page's end.

use std::ffi::OsStr;

use bytes::{Buf, BufMut};

use crate::TopicName;

/// The bytes of a segment file in front of its first frame.
pub const SEGMENT_HEADER_LEN: usize = 32;

/// What a segment file starts with.
pub const SEGMENT_MAGIC: [u8; 4] = *b"SQWL";

/// The version of a segment in a file of its own.
pub const SEGMENT_VERSION: u16 = 1;

/// The version of a segment in a file that was another segment's before.
pub const RECYCLED_SEGMENT_VERSION: u16 = 2;

/// How much of a topic's name fits the header, in bytes.
pub const HEADER_TOPIC_LEN: usize = 20;

/// A segment file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The full length of the topic's name in bytes, also where it was cut.
    pub topic_len: u16,
    /// The name's first 20 bytes, padded with zeros.
    pub topic: [u8; HEADER_TOPIC_LEN],
    /// The partition.
    pub partition: u32,
    /// Whether the file was another segment's before, which may have left something behind this one's end.
    pub is_recycled: bool,
}

/// Why bytes are not the header of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentHeaderError {
    /// Not 32 bytes.
    #[error("a segment header has {SEGMENT_HEADER_LEN} bytes, here are {0}")]
    Size(usize),
    /// Does not start with `SQWL`.
    #[error("not a segment: it starts with {0:02x?}")]
    Magic([u8; 4]),
    /// A version that this code does not know.
    #[error(
        "segment format version {0} is not supported, only {SEGMENT_VERSION} and {RECYCLED_SEGMENT_VERSION}"
    )]
    Version(u16),
    /// The padding behind a short name is not zero.
    #[error("the padding behind the topic's name is not zero")]
    Padding,
    /// Another topic or partition than the file's place says.
    #[error("the header is that of {found}, not of {expected}")]
    Place {
        /// What the header says.
        found: String,
        /// What the place says.
        expected: String,
    },
}

impl SegmentHeader {
    /// The header for a partition's segments.
    pub fn new(topic: &TopicName, partition: u32) -> Self {
        let name = topic.as_str().as_bytes();
        let mut padded = [0; HEADER_TOPIC_LEN];
        for (to, from) in padded.iter_mut().zip(name) {
            *to = *from;
        }
        let topic_len = u16::try_from(name.len()).unwrap_or(u16::MAX);
        Self {
            topic_len,
            topic: padded,
            partition,
            is_recycled: false,
        }
    }

    /// The same of a file that was another segment's before.
    pub(super) fn recycled(self) -> Self {
        Self {
            is_recycled: true,
            ..self
        }
    }

    /// The version of its format.
    pub fn version(&self) -> u16 {
        if self.is_recycled {
            RECYCLED_SEGMENT_VERSION
        } else {
            SEGMENT_VERSION
        }
    }

    /// The header's 32 bytes.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_LEN] {
        let mut out = [0; SEGMENT_HEADER_LEN];
        let mut rest = out.as_mut_slice();
        rest.put_slice(&SEGMENT_MAGIC);
        rest.put_u16(self.version());
        rest.put_u16(self.topic_len);
        rest.put_slice(&self.topic);
        rest.put_u32(self.partition);
        out
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// [`SegmentHeaderError`] for anything but 32 bytes of this format and version.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, SegmentHeaderError> {
        if bytes.len() != SEGMENT_HEADER_LEN {
            return Err(SegmentHeaderError::Size(bytes.len()));
        }
        let mut magic = [0; 4];
        bytes.copy_to_slice(&mut magic);
        if magic != SEGMENT_MAGIC {
            return Err(SegmentHeaderError::Magic(magic));
        }
        let version = bytes.get_u16();
        let is_recycled = version == RECYCLED_SEGMENT_VERSION;
        if version != SEGMENT_VERSION && !is_recycled {
            return Err(SegmentHeaderError::Version(version));
        }
        let topic_len = bytes.get_u16();
        let mut topic = [0; HEADER_TOPIC_LEN];
        bytes.copy_to_slice(&mut topic);
        let header = Self {
            topic_len,
            topic,
            partition: bytes.get_u32(),
            is_recycled,
        };
        if topic
            .iter()
            .skip(header.clamped_topic_len())
            .any(|&b| b != 0)
        {
            return Err(SegmentHeaderError::Padding);
        }
        Ok(header)
    }

    /// Checks that the header is that of the partition that `expected` is of.
    ///
    /// # Errors
    /// [`SegmentHeaderError::Place`] if not.
    pub fn check_place(&self, expected: &Self) -> Result<(), SegmentHeaderError> {
        let is_recycled = expected.is_recycled;
        if (Self {
            is_recycled,
            ..*self
        }) == *expected
        {
            return Ok(());
        }
        Err(SegmentHeaderError::Place {
            found: self.place(),
            expected: expected.place(),
        })
    }

    /// How much of the name is in the header: its length, clamped to the 20 bytes.
    fn clamped_topic_len(&self) -> usize {
        usize::from(self.topic_len).min(HEADER_TOPIC_LEN)
    }

    fn place(&self) -> String {
        let name = self
            .topic
            .get(..self.clamped_topic_len())
            .unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        let more = if usize::from(self.topic_len) > HEADER_TOPIC_LEN {
            "…"
        } else {
            ""
        };
        format!(
            "topic {name:?}{more} ({} bytes), partition {}",
            self.topic_len, self.partition
        )
    }
}

/// The name of a segment's file. It is for people, and for recovery where the manifest is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// The segment's first offset.
    pub base_offset: u64,
    /// The segment's id, where an older file already has the plain name.
    pub id: Option<u64>,
}

impl SegmentName {
    /// `{base_offset}.wal` with 20 digits, or `{base_offset}-{id}.wal` with 16 hexadecimal ones.
    pub fn file_name(&self) -> String {
        match self.id {
            None => format!("{:020}.wal", self.base_offset),
            Some(id) => format!("{:020}-{id:016x}.wal", self.base_offset),
        }
    }

    /// Reads a file name; `None` if it is not one that [`file_name`](Self::file_name) gives.
    pub fn parse(name: &OsStr) -> Option<Self> {
        let stem = name.to_str()?.strip_suffix(".wal")?;
        let (base, id) = match stem.split_once('-') {
            Some((base, id)) => (base, Some(u64::from_str_radix(id, 16).ok()?)),
            None => (stem, None),
        };
        let parsed = Self {
            base_offset: base.parse().ok()?,
            id,
        };
        (name == OsStr::new(&parsed.file_name())).then_some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn topic() -> impl Strategy<Value = TopicName> {
        "[a-zA-Z0-9_-]{1,249}".prop_map(|name| TopicName::new(&name).unwrap())
    }

    proptest! {
        #[test]
        fn header_round_trip(
            topic in topic(), partition in any::<u32>(), is_recycled in any::<bool>(),
        ) {
            let header = SegmentHeader { is_recycled, ..SegmentHeader::new(&topic, partition) };
            let bytes = header.encode();
            prop_assert_eq!(bytes.len(), 32);
            prop_assert_eq!(SegmentHeader::decode(&bytes).unwrap(), header);
        }

        #[test]
        fn every_bit_flip_is_refused_or_names_another_place(
            topic in topic(), partition in any::<u32>(), is_recycled in any::<bool>(),
            bit in 0..256usize,
        ) {
            let header = SegmentHeader { is_recycled, ..SegmentHeader::new(&topic, partition) };
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = SegmentHeader::decode(&bytes).and_then(|h| h.check_place(&header));
            prop_assert!(read.is_err());
        }

        #[test]
        fn name_round_trip(base in any::<u64>(), id in proptest::option::of(any::<u64>())) {
            let name = SegmentName { base_offset: base, id };
            prop_assert_eq!(SegmentName::parse(OsStr::new(&name.file_name())), Some(name));
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let topic = TopicName::new("orders").unwrap();
        let bytes = SegmentHeader::new(&topic, 7).encode();
        assert_eq!(&bytes[..8], b"SQWL\x00\x01\x00\x06");
        assert_eq!(&bytes[8..28], b"orders\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&bytes[28..], [0, 0, 0, 7]);
        let recycled = SegmentHeader::new(&topic, 7).recycled();
        assert_eq!(&recycled.encode()[..8], b"SQWL\x00\x02\x00\x06");
        assert_eq!(recycled.check_place(&SegmentHeader::new(&topic, 7)), Ok(()));
    }

    #[test]
    fn every_other_size_is_refused() {
        let bytes = [SegmentHeader::new(&TopicName::new("t").unwrap(), 0).encode(); 2].concat();
        for len in (0..=64).filter(|&len| len != 32) {
            assert_eq!(
                SegmentHeader::decode(&bytes[..len]),
                Err(SegmentHeaderError::Size(len))
            );
        }
    }

    #[test]
    fn names_that_are_not_exactly_ours_are_not_segments() {
        for name in [
            "0.wal",
            "00000000000000000000",
            "+0000000000000000000.wal",
            "00000000000000000000-0.wal",
            "99999999999999999999.wal",
            "00000000000000000001.WAL",
        ] {
            assert_eq!(SegmentName::parse(OsStr::new(name)), None, "{name}");
        }
    }
}
