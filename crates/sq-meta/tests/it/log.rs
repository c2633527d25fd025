//! The log as a broker holds it: one voter on a simulated disk.

use std::sync::Arc;
use std::time::Duration;

use sq_meta::{
    Applied, BrokerId, Command, MetaLog, MetaLogConfig, NewPartition, OpenError, PartitionId,
    Refusal, SegmentId, StartError, StoreConfig, SubmitError,
};
use sq_sim::{
    Clock, Effect, Errno, Fault, FileSystem, InMemoryFileSystem, Keep, OpKind, SystemClock,
    VirtualClock,
};
use sq_storage::SegmentIds;

use crate::support::{block_on, broker, new_topic, segment, topic_id};

type Log = MetaLog<InMemoryFileSystem>;

fn config(seed: u64) -> MetaLogConfig {
    MetaLogConfig {
        store: StoreConfig {
            segment_bytes: 4096,
            segment_ids: SegmentIds::seeded(seed),
            clock: Arc::new(VirtualClock::new()),
            ..StoreConfig::new("/data/@raft")
        },
        snapshot_every: 20,
        ..MetaLogConfig::new(BrokerId(0), "/data/@raft")
    }
}

async fn try_start(fs: &InMemoryFileSystem, seed: u64) -> Result<Log, StartError> {
    MetaLog::start(Arc::new(fs.for_this_process()), config(seed)).await
}

async fn start(fs: &InMemoryFileSystem, seed: u64) -> Log {
    try_start(fs, seed).await.unwrap()
}

/// A log with broker 0 and a topic of one partition.
async fn begin(fs: &InMemoryFileSystem) -> Log {
    let log = start(fs, 1).await;
    log.submit(Command::RegisterBroker(broker(0)))
        .await
        .unwrap();
    let partitions = vec![NewPartition::empty(BrokerId(0), segment(1, &[0]))];
    let created = log
        .submit(Command::CreateTopic(new_topic(1, "orders", partitions)))
        .await;
    assert_eq!(created.unwrap(), Applied::TopicCreated { repeated: false });
    log
}

fn orders() -> PartitionId {
    PartitionId {
        topic: topic_id(1),
        partition: 0,
    }
}

async fn roll(log: &Log, from: u64, end: u64) {
    let (partition, epoch) = (orders(), 0);
    log.submit(Command::PrepareSegment {
        partition,
        epoch,
        predecessor: SegmentId(from),
        attempt: 0,
        successor: segment(from + 1, &[0]),
    })
    .await
    .unwrap();
    log.submit(Command::SealSegment {
        partition,
        epoch,
        segment: SegmentId(from),
        end,
        successor: SegmentId(from + 1),
    })
    .await
    .unwrap();
}

#[test]
fn what_was_answered_is_there_after_a_restart_of_any_kind() {
    block_on(async {
        for clean in [true, false] {
            let fs = InMemoryFileSystem::new(1);
            let log = begin(&fs).await;
            for n in 1..40 {
                roll(&log, n, n * 10).await;
            }
            let state = log.state();
            if clean {
                log.shut_down().await;
            } else {
                fs.power_loss(Keep::None);
            }
            drop(log);
            let log = start(&fs, 2).await;
            assert_eq!(*log.state(), *state, "clean: {clean}");
            roll(&log, 40, 400).await;
            assert_eq!(log.state().partition(orders()).unwrap().sealed.len(), 40);
        }
    });
}

#[test]
fn a_crash_after_any_operation_of_a_start_or_a_submission_loses_nothing_answered() {
    let ids = |log: &Log| log.state().next_producer_id();
    for at in (0..400).step_by(3) {
        let fs = InMemoryFileSystem::new(at);
        fs.crash_after(at);
        let mut answered = 0;
        block_on(async {
            let Ok(log) = try_start(&fs, at).await else {
                return;
            };
            for _ in 0..30 {
                let command = Command::AllocateProducerIds { count: 10 };
                match log.submit(command).await {
                    Ok(Applied::ProducerIds(ids)) => answered = ids.end,
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => return,
                }
            }
        });
        fs.power_loss(Keep::Mixed);
        block_on(async {
            let log = start(&fs, at + 1).await;
            let found = ids(&log);
            assert!(
                found == answered || found == answered + 10,
                "{at}: {found}, {answered}"
            );
        });
    }
}

#[test]
fn a_refusal_is_the_guards_own() {
    block_on(async {
        let log = begin(&InMemoryFileSystem::new(1)).await;
        let abandon = Command::AbandonSegment {
            partition: orders(),
            epoch: 0,
            segment: SegmentId(9),
        };
        let Err(SubmitError::Refused(refusal)) = log.submit(abandon).await else {
            panic!("not refused")
        };
        assert_eq!(refusal, Refusal::NotPrepared(SegmentId(9)));
    });
}

#[test]
fn a_change_is_seen_before_its_submission_is_answered() {
    block_on(async {
        let log = begin(&InMemoryFileSystem::new(1)).await;
        let mut seen = log.watch();
        seen.mark_unchanged();
        log.submit(Command::AllocateProducerIds { count: 5 })
            .await
            .unwrap();
        assert!(seen.has_changed().unwrap());
        assert_eq!(seen.borrow_and_update().next_producer_id(), 5);
        // What changes nothing wakes nobody.
        log.submit(Command::SkipProducerIds { below: 2 })
            .await
            .unwrap();
        assert!(!seen.has_changed().unwrap());
        // A state that someone holds stays as it is.
        let held = log.state();
        log.submit(Command::AllocateProducerIds { count: 5 })
            .await
            .unwrap();
        assert_eq!(held.next_producer_id(), 5);
        assert_eq!(log.state().next_producer_id(), 10);
    });
}

#[test]
fn many_submissions_at_once_are_all_answered() {
    block_on(async {
        let log = begin(&InMemoryFileSystem::new(1)).await;
        let submit = |log: Log| async move {
            match log.submit(Command::AllocateProducerIds { count: 1 }).await {
                Ok(Applied::ProducerIds(ids)) => ids.start,
                other => panic!("{other:?}"),
            }
        };
        let tasks: Vec<_> = (0..200)
            .map(|_| tokio::spawn(submit(log.clone())))
            .collect();
        let mut given = Vec::new();
        for task in tasks {
            given.push(task.await.unwrap());
        }
        given.sort_unstable();
        assert_eq!(given, (0..200).collect::<Vec<_>>());
    });
}

#[test]
fn a_log_whose_disk_failed_runs_again_once_it_is_well() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let log = begin(&fs).await;
        let allocate = || log.submit(Command::AllocateProducerIds { count: 10 });
        allocate().await.unwrap();
        fs.inject(
            Fault::new(Effect::Fail(Errno::NoSpace))
                .on(&[OpKind::WriteAt])
                .always(),
        );
        assert!(matches!(allocate().await, Err(SubmitError::Unknown(_))));
        assert!(matches!(allocate().await, Err(SubmitError::Unavailable(_))));
        assert_eq!(
            log.state().next_producer_id(),
            10,
            "what was applied can be read"
        );
        fs.clear_faults();
        let Ok(Applied::ProducerIds(ids)) = allocate().await else {
            panic!("not well")
        };
        assert!(
            ids.start == 10 || ids.start == 20,
            "the one in between may have taken place"
        );
        fs.power_loss(Keep::None);
        let log = start(&fs, 2).await;
        assert_eq!(log.state().next_producer_id(), ids.end);
    });
}

#[test]
fn an_only_voters_log_is_read_without_room_on_the_disk_and_runs_once_there_is_some() {
    // A broker whose disk was full could not start, for want of room for the vote it says again, and so
    // nobody could read or delete.
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let log = begin(&fs).await;
        roll(&log, 1, 10).await;
        let state = log.state();
        drop(log);
        fs.power_loss(Keep::None);
        fs.set_free_space(Some(0));
        let log = MetaLog::open(Arc::new(fs.clone()), config(2))
            .await
            .unwrap();
        assert_eq!(*log.state(), *state, "all that was committed");
        let allocate = || log.submit(Command::AllocateProducerIds { count: 10 });
        let refused = allocate().await;
        assert!(
            matches!(refused, Err(SubmitError::Unavailable(_))),
            "{refused:?}"
        );
        assert_eq!(*log.state(), *state);
        fs.set_free_space(None);
        assert_eq!(allocate().await.unwrap(), Applied::ProducerIds(0..10));
        roll(&log, 2, 20).await;
        log.shut_down().await;
        let log = start(&fs, 3).await;
        assert_eq!(log.state().next_producer_id(), 10);
        assert_eq!(log.state().partition(orders()).unwrap().sealed.len(), 2);
    });
}

#[test]
fn a_log_that_was_only_read_holds_its_files_no_longer_once_shut_down() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let log = begin(&fs).await;
        log.shut_down().await;
        let read = MetaLog::open(Arc::new(fs.clone()), config(2))
            .await
            .unwrap();
        // Before the start behind it had its turn.
        read.shut_down().await;
        let log = start(&fs, 3).await;
        roll(&log, 1, 10).await;
        tokio::task::yield_now().await;
        let refused = read.submit(Command::AllocateProducerIds { count: 1 }).await;
        assert!(matches!(refused, Err(SubmitError::ShutDown)));
    });
}

#[test]
fn a_log_that_was_shut_down_takes_nothing() {
    block_on(async {
        let log = begin(&InMemoryFileSystem::new(1)).await;
        log.shut_down().await;
        let refused = log.submit(Command::AllocateProducerIds { count: 1 }).await;
        assert!(matches!(refused, Err(SubmitError::ShutDown)));
        log.shut_down().await;
    });
}

#[test]
fn a_commit_delay_is_what_a_submission_takes_longer() {
    block_on(async {
        let fs = Arc::new(InMemoryFileSystem::new(1));
        let mut config = config(1);
        config.store.clock = Arc::new(SystemClock);
        config.commit_delay = Duration::from_millis(500);
        let log = MetaLog::start(fs, config).await.unwrap();
        let began = SystemClock.now();
        // Those that are under way together wait together.
        let (a, b) = tokio::join!(
            log.submit(Command::AllocateProducerIds { count: 1 }),
            log.submit(Command::AllocateProducerIds { count: 1 }),
        );
        a.and(b).unwrap();
        assert_eq!(began.elapsed().as_millis() / 10, 50);
    });
}

#[test]
fn a_damaged_log_does_not_start_and_says_why() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let log = begin(&fs).await;
        for n in 1..5 {
            roll(&log, n, n).await;
        }
        log.shut_down().await;
        let journal = fs
            .files()
            .into_iter()
            .find(|p| p.extension().is_some_and(|e| e == "wal"));
        fs.flip_bit(journal.unwrap(), 200, 1).unwrap();
        let refused = try_start(&fs, 2).await.unwrap_err();
        assert!(
            matches!(refused, StartError::Open(OpenError::Journal(_))),
            "{refused}"
        );
        assert!(
            refused.to_string().contains("/data/@raft/log/0/"),
            "{refused}"
        );
    });
}

#[test]
fn a_log_of_which_only_the_vote_is_left_does_not_begin_anew() {
    // It was taken for a node that no cluster has begun yet, and the start waited for a leader for ever.
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        begin(&fs).await.shut_down().await;
        for file in fs.files() {
            if !file.ends_with("vote") {
                fs.remove_file(&file).await.unwrap();
            }
        }
        let refused = try_start(&fs, 2).await.unwrap_err();
        assert!(
            refused.to_string().contains("the log was lost"),
            "{refused}"
        );
    });
}

#[test]
fn the_same_start_twice_does_the_same_operations() {
    let trace = || {
        let fs = InMemoryFileSystem::new(1);
        block_on(async {
            let log = begin(&fs).await;
            for n in 1..15 {
                roll(&log, n, n).await;
            }
            log.shut_down().await;
        });
        fs.trace_text()
    };
    assert_eq!(trace(), trace());
}

#[test]
fn a_commit_is_one_write_and_one_sync() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let log = begin(&fs).await;
        for count in 1..10 {
            fs.take_trace();
            log.submit(Command::AllocateProducerIds { count })
                .await
                .unwrap();
            let kinds: Vec<_> = fs.trace().iter().map(|op| op.kind).collect();
            assert_eq!(kinds, [OpKind::WriteAt, OpKind::SyncData]);
        }
    });
}
