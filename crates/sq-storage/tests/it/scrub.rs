//! The check of what nobody reads.

use std::num::NonZeroU64;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, Effect, Errno, Fault, OpKind, PathPattern};
use sq_storage::frame::FRAME_HEADER_LEN;
use sq_storage::wal::segment::SEGMENT_HEADER_LEN;
use sq_storage::{DamageReason, Evidence, Scrub, ScrubFinding, ScrubTotals};

use crate::support::{DIR, Machine, Reader, as_time_passes, block_on, segment, value};

fn scrub(machine: &Machine, bytes_per_second: u64) -> Scrub {
    let pace = NonZeroU64::new(bytes_per_second).unwrap();
    Scrub::new(Arc::new(machine.clock.clone()), pace)
}

/// Where a finding is: file, position, offsets.
pub(crate) type Place = (PathBuf, u64, Range<u64>);

pub(crate) async fn check(machine: &Machine, reader: &Reader) -> (ScrubTotals, Vec<Place>) {
    let mut found = Vec::new();
    let scrub = scrub(machine, 1 << 20);
    let checking = scrub.check(reader, |finding| match finding {
        ScrubFinding::Damage(d) => {
            let of_index = d.reason == DamageReason::Index;
            assert!(of_index || matches!(d.evidence, Evidence::Readable(_)));
            found.push((d.path, d.position, d.offsets));
        }
        ScrubFinding::Unreadable { path, .. } => found.push((path, u64::MAX, 0..0)),
    });
    let totals = as_time_passes(&machine.clock, checking).await;
    assert_eq!(totals.findings, found.len() as u64);
    (totals, found)
}

pub(crate) fn frame_len(n: u64) -> u64 {
    let record = sq_storage::record::encode_record(None, Some(&value(n)), &[]).unwrap();
    (FRAME_HEADER_LEN + record.len()) as u64
}

/// Three segments of four records each, the last one open.
async fn three_segments(machine: &Machine) -> crate::support::Writer {
    let mut log = machine.open().await;
    for n in 0..12 {
        if n % 4 == 0 {
            log.close_active_segment().await.unwrap();
        }
        log.append(None, &value(n), &[], 0).await.unwrap();
    }
    assert_eq!(machine.segments().len(), 3);
    log
}

#[test]
fn rot_that_nobody_reads_is_found_and_named() {
    block_on(async {
        let machine = Machine::new(61);
        let mut log = three_segments(&machine).await;
        let reader = log.reader();
        let (totals, found) = check(&machine, &reader).await;
        assert_eq!((totals.segments, totals.skipped, found), (3, 0, vec![]));
        let bytes: u64 = reader.segments().iter().map(|s| s.bytes).sum();
        assert_eq!(totals.bytes, bytes);

        // Two records of one segment, one of another; the reader's own handles and index are warm.
        reader.read(0, 1 << 20).await.unwrap();
        let at =
            |base: u64, n: u64| SEGMENT_HEADER_LEN as u64 + (base..n).map(frame_len).sum::<u64>();
        for (base, n) in [(0, 1), (0, 3), (4, 5)] {
            machine
                .fs
                .flip_bit(segment(base), at(base, n) + 70, 2)
                .unwrap();
        }
        let expected = vec![
            (segment(0), at(0, 1), 1..2),
            (segment(0), at(0, 3), 3..4),
            (segment(4), at(4, 5), 5..6),
        ];
        for _ in 0..2 {
            assert_eq!(check(&machine, &reader).await.1, expected);
        }
        // It hides nothing, and the log goes on.
        assert_eq!(reader.read(2, 1).await.unwrap()[0].base_offset, 2);
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 12);
        drop(log);
        // What opening takes by the manifest's word is looked at, too.
        let log = machine.open().await;
        assert_eq!(log.recovery_report().damage, []);
        assert_eq!(check(&machine, &log.reader()).await.1, expected);
    });
}

#[test]
fn every_flipped_bit_of_a_sealed_segment_is_found() {
    block_on(async {
        let machine = Machine::new(62);
        let log = three_segments(&machine).await;
        let reader = log.reader();
        let bytes = reader.segments()[1].bytes;
        assert_eq!(
            machine.fs.read_file(segment(4)).unwrap().len() as u64,
            bytes
        );
        for position in 0..bytes {
            for bit in [0, 5] {
                machine.fs.flip_bit(segment(4), position, bit).unwrap();
                let (_, found) = check(&machine, &reader).await;
                assert_eq!(found.len(), 1, "byte {position}");
                assert_eq!(found[0].0, segment(4));
                assert!(
                    found[0].1 <= position,
                    "{found:?} begins behind byte {position}"
                );
                machine.fs.flip_bit(segment(4), position, bit).unwrap();
            }
        }
    });
}

#[test]
fn a_file_that_is_short_gone_or_unreadable_hides_no_other() {
    block_on(async {
        let machine = Machine::new(63);
        let log = three_segments(&machine).await;
        let reader = log.reader();
        let whole = machine.fs.read_file(segment(0)).unwrap();
        let (cut, rotten) = (whole.len() as u64 - 100, SEGMENT_HEADER_LEN as u64);
        machine.fs.flip_bit(segment(8), rotten + 9, 0).unwrap();
        machine
            .fs
            .write_file(segment(0), whole[..whole.len() - 100].to_vec())
            .unwrap();
        let (_, found) = check(&machine, &reader).await;
        assert_eq!(found.len(), 2);
        assert!(found[0].1 <= cut && found[0].2 == (3..4), "{found:?}");
        assert_eq!(found[1], (segment(8), rotten, 8..9));

        machine.fs.write_file(segment(0), whole).unwrap();
        machine.fs.delete_file(segment(4)).unwrap();
        let (_, found) = check(&machine, &reader).await;
        assert_eq!(found, [(segment(4), 0, 4..8), (segment(8), rotten, 8..9)]);

        let bad_sector = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::ReadAt]);
        machine
            .fs
            .inject(bad_sector.path(PathPattern::Exactly(segment(0))).always());
        let (_, found) = check(&machine, &reader).await;
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], (segment(0), u64::MAX, 0..0));
    });
}

#[test]
fn a_bit_lost_on_the_way_from_the_disk_is_no_finding() {
    block_on(async {
        let machine = Machine::new(64);
        let log = three_segments(&machine).await;
        for skip in 0..9 {
            let flip = Fault::new(Effect::FlipBitOfRead).on(&[OpKind::ReadAt]);
            machine.fs.inject(flip.skip(skip));
            assert_eq!(
                check(&machine, &log.reader()).await.1,
                vec![],
                "read {skip}"
            );
            machine.fs.clear_faults();
        }
    });
}

#[test]
fn it_keeps_to_its_pace() {
    block_on(async {
        let machine = Machine::new(65).with_segment_bytes(4 << 20);
        let mut log = machine.open().await;
        for n in 0..3u8 {
            for _ in 0..10 {
                log.append(None, &vec![n; 200_000], &[], 0).await.unwrap();
            }
            log.close_active_segment().await.unwrap();
        }
        let reader = log.reader();
        let scrub = scrub(&machine, 1_000_000);
        let began = machine.clock.now();
        let checking = scrub.check(&reader, |f| panic!("{f:?}"));
        let totals = as_time_passes(&machine.clock, checking).await;
        let took = machine.clock.now() - began;
        assert_eq!(totals.segments, 3);
        // A piece at the end costs no wait, and one is read again where a frame crosses its edge.
        let least = Duration::from_micros(totals.bytes - (1 << 20));
        assert!(took >= least, "{took:?} for {} bytes", totals.bytes);
        assert!(took <= least * 2, "{took:?} for {} bytes", totals.bytes);
        // Two at once share the pace.
        let began = machine.clock.now();
        let ignore = |_| {};
        let two =
            async { tokio::join!(scrub.check(&reader, ignore), scrub.check(&reader, ignore)) };
        as_time_passes(&machine.clock, two).await;
        assert!(machine.clock.now() - began >= least * 2);
    });
}

#[test]
fn what_is_reported_says_why() {
    block_on(async {
        let machine = Machine::new(66);
        let log = three_segments(&machine).await;
        machine.fs.flip_bit(segment(0), 9, 0).unwrap();
        machine
            .fs
            .delete_file(format!("{DIR}/{:020}.wal", 4))
            .unwrap();
        let mut reasons = Vec::new();
        let scrub = scrub(&machine, 1 << 20);
        let reader = log.reader();
        let checking = scrub.check(&reader, |finding| match finding {
            ScrubFinding::Damage(damage) => reasons.push(damage.reason),
            ScrubFinding::Unreadable { .. } => panic!("{finding:?}"),
        });
        as_time_passes(&machine.clock, checking).await;
        let [DamageReason::Header(_), DamageReason::Missing] = &reasons[..] else {
            panic!("{reasons:?}");
        };
    });
}

#[test]
fn an_index_that_is_not_what_was_written_is_found() {
    block_on(async {
        let machine = Machine::new(67);
        let mut log = three_segments(&machine).await;
        log.close_active_segment().await.unwrap();
        drop(log);
        let log = machine.open().await;
        let index = segment(4).with_extension("index");
        let whole = machine.fs.read_file(&index).unwrap();
        assert_eq!(check(&machine, &log.reader()).await.1, vec![]);
        for byte in 0..whole.len() {
            machine.fs.flip_bit(&index, byte as u64, 1).unwrap();
            let (_, found) = check(&machine, &log.reader()).await;
            assert_eq!(found, [(index.clone(), 0, 4..4)], "byte {byte}");
            machine.fs.write_file(&index, whole.clone()).unwrap();
        }
        // Where there is none, it is made when it is needed.
        machine.fs.delete_file(&index).unwrap();
        assert_eq!(check(&machine, &log.reader()).await.1, vec![]);
    });
}
