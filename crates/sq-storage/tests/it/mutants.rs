//! What the log guards against, taken away one by one: each time the model test, or a generator made
//! for it, notices within so many seeds. With everything in place the same seeds pass.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sq_sim::{Effect, Fault, FileSystem as _, Keep, OpKind};
use sq_storage::frame::FRAME_HEADER_LEN;
use sq_storage::wal::mutants::{Guard, without};
use sq_storage::wal::segment::SEGMENT_HEADER_LEN;
use sq_storage::{Batch, SyncPolicy};

use crate::damage::{file, frame};
use crate::disk::{BadHabit, Habits};
use crate::interval;
use crate::model;
use crate::oracle::Oracle;
use crate::support::{DIR, Machine, Writer, block_on, segment, value, values};

/// The seeds that it takes to notice, as far as they may be needed.
const SEEDS: Range<u64> = 0..200;

/// Within so many of them each has to be noticed, so that a change of the model's luck is no matter.
const MARGIN: u64 = 3;

/// The first of the seeds that does not pass, said aloud.
fn caught(what: &str, seeds: Range<u64>, passes: impl Fn(u64) -> bool) -> Option<u64> {
    let caught = seeds.clone().find(|&seed| !passes(seed));
    println!("{what}: seed {caught:?} of {seeds:?}");
    caught
}

fn habit_is_noticed(bad: BadHabit) {
    let habits = Habits {
        bad: Some(bad),
        ..Habits::default()
    };
    is_noticed(&format!("{bad:?}"), |s| model::survives(s, habits));
    is_noticed(&format!("{bad:?}, with successors"), |s| {
        model::survives_with_successors(s, habits)
    });
}

fn is_noticed(what: &str, survives: impl Fn(u64) -> bool) {
    let seed = caught(what, SEEDS, survives);
    let in_time = seed.is_some_and(|seed| (seed + 1) * MARGIN <= SEEDS.end);
    assert!(in_time, "{what} goes unnoticed for too long: {seed:?}");
}

fn lack_is_noticed(guard: Guard) {
    is_noticed(&format!("no {guard:?}"), |seed| {
        without(guard, || model::survives(seed, Habits::default()))
    });
    is_noticed(&format!("no {guard:?}, with successors"), |seed| {
        without(guard, || {
            model::survives_with_successors(seed, Habits::default())
        })
    });
}

#[test]
fn with_every_guard_in_place_the_same_seeds_pass() {
    let habits = Habits::default();
    let seed = caught("nothing", SEEDS, |s| model::survives(s, habits));
    assert_eq!(seed, None);
    let survives = |s| model::survives_with_successors(s, habits);
    assert_eq!(caught("nothing, with successors", SEEDS, survives), None);
}

#[test]
fn directories_that_are_not_synced_are_noticed() {
    habit_is_noticed(BadHabit::ForgetsDirectories);
}

#[test]
fn a_sync_that_is_retried_on_the_same_file_is_noticed() {
    habit_is_noticed(BadHabit::RetriesSyncs);
}

#[test]
fn an_opening_that_syncs_without_writing_again_is_noticed() {
    habit_is_noticed(BadHabit::SkipsKnownBytes);
}

#[test]
fn a_file_length_that_is_trusted_is_noticed() {
    lack_is_noticed(Guard::LastFrame);
}

#[test]
fn a_search_for_frames_of_any_segment_is_noticed() {
    lack_is_noticed(Guard::SegmentId);
}

#[test]
fn a_switch_that_leaves_unsynced_records_behind_is_noticed() {
    lack_is_noticed(Guard::SwitchSync);
}

#[test]
fn a_write_that_is_not_synced_after_a_refused_one_is_noticed() {
    let stays_away = interval::refusals_stay_away;
    assert_eq!(caught("nothing", SEEDS, stays_away), None);
    is_noticed("no RefusalSync", |seed| {
        without(Guard::RefusalSync, || stays_away(seed))
    });
}

/// Two segments of which the newer one's bytes and the older one's last ones were written and not
/// synced, and then the power failed. The log's own writer syncs the older one first.
fn joins_rightly(seed: u64, keep: Keep) -> bool {
    let machine = Machine::new(seed);
    let opened = catch_unwind(AssertUnwindSafe(|| {
        block_on(async {
            let frames = |r: Range<u64>| r.map(|n| frame(1, 0, n, n.min(90), &value(n)));
            let durable = file(frames(0..90));
            let later = file((100..105).map(|n| frame(2, 1, n, 90, &value(n))));
            machine.fs.write_file(segment(0), durable.clone()).unwrap();
            let fs = machine.fs.for_this_process();
            let old = fs.open(&segment(0)).await.unwrap();
            let tail = frames(90..100).collect::<Vec<_>>().concat();
            old.write_at(durable.len() as u64, &[tail.into()])
                .await
                .unwrap();
            let new = fs.create_new(&segment(100)).await.unwrap();
            new.write_at(0, &[later.into()]).await.unwrap();
            machine.fs.power_loss(keep);

            let mut log = machine.open().await;
            assert_eq!(log.recovery_report().damage, []);
            let found = values(&log.reader()).await;
            assert!((90..=105).contains(&found.len()));
            assert!(found.iter().zip(0..).all(|(v, n)| *v == value(n)));
            let next = log.append(None, b"next", &[], 0).await.unwrap();
            assert_eq!(next, found.len() as u64);
        });
    }));
    opened.is_ok()
}

#[test]
fn segments_that_do_not_join_are_noticed() {
    let seeds = 0..200;
    let alike = |seed| joins_rightly(seed, Keep::Sectors);
    assert_eq!(caught("nothing", seeds.clone(), alike), None);
    let lacking = |keep| move |seed| without(Guard::Continuity, || joins_rightly(seed, keep));
    let seed = caught("no Continuity", seeds.clone(), lacking(Keep::Sectors));
    assert!(seed.is_some());
    // Where nothing un-synced ever survives, there is nothing to notice.
    assert_eq!(caught("no Continuity", seeds, lacking(Keep::None)), None);
}

/// What a disk writes whole, in bytes.
const SECTOR_LEN: u64 = 512;

/// Where a write ends, in bytes.
const PAGE_LEN: u64 = 4096;

/// So many frames from a position on, each of which ends with a sector.
fn sectors(rng: &mut StdRng, mut position: u64, count: u64) -> Vec<Batch> {
    let header = FRAME_HEADER_LEN as u64;
    let sector = |_| {
        let end = (position + header + 1).next_multiple_of(SECTOR_LEN);
        let len = end - position - header;
        position = end;
        Batch {
            payload: vec![vec![rng.random(); len as usize].into()],
            record_count: 1,
            max_timestamp_ms: 0,
            leader_epoch: 0,
        }
    };
    (0..count).map(sector).collect()
}

/// Where the next frame goes. A segment that is yet to be opened begins behind its header.
fn position(log: &Writer) -> u64 {
    let active = log.active_segment();
    active.map_or(SEGMENT_HEADER_LEN as u64, |active| active.bytes)
}

/// Frames of a sector each are written together over some pages, and the power fails before they are durable:
/// each of them may be there or not. What is appended then goes on to a page's end, where nothing is padded,
/// and what the tear left on the next page would follow. Several times over; each time the log is compared.
pub(crate) async fn is_torn_and_goes_on(
    machine: &Machine,
    mut log: Writer,
    oracle: &mut Oracle,
    rng: &mut StdRng,
) {
    for _ in 0..4 {
        let count = rng.random_range(9..20);
        let torn = sectors(rng, position(&log), count);
        // Nothing else is synced meanwhile.
        log.maintenance().run().await.unwrap();
        let crash = Fault::new(Effect::Crash { bytes: 0 });
        machine.fs.inject(crash.on(&[OpKind::SyncData]));
        oracle.append_batches(&mut log, &torn).await.unwrap_err();
        machine.fs.power_loss(Keep::Sectors);
        log = machine.open().await;
        oracle.check(&log).await;
        for _ in 0..rng.random_range(1..3) {
            let from = position(&log);
            let count = (PAGE_LEN - from % PAGE_LEN).div_ceil(SECTOR_LEN);
            let next = sectors(rng, from, count);
            oracle.append_batches(&mut log, &next).await.unwrap();
        }
        machine.fs.power_loss(Keep::Mixed);
        log = machine.open().await;
        assert_eq!(log.recovery_report().damage, []);
        oracle.check(&log).await;
    }
}

fn goes_on_rightly(seed: u64) -> bool {
    let right = catch_unwind(AssertUnwindSafe(|| {
        block_on(async {
            let (machine, mut rng) = (Machine::new(seed), StdRng::seed_from_u64(seed));
            let (mut oracle, mut log) = (Oracle::default(), machine.open().await);
            let first = sectors(&mut rng, position(&log), 1);
            oracle.append_batches(&mut log, &first).await.unwrap();
            is_torn_and_goes_on(&machine, log, &mut oracle, &mut rng).await;
        });
    }));
    right.is_ok()
}

#[test]
fn an_append_in_front_of_what_a_tear_left_is_noticed() {
    assert_eq!(caught("nothing", SEEDS, goes_on_rightly), None);
    is_noticed("no Tail", |seed| {
        without(Guard::Tail, || goes_on_rightly(seed))
    });
}

/// The newest record rots before a mark covers it, so that it passes for a tear. Nothing was told of
/// it, but its bytes may be all that there is of a record that was acknowledged: whatever comes after,
/// they have to be where they were.
fn keeps_what_passes_for_a_tear(seed: u64, bad: Option<BadHabit>) -> bool {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut machine = Machine::new(seed).with_segment_bytes(900);
    machine.habits.bad = bad;
    let kept = catch_unwind(AssertUnwindSafe(|| {
        block_on(async {
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            for n in 0..rng.random_range(1..9) {
                oracle.append(&mut log, value(n)).await.unwrap();
            }
            drop(log);
            let newest = machine.segments().pop().unwrap();
            let at = 32 + rng.random_range(0..64);
            machine
                .fs
                .flip_bit(&newest, at, rng.random_range(0..8))
                .unwrap();
            let before = machine.fs.read_file(&newest).unwrap();
            let mut log = machine.open().await;
            for n in 0..3 {
                log.append(None, &value(n), &[], 0).await.unwrap();
            }
            assert_eq!(machine.fs.read_file(&newest).unwrap(), before);
        });
    }));
    kept.is_ok()
}

#[test]
fn a_file_that_takes_the_name_of_another_is_noticed() {
    let seeds = 0..40;
    let alike = |seed| keeps_what_passes_for_a_tear(seed, None);
    assert_eq!(caught("nothing", seeds.clone(), alike), None);
    let bad = Some(BadHabit::OverwritesNames);
    let seed = caught("OverwritesNames", seeds, |s| {
        keeps_what_passes_for_a_tear(s, bad)
    });
    assert!(seed.is_some());
}

/// A log whose appends are synced later, of which the process dies before they are: what opening shows then
/// has to be there after a power loss. Beside it lies what a machine with such records wrote as its recovery
/// point, if that is wanted.
fn keeps_what_it_showed(seed: u64, has_foreign_point: bool) -> bool {
    let machine = |id_seed: u64| {
        let mut machine = Machine::new(id_seed);
        machine.config.recovery_point_bytes = 500 + seed % 8 * 300;
        machine.config.sync = SyncPolicy::Every(Duration::from_secs(1));
        machine
    };
    let kept = catch_unwind(AssertUnwindSafe(|| {
        block_on(async {
            let mut rng = StdRng::seed_from_u64(seed);
            let machine = machine(seed);
            let mut log = machine.open().await;
            let records = rng.random_range(5..60);
            for n in 0..records {
                log.append(None, &value(n), &[], 0).await.unwrap();
                if rng.random_range(0..20) == 0 {
                    log.sync().await.unwrap();
                }
                log.maintenance().run().await.unwrap();
            }
            drop(log);
            machine.fs.process_crash();
            if has_foreign_point {
                let point = point_of_another(seed, records).await;
                machine
                    .fs
                    .write_file(format!("{DIR}/{:020}.point", 0), point)
                    .unwrap();
            }
            let log = machine.open().await;
            let shown = values(&log.reader()).await;
            drop(log);
            machine.fs.power_loss(Keep::None);
            let log = machine.open().await;
            assert_eq!(values(&log.reader()).await, shown);
        });
    }));
    kept.is_ok()
}

/// The recovery point of a segment with another id that began with records of the same lengths.
async fn point_of_another(seed: u64, records: u64) -> Vec<u8> {
    let mut machine = Machine::new(seed + 1_000);
    machine.config.recovery_point_bytes = 300;
    let mut log = machine.open().await;
    for n in 0..records {
        log.append(None, &value(n).to_ascii_uppercase(), &[], 0)
            .await
            .unwrap();
    }
    log.maintenance().run().await.unwrap();
    machine
        .fs
        .read_file(format!("{DIR}/{:020}.point", 0))
        .unwrap()
}

#[test]
fn a_recovery_point_that_claims_what_is_not_durable_is_noticed() {
    let alike = |seed| keeps_what_it_showed(seed, false);
    assert_eq!(caught("nothing", SEEDS, alike), None);
    is_noticed("no PointsSync", |seed| {
        without(Guard::PointsSync, || keeps_what_it_showed(seed, false))
    });
}

#[test]
fn a_recovery_point_of_another_segment_that_is_trusted_is_noticed() {
    let alike = |seed| keeps_what_it_showed(seed, true);
    assert_eq!(caught("nothing", SEEDS, alike), None);
    is_noticed("no PointsSegment", |seed| {
        without(Guard::PointsSegment, || keeps_what_it_showed(seed, true))
    });
}
