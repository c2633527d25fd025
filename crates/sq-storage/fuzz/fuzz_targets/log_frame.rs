//! Frames from anything, as it is and with the checksum made right: what is decoded is what the bytes
//! say, and encodes to them again.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use sq_storage::frame::{FRAME_HEADER_LEN, FRAME_PREFIX_LEN, Frame, FrameError};

fuzz_target!(|input: &[u8]| {
    check(Bytes::copy_from_slice(input));
    if let Some((prefix, covered)) = input.split_at_checked(FRAME_PREFIX_LEN) {
        let length = u32::from_be_bytes(prefix[..4].try_into().unwrap()) as usize;
        let covered = &covered[..length.min(covered.len())];
        let crc = crc32fast::hash(covered).to_be_bytes();
        check([&prefix[..4], &crc, covered].concat().into());
        // And the length, too.
        let length = (covered.len() as u32).to_be_bytes();
        check([&length, &crc, covered].concat().into());
    }
});

fn check(bytes: Bytes) {
    match Frame::decode(&bytes) {
        Ok(frame) => {
            let len = frame.encoded_len();
            assert_eq!(frame.body, bytes[FRAME_HEADER_LEN..len]);
            let crc = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
            assert_eq!(crc, crc32fast::hash(&bytes[FRAME_PREFIX_LEN..len]));
            assert!(frame.header.end_offset() >= frame.header.base_offset);
            let mut again = BytesMut::new();
            frame.header.encode(&[frame.body], &mut again).unwrap();
            assert_eq!(again, bytes[..FRAME_HEADER_LEN]);
        }
        Err(FrameError::Truncated { needed, available }) => {
            assert_eq!(available, bytes.len());
            assert!(needed > available);
        }
        Err(_) => {}
    }
}
