//! Many callers on one log: everyone is answered, rightly, whatever happens to the others.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Scope, ScopedJoinHandle, Thread};

use bytes::Bytes;
use sq_sim::{
    Clock, Effect, Errno, Fault, FileSystem, OpKind, OsFileSystem, SyncFailure, SystemClock,
    poll_n_then_drop,
};
use sq_storage::log::{
    Append, AppendError, AppendThreads, Direct, DirectEntry, Executor, Head, Intake, Log,
    LogConfig, Outcome, Pending, Stage,
};
use sq_storage::{Action, Batch, Error, LogReader, Record, TopicName, WalConfig, WalWriter};

use crate::disk::Disk;
use crate::support::{Machine, block_on, value, values};

async fn open(machine: &Machine, config: LogConfig) -> Log<Disk> {
    Log::new(machine.open().await, config)
}

fn record(n: u64) -> Append {
    Append::record(None, Some(&value(n)), &[], n).unwrap()
}

fn on_this_runtime() -> LogConfig {
    LogConfig {
        executor: Executor::Runtime(tokio::runtime::Handle::current()),
        ..LogConfig::default()
    }
}

/// A log without delays, for threads.
async fn without_clock<F: FileSystem>(fs: F, dir: &std::path::Path) -> WalWriter<F> {
    let config = WalConfig {
        max_segment_bytes: 8 << 20,
        ..WalConfig::new(dir)
    };
    let topic = TopicName::new("orders").unwrap();
    WalWriter::new(Arc::new(fs), config, topic, 7)
        .await
        .unwrap()
}

/// Every record of a log: which caller, and which of its appends.
async fn stored<F: FileSystem>(reader: &LogReader<F>) -> Vec<(u32, u32)> {
    let mut stored = Vec::new();
    while (stored.len() as u64) < reader.end_offset() {
        for frame in reader.read(stored.len() as u64, 4 << 20).await.unwrap() {
            assert_eq!(frame.base_offset, stored.len() as u64);
            let record = Record::decode(frame.payload.to_bytes()).unwrap();
            let value = record.value.unwrap();
            let number = |at: Range<usize>| u32::from_be_bytes(value[at].try_into().unwrap());
            assert!(value[8..].iter().all(|b| *b == value[7]));
            stored.push((number(0..4), number(4..8)));
        }
    }
    stored
}

fn stamped(caller: u32, n: u32) -> Vec<u8> {
    let mut value = [caller.to_be_bytes(), n.to_be_bytes()].concat();
    let last = value[7];
    value.resize(8 + (n as usize * 31) % 200, last);
    value
}

/// Each caller appends `each` records, one after the other, and returns their offsets.
fn callers<'scope, F: FileSystem>(
    scope: &'scope Scope<'scope, '_>,
    log: &Log<F>,
    callers: u32,
    each: u32,
) -> Vec<ScopedJoinHandle<'scope, Vec<u64>>> {
    let caller = |caller| {
        let log = log.clone();
        let append = move |n| {
            log.append_blocking(None, &stamped(caller, n), &[], 0)
                .unwrap()
        };
        scope.spawn(move || (0..each).map(append).collect())
    };
    (0..callers).map(caller).collect()
}

/// What every caller was told stands where it was told.
async fn check<F: FileSystem>(reader: &LogReader<F>, told: &[Vec<u64>]) {
    let stored = stored(reader).await;
    assert_eq!(stored.len(), told.iter().map(Vec::len).sum::<usize>());
    for (caller, offsets) in told.iter().enumerate() {
        assert!(offsets.is_sorted());
        for (n, offset) in offsets.iter().enumerate() {
            let there = stored[usize::try_from(*offset).unwrap()];
            assert_eq!(there, (caller as u32, n as u32));
        }
    }
}

#[test]
fn hundreds_of_thousands_of_appends_from_many_threads_each_get_their_own_offset() {
    let dir = std::path::Path::new("/data");
    for (config, threads, each) in [
        (LogConfig::default(), 32, 5_000),
        (
            LogConfig {
                queue_entries: 3,
                turn_bytes: 500,
                executor: Executor::Threads(AppendThreads::start(3).unwrap()),
                ..LogConfig::default()
            },
            16,
            5_000,
        ),
    ] {
        let fs = sq_sim::InMemoryFileSystem::new(1);
        let log = Log::new(block_on(without_clock(fs, dir)), config);
        let told: Vec<_> = std::thread::scope(|scope| {
            let callers = callers(scope, &log, threads, each);
            callers.into_iter().map(|c| c.join().unwrap()).collect()
        });
        block_on(check(&log.reader(), &told));
        block_on(log.close()).unwrap();
    }
}

#[test]
fn threads_on_a_real_disk_find_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let writer = block_on(without_clock(OsFileSystem::inline(), dir.path()));
    let log = Log::new(writer, LogConfig::default());
    let told: Vec<_> = std::thread::scope(|scope| {
        let callers = callers(scope, &log, 16, 50);
        callers.into_iter().map(|c| c.join().unwrap()).collect()
    });
    // Not closed: as if the process had died.
    drop(log);
    let writer = block_on(without_clock(OsFileSystem::inline(), dir.path()));
    block_on(check(&writer.reader(), &told));
}

/// What waits while a write is under way goes out with the next one.
#[test]
fn appends_share_syncs() {
    for inline in [true, false] {
        block_on(async {
            let machine = Machine::new(1);
            let executor = if inline {
                Executor::Inline
            } else {
                on_this_runtime().executor
            };
            let config = LogConfig {
                executor,
                ..LogConfig::default()
            };
            let log = open(&machine, config).await;
            log.append(None, b"the segment is there", &[], 0)
                .await
                .unwrap();
            machine.fs.take_trace();
            let mut pending = Vec::new();
            for n in 0..500 {
                pending.push(log.submit(record(n)).await.unwrap());
            }
            for (n, pending) in (0..500).zip(pending) {
                assert_eq!(pending.await.unwrap(), n + 1);
            }
            let is_sync = |op: &sq_sim::Op| op.kind == OpKind::SyncData;
            let syncs = machine.fs.trace().into_iter().filter(is_sync).count();
            assert_eq!(syncs, 1);
        });
    }
}

/// The answers of a window, in order, with the failures as none.
async fn answers(pending: Vec<Pending<Disk>>) -> Vec<Option<u64>> {
    let mut answers = Vec::new();
    for pending in pending {
        answers.push(pending.await.ok());
    }
    answers
}

#[test]
fn a_failure_is_told_to_those_whose_bytes_were_in_it_and_to_nobody_else() {
    // Elsewhere one failed sync was told to nobody, to everybody for ever, or hung them all.
    for inline in [true, false] {
        for effect in [
            Effect::FailSync(SyncFailure::Lost),
            Effect::FailSync(SyncFailure::Kept),
            Effect::Fail(Errno::Io),
        ] {
            block_on(async {
                let machine = Machine::new(3);
                let config = LogConfig {
                    queue_entries: 8,
                    turn_bytes: 1500,
                    executor: if inline {
                        Executor::Inline
                    } else {
                        on_this_runtime().executor
                    },
                    ..LogConfig::default()
                };
                let log = open(&machine, config).await;
                log.append(None, b"first", &[], 0).await.unwrap();
                let kind = match effect {
                    Effect::FailSync(_) => OpKind::SyncData,
                    _ => OpKind::WriteAt,
                };
                machine.fs.inject(
                    Fault::new(effect)
                        .on(&[kind])
                        .path_ends_with(".wal")
                        .skip(1),
                );
                let mut told = Vec::new();
                let mut window: VecDeque<(u64, Pending<Disk>)> = VecDeque::new();
                let mut failed = 0;
                for n in 0..40 {
                    while window.len() >= 7 {
                        let (n, pending) = window.pop_front().unwrap();
                        match pending.await {
                            Ok(offset) => told.push((offset, n)),
                            Err(error) => {
                                assert_eq!(error.action(), Action::Retry, "{error}");
                                failed += 1;
                            }
                        }
                    }
                    window.push_back((n, log.submit(record(n)).await.unwrap()));
                }
                for (n, pending) in window {
                    told.push((pending.await.unwrap(), n));
                }
                assert!((1..7).contains(&failed), "{failed}");
                let offsets: Vec<_> = told.iter().map(|(offset, _)| *offset).collect();
                assert_eq!(offsets, (1..=told.len() as u64).collect::<Vec<_>>());
                let stored = values(&log.reader()).await;
                assert!(told.iter().all(|(o, n)| stored[*o as usize] == value(*n)));
                assert_eq!(stored.len(), told.len() + 1);
            });
        }
    }
}

#[test]
fn a_call_dropped_at_any_await_holds_nobody_up_and_loses_nothing() {
    for fails in [false, true] {
        for polls in 0.. {
            let done = block_on(async {
                let machine = Machine::new(4);
                let log = open(&machine, LogConfig::default()).await;
                let before = log.submit(record(0)).await.unwrap();
                let kind = &[OpKind::SyncData];
                if fails {
                    let fault = Fault::new(Effect::FailSync(SyncFailure::Lost));
                    machine.fs.inject(fault.on(kind).path_ends_with(".wal"));
                }
                // It takes the turn for both, and is dropped in the middle of it.
                let value_1 = value(1);
                let dropped = poll_n_then_drop(log.append(None, &value_1, &[], 1), polls).await;
                let after = log.append(None, &value(2), &[], 2).await;
                let before = before.await;
                let stored = values(&log.reader()).await;
                for (n, told) in [(0, before.ok()), (2, after.ok())] {
                    match told {
                        Some(offset) => assert_eq!(stored[offset as usize], value(n)),
                        None => assert!(fails && !stored.contains(&value(n)), "{n}"),
                    }
                }
                // What was dropped before it was queued is not there; behind that it is.
                assert!(fails || dropped.is_none() || stored.contains(&value(1)));
                dropped.is_some()
            });
            if done {
                assert!(polls > 5);
                break;
            }
        }
    }
}

#[test]
fn answers_that_nobody_fetches_hold_nobody_up() {
    block_on(async {
        let machine = Machine::new(5);
        let config = LogConfig {
            queue_entries: 4,
            ..LogConfig::default()
        };
        let log = open(&machine, config).await;
        // Kept, and never polled, while the queue fills over and over.
        let mut kept = Vec::new();
        for n in 0..100 {
            let pending = log.submit(record(n)).await.unwrap();
            if n % 2 == 0 {
                kept.push(pending);
            }
        }
        assert_eq!(log.append(None, b"last", &[], 0).await.unwrap(), 100);
        let expected: Vec<_> = (0..50).map(|n| Some(2 * n)).collect();
        assert_eq!(answers(kept).await, expected);
    });
}

/// The thread that polls is woken.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn the_queue_is_bounded_and_those_who_wait_for_room_are_served() {
    block_on(async {
        let machine = Machine::new(6);
        let config = LogConfig {
            queue_bytes: 2000,
            ..on_this_runtime()
        };
        let log = open(&machine, config).await;
        let large = || {
            Append::from(Batch {
                payload: vec![Bytes::from(vec![7; 5000])],
                record_count: 1,
                max_timestamp_ms: 0,
                leader_epoch: 0,
            })
        };
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        // Larger than the queue: it goes alone.
        let mut first = pin!(log.submit(large()));
        assert!(first.as_mut().poll(&mut context).is_ready());
        let mut second = pin!(log.submit(large()));
        assert!(second.as_mut().poll(&mut context).is_pending());
        let pending = second.await.unwrap();
        assert_eq!(pending.await.unwrap(), 1);
    });
}

#[test]
fn what_can_never_be_appended_fails_alone() {
    block_on(async {
        let machine = Machine::new(7);
        let log = open(&machine, LogConfig::default()).await;
        let good = log.submit(record(0)).await.unwrap();
        let batch = |len: usize, record_count| Batch {
            payload: vec![Bytes::from(vec![0; len])],
            record_count,
            max_timestamp_ms: 0,
            leader_epoch: 0,
        };
        for refused in [batch(1 << 20, 1), batch(10, 0)] {
            let error = log.submit(refused).await.unwrap_err();
            assert_eq!(error.action(), Action::GiveUp);
        }
        assert_eq!(good.await.unwrap(), 0);
    });
}

#[test]
fn batches_of_one_call_stand_behind_each_other_also_across_segments() {
    block_on(async {
        let machine = Machine::new(8).with_segment_bytes(4000);
        let log = open(&machine, LogConfig::default()).await;
        let batch = |record_count| Batch {
            payload: vec![
                Bytes::from(vec![1; 700]),
                Bytes::new(),
                Bytes::from(vec![2; 5000]),
            ],
            record_count,
            max_timestamp_ms: 0,
            leader_epoch: 0,
        };
        let other = log.submit(record(0)).await.unwrap();
        let first = log.append_batches((1..10).map(batch).collect()).await;
        assert_eq!(first.unwrap(), 1);
        assert_eq!(other.await.unwrap(), 0);
        assert_eq!(log.reader().end_offset(), 46);
        let frames = log.reader().read(1, 100).await.unwrap();
        assert_eq!(
            frames[0].payload.to_bytes()[..],
            [vec![1; 700], vec![2; 5000]].concat()
        );

        // The second segment can't be written: the first batch of three is stored.
        let fault = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::WriteAt]);
        let fault = fault.path_ends_with(".wal").bytes(5000..5001);
        machine.fs.inject(fault.skip(1));
        let error = log.append_batches((1..4).map(batch).collect()).await;
        let Err(AppendError::Failed { stored, error }) = error else {
            panic!("{error:?}");
        };
        assert!(matches!(&*error, Error::Write { .. }), "{error}");
        assert_eq!(stored, 46..47);
        assert_eq!(log.append(None, b"x", &[], 0).await.unwrap(), 47);
    });
}

#[test]
fn a_close_comes_behind_what_is_queued_and_ends_what_comes_later() {
    block_on(async {
        let machine = Machine::new(9);
        let log = open(&machine, LogConfig::default()).await;
        let before = log.submit(record(0)).await.unwrap();
        log.close().await.unwrap();
        assert_eq!(before.await.unwrap(), 0);
        assert!(matches!(
            log.append(None, b"", &[], 0).await,
            Err(AppendError::Closed)
        ));
        assert!(matches!(log.close().await, Err(AppendError::Closed)));
        drop(log);
        assert_eq!(machine.open().await.next_offset(), 1);
    });
}

#[test]
fn work_on_the_writer_keeps_its_place_in_the_queue() {
    block_on(async {
        let machine = Machine::new(10);
        for config in [LogConfig::default(), on_this_runtime()] {
            let log = open(&machine, config).await;
            let base = log.reader().end_offset();
            let before = log.submit(record(0)).await.unwrap();
            let end = log.with_writer(|writer, _| {
                Box::pin(async move {
                    let writer = writer.as_mut().unwrap();
                    writer.mark().await.unwrap();
                    writer.next_offset()
                })
            });
            let mut end = pin!(end);
            let waker = Waker::noop();
            assert!(
                end.as_mut()
                    .poll(&mut Context::from_waker(waker))
                    .is_pending()
            );
            let after = log.submit(record(1)).await.unwrap();
            assert_eq!(after.await.unwrap(), base + 1);
            assert_eq!(before.await.unwrap(), base);
            assert_eq!(end.await.unwrap(), base + 1);
            log.close().await.unwrap();
        }
    });
}

/// An intake that numbers what it stores, knows copies, and panics when told.
#[derive(Default)]
struct Numbering {
    known: Vec<(u64, u64)>,
    group: Vec<(u64, u64)>,
}

enum Answer {
    Stored(u64),
    Known(u64),
    Failed,
}

const PANIC: u64 = u64::MAX;

impl Intake<Disk> for Numbering {
    type Entry = u64;
    type Staged = (u64, u64);
    type Answer = Answer;

    fn bytes(_: &u64) -> usize {
        300
    }

    fn begin(&mut self, _: &mut WalWriter<Disk>) {
        self.group.clear();
    }

    fn stage(
        &mut self,
        entry: u64,
        offset: u64,
        frames: &mut Vec<Append>,
    ) -> Stage<Self::Staged, Answer> {
        assert_ne!(entry, PANIC, "as told");
        if let Some((_, offset)) = self.known.iter().find(|(n, _)| *n == entry) {
            return Stage::Answer(Answer::Known(*offset));
        }
        if let Some(copy) = self.group.iter().find(|(n, _)| *n == entry) {
            return Stage::Settle(*copy);
        }
        let text = format!("{entry} at {offset}");
        frames.push(Append::record(None, Some(text.as_bytes()), &[], 0).unwrap());
        self.group.push((entry, offset));
        Stage::Settle((entry, offset))
    }

    fn settle(&mut self, staged: Self::Staged, outcome: Outcome<'_>) -> Answer {
        if staged.1 >= outcome.end_offset {
            assert!(outcome.failure.is_some());
            return Answer::Failed;
        }
        self.known.push(staged);
        Answer::Stored(staged.1)
    }

    fn closed() -> Answer {
        Answer::Failed
    }
}

#[test]
fn an_intake_decides_with_the_offset_at_hand() {
    block_on(async {
        let machine = Machine::new(11);
        let writer = machine.open().await;
        let log = Log::with_intake(writer, Numbering::default(), LogConfig::default());
        let mut pending = Vec::new();
        for entry in [5, 6, 5, 7] {
            pending.push(log.enter(entry).await);
        }
        let mut answers = Vec::new();
        for pending in pending {
            answers.push(match pending.await {
                Answer::Stored(offset) => offset,
                Answer::Known(_) | Answer::Failed => panic!(),
            });
        }
        assert_eq!(answers, [0, 1, 0, 2]);
        assert!(matches!(log.enter(6).await.await, Answer::Known(1)));
        let fault = Fault::new(Effect::FailSync(SyncFailure::Lost)).on(&[OpKind::SyncData]);
        machine.fs.inject(fault);
        assert!(matches!(log.enter(8).await.await, Answer::Failed));
        assert!(matches!(log.enter(8).await.await, Answer::Stored(3)));
        let texts = ["5 at 0", "6 at 1", "7 at 2", "8 at 3"].map(|t| t.as_bytes().to_vec());
        assert_eq!(values(&log.reader()).await, texts);
    });
}

#[test]
fn a_panic_in_a_turn_is_told_to_everybody() {
    // Elsewhere a writer's panic left everybody waiting for ever.
    let machine = Machine::new(12);
    for threads in [false, true] {
        let executor = if threads {
            Executor::Threads(AppendThreads::start(1).unwrap())
        } else {
            Executor::Inline
        };
        let config = LogConfig {
            executor: executor.clone(),
            ..LogConfig::default()
        };
        let writer = block_on(machine.open());
        let log = Log::with_intake(writer, Numbering::default(), config);
        let failed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (log, failed) = (&log, &failed);
                scope.spawn(move || {
                    let entry = if n == 3 { PANIC } else { n };
                    let enter = || log.enter_blocking(entry);
                    let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(enter));
                    if !matches!(answer, Ok(Answer::Stored(_))) {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(failed.into_inner() >= 1);
        assert!(matches!(log.enter_blocking(9), Answer::Failed));
        // The threads of the panic serve others.
        let other = machine.clone();
        let config = LogConfig {
            executor,
            ..LogConfig::default()
        };
        let log = Log::new(block_on(other.open_as("others", 0)).unwrap(), config);
        log.append_blocking(None, b"x", &[], 0).unwrap();
    }
}

#[test]
fn dropped_handles_take_nothing_back() {
    block_on(async {
        let machine = Machine::new(13);
        let log = open(&machine, on_this_runtime()).await;
        let reader = log.reader();
        drop(log.submit(record(0)).await.unwrap());
        drop(log);
        reader.wait_for(0).await;
        assert_eq!(values(&reader).await, [value(0)]);
    });
}

/// A head whose first append waits until somebody lets it go on.
struct Gated {
    writer: WalWriter<OsFileSystem>,
    gate: Option<tokio::sync::oneshot::Receiver<()>>,
}

impl Head<OsFileSystem> for Gated {
    fn writer(&self) -> &WalWriter<OsFileSystem> {
        &self.writer
    }

    fn writer_mut(&mut self) -> &mut WalWriter<OsFileSystem> {
        &mut self.writer
    }

    async fn append(&mut self, frames: &[Append]) -> sq_storage::Result<usize> {
        if let Some(gate) = self.gate.take() {
            gate.await.unwrap();
        }
        Head::append(&mut self.writer, frames).await
    }

    async fn sync(&mut self) -> sq_storage::Result<()> {
        self.writer.sync().await
    }

    async fn close(self) -> sq_storage::Result<()> {
        self.writer.close().await
    }
}

/// One thread serves a second log while an append to the first waits.
#[test]
fn a_head_that_waits_holds_up_no_other_log() {
    let config = LogConfig {
        executor: Executor::Threads(AppendThreads::start(1).unwrap()),
        ..LogConfig::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let writer = |name| {
        block_on(without_clock(
            OsFileSystem::inline(),
            &dir.path().join(name),
        ))
    };
    let (open, gate) = tokio::sync::oneshot::channel();
    let gate = Some(gate);
    let gated = Log::new(
        Gated {
            writer: writer("a"),
            gate,
        },
        config.clone(),
    );
    let free = Log::new(writer("b"), config);
    block_on(async {
        let mut first = pin!(gated.submit(record(0)).await.unwrap());
        let second = gated.submit(record(1)).await.unwrap();
        assert_eq!(free.submit(record(0)).await.unwrap().await.unwrap(), 0);
        assert!(polled_once(first.as_mut()).is_none());
        open.send(()).unwrap();
        assert_eq!(first.await.unwrap(), 0);
        assert_eq!(second.await.unwrap(), 1);
        gated.close().await.unwrap();
        assert_eq!(gated.reader().end_offset(), 2);
    });
}

/// What a future gives at its first poll, if anything.
fn polled_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Types that others embed.
#[test]
fn handles_go_everywhere() {
    fn everywhere<T: Send + Sync + 'static>() {}
    everywhere::<Log<Disk>>();
    everywhere::<Pending<Disk, Direct>>();
    everywhere::<DirectEntry>();
    let _: (Pin<Box<dyn Clock>>, Poll<()>) = (Box::pin(SystemClock), Poll::Ready(()));
}
