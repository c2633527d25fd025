//! Bytes that are not what was written: torn, stale, flipped, missing. What was acknowledged is
//! there or its loss is reported; what was not is never invented.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use sq_sim::{
    ContentFate, Effect, Fault, FileFate, FileSystem as _, Keep, LengthFate, OpKind, PathPattern,
    PowerLoss, SectorFate,
};
use sq_storage::frame::{FrameHeader, FrameKind};
use sq_storage::record::encode_record;
use sq_storage::wal::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use sq_storage::{DamageReason, Error, Evidence, ReadError, Record, TopicName};

use crate::oracle::Oracle;
use crate::support::{DIR, Machine, Reader, block_on, path_of, segment, value, values};

fn frame_len(n: u64) -> usize {
    76 + value(n).len()
}

/// A frame laid out by hand.
pub(crate) fn frame(
    id: u64,
    ordinal: u32,
    offset: u64,
    committed_before: u64,
    value: &[u8],
) -> Vec<u8> {
    let body = encode_record(None, Some(value), &[]).unwrap();
    let header = FrameHeader {
        segment_id: id,
        base_offset: offset,
        committed_before,
        max_timestamp_ms: 0,
        append_time_ms: 0,
        record_count: 1,
        leader_epoch: 0,
        ordinal,
        kind: FrameKind::Record,
    };
    let mut out = BytesMut::new();
    header
        .encode(std::slice::from_ref(&body), &mut out)
        .unwrap();
    out.put_slice(&body);
    out.to_vec()
}

pub(crate) fn file(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let header = SegmentHeader::new(&TopicName::new("orders").unwrap(), 7).encode();
    let mut bytes = header.to_vec();
    frames.into_iter().for_each(|f| bytes.extend(f));
    bytes
}

#[test]
fn a_stale_frame_behind_a_torn_one_is_never_taken_up() {
    // Elsewhere recovery went on past a torn record and adopted an older one with a lower offset;
    // offsets that had been read were given again.
    block_on(async {
        let machine = Machine::new(20);
        let frames = (0..50).map(|n| frame(77, 0, n, n, &value(n)));
        let torn = frame(77, 0, 50, 50, b"torn")[..40].to_vec();
        let stale = frame(77, 0, 42, 42, b"stale");
        let bytes = file(frames.chain([torn, vec![0; 20], stale]));
        machine.fs.write_file(segment(0), bytes).unwrap();
        let mut log = machine.open().await;
        assert_eq!(log.next_offset(), 50);
        let tail = log.recovery_report().unacknowledged_tail.clone().unwrap();
        assert_eq!((tail.offset, tail.frames), (50, 0));
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 50);
        let found = values(&log.reader()).await;
        drop(log);
        let log = machine.open().await;
        assert_eq!(values(&log.reader()).await, found);
        assert_eq!((found.len(), &found[50][..]), (51, &b"next"[..]));
    });
}

#[test]
fn a_frame_that_skips_offsets_does_not_continue_the_log() {
    block_on(async {
        let machine = Machine::new(38);
        let frames = (0..3).map(|n| frame(77, 0, n, n, &value(n)));
        let bytes = file(frames.chain([frame(77, 0, 5, 3, b"skips")]));
        machine.fs.write_file(segment(0), bytes).unwrap();
        let mut log = machine.open().await;
        assert_eq!(log.next_offset(), 3);
        assert_eq!(log.recovery_report().damage, []);
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 3);
        drop(log);
        let found = values(&machine.open().await.reader()).await;
        assert_eq!((found.len(), &found[3][..]), (4, &b"next"[..]));
    });
}

#[test]
fn frames_of_another_segment_in_a_reused_file_are_not_records() {
    // Elsewhere a preallocated file still held the records of its earlier life, and replay took
    // them for new ones.
    block_on(async {
        let machine = Machine::new(21);
        let old = file((0..100).map(|n| frame(1, 0, n, n, &value(n))));
        let mut reused = file((500..503).map(|n| frame(2, 9, n, n, &value(n))));
        reused.extend_from_slice(&old[reused.len()..]);
        machine.fs.write_file(segment(500), reused).unwrap();
        let mut log = machine.open().await;
        assert_eq!(log.next_offset(), 503);
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 503);

        // Nor where the old frames continue the offsets exactly.
        let machine = Machine::new(21);
        let mixed = (0..3).map(|n| frame(2, 1, n, n, &value(n)));
        let mixed = file(mixed.chain((3..6).map(|n| frame(1, 0, n, n, &value(n)))));
        machine.fs.write_file(segment(0), mixed).unwrap();
        assert_eq!(machine.open().await.next_offset(), 3);
    });
}

#[test]
fn a_frame_forged_inside_a_value_is_no_evidence() {
    block_on(async {
        let machine = Machine::new(22);
        let mut log = machine.open().await;
        let forged = frame(0x1234_5678_9abc_def0, 0, 9, 9, b"forged");
        log.append(None, &value(0), &[], 0).await.unwrap();
        log.append(None, &forged, &[], 0).await.unwrap();
        drop(log);
        let bytes = machine.fs.read_file(segment(0)).unwrap();
        // The record that carries it is torn in its header.
        let at = (SEGMENT_HEADER_LEN + frame_len(0) + 20) as u64;
        machine.fs.flip_bit(segment(0), at, 0).unwrap();
        let log = machine.open().await;
        assert_eq!(log.next_offset(), 1);
        assert_eq!(
            machine.fs.read_file(segment(0)).unwrap().len(),
            bytes.len(),
            "nothing is cut"
        );
    });
}

#[test]
fn pages_that_reached_the_disk_out_of_order_are_an_unacknowledged_tail() {
    // Elsewhere the second of two appended pages was on disk and the first was not, and start-up
    // aborted.
    for fate in SectorFate::ALL {
        for length in [LengthFate::Old, LengthFate::New, LengthFate::Between] {
            block_on(async {
                let machine = Machine::new(23);
                let mut log = machine.open().await;
                log.append(None, b"acknowledged", &[], 0).await.unwrap();
                let end = machine.fs.read_file(segment(0)).unwrap().len() as u64;
                let batch = |n: u8, len: usize| sq_storage::Batch {
                    payload: vec![vec![n; len].into()],
                    record_count: 1,
                    max_timestamp_ms: 0,
                    leader_epoch: 0,
                };
                let fault = sq_sim::Fault::new(sq_sim::Effect::Crash { bytes: 0 });
                machine.fs.inject(fault.on(&[sq_sim::OpKind::SyncData]));
                log.append_batches(&[batch(1, 4096), batch(2, 4242)])
                    .await
                    .unwrap_err();
                drop(log);
                let lost = if fate == SectorFate::New {
                    ContentFate::NewIn(std::iter::once(end..end + 9000).collect())
                } else {
                    ContentFate::Sectors(vec![fate])
                };
                let fate = FileFate::new(lost).with_length(length);
                machine.fs.power_loss(
                    PowerLoss::from(Keep::Mixed)
                        .with_file(PathPattern::EndsWith(".wal".into()), fate),
                );
                let mut log = machine.open().await;
                assert!((1..=3).contains(&log.next_offset()));
                let next = log.next_offset();
                assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), next);
            });
        }
    }
}

#[test]
fn a_record_of_which_only_the_first_sectors_are_there_is_a_tear() {
    // Elsewhere a half-written record across a page boundary of a preallocated file broke start-up.
    block_on(async {
        for sectors in 0..8 {
            let machine = Machine::new(24);
            let whole = file([
                frame(5, 0, 0, 0, &vec![7; 3000]),
                frame(5, 0, 1, 1, &vec![8; 3000]),
            ]);
            let mut bytes = whole.clone();
            let first = SEGMENT_HEADER_LEN + 76 + 3000;
            bytes[(first + 64 + sectors * 512).min(whole.len())..].fill(0);
            bytes.resize(65536, 0);
            // Old bytes behind a zero sector, valid but of another life.
            bytes.splice(20_000..20_000, frame(4, 0, 1, 0, b"old"));
            machine.fs.write_file(segment(0), bytes).unwrap();
            let mut log = machine.open().await;
            let expected = if sectors >= 6 { 2 } else { 1 };
            assert_eq!(log.next_offset(), expected, "{sectors} sectors");
            assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), expected);
        }
    });
}

#[test]
fn a_successor_that_survived_its_predecessors_tail_is_set_aside() {
    // The old segment's tail was not durable when the new one's first bytes already were; after a
    // crash there was a hole between them. Laid out by hand: the writer syncs the old one first.
    block_on(async {
        let machine = Machine::new(25);
        machine
            .fs
            .write_file(
                segment(0),
                file((0..90).map(|n| frame(1, 0, n, n.min(90), &value(n)))),
            )
            .unwrap();
        machine
            .fs
            .write_file(
                segment(100),
                file((100..105).map(|n| frame(2, 1, n, 90, &value(n)))),
            )
            .unwrap();
        let mut log = machine.open().await;
        assert_eq!(log.next_offset(), 90);
        let aside = log.recovery_report().set_aside.clone();
        assert_eq!(
            aside,
            [PathBuf::from(format!("{DIR}/{:020}.wal.aside", 100))]
        );
        assert!(machine.fs.read_file(&aside[0]).is_ok());
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 90);
        drop(log);
        assert_eq!(machine.open().await.next_offset(), 91);
    });
}

#[test]
fn a_segment_that_was_set_aside_does_not_come_back() {
    // Its new name was not durable. The log went on in the old segment, past the offset at which the
    // other began; the power brought that back, and it hid what had been acknowledged behind it.
    block_on(async {
        let mut machine = Machine::new(36);
        // The frames laid out by hand are old.
        machine.config.max_segment_age = Duration::MAX;
        let old = file((0..9).map(|n| frame(1, 0, n, n, &value(n))));
        let later = file((10..12).map(|n| frame(2, 1, n, 9, b"later")));
        machine.fs.write_file(segment(0), old).unwrap();
        machine.fs.write_file(segment(10), later).unwrap();
        let mut log = machine.open().await;
        assert_eq!(log.next_offset(), 9);
        assert_eq!(log.recovery_report().set_aside.len(), 1);
        for n in 9..15 {
            log.append(None, &value(n), &[], 0).await.unwrap();
        }
        drop(log);
        machine.fs.power_loss(Keep::None);
        let found = values(&machine.open().await.reader()).await;
        assert_eq!(found, (0..15).map(value).collect::<Vec<_>>());
    });
}

#[test]
fn a_successor_that_says_the_lost_tail_was_committed_is_damage() {
    block_on(async {
        let machine = Machine::new(26);
        machine
            .fs
            .write_file(
                segment(0),
                file((0..90).map(|n| frame(1, 0, n, n, &value(n)))),
            )
            .unwrap();
        machine
            .fs
            .write_file(
                segment(100),
                file((100..105).map(|n| frame(2, 1, n, 95, &value(n)))),
            )
            .unwrap();
        let mut log = machine.open().await;
        let damage = log.recovery_report().damage.clone();
        assert_eq!(
            (&damage[0].path, damage[0].offsets.clone()),
            (&segment(0), 90..95)
        );
        assert_eq!(
            (damage.len(), damage[0].evidence),
            (1, Evidence::LaterFrame(95))
        );
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 95);
        assert_eq!(
            readable(&log.reader()).await,
            (0..90).chain(95..96).collect::<Vec<_>>()
        );
        drop(log);
        let log = machine.open().await;
        assert_eq!(
            readable(&log.reader()).await,
            (0..90).chain(95..96).collect::<Vec<_>>()
        );
    });
}

/// The offsets that can be read; the others of the log must answer with the damage.
async fn readable(reader: &Reader) -> Vec<u64> {
    let mut offsets = Vec::new();
    for offset in reader.start_offset()..reader.end_offset() {
        match reader.read(offset, 1).await {
            Ok(frames) if frames.is_empty() => panic!("{offset} is silently missing"),
            Ok(frames) => {
                assert_eq!(frames[0].base_offset, offset);
                let found = Record::decode(frames[0].payload.clone())
                    .unwrap()
                    .value
                    .unwrap();
                assert!(
                    found == "next" || found == value(offset),
                    "{offset} is another's"
                );
                offsets.push(offset);
            }
            Err(ReadError::Damaged(_)) => {}
            Err(e) => panic!("{offset}: {e}"),
        }
    }
    offsets
}

/// Three segments, the last one open, written by the writer itself.
async fn three_segments(machine: &Machine) -> Vec<PathBuf> {
    let mut log = machine.open().await;
    for n in 0..9 {
        log.append(None, &value(n), &[], 0).await.unwrap();
    }
    log.close().await.unwrap();
    let segments = machine.segments();
    assert_eq!(segments.len(), 3);
    segments
}

#[test]
fn a_segment_that_is_gone_is_named() {
    // Elsewhere recovery skipped a segment it could not open and replayed the ones behind it.
    block_on(async {
        for gone in 0..3 {
            let machine = Machine::new(27).with_segment_bytes(1100);
            let segments = three_segments(&machine).await;
            machine.fs.remove_file(&segments[gone]).await.unwrap();
            let error = machine.try_open().await.unwrap_err();
            assert!(matches!(error, Error::MissingSegment { .. }), "{error}");
            assert_eq!(path_of(&error), Some(&*segments[gone]));
            assert_eq!(error.action(), sq_storage::Action::Repair);
            assert_eq!(machine.segments().len(), 2);

            // Told to, it serves what is around it.
            // How much the newest one held, nothing else says.
            let bases = [0, 5, 8, 8];
            let mut machine = machine;
            machine.config.serve_around_missing = true;
            let mut log = machine.open().await;
            let lost = bases[gone]..bases[gone + 1];
            let damage = &log.recovery_report().damage;
            assert_eq!(
                (damage[0].offsets.clone(), &damage[0].path),
                (lost.clone(), &segments[gone])
            );
            let next = if gone == 2 { 8 } else { 9 };
            assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), next);
            let newest = log.reader().find_max_timestamp().await.unwrap().unwrap();
            assert_eq!(newest.base_offset, if gone == 0 { 5 } else { 0 });
            let found = log.reader().find_by_timestamp(0).await.unwrap().unwrap();
            assert_eq!(found.base_offset, newest.base_offset);
            for offset in lost.clone() {
                assert_eq!(log.reader().skip_damage(offset).await.unwrap(), lost.end);
            }
            let left: Vec<_> = (0..=next).filter(|o| !lost.contains(o)).collect();
            assert_eq!(readable(&log.reader()).await, left);
            drop(log);
            assert_eq!(readable(&machine.open().await.reader()).await, left);
        }
    });
}

#[test]
fn a_sealed_segment_that_is_too_short_is_named() {
    block_on(async {
        let machine = Machine::new(28).with_segment_bytes(1100);
        let segments = three_segments(&machine).await;
        let mut bytes = machine.fs.read_file(&segments[1]).unwrap();
        bytes.pop();
        machine.fs.write_file(&segments[1], bytes).unwrap();
        let log = machine.open().await;
        let damage = &log.recovery_report().damage;
        assert_eq!((damage.len(), &damage[0].path), (1, &segments[1]));
        assert!(matches!(damage[0].reason, DamageReason::Length { .. }));
        assert_eq!(readable(&log.reader()).await, [0, 1, 2, 3, 4, 5, 6, 8]);
    });
}

#[test]
fn a_manifest_of_no_bytes_costs_a_scan_and_nothing_else() {
    // Elsewhere an empty main file beside a valid log made recovery wipe the log.
    block_on(async {
        for bytes in [Vec::new(), b"SQMF".to_vec(), vec![0; 500], vec![0xff; 500]] {
            let machine = Machine::new(29).with_segment_bytes(1100);
            let segments = three_segments(&machine).await;
            machine
                .fs
                .write_file(format!("{DIR}/manifest"), bytes)
                .unwrap();
            let mut log = machine.open().await;
            assert_eq!(log.recovery_report().segments_scanned, 3);
            assert_eq!(
                values(&log.reader()).await,
                (0..9).map(value).collect::<Vec<_>>()
            );
            assert_eq!(machine.segments(), segments);
            // The next segment makes it whole again.
            log.append(None, &vec![0; 800], &[], 0).await.unwrap();
            drop(log);
            assert_eq!(machine.open().await.recovery_report().segments_scanned, 1);
        }
    });
}

#[test]
fn every_flipped_bit_is_noticed_or_harmless() {
    // Every byte of every file, header and padding too. Acknowledged records are either read back
    // or their damage is reported; none is missing silently, none is another's.
    let files = block_on(async {
        let machine = Machine::new(30).with_segment_bytes(1100);
        three_segments(&machine).await;
        machine
            .fs
            .files()
            .into_iter()
            .map(|p| (p.clone(), machine.fs.read_file(p).unwrap()))
            .collect::<Vec<_>>()
    });
    for (hit, (path, bytes)) in files.iter().enumerate() {
        for bit in 0..bytes.len() * 8 {
            if bit / 8 > 1000 && bit % 97 != 0 {
                continue; // Within the padding a sample will do.
            }
            block_on(async {
                let machine = Machine::new(30).with_segment_bytes(1100);
                for (i, (path, bytes)) in files.iter().enumerate() {
                    let mut bytes = bytes.clone();
                    if i == hit {
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                    machine.fs.write_file(path, bytes).unwrap();
                }
                let log = machine.open().await;
                let found = readable(&log.reader()).await;
                assert_eq!(log.next_offset(), 9, "{} bit {bit}", path.display());
                assert!(found.len() >= 8, "{} bit {bit}: {found:?}", path.display());
            });
        }
    }
}

#[test]
fn rot_behind_which_a_later_frame_tells_is_damage_not_a_tear() {
    block_on(async {
        let machine = Machine::new(31);
        let mut log = machine.open().await;
        for n in 0..5 {
            log.append(None, &value(n), &[], 0).await.unwrap();
        }
        log.mark().await.unwrap();
        drop(log);
        let before = machine.fs.read_file(segment(0)).unwrap();
        let manifest = PathBuf::from(DIR).join("manifest");
        let listed = machine.fs.read_file(&manifest).unwrap();
        for hit in 0..5 {
            let at = SEGMENT_HEADER_LEN + (0..hit).map(frame_len).sum::<usize>() + 70;
            machine.fs.write_file(segment(0), before.clone()).unwrap();
            machine.fs.flip_bit(segment(0), at as u64, 3).unwrap();
            let mut log = machine.open().await;
            let damage = log.recovery_report().damage.clone();
            assert_eq!((damage.len(), damage[0].offsets.clone()), (1, hit..hit + 1));
            assert_eq!(
                (&damage[0].path, damage[0].position),
                (&segment(0), (at - 70) as u64)
            );
            let left: Vec<_> = (0..5).filter(|o| *o != hit).collect();
            assert_eq!(readable(&log.reader()).await, left);
            assert_eq!(
                machine.fs.read_file(segment(0)).unwrap()[at],
                before[at] ^ 8
            );
            // The log goes on, in another file, and opens again as it is.
            assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 5);
            drop(log);
            let log = machine.open().await;
            assert_eq!(readable(&log.reader()).await.len(), 5);
            assert_eq!(log.next_offset(), 6);
            drop(log);
            machine.fs.remove_file(&segment(5)).await.unwrap();
            machine.fs.write_file(&manifest, listed.clone()).unwrap();

            // Whole sectors of zeros hide nothing either.
            let mut zeroed = before.clone();
            zeroed[at - 70..SEGMENT_HEADER_LEN + (0..5).map(frame_len).sum::<usize>()].fill(0);
            machine.fs.write_file(segment(0), zeroed).unwrap();
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage[0].offsets, hit..5);
            assert_eq!(readable(&log.reader()).await, (0..hit).collect::<Vec<_>>());
            assert_eq!(log.next_offset(), 5);
        }
    });
}

#[test]
fn rot_while_a_segment_is_open_hides_no_neighbour() {
    // The places of frames were known from the time before, one for every 32 KiB. A reader walked
    // from such a place into the damage, and what stood behind it was out of reach until a restart.
    for sealed in [false, true] {
        block_on(async {
            let machine = Machine::new(35);
            let mut log = machine.open().await;
            for n in 0..9 {
                log.append(None, &value(n), &[], 100 * n).await.unwrap();
            }
            let reader = log.reader();
            if sealed {
                log.close_active_segment().await.unwrap();
            }
            assert_eq!(readable(&reader).await.len(), 9);
            for hit in [4, 5, 0, 8] {
                let at = SEGMENT_HEADER_LEN + (0..hit).map(frame_len).sum::<usize>() + 70;
                machine.fs.flip_bit(segment(0), at as u64, 3).unwrap();
            }
            assert_eq!(readable(&reader).await, [1, 2, 3, 6, 7]);
            for (from, next) in [(0, 1), (1, 1), (4, 6), (5, 6), (8, 9)] {
                assert_eq!(reader.skip_damage(from).await.unwrap(), next);
            }
            for (wanted, expected) in [(0, 1), (250, 3), (301, 6), (700, 7)] {
                let found = reader.find_by_timestamp(wanted).await.unwrap();
                assert_eq!(found.unwrap().base_offset, expected, "{wanted}");
            }
            assert_eq!(reader.find_by_timestamp(701).await.unwrap(), None);
        });
    }
}

#[test]
fn that_a_segment_was_begun_tells_what_the_one_before_it_held() {
    // The older one's last record rotted, and so did the line that says where it ends. The newer one
    // holds nothing yet; only its own line tells that everything before it was acknowledged.
    block_on(async {
        let machine = Machine::new(37).with_segment_bytes(1100);
        let mut log = machine.open().await;
        for n in 0..5 {
            log.append(None, &value(n), &[], 0).await.unwrap();
        }
        let crash = Fault::new(Effect::Crash { bytes: 0 }).on(&[OpKind::WriteAt]);
        machine
            .fs
            .inject(crash.path(PathPattern::Exactly(segment(5))).skip(1));
        log.append(None, &value(5), &[], 0).await.unwrap_err();
        drop(log);
        machine.fs.power_loss(Keep::None);
        let at = SEGMENT_HEADER_LEN + (0..4).map(frame_len).sum::<usize>() + 70;
        machine.fs.flip_bit(segment(0), at as u64, 3).unwrap();
        // Behind the header, the older one's first line.
        let manifest = PathBuf::from(DIR).join("manifest");
        machine.fs.flip_bit(&manifest, 8 + 64 + 30, 0).unwrap();
        for _ in 0..2 {
            let log = machine.open().await;
            let damage = &log.recovery_report().damage;
            assert_eq!((damage.len(), damage[0].offsets.clone()), (1, 4..5));
            assert_eq!(damage[0].evidence, Evidence::Manifest(5));
            assert_eq!(log.next_offset(), 5);
        }
    });
}

#[test]
fn timestamps_are_found_past_damage() {
    block_on(async {
        let machine = Machine::new(33);
        let mut log = machine.open().await;
        for n in 0..9 {
            log.append(None, &value(n), &[], 100 * n).await.unwrap();
        }
        log.mark().await.unwrap();
        drop(log);
        let at = SEGMENT_HEADER_LEN + (0..4).map(frame_len).sum::<usize>() + 70;
        machine.fs.flip_bit(segment(0), at as u64, 3).unwrap();
        for _ in 0..2 {
            let mut log = machine.open().await;
            for (wanted, expected) in [(0, 0), (250, 3), (301, 5), (400, 5), (800, 8)] {
                let found = log.reader().find_by_timestamp(wanted).await.unwrap();
                assert_eq!(found.unwrap().base_offset, expected, "{wanted}");
            }
            log.close_active_segment().await.unwrap();
        }
    });
}

#[test]
fn a_segment_of_another_format_is_refused_unless_the_manifest_knows_it() {
    block_on(async {
        let machine = Machine::new(34);
        let mut log = machine.open().await;
        log.append(None, &value(0), &[], 0).await.unwrap();
        drop(log);
        machine.fs.flip_bit(segment(0), 5, 1).unwrap();
        let log = machine.open().await;
        assert!(matches!(
            log.recovery_report().damage[0].reason,
            DamageReason::Header(_)
        ));
        assert_eq!(readable(&log.reader()).await, [0]);
        drop(log);
        machine
            .fs
            .remove_file(Path::new(DIR).join("manifest").as_path())
            .await
            .unwrap();
        let error = machine.try_open().await.unwrap_err();
        assert!(matches!(error, Error::SegmentHeader { .. }), "{error}");
    });
}

#[test]
fn a_header_only_segment_is_no_damage() {
    // Elsewhere a clean restart reported an active segment without records as corrupt.
    block_on(async {
        for bytes in [file([]), file([])[..10].to_vec(), Vec::new(), vec![0; 8192]] {
            let machine = Machine::new(32);
            machine.fs.write_file(segment(0), bytes).unwrap();
            let mut log = machine.open().await;
            assert_eq!(log.next_offset(), 0);
            assert_eq!(log.recovery_report().unacknowledged_tail, None);
            let mut oracle = Oracle::default();
            oracle.append(&mut log, value(0)).await.unwrap();
            assert_eq!(machine.segments(), [segment(0)], "it was continued");
            drop(log);
            machine.fs.power_loss(Keep::None);
            oracle.check(&machine.open().await).await;
        }
    });
}

#[test]
fn a_second_write_that_reached_the_disk_before_the_first_is_no_record_and_hinders_no_start() {
    // Two appends reached the disk in the wrong order before the power failed: where the first should be
    // there were zeros, and start-up gave up on what it found behind them.
    block_on(async {
        let machine = Machine::new(61);
        let frames: Vec<_> = [20, 4_000, 4_242]
            .iter()
            .zip(0..)
            .map(|(len, n)| frame(1, 0, n, n.min(1), &vec![b'x'; *len]))
            .collect();
        let mut bytes = file(frames.iter().cloned());
        let lost = bytes.len() - frames[1].len() - frames[2].len();
        bytes[lost..lost + frames[1].len()].fill(0);
        machine.fs.write_file(segment(0), bytes).unwrap();
        for _ in 0..2 {
            let log = machine.open().await;
            assert_eq!(log.recovery_report().damage, []);
            assert_eq!(log.next_offset(), 1);
        }
        let mut log = machine.open().await;
        assert_eq!(log.append(None, b"next", &[], 0).await.unwrap(), 1);
        drop(log);
        let log = machine.open().await;
        assert_eq!(log.next_offset(), 2);
        assert_eq!(values(&log.reader()).await[1], b"next");
    });
}
