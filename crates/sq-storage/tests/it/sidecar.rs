//! The layer above, brought back by what it left beside a segment and by what opening reads.

use std::path::PathBuf;

use proptest::prelude::*;
use sq_sim::{Effect, Errno, Fault, OpKind, SyncFailure};

use crate::layer::{Known, Layer, SharedLayer, attach};
use crate::oracle::Oracle;
use crate::support::{DIR, Machine, Stop, Writer, block_on, is_crash, segment, value};

fn machine() -> Machine {
    Machine::new(1).with_segment_bytes(1100)
}

/// A log, what it must hold, and the layer above.
struct Case {
    log: Writer,
    oracle: Oracle,
    layer: SharedLayer,
}

impl Case {
    /// Opens the log with the layer above, which must know what is in it.
    async fn open(machine: &Machine, mut oracle: Oracle) -> (Self, Layer) {
        let mut layer = Layer::default();
        let mut log = machine.open_with(&mut layer).await.unwrap();
        oracle.check(&log).await;
        layer.check(&log.reader()).await;
        let found = layer.clone();
        let layer = attach(layer, &mut log);
        let case = Self { log, oracle, layer };
        (case, found)
    }

    fn follow(&self) {
        self.layer.lock().unwrap().follow(&self.oracle);
    }

    async fn append(&mut self) -> bool {
        let n = self.log.next_offset();
        let appended = self.oracle.append(&mut self.log, value(n)).await;
        self.follow();
        appended.is_ok()
    }

    /// Rolls, closes, truncates and purges, as far as the disk lets it.
    async fn live(&mut self) {
        for _ in 0..9 {
            self.append().await;
        }
        let _ = self.log.close_active_segment().await;
        self.append().await;
        let _ = self.oracle.truncate_from(&mut self.log, 7).await;
        self.follow();
        for _ in 0..4 {
            self.append().await;
        }
        let _ = self.oracle.purge_to(&mut self.log, 6).await;
        self.follow();
        let _ = self.log.removal().run().await;
        for _ in 0..5 {
            self.append().await;
        }
    }
}

/// A log of several segments with their sidecars, the last one open.
async fn rolled(machine: &Machine) -> Case {
    let (mut case, _) = Case::open(machine, Oracle::default()).await;
    while machine.segments().len() < 4 {
        assert!(case.append().await);
    }
    case
}

fn sidecar(base: u64) -> PathBuf {
    segment(base).with_extension("sidecar")
}

/// The sidecar of the segment that was purged last.
fn kept() -> PathBuf {
    format!("{DIR}/start.sidecar").into()
}

/// The sidecars that there are.
fn sidecars(machine: &Machine) -> Vec<PathBuf> {
    let files = machine.fs.files().into_iter();
    files
        .filter(|f| f.starts_with(DIR) && f.extension().is_some_and(|e| e == "sidecar"))
        .collect()
}

/// The bases of the log's segments.
fn bases(case: &Case) -> Vec<u64> {
    let segments = case.log.reader().segments();
    segments.iter().map(|s| s.base_offset).collect()
}

#[test]
fn what_opening_reads_is_all_that_a_layer_above_needs() {
    // A broker read its whole log a second time at each start, for what it knew of its producers.
    block_on(async {
        let machine = machine();
        let case = rolled(&machine).await;
        let newest = *bases(&case).last().unwrap();
        let Case { log, oracle, .. } = case;
        drop(log);
        let reads = |machine: &Machine| -> Vec<PathBuf> {
            let trace = machine.fs.take_trace().into_iter();
            let reads = trace
                .filter(|op| op.kind == OpKind::ReadAt)
                .map(|op| op.path.to_path_buf());
            reads
                .filter(|p| p.extension().is_some_and(|e| e == "wal"))
                .collect()
        };
        machine.fs.take_trace();
        drop(machine.open().await);
        let plain = reads(&machine);
        assert!(plain.iter().all(|p| *p == segment(newest)), "{plain:?}");

        let mut layer = Layer::default();
        let log = machine.open_with(&mut layer).await.unwrap();
        assert_eq!(
            reads(&machine),
            plain,
            "it reads nothing for the layer above"
        );
        assert_eq!(
            layer.began.as_ref().map(|(s, _)| s.end_offset),
            Some(newest)
        );
        let first = layer.shown().first().map(|(base, ..)| *base);
        assert_eq!(first, Some(newest));
        layer.check(&log.reader()).await;
        assert_eq!(layer.frames.len() as u64, oracle.end());
    });
}

#[test]
fn a_sidecar_that_is_wrong_in_any_bit_is_as_if_it_were_not_there() {
    block_on(async {
        let machine = machine();
        let case = rolled(&machine).await;
        let bases = bases(&case);
        let [.., before, last, newest] = bases[..] else {
            panic!("{bases:?}")
        };
        let Case { log, oracle, .. } = case;
        drop(log);
        let path = sidecar(last);
        let whole = machine.fs.read_file(&path).unwrap();
        let mut wrong: Vec<Vec<u8>> = (0..whole.len() * 8)
            .map(|bit| {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                flipped
            })
            .collect();
        wrong.extend([0, 1, 20, whole.len() - 1].map(|len| whole[..len].to_vec()));
        // That of the segment before, and of the same at another end.
        wrong.push(machine.fs.read_file(sidecar(before)).unwrap());
        for content in wrong {
            machine.fs.write_file(&path, content).unwrap();
            let (_, layer) = Case::open(&machine, oracle.clone()).await;
            let (began, _) = layer.began.unwrap();
            assert_eq!(began.end_offset, last, "the one before");
            // What was lost is there again.
            assert_eq!(machine.fs.read_file(&path).unwrap(), whole);
            machine.fs.take_trace();
        }
        let (_, layer) = Case::open(&machine, oracle.clone()).await;
        assert_eq!(layer.began.unwrap().0.end_offset, newest);
    });
}

#[test]
fn a_layer_that_refuses_every_sidecar_sees_the_whole_log() {
    block_on(async {
        let machine = machine();
        let Case { log, oracle, .. } = rolled(&machine).await;
        drop(log);
        for refuses in 1..5 {
            let mut layer = Layer {
                refuses,
                ..Layer::default()
            };
            let log = machine.open_with(&mut layer).await.unwrap();
            layer.check(&log.reader()).await;
            assert_eq!(layer.frames.len() as u64, oracle.end());
            drop(log);
        }
    });
}

#[test]
fn what_no_one_was_told_of_is_never_shown() {
    // A batch was appended, its sync failed, and the same batch went to a fresh file: whoever gathers
    // what the log says from its files must not take it in twice, nor what was cut off later.
    for failure in SyncFailure::ALL {
        for stop in Stop::ALL {
            block_on(async {
                let machine = machine();
                let (mut case, _) = Case::open(&machine, Oracle::default()).await;
                for _ in 0..3 {
                    assert!(case.append().await);
                }
                let failing = Fault::new(Effect::FailSync(failure)).on(&[OpKind::SyncData]);
                machine.fs.inject(failing.times(1));
                let lost = case.log.next_offset();
                let failed = case.oracle.append(&mut case.log, value(900)).await;
                assert!(failed.is_err());
                assert!(case.append().await);
                assert_eq!(case.log.next_offset(), lost + 1);
                let done = case.oracle.truncate_from(&mut case.log, lost).await;
                done.unwrap();
                case.follow();
                assert!(case.append().await);
                let Case { log, oracle, .. } = case;
                drop(log);
                stop.strike(&machine.fs);
                let (_, layer) = Case::open(&machine, oracle).await;
                assert_eq!(layer.frames.len() as u64, lost + 1);
            });
        }
    }
}

#[test]
fn a_crash_at_any_operation_brings_the_layer_above_back_with_the_log() {
    for stop in Stop::ALL {
        let mut began_with_one = 0;
        for operations in 0.. {
            let machine = machine();
            let hit = block_on(async {
                let (mut case, _) = Case::open(&machine, Oracle::default()).await;
                machine.fs.crash_after(operations);
                case.live().await;
                let hit = is_crash(&machine.fs);
                machine.fs.crash_after(u64::MAX);
                let Case { log, oracle, .. } = case;
                drop(log);
                stop.strike(&machine.fs);
                let (mut case, layer) = Case::open(&machine, oracle).await;
                began_with_one += usize::from(layer.began.is_some());
                for _ in 0..5 {
                    assert!(case.append().await);
                }
                let Case { log, oracle, .. } = case;
                drop(log);
                stop.strike(&machine.fs);
                Case::open(&machine, oracle).await;
                hit
            });
            if !hit {
                break;
            }
        }
        assert!(began_with_one > 20, "{stop:?}: {began_with_one}");
    }
}

#[test]
fn a_sidecar_goes_with_its_segment() {
    block_on(async {
        let machine = machine();
        let mut case = rolled(&machine).await;
        let bases = bases(&case);
        assert!(machine.fs.files().contains(&sidecar(bases[0])));
        case.oracle.purge_to(&mut case.log, bases[2]).await.unwrap();
        case.log.removal().run().await.unwrap();
        assert_eq!(sidecars(&machine), [sidecar(bases[2]), kept()]);
        // One whose removal did not survive.
        let stray = sidecar(bases[0]);
        let content = machine.fs.read_file(sidecar(bases[2])).unwrap();
        machine.fs.write_file(&stray, content).unwrap();
        let Case { log, oracle, .. } = case;
        drop(log);
        let (case, _) = Case::open(&machine, oracle).await;
        assert_eq!(sidecars(&machine), [sidecar(bases[2]), kept()]);
        drop(case);
    });
}

/// Ends a log and opens it again, three times: the layer above knows all of it each time.
async fn comes_back(machine: &Machine, case: Case, stop: Stop, known: &[Known], what: &str) {
    let Case {
        log, mut oracle, ..
    } = case;
    drop(log);
    for _ in 0..3 {
        stop.strike(&machine.fs);
        let (case, layer) = Case::open(machine, oracle).await;
        assert_eq!(layer.frames, known, "{stop:?}, {what}");
        case.log.removal().run().await.unwrap();
        // The manifest, written anew, forgets what is gone.
        case.log.close().await.unwrap();
        oracle = case.oracle;
    }
}

#[test]
fn what_only_purged_segments_knew_comes_back() {
    // Retention removed all but the segment that was being written, and with the next restart a broker
    // forgot every producer that had written to none but those.
    for all in [false, true] {
        for stop in Stop::ALL {
            for operations in 0.. {
                let machine = machine();
                let hit = block_on(async {
                    let mut case = rolled(&machine).await;
                    let newest = *bases(&case).last().unwrap();
                    let to = if all { case.oracle.end() } else { newest };
                    let known = case.layer.lock().unwrap().frames.clone();
                    machine.fs.crash_after(operations);
                    let purged = case.oracle.purge_to(&mut case.log, to).await;
                    let removed = case.log.removal().run().await;
                    let hit = is_crash(&machine.fs);
                    assert!(hit || (purged.is_ok() && removed.is_ok()));
                    machine.fs.crash_after(u64::MAX);
                    comes_back(&machine, case, stop, &known, &format!("after {operations}")).await;
                    hit
                });
                if !hit {
                    break;
                }
            }
        }
    }
}

#[test]
fn what_a_segment_knew_comes_back_that_was_let_go_of_while_it_took_appends() {
    // It is listed as one of the log until the next purge, and its sidecar was passed over.
    for (removed, stop) in [false, true].into_iter().zip(Stop::ALL) {
        let machine = machine();
        block_on(async {
            let mut case = rolled(&machine).await;
            let end = case.oracle.end();
            case.oracle.advance_start(&mut case.log, end).await.unwrap();
            case.log.close_active_segment().await.unwrap().unwrap();
            let known = case.layer.lock().unwrap().frames.clone();
            if removed {
                case.oracle.advance_start(&mut case.log, end).await.unwrap();
                case.log.removal().run().await.unwrap();
            }
            comes_back(&machine, case, stop, &known, &format!("removed: {removed}")).await;
        });
    }
}

#[test]
fn what_was_kept_of_a_purged_segment_makes_way_for_a_newer_one() {
    block_on(async {
        let machine = machine();
        let mut case = rolled(&machine).await;
        for _ in 0..3 {
            let known = case.layer.lock().unwrap().frames.clone();
            let end = case.oracle.end();
            case.oracle.purge_to(&mut case.log, end).await.unwrap();
            case.log.removal().run().await.unwrap();
            assert_eq!(sidecars(&machine), [kept()]);
            let Case { log, oracle, .. } = case;
            drop(log);
            let layer;
            (case, layer) = Case::open(&machine, oracle).await;
            assert_eq!(layer.frames, known);
            let segments = machine.segments().len();
            while machine.segments().len() < segments + 2 {
                assert!(case.append().await);
            }
        }
    });
}

#[test]
fn what_was_cut_off_is_not_kept_of_a_purged_segment() {
    // A segment was cut and purged, and what came behind it ended where it had ended: the one's sidecar
    // says nothing of the other's records.
    block_on(async {
        let machine = machine();
        let mut case = rolled(&machine).await;
        let end = bases(&case)[1];
        let cut = case.oracle.truncate_from(&mut case.log, end - 1).await;
        cut.unwrap();
        let first = case.oracle.purge_to(&mut case.log, end - 1).await;
        first.unwrap();
        assert!(sidecars(&machine).contains(&sidecar(0)), "of its old end");
        case.log.removal().run().await.unwrap();
        case.follow();
        assert!(case.append().await);
        case.log.close_active_segment().await.unwrap().unwrap();
        machine.fs.delete_file(sidecar(end - 1)).unwrap();
        case.oracle.purge_to(&mut case.log, end).await.unwrap();
        case.log.removal().run().await.unwrap();
        let Case { log, oracle, .. } = case;
        drop(log);
        let (_, layer) = Case::open(&machine, oracle).await;
        assert_eq!((layer.began, layer.frames), (None, Vec::new()));
    });
}

#[test]
fn a_segment_that_was_cut_off_and_can_not_be_removed_is_not_the_last_that_was_purged() {
    // Another came in its place, ended where it had ended, was purged and is gone.
    block_on(async {
        let machine = machine();
        let mut case = rolled(&machine).await;
        let [.., base, end] = bases(&case)[..] else {
            panic!("too few")
        };
        let name = format!("{base:020}.wal");
        let stays = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::RemoveFile]);
        let stays = stays.path_ends_with(&name).times(u64::MAX);
        machine.fs.inject(stays);
        let cut = case.oracle.truncate_from(&mut case.log, base).await;
        cut.unwrap();
        assert!(case.log.removal().run().await.is_err());
        case.follow();
        while case.log.next_offset() < end {
            let other = value(case.log.next_offset() + 900);
            let appended = case.oracle.append(&mut case.log, other).await;
            appended.unwrap();
            case.follow();
        }
        case.log.close_active_segment().await.unwrap().unwrap();
        let known = case.layer.lock().unwrap().frames.clone();
        case.oracle.purge_to(&mut case.log, end).await.unwrap();
        assert!(case.log.removal().run().await.is_err());
        // Written anew, the manifest forgets what is gone.
        assert!(case.append().await);
        let cut = case.oracle.truncate_from(&mut case.log, end).await;
        cut.unwrap();
        let Case {
            log, mut oracle, ..
        } = case;
        log.close().await.unwrap();
        for _ in 0..3 {
            let (case, layer) = Case::open(&machine, oracle).await;
            assert_eq!(layer.frames, known);
            case.log.close().await.unwrap();
            oracle = case.oracle;
        }
    });
}

#[test]
fn what_has_a_gap_behind_it_is_not_kept() {
    // A broker that knows of no batch of a producer takes the next; one that missed some refuses it.
    block_on(async {
        let machine = machine();
        let mut case = rolled(&machine).await;
        assert!(case.append().await);
        let newest = *bases(&case).last().unwrap();
        let to = newest + 1;
        assert!(to < case.oracle.end());
        case.oracle.purge_to(&mut case.log, to).await.unwrap();
        case.log.removal().run().await.unwrap();
        let Case { log, oracle, .. } = case;
        drop(log);
        let (_, layer) = Case::open(&machine, oracle).await;
        assert_eq!(layer.began, None);
        assert_eq!(layer.frames.first().map(|(base, ..)| *base), Some(to));
    });
}

#[test]
fn what_ends_in_front_of_the_logs_start_is_not_what_was_known_there() {
    // The log was to begin behind offsets that it never held, and the files in front of them were still there.
    block_on(async {
        let machine = machine();
        let mut case = rolled(&machine).await;
        let to = case.oracle.end() + 3;
        case.oracle.purge_to(&mut case.log, to).await.unwrap();
        assert!(sidecars(&machine).len() > 3);
        let Case { log, oracle, .. } = case;
        drop(log);
        let (_, layer) = Case::open(&machine, oracle).await;
        assert_eq!((layer.began, layer.frames), (None, Vec::new()));
    });
}

#[test]
fn a_segment_without_a_record_is_not_the_last_that_was_purged() {
    // It was given up at its first write, and ends where the last one with a record does.
    for stop in Stop::ALL {
        let machine = machine();
        block_on(async {
            let mut case = rolled(&machine).await;
            case.log.close_active_segment().await.unwrap().unwrap();
            let fault = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::WriteAt]);
            machine.fs.inject(fault.path_ends_with(".wal").skip(1));
            assert!(!case.append().await);
            let end = case.oracle.end();
            let newest = case.log.reader().segments().pop().unwrap();
            assert_eq!((newest.base_offset, newest.end_offset), (end, end));
            let known = case.layer.lock().unwrap().frames.clone();
            case.oracle.purge_to(&mut case.log, end).await.unwrap();
            case.log.removal().run().await.unwrap();
            comes_back(&machine, case, stop, &known, "one was given up").await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_course_of_events_brings_the_layer_above_back(
        seed: u64,
        steps in prop::collection::vec((0..8_u8, any::<u8>()), 1..40),
    ) {
        block_on(async {
            let mut machine = machine();
            machine.config.segment_ids = sq_storage::SegmentIds::seeded(seed);
            let (mut case, _) = Case::open(&machine, Oracle::default()).await;
            for (step, by) in steps {
                let (start, end) = (case.oracle.start(), case.oracle.end());
                match step {
                    0..4 => for _ in 0..=by % 4 {
                        assert!(case.append().await);
                    },
                    4 => {
                        let _ = case.log.close_active_segment().await.unwrap();
                    }
                    5 => {
                        let offset = start + u64::from(by) % (end - start + 1);
                        case.oracle.truncate_from(&mut case.log, offset).await.unwrap();
                        case.follow();
                    }
                    6 => {
                        let offset = start + u64::from(by) % 6;
                        let Case { log, oracle, .. } = &mut case;
                        if by < 128 {
                            oracle.purge_to(log, offset).await.unwrap();
                        } else {
                            oracle.advance_start(log, offset).await.unwrap();
                        }
                        case.follow();
                        case.log.removal().run().await.unwrap();
                    }
                    _ => {
                        let Case { log, oracle, layer } = case;
                        drop(log);
                        Stop::ALL[usize::from(by) % Stop::ALL.len()].strike(&machine.fs);
                        let found;
                        (case, found) = Case::open(&machine, oracle).await;
                        let known = &layer.lock().unwrap().frames;
                        assert!(known.ends_with(&found.frames), "what it knows is so");
                    }
                }
            }
        });
    }
}
