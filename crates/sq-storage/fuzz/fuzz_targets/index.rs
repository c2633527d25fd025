//! Reads a log that has anything as the index of its sealed segment: whatever it says, each offset gives its
//! record, and what is looked for by time is a record of the log.
//!
//! The first byte says what is made right about the input.
#![no_main]

mod sealed;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sealed::{DIR, Image, Nobody, block_on, open, value};
use sq_storage::{Record, StoredFrame};

/// Enough for several entries.
const LENGTHS: [usize; 8] = [20_000; 8];

const ENTRY_LEN: usize = 24;

static IMAGE: LazyLock<Image> = LazyLock::new(|| Image::new(&LENGTHS, false));

fuzz_target!(|input: &[u8]| {
    let [how, rest @ ..] = input else {
        return;
    };
    let disk = IMAGE.disk();
    let path = format!("{DIR}/00000000000000000000.index");
    disk.write_file(path, file(*how, rest)).unwrap();
    if how & 0x04 != 0 {
        let manifest = IMAGE.manifest_of_no_index();
        disk.write_file(format!("{DIR}/manifest"), manifest)
            .unwrap();
    }
    block_on(async {
        let log = open(&disk, &mut Nobody).await;
        let reader = log.reader();
        for timestamp in [i64::MIN, 0, 3, 7, 8, i64::MAX] {
            let found = reader.find_by_timestamp(timestamp).await.unwrap();
            found.iter().for_each(check);
        }
        let greatest = reader.find_max_timestamp().await.unwrap();
        greatest.iter().for_each(check);
        for offset in (0..=IMAGE.end_offset).rev() {
            let frames = reader.read(offset, 0).await.unwrap();
            assert_eq!(frames[0].base_offset, offset);
            check(&frames[0]);
        }
    });
});

/// The input as it is, or as entries behind a right header, or with a right checksum.
fn file(how: u8, input: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    if how & 0x01 != 0 {
        file.extend_from_slice(b"SQIX\x00\x01\x00\x00");
        // Id, base and end offset, length, greatest timestamp, last append.
        for field in [IMAGE.id, 0, IMAGE.end_offset, IMAGE.bytes, 7, 0] {
            file.extend_from_slice(&field.to_be_bytes());
        }
        let count = (input.len() / ENTRY_LEN) as u32;
        file.extend_from_slice(&count.to_be_bytes());
    }
    file.extend_from_slice(input);
    if how & 0x02 != 0 {
        file.extend_from_slice(&crc32fast::hash(&file).to_be_bytes());
    }
    file
}

/// It is a record of the log.
fn check(frame: &StoredFrame) {
    let record = Record::decode(frame.payload.clone()).unwrap();
    let expected = match LENGTHS.get(frame.base_offset as usize) {
        Some(len) => value(frame.base_offset, *len),
        None => b"behind".to_vec(),
    };
    assert_eq!(record.value.unwrap(), expected);
}
