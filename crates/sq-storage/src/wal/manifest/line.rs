//! The lines of a manifest.

use bytes::{Buf, BufMut};

use super::super::segment::SegmentName;

/// The bytes of one line.
pub const MANIFEST_LINE_LEN: usize = 64;

/// The bytes of a line of version 1.
pub(super) const LINE_LEN_V1: usize = 48;

const CRC_LEN: usize = 4;

const CREATED: u8 = 1;
const SEALED: u8 = 2;
const REMOVED: u8 = 3;
const LOG_START: u8 = 4;
const TRUNCATED: u8 = 5;

/// The file's name carries the segment's id.
const NAMED: u8 = 1;
/// The two times of a seal are known.
const TIMED: u8 = 2;

/// When the records of a segment are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentTimes {
    /// The greatest timestamp of any record, in milliseconds since the epoch; below 0 for none.
    pub max_timestamp_ms: i64,
    /// The wall clock at the last append, milliseconds since the epoch.
    pub last_append_ms: u64,
}

/// What sealing a segment fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The offset behind its last record.
    pub end_offset: u64,
    /// The bytes of header and frames.
    pub length: u64,
    /// When its records are from, where that is known: manifests of version 1 did not say it.
    pub times: Option<SegmentTimes>,
    /// The checksum of its index, 0 while there is none.
    pub index_checksum: u32,
}

impl Seal {
    /// A seal that says nothing of times or index.
    pub fn new(end_offset: u64, length: u64) -> Self {
        Self {
            end_offset,
            length,
            times: None,
            index_checksum: 0,
        }
    }
}

/// What the manifest says of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The segment's id.
    pub id: u64,
    /// Its place among all segments ever made for the partition.
    pub ordinal: u32,
    /// Its file's name.
    pub name: SegmentName,
    /// Its end, once it is sealed.
    pub seal: Option<Seal>,
}

impl ManifestEntry {
    /// Whether the segment was sealed without a record.
    pub fn is_empty(&self) -> bool {
        self.seal
            .is_some_and(|s| s.end_offset == self.name.base_offset)
    }
}

/// Where the log begins, whatever segments there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStart {
    /// Everything below this offset is gone, and was committed before it went.
    pub offset: u64,
    /// The ordinal that the next segment would have got. Ordinals never start again.
    pub next_ordinal: u32,
}

/// An end that was cut off the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// The first offset that was cut off.
    pub offset: u64,
    /// What segments of a lower ordinal hold, or say, of offsets from `offset` on is void.
    pub before_ordinal: u32,
}

/// One line of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestLine {
    /// A segment that is created or sealed.
    Segment(ManifestEntry),
    /// A segment that is no part of the log any more, as it was last; its file may still be there.
    Removed(ManifestEntry),
    /// Where the log begins.
    LogStart(LogStart),
    /// An end that was cut off.
    Truncated(Truncation),
}

/// A line's fields as they stand in it, all but the checksum.
#[derive(Default)]
struct Fields {
    kind: u8,
    flags: u8,
    ordinal: u32,
    id: u64,
    base_offset: u64,
    end_offset: u64,
    length: u64,
    times: Option<SegmentTimes>,
    index_checksum: u32,
}

impl Fields {
    fn segment(entry: &ManifestEntry, kind: u8) -> Self {
        let seal = entry.seal.unwrap_or(Seal::new(0, 0));
        let named = if entry.name.id.is_some() { NAMED } else { 0 };
        let timed = if seal.times.is_some() { TIMED } else { 0 };
        Self {
            kind,
            flags: named | timed,
            ordinal: entry.ordinal,
            id: entry.id,
            base_offset: entry.name.base_offset,
            end_offset: seal.end_offset,
            length: seal.length,
            times: seal.times,
            index_checksum: seal.index_checksum,
        }
    }

    fn entry(&self, is_sealed: bool) -> Option<ManifestEntry> {
        let seal = Seal {
            end_offset: self.end_offset,
            length: self.length,
            times: self.times,
            index_checksum: self.index_checksum,
        };
        if is_sealed && seal.end_offset < self.base_offset {
            return None;
        }
        Some(ManifestEntry {
            id: self.id,
            ordinal: self.ordinal,
            name: SegmentName {
                base_offset: self.base_offset,
                id: (self.flags & NAMED != 0).then_some(self.id),
            },
            seal: is_sealed.then_some(seal),
        })
    }
}

impl From<&ManifestLine> for Fields {
    fn from(line: &ManifestLine) -> Self {
        match line {
            ManifestLine::Segment(entry) if entry.seal.is_some() => Self::segment(entry, SEALED),
            ManifestLine::Segment(entry) => Self::segment(entry, CREATED),
            ManifestLine::Removed(entry) => Self::segment(entry, REMOVED),
            ManifestLine::LogStart(start) => Self {
                kind: LOG_START,
                ordinal: start.next_ordinal,
                base_offset: start.offset,
                ..Self::default()
            },
            ManifestLine::Truncated(cut) => Self {
                kind: TRUNCATED,
                ordinal: cut.before_ordinal,
                base_offset: cut.offset,
                ..Self::default()
            },
        }
    }
}

impl ManifestLine {
    /// One line, 64 bytes.
    pub fn encode(&self) -> [u8; MANIFEST_LINE_LEN] {
        let fields = Fields::from(self);
        let mut line = [0; MANIFEST_LINE_LEN];
        let mut rest = line.as_mut_slice();
        rest.put_u8(fields.kind);
        rest.put_u8(fields.flags);
        rest.put_u16(0);
        rest.put_u32(fields.ordinal);
        rest.put_u64(fields.id);
        rest.put_u64(fields.base_offset);
        rest.put_u64(fields.end_offset);
        rest.put_u64(fields.length);
        rest.put_i64(fields.times.map_or(0, |t| t.max_timestamp_ms));
        rest.put_u64(fields.times.map_or(0, |t| t.last_append_ms));
        rest.put_u32(fields.index_checksum);
        let crc = crc32fast::hash(line.get(..MANIFEST_LINE_LEN - CRC_LEN).unwrap_or_default());
        if let Some(slot) = line.last_chunk_mut::<CRC_LEN>() {
            *slot = crc.to_be_bytes();
        }
        line
    }

    /// Reads a line; `None` if it is not whole and valid, or not as [`encode`](Self::encode) would
    /// write it.
    pub fn decode(line: &[u8]) -> Option<Self> {
        let mut rest = covered(line, MANIFEST_LINE_LEN)?;
        let (kind, flags, _) = (rest.get_u8(), rest.get_u8(), rest.get_u16());
        let mut fields = Fields {
            kind,
            flags,
            ordinal: rest.get_u32(),
            id: rest.get_u64(),
            base_offset: rest.get_u64(),
            end_offset: rest.get_u64(),
            length: rest.get_u64(),
            ..Fields::default()
        };
        let times = SegmentTimes {
            max_timestamp_ms: rest.get_i64(),
            last_append_ms: rest.get_u64(),
        };
        fields.times = (flags & TIMED != 0).then_some(times);
        fields.index_checksum = rest.get_u32();
        let (offset, ordinal) = (fields.base_offset, fields.ordinal);
        let read = match kind {
            CREATED => Self::Segment(fields.entry(false)?),
            SEALED => Self::Segment(fields.entry(true)?),
            REMOVED => Self::Removed(fields.entry(true)?),
            LOG_START => Self::LogStart(LogStart {
                offset,
                next_ordinal: ordinal,
            }),
            TRUNCATED => Self::Truncated(Truncation {
                offset,
                before_ordinal: ordinal,
            }),
            _ => return None,
        };
        (read.encode() == line).then_some(read)
    }
}

/// The bytes of a line that its checksum covers, if it does.
fn covered(line: &[u8], len: usize) -> Option<&[u8]> {
    let (covered, mut crc) = line.split_at_checked(len - CRC_LEN)?;
    (crc.len() == CRC_LEN && crc.get_u32() == crc32fast::hash(covered)).then_some(covered)
}

/// Reads a line of version 1: created and sealed segments, without times.
pub(super) fn decode_v1(line: &[u8]) -> Option<ManifestEntry> {
    let mut rest = covered(line, LINE_LEN_V1)?;
    let (kind, flags, zero) = (rest.get_u8(), rest.get_u8(), rest.get_u16());
    if zero != 0 || flags & !NAMED != 0 || !matches!(kind, CREATED | SEALED) {
        return None;
    }
    let fields = Fields {
        kind,
        flags,
        ordinal: rest.get_u32(),
        id: rest.get_u64(),
        base_offset: rest.get_u64(),
        end_offset: rest.get_u64(),
        length: rest.get_u64(),
        times: None,
        index_checksum: rest.get_u32(),
    };
    fields.entry(kind == SEALED)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seal() -> impl Strategy<Value = Seal> {
        let times = any::<Option<(i64, u64)>>().prop_map(|times| {
            times.map(|(max_timestamp_ms, last_append_ms)| SegmentTimes {
                max_timestamp_ms,
                last_append_ms,
            })
        });
        (any::<u64>(), any::<u64>(), times, any::<u32>()).prop_map(
            |(end_offset, length, times, index_checksum)| Seal {
                end_offset,
                length,
                times,
                index_checksum,
            },
        )
    }

    pub(in super::super) fn entry() -> impl Strategy<Value = ManifestEntry> {
        (
            any::<u64>(),
            any::<u32>(),
            any::<u64>(),
            any::<bool>(),
            proptest::option::of(seal()),
        )
            .prop_map(|(id, ordinal, base_offset, named, seal)| ManifestEntry {
                id,
                ordinal,
                name: SegmentName {
                    base_offset,
                    id: named.then_some(id),
                },
                seal: seal.map(|seal| Seal {
                    end_offset: base_offset.saturating_add(seal.end_offset),
                    ..seal
                }),
            })
    }

    pub(in super::super) fn line() -> impl Strategy<Value = ManifestLine> {
        let removed = entry().prop_filter_map("sealed", |e| {
            e.seal.is_some().then_some(ManifestLine::Removed(e))
        });
        let mark = (any::<u64>(), any::<u32>());
        prop_oneof![
            entry().prop_map(ManifestLine::Segment),
            removed,
            mark.prop_map(|(offset, next_ordinal)| ManifestLine::LogStart(LogStart {
                offset,
                next_ordinal
            })),
            mark.prop_map(
                |(offset, before_ordinal)| ManifestLine::Truncated(Truncation {
                    offset,
                    before_ordinal
                })
            ),
        ]
    }

    proptest! {
        #[test]
        fn line_round_trip(line in line()) {
            prop_assert_eq!(ManifestLine::decode(&line.encode()), Some(line));
        }

        #[test]
        fn every_bit_flip_and_every_other_size_is_refused(line in line()) {
            let line = line.encode();
            for bit in 0..MANIFEST_LINE_LEN * 8 {
                let mut flipped = line;
                flipped[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(ManifestLine::decode(&flipped), None);
            }
            for len in 0..MANIFEST_LINE_LEN {
                prop_assert_eq!(ManifestLine::decode(&line[..len]), None);
            }
            prop_assert_eq!(ManifestLine::decode(&[&line[..], &[0]].concat()), None);
        }

        #[test]
        fn what_no_line_of_its_kind_has_is_refused(line in line(), at in 0..60usize, byte in any::<u8>()) {
            // With a right checksum, so that it is the fields that are judged.
            let mut line = line.encode();
            line[at] = byte;
            let crc = crc32fast::hash(&line[..60]).to_be_bytes();
            line[60..].copy_from_slice(&crc);
            if let Some(read) = ManifestLine::decode(&line) {
                prop_assert_eq!(read.encode(), line);
            }
        }

        #[test]
        fn arbitrary_lines_of_version_1_never_panic(line in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode_v1(&line);
        }
    }
}
