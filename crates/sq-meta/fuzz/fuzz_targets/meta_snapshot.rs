//! Snapshots from anything, as they are and with a right beginning and a right checksum: what is read
//! is a valid state, and encodes to what was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sq_meta::codec::snapshot;

fuzz_target!(|input: &[u8]| {
    check(input);
    let mut mended = b"SQMS\x00\x01\x00\x00".to_vec();
    mended.extend_from_slice(input);
    mended.extend_from_slice(&crc32fast::hash(&mended).to_be_bytes());
    check(&mended);
});

fn check(bytes: &[u8]) {
    if let Ok(state) = snapshot::decode(bytes) {
        state.validate().unwrap();
        assert_eq!(snapshot::encode(&state), bytes);
    }
}
