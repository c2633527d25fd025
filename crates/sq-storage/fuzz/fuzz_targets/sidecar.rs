//! Opens a log that has anything as the sidecar of its sealed segment, or of a segment that was purged in
//! front of the open one. The layer above is shown what it holds if it is one of that segment at its end,
//! and otherwise all frames, as if it were not there.
//!
//! The first byte says what is made right about the input.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sq_storage::{RecoveryVisitor, Sidecar, StoredFrame};
use sq_storage_fuzz::{DIR, Image, block_on, open};

const LENGTHS: [usize; 3] = [10, 0, 300];

static SEALED: LazyLock<Image> = LazyLock::new(|| Image::new(&LENGTHS, false));
static PURGED: LazyLock<Image> = LazyLock::new(|| Image::new(&LENGTHS, true));

fuzz_target!(|input: &[u8]| {
    let [how, rest @ ..] = input else {
        return;
    };
    let is_purged = how & 0x08 != 0;
    let (image, name) = if is_purged {
        (&*PURGED, "start")
    } else {
        (&*SEALED, "00000000000000000000")
    };
    let file = file(*how, rest, image);
    let disk = image.disk();
    let path = format!("{DIR}/{name}.sidecar");
    disk.write_file(path, file.clone()).unwrap();
    let mut layer = Layer::default();
    block_on(async { drop(open(&disk, &mut layer).await) });

    let expected = content(&file, (!is_purged).then_some(image.id), image.end_offset);
    let is_skipped = is_purged || expected.is_some();
    assert_eq!(layer.began.as_deref(), expected);
    let first = if is_skipped { image.end_offset } else { 0 };
    let frames: Vec<_> = (first..=image.end_offset).collect();
    assert_eq!(layer.frames, frames);
});

/// The input as it is, or behind a right header, of the right segment and end, or with a right checksum.
fn file(how: u8, input: &[u8], image: &Image) -> Vec<u8> {
    let mut file = Vec::new();
    if how & 0x01 != 0 {
        file.extend_from_slice(b"SQSC\x00\x01\x00\x00");
    }
    if how & 0x02 != 0 {
        file.extend_from_slice(&image.id.to_be_bytes());
        file.extend_from_slice(&image.end_offset.to_be_bytes());
    }
    file.extend_from_slice(input);
    if how & 0x04 != 0 {
        file.extend_from_slice(&crc32fast::hash(&file).to_be_bytes());
    }
    file
}

/// What a sidecar holds, of a segment that ended there.
fn content(file: &[u8], id: Option<u64>, end_offset: u64) -> Option<&[u8]> {
    let (body, crc) = file.split_last_chunk::<4>()?;
    let rest = body.strip_prefix(b"SQSC\x00\x01\x00\x00")?;
    let (of, rest) = rest.split_first_chunk::<8>()?;
    let (end, content) = rest.split_first_chunk::<8>()?;
    let is_it = crc32fast::hash(body) == u32::from_be_bytes(*crc)
        && id.is_none_or(|id| id == u64::from_be_bytes(*of))
        && u64::from_be_bytes(*end) == end_offset;
    is_it.then_some(content)
}

#[derive(Default)]
struct Layer {
    began: Option<Vec<u8>>,
    /// The offsets of the frames that it was shown.
    frames: Vec<u64>,
}

impl RecoveryVisitor for Layer {
    fn begin(&mut self, sidecar: Option<&Sidecar>) -> Option<u64> {
        self.began = sidecar.map(|sidecar| sidecar.content.to_vec());
        self.frames.clear();
        Some(sidecar.map_or(0, |sidecar| sidecar.end_offset))
    }

    fn frame(&mut self, frame: &StoredFrame) {
        self.frames.push(frame.base_offset);
    }
}
