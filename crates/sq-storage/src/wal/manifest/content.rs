//! What a manifest says, from its lines.

use std::collections::{HashMap, HashSet};

use bytes::{BufMut, Bytes, BytesMut};

use super::super::segment::SegmentName;
use super::line::{
    LINE_LEN_V1, LogStart, MANIFEST_LINE_LEN, ManifestEntry, ManifestLine, Truncation, decode_v1,
};

/// What a manifest starts with: magic, version, zero.
const MANIFEST_HEADER: [u8; 8] = *b"SQMF\x00\x02\x00\x00";

/// The same of a manifest of version 1, which is read, and written anew as this one.
const MANIFEST_HEADER_V1: [u8; 8] = *b"SQMF\x00\x01\x00\x00";

/// A manifest as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestContent {
    /// One entry for each segment of the log, in the order in which they were first listed.
    pub entries: Vec<ManifestEntry>,
    /// Segments that are no part of the log any more; their files may still be there.
    pub removed: Vec<ManifestEntry>,
    /// Where the log begins, if it was ever purged.
    pub log_start: Option<LogStart>,
    /// The ends that were cut off the log.
    pub truncations: Vec<Truncation>,
    /// How many lines could not be read, a torn last one included.
    pub damaged_lines: usize,
    /// Whether the file as a whole is not what a manifest should be: missing, short, or of another
    /// version.
    pub unreadable: bool,
    /// Whether it is of an older version, to which nothing is appended.
    pub is_older: bool,
}

impl ManifestContent {
    /// Reads a manifest's bytes. Never fails: what can't be read is counted.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut lines = Lines::default();
        if let Some(rest) = bytes.strip_prefix(&MANIFEST_HEADER) {
            for line in rest.chunks(MANIFEST_LINE_LEN) {
                lines.take(ManifestLine::decode(line));
            }
        } else if let Some(rest) = bytes.strip_prefix(&MANIFEST_HEADER_V1) {
            lines.content.is_older = true;
            for line in rest.chunks(LINE_LEN_V1) {
                lines.take(decode_v1(line).map(ManifestLine::Segment));
            }
        } else {
            lines.content.unreadable = true;
        }
        lines.finish()
    }

    /// The entries by their files' names. Where a name was used again, its last one.
    pub fn by_name(&self) -> HashMap<SegmentName, ManifestEntry> {
        self.entries.iter().map(|e| (e.name, *e)).collect()
    }

    /// Whether it could be read from its first byte to its last.
    pub fn is_intact(&self) -> bool {
        !self.unreadable && self.damaged_lines == 0
    }

    /// Whether lines can be appended to the file that this was read from.
    pub(in super::super) fn takes_lines(&self) -> bool {
        self.is_intact() && !self.is_older
    }

    /// The offset below which the log holds nothing, as far as the manifest says it.
    pub(in super::super) fn start_offset(&self) -> u64 {
        self.log_start.map_or(0, |start| start.offset)
    }

    /// The offset from which on it is void what a segment of this ordinal holds and says.
    pub(in super::super) fn limit_of(&self, ordinal: u32) -> u64 {
        let cuts = self.truncations.iter();
        let cuts = cuts.filter(|cut| ordinal < cut.before_ordinal);
        cuts.map(|cut| cut.offset).min().unwrap_or(u64::MAX)
    }

    /// Whether no part of a segment is part of the log any more.
    pub(in super::super) fn is_void(&self, entry: &ManifestEntry) -> bool {
        let (base, start) = (entry.name.base_offset, self.start_offset());
        let is_purged = base < start && entry.seal.is_some_and(|s| s.end_offset <= start);
        is_purged || base >= self.limit_of(entry.ordinal)
    }

    /// The last segment that was purged, and where it ended, as long as it is listed. It is listed as one
    /// of the log where it took appends at the time and was sealed since.
    pub(in super::super) fn last_purged(&self) -> Option<(ManifestEntry, u64)> {
        let listed = self.removed.iter().chain(&self.entries);
        let purged = listed.filter_map(|entry| {
            let end = entry.seal?.end_offset;
            // What was cut off the log's end says nothing of what came in its place.
            let counts = end <= self.start_offset() && end <= self.limit_of(entry.ordinal);
            (counts && !entry.is_empty()).then_some((*entry, end))
        });
        // No two of these end alike: each begins where the one before it ends, and holds a record.
        purged.max_by_key(|(_, end)| *end)
    }

    /// Takes in a change of a segment, or a new one; whether that is one of the log.
    pub(in super::super) fn set(&mut self, entry: ManifestEntry) -> bool {
        if self.removed.iter().any(|e| e.id == entry.id) {
            return false;
        }
        match self.entries.iter_mut().find(|e| e.id == entry.id) {
            Some(known) => *known = entry,
            None => self.entries.push(entry),
        }
        true
    }

    /// Takes segments out of the log.
    pub(in super::super) fn remove(&mut self, removed: &[ManifestEntry]) {
        let ids: HashSet<_> = removed.iter().map(|e| e.id).collect();
        self.entries.retain(|e| !ids.contains(&e.id));
        self.removed.retain(|e| !ids.contains(&e.id));
        self.removed.extend(removed);
    }

    /// Drops the truncations that say nothing any more: of segments that are gone, or no more than a
    /// later one says.
    pub(super) fn drop_what_is_settled(&mut self) {
        let segments = self.entries.iter().chain(&self.removed);
        let oldest = segments.map(|e| e.ordinal).min();
        let cuts = std::mem::take(&mut self.truncations);
        for cut in cuts {
            if oldest.is_none_or(|ordinal| ordinal >= cut.before_ordinal) {
                continue;
            }
            self.truncations.retain(|earlier| {
                earlier.offset < cut.offset || earlier.before_ordinal > cut.before_ordinal
            });
            self.truncations.push(cut);
        }
    }

    /// Whether it says the same as another, in whatever order.
    pub(super) fn says_the_same_as(&self, other: &Self) -> bool {
        let sorted = |content: &Self| {
            let mut content = content.clone();
            content.entries.sort_by_key(|e| e.id);
            content.removed.sort_by_key(|e| e.id);
            content
        };
        sorted(self) == sorted(other)
    }

    /// A whole manifest, of which nothing is written that another line makes void.
    pub fn encode(&self) -> Bytes {
        let count = self.entries.len() + self.removed.len() + self.truncations.len() + 1;
        let mut out = BytesMut::with_capacity(8 + count * MANIFEST_LINE_LEN);
        out.put_slice(&MANIFEST_HEADER);
        let start = self.log_start.map(ManifestLine::LogStart);
        let cuts = self
            .truncations
            .iter()
            .copied()
            .map(ManifestLine::Truncated);
        let removed = self.removed.iter().copied().map(ManifestLine::Removed);
        let entries = self.entries.iter().copied().map(ManifestLine::Segment);
        for line in start.into_iter().chain(cuts).chain(removed).chain(entries) {
            out.put_slice(&line.encode());
        }
        out.freeze()
    }
}

/// A manifest of which some lines were read.
#[derive(Default)]
struct Lines {
    content: ManifestContent,
    segments: Vec<ManifestLine>,
    places: HashMap<u64, usize>,
}

impl Lines {
    /// Takes the next line, or one that could not be read.
    fn take(&mut self, line: Option<ManifestLine>) {
        let content = &mut self.content;
        let Some(line) = line else {
            content.damaged_lines += 1;
            return;
        };
        match line {
            ManifestLine::Segment(entry) | ManifestLine::Removed(entry) => {
                let place = *self.places.entry(entry.id).or_insert(self.segments.len());
                match self.segments.get_mut(place) {
                    Some(known) => *known = line,
                    None => self.segments.push(line),
                }
            }
            // The log's start never moves back.
            ManifestLine::LogStart(start) => {
                let further = content.log_start.is_none_or(|s| s.offset <= start.offset);
                if further {
                    content.log_start = Some(start);
                }
            }
            ManifestLine::Truncated(cut) => content.truncations.push(cut),
        }
    }

    fn finish(self) -> ManifestContent {
        let mut content = self.content;
        for line in self.segments {
            match line {
                ManifestLine::Removed(entry) => content.removed.push(entry),
                ManifestLine::Segment(entry) => content.entries.push(entry),
                ManifestLine::LogStart(_) | ManifestLine::Truncated(_) => {}
            }
        }
        content
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::tests::{entry, line};
    use super::super::line::{Seal, SegmentTimes};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn file(lines: &[ManifestLine]) -> Vec<u8> {
        let mut bytes = MANIFEST_HEADER.to_vec();
        for line in lines {
            bytes.extend(line.encode());
        }
        bytes
    }

    proptest! {
        #[test]
        fn content_round_trip(lines in vec(line(), 0..8)) {
            let content = ManifestContent::decode(&file(&lines));
            prop_assert!(content.takes_lines());
            prop_assert_eq!(ManifestContent::decode(&content.encode()), content);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..500)) {
            let content = ManifestContent::decode(&bytes);
            prop_assert!(content.entries.len() <= bytes.len() / LINE_LEN_V1);
        }

        #[test]
        fn a_damaged_line_hides_no_other(
            entries in vec(entry(), 1..6), at in any::<usize>(), bit in 0..512usize,
        ) {
            let lines: Vec<_> = entries.iter().copied().map(ManifestLine::Segment).collect();
            let mut bytes = file(&lines);
            let hit = at % entries.len();
            bytes[8 + hit * MANIFEST_LINE_LEN + bit / 8] ^= 1 << (bit % 8);
            let content = ManifestContent::decode(&bytes);
            prop_assert_eq!(content.damaged_lines, 1);
            prop_assert!(!content.is_intact());
            for (i, entry) in entries.iter().enumerate() {
                let same_id = entries.iter().filter(|e| e.id == entry.id).count();
                if i != hit && same_id == 1 {
                    prop_assert!(content.entries.contains(entry));
                }
            }
        }
    }

    fn created() -> ManifestEntry {
        let (base_offset, id) = (5, None);
        ManifestEntry {
            id: 9,
            ordinal: 1,
            name: SegmentName { base_offset, id },
            seal: None,
        }
    }

    fn sealed() -> ManifestEntry {
        let times = SegmentTimes {
            max_timestamp_ms: -1,
            last_append_ms: 77,
        };
        ManifestEntry {
            seal: Some(Seal {
                times: Some(times),
                index_checksum: 3,
                ..Seal::new(8, 300)
            }),
            ..created()
        }
    }

    #[test]
    fn the_last_line_of_a_segment_counts() {
        let lines = [created(), sealed()].map(ManifestLine::Segment);
        let content = ManifestContent::decode(&file(&lines));
        assert_eq!(content.entries, [sealed()]);
        assert!(content.takes_lines());
        let removed = ManifestLine::Removed(sealed());
        let content = ManifestContent::decode(&file(&[lines[0], lines[1], removed]));
        assert_eq!(content.entries, []);
        assert_eq!(content.removed, [sealed()]);
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let line = ManifestLine::Segment(sealed()).encode();
        assert_eq!(line[..8], [2, 2, 0, 0, 0, 0, 0, 1]);
        assert_eq!(
            line[8..24],
            [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5]
        );
        assert_eq!(
            line[24..40],
            [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 1, 44]
        );
        assert_eq!(line[40..48], [255; 8]);
        assert_eq!(line[48..60], [0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 3]);
    }

    #[test]
    fn a_manifest_of_version_1_is_read() {
        let mut bytes = MANIFEST_HEADER_V1.to_vec();
        for (kind, end, length) in [(1u8, 0u64, 0u64), (2, 8, 300)] {
            let mut line = vec![kind, 0, 0, 0, 0, 0, 0, 1];
            for field in [9, 5, end, length] {
                line.put_u64(field);
            }
            line.put_u32(0);
            let crc = crc32fast::hash(&line);
            line.put_u32(crc);
            assert_eq!(line.len(), LINE_LEN_V1);
            bytes.extend(line);
        }
        let content = ManifestContent::decode(&bytes);
        let seal = Some(Seal::new(8, 300));
        assert_eq!(content.entries, [ManifestEntry { seal, ..created() }]);
        assert!(content.is_intact() && !content.takes_lines());
        // A line that is damaged costs itself.
        bytes[20] ^= 1;
        let content = ManifestContent::decode(&bytes);
        assert_eq!((content.entries.len(), content.damaged_lines), (1, 1));
    }

    #[test]
    fn an_empty_file_is_unreadable_and_not_an_error() {
        assert!(ManifestContent::decode(&[]).unreadable);
    }
}
