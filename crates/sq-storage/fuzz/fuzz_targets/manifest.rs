//! Manifests from anything, as they are and with a right header and right checksums: no line is lost
//! without being counted, and what is read encodes to what was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sq_storage::wal::manifest::{MANIFEST_LINE_LEN, ManifestContent, ManifestLine};

const HEADER: [u8; 8] = *b"SQMF\x00\x02\x00\x00";
const HEADER_V1: [u8; 8] = *b"SQMF\x00\x01\x00\x00";
const LINE_LEN_V1: usize = 48;

fuzz_target!(|input: &[u8]| {
    check(input);
    check(&mended(input, HEADER, MANIFEST_LINE_LEN));
    check(&mended(input, HEADER_V1, LINE_LEN_V1));
});

fn mended(input: &[u8], header: [u8; 8], line_len: usize) -> Vec<u8> {
    let mut mended = header.to_vec();
    for line in input.chunks_exact(line_len) {
        let covered = &line[..line_len - 4];
        mended.extend_from_slice(covered);
        mended.extend_from_slice(&crc32fast::hash(covered).to_be_bytes());
    }
    mended
}

fn check(bytes: &[u8]) {
    let content = ManifestContent::decode(bytes);
    if content.unreadable {
        assert!(!bytes.starts_with(&HEADER) && !bytes.starts_with(&HEADER_V1));
        assert_eq!((content.entries.len(), content.removed.len()), (0, 0));
        return;
    }
    for entry in content.entries.iter().chain(&content.removed) {
        let base = entry.name.base_offset;
        assert!(entry.seal.is_none_or(|s| s.end_offset >= base));
    }
    let again = ManifestContent {
        damaged_lines: content.damaged_lines,
        is_older: content.is_older,
        ..ManifestContent::decode(&content.encode())
    };
    assert_eq!(again, content);
    if let Some(lines) = bytes.strip_prefix(&HEADER) {
        check_lines(lines, &content);
    }
}

fn check_lines(lines: &[u8], content: &ManifestContent) {
    let lines: Vec<_> = lines.chunks(MANIFEST_LINE_LEN).collect();
    let decode = |line: &&[u8]| ManifestLine::decode(line);
    let read: Vec<_> = lines.iter().filter_map(decode).collect();
    assert_eq!(content.damaged_lines, lines.len() - read.len());
    let mut ids: Vec<_> = Vec::new();
    for line in read.iter().rev() {
        let (entry, list) = match line {
            ManifestLine::Segment(entry) => (entry, &content.entries),
            ManifestLine::Removed(entry) => (entry, &content.removed),
            ManifestLine::LogStart(start) => {
                assert!(content.log_start.unwrap().offset >= start.offset);
                continue;
            }
            ManifestLine::Truncated(cut) => {
                assert!(content.truncations.contains(cut));
                continue;
            }
        };
        if !ids.contains(&entry.id) {
            assert!(list.contains(entry), "the last line of an id counts");
            ids.push(entry.id);
        }
    }
    assert_eq!(ids.len(), content.entries.len() + content.removed.len());
}
