//! The frame: the unit of append. A 64-byte header, big-endian, and a body.
//!
//! ```text
//!  0       4       8               16              24              32
//!  +-------+-------+---------------+---------------+---------------+
//!  | length|  crc  |  segment id   |  base offset  |committed bef. |
//!  +-------+-------+---------------+---------------+---------------+
//!  | max timestamp |  append time  | count |leader |ordinal|k|  0  | body…
//!  +---------------+---------------+-------+-epoch-+-------+-+-----+
//!  32              40              48      52      56      60 61   64
//! ```
//!
//! `length` counts the bytes behind the CRC, `crc` is the CRC-32 (IEEE, as in zlib) of them. A
//! length of zero is the end of the log: preallocated and padded files end in zeros.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The bytes of a frame in front of its body.
pub const FRAME_HEADER_LEN: usize = 64;

/// The bytes of a frame that neither its length counts nor its CRC covers.
pub const FRAME_PREFIX_LEN: usize = 8;

/// Where in a frame its CRC stands.
const CRC_POSITION: usize = 4;

/// Where in a frame its segment id stands.
pub const SEGMENT_ID_POSITION: usize = 8;

/// The smallest `length` a frame can have: a header without a body.
const MIN_LENGTH: usize = FRAME_HEADER_LEN - FRAME_PREFIX_LEN;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// One record, encoded as in [`crate::record`].
    Record = 1,
    /// Opaque bytes that carry `record_count` records.
    Batch = 2,
    /// No record and no body: says `committed_before` when no other frame will.
    Mark = 3,
}

impl TryFrom<u8> for FrameKind {
    type Error = FrameError;

    fn try_from(kind: u8) -> Result<Self, FrameError> {
        match kind {
            1 => Ok(Self::Record),
            2 => Ok(Self::Batch),
            3 => Ok(Self::Mark),
            _ => Err(FrameError::Kind(kind)),
        }
    }
}

/// What the header of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The segment that the frame was written for.
    pub segment_id: u64,
    /// The offset of its first record; of a mark, the offset that the next record will get.
    pub base_offset: u64,
    /// The writer knew every offset below this one to be committed when it wrote the frame.
    pub committed_before: u64,
    /// The greatest timestamp of its records in milliseconds since the epoch, -1 for none.
    pub max_timestamp_ms: i64,
    /// The wall clock when the frame was written, milliseconds since the epoch.
    pub append_time_ms: u64,
    /// How many offsets it takes; 0 for a mark only.
    pub record_count: u32,
    /// The epoch of the leader that wrote it.
    pub leader_epoch: u32,
    /// The segment's place among those ever made for the partition, so that two with the same base
    /// offset can be told apart by age.
    pub ordinal: u32,
    /// What the body is.
    pub kind: FrameKind,
}

/// Why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length of zero: nothing was written here.
    #[error("end of log")]
    End,
    /// Fewer bytes than the frame says it has.
    #[error("a frame of {needed} bytes has only {available}")]
    Truncated {
        /// How many bytes the frame takes as a whole.
        needed: usize,
        /// How many there are.
        available: usize,
    },
    /// A length below that of the header.
    #[error("the length {0} is below that of a frame's header")]
    Length(u32),
    /// The checksum does not fit the bytes.
    #[error("the checksum is {stored:08x} in the frame, {computed:08x} over its bytes")]
    Crc {
        /// The checksum that the frame carries.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// A kind this version does not know.
    #[error("kind {0} is unknown")]
    Kind(u8),
    /// Reserved bytes that are not zero.
    #[error("the reserved bytes are not zero")]
    Reserved,
    /// A number of records that the kind can't have, or offsets past the last one.
    #[error("{record_count} records at offset {base_offset} can't be in a frame of this kind")]
    Offsets {
        /// Where it starts.
        base_offset: u64,
        /// How many offsets it says it takes.
        record_count: u32,
    },
}

impl FrameHeader {
    /// The offset behind the frame's last record.
    pub fn end_offset(&self) -> u64 {
        self.base_offset
            .saturating_add(u64::from(self.record_count))
    }

    /// Encodes the header of a frame whose body is `body`, the parts one behind the other, and
    /// appends it to `out`. The body itself is not copied.
    ///
    /// # Errors
    /// The body's length in bytes if the frame would pass 4 GiB.
    pub fn encode(&self, body: &[Bytes], out: &mut BytesMut) -> Result<(), BodyTooLong> {
        let body_len: usize = body.iter().map(Bytes::len).sum();
        self.encode_with(body_len, out, |crc| {
            for part in body {
                crc.update(part);
            }
        })
    }

    /// [`encode`](Self::encode) for a body of which only the length and the CRC-32 are at hand.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_summed(
        &self,
        body_len: usize,
        body_crc: u32,
        out: &mut BytesMut,
    ) -> Result<(), BodyTooLong> {
        let body = crc32fast::Hasher::new_with_initial_len(body_crc, body_len as u64);
        self.encode_with(body_len, out, |crc| crc.combine(&body))
    }

    /// Encodes a whole frame, its body copied behind the header, and appends it to `out`. The checksum
    /// is taken where all of it lies: the copy has just brought it into the processor's cache.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_whole(&self, body: &[Bytes], out: &mut BytesMut) -> Result<(), BodyTooLong> {
        let body_len = body.iter().map(Bytes::len).sum();
        let start = out.len();
        out.put_slice(&self.without_crc(body_len)?);
        for part in body {
            out.extend_from_slice(part);
        }
        let covered = out.get(start + FRAME_PREFIX_LEN..);
        let crc = crc32fast::hash(covered.unwrap_or_default());
        if let Some(place) = out.get_mut(start + CRC_POSITION..start + FRAME_PREFIX_LEN) {
            place.copy_from_slice(&crc.to_be_bytes());
        }
        Ok(())
    }

    fn encode_with(
        &self,
        body_len: usize,
        out: &mut BytesMut,
        add_body: impl FnOnce(&mut crc32fast::Hasher),
    ) -> Result<(), BodyTooLong> {
        let mut header = self.without_crc(body_len)?;
        let mut crc = crc32fast::Hasher::new();
        if let Some((_, covered)) = header.split_first_chunk::<FRAME_PREFIX_LEN>() {
            crc.update(covered);
        }
        add_body(&mut crc);
        if let Some(place) = header.get_mut(CRC_POSITION..FRAME_PREFIX_LEN) {
            place.copy_from_slice(&crc.finalize().to_be_bytes());
        }
        out.put_slice(&header);
        Ok(())
    }

    /// The bytes of the header, with zeros in the place of the CRC.
    fn without_crc(&self, body_len: usize) -> Result<[u8; FRAME_HEADER_LEN], BodyTooLong> {
        let length = u32::try_from(MIN_LENGTH + body_len).map_err(|_| BodyTooLong(body_len))?;
        let mut bytes = [0; FRAME_HEADER_LEN];
        let mut rest = bytes.as_mut_slice();
        rest.put_u32(length);
        rest.put_u32(0);
        rest.put_u64(self.segment_id);
        rest.put_u64(self.base_offset);
        rest.put_u64(self.committed_before);
        rest.put_i64(self.max_timestamp_ms);
        rest.put_u64(self.append_time_ms);
        rest.put_u32(self.record_count);
        rest.put_u32(self.leader_epoch);
        rest.put_u32(self.ordinal);
        rest.put_u8(self.kind as u8);
        Ok(bytes)
    }

    /// Decodes the fields of a header without checking the CRC, which needs the body. Returns the
    /// frame's whole length beside it.
    ///
    /// # Errors
    /// [`FrameError`], [`FrameError::End`] for a length of zero.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), FrameError> {
        let available = bytes.len();
        let truncated = FrameError::Truncated {
            needed: FRAME_HEADER_LEN,
            available,
        };
        let mut input = bytes;
        let length = input.try_get_u32().map_err(|_| truncated.clone())?;
        if length == 0 {
            return Err(FrameError::End);
        }
        let frame_len = length as usize + FRAME_PREFIX_LEN;
        if frame_len < FRAME_HEADER_LEN {
            return Err(FrameError::Length(length));
        }
        if available < FRAME_HEADER_LEN {
            return Err(truncated);
        }
        input.advance(4);
        let segment_id = input.get_u64();
        let base_offset = input.get_u64();
        let committed_before = input.get_u64();
        let max_timestamp_ms = input.get_i64();
        let append_time_ms = input.get_u64();
        let record_count = input.get_u32();
        let leader_epoch = input.get_u32();
        let ordinal = input.get_u32();
        let kind = FrameKind::try_from(input.get_u8())?;
        if input.get_uint(3) != 0 {
            return Err(FrameError::Reserved);
        }
        let fits = match kind {
            FrameKind::Mark => record_count == 0 && frame_len == FRAME_HEADER_LEN,
            FrameKind::Record => record_count == 1,
            FrameKind::Batch => record_count > 0,
        };
        if !fits || base_offset.checked_add(u64::from(record_count)).is_none() {
            return Err(FrameError::Offsets {
                base_offset,
                record_count,
            });
        }
        let header = Self {
            segment_id,
            base_offset,
            committed_before,
            max_timestamp_ms,
            append_time_ms,
            record_count,
            leader_epoch,
            ordinal,
            kind,
        };
        Ok((header, frame_len))
    }
}

/// A body that no frame can hold; its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a body of {0} bytes does not fit a frame")]
pub struct BodyTooLong(pub usize);

/// A frame, its checksum verified. The body is a slice of the bytes it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What its header says.
    pub header: FrameHeader,
    /// What it carries.
    pub body: Bytes,
}

impl Frame {
    /// Decodes the frame at the start of `bytes` and verifies its checksum; allocates nothing.
    ///
    /// # Errors
    /// [`FrameError`]. [`FrameError::Truncated`] says how many bytes the frame would need, as far as
    /// its unverified length can be trusted.
    pub fn decode(bytes: &Bytes) -> Result<Self, FrameError> {
        let (header, frame_len) = Self::check(bytes)?;
        Ok(Self {
            header,
            body: bytes.slice(FRAME_HEADER_LEN..frame_len),
        })
    }

    /// The header and the whole length of the frame at the start of `bytes`, its checksum verified.
    pub(crate) fn check(bytes: &[u8]) -> Result<(FrameHeader, usize), FrameError> {
        let decoded = FrameHeader::decode(bytes);
        let frame_len = match (&decoded, length_at_start(bytes)) {
            (Ok((_, len)), _) => *len,
            // A field that can't be is judged by the checksum first: rot is what it mostly is.
            (Err(FrameError::Kind(_) | FrameError::Reserved | FrameError::Offsets { .. }), len) => {
                len
            }
            (Err(e), _) => return Err(e.clone()),
        };
        let available = bytes.len();
        let truncated = || FrameError::Truncated {
            needed: frame_len,
            available,
        };
        let stored = stored_crc(bytes).ok_or_else(truncated)?;
        let covered = bytes
            .get(FRAME_PREFIX_LEN..frame_len)
            .ok_or_else(truncated)?;
        let computed = crc32fast::hash(covered);
        if stored != computed {
            return Err(FrameError::Crc { stored, computed });
        }
        decoded
    }

    /// The bytes that the frame takes in a file.
    pub fn encoded_len(&self) -> usize {
        FRAME_HEADER_LEN + self.body.len()
    }
}

/// The checksum that the frame which `bytes` starts with carries.
pub(crate) fn stored_crc(bytes: &[u8]) -> Option<u32> {
    let mut crc = bytes.get(CRC_POSITION..FRAME_PREFIX_LEN)?;
    crc.try_get_u32().ok()
}

/// The whole length and the segment id of the frame that `bytes` starts with, by its own word;
/// `None` where no frame says anything.
pub(crate) fn length_and_id(bytes: &[u8]) -> Option<(usize, u64)> {
    let mut id = bytes.get(SEGMENT_ID_POSITION..)?;
    let id = id.try_get_u64().ok()?;
    (id != 0).then(|| (length_at_start(bytes), id))
}

/// The whole length of the frame that `bytes` starts with, by its own word.
fn length_at_start(mut bytes: &[u8]) -> usize {
    bytes
        .try_get_u32()
        .map_or(0, |length| length as usize + FRAME_PREFIX_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    pub(crate) fn header() -> impl Strategy<Value = FrameHeader> {
        (
            (
                any::<u64>(),
                0..u64::MAX / 2,
                any::<u64>(),
                any::<i64>(),
                any::<u64>(),
            ),
            (1..u32::MAX, any::<u32>(), any::<u32>(), 0..3u8),
        )
            .prop_map(
                |((id, base, committed, max_ts, time), (count, epoch, ordinal, kind))| {
                    let (kind, record_count) = match kind {
                        0 => (FrameKind::Record, 1),
                        1 => (FrameKind::Batch, count),
                        _ => (FrameKind::Mark, 0),
                    };
                    FrameHeader {
                        segment_id: id,
                        base_offset: base,
                        committed_before: committed,
                        max_timestamp_ms: max_ts,
                        append_time_ms: time,
                        record_count,
                        leader_epoch: epoch,
                        ordinal,
                        kind,
                    }
                },
            )
    }

    fn encode(header: &FrameHeader, body: &[Bytes]) -> Bytes {
        let mut out = BytesMut::new();
        header.encode(body, &mut out).unwrap();
        for part in body {
            out.put_slice(part);
        }
        out.freeze()
    }

    fn frame() -> impl Strategy<Value = (FrameHeader, Vec<Bytes>)> {
        (
            header(),
            vec(vec(any::<u8>(), 0..50).prop_map(Bytes::from), 0..4),
        )
            .prop_map(|(header, body)| {
                let body = if header.kind == FrameKind::Mark {
                    Vec::new()
                } else {
                    body
                };
                (header, body)
            })
    }

    proptest! {
        #[test]
        fn round_trip((header, parts) in frame()) {
            let encoded = encode(&header, &parts);
            let frame = Frame::decode(&encoded).unwrap();
            prop_assert_eq!(frame.header, header);
            prop_assert_eq!(&frame.body[..], &parts.concat()[..]);
            prop_assert_eq!(frame.encoded_len(), encoded.len());
        }

        #[test]
        fn a_body_summed_before_makes_the_same_frame((header, parts) in frame()) {
            let mut summed = BytesMut::new();
            let body = parts.concat();
            header.encode_summed(body.len(), crc32fast::hash(&body), &mut summed).unwrap();
            summed.put_slice(&body);
            prop_assert_eq!(summed.freeze(), encode(&header, &parts));
        }

        #[test]
        fn a_frame_encoded_as_a_whole_is_the_same_wherever_it_stands(
            (header, parts) in frame(), before in vec(any::<u8>(), 0..20),
        ) {
            let mut whole = BytesMut::from(before.as_slice());
            header.encode_whole(&parts, &mut whole).unwrap();
            prop_assert_eq!(whole.freeze(), [&before[..], &encode(&header, &parts)].concat());
        }

        #[test]
        fn what_follows_a_frame_does_not_matter((header, parts) in frame(), tail in vec(any::<u8>(), 0..20)) {
            let mut encoded = encode(&header, &parts).to_vec();
            encoded.extend(tail);
            prop_assert_eq!(Frame::decode(&encoded.into()).unwrap().header, header);
        }

        #[test]
        fn every_cut_is_refused((header, parts) in frame()) {
            let encoded = encode(&header, &parts);
            for len in 0..encoded.len() {
                prop_assert!(Frame::decode(&encoded.slice(..len)).is_err());
            }
        }

        #[test]
        fn every_single_bit_flip_is_refused((header, parts) in frame()) {
            let encoded = encode(&header, &parts);
            for bit in 0..encoded.len() * 8 {
                let mut flipped = encoded.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(Frame::decode(&flipped.into()).is_err(), "bit {}", bit);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(input in vec(any::<u8>(), 0..300)) {
            if let Ok(frame) = Frame::decode(&input.into()) {
                prop_assert!(frame.encoded_len() <= 300);
            }
        }
    }

    #[test]
    fn zeros_are_the_end_of_the_log() {
        assert_eq!(
            Frame::decode(&Bytes::from_static(&[0; 128])),
            Err(FrameError::End)
        );
    }

    #[test]
    fn a_length_beyond_the_input_is_refused_without_an_allocation() {
        let mut lie = vec![0xff; 4];
        lie.resize(64, 1);
        assert!(matches!(
            Frame::decode(&lie.into()),
            Err(FrameError::Kind(_) | FrameError::Truncated { .. })
        ));
    }
}
