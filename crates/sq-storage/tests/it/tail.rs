//! What was appended last, read from memory.

use std::path::PathBuf;

use bytes::Bytes;
use sq_sim::{Errno, Fault, Op, OpKind};
use sq_storage::{Batch, TailCache};

use crate::support::{Machine, Reader, block_on};

fn batch(n: u8, len: usize) -> Batch {
    let half = len / 2;
    Batch {
        payload: vec![vec![n; half].into(), vec![n; len - half].into()],
        record_count: 2,
        max_timestamp_ms: i64::from(n),
        leader_epoch: 0,
    }
}

fn machine(cache: TailCache) -> Machine {
    let mut machine = Machine::new(80).with_segment_bytes(4_000);
    machine.config.tail_cache = cache;
    machine
}

fn reads(trace: &[Op]) -> Vec<(OpKind, PathBuf)> {
    let is_read = |op: &&Op| matches!(op.kind, OpKind::ReadAt | OpKind::OpenReadOnly | OpKind::Len);
    let read = trace.iter().filter(is_read);
    read.map(|op| (op.kind, op.path.to_path_buf())).collect()
}

#[test]
fn a_caught_up_reader_touches_no_file() {
    block_on(async {
        let machine = machine(TailCache::new(1 << 20));
        let mut log = machine.open().await;
        let reader = log.reader();
        for n in 0..20 {
            let sent = batch(n, 700);
            log.append_batches(std::slice::from_ref(&sent))
                .await
                .unwrap();
            machine.fs.take_trace();
            let frames = reader.read(u64::from(n) * 2, 1 << 20).await.unwrap();
            assert_eq!(frames.len(), 1);
            assert_eq!(frames[0].payload, sent.payload.concat());
        }
        let all = reader.read(0, 1 << 20).await.unwrap();
        assert_eq!(all.len(), 20, "over several segments");
        assert_eq!(machine.fs.take_trace(), []);
    });
}

#[test]
fn what_is_read_from_memory_is_no_copy() {
    block_on(async {
        let machine = machine(TailCache::new(1 << 20));
        let mut log = machine.open().await;
        let reader = log.reader();
        let pointers = |parts: &[Bytes]| parts.iter().map(|p| p.as_ptr()).collect::<Vec<_>>();
        let large = batch(1, 10_000);
        let appended = [large.clone(), batch(2, 100), batch(3, 100)];
        for batch in &appended {
            log.append_batches(std::slice::from_ref(batch))
                .await
                .unwrap();
        }
        let first = reader.read(0, 1 << 20).await.unwrap();
        let second = reader.read(0, 1 << 20).await.unwrap();
        assert_eq!(pointers(first[0].payload.parts()), pointers(&large.payload));
        assert_eq!(first.len(), 3);
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(first, second);
            assert_eq!(
                pointers(first.payload.parts()),
                pointers(second.payload.parts())
            );
        }
    });
}

#[test]
fn a_waiting_reader_is_woken_by_the_append_and_reads_from_memory() {
    block_on(async {
        let machine = machine(TailCache::new(1 << 20));
        let mut log = machine.open().await;
        let reader = log.reader();
        let read = async {
            reader.wait_for(0).await;
            machine.fs.take_trace();
            reader.read(0, 1 << 20).await.unwrap()
        };
        let append = [batch(1, 100)];
        let (frames, appended) = tokio::join!(read, log.append_batches(&append));
        appended.unwrap();
        assert_eq!(frames.len(), 1);
        assert_eq!(reads(&machine.fs.take_trace()), []);
    });
}

/// What a reader gives at an offset, in a form that can be compared.
async fn given(reader: &Reader, offset: u64, max: usize) -> Vec<(u64, u32, i64, Vec<u8>)> {
    let frames = reader.read(offset, max).await.unwrap();
    let entry = |f: sq_storage::StoredFrame| {
        let payload = f.payload.to_bytes().to_vec();
        (f.base_offset, f.record_count, f.max_timestamp_ms, payload)
    };
    frames.into_iter().map(entry).collect()
}

#[test]
fn a_read_from_the_file_into_memory_gives_what_the_files_alone_give() {
    block_on(async {
        for share in [0, 1, 300, 1_000, 2_000, 5_000, 9_000, 1 << 20] {
            let (cached, plain) = (
                machine(TailCache::with_share(1 << 20, share)),
                machine(TailCache::off()),
            );
            let (mut log, mut other) = (cached.open().await, plain.open().await);
            let (reader, expected) = (log.reader(), other.reader());
            for n in 0..14 {
                let batches: Vec<_> = (0..=n % 3)
                    .map(|m| batch(n * 3 + m, 50 + usize::from(n) * 67))
                    .collect();
                let mut rest = &batches[..];
                while !rest.is_empty() {
                    let count = log.append_batches(rest).await.unwrap();
                    assert_eq!(other.append_batches(&rest[..count]).await.unwrap(), count);
                    rest = &rest[count..];
                }
            }
            for offset in 0..reader.end_offset() {
                for max in [0, 1, 500, 1_000, 3_000, usize::MAX] {
                    let (read, expected) = (
                        given(&reader, offset, max).await,
                        given(&expected, offset, max).await,
                    );
                    assert_eq!(
                        read, expected,
                        "share {share}, offset {offset}, {max} bytes"
                    );
                }
            }
        }
    });
}

#[test]
fn what_leaves_memory_while_it_is_read_is_read_from_the_file() {
    block_on(async {
        // Room for three frames. While the first ones are read from the file, the log moves on, and the
        // frames that were to come from memory leave it.
        let machine = machine(TailCache::with_share(1 << 20, 3_000));
        let mut log = machine.open().await;
        let reader = log.reader();
        for n in 0..6 {
            log.append_batches(&[batch(n, 700)]).await.unwrap();
        }
        let late = std::time::Duration::from_millis(1);
        machine
            .fs
            .inject(Fault::delay(late).on(&[OpKind::ReadAt, OpKind::OpenReadOnly]));
        let read = reader.read(0, 1 << 20);
        let append = async {
            for n in 6..12 {
                log.append_batches(&[batch(n, 700)]).await.unwrap();
            }
            machine.fs.clear_faults();
            for _ in 0..100 {
                machine.clock.advance(late);
                tokio::task::yield_now().await;
            }
        };
        let (frames, ()) = tokio::join!(read, append);
        let bases: Vec<_> = frames.unwrap().iter().map(|f| f.base_offset).collect();
        assert_eq!(
            bases,
            [0, 2, 4, 6, 8, 10],
            "up to the end when the read began"
        );
    });
}

#[test]
fn a_failed_append_is_not_read_from_memory() {
    block_on(async {
        let machine = machine(TailCache::new(1 << 20));
        let mut log = machine.open().await;
        let reader = log.reader();
        log.append_batches(&[batch(1, 100)]).await.unwrap();
        for (n, kind) in [(2, OpKind::WriteAt), (4, OpKind::SyncData)] {
            machine.fs.fail_next(kind, Errno::Io);
            log.append_batches(&[batch(n, 100)]).await.unwrap_err();
            let end = reader.end_offset();
            assert_eq!(reader.read(end, 1 << 20).await.unwrap(), []);
            log.append_batches(&[batch(n + 1, 100)]).await.unwrap();
            let frames = reader.read(end, 1 << 20).await.unwrap();
            assert_eq!(frames.len(), 1);
            assert_eq!(frames[0].payload, vec![n + 1; 100]);
        }
    });
}

#[test]
fn all_partitions_together_stay_within_the_bound_and_the_oldest_goes_first() {
    block_on(async {
        let cache = TailCache::with_share(20_000, 8_000);
        let machine = machine(cache.clone());
        let mut logs = Vec::new();
        for partition in 0..10 {
            logs.push(machine.open_as("orders", partition).await.unwrap());
        }
        let mut order = Vec::new();
        for round in 0..8_u8 {
            for (at, log) in logs.iter_mut().enumerate() {
                log.append_batches(&[batch(round, 300 + at * 50)])
                    .await
                    .unwrap();
                order.push((at, u64::from(round) * 2));
                assert!(cache.held_bytes() <= 20_000);
            }
        }
        assert!(cache.held_bytes() > 18_000, "and it is made use of");
        // What is in memory is what was appended last, and nothing else.
        let mut in_memory = Vec::new();
        for (at, offset) in &order {
            machine.fs.take_trace();
            logs[*at].reader().read(*offset, 0).await.unwrap();
            in_memory.push(machine.fs.take_trace().is_empty());
        }
        let first = in_memory.iter().position(|held| *held).unwrap();
        assert!(in_memory[first..].iter().all(|held| *held), "{in_memory:?}");
        assert!(first > 0);
        logs.truncate(3);
        assert!(
            cache.held_bytes() < 7_000,
            "a closed log gives its part back"
        );
        drop(logs);
        assert_eq!(cache.held_bytes(), 0);
    });
}

#[test]
fn one_partition_leaves_room_for_others() {
    block_on(async {
        let cache = TailCache::with_share(20_000, 8_000);
        let mut machine = machine(cache.clone());
        machine.config.max_segment_bytes = 1 << 20;
        let mut quiet = machine.open_as("orders", 0).await.unwrap();
        let mut busy = machine.open_as("orders", 1).await.unwrap();
        quiet.append_batches(&[batch(0, 500)]).await.unwrap();
        for n in 0..100 {
            busy.append_batches(&[batch(n, 500)]).await.unwrap();
        }
        assert!(cache.held_bytes() < 9_000);
        // Larger than a partition's part: it can't be held, and nothing before it without a gap.
        busy.append_batches(&[batch(1, 9_000)]).await.unwrap();
        assert!(cache.held_bytes() < 1_000);
        machine.fs.take_trace();
        quiet.reader().read(0, 0).await.unwrap();
        assert_eq!(machine.fs.take_trace(), []);
        assert_eq!(
            busy.reader().read(200, 0).await.unwrap()[0].payload.len(),
            9_000
        );
    });
}
