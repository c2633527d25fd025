//! Acknowledged first, synced within an interval: the bound holds, and a failed sync loses nothing.

use std::time::Duration;

use sq_sim::{Clock, Effect, Errno, Fault, Instant, Keep, OpKind, SyncFailure};
use sq_storage::log::{Executor, Log, LogConfig};
use sq_storage::{Error, MaintenanceMode, Record, SyncPolicy};

use crate::support::{Machine, Stop, Writer, block_on, value, values};

const INTERVAL: Duration = Duration::from_millis(50);

fn machine(seed: u64) -> Machine {
    let mut machine = Machine::new(seed).with_segment_bytes(4000);
    machine.config.sync = SyncPolicy::Every(INTERVAL);
    machine
}

/// What everyone who embeds the writer has to do: sync when the time is up.
async fn sync_if_due(machine: &Machine, log: &mut Writer) {
    if let Some(since) = log.unsynced_since()
        && machine.clock.now() >= since + INTERVAL
    {
        log.sync().await.unwrap();
    }
}

fn numbered(end: u64) -> Vec<Vec<u8>> {
    (0..end).map(value).collect()
}

#[test]
fn what_was_acknowledged_an_interval_ago_survives_any_crash() {
    // Elsewhere the default was to sync every two minutes, and nothing said so.
    let mut lost = 0;
    for seed in 0..400 {
        block_on(async {
            let machine = machine(seed);
            let mut log = machine.open().await;
            let mut acknowledged: Vec<Instant> = Vec::new();
            for n in 0..seed % 60 {
                let pause = Duration::from_millis((n * 7 + seed) % 23);
                machine.clock.advance(pause);
                sync_if_due(&machine, &mut log).await;
                let offset = log.append(None, &value(n), &[], 0).await.unwrap();
                assert_eq!(offset, n);
                acknowledged.push(machine.clock.now());
            }
            let end = log.next_offset();
            drop(log);
            let stop = Stop::ALL[usize::try_from(seed).unwrap() % Stop::ALL.len()];
            stop.strike(&machine.fs);
            let log = machine.open().await;
            let kept = log.next_offset();
            let now = machine.clock.now();
            let old = acknowledged.iter().filter(|at| **at + INTERVAL < now);
            assert!(kept >= old.count() as u64, "seed {seed}, {stop:?}");
            assert!(kept <= end);
            assert!(kept == end || stop != Stop::Process, "seed {seed}");
            assert!(log.recovery_report().damage.is_empty());
            assert_eq!(values(&log.reader()).await, numbered(kept));
            lost += end - kept;
        });
    }
    assert!(lost > 0, "nothing was ever at risk");
}

#[test]
fn always_is_before_the_acknowledgement() {
    block_on(async {
        let machine = Machine::new(1);
        assert_eq!(machine.config.sync, SyncPolicy::Always);
        let mut log = machine.open().await;
        for n in 0..5 {
            log.append(None, &value(n), &[], 0).await.unwrap();
            assert_eq!(log.unsynced_since(), None);
        }
        machine.fs.power_loss(Keep::None);
        assert_eq!(values(&machine.open().await.reader()).await, numbered(5));
    });
}

#[test]
fn a_failed_sync_puts_what_it_was_to_make_durable_into_a_fresh_file() {
    for (n, failure) in [
        SyncFailure::Lost,
        SyncFailure::Reverted,
        SyncFailure::Kept,
        SyncFailure::Torn,
        SyncFailure::StillDirty,
    ]
    .into_iter()
    .enumerate()
    {
        for by_append in [true, false] {
            block_on(async {
                let machine = machine(n as u64);
                let mut log = machine.open().await;
                for n in 0..4 {
                    log.append(None, &value(n), &[], 0).await.unwrap();
                }
                log.sync().await.unwrap();
                for n in 4..8 {
                    log.append(None, &value(n), &[], 0).await.unwrap();
                }
                let fault = Fault::new(Effect::FailSync(failure)).on(&[OpKind::SyncData]);
                machine.fs.inject(fault.path_ends_with(".wal"));
                let end = if by_append {
                    // The one whose write was to be synced fails; what came before does not.
                    machine.clock.advance(INTERVAL);
                    let error = log.append(None, &value(8), &[], 0).await.unwrap_err();
                    assert!(matches!(error, Error::Sync { .. }));
                    8
                } else {
                    log.sync().await.unwrap();
                    8
                };
                assert_eq!((log.next_offset(), log.unsynced_since()), (end, None));
                assert_eq!(log.append(None, &value(8), &[], 0).await.unwrap(), 8);
                assert_eq!(values(&log.reader()).await, numbered(9));
                log.sync().await.unwrap();
                drop(log);
                machine.fs.power_loss(Keep::None);
                let log = machine.open().await;
                assert!(log.recovery_report().damage.is_empty());
                assert_eq!(values(&log.reader()).await, numbered(9));
            });
        }
    }
}

/// How an append is refused.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// The disk says so when all of it was written but its padding.
    By(Errno),
    /// Nobody waits for it any more, after so many polls.
    Dropped(usize),
}

/// A power loss leaves nothing of an append that was refused in the place of one that was not.
fn what_was_refused_stays_away(seed: u64, refusal: Refusal, stop: Stop) {
    block_on(async {
        let mut machine = machine(seed);
        // The cut of a file that was given up comes later than that.
        machine.config.maintenance = MaintenanceMode::Handed;
        let mut log = machine.open().await;
        let record = |n: u8| vec![n; 400];
        log.append(None, &record(0), &[], 0).await.unwrap();
        log.sync().await.unwrap();
        let refused = record(9);
        let refused = log.append(None, &refused, &[], 0);
        match refusal {
            Refusal::By(errno) => {
                let short = Effect::ShortWrite {
                    bytes: 2_000,
                    errno,
                };
                machine.fs.inject(Fault::new(short));
                refused.await.unwrap_err();
            }
            Refusal::Dropped(polls) => {
                if sq_sim::poll_n_then_drop(refused, polls).await.is_some() {
                    return;
                }
            }
        }
        assert_eq!(log.next_offset(), 1);
        for n in 1..5 {
            log.append(None, &record(n), &[], 0).await.unwrap();
        }
        drop(log);
        stop.strike(&machine.fs);
        let log = machine.open().await;
        let kept = values(&log.reader()).await;
        let expected: Vec<_> = (0..5).map(record).take(kept.len()).collect();
        assert!(kept == expected && !kept.is_empty(), "{seed}, {stop:?}");
    });
}

/// Whether that is so of a refusal by `seed`.
pub(crate) fn refusals_stay_away(seed: u64) -> bool {
    let at = usize::try_from(seed).unwrap();
    let refusals = [
        Refusal::By(Errno::NoSpace),
        Refusal::By(Errno::Io),
        Refusal::Dropped(at / 3 % 10),
    ];
    let refusal = refusals[at % refusals.len()];
    let tried = std::panic::catch_unwind(|| {
        for stop in Stop::ALL {
            what_was_refused_stays_away(seed, refusal, stop);
        }
    });
    tried.is_ok()
}

/// A full disk refused a record of which all bytes had come to be written, and the file was cut there. The next
/// record, of the same length, was acknowledged before that cut or its own bytes were synced, and so was one
/// behind it. Of these two, a power loss left the second, and in front of it the record that had been refused.
/// Where the file was given up instead, the refused record came back the same way, from the file before.
#[test]
fn what_was_refused_never_comes_back_in_the_place_of_what_was_acknowledged() {
    let dropped = (0..10).map(Refusal::Dropped);
    for refusal in [Errno::NoSpace, Errno::Io]
        .map(Refusal::By)
        .into_iter()
        .chain(dropped)
    {
        for (seed, stop) in (0..40).flat_map(|seed| Stop::ALL.map(|stop| (seed, stop))) {
            what_was_refused_stays_away(seed, refusal, stop);
        }
    }
}

/// After a failed sync a segment's index went on telling the time of records that were written to the next one. With
/// those truncated, the greatest timestamp of the log was one that no record has, and no record was found.
#[test]
fn a_segment_tells_no_time_of_what_a_failed_sync_took_from_it() {
    block_on(async {
        let machine = machine(10);
        let mut log = machine.open().await;
        log.append(None, &value(0), &[], 1).await.unwrap();
        log.sync().await.unwrap();
        log.append(None, &value(1), &[], 9).await.unwrap();
        let fault = Fault::new(Effect::FailSync(SyncFailure::Lost)).on(&[OpKind::SyncData]);
        machine.fs.inject(fault.path_ends_with(".wal"));
        log.sync().await.unwrap();
        assert_eq!(log.reader().segments().len(), 2);
        log.truncate_from(1).await.unwrap();
        for _ in 0..2 {
            let found = log.reader().find_max_timestamp().await.unwrap();
            assert_eq!(found.unwrap().base_offset, 0);
            log = machine.open().await;
        }
    });
}

#[test]
fn what_a_purge_leaves_is_durable_like_the_purge() {
    // Or else a power loss has the log begin behind its end, or offsets below its start are written again.
    for to in [4, 6] {
        block_on(async {
            let machine = machine(to);
            let mut log = machine.open().await;
            for n in 0..6 {
                log.append(None, &value(n), &[], 0).await.unwrap();
            }
            log.purge_to(to).await.unwrap();
            assert_eq!((log.durable_offset(), log.unsynced_since()), (6, None));
            drop(log);
            machine.fs.power_loss(Keep::None);
            let log = machine.open().await;
            let reader = log.reader();
            assert_eq!((reader.start_offset(), reader.end_offset()), (to, 6));
            for frame in reader.read(to, 1 << 20).await.unwrap() {
                let record = Record::decode(frame.payload).unwrap();
                assert_eq!(record.value.unwrap(), value(frame.base_offset));
            }
        });
    }
}

#[test]
fn what_no_disk_takes_waits_in_memory_until_one_does() {
    block_on(async {
        let machine = machine(7);
        let mut log = machine.open().await;
        for n in 0..6 {
            log.append(None, &value(n), &[], 0).await.unwrap();
        }
        let fault = Fault::new(Effect::FailSync(SyncFailure::Lost)).on(&[OpKind::SyncData]);
        machine.fs.inject(fault.path_ends_with(".wal").always());
        let mut refused = 0;
        while !matches!(log.sync().await, Err(Error::ReadOnly { .. })) {
            refused += 1;
            assert!(refused < 5);
        }
        assert!(log.append(None, b"refused", &[], 0).await.is_err());
        machine.fs.clear_faults();
        log.allow_writes();
        assert_eq!(log.append(None, &value(6), &[], 0).await.unwrap(), 6);
        log.close().await.unwrap();
        machine.fs.power_loss(Keep::None);
        let log = machine.open().await;
        assert!(log.recovery_report().damage.is_empty());
        assert_eq!(values(&log.reader()).await, numbered(7));
    });
}

#[test]
fn a_full_disk_and_a_dropped_call_lose_nothing_that_was_acknowledged() {
    for polls in 0..40 {
        block_on(async {
            let machine = machine(8);
            let mut log = machine.open().await;
            for n in 0..3 {
                log.append(None, &value(n), &[], 0).await.unwrap();
            }
            machine.clock.advance(INTERVAL);
            let value_3 = value(3);
            let dropped = log.append(None, &value_3, &[], 0);
            let done = sq_sim::poll_n_then_drop(dropped, polls).await.is_some();
            let end = log.next_offset();
            assert_eq!(end, if done { 4 } else { 3 });
            machine.fs.set_free_space(Some(0));
            let refused = log.append(None, &value(end), &[], 0).await;
            machine.fs.set_free_space(None);
            if refused.is_err() {
                assert_eq!(log.append(None, &value(end), &[], 0).await.unwrap(), end);
            }
            log.sync().await.unwrap();
            assert_eq!(values(&log.reader()).await, numbered(end + 1));
            drop(log);
            machine.fs.power_loss(Keep::None);
            assert_eq!(
                values(&machine.open().await.reader()).await,
                numbered(end + 1)
            );
        });
    }
}

#[test]
fn a_log_that_nobody_appends_to_is_synced_in_time() {
    block_on(async {
        let machine = machine(9);
        let config = LogConfig {
            executor: Executor::Runtime(tokio::runtime::Handle::current()),
            ..LogConfig::default()
        };
        let log = Log::new(machine.open().await, config);
        let keeper = log.clone();
        let keeper = tokio::spawn(async move { keeper.keep_synced().await });
        for round in 0..3_u64 {
            assert_eq!(
                log.append(None, &value(round), &[], 0).await.unwrap(),
                round
            );
            // The keeper sees it, sleeps, and syncs.
            for step in 0..200 {
                tokio::task::yield_now().await;
                if step == 100 {
                    machine.clock.advance(INTERVAL);
                }
            }
            let durable = machine.fs.durable_files();
            let durable = durable
                .iter()
                .filter(|p| p.extension().is_some_and(|e| e == "wal"));
            let bytes: Vec<u8> = durable
                .flat_map(|p| machine.fs.read_durable(p).unwrap())
                .collect();
            let value = value(round);
            assert!(
                bytes.windows(value.len()).any(|w| w == value),
                "round {round}"
            );
        }
        log.close().await.unwrap();
        keeper.await.unwrap();
    });
}
