//! Manifests from anything, as they are and with a right header and right checksums: no line is lost
//! without being counted, and what is read encodes to what was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sq_storage::wal::manifest::{MANIFEST_LINE_LEN, ManifestContent, ManifestEntry};

const HEADER: [u8; 8] = *b"SQMF\x00\x01\x00\x00";

fuzz_target!(|input: &[u8]| {
    check(input);
    let mut mended = HEADER.to_vec();
    for line in input.chunks_exact(MANIFEST_LINE_LEN) {
        let covered = &line[..MANIFEST_LINE_LEN - 4];
        mended.extend_from_slice(covered);
        mended.extend_from_slice(&crc32fast::hash(covered).to_be_bytes());
    }
    check(&mended);
});

fn check(bytes: &[u8]) {
    let content = ManifestContent::decode(bytes);
    let Some(lines) = bytes.strip_prefix(&HEADER) else {
        assert!(content.unreadable && content.entries.is_empty());
        return;
    };
    let lines: Vec<_> = lines.chunks(MANIFEST_LINE_LEN).collect();
    let read: Vec<_> = lines
        .iter()
        .filter_map(|l| ManifestEntry::decode(l))
        .collect();
    assert_eq!(content.damaged_lines, lines.len() - read.len());
    for entry in &content.entries {
        let last = read.iter().rev().find(|e| e.id == entry.id);
        assert_eq!(last, Some(entry), "the last line of an id counts");
        assert_eq!(ManifestEntry::decode(&entry.encode()), Some(*entry));
        assert!(
            entry
                .seal
                .is_none_or(|s| s.end_offset >= entry.name.base_offset)
        );
    }
    for entry in &read {
        let times = content.entries.iter().filter(|e| e.id == entry.id).count();
        assert_eq!(times, 1);
    }
}
