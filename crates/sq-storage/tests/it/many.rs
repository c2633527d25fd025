//! Many partitions and many segments: what they cost while nobody uses them.

use sq_sim::OpKind;
use sq_storage::{Batch, SegmentCache};

use crate::support::{Machine, block_on};

const MAX_OPEN_FILES: usize = 16;
const MAX_INDEX_BYTES: usize = 8 << 10;

fn batch(n: u64) -> Batch {
    Batch {
        payload: vec![format!("record {n}").into()],
        record_count: 1,
        max_timestamp_ms: n.cast_signed(),
        leader_epoch: 0,
    }
}

/// A machine on which each of so many partitions has so many sealed segments, and one record behind them.
async fn filled(partitions: u32, segments: u64) -> Machine {
    let machine = Machine::new(95);
    let mut log = machine.open_as("orders", 0).await.unwrap();
    for n in 0..segments {
        log.append_batches(&[batch(n)]).await.unwrap();
        log.close_active_segment().await.unwrap().unwrap();
    }
    log.append_batches(&[batch(segments)]).await.unwrap();
    log.close().await.unwrap();
    // The others are copies, but for the partition's number in the segments' headers.
    for path in machine.fs.files() {
        let name = path.file_name().unwrap();
        let mut bytes = machine.fs.read_file(&path).unwrap();
        for partition in 1..partitions {
            if path.extension().is_some_and(|e| e == "wal") {
                bytes[28..32].copy_from_slice(&partition.to_be_bytes());
            }
            let path = format!("/data/orders/{partition}");
            let path = std::path::Path::new(&path).join(name);
            machine.fs.write_file(path, bytes.clone()).unwrap();
        }
    }
    machine.fs.process_crash();
    machine.fs.take_trace();
    machine
}

/// Opens all, and reads a record of each segment.
async fn open_and_read(partitions: u32, segments: u64) {
    let mut machine = filled(partitions, segments).await;
    let cache = SegmentCache::new(MAX_OPEN_FILES, MAX_INDEX_BYTES);
    machine.config.segment_cache = cache.clone();
    let active = format!("{segments:020}.wal");
    let mut logs = Vec::new();
    for partition in 0..partitions {
        logs.push(machine.open_as("orders", partition).await.unwrap());
        for op in machine.fs.take_trace() {
            let name = op.path.file_name().unwrap().to_str().unwrap();
            let is_dir = matches!(op.kind, OpKind::ListDir | OpKind::SyncDir);
            assert!(
                is_dir || name == active || name == "manifest",
                "opening did {op}"
            );
        }
    }
    let idle = machine.fs.open_files();
    assert!(idle <= logs.len(), "an active file each");
    for (log, at) in logs.iter().zip(0..) {
        if at % 100 == 0 {
            assert!(machine.fs.open_files() <= idle + MAX_OPEN_FILES);
        }
        let reader = log.reader();
        for n in 0..=segments {
            let frames = reader.read(n, 0).await.unwrap();
            assert_eq!(frames[0].payload, batch(n).payload[0]);
            assert!(cache.open_files() <= MAX_OPEN_FILES);
            assert!(cache.index_bytes() <= MAX_INDEX_BYTES);
        }
        machine.fs.take_trace();
    }
    assert_eq!(cache.open_files(), MAX_OPEN_FILES);
    drop(logs);
    assert_eq!((cache.open_files(), cache.index_bytes()), (0, 0));
    assert_eq!(machine.fs.open_files(), 0);
}

#[test]
fn ten_thousand_partitions_with_ten_segments_each_open_no_sealed_file() {
    block_on(open_and_read(10_000, 10));
}

#[test]
fn a_partition_with_a_thousand_segments_opens_none_of_the_sealed() {
    block_on(open_and_read(2, 1_000));
}

#[test]
fn what_is_read_again_is_neither_opened_nor_loaded_again() {
    block_on(async {
        let mut machine = filled(1, 20).await;
        machine.config.segment_cache = SegmentCache::new(4, 1 << 20);
        let log = machine.open_as("orders", 0).await.unwrap();
        let reader = log.reader();
        for n in [0, 1, 2, 3] {
            reader.read(n, 0).await.unwrap();
        }
        machine.fs.take_trace();
        for n in [3, 0, 2, 1, 0] {
            reader.read(n, 0).await.unwrap();
        }
        let trace = machine.fs.take_trace();
        assert!(
            trace.iter().all(|op| op.kind == OpKind::ReadAt),
            "{trace:?}"
        );
        // The one that was used longest ago goes: 3.
        reader.read(9, 0).await.unwrap();
        machine.fs.take_trace();
        for n in [0, 1, 2, 9] {
            reader.read(n, 0).await.unwrap();
        }
        let opened = |op: &sq_sim::Op| op.kind == OpKind::OpenReadOnly;
        assert!(!machine.fs.take_trace().iter().any(opened));
        reader.read(3, 0).await.unwrap();
        assert_eq!(
            machine
                .fs
                .take_trace()
                .iter()
                .filter(|op| opened(op))
                .count(),
            1,
            "its index is there still"
        );
    });
}

/// A manifest that stayed open between its lines doubled what idle partitions held: the second ten thousand
/// are more than many systems give a process.
#[test]
fn an_idle_partition_keeps_its_active_file_open_and_nothing_else() {
    block_on(async {
        let machine = Machine::new(96);
        let partitions = 100;
        let mut logs = Vec::new();
        for partition in 0..partitions {
            logs.push(machine.open_as("orders", partition).await.unwrap());
        }
        assert_eq!(machine.fs.open_files(), 0, "nothing was appended");
        // The manifest is written anew with its first lines, and appended to with those that follow.
        for n in 0..4 {
            for log in &mut logs {
                log.append_batches(&[batch(n)]).await.unwrap();
            }
            assert_eq!(machine.fs.open_files(), logs.len());
            for log in &mut logs {
                log.close_active_segment().await.unwrap().unwrap();
            }
            assert_eq!(machine.fs.open_files(), 0);
        }
        for log in &mut logs {
            log.append_batches(&[batch(4)]).await.unwrap();
        }
        drop(logs);
        machine.fs.process_crash();
        let mut logs = Vec::new();
        for partition in 0..partitions {
            logs.push(machine.open_as("orders", partition).await.unwrap());
        }
        assert!(machine.fs.open_files() <= logs.len(), "opened again");
    });
}
