//! Opens a partition whose segment file, and now and then whose manifest, holds anything. Nothing is
//! served that has no frame with a right checksum in the file, and memory stays within a small
//! multiple of the input. It takes an append and opens again, and without a manifest, which may rightly
//! say anything here, serves then what it served before.
//!
//! The first byte says what is made right about the input, the second how long the manifest is.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libfuzzer_sys::fuzz_target;
use sq_sim::{InMemoryFileSystem, VirtualClock};
use sq_storage::frame::{FRAME_HEADER_LEN, FRAME_PREFIX_LEN};
use sq_storage::wal::manifest::MANIFEST_LINE_LEN;
use sq_storage::wal::segment::{SegmentHeader, SegmentName};
use sq_storage::{
    Action, LogReader, ReadError, SegmentIds, StoredFrame, TopicName, WalConfig, WalWriter,
};

const DIR: &str = "/data/t/0";

/// What a run takes whatever the input is.
const FIXED_BYTES: usize = 256 << 10;

fuzz_target!(|input: &[u8]| {
    let [how, manifest_len, rest @ ..] = input else {
        return;
    };
    let (manifest, segment) = rest.split_at(rest.len().min(usize::from(*manifest_len)));
    let how = How(*how);
    let segment = how.segment(segment);
    let name = SegmentName {
        base_offset: how.base_offset(),
        id: how.is(0x10).then_some(7),
    };
    let disk = InMemoryFileSystem::new(0);
    let path = format!("{DIR}/{}", name.file_name());
    disk.write_file(path, segment.clone()).unwrap();
    if how.is(0x01) {
        let lines = how.manifest(manifest);
        disk.write_file(format!("{DIR}/manifest"), lines).unwrap();
    }
    let before = ALLOCATOR.start();
    run(disk, &segment, how.is(0x01));
    let peak = ALLOCATOR.peak.load(Ordering::Relaxed) - before;
    let most = FIXED_BYTES + 32 * input.len();
    assert!(peak <= most, "{peak} bytes for {}", input.len());
});

struct How(u8);

impl How {
    fn is(&self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    fn base_offset(&self) -> u64 {
        if self.is(0x20) { 7 } else { 0 }
    }

    /// The input as it is, or behind a right header, that of a file which was another segment's before among
    /// them, or as frames with right checksums, too.
    fn segment(&self, input: &[u8]) -> Vec<u8> {
        let header = SegmentHeader {
            is_recycled: self.is(0x40),
            ..SegmentHeader::new(&TopicName::new("t").unwrap(), 0)
        };
        let header = header.encode();
        let mut bytes = Vec::new();
        if self.is(0x02) {
            bytes.extend_from_slice(&header);
        }
        bytes.extend_from_slice(input);
        let mut at = header.len();
        while self.is(0x04)
            && let Some(length) = bytes.get(at..at + 4)
        {
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            let Some(covered) = bytes.get(at + FRAME_PREFIX_LEN..at + FRAME_PREFIX_LEN + length)
            else {
                break;
            };
            let crc = crc32fast::hash(covered).to_be_bytes();
            bytes[at + 4..at + 8].copy_from_slice(&crc);
            at += FRAME_PREFIX_LEN + length;
        }
        bytes
    }

    /// The input as it is, or behind a right header, and with right checksums.
    fn manifest(&self, input: &[u8]) -> Vec<u8> {
        if !self.is(0x08) {
            return input.to_vec();
        }
        let mut bytes = b"SQMF\x00\x02\x00\x00".to_vec();
        for line in input.chunks_exact(MANIFEST_LINE_LEN - 4) {
            bytes.extend_from_slice(line);
            bytes.extend_from_slice(&crc32fast::hash(line).to_be_bytes());
        }
        bytes
    }
}

fn run(disk: InMemoryFileSystem, segment: &[u8], listed: bool) {
    let valid = frames_in(segment);
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(async {
            let Some(mut log) = open(&disk).await else {
                return;
            };
            let served = all(&log.reader()).await;
            for frame in &served {
                assert!(valid.contains(&(frame.base_offset, &frame.payload.to_bytes()[..])));
            }
            let next = log.next_offset();
            let appended = log.append(None, b"next", &[], 0).await.is_ok();
            assert!(appended || next == u64::MAX, "an intact disk takes appends");
            let end = log.next_offset();
            drop(log);
            disk.process_crash();
            let log = open(&disk).await.expect("what opened once opens again");
            let again = all(&log.reader()).await;
            if listed {
                return;
            }
            assert_eq!(log.next_offset(), end);
            assert_eq!(again[..served.len()], served);
            assert_eq!(again.len(), served.len() + usize::from(appended));
        });
}

async fn open(disk: &InMemoryFileSystem) -> Option<WalWriter<InMemoryFileSystem>> {
    let config = WalConfig {
        max_frame_bytes: 4096,
        max_segment_bytes: 1 << 16,
        zero_ahead_bytes: 0,
        segment_ids: SegmentIds::seeded(1),
        ..WalConfig::new("/data")
    };
    let (fs, clock) = (disk.for_this_process(), VirtualClock::new());
    let topic = TopicName::new("t").unwrap();
    match WalWriter::with_clock(Arc::new(fs), config, topic, 0, Arc::new(clock)).await {
        Ok(log) => Some(log),
        Err(e) => {
            assert_eq!(e.action(), Action::Repair, "{e}");
            None
        }
    }
}

/// Every frame that the log serves, in order.
async fn all(reader: &LogReader<InMemoryFileSystem>) -> Vec<StoredFrame> {
    let mut found: Vec<StoredFrame> = Vec::new();
    let mut offset = reader.start_offset();
    while offset < reader.end_offset() {
        match reader.read(offset, 1 << 20).await {
            Ok(frames) => {
                assert!(!frames.is_empty(), "{offset} is silently missing");
                for frame in frames {
                    assert!(frame.base_offset <= offset && frame.end_offset() > offset);
                    offset = frame.end_offset();
                    found.push(frame);
                }
            }
            Err(ReadError::Damaged(_)) => {
                let next = reader.skip_damage(offset).await.unwrap();
                assert!(next > offset);
                offset = next;
            }
            Err(e) => panic!("{offset}: {e}"),
        }
    }
    for timestamp in [i64::MIN, 0, 1 << 40] {
        reader.find_by_timestamp(timestamp).await.ok();
    }
    reader.find_max_timestamp().await.ok();
    found
}

/// The base offset and the payload of whatever in the file has a right length and a right checksum.
fn frames_in(bytes: &[u8]) -> HashSet<(u64, &[u8])> {
    let frame = |at: usize| {
        let frame = &bytes[at..];
        let length = u32::from_be_bytes(frame.get(..4)?.try_into().ok()?) as usize;
        let covered = frame.get(FRAME_PREFIX_LEN..FRAME_PREFIX_LEN.checked_add(length)?)?;
        let body = covered.get(FRAME_HEADER_LEN - FRAME_PREFIX_LEN..)?;
        let crc = u32::from_be_bytes(frame.get(4..8)?.try_into().ok()?);
        let base_offset = u64::from_be_bytes(frame.get(16..24)?.try_into().ok()?);
        (crc == crc32fast::hash(covered)).then_some((base_offset, body))
    };
    (0..bytes.len()).filter_map(frame).collect()
}

/// The system's allocator, and how much was ever held at once.
struct Counting {
    held: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    /// How much is held now, from which the peak counts anew.
    fn start(&self) -> usize {
        let held = self.held.load(Ordering::Relaxed);
        self.peak.store(held, Ordering::Relaxed);
        held
    }

    fn add(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
    }
}

// SAFETY: every call is handed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.held.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting {
    held: AtomicUsize::new(0),
    peak: AtomicUsize::new(0),
};
