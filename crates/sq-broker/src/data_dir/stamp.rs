//! Whose data a directory holds.
//!
//! ```text
//!   0  magic "SQDD"     4
//!   4  version = 1      2     of the layout of the whole directory
//!   6  zero             2
//!   8  cluster id      16
//!  24  broker id        4
//!  28  CRC-32           4     of the 28 bytes before
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use uuid::Uuid;

/// The length of a stamp in bytes.
pub(super) const STAMP_LEN: usize = 32;

const MAGIC: &[u8; 4] = b"SQDD";
const VERSION: u16 = 1;
const CRC_LEN: usize = 4;

/// Which broker of which cluster a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The cluster.
    pub cluster_id: Uuid,
    /// The broker in it.
    pub broker_id: i32,
}

/// Why a stamp cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StampDamage {
    /// It has not the length of a stamp.
    #[error("it has {0} bytes where a stamp has {STAMP_LEN}")]
    Length(usize),
    /// It does not begin as a stamp does.
    #[error("it does not begin with the mark of a stamp")]
    Magic,
    /// A later version laid the directory out.
    #[error("format version {0} is not known here (this is version {VERSION})")]
    Version(u16),
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
}

impl Stamp {
    pub(super) fn encode(&self) -> Bytes {
        let mut file = BytesMut::with_capacity(STAMP_LEN);
        file.put_slice(MAGIC);
        file.put_u16(VERSION);
        file.put_u16(0);
        file.put_u128(self.cluster_id.as_u128());
        file.put_i32(self.broker_id);
        let crc = crc32fast::hash(&file);
        file.put_u32(crc);
        file.freeze()
    }

    pub(super) fn decode(file: &[u8]) -> Result<Self, StampDamage> {
        if file.len() != STAMP_LEN {
            return Err(StampDamage::Length(file.len()));
        }
        let Some((content, crc)) = file.split_last_chunk::<CRC_LEN>() else {
            return Err(StampDamage::Length(file.len()));
        };
        let mut rest = content;
        let mut magic = [0; 4];
        rest.copy_to_slice(&mut magic);
        if &magic != MAGIC {
            return Err(StampDamage::Magic);
        }
        let version = rest.get_u16();
        if version != VERSION {
            return Err(StampDamage::Version(version));
        }
        if crc32fast::hash(content) != u32::from_be_bytes(*crc) {
            return Err(StampDamage::Checksum);
        }
        let _zero = rest.get_u16();
        let cluster_id = Uuid::from_u128(rest.get_u128());
        Ok(Self {
            cluster_id,
            broker_id: rest.get_i32(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp {
            cluster_id: Uuid::from_u128(0x1234_5678_9abc_def0_0fed_cba9_8765_4321),
            broker_id: 7,
        }
    }

    #[test]
    fn a_stamp_comes_back() {
        let bytes = stamp().encode();
        assert_eq!(bytes.len(), STAMP_LEN);
        assert_eq!(Stamp::decode(&bytes), Ok(stamp()));
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_refused() {
        let bytes = stamp().encode();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Stamp::decode(&bad).is_err(), "bit {bit}");
        }
        for len in (0..bytes.len()).chain([STAMP_LEN + 1]) {
            let mut bad = bytes.to_vec();
            bad.resize(len, 0);
            assert_eq!(Stamp::decode(&bad), Err(StampDamage::Length(len)));
        }
    }
}
