//! Reads a log that has anything as the index of its sealed segment, or as the recovery point of the one that
//! it goes on in: whatever it says, each offset gives its record, and what is looked for by time is a record of
//! the log.
//!
//! The first byte says what is made right about the input.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sq_storage::{Record, StoredFrame};
use sq_storage_fuzz::{DIR, Image, Log, Nobody, block_on, open, open_alone, value};

/// Enough for several entries.
const LENGTHS: [usize; 8] = [20_000; 8];

const ENTRY_LEN: usize = 24;

/// Where in a recovery point its index begins, and how much of that is in front of the number of entries.
const INDEX_POSITION: usize = 44;
const COUNT_POSITION: usize = INDEX_POSITION + 56;

static IMAGE: LazyLock<Image> = LazyLock::new(|| Image::new(&LENGTHS, false));
static UNSEALED: LazyLock<Image> = LazyLock::new(|| Image::unsealed(&LENGTHS));

fuzz_target!(|input: &[u8]| {
    let [how, rest @ ..] = input else {
        return;
    };
    if how & 0x08 != 0 {
        let disk = UNSEALED.disk();
        let path = format!("{DIR}/00000000000000000000.point");
        disk.write_file(path, point(*how, rest)).unwrap();
        block_on(async { check_all(&open_alone(&disk).await).await });
        return;
    }
    let disk = IMAGE.disk();
    let path = format!("{DIR}/00000000000000000000.index");
    disk.write_file(path, file(*how, rest)).unwrap();
    if how & 0x04 != 0 {
        let manifest = IMAGE.manifest_of_no_index();
        disk.write_file(format!("{DIR}/manifest"), manifest)
            .unwrap();
    }
    block_on(async { check_all(&open(&disk, &mut Nobody).await).await });
});

async fn check_all(log: &Log) {
    let reader = log.reader();
    for timestamp in [i64::MIN, 0, 3, 7, 8, i64::MAX] {
        let found = reader.find_by_timestamp(timestamp).await.unwrap();
        found.iter().for_each(check);
    }
    let greatest = reader.find_max_timestamp().await.unwrap();
    greatest.iter().for_each(check);
    for offset in (0..=LENGTHS.len() as u64).rev() {
        let frames = reader.read(offset, 0).await.unwrap();
        assert_eq!(frames[0].base_offset, offset);
        check(&frames[0]);
    }
}

/// The input as it is, or as entries of the index in the right recovery point, or with right checksums.
fn point(how: u8, input: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    if how & 0x01 != 0 {
        file.extend_from_slice(&UNSEALED.point()[..COUNT_POSITION]);
        let count = (input.len() / ENTRY_LEN) as u32;
        file.extend_from_slice(&count.to_be_bytes());
    }
    file.extend_from_slice(input);
    if how & 0x02 != 0 {
        let index = file.get(INDEX_POSITION..).unwrap_or_default();
        file.extend_from_slice(&crc32fast::hash(index).to_be_bytes());
        file.extend_from_slice(&crc32fast::hash(&file).to_be_bytes());
    }
    file
}

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
