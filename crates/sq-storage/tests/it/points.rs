//! Recovery points: opening reads what is behind the last one, and nothing is lost by one that is missing, old
//! or wrong.

use std::ops::Range;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use sq_sim::{Effect, Errno, Fault, Keep, Op, OpKind, PathPattern, poll_n_then_drop};
use sq_storage::wal::manifest::ManifestContent;
use sq_storage::{
    Damage, MaintenanceMode, ReadError, RecoveryPoint, RecoveryReport, Result, SyncPolicy,
};

use crate::layer::Layer;
use crate::oracle::Oracle;
use crate::scrub;
use crate::support::{DIR, Machine, Reader, Stop, Writer, block_on, segment, value, values};

/// How far apart points are, in bytes.
const INTERVAL: u64 = 4_000;

fn machine(seed: u64) -> Machine {
    let mut machine = Machine::new(seed);
    machine.config.recovery_point_bytes = INTERVAL;
    machine
}

fn point(base: u64) -> PathBuf {
    format!("{DIR}/{base:020}.point").into()
}

fn has_point(machine: &Machine, base: u64) -> bool {
    machine.fs.read_file(point(base)).is_ok()
}

async fn append(log: &mut Writer, oracle: &mut Oracle, numbers: Range<u64>) {
    for n in numbers {
        oracle.append_at(log, value(n), n).await.unwrap();
    }
}

/// A log of so many records of which nobody was told that it would end, and the process is gone.
async fn crashed(machine: &Machine, records: u64) -> Oracle {
    let mut oracle = Oracle::default();
    let mut log = machine.open().await;
    append(&mut log, &mut oracle, 0..records).await;
    drop(log);
    machine.fs.process_crash();
    oracle
}

/// How many bytes were read of a file of so many, and in how many reads.
fn read_of(trace: &[Op], path: &PathBuf, bytes: u64) -> (u64, usize) {
    let of_it = |op: &&Op| op.kind == OpKind::ReadAt && &*op.path == path;
    let reads = trace.iter().filter(of_it);
    let len = |op: &Op| op.len.min(bytes.saturating_sub(op.offset));
    (reads.clone().map(len).sum(), reads.count())
}

/// Where opening began to read, if there was a point.
fn resumed(report: &RecoveryReport) -> Option<&RecoveryPoint> {
    assert!(report.recovery_points.len() <= 1);
    report.recovery_points.first()
}

/// What a log that was opened holds is what was appended, by offset and by time, and it goes on.
async fn is_whole(log: &mut Writer, oracle: &mut Oracle) {
    assert_eq!(log.recovery_report().damage, []);
    oracle.check(log).await;
    for offset in oracle.start()..=oracle.end() {
        let time = offset.cast_signed();
        oracle.look_up(&log.reader(), offset, time).await;
    }
    let next = oracle.end();
    append(log, oracle, next..next + 1).await;
    oracle.verify(&log.reader()).await;
}

#[test]
fn opening_reads_what_is_behind_the_point_however_much_is_in_front() {
    // After a crash all of the active segment was read: a whole GiB, if it had that much.
    block_on(async {
        let mut most = Vec::new();
        for records in [30, 300, 3_000] {
            let machine = machine(1);
            let mut oracle = crashed(&machine, records).await;
            let bytes = machine.fs.read_file(segment(0)).unwrap().len() as u64;
            machine.fs.take_trace();
            let mut log = machine.open().await;
            let (read, reads) = read_of(&machine.fs.take_trace(), &segment(0), bytes);
            let report = log.recovery_report().clone();
            let point = resumed(&report).unwrap();
            assert_eq!(point.path, segment(0));
            assert!(point.offset < records && point.position < bytes);
            let end = log.active_segment().unwrap().bytes;
            assert_eq!(report.bytes_scanned, end - point.position);
            assert!(report.bytes_scanned < INTERVAL + 400);
            assert_eq!(report.frames_scanned, records - point.offset);
            assert_eq!(report.segments_scanned, 1);
            assert!(read < 3 * INTERVAL, "{read} of {bytes} bytes");
            most.push(reads);
            is_whole(&mut log, &mut oracle).await;
        }
        assert_eq!(most[0], most[2]);

        let machine = Machine::new(1);
        let mut oracle = crashed(&machine, 300).await;
        let mut log = machine.open().await;
        assert_eq!(log.recovery_report().recovery_points, []);
        assert_eq!(log.recovery_report().frames_scanned, 300);
        let end = log.active_segment().unwrap().bytes;
        assert_eq!(log.recovery_report().bytes_scanned, end - 32);
        is_whole(&mut log, &mut oracle).await;
    });
}

#[test]
fn each_opening_leaves_the_next_no_more_to_read() {
    block_on(async {
        let machine = machine(2);
        let mut oracle = crashed(&machine, 40).await;
        for life in 1..12 {
            let mut log = machine.open().await;
            assert!(log.recovery_report().bytes_scanned < INTERVAL + 400);
            assert!(resumed(log.recovery_report()).is_some());
            append(&mut log, &mut oracle, 40 * life..40 * life + 7).await;
            is_whole(&mut log, &mut oracle).await;
            let next = oracle.end();
            append(&mut log, &mut oracle, next..40 * (life + 1)).await;
            drop(log);
            machine.fs.process_crash();
        }
        // Whoever found none makes one with the next append.
        machine.fs.delete_file(point(0)).unwrap();
        let mut log = machine.open().await;
        assert_eq!(resumed(log.recovery_report()), None);
        let next = oracle.end();
        append(&mut log, &mut oracle, next..next + 2).await;
        assert!(has_point(&machine, 0));
    });
}

#[test]
fn who_wants_to_see_the_frames_is_shown_all_of_them() {
    block_on(async {
        let machine = machine(3);
        let mut oracle = crashed(&machine, 200).await;
        let mut layer = Layer::default();
        let mut log = machine.open_with(&mut layer).await.unwrap();
        assert_eq!(layer.frames.len(), 200);
        layer.check(&log.reader()).await;
        assert_eq!(log.recovery_report().frames_scanned, 200);
        assert_eq!(resumed(log.recovery_report()), None);
        is_whole(&mut log, &mut oracle).await;
    });
}

#[test]
fn no_append_reads_or_writes_anything_else() {
    block_on(async {
        let mut machine = machine(4);
        machine.config.maintenance = MaintenanceMode::Handed;
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        append(&mut log, &mut oracle, 0..1).await;
        machine.fs.take_trace();
        append(&mut log, &mut oracle, 1..300).await;
        let trace = machine.fs.take_trace();
        let expected = [OpKind::WriteAt, OpKind::SyncData].repeat(299);
        let kinds: Vec<_> = trace.iter().map(|op| op.kind).collect();
        assert_eq!(kinds, expected);
        // One is written for all that were due, and without a sync.
        log.maintenance().run().await.unwrap();
        let trace = machine.fs.take_trace();
        let of_point = |op: &&Op| op.path.to_string_lossy().contains(".point");
        let kinds: Vec<_> = trace.iter().filter(of_point).map(|op| op.kind).collect();
        let expected = [OpKind::CreateNew, OpKind::WriteAt, OpKind::Rename];
        assert_eq!(kinds, expected);
        drop(log);
        machine.fs.process_crash();
        let mut log = machine.open().await;
        assert!(log.recovery_report().bytes_scanned < INTERVAL + 400);
        is_whole(&mut log, &mut oracle).await;
    });
}

#[test]
fn without_an_interval_there_is_no_point_and_a_small_segment_has_none() {
    block_on(async {
        for (bytes, segment_bytes) in [(0, 1 << 20), (u64::MAX, 1 << 20), (INTERVAL, INTERVAL)] {
            let mut machine = machine(5).with_segment_bytes(segment_bytes);
            machine.config.recovery_point_bytes = bytes;
            let mut oracle = crashed(&machine, 200).await;
            let trace = machine.fs.take_trace();
            let is_point = |op: &Op| op.path.to_string_lossy().contains(".point");
            assert!(!trace.iter().any(is_point));
            let mut log = machine.open().await;
            assert_eq!(resumed(log.recovery_report()), None);
            is_whole(&mut log, &mut oracle).await;
        }
    });
}

/// Files to put in a point's place, of a log whose point is `good`.
fn wrong_points(good: &[u8], foreign: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    let resealed = |change: &dyn Fn(&mut [u8])| {
        let mut file = good.to_vec();
        let (content, end) = (file.len() - 4, file.len());
        let index = content - 4;
        change(&mut file[..index]);
        let crc = crc32fast::hash(&file[44..index]).to_be_bytes();
        file[index..content].copy_from_slice(&crc);
        let crc = crc32fast::hash(&file[..content]).to_be_bytes();
        file[content..end].copy_from_slice(&crc);
        file
    };
    let mut wrong = vec![
        ("missing".to_owned(), None),
        ("empty".to_owned(), Some(Vec::new())),
        ("zeros".to_owned(), Some(vec![0; good.len()])),
        ("twice".to_owned(), Some(good.repeat(2))),
        ("another segment's".to_owned(), Some(foreign.to_vec())),
    ];
    for len in (1..good.len()).step_by(7) {
        wrong.push((format!("its first {len} bytes"), Some(good[..len].to_vec())));
    }
    for bit in (0..good.len() * 8).step_by(13) {
        let mut flipped = good.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        wrong.push((format!("bit {bit} flipped"), Some(flipped)));
    }
    // Fields that lie: version, last frame's position, base and checksum, segment, base, offset, position.
    for at in [5, 15, 23, 43, 59, 67, 75, 83] {
        let lying = resealed(&|file| file[at] ^= 1);
        wrong.push((
            format!("a right checksum over another byte {at}"),
            Some(lying),
        ));
    }
    wrong
}

#[test]
fn a_point_that_does_not_fit_costs_a_scan_and_nothing_else() {
    block_on(async {
        let of_another = machine(7);
        crashed(&of_another, 100).await;
        let foreign = of_another.fs.read_file(point(0)).unwrap();
        let machine = machine(6);
        let oracle = crashed(&machine, 100).await;
        let files = machine.fs.files();
        let files: Vec<_> = files
            .iter()
            .map(|path| (path, machine.fs.read_file(path).unwrap()))
            .collect();
        let good = machine.fs.read_file(point(0)).unwrap();
        for (what, wrong) in wrong_points(&good, &foreign) {
            for (path, content) in &files {
                machine.fs.write_file(path, content.clone()).unwrap();
            }
            match wrong {
                Some(file) => machine.fs.write_file(point(0), file).unwrap(),
                None => machine.fs.delete_file(point(0)).unwrap(),
            }
            let mut log = machine.open().await;
            assert_eq!(resumed(log.recovery_report()), None, "{what}");
            assert_eq!(log.recovery_report().frames_scanned, 100, "{what}");
            is_whole(&mut log, &mut oracle.clone()).await;
        }
    });
}

#[test]
fn a_point_whose_index_lies_hides_no_record() {
    // Its checksum is right, and so is the frame that it names.
    block_on(async {
        for (n, by) in (0..8).flat_map(|n| [1_u64, 64, 300].map(|by| (n, by))) {
            let mut machine = machine(8);
            machine.config.recovery_point_bytes = 200_000;
            let mut oracle = crashed(&machine, 1_200).await;
            let mut file = machine.fs.read_file(point(0)).unwrap();
            let index = file.len() - 8;
            // Several entries of 24 bytes; the first one's place is the header's end.
            let entry = 44 + 60 + 24 * (1 + n % ((index - 44 - 60) / 24 - 1));
            let field = entry + 8..entry + 16;
            let right = u64::from_be_bytes(file[field.clone()].try_into().unwrap());
            file[field].copy_from_slice(&(right + by).to_be_bytes());
            for (from, to) in [(44, index), (0, index + 4)] {
                let crc = crc32fast::hash(&file[from..to]).to_be_bytes();
                file[to..to + 4].copy_from_slice(&crc);
            }
            machine.fs.write_file(point(0), file).unwrap();
            let mut log = machine.open().await;
            assert!(resumed(log.recovery_report()).is_some());
            if by == 64 {
                let middle = oracle.end() / 2;
                oracle.truncate_from(&mut log, middle).await.unwrap();
            }
            is_whole(&mut log, &mut oracle).await;
            log.close_active_segment().await.unwrap();
            is_whole(&mut log, &mut oracle).await;
            drop(log);
            machine.fs.process_crash();
            machine.config.segment_cache = sq_storage::SegmentCache::default();
            is_whole(&mut machine.open().await, &mut oracle).await;
        }
    });
}

#[test]
fn an_older_point_costs_reading_more() {
    block_on(async {
        let machine = machine(9);
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        append(&mut log, &mut oracle, 0..60).await;
        let old = machine.fs.read_file(point(0)).unwrap();
        append(&mut log, &mut oracle, 60..200).await;
        drop(log);
        machine.fs.process_crash();
        machine.fs.write_file(point(0), old).unwrap();
        let mut log = machine.open().await;
        let point = resumed(log.recovery_report()).unwrap();
        assert!((30..60).contains(&point.offset));
        is_whole(&mut log, &mut oracle).await;
    });
}

#[test]
fn a_file_that_ends_in_front_of_its_point_is_read() {
    block_on(async {
        let machine = machine(10);
        crashed(&machine, 100).await;
        let log = machine.open().await;
        let position = resumed(log.recovery_report()).unwrap().position as usize;
        drop(log);
        for cut in [1, 100, 4_000] {
            let mut file = machine.fs.read_file(segment(0)).unwrap();
            file.truncate(position - cut);
            machine.fs.write_file(segment(0), file).unwrap();
            let log = machine.open().await;
            assert_eq!(resumed(log.recovery_report()), None);
            let found = values(&log.reader()).await;
            assert!(found.iter().zip(0..).all(|(v, n)| *v == value(n)));
            assert!(found.len() < 100);
        }
    });
}

/// A log of 1200 records whose point has a right checksum and says of a frame in the middle that it stands a
/// byte further on.
async fn with_a_lying_point(machine: &Machine) -> Oracle {
    let oracle = crashed(machine, 1_200).await;
    let mut file = machine.fs.read_file(point(0)).unwrap();
    let index = file.len() - 8;
    let entry = 44 + 60 + 24 * ((index - 44 - 60) / 24 / 2);
    let field = entry + 8..entry + 16;
    let right = u64::from_be_bytes(file[field.clone()].try_into().unwrap());
    file[field].copy_from_slice(&(right + 1).to_be_bytes());
    for (from, to) in [(44, index), (0, index + 4)] {
        let crc = crc32fast::hash(&file[from..to]).to_be_bytes();
        file[to..to + 4].copy_from_slice(&crc);
    }
    machine.fs.write_file(point(0), file).unwrap();
    oracle
}

/// Reads each record by itself, from a place that an index told.
async fn each_is_there(oracle: &Oracle, log: &Writer) {
    let reader = log.reader();
    for offset in (0..oracle.end()).rev() {
        let frames = reader.read(offset, 1).await.unwrap();
        assert_eq!(frames[0].base_offset, offset);
    }
}

#[test]
fn an_index_that_is_mended_while_it_is_written_is_not_vouched_for() {
    // A reader found that the point had lied, and made anew what it had told, while that was on its way into
    // the index file: the manifest then vouched for the file, and an intact record could not be read.
    for polls in 0..24 {
        block_on(async {
            let mut machine = machine(22);
            machine.config.recovery_point_bytes = 200_000;
            let oracle = with_a_lying_point(&machine).await;
            machine.config.maintenance = MaintenanceMode::Handed;
            let mut log = machine.open().await;
            assert!(resumed(log.recovery_report()).is_some());
            log.close_active_segment().await.unwrap();
            let maintenance = log.maintenance();
            let mut sealing = pin!(maintenance.run());
            let sealed = poll_n_then_drop(sealing.as_mut(), polls).await;
            each_is_there(&oracle, &log).await;
            match sealed {
                Some(sealed) => sealed.unwrap(),
                None => sealing.await.unwrap(),
            }
            drop(log);
            machine.fs.process_crash();
            machine.config.segment_cache = sq_storage::SegmentCache::default();
            let log = machine.open().await;
            assert_eq!(log.recovery_report().segments_scanned, 0);
            each_is_there(&oracle, &log).await;
        });
    }
}

/// Where a record's frame begins in the segment.
fn at(n: u64) -> u64 {
    32 + (0..n).map(scrub::frame_len).sum::<u64>()
}

async fn is_lost(reader: &Reader, offset: u64) {
    let read = reader.read(offset, 1).await;
    let found = matches!(&read, Err(ReadError::Damaged(_)));
    assert!(found, "{offset}: {read:?}");
    for neighbour in [offset - 1, offset + 1] {
        let frames = reader.read(neighbour, 1).await.unwrap();
        assert_eq!(frames[0].base_offset, neighbour);
    }
    let next = reader.skip_damage(offset).await.unwrap();
    assert_eq!(next, offset + 1);
    let found = reader.find_by_timestamp(offset.cast_signed()).await;
    assert_eq!(found.unwrap().unwrap().base_offset, offset + 1);
}

#[test]
fn damage_in_front_of_a_point_is_found_when_it_is_read_and_hides_no_neighbour() {
    block_on(async {
        // The first record that an index knows the place of, and others.
        for offset in [1, 5, 33, 150, 151, 152, 153, 154, 155, 156, 157, 158, 290] {
            let mut machine = machine(11);
            crashed(&machine, 400).await;
            let flip = |at| machine.fs.flip_bit(segment(0), at, 3).unwrap();
            flip(at(offset) + 70);
            let mut log = machine.open().await;
            let report = log.recovery_report().clone();
            assert!(resumed(&report).unwrap().offset > 300);
            assert_eq!(report.damage, []);
            let reader = log.reader();
            is_lost(&reader, offset).await;
            let (_, found) = scrub::check(&machine, &reader).await;
            assert_eq!(found, [(segment(0), at(offset), offset..offset + 1)]);

            // The log goes on, with this segment and the next.
            assert_eq!(log.append(None, &value(400), &[], 400).await.unwrap(), 400);
            is_lost(&reader, offset).await;
            log.close_active_segment().await.unwrap();
            is_lost(&reader, offset).await;
            assert_eq!(log.append(None, &value(401), &[], 401).await.unwrap(), 401);
            drop(log);
            machine.fs.process_crash();
            machine.config.segment_cache = sq_storage::SegmentCache::default();
            let mut log = machine.open().await;
            is_lost(&log.reader(), offset).await;
            log.truncate_from(offset + 1).await.unwrap();
            assert_eq!(log.next_offset(), offset + 1);
            let end = log.append(None, b"next", &[], 0).await.unwrap();
            assert_eq!(end, offset + 1);
        }
    });
}

#[test]
fn the_first_frame_or_the_one_in_front_of_the_point_may_be_gone() {
    block_on(async {
        let machine = machine(12);
        crashed(&machine, 100).await;
        // The one that the point names: then it does not fit, and opening finds the damage.
        let log = machine.open().await;
        let last = resumed(log.recovery_report()).unwrap().offset - 1;
        drop(log);
        for offset in [0, last] {
            machine.fs.flip_bit(segment(0), at(offset) + 70, 1).unwrap();
            let mut log = machine.open().await;
            let offsets = |damage: &Damage| damage.offsets.clone();
            let found: Vec<_> = log.recovery_report().damage.iter().map(offsets).collect();
            if offset == 0 {
                assert_eq!(found, []);
                assert_eq!(log.reader().skip_damage(0).await.unwrap(), 1);
            } else {
                assert_eq!(found, [0..1, last..last + 1]);
            }
            let next = log.next_offset();
            assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), next);
            log.close().await.unwrap();
        }
    });
}

#[test]
fn the_mark_of_a_close_is_written_though_a_point_says_as_much() {
    // Nothing stood behind the point, so that all was committed by its word, and the close wrote no mark.
    // The point was lost, the last record rotted, and passed for a tear.
    block_on(async {
        let machine = machine(13);
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        let mut count = 0;
        while !has_point(&machine, 0) {
            append(&mut log, &mut oracle, count..count + 1).await;
            count += 1;
            let _ = log.maintenance().run().await;
        }
        drop(log);
        machine.fs.process_crash();
        let log = machine.open().await;
        assert_eq!(log.recovery_report().frames_scanned, 0);
        assert_eq!(log.next_offset(), count);
        log.close().await.unwrap();
        machine.fs.delete_file(point(0)).unwrap();
        machine
            .fs
            .flip_bit(segment(0), at(count - 1) + 70, 1)
            .unwrap();
        let log = machine.open().await;
        let damage = &log.recovery_report().damage;
        assert_eq!(
            (damage.len(), damage[0].offsets.clone()),
            (1, count - 1..count)
        );
    });
}

#[test]
fn a_point_says_nothing_of_what_is_acknowledged_and_not_synced() {
    block_on(async {
        let mut machine = machine(14);
        machine.config.sync = SyncPolicy::Every(Duration::from_secs(1));
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        append(&mut log, &mut oracle, 0..100).await;
        log.maintenance().run().await.unwrap();
        assert!(!has_point(&machine, 0));
        log.sync().await.unwrap();
        append(&mut log, &mut oracle, 100..200).await;
        log.maintenance().run().await.unwrap();
        drop(log);
        machine.fs.process_crash();
        let mut log = machine.open().await;
        assert_eq!(resumed(log.recovery_report()).unwrap().offset, 100);
        assert_eq!(log.next_offset(), 200);
        is_whole(&mut log, &mut oracle).await;
        drop(log);
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        assert!(log.next_offset() >= 200, "what opening showed stays");
    });
}

#[test]
fn a_point_goes_with_its_segment() {
    block_on(async {
        let mut machine = machine(15);
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        append(&mut log, &mut oracle, 0..100).await;
        let left = machine.fs.read_file(point(0)).unwrap();
        log.close_active_segment().await.unwrap();
        assert!(!has_point(&machine, 0), "sealed, and listed as that");
        append(&mut log, &mut oracle, 100..200).await;
        assert!(has_point(&machine, 100));
        // One that came back, or whose removal failed.
        machine.fs.write_file(point(0), left.clone()).unwrap();
        drop(log);
        machine.fs.process_crash();
        let mut log = machine.open().await;
        assert!(!has_point(&machine, 0));
        assert_eq!(log.recovery_report().segments_scanned, 1);
        is_whole(&mut log, &mut oracle).await;
        // With the whole segment.
        machine.fs.write_file(point(0), left).unwrap();
        oracle.purge_to(&mut log, 150).await.unwrap();
        log.removal().run().await.unwrap();
        assert!(!has_point(&machine, 0) && has_point(&machine, 100));
        oracle.purge_to(&mut log, 201).await.unwrap();
        log.removal().run().await.unwrap();
        assert!(!has_point(&machine, 100));
        log.close().await.unwrap();
        machine.config.serve_around_missing = false;
        oracle.check(&machine.open().await).await;
    });
}

#[test]
fn a_segment_that_was_switched_from_and_not_sealed_is_read_from_its_point() {
    block_on(async {
        let mut machine = machine(16);
        machine.config.maintenance = MaintenanceMode::Handed;
        let mut oracle = Oracle::default();
        let mut log = machine.open().await;
        append(&mut log, &mut oracle, 0..200).await;
        log.maintenance().run().await.unwrap();
        append(&mut log, &mut oracle, 200..205).await;
        let prepared = log.preparation(None).run().await.unwrap();
        log.arm(prepared).unwrap();
        assert!(log.switch());
        append(&mut log, &mut oracle, 205..210).await;
        drop(log);
        machine.fs.process_crash();
        let mut log = machine.open().await;
        let report = log.recovery_report().clone();
        assert_eq!(report.segments_scanned, 2);
        assert_eq!(resumed(&report).unwrap().path, segment(0));
        assert!(report.frames_scanned < 40);
        is_whole(&mut log, &mut oracle).await;
        drop(log);
        machine.fs.power_loss(Keep::None);
        is_whole(&mut machine.open().await, &mut oracle).await;
        // Once the manifest says that it is sealed, it has none.
        for _ in 0..2 {
            let mut log = machine.open().await;
            log.close_active_segment().await.unwrap();
            let next = oracle.end();
            append(&mut log, &mut oracle, next..next + 1).await;
            log.close().await.unwrap();
        }
        assert!(!has_point(&machine, 0));
    });
}

#[test]
fn a_point_that_can_not_be_written_disturbs_nothing() {
    block_on(async {
        for kind in [
            OpKind::CreateNew,
            OpKind::WriteAt,
            OpKind::Rename,
            OpKind::OpenReadOnly,
        ] {
            for errno in [Errno::NoSpace, Errno::Io] {
                let machine = machine(17);
                let mut oracle = Oracle::default();
                let mut log = machine.open().await;
                append(&mut log, &mut oracle, 0..1).await;
                let path = match kind {
                    OpKind::OpenReadOnly => PathPattern::Exactly(segment(0)),
                    _ => PathPattern::Contains(".point".into()),
                };
                let fault = Fault::new(Effect::Fail(errno)).on(&[kind]).path(path);
                machine.fs.inject(fault.always());
                append(&mut log, &mut oracle, 1..100).await;
                assert!(!has_point(&machine, 0), "{kind:?}");
                machine.fs.clear_faults();
                append(&mut log, &mut oracle, 100..150).await;
                assert!(has_point(&machine, 0), "{kind:?}");
                is_whole(&mut log, &mut oracle).await;
                log.close_active_segment().await.unwrap();
            }
        }
    });
}

/// Runs something that a crash may cut short, after each of its operations, on a log of 60 records, and opens
/// it again and again.
fn crash_at_each_operation(seed: u64, run: &impl AsyncFn(&mut Writer, &mut Oracle) -> Result<()>) {
    for stop in Stop::ALL {
        for crash_at in 0.. {
            let is_whole_run = block_on(async {
                let machine = machine(seed);
                let mut oracle = Oracle::default();
                let mut log = machine.open().await;
                append(&mut log, &mut oracle, 0..60).await;
                machine.fs.crash_after(crash_at);
                let _ = run(&mut log, &mut oracle).await;
                let is_whole_run = !machine.fs.is_crashed();
                drop(log);
                stop.strike(&machine.fs);
                for _ in 0..2 {
                    let log = machine.open().await;
                    assert_eq!(log.recovery_report().damage, [], "{crash_at}");
                    oracle.check(&log).await;
                    drop(log);
                    // What opening showed is there again.
                    machine.fs.power_loss(Keep::None);
                }
                is_whole(&mut machine.open().await, &mut oracle).await;
                is_whole_run
            });
            if is_whole_run {
                assert!(crash_at > 2);
                break;
            }
        }
    }
}

#[test]
fn a_crash_after_every_operation_of_a_points_writing_loses_nothing() {
    crash_at_each_operation(18, &async |log, oracle| {
        for n in 60..120 {
            oracle.append_at(log, value(n), n).await?;
        }
        log.maintenance().run().await
    });
}

#[test]
fn a_truncation_in_front_of_the_point_is_one_whatever_is_left_of_the_point() {
    for offset in [0, 7, 40, 58] {
        crash_at_each_operation(19, &async |log, oracle| {
            oracle.truncate_from(log, offset).await?;
            oracle.append_at(log, value(100), 100).await?;
            oracle.append_at(log, value(101), 101).await?;
            Ok(())
        });
    }
}

#[test]
fn a_seal_and_a_purge_leave_nothing_to_a_point() {
    crash_at_each_operation(20, &async |log, oracle| {
        log.close_active_segment().await?;
        oracle.append_at(log, value(100), 100).await?;
        oracle.purge_to(log, 60).await?;
        log.removal().run().await?;
        oracle.append_at(log, value(101), 101).await?;
        Ok(())
    });
}

#[test]
fn a_truncation_that_only_the_manifest_tells_voids_the_point() {
    // The segment's end was lost with the manifest's last line but the truncation was not: the point spoke of
    // offsets that were void.
    block_on(async {
        let machine = machine(21);
        let mut oracle = crashed(&machine, 100).await;
        let stale = machine.fs.read_file(point(0)).unwrap();
        let mut log = machine.open().await;
        oracle.truncate_from(&mut log, 50).await.unwrap();
        drop(log);
        machine.fs.process_crash();
        let path = format!("{DIR}/manifest");
        let mut manifest = ManifestContent::decode(&machine.fs.read_file(&path).unwrap());
        assert_eq!(manifest.truncations.len(), 1);
        manifest.entries[0].seal = None;
        machine.fs.write_file(&path, manifest.encode()).unwrap();
        machine.fs.write_file(point(0), stale).unwrap();
        let mut log = machine.open().await;
        assert_eq!(log.recovery_report().segments_scanned, 1);
        assert_eq!(resumed(log.recovery_report()), None);
        assert_eq!(log.next_offset(), 50);
        is_whole(&mut log, &mut oracle).await;
    });
}

#[test]
fn what_a_power_loss_leaves_of_a_point_is_a_point_or_none() {
    for seed in 0..60 {
        block_on(async {
            let machine = machine(seed);
            let mut oracle = Oracle::default();
            for life in 0..6 {
                let mut log = machine.open().await;
                let next = oracle.end();
                append(&mut log, &mut oracle, next..next + 13 + seed % 17).await;
                let _ = log.maintenance().run().await;
                drop(log);
                let keeps = [Keep::Sectors, Keep::Mixed, Keep::None, Keep::All];
                machine.fs.power_loss(keeps[(seed as usize + life) % 4]);
                let mut log = machine.open().await;
                is_whole(&mut log, &mut oracle).await;
            }
        });
    }
}
