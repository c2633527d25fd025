//! The index of a segment: where some of its frames stand, by offset and by timestamp.
//!
//! ```text
//! file:   {segment's name without .wal}.index
//!
//!  0       4   6   8               16              24              32
//!  +-------+---+---+---------------+---------------+---------------+
//!  | "SQIX"|ver| 0 |  segment id   |  base offset  |  end offset   |
//!  +-------+---+---+---------------+---------------+-------+-------+
//!  |    length     | max timestamp |  last append  | count | entries, then CRC
//!  +---------------+---------------+---------------+-------+
//!  32              40              48              56      60
//!
//! entry:  0               8               16              24
//!         +---------------+---------------+---------------+
//!         |    offset     |   position    | max ts before |
//!         +---------------+---------------+---------------+
//! ```
//!
//! `end offset` and `length` are those of the segment that it was made for: of one that was cut since,
//! it says nothing. `max ts before` is the greatest timestamp of all frames in front of the entry's, the
//! least `i64` where there is none. The CRC-32 covers all before it, and the file ends with it. All
//! integers are big-endian.
//!
//! An index holds nothing that its segment does not say. It is written behind the seal, and made anew
//! from the segment where it is missing or wrong in any way.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::manifest::SegmentTimes;
use super::state::Extent;
use crate::frame::FrameHeader;

/// What an index file starts with: magic, version, zero.
const INDEX_HEADER: [u8; 8] = *b"SQIX\x00\x01\x00\x00";

/// The bytes of an index file in front of its entries.
pub(super) const INDEX_HEADER_LEN: usize = 60;

/// The bytes of an entry.
pub(super) const INDEX_ENTRY_LEN: usize = 24;

/// The bytes that say what an index is of.
const SUBJECT_LEN: usize = 32;

const CRC_LEN: usize = 4;

/// A frame's place is remembered for every so many bytes of a segment at least.
const MIN_INTERVAL_BYTES: u64 = 32 * 1024;

/// So many places are remembered at most. With more, every second one is let go of.
const MAX_ENTRIES: usize = 4096;

/// No timestamp.
const NONE: i64 = i64::MIN;

/// Where some frames of a segment stand, in the order of their offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Index {
    entries: Vec<IndexEntry>,
    interval_bytes: u64,
    max_timestamp_ms: i64,
    last_append_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexEntry {
    offset: u64,
    position: u64,
    /// The greatest timestamp of any frame before this one.
    max_timestamp_before_ms: i64,
}

/// The segment that an index file speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) id: u64,
    pub(super) base_offset: u64,
    pub(super) extent: Extent,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            interval_bytes: MIN_INTERVAL_BYTES,
            max_timestamp_ms: NONE,
            last_append_ms: 0,
        }
    }
}

impl Index {
    /// Notes a frame; frames come in the order of their offsets. One that can't be reached from the
    /// frame before it, because something between them is damaged, `begins` a run.
    pub(super) fn note(&mut self, position: u64, header: &FrameHeader, begins: bool) {
        if header.record_count == 0 {
            return;
        }
        let last = self.entries.last();
        if begins || last.is_none_or(|e| position - e.position >= self.interval_bytes) {
            self.make_room();
            self.entries.push(IndexEntry {
                offset: header.base_offset,
                position,
                max_timestamp_before_ms: self.max_timestamp_ms,
            });
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(header.max_timestamp_ms);
        self.last_append_ms = header.append_time_ms;
    }

    fn make_room(&mut self) {
        if self.entries.len() < MAX_ENTRIES {
            return;
        }
        let mut is_kept = false;
        self.entries.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
        self.interval_bytes = self.interval_bytes.saturating_mul(2);
    }

    /// The index of what is in front of `position`, whose frames are from these times.
    pub(super) fn up_to(&self, position: u64, times: SegmentTimes) -> Self {
        let behind = self.entries.partition_point(|e| e.position < position);
        Self {
            entries: self.entries.get(..behind).unwrap_or_default().to_vec(),
            interval_bytes: self.interval_bytes,
            max_timestamp_ms: times.max_timestamp_ms,
            last_append_ms: times.last_append_ms,
        }
    }

    /// Takes over what another index says of what is in front of `position`.
    pub(super) fn mend(&mut self, position: u64, front: Self) {
        let behind = self.entries.partition_point(|e| e.position < position);
        self.entries.splice(..behind, front.entries);
        while self.entries.len() > MAX_ENTRIES {
            self.make_room();
        }
        self.interval_bytes = self.interval_bytes.max(front.interval_bytes);
        self.max_timestamp_ms = self.max_timestamp_ms.max(front.max_timestamp_ms);
    }

    /// How far apart in the segment its places are, in bytes.
    pub(super) fn interval_bytes(&self) -> u64 {
        self.interval_bytes
    }

    pub(super) fn with_interval(self, bytes: u64) -> Self {
        Self {
            interval_bytes: bytes.max(MIN_INTERVAL_BYTES),
            ..self
        }
    }

    /// A frame at or before the one that holds `offset`: its offset and position.
    pub(super) fn before_offset(&self, offset: u64) -> Option<(u64, u64)> {
        let behind = self.entries.partition_point(|e| e.offset <= offset);
        self.place(behind)
    }

    /// A frame at or before the first one whose greatest timestamp is at least `timestamp_ms`.
    pub(super) fn before_timestamp(&self, timestamp_ms: i64) -> Option<(u64, u64)> {
        let wanted = timestamp_ms.max(NONE + 1);
        let behind = self
            .entries
            .partition_point(|e| e.max_timestamp_before_ms < wanted);
        self.place(behind)
    }

    fn place(&self, behind: usize) -> Option<(u64, u64)> {
        let entry = self.entries.get(behind.checked_sub(1)?)?;
        Some((entry.offset, entry.position))
    }

    /// When the frames are from; `None` while there is none.
    pub(super) fn times(&self) -> Option<SegmentTimes> {
        (!self.entries.is_empty()).then_some(SegmentTimes {
            max_timestamp_ms: self.max_timestamp_ms,
            last_append_ms: self.last_append_ms,
        })
    }

    /// The bytes that it takes in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.entries.capacity() * size_of::<IndexEntry>()
    }

    /// The index file of a segment.
    pub(super) fn encode(&self, subject: &Subject) -> Bytes {
        let len = INDEX_HEADER_LEN + self.entries.len() * INDEX_ENTRY_LEN + CRC_LEN;
        let mut file = BytesMut::with_capacity(len);
        file.put_slice(&INDEX_HEADER);
        file.put_u64(subject.id);
        file.put_u64(subject.base_offset);
        file.put_u64(subject.extent.end_offset);
        file.put_u64(subject.extent.bytes);
        file.put_i64(self.max_timestamp_ms);
        file.put_u64(self.last_append_ms);
        file.put_u32(u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        for entry in &self.entries {
            file.put_u64(entry.offset);
            file.put_u64(entry.position);
            file.put_i64(entry.max_timestamp_before_ms);
        }
        let crc = crc32fast::hash(&file);
        file.put_u32(crc);
        file.freeze()
    }

    /// What an index file says that it is of.
    pub(super) fn subject_of(file: &[u8]) -> Option<Subject> {
        let mut rest = file.strip_prefix(&INDEX_HEADER)?;
        Some(Subject {
            id: rest.try_get_u64().ok()?,
            base_offset: rest.try_get_u64().ok()?,
            extent: Extent {
                end_offset: rest.try_get_u64().ok()?,
                bytes: rest.try_get_u64().ok()?,
            },
        })
    }

    /// Reads an index file; `None` if it is not whole and valid, or not that of the segment as it is.
    pub(super) fn decode(file: &[u8], subject: &Subject) -> Option<Self> {
        let (content, crc) = file.split_last_chunk::<CRC_LEN>()?;
        let mut rest = content.strip_prefix(&INDEX_HEADER)?;
        if content.len() < INDEX_HEADER_LEN || crc32fast::hash(content) != u32::from_be_bytes(*crc)
        {
            return None;
        }
        let found = Self::subject_of(content)?;
        rest.advance(SUBJECT_LEN);
        let (max_timestamp_ms, last_append_ms) = (rest.get_i64(), rest.get_u64());
        let count = usize::try_from(rest.get_u32()).ok()?;
        if found != *subject || rest.len() != count.checked_mul(INDEX_ENTRY_LEN)? {
            return None;
        }
        let mut entries = Vec::with_capacity(count);
        while rest.has_remaining() {
            entries.push(IndexEntry {
                offset: rest.get_u64(),
                position: rest.get_u64(),
                max_timestamp_before_ms: rest.get_i64(),
            });
        }
        let index = Self {
            entries,
            max_timestamp_ms,
            last_append_ms,
            ..Self::default()
        };
        index.fits(subject).then_some(index)
    }

    /// Whether it could be that of the segment: places in order and within it.
    fn fits(&self, subject: &Subject) -> bool {
        let within = |e: &IndexEntry| {
            (subject.base_offset..subject.extent.end_offset).contains(&e.offset)
                && e.position < subject.extent.bytes
                && e.max_timestamp_before_ms <= self.max_timestamp_ms
        };
        let ordered = |pair: &[IndexEntry]| match pair {
            [a, b] => {
                a.offset < b.offset
                    && a.position < b.position
                    && a.max_timestamp_before_ms <= b.max_timestamp_before_ms
            }
            _ => true,
        };
        self.entries.iter().all(within) && self.entries.windows(2).all(ordered)
    }
}

/// The checksum at the end of an index file, as the manifest keeps it; 0 for none.
pub(super) fn checksum(file: &[u8]) -> u32 {
    let crc = file.last_chunk::<CRC_LEN>();
    crc.map_or(0, |crc| u32::from_be_bytes(*crc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameKind;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn header(base_offset: u64, record_count: u32, max_timestamp_ms: i64) -> FrameHeader {
        FrameHeader {
            segment_id: 7,
            base_offset,
            committed_before: 0,
            max_timestamp_ms,
            append_time_ms: base_offset,
            record_count,
            leader_epoch: 0,
            ordinal: 0,
            kind: FrameKind::Batch,
        }
    }

    /// An index of frames of these lengths, counts and timestamps, its segment, and the frames.
    fn index(frames: &[(u64, u32, i64)]) -> (Index, Subject, Vec<(u64, FrameHeader)>) {
        let mut index = Index::default();
        let (mut position, mut offset) = (32, 1000);
        let mut all = Vec::new();
        for (len, count, timestamp) in frames {
            let header = header(offset, *count, *timestamp);
            index.note(position, &header, false);
            all.push((position, header));
            position += len;
            offset += u64::from(*count);
        }
        let subject = Subject {
            id: 7,
            base_offset: 1000,
            extent: Extent {
                end_offset: offset,
                bytes: position,
            },
        };
        (index, subject, all)
    }

    fn frames() -> impl Strategy<Value = Vec<(u64, u32, i64)>> {
        vec((64..100_000_u64, 1..9_u32, any::<i64>()), 0..40)
    }

    proptest! {
        #[test]
        fn round_trip(frames in frames()) {
            let (index, subject, _) = index(&frames);
            let file = index.encode(&subject);
            prop_assert_eq!(Index::decode(&file, &subject), Some(index));
        }

        #[test]
        fn every_bit_flip_and_every_other_size_is_refused(frames in frames()) {
            let (index, subject, _) = index(&frames);
            let file = index.encode(&subject);
            for bit in 0..file.len() * 8 {
                let mut flipped = file.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(Index::decode(&flipped, &subject), None);
            }
            for len in 0..file.len() {
                prop_assert_eq!(Index::decode(&file[..len], &subject), None);
            }
            prop_assert_eq!(Index::decode(&[&file[..], &[0]].concat(), &subject), None);
        }

        #[test]
        fn the_index_of_another_segment_is_refused(frames in frames(), by in 1..u64::MAX) {
            let (index, subject, _) = index(&frames);
            let file = index.encode(&subject);
            let Subject { id, base_offset, extent } = subject;
            let Extent { end_offset, bytes } = extent;
            for other in [
                Subject { id: id ^ by, ..subject },
                Subject { base_offset: base_offset ^ by, ..subject },
                Subject { extent: Extent { end_offset: end_offset ^ by, bytes }, ..subject },
                Subject { extent: Extent { end_offset, bytes: bytes ^ by }, ..subject },
            ] {
                prop_assert_eq!(Index::decode(&file, &other), None);
            }
        }

        #[test]
        fn what_makes_no_sense_is_refused_though_its_checksum_fits(
            frames in vec((40_000..100_000_u64, 1..9_u32, 0..100_i64), 2..10), at in any::<usize>(),
        ) {
            let (index, subject, _) = index(&frames);
            let at = at % index.entries.len();
            let change = |change: &dyn Fn(&mut IndexEntry)| {
                let mut index = index.clone();
                change(&mut index.entries[at]);
                Index::decode(&index.encode(&subject), &subject)
            };
            prop_assert_eq!(change(&|e| e.position = subject.extent.bytes), None);
            prop_assert_eq!(change(&|e| e.offset = subject.extent.end_offset), None);
            prop_assert_eq!(change(&|e| e.offset = 0), None);
            prop_assert_eq!(change(&|e| e.max_timestamp_before_ms = i64::MAX), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
            let (_, subject, _) = index(&[(100, 1, 0)]);
            let mut sealed = [&INDEX_HEADER[..], &bytes].concat();
            let crc = crc32fast::hash(&sealed);
            sealed.put_u32(crc);
            prop_assert!(Index::decode(&bytes, &subject).is_none());
            let _ = Index::decode(&sealed, &subject);
        }

        #[test]
        fn a_place_is_never_behind_what_is_looked_for(
            frames in vec((64..100_000_u64, 1..9_u32, -5..50_i64), 1..60), timestamp in -5..55_i64,
        ) {
            let (index, subject, all) = index(&frames);
            for offset in 1000..subject.extent.end_offset {
                let (found, position) = index.before_offset(offset).unwrap();
                prop_assert!(found <= offset);
                prop_assert!(all.iter().any(|(p, h)| *p == position && h.base_offset == found));
            }
            if let Some((_, wanted)) = all.iter().find(|(_, h)| h.max_timestamp_ms >= timestamp) {
                let (found, _) = index.before_timestamp(timestamp).unwrap();
                prop_assert!(found <= wanted.base_offset);
            }
        }
    }

    #[test]
    fn it_stays_small_however_large_the_segment_is() {
        let frames = vec![(40_000, 1, 0); 50_000];
        let (index, _, all) = index(&frames);
        assert!(index.memory_bytes() <= 2 * MAX_ENTRIES * INDEX_ENTRY_LEN);
        for (position, header) in all.iter().step_by(997) {
            let (_, found) = index.before_offset(header.base_offset).unwrap();
            assert!(position - found < 4 << 20);
        }
    }

    #[test]
    fn offsets_far_behind_the_base_are_kept_whole() {
        // An index with 32-bit offsets wrapped where a batch stood 2^31 or 2^32 behind its segment's
        // base, and whoever came across that entry died.
        let count = i32::MAX.unsigned_abs();
        let (index, subject, all) = index(&[
            (40_000, count, 0),
            (40_000, count, 0),
            (40_000, count, 0),
            (64, 1, 0),
        ]);
        let file = index.encode(&subject);
        let index = Index::decode(&file, &subject).unwrap();
        for (position, header) in all {
            let (offset, found) = index.before_offset(header.base_offset).unwrap();
            assert_eq!((offset, found), (header.base_offset, position));
        }
    }
}
