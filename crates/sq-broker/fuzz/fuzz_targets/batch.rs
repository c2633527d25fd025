//! A partition's records from anything, as they are and with their checksum made right, through the
//! validator, the assignment of offsets and a lookup by timestamp.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use sq_broker::batch::{BatchHeader, assign, lookup_timestamp, validate_produced};

const MAX: usize = 1 << 20;

fuzz_target!(|input: &[u8]| {
    check(Bytes::copy_from_slice(input));
    if input.len() >= 21 {
        let mut mended = input.to_vec();
        let crc = crc32c::crc32c(&mended[21..]);
        mended[17..21].copy_from_slice(&crc.to_be_bytes());
        check(mended.into());
    }
});

fn check(records: Bytes) {
    let base = 1 << 40;
    let [front, rest] = assign(&records, base, 3);
    let stored = Bytes::from([front, rest].concat());
    assert_eq!(stored.len(), records.len());
    let header = BatchHeader::parse(&stored);
    if let Ok(produced) = validate_produced(&records, MAX, 12) {
        let stored = header.expect("what is valid has a header");
        assert_eq!(
            (
                produced.base_offset,
                stored.base_offset,
                stored.leader_epoch
            ),
            (0, base, 3)
        );
        assert_eq!(
            (produced.crc, produced.record_count),
            (stored.crc, stored.record_count)
        );
        assert_eq!(stored.size(), Some(records.len()));
        assert!(stored.last_offset() >= base && produced.last_sequence() >= -1);
    }
    for timestamp in [i64::MIN, 0, header.map_or(1, |header| header.max_timestamp)] {
        if let Ok(Some((offset, found))) = lookup_timestamp(&stored, timestamp, 0, MAX) {
            let header = header.expect("an answer comes from a batch");
            assert!(found >= timestamp);
            assert!(offset >= header.base_offset);
        }
    }
}
