//! Twins: the same files opened with recovery points and without.
//!
//! A recovery point only says where opening may begin to read. So what a crash left is copied to two machines,
//! the points taken away from one of them, and both logs are asked for everything that can be asked of a log,
//! given the same things to do, stopped, and asked once more. Whatever a point got wrong, of what was cut off,
//! purged, not synced, or written by an earlier life of the segment, shows as a difference. Half of the lives
//! sync later than they acknowledge.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use sq_sim::{Effect, Errno, Fault, InMemoryFileSystem, Keep, OpKind, SyncFailure};
use sq_storage::{
    Batch, MaintenanceMode, Retention, SegmentCache, SegmentIds, Spares, SyncPolicy, Zeroing,
};

use crate::scrub;
use crate::support::{Machine, Stop, Writer, block_on};

/// A few seconds' worth.
const SEEDS: u64 = 60;

fn is_point(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    extension.to_string_lossy().starts_with("point")
}

/// A machine of its own with the files of another.
fn twin(of: &Machine, keeps_points: bool) -> Machine {
    let mut twin = of.clone();
    twin.fs = InMemoryFileSystem::with_clock(1, Arc::new(of.clock.clone()));
    twin.config.segment_ids = SegmentIds::seeded(99);
    twin.config.segment_cache = SegmentCache::default();
    twin.config.zeroing = Zeroing::new(1 << 20);
    twin.config.spares = Spares::new(1 << 20);
    let files = of.fs.files().into_iter();
    for path in files.filter(|path| keeps_points || !is_point(path)) {
        let content = of.fs.read_file(&path).unwrap();
        twin.fs.write_file(&path, content).unwrap();
    }
    twin
}

/// All that can be asked of a log.
async fn ask(log: &Writer) -> Vec<String> {
    let reader = log.reader();
    let mut answers = vec![
        format!("{:?}", reader.start_offset()..reader.end_offset()),
        format!("{:?} {}", log.active_segment(), log.next_offset()),
        format!("{:?}", reader.segments()),
        format!("durable below {}", log.durable_offset()),
        format!("greatest: {:?}", reader.find_max_timestamp().await),
    ];
    for offset in reader.start_offset()..=reader.end_offset() {
        let frames = reader.read(offset, 0).await;
        answers.push(format!("{offset}: {frames:?}"));
    }
    for time in (-2..1_002).step_by(23) {
        let found = reader.find_by_timestamp(time).await;
        answers.push(format!("at {time}: {found:?}"));
    }
    answers
}

fn are_alike(what: &str, with: &[String], without: &[String]) {
    for (with, without) in with.iter().zip(without) {
        assert_eq!(with, without, "{what}");
    }
    assert_eq!(with.len(), without.len(), "{what}");
}

async fn append(rng: &mut StdRng, log: &mut Writer) -> String {
    if rng.random_range(0..3) > 0 {
        let value = vec![rng.random::<u8>(); rng.random_range(10..900)];
        let time = rng.random_range(0..1000);
        let done = log.append(None, &value, &[], time).await;
        return format!("{:?}", done.ok());
    }
    let mut batch = || Batch {
        payload: vec![Bytes::from(vec![
            rng.random::<u8>();
            rng.random_range(10..2000)
        ])],
        record_count: rng.random_range(1..4),
        max_timestamp_ms: rng.random_range(-1..1000),
        leader_epoch: 0,
    };
    let batches = [batch(), batch(), batch()];
    format!("{:?}", log.append_batches(&batches).await.ok())
}

async fn turn(log: &mut Writer) -> bool {
    if log.armed().is_none()
        && let Ok(prepared) = log.preparation(None).run().await
    {
        let _ = log.arm(prepared);
    }
    let _ = log.sync().await;
    log.switch()
}

/// Does something, and says what came of it.
async fn act(rng: &mut StdRng, log: &mut Writer) -> String {
    let back = rng.random_range(0..50);
    let to = log.next_offset().saturating_sub(back);
    let is_done = match rng.random_range(0..36) {
        0..28 => return append(rng, log).await,
        28 => log.truncate_from(to).await.is_ok(),
        29 => log.advance_start(to).await.is_ok(),
        30 => log.purge_to(to).await.is_ok(),
        31 => log.mark().await.is_ok(),
        32 => log.close_active_segment().await.is_ok(),
        33 => turn(log).await,
        34 => log.maintenance().run().await.is_ok() && log.removal().run().await.is_ok(),
        _ => {
            let retention = Retention {
                max_bytes: Some(rng.random_range(0..60_000)),
                max_age: None,
            };
            log.sync().await.is_ok() && log.apply_retention(&retention).await.is_ok()
        }
    };
    format!("{to} {is_done}")
}

fn machine(seed: u64, rng: &mut StdRng) -> Machine {
    let bytes = *[5_000, 50_000, 400_000].choose(rng).unwrap();
    let mut machine = Machine::new(seed).with_segment_bytes(bytes);
    machine.config.recovery_point_bytes = *[300, 2_500, 9_000].choose(rng).unwrap();
    if rng.random_range(0..2) == 0 {
        machine.config.maintenance = MaintenanceMode::Handed;
    }
    if seed.is_multiple_of(2) {
        machine.config.sync = SyncPolicy::Every(Duration::from_secs(1));
    }
    machine.config.zero_ahead_bytes = *[0, 700, 20_000].choose(rng).unwrap();
    if rng.random_range(0..2) == 0 {
        machine.config.spares = Spares::new(1 << 20);
    }
    machine
}

fn disturb(rng: &mut StdRng, machine: &Machine) {
    let fails = |kind, errno| Fault::new(Effect::Fail(errno)).on(&[kind]);
    let fault = match rng.random_range(0..6) {
        0 => fails(OpKind::WriteAt, Errno::NoSpace),
        1 => fails(OpKind::Rename, Errno::Io),
        2 => fails(OpKind::CreateNew, Errno::Io),
        3 => return machine.fs.crash_after(rng.random_range(0..20)),
        _ => Fault::new(Effect::FailSync(*SyncFailure::ALL.choose(rng).unwrap())),
    };
    machine.fs.inject(fault.skip(rng.random_range(0..6)));
}

/// Fills a disk, until everything stops.
async fn live(rng: &mut StdRng, machine: &Machine) {
    let mut log = machine.open().await;
    for _ in 0..rng.random_range(5..90) {
        match rng.random_range(0..20) {
            0 => disturb(rng, machine),
            1 | 2 => {
                let time = Duration::from_millis(rng.random_range(1..2_000));
                machine.clock.advance(time);
            }
            _ => {}
        }
        act(rng, &mut log).await;
        log.allow_writes();
        if machine.fs.is_crashed() {
            break;
        }
    }
    drop(log);
    machine.fs.clear_faults();
    Stop::ALL.choose(rng).unwrap().strike(&machine.fs);
    machine.fs.crash_after(u64::MAX);
}

/// Opens both twins of a disk, and again after they have gone on. How many of these openings began at a point.
async fn compare(what: &str, rng: &mut StdRng, machine: &Machine) -> usize {
    let twins = [twin(machine, true), twin(machine, false)];
    let [mut with, mut without] = [twins[0].open().await, twins[1].open().await];
    let mut resumed = with.recovery_report().recovery_points.len();
    assert_eq!(with.recovery_report().damage, []);
    assert_eq!(without.recovery_report().damage, []);
    assert!(without.recovery_report().recovery_points.is_empty());
    are_alike(what, &ask(&with).await, &ask(&without).await);

    let (seed, steps) = (rng.random(), rng.random_range(0..12));
    let mut done = [Vec::new(), Vec::new()];
    for (log, done) in [&mut with, &mut without].into_iter().zip(&mut done) {
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..steps {
            done.push(act(&mut rng, log).await);
        }
    }
    are_alike(what, &done[0], &done[1]);
    are_alike(what, &ask(&with).await, &ask(&without).await);
    let stop = [Stop::Process, Stop::Power(Keep::None)][rng.random_range(0..2)];
    drop((with, without));
    for twin in &twins {
        stop.strike(&twin.fs);
    }

    let [with, without] = [twins[0].open().await, twins[1].open().await];
    resumed += with.recovery_report().recovery_points.len();
    are_alike(what, &ask(&with).await, &ask(&without).await);
    let (_, found) = scrub::check(&twins[0], &with.reader()).await;
    let (_, of_other) = scrub::check(&twins[1], &without.reader()).await;
    assert_eq!(found, of_other, "{what}");
    resumed
}

/// Compares the twins of a seed's lives. How many of the openings began at a point.
pub(crate) async fn compare_lives(seed: u64) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let machine = machine(seed, &mut rng);
    let mut resumed = 0;
    for life in 0..3 {
        live(&mut rng, &machine).await;
        resumed += compare(&format!("seed {seed}, life {life}"), &mut rng, &machine).await;
    }
    resumed
}

/// `SQ_SEED` compares the twins of that one seed.
#[test]
fn with_recovery_points_and_without_a_log_is_the_same() {
    let one = std::env::var("SQ_SEED").ok().and_then(|n| n.parse().ok());
    let seeds = one.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    let resumed: usize = seeds.map(|seed| block_on(compare_lives(seed))).sum();
    assert!(one.is_some() || resumed > 50, "{resumed}");
}
