//! The indexes of sealed segments: what is wrong with one never shows in what is read.

use std::path::PathBuf;

use sq_sim::{Op, OpKind};
use sq_storage::{Batch, SegmentCache, StoredFrame};

use crate::support::{DIR, Machine, Reader, Stop, block_on, segment};

/// Records that a sealed segment holds, in frames of one each, over more than one of an index's intervals.
const RECORDS: u64 = 80;

fn batch(n: u64) -> Batch {
    let len = 1_500 + (n * 37 % 100) as usize;
    Batch {
        payload: vec![vec![n as u8; len].into()],
        record_count: 1,
        // Neither ascending nor descending.
        max_timestamp_ms: (n * 7 % 50).cast_signed(),
        leader_epoch: 0,
    }
}

fn index(base: u64) -> PathBuf {
    format!("{DIR}/{base:020}.index").into()
}

/// A machine whose log has one sealed segment and one record behind it.
async fn sealed() -> Machine {
    let machine = Machine::new(90);
    let mut log = machine.open().await;
    for n in 0..RECORDS {
        log.append_batches(&[batch(n)]).await.unwrap();
    }
    log.close_active_segment().await.unwrap().unwrap();
    log.append_batches(&[batch(RECORDS)]).await.unwrap();
    log.close().await.unwrap();
    machine
}

/// A process that starts on that disk and has read nothing yet.
fn restarted(machine: &Machine) -> Machine {
    machine.fs.process_crash();
    let mut machine = machine.clone();
    machine.config.segment_cache = SegmentCache::default();
    machine
}

fn check(frame: &StoredFrame, offset: u64) {
    assert_eq!(frame.base_offset, offset);
    assert_eq!(frame.payload, batch(offset).payload[0]);
}

async fn check_all(reader: &Reader) {
    for offset in 0..=RECORDS {
        check(&reader.read(offset, 0).await.unwrap()[0], offset);
    }
    check_times(reader).await;
}

async fn check_times(reader: &Reader) {
    for timestamp in [0, 7, 30, 49] {
        let expected = (0..RECORDS).find(|n| batch(*n).max_timestamp_ms >= timestamp);
        let found = reader.find_by_timestamp(timestamp).await.unwrap().unwrap();
        check(&found, expected.unwrap());
    }
    let greatest = reader.find_max_timestamp().await.unwrap().unwrap();
    check(
        &greatest,
        (0..RECORDS)
            .find(|n| batch(*n).max_timestamp_ms == 49)
            .unwrap(),
    );
}

/// How many bytes of a file were read.
fn bytes_read(trace: &[Op], path: &PathBuf) -> u64 {
    let of_it = |op: &&Op| op.kind == OpKind::ReadAt && &*op.path == path;
    trace.iter().filter(of_it).map(|op| op.len).sum()
}

#[test]
fn opening_and_reading_look_no_further_than_the_index_says() {
    block_on(async {
        let machine = restarted(&sealed().await);
        machine.fs.take_trace();
        let log = machine.open().await;
        assert_eq!(bytes_read(&machine.fs.trace(), &segment(0)), 0);
        assert!(
            machine.fs.trace().iter().all(|op| *op.path != *segment(0)),
            "not even opened"
        );
        check(&log.reader().read(79, 0).await.unwrap()[0], 79);
        let trace = machine.fs.take_trace();
        assert!(bytes_read(&trace, &index(0)) > 0);
        assert!(
            bytes_read(&trace, &segment(0)) < 80_000,
            "not all of its 120,000"
        );
        check_all(&log.reader()).await;
    });
}

#[test]
fn an_index_that_is_missing_or_wrong_is_made_anew() {
    // A broker died at its start where the index of a log's last segment was missing or corrupt.
    block_on(async {
        let machine = sealed().await;
        let good = machine.fs.read_file(index(0)).unwrap();
        let entry = 60 + 24;
        let position = entry + 8..entry + 16;
        let with_position = |bytes: u64| {
            let mut file = good.clone();
            file[position.clone()].copy_from_slice(&bytes.to_be_bytes());
            let end = file.len() - 4;
            let crc = crc32fast::hash(&file[..end]);
            file[end..].copy_from_slice(&crc.to_be_bytes());
            file
        };
        let right = u64::from_be_bytes(good[position.clone()].try_into().unwrap());
        let wrong: [(&str, Option<Vec<u8>>); 8] = [
            ("missing", None),
            ("empty", Some(Vec::new())),
            ("zeros", Some(vec![0; good.len()])),
            ("cut inside an entry", Some(good[..entry + 5].to_vec())),
            ("a position beyond the file", Some(with_position(1 << 40))),
            ("a position within a frame", Some(with_position(right + 1))),
            ("the position of another frame", Some(with_position(32))),
            (
                "the index of a longer file",
                Some([&good[..], &good[..]].concat()),
            ),
        ];
        for (what, file) in wrong {
            match file {
                Some(file) => machine.fs.write_file(index(0), file).unwrap(),
                None => machine.fs.delete_file(index(0)).unwrap(),
            }
            let machine = restarted(&machine);
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage, [], "{what}");
            check(&log.reader().read(57, 0).await.unwrap()[0], 57);
            check_all(&log.reader()).await;
            assert_eq!(machine.fs.read_file(index(0)).unwrap(), good, "{what}");
        }
    });
}

#[test]
fn no_flipped_bit_of_an_index_shows_in_what_is_read() {
    block_on(async {
        let machine = sealed().await;
        let good = machine.fs.read_file(index(0)).unwrap();
        for bit in 0..good.len() * 8 {
            machine.fs.write_file(index(0), good.clone()).unwrap();
            machine
                .fs
                .flip_bit(index(0), (bit / 8) as u64, (bit % 8) as u8)
                .unwrap();
            let machine = restarted(&machine);
            let log = machine.open().await;
            let reader = log.reader();
            for offset in [0, 21, 22, 40, 57, 79] {
                check(&reader.read(offset, 0).await.unwrap()[0], offset);
            }
            check_times(&reader).await;
            assert_eq!(machine.fs.read_file(index(0)).unwrap(), good, "bit {bit}");
        }
    });
}

#[test]
fn an_index_that_can_not_be_written_is_missed_by_nobody() {
    block_on(async {
        let machine = Machine::new(91);
        let mut log = machine.open().await;
        for n in 0..RECORDS {
            log.append_batches(&[batch(n)]).await.unwrap();
        }
        machine.fs.fail_next(OpKind::Rename, sq_sim::Errno::NoSpace);
        log.close_active_segment().await.unwrap().unwrap();
        assert!(machine.fs.read_file(index(0)).is_err());
        log.append_batches(&[batch(RECORDS)]).await.unwrap();
        check_all(&log.reader()).await;
        log.close().await.unwrap();
        let machine = restarted(&machine);
        check_all(&machine.open().await.reader()).await;
        assert!(machine.fs.read_file(index(0)).is_ok());
    });
}

#[test]
fn an_index_may_get_lost_in_a_crash_and_no_other_is_taken_for_it() {
    block_on(async {
        for stop in Stop::ALL {
            for after in 0..40 {
                let machine = Machine::new(92);
                let mut log = machine.open().await;
                for n in 0..RECORDS {
                    log.append_batches(&[batch(n)]).await.unwrap();
                }
                machine.fs.crash_after(after);
                let _ = log.close_active_segment().await;
                let _ = log.append_batches(&[batch(RECORDS)]).await;
                drop(log);
                stop.strike(&machine.fs);
                let machine = restarted(&machine);
                let log = machine.open().await;
                for offset in 0..RECORDS {
                    check(&log.reader().read(offset, 0).await.unwrap()[0], offset);
                }
            }
        }
    });
}

#[test]
fn the_index_of_a_segment_that_is_gone_goes_too() {
    block_on(async {
        let machine = sealed().await;
        let good = machine.fs.read_file(index(0)).unwrap();
        let leftovers = [
            index(7),
            format!("{DIR}/{:020}-00000000000000ff.index", 0).into(),
            format!("{DIR}/{:020}.index-tmp", 7).into(),
        ];
        for path in &leftovers {
            machine.fs.write_file(path, good.clone()).unwrap();
        }
        let machine = restarted(&machine);
        machine.open().await;
        assert!(
            leftovers
                .iter()
                .all(|path| machine.fs.read_file(path).is_err())
        );
        assert_eq!(machine.fs.read_file(index(0)).unwrap(), good);
    });
}

#[test]
fn a_segment_without_a_record_needs_no_index() {
    // A segment that held only its header, and had no index, was reported as corrupt at a clean restart.
    block_on(async {
        let header = sealed().await.fs.read_file(segment(0)).unwrap()[..32].to_vec();
        for zeros in [0, 1 << 16] {
            let machine = Machine::new(93);
            let file = [&header[..], &vec![0; zeros]].concat();
            machine.fs.write_file(segment(0), file).unwrap();
            let log = machine.open().await;
            let report = log.recovery_report();
            assert_eq!(
                (report.damage.len(), &report.unacknowledged_tail),
                (0, &None)
            );
            assert_eq!((log.next_offset(), log.reader().end_offset()), (0, 0));
            assert!(log.reader().read(0, 1).await.unwrap().is_empty());
            assert_eq!(log.reader().find_max_timestamp().await.unwrap(), None);
            log.close().await.unwrap();
        }
    });
}

#[test]
fn offsets_go_far_beyond_32_bits() {
    // An index that kept offsets relative to its segment's base in 32 bits wrapped, and what read it died.
    block_on(async {
        let machine = Machine::new(94);
        let mut log = machine.open().await;
        let count = i32::MAX.unsigned_abs();
        let huge = |n: u8| Batch {
            payload: vec![vec![n; 40_000].into()],
            record_count: count,
            max_timestamp_ms: i64::from(n),
            leader_epoch: 0,
        };
        for n in 0..5 {
            log.append_batches(&[huge(n)]).await.unwrap();
        }
        log.close_active_segment().await.unwrap().unwrap();
        log.append_batches(&[huge(5)]).await.unwrap();
        drop(log);
        let machine = restarted(&machine);
        let log = machine.open().await;
        assert_eq!(log.next_offset(), 6 * u64::from(count));
        for n in 0..6_u64 {
            let base = n * u64::from(count);
            for offset in [base, base + 1, base + u64::from(count) - 1] {
                let frames = log.reader().read(offset, 0).await.unwrap();
                assert_eq!(
                    (frames[0].base_offset, frames[0].payload.head(1)[0]),
                    (base, n as u8)
                );
            }
            let found = log
                .reader()
                .find_by_timestamp(n.cast_signed())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(found.base_offset, base);
        }
    });
}
