//! Opening a large segment on a file system that reads ahead.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sq_sim::{FileSystem, InMemoryFileSystem, OsFileSystem};
use sq_storage::{Batch, RecoveryReport, SegmentIds, StoredFrame, TailCache, TopicName};
use sq_storage::{WalConfig, WalWriter};

use crate::support::{DIR, block_on, segment};

const MAX_FRAME: usize = 3 << 20;

fn config(dir: &Path) -> WalConfig {
    WalConfig {
        max_frame_bytes: MAX_FRAME,
        segment_ids: SegmentIds::seeded(5),
        tail_cache: TailCache::off(),
        ..WalConfig::new(dir)
    }
}

/// A segment whose frames are of all sizes, so that they lie across every kind of boundary.
async fn segment_bytes(rng: &mut StdRng, largest: usize, total: usize) -> Vec<u8> {
    let fs = Arc::new(InMemoryFileSystem::new(1));
    let topic = TopicName::new("orders").unwrap();
    let mut log = WalWriter::new(fs.clone(), config(Path::new("/data")), topic, 7)
        .await
        .unwrap();
    let mut written = 0;
    while written < total {
        let len = rng.random_range(0..=largest);
        let batch = Batch {
            payload: vec![vec![rng.random(); len].into()],
            record_count: 2,
            max_timestamp_ms: 5,
            leader_epoch: 0,
        };
        written += len + 64;
        log.append_batches(&[batch]).await.unwrap();
    }
    drop(log);
    fs.read_file(segment(0)).unwrap()
}

/// What opening finds, and what is read then. Of the report, what does not depend on the directory.
async fn opened<F: FileSystem>(fs: F, dir: &Path) -> (u64, RecoveryReport, Vec<StoredFrame>) {
    let topic = TopicName::new("orders").unwrap();
    let log = WalWriter::new(Arc::new(fs), config(dir), topic, 7)
        .await
        .unwrap();
    let mut report = log.recovery_report().clone();
    if let Some(tail) = &mut report.unacknowledged_tail {
        tail.path = tail.path.strip_prefix(dir).unwrap().to_owned();
    }
    for damage in &mut report.damage {
        damage.path = damage.path.strip_prefix(dir).unwrap().to_owned();
    }
    let (reader, mut frames) = (log.reader(), Vec::new());
    let mut next = 0;
    while next < log.next_offset() {
        next = reader.skip_damage(next).await.unwrap();
        let read = reader.read(next, 1 << 20).await.unwrap();
        next = read.last().map_or(next, StoredFrame::end_offset);
        frames.extend(read);
    }
    (log.next_offset(), report, frames)
}

async fn compare(bytes: &[u8], pool: bool) {
    let dir = tempfile::tempdir().unwrap();
    let files = OsFileSystem::inline();
    let place = dir.path().join("orders/7");
    files.create_dir_all(&place).await.unwrap();
    let file = files
        .create_new(&place.join("00000000000000000000.wal"))
        .await
        .unwrap();
    file.write_at(0, &[Bytes::copy_from_slice(bytes)])
        .await
        .unwrap();
    let simulated = InMemoryFileSystem::new(2);
    simulated.write_file(segment(0), bytes).unwrap();
    simulated.create_dir_all(Path::new(DIR)).await.unwrap();
    let expected = opened(simulated, Path::new("/data")).await;
    let fs = if pool {
        OsFileSystem::blocking_pool()
    } else {
        OsFileSystem::inline()
    };
    let found = opened(fs, dir.path()).await;
    assert_eq!((found.0, &found.1), (expected.0, &expected.1));
    assert!(found.2 == expected.2, "the frames are the same");
}

#[test]
fn a_file_that_is_read_ahead_opens_as_any_other() {
    block_on(async {
        let mut rng = StdRng::seed_from_u64(1);
        for (largest, total) in [
            (1_000, 6 << 20),
            (40_000, 6 << 20),
            (300_000, 9 << 20),
            (MAX_FRAME - 64, 20 << 20),
        ] {
            let bytes = segment_bytes(&mut rng, largest, total).await;
            for pool in [false, true] {
                compare(&bytes, pool).await;
                // With preallocated space behind it, torn, and rotten.
                compare(&[&bytes[..], &vec![0; 5 << 20]].concat(), pool).await;
                let cut = rng.random_range(4 << 20..bytes.len());
                compare(&bytes[..cut], pool).await;
                let mut rotten = bytes.clone();
                for _ in 0..3 {
                    let at = rng.random_range(32..bytes.len());
                    rotten[at] ^= 1;
                }
                compare(&rotten, pool).await;
            }
        }
    });
}

#[test]
fn a_range_is_read_ahead_in_order_and_to_its_end() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..5 << 20).map(|n: u32| (n / 4096) as u8).collect();
        for fs in [OsFileSystem::inline(), OsFileSystem::blocking_pool()] {
            let path = dir.path().join("file");
            let _ = fs.remove_file(&path).await;
            let file = fs.create_new(&path).await.unwrap();
            file.write_at(0, &[Bytes::from(bytes.clone())])
                .await
                .unwrap();
            assert!(
                file.read_ahead(0..1000, 100).is_none(),
                "not worth a thread"
            );
            // Beyond the file's end as well.
            for end in [bytes.len() as u64, (4 << 20) + 77, 9 << 20] {
                let mut ahead = file.read_ahead(50..end, 100_000).unwrap();
                let mut read = Vec::new();
                loop {
                    let piece = ahead.next().await.unwrap();
                    if piece.is_empty() {
                        break;
                    }
                    read.extend_from_slice(&piece);
                }
                let end = bytes.len().min(end as usize);
                assert!(read == bytes[50..end]);
                assert!(ahead.next().await.unwrap().is_empty());
            }
            // Let go of in the middle.
            let mut ahead = file.read_ahead(0..bytes.len() as u64, 4096).unwrap();
            ahead.next().await.unwrap();
            drop(ahead);
        }
    });
}
