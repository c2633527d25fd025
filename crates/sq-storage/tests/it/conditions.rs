//! What a disk can be in: full, failing, read-only, out of handles. A log says so, loses nothing, and
//! goes on without a restart when it is over.

use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, Effect, Errno, Fault, FileSystem, Keep, OpKind};
use sq_storage::log::{AppendError, Executor, Log, LogConfig};
use sq_storage::{Action, Reserve};

use crate::disk::Disk;
use crate::support::{Machine, Stop, block_on, value, values};

/// Room for what must work on a full disk, in bytes.
const RESERVE: u64 = 256 << 10;

async fn open(machine: &Machine) -> Log<Disk> {
    let executor = Executor::Runtime(tokio::runtime::Handle::current());
    let config = LogConfig {
        executor,
        ..LogConfig::default()
    };
    Log::new(machine.open().await, config)
}

async fn append(log: &Log<Disk>, n: u64) -> Result<u64, AppendError> {
    log.append(None, &value(n), &[], n).await
}

/// A condition of the disk: how it comes about. It ends when faults, limits and all are lifted.
type Begin = fn(&Machine);

fn always(machine: &Machine, effect: Effect, kinds: &[OpKind]) {
    machine.fs.inject(Fault::new(effect).on(kinds).always());
}

const CONDITIONS: &[(&str, Begin)] = &[
    ("full", |m| m.fs.set_free_space(Some(0))),
    ("nearly full", |m| m.fs.set_free_space(Some(700))),
    ("quota", |m| {
        always(
            m,
            Effect::Fail(Errno::Quota),
            &[OpKind::WriteAt, OpKind::CreateNew],
        );
    }),
    ("writes fail", |m| {
        always(m, Effect::Fail(Errno::Io), &[OpKind::WriteAt]);
    }),
    ("syncs fail", |m| {
        let lost = Effect::FailSync(sq_sim::SyncFailure::Lost);
        always(m, lost, &[OpKind::SyncData]);
    }),
    ("writes are short", |m| {
        always(
            m,
            Effect::ShortWrite {
                bytes: 9,
                errno: Errno::Io,
            },
            &[OpKind::WriteAt],
        );
    }),
    ("read-only", |m| {
        let kinds = &[
            OpKind::CreateNew,
            OpKind::WriteAt,
            OpKind::SetLen,
            OpKind::Rename,
            OpKind::RemoveFile,
            OpKind::CreateDirAll,
            OpKind::Allocate,
            OpKind::ZeroRange,
        ];
        always(m, Effect::Fail(Errno::ReadOnly), kinds);
    }),
    ("no handles", |m| m.fs.set_max_open_files(Some(0))),
    ("no handles in the system", |m| {
        let opens = &[OpKind::CreateNew, OpKind::Open];
        always(m, Effect::Fail(Errno::TooManyOpenFilesInSystem), opens);
    }),
    ("no directory syncs", |m| {
        always(m, Effect::Fail(Errno::Io), &[OpKind::SyncDir]);
    }),
];

fn lift(machine: &Machine) {
    machine.fs.clear_faults();
    machine.fs.set_free_space(None);
    machine.fs.set_max_open_files(None);
}

#[test]
fn when_a_condition_ends_the_log_goes_on_without_a_restart() {
    for (number, (name, begin)) in CONDITIONS.iter().enumerate() {
        for before in [0, 1, 5, 9] {
            block_on(async {
                let machine = Machine::new(number as u64).with_segment_bytes(1200);
                let log = open(&machine).await;
                let mut stored = Vec::new();
                for n in 0..before {
                    assert_eq!(append(&log, n).await.unwrap(), n);
                    stored.push(value(n));
                }
                begin(&machine);
                let mut refused = 0;
                for n in 100..112 {
                    match append(&log, n).await {
                        Ok(offset) => {
                            assert_eq!(offset, stored.len() as u64, "{name}");
                            stored.push(value(n));
                        }
                        Err(error) => {
                            let retry = [Action::Retry, Action::Reopen].contains(&error.action());
                            assert!(retry, "{name}: {error}");
                            refused += 1;
                        }
                    }
                }
                assert!(refused > 0, "{name} was not felt");
                lift(&machine);
                if let Err(error) = append(&log, 200).await {
                    // After several files in a row it is for someone to say that it may go on.
                    assert_eq!(error.action(), Action::Reopen, "{name}: {error}");
                    let allow = |writer: &mut Option<_>| -> Option<()> {
                        let writer: &mut sq_storage::WalWriter<Disk> = writer.as_mut()?;
                        writer.allow_writes();
                        Some(())
                    };
                    let allowed = log.with_writer(move |writer, _| {
                        let allowed = allow(writer);
                        Box::pin(async move { allowed })
                    });
                    assert_eq!(allowed.await.unwrap(), Some(()));
                    append(&log, 200).await.unwrap();
                }
                stored.push(value(200));
                for n in 201..210 {
                    assert_eq!(
                        append(&log, n).await.unwrap(),
                        stored.len() as u64,
                        "{name}"
                    );
                    stored.push(value(n));
                }
                assert_eq!(values(&log.reader()).await, stored, "{name}");
                drop(log);
                let stop = Stop::ALL[(number + usize::try_from(before).unwrap()) % Stop::ALL.len()];
                stop.strike(&machine.fs);
                let writer = machine.open().await;
                assert!(
                    writer.recovery_report().damage.is_empty(),
                    "{name}, {stop:?}"
                );
                assert_eq!(values(&writer.reader()).await, stored, "{name}, {stop:?}");
            });
        }
    }
}

#[test]
fn out_of_handles_at_a_roll_one_roll_happens_when_there_are_some() {
    // Elsewhere the roll panicked, or the topic hung with no reason given.
    block_on(async {
        let machine = Machine::new(20).with_segment_bytes(2000);
        let log = open(&machine).await;
        append(&log, 0).await.unwrap();
        machine.fs.set_max_open_files(Some(machine.fs.open_files()));
        let mut end = 1;
        let mut refused = 0;
        for _ in 0..50 {
            match append(&log, end).await {
                Ok(offset) => {
                    assert_eq!((offset, refused), (end, 0));
                    end += 1;
                }
                Err(error) => {
                    assert_eq!(error.action(), Action::Retry, "{error}");
                    refused += 1;
                }
            }
        }
        assert!(end > 2 && refused > 0);
        assert_eq!(machine.segments().len(), 1);
        machine.fs.set_max_open_files(None);
        assert_eq!(append(&log, end).await.unwrap(), end);
        assert_eq!(machine.segments().len(), 2);
        let expected: Vec<_> = (0..=end).map(value).collect();
        assert_eq!(values(&log.reader()).await, expected);
    });
}

#[test]
fn too_many_open_files_are_told_lose_nothing_and_end() {
    // The process's limit and the system's are two errors of open(2), and the same to a log: no file was
    // touched, and there is nothing to set aside.
    for errno in [Errno::TooManyOpenFiles, Errno::TooManyOpenFilesInSystem] {
        block_on(async {
            let machine = Machine::new(23).with_segment_bytes(1000);
            let log = open(&machine).await;
            let mut stored = Vec::new();
            let out_of_handles = || {
                let opens = &[OpKind::CreateNew, OpKind::Open];
                always(&machine, Effect::Fail(errno), opens);
            };
            for round in 0..3 {
                out_of_handles();
                let mut refused = 0;
                while refused < 20 {
                    match append(&log, stored.len() as u64).await {
                        Ok(offset) => {
                            assert_eq!((offset, refused), (stored.len() as u64, 0));
                            stored.push(value(offset));
                        }
                        Err(AppendError::Failed { error, .. }) => {
                            assert!(error.is_out_of_handles(), "{errno:?}: {error}");
                            assert_eq!(error.action(), Action::Retry);
                            refused += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    assert!(stored.len() < 100);
                }
                lift(&machine);
                // What was refused comes back, and has the offset that it would have had.
                let next = stored.len() as u64;
                assert_eq!(
                    append(&log, next).await.unwrap(),
                    next,
                    "{errno:?}, {round}"
                );
                stored.push(value(next));
            }
            assert_eq!(values(&log.reader()).await, stored);
            drop(log);
            machine.fs.process_crash();
            out_of_handles();
            let refused = machine.try_open().await.unwrap_err();
            assert!(refused.is_out_of_handles(), "{errno:?}: {refused}");
            lift(&machine);
            let writer = machine.open().await;
            assert!(writer.recovery_report().damage.is_empty());
            assert_eq!(values(&writer.reader()).await, stored);
        });
    }
}

async fn with_reserve(machine: &mut Machine) -> Reserve {
    let fs: Arc<dyn FileSystem> = Arc::new(Disk::new(&machine.fs, machine.habits));
    let clock: Arc<dyn Clock> = Arc::new(machine.clock.clone());
    sq_sim::create_dir_durably(&*fs, "/data".as_ref())
        .await
        .unwrap();
    let reserve = Reserve::take(fs, clock, "/data/@reserve", RESERVE)
        .await
        .unwrap();
    machine.config.reserve = Some(reserve.clone());
    reserve
}

#[test]
fn on_a_full_disk_the_reserve_is_for_everything_but_appends() {
    // Elsewhere nothing could be deleted or closed any more, since that took room as well.
    block_on(async {
        let mut machine = Machine::new(21).with_segment_bytes(64 << 10);
        machine.fs.set_free_space(Some(700 << 10));
        let reserve = with_reserve(&mut machine).await;
        assert!(!reserve.is_given_back());
        let log = open(&machine).await;
        let mut stored = Vec::new();
        let full = loop {
            let n = stored.len() as u64;
            match append(&log, n).await {
                Ok(_) => stored.push(value(n)),
                Err(error) => break error,
            }
        };
        assert_eq!(full.action(), Action::Retry);
        assert!(reserve.is_given_back());
        let room = machine.fs.free_space().unwrap();
        assert!(room >= RESERVE, "{room}");
        // However often it is tried, appends use none of it up: a small one may still find room beside
        // it, once it is taken again.
        for _ in 0..20 {
            match append(&log, 0).await {
                Ok(_) => stored.push(value(0)),
                Err(AppendError::Failed { error, .. }) => {
                    assert!(error.is_out_of_space(), "{error}");
                    if reserve.is_given_back() {
                        assert!(machine.fs.free_space().unwrap() >= RESERVE);
                    }
                }
                Err(error) => panic!("{error}"),
            }
            machine.clock.advance(Duration::from_millis(200));
        }
        // Sealing, and what it leaves to be done, works.
        let sealed = log.with_writer(|writer, _| {
            Box::pin(async move { writer.as_mut()?.close_active_segment().await.ok().flatten() })
        });
        assert!(sealed.await.unwrap().is_some());
        log.close().await.unwrap();
        assert_eq!(values(&log.reader()).await, stored);

        // Room comes back: no restart is needed, and the reserve is taken again first.
        let log = open(&machine).await;
        machine.fs.set_free_space(Some(2 << 20));
        machine.clock.advance(Duration::from_secs(1));
        assert_eq!(append(&log, 0).await.unwrap(), stored.len() as u64);
        assert!(!reserve.is_given_back());
        assert_eq!(
            machine.fs.read_file(reserve.path()).unwrap().len() as u64,
            RESERVE
        );
    });
}

#[test]
fn a_program_starts_on_a_full_disk() {
    block_on(async {
        let mut machine = Machine::new(22);
        let mut log = machine.open().await;
        log.append(None, &value(0), &[], 0).await.unwrap();
        drop(log);
        machine.fs.power_loss(Keep::None);
        machine.fs.set_free_space(Some(0));
        // The directory is there; the reserve gets its name and no room.
        let reserve = with_reserve(&mut machine).await;
        assert!(reserve.is_given_back());
        let log = open(&machine).await;
        assert_eq!(values(&log.reader()).await, [value(0)]);
        assert!(append(&log, 1).await.is_err());
        machine.fs.set_free_space(None);
        machine.clock.advance(Duration::from_secs(1));
        assert_eq!(append(&log, 1).await.unwrap(), 1);
        assert!(!reserve.is_given_back());
    });
}
