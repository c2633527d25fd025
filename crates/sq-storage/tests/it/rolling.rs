//! Whole rolls to prepared successors, and what they cost and survive.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sq_sim::{ContentFate, EntryFate, FileFate, Keep, OpKind, PowerLoss};
use sq_storage::{MaintenanceMode, Rotation};

use crate::oracle::Oracle;
use crate::support::{DIR, Machine, Stop, Writer, block_on, is_crash, segment, value};

/// A machine whose maintenance somebody else does.
pub(crate) fn handed(seed: u64) -> Machine {
    let mut machine = Machine::new(seed).with_segment_bytes(3000);
    machine.config.maintenance = MaintenanceMode::Handed;
    machine.config.zero_ahead_bytes = 1000;
    machine
}

/// The files of the partition that are neither segments, nor the index of one, nor its manifest.
pub(crate) fn others(machine: &Machine) -> Vec<PathBuf> {
    let files = machine.fs.files();
    let is_other = |path: &PathBuf| {
        let is = |extension| path.extension().is_some_and(|e| e == extension);
        let is_index = is("index") && files.contains(&path.with_extension("wal"));
        path.starts_with(DIR) && !is("wal") && !is_index && !path.ends_with("manifest")
    };
    files
        .iter()
        .filter(|path| is_other(path))
        .cloned()
        .collect()
}

/// Prepares a successor and gives it to the writer.
pub(crate) async fn arm(log: &mut Writer) -> Result<(), sq_storage::Error> {
    let prepared = log.preparation(None).run().await?;
    log.arm(prepared).unwrap();
    Ok(())
}

async fn append(log: &mut Writer, oracle: &mut Oracle) -> bool {
    let value = value(oracle.end());
    oracle.append(log, value).await.is_ok()
}

/// What the disk is asked to do for one append.
async fn operations_of_an_append(machine: &Machine, log: &mut Writer) -> Vec<(OpKind, Arc<Path>)> {
    machine.fs.take_trace();
    log.append(None, &[7; 700], &[], 0).await.unwrap();
    let trace = machine.fs.take_trace();
    trace.into_iter().map(|op| (op.kind, op.path)).collect()
}

#[test]
fn the_first_append_after_a_switch_costs_what_any_append_costs() {
    // Kafka's producers wait 3 ms at every roll, the segment's files are created on their way.
    block_on(async {
        for rotation in [Rotation::External, Rotation::Internal] {
            let mut machine = handed(1);
            machine.config.rotation = rotation;
            let mut log = machine.open().await;
            operations_of_an_append(&machine, &mut log).await;
            let any = operations_of_an_append(&machine, &mut log).await;
            let kinds: Vec<_> = any.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, [OpKind::WriteAt, OpKind::SyncData]);

            arm(&mut log).await.unwrap();
            if rotation == Rotation::External {
                machine.fs.take_trace();
                assert!(log.switch());
                assert!(machine.fs.take_trace().is_empty(), "a switch is in memory");
            } else {
                // Two more fill the segment.
                operations_of_an_append(&machine, &mut log).await;
            }
            let first = operations_of_an_append(&machine, &mut log).await;
            assert_ne!(first[0].1, any[0].1, "it went on in the same file");
            let of_first: Vec<_> = first.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(of_first, kinds, "{rotation:?}");
            let second = operations_of_an_append(&machine, &mut log).await;
            assert_eq!(second, first);

            // And one without a prepared successor does cost more.
            log.close_active_segment().await.unwrap();
            let created = operations_of_an_append(&machine, &mut log).await;
            assert!(created.iter().any(|(kind, _)| *kind == OpKind::CreateNew));
            assert!(created.iter().any(|(kind, _)| *kind == OpKind::SyncDir));
        }
    });
}

#[test]
fn a_switched_file_gets_its_name_behind_the_appends_and_is_read_all_along() {
    block_on(async {
        let machine = handed(2);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for _ in 0..3 {
            assert!(append(&mut log, &mut oracle).await);
        }
        arm(&mut log).await.unwrap();
        assert!(log.switch());
        assert_eq!(log.take_closed()[0].offsets, 0..3);
        for _ in 0..3 {
            assert!(append(&mut log, &mut oracle).await);
        }
        let reader = log.reader();
        let info = |n: usize| reader.segments()[n].clone();
        assert_eq!(info(1).path.extension().unwrap(), "prepared");
        assert_eq!(machine.segments(), [segment(0)]);
        oracle.verify(&log.reader()).await;

        log.maintenance().run().await.unwrap();
        assert_eq!(info(1).path, segment(3));
        assert_eq!(machine.segments(), [segment(0), segment(3)]);
        assert!(others(&machine).is_empty());
        let trimmed = machine.fs.read_file(segment(0)).unwrap();
        assert_eq!(trimmed.len() as u64, info(0).bytes);
        oracle.verify(&log.reader()).await;
        assert!(append(&mut log, &mut oracle).await);
        oracle.verify(&log.reader()).await;
    });
}

/// Two rolls and some appends between. What is behind a switch is done at once, or for both
/// together after the second, or by the next opening.
async fn roll(log: &mut Writer, oracle: &mut Oracle, maintain: Maintain) -> Option<()> {
    for n in 0..2 {
        for _ in 0..3 {
            append(log, oracle).await.then_some(())?;
        }
        arm(log).await.ok()?;
        append(log, oracle).await.then_some(())?;
        assert!(log.switch());
        for _ in 0..2 {
            append(log, oracle).await.then_some(())?;
        }
        let is_due = maintain == Maintain::Each || maintain == Maintain::Both && n == 1;
        if is_due {
            log.maintenance().run().await.ok()?;
            append(log, oracle).await.then_some(())?;
        }
    }
    Some(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maintain {
    Each,
    Both,
    Never,
}

/// Rolls until so many operations were done, stops, opens, and goes on. Whether the end came first.
async fn survives_a_crash_at(at: u64, maintain: Maintain, seed: u64, stop: &PowerOr) -> bool {
    let machine = handed(seed);
    let mut oracle = Oracle::default();
    let mut log = machine.open().await;
    machine.fs.crash_after(at);
    let whole = roll(&mut log, &mut oracle, maintain).await.is_some();
    assert!(whole || is_crash(&machine.fs));
    drop(log);
    stop.strike(&machine);

    let context = format!("{stop:?} after {at}, maintenance {maintain:?}, seed {seed}");
    let mut log = machine.open().await;
    let report = log.recovery_report().clone();
    assert_eq!(report.damage, [], "{context}");
    oracle.check(&log).await;
    // What is left beside the log is what was reported.
    assert_eq!(others(&machine), report.set_aside, "{context}");
    assert!(append(&mut log, &mut oracle).await);
    log.maintenance().run().await.unwrap();
    drop(log);
    stop.strike(&machine);
    let log = machine.open().await;
    oracle.check(&log).await;
    whole
}

/// Any end of a process or a machine.
#[derive(Clone, Debug)]
pub(crate) enum PowerOr {
    Stop(Stop),
    Power(PowerLoss),
}

impl PowerOr {
    pub(crate) fn strike(&self, machine: &Machine) {
        match self {
            Self::Stop(stop) => stop.strike(&machine.fs),
            Self::Power(loss) => machine.fs.power_loss(loss.clone()),
        }
    }

    /// Every way a process stops, and every fate of bytes with every fate of names.
    pub(crate) fn all() -> Vec<Self> {
        let mut all: Vec<_> = Stop::ALL.map(Self::Stop).to_vec();
        let names = (0..8).map(EntryFate::These);
        let names = names.chain([EntryFate::Lost, EntryFate::Kept]);
        for entries in names {
            for content in [ContentFate::Old, ContentFate::New, ContentFate::Prefix] {
                let loss = PowerLoss::new(FileFate::new(content), entries);
                all.push(Self::Power(loss));
            }
        }
        all
    }
}

fn survives_every_crash(maintain: Maintain, at_least: u64) {
    for stop in PowerOr::all() {
        let mut at = 0;
        while !block_on(survives_a_crash_at(at, maintain, at, &stop)) {
            at += 1;
        }
        assert!(at > at_least, "{at} operations");
    }
}

#[test]
fn a_crash_after_any_operation_of_a_roll_loses_nothing_and_leaves_nothing() {
    survives_every_crash(Maintain::Each, 70);
}

#[test]
fn a_crash_while_two_rolls_are_not_finished_behind_the_appends_loses_nothing() {
    survives_every_crash(Maintain::Both, 70);
    survives_every_crash(Maintain::Never, 45);
}

#[test]
fn opening_takes_up_two_files_that_were_switched_to_and_never_named() {
    for keep in [None, Some(Keep::None)] {
        block_on(async {
            let machine = handed(3);
            let mut log = machine.open().await;
            let mut oracle = Oracle::default();
            roll(&mut log, &mut oracle, Maintain::Never).await.unwrap();
            assert_eq!(others(&machine).len(), 2);
            drop(log);
            match keep {
                None => machine.fs.process_crash(),
                Some(keep) => machine.fs.power_loss(keep),
            }
            let mut log = machine.open().await;
            let adopted = &log.recovery_report().adopted;
            assert_eq!(adopted, &[segment(4), segment(10)]);
            assert!(others(&machine).is_empty());
            oracle.check(&log).await;
            assert!(append(&mut log, &mut oracle).await);
            // What they had been given in advance goes back.
            log.maintenance().run().await.unwrap();
            for info in &log.reader().segments()[..2] {
                let bytes = machine.fs.read_file(&info.path).unwrap();
                assert_eq!(bytes.len() as u64, info.bytes, "{}", info.path.display());
            }
        });
    }
}

#[test]
fn opening_again_and_again_gives_the_same_log() {
    // A crash after every operation of the opening that takes two files up.
    for stop in Stop::ALL {
        for again in 0.. {
            let hit = block_on(async {
                let machine = handed(4);
                let mut log = machine.open().await;
                let mut oracle = Oracle::default();
                roll(&mut log, &mut oracle, Maintain::Never).await.unwrap();
                arm(&mut log).await.unwrap();
                drop(log);
                stop.strike(&machine.fs);
                machine.fs.crash_after(again);
                let opened = machine.try_open().await;
                let hit = is_crash(&machine.fs);
                assert!(hit || opened.is_ok());
                drop(opened);
                stop.strike(&machine.fs);
                let mut log = machine.open().await;
                assert_eq!(log.recovery_report().damage, []);
                oracle.check(&log).await;
                assert!(others(&machine).is_empty());
                assert!(append(&mut log, &mut oracle).await);
                hit
            });
            if !hit {
                assert!(again > 20, "{again} operations");
                break;
            }
        }
    }
}

#[test]
fn a_roll_without_a_successor_creates_one_under_its_final_name() {
    block_on(async {
        let machine = handed(5);
        let mut log = machine.open().await;
        let mut oracle = Oracle::default();
        for _ in 0..30 {
            assert!(append(&mut log, &mut oracle).await);
            assert!(
                machine
                    .segments()
                    .contains(&log.reader().segments().pop().unwrap().path)
            );
        }
        assert!(log.reader().segments().len() > 2);
        let is_prepared = |p: &Path| p.extension().is_some_and(|e| e == "prepared");
        assert!(!machine.fs.paths_touched().iter().any(|p| is_prepared(p)));
    });
}
