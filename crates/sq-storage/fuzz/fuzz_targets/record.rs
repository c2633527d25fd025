//! Records from anything: what is decoded encodes to the same bytes.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use sq_storage::Record;

fuzz_target!(|input: &[u8]| {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(record) = Record::decode(bytes.clone()) {
        let held = record.headers.len() * size_of::<sq_storage::Header>();
        assert!(held <= 16 * input.len());
        assert_eq!(record.encode().unwrap(), bytes);
    }
});
