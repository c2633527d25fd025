//! A recovery point of a segment that takes records: from where on opening has to read it.
//!
//! ```text
//! file:   {segment's name without .wal}.point
//!
//!  0       4   6   8               16              24
//!  +-------+---+---+---------------+---------------+
//!  | "SQRP"|ver| 0 | last frame at | its base      |
//!  +-------+---+---+---------------+-------+-------+-------+-----------------+-------+
//!  | first append  | interval      |its crc| index file of what is in front  |  CRC  |
//!  +---------------+---------------+-------+---------------------------------+-------+
//!  24              32              40      44
//! ```
//!
//! The index is that of [`super::index`], made as if the segment ended at the point: it says which segment
//! that is, the point's position (`length`) and the offset of the next record there (`end offset`). `last
//! frame` is the one that ends there, `first append` the wall clock at the segment's first frame, and
//! `interval` how far apart, in bytes, places in the index are. The CRC-32 covers all before it. All integers
//! are big-endian.
//!
//! A point is made of what was durable before, so it needs no sync: one that is lost, torn, or older than
//! another costs reading more. The last frame has to stand where the point says, for the file to be taken for
//! the one it speaks of. What is in front of it is not read: damage there is found as in a sealed segment,
//! when it is read, or by a [`Scrub`](super::Scrub).

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use sq_sim::FileHandle;

use super::index::{Index, Subject};
use super::segment::SEGMENT_HEADER_LEN;
use super::state::Extent;
use crate::frame::{Frame, FrameHeader, stored_crc};

/// What a recovery point starts with: magic, version, zero.
const POINT_HEADER: [u8; 8] = *b"SQRP\x00\x01\x00\x00";

/// The bytes in front of the index.
const INDEX_POSITION: usize = 44;

const CRC_LEN: usize = 4;

/// A place in a segment in front of which all is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// Which segment it is of, where in it, and at which offset.
    pub(super) subject: Subject,
    pub(super) last: LastFrame,
    /// The wall clock at the segment's first frame, milliseconds since the epoch.
    pub(super) first_append_ms: u64,
    /// Of what is in front of it.
    pub(super) index: Index,
}

/// The frame that ends at a recovery point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastFrame {
    pub(super) position: u64,
    pub(super) base_offset: u64,
    /// The checksum that it carries.
    pub(super) crc: u32,
}

impl Point {
    pub(super) fn encode(&self) -> Bytes {
        let index = self.index.encode(&self.subject);
        let mut file = BytesMut::with_capacity(INDEX_POSITION + index.len() + CRC_LEN);
        file.put_slice(&POINT_HEADER);
        file.put_u64(self.last.position);
        file.put_u64(self.last.base_offset);
        file.put_u64(self.first_append_ms);
        file.put_u64(self.index.interval_bytes());
        file.put_u32(self.last.crc);
        file.put_slice(&index);
        let crc = crc32fast::hash(&file);
        file.put_u32(crc);
        file.freeze()
    }

    /// Reads a recovery point; `None` if it is not whole and valid, or not one of the segment with this id
    /// and base.
    pub(super) fn decode(file: &[u8], id: u64, base_offset: u64) -> Option<Self> {
        let (content, crc) = file.split_last_chunk::<CRC_LEN>()?;
        let (head, index) = content.split_at_checked(INDEX_POSITION)?;
        let mut head = head.strip_prefix(&POINT_HEADER)?;
        if crc32fast::hash(content) != u32::from_be_bytes(*crc) {
            return None;
        }
        let (position, last_base) = (head.get_u64(), head.get_u64());
        let (first_append_ms, interval_bytes) = (head.get_u64(), head.get_u64());
        let last = LastFrame {
            position,
            base_offset: last_base,
            crc: head.get_u32(),
        };
        let subject = Index::subject_of(index)?;
        let index = Index::decode(index, &subject)?.with_interval(interval_bytes);
        let point = Self {
            subject,
            last,
            first_append_ms,
            index,
        };
        point.fits(id, base_offset).then_some(point)
    }

    /// Whether it could be one of this segment.
    fn fits(&self, id: u64, base_offset: u64) -> bool {
        let Extent { end_offset, bytes } = self.subject.extent;
        let start = SEGMENT_HEADER_LEN as u64;
        let is_last = (start..bytes).contains(&self.last.position)
            && (base_offset..=end_offset).contains(&self.last.base_offset);
        let begins = self.index.before_offset(base_offset) == Some((base_offset, start));
        self.is_of(id) && self.subject.base_offset == base_offset && is_last && begins
    }

    fn is_of(&self, id: u64) -> bool {
        #[cfg(feature = "mutants")]
        if super::mutants::lacks(super::mutants::Guard::PointsSegment) {
            return true;
        }
        self.subject.id == id
    }

    /// The frame that ends at the point, if it stands there, all of it as it was, in a file of `file_len`
    /// bytes; none is longer than `most` bytes.
    pub(super) async fn confirm(
        &self,
        file: &dyn FileHandle,
        file_len: u64,
        most: u64,
    ) -> io::Result<Option<FrameHeader>> {
        let Extent { end_offset, bytes } = self.subject.extent;
        let len = bytes.saturating_sub(self.last.position);
        if bytes > file_len || len > most {
            return Ok(None);
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let found = file.read_at(self.last.position, len).await?;
        #[cfg(feature = "mutants")]
        if super::mutants::lacks(super::mutants::Guard::PointsSegment) {
            return Ok(FrameHeader::decode(&found).ok().map(|(header, _)| header));
        }
        let Ok((header, frame_len)) = Frame::check(&found) else {
            return Ok(None);
        };
        let is_it = frame_len == len
            && header.segment_id == self.subject.id
            && header.base_offset == self.last.base_offset
            && header.end_offset() == end_offset
            && stored_crc(&found) == Some(self.last.crc);
        Ok(is_it.then_some(header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameKind;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const ID: u64 = 7;
    const BASE: u64 = 1000;

    /// A point behind frames of these lengths, counts and timestamps, and a mark perhaps.
    fn point(frames: &[(u64, u32, i64)], crc: u32, ends_in_mark: bool) -> Point {
        let mut index = Index::default();
        let (mut position, mut offset) = (SEGMENT_HEADER_LEN as u64, BASE);
        let mut last = (position, offset);
        let mut add = |len: u64, record_count, max_timestamp_ms| {
            let header = FrameHeader {
                segment_id: ID,
                base_offset: offset,
                committed_before: 0,
                max_timestamp_ms,
                append_time_ms: offset,
                record_count,
                leader_epoch: 0,
                ordinal: 0,
                kind: FrameKind::Batch,
            };
            index.note(position, &header, false);
            last = (position, offset);
            position += len;
            offset += u64::from(record_count);
        };
        for (len, count, timestamp) in frames {
            add(*len, *count, *timestamp);
        }
        if ends_in_mark {
            add(64, 0, -1);
        }
        Point {
            subject: Subject {
                id: ID,
                base_offset: BASE,
                extent: Extent {
                    end_offset: offset,
                    bytes: position,
                },
            },
            last: LastFrame {
                position: last.0,
                base_offset: last.1,
                crc,
            },
            first_append_ms: 5,
            index,
        }
    }

    fn points() -> impl Strategy<Value = Point> {
        let frames = vec((64..100_000_u64, 1..9_u32, any::<i64>()), 1..40);
        (frames, any::<u32>(), any::<bool>()).prop_map(|(f, crc, mark)| point(&f, crc, mark))
    }

    /// The file with a right checksum.
    fn sealed(content: &[u8]) -> Vec<u8> {
        [content, &crc32fast::hash(content).to_be_bytes()].concat()
    }

    proptest! {
        #[test]
        fn round_trip(point in points()) {
            let file = point.encode();
            prop_assert_eq!(Point::decode(&file, ID, BASE), Some(point));
        }

        #[test]
        fn every_bit_flip_and_every_other_size_is_refused(point in points()) {
            let file = point.encode();
            for bit in 0..file.len() * 8 {
                let mut flipped = file.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(Point::decode(&flipped, ID, BASE), None);
            }
            for len in 0..file.len() {
                prop_assert_eq!(Point::decode(&file[..len], ID, BASE), None);
            }
            prop_assert_eq!(Point::decode(&[&file[..], &[0]].concat(), ID, BASE), None);
        }

        #[test]
        fn one_of_another_segment_is_refused(point in points(), by in 1..u64::MAX) {
            let file = point.encode();
            prop_assert_eq!(Point::decode(&file, ID ^ by, BASE), None);
            prop_assert_eq!(Point::decode(&file, ID, BASE ^ by), None);
        }

        #[test]
        fn what_makes_no_sense_is_refused_though_its_checksum_fits(point in points()) {
            let change = |change: &dyn Fn(&mut Point)| {
                let mut point = point.clone();
                change(&mut point);
                Point::decode(&point.encode(), ID, BASE)
            };
            let Extent { end_offset, bytes } = point.subject.extent;
            prop_assert_eq!(change(&|p| p.last.position = bytes), None);
            prop_assert_eq!(change(&|p| p.last.position = 31), None);
            prop_assert_eq!(change(&|p| p.last.base_offset = end_offset + 1), None);
            prop_assert_eq!(change(&|p| p.last.base_offset = BASE - 1), None);
            prop_assert_eq!(change(&|p| p.index = Index::default()), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), point in points()) {
            prop_assert!(Point::decode(&bytes, ID, BASE).is_none());
            let _ = Point::decode(&sealed(&[&POINT_HEADER[..], &bytes].concat()), ID, BASE);
            let head = &point.encode()[..INDEX_POSITION];
            let _ = Point::decode(&sealed(&[head, &bytes].concat()), ID, BASE);
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let point = point(&[(100, 3, 9), (64, 1, 8)], 0xfeed, false);
        let file = point.encode();
        assert_eq!(&file[..8], b"SQRP\x00\x01\x00\x00");
        let fields = [132_u64, 1003, 5, 32 * 1024].map(u64::to_be_bytes).concat();
        assert_eq!(file[8..40], fields);
        assert_eq!(file[40..44], 0xfeed_u32.to_be_bytes());
        assert_eq!(file[44..file.len() - 4], point.index.encode(&point.subject));
        assert_eq!(file.len(), 44 + 60 + 24 + 4 + 4);
    }
}
