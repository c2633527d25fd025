//! Whether logs that share a disk share it fairly: what one gets of it alone, and beside others that write.
//!
//! The logs are a broker's: one group of threads takes the turns of all of them, and one runtime has a
//! task for each that appends, and one that does its chores. A turn is one write and one sync; a fair disk
//! gives each log that waits for it as many as any other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use sq_sim::{Clock as _, Instant, OsFileSystem, SystemClock};
use sq_storage::log::{Append, AppendThreads, Direct, Executor, Head, Log, LogConfig};
use sq_storage::{MaintenanceMode, TopicName, WalConfig, WalWriter};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::Bench;
use super::appends::windowed;
use crate::machine;
use crate::stats::{Latencies, Summary, float, median, per_second};
use crate::table::{Row, Table, Target, Unit, write};
use crate::time::now;

/// Threads that append: as many as the broker has.
const THREADS: usize = 8;

/// Bytes of a segment that takes all that one log appends.
const SEGMENT_BYTES: u64 = 1 << 30;

/// Who writes beside the one log that is looked at, which has one record on its way.
#[derive(Clone, Copy)]
struct Load {
    others: usize,
    /// Records that each of the others has on its way.
    window: usize,
    /// How many times as long as another measurement it takes to see enough turns of the one.
    times: u32,
}

const LOADS: [Load; 5] = [
    Load::new(0, 1, 1),
    Load::new(1, 1, 1),
    Load::new(100, 1, 2),
    Load::new(1_000, 1, 6),
    Load::new(100, 64, 2),
];

/// The most others of a quick run.
const FEW: usize = 20;

/// Steps of a round, and before the first.
pub(super) const STEPS: u64 = LOADS.len() as u64;
pub(super) const STEPS_BEFORE: u64 = 1;

impl Load {
    const fn new(others: usize, window: usize, times: u32) -> Self {
        Self {
            others,
            window,
            times,
        }
    }

    fn name(self) -> String {
        match self {
            Self { others: 0, .. } => "one log".to_owned(),
            Self { window: 1, .. } => format!("one log beside {} that write", self.others),
            _ => format!(
                "one log beside {} that write {} at a time",
                self.others, self.window
            ),
        }
    }
}

/// What one load gave in a round.
#[derive(Clone, Copy)]
struct Round {
    /// Turns of the one, a second.
    one: f64,
    /// The mean of the others.
    others: f64,
    /// The least that one of the others got.
    least: f64,
    /// Of all of them.
    turns: f64,
    records: f64,
}

/// What all rounds of a load gave.
struct Measured {
    load: Load,
    rounds: Vec<Round>,
    /// Of the one's appends.
    latencies: Latencies,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<()> {
    let most = if bench.quick { FEW } else { usize::MAX };
    let loads = LOADS.map(|load| Load {
        others: load.others.min(most),
        ..load
    });
    let logs = loads.iter().map(|load| load.others).max().unwrap_or(0) + 1;
    bench.run.step(format!("open {logs} logs"));
    let node = Node::open(bench, logs)?;
    let mut measured = Vec::new();
    for load in loads {
        measured.push(Measured {
            load,
            rounds: Vec::new(),
            latencies: Latencies::new()?,
        });
    }
    for _ in 0..bench.rounds {
        for of_load in &mut measured {
            bench.run.step(of_load.load.name());
            node.measure(bench, of_load)?;
        }
    }
    report(&measured, table);
    Ok(())
}

/// Logs that share threads and a runtime.
struct Node {
    logs: Vec<Counted>,
    runtime: Runtime,
    _dir: TempDir,
}

/// A log, and what it has done.
struct Counted {
    log: Log<OsFileSystem, Direct, Counter>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    turns: AtomicU64,
    records: AtomicU64,
}

/// Counts a log's turns.
struct Counter {
    writer: WalWriter<OsFileSystem>,
    counts: Arc<Counts>,
}

impl Head<OsFileSystem> for Counter {
    fn writer(&self) -> &WalWriter<OsFileSystem> {
        &self.writer
    }

    fn writer_mut(&mut self) -> &mut WalWriter<OsFileSystem> {
        &mut self.writer
    }

    async fn append(&mut self, frames: &[Append]) -> sq_storage::Result<usize> {
        let count = Head::append(&mut self.writer, frames).await?;
        self.counts.turns.fetch_add(1, Ordering::Relaxed);
        let records = &self.counts.records;
        records.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    async fn sync(&mut self) -> sq_storage::Result<()> {
        self.writer.sync().await
    }

    async fn close(self) -> sq_storage::Result<()> {
        self.writer.close().await
    }
}

impl Node {
    /// Opens so many logs and appends a record to each.
    fn open(bench: &Bench, logs: usize) -> Result<Self> {
        machine::allow_open_files()?;
        let dir = bench.dir("fair")?;
        let runtime = Builder::new_multi_thread().enable_time().build()?;
        let wal = WalConfig {
            max_segment_bytes: SEGMENT_BYTES,
            maintenance: MaintenanceMode::Handed,
            ..WalConfig::new(dir.path())
        };
        let config = LogConfig {
            executor: Executor::Threads(AppendThreads::start(THREADS)?),
            ..LogConfig::default()
        };
        let open = |partition| {
            runtime.block_on(async {
                let fs = Arc::new(OsFileSystem::inline().with_direct_writes());
                let topic = TopicName::new("fair")?;
                let writer = WalWriter::new(fs, wal.clone(), topic, partition).await?;
                let chores = writer.maintenance();
                // It ends with the runtime.
                drop(runtime.spawn(async move {
                    while chores.wait().await {
                        // It is said where it fails; what is left is tried again.
                        let _ = chores.run().await;
                    }
                }));
                let counts = Arc::<Counts>::default();
                let head = Counter {
                    writer,
                    counts: Arc::clone(&counts),
                };
                let log = Log::new(head, config.clone());
                log.append(None, &bench.value, &[], 1).await?;
                anyhow::Ok(Counted { log, counts })
            })
        };
        let logs = (0..u32::try_from(logs)?).map(open).collect::<Result<_>>()?;
        Ok(Self {
            logs,
            runtime,
            _dir: dir,
        })
    }

    /// One round of a load.
    fn measure(&self, bench: &Bench, of_load: &mut Measured) -> Result<()> {
        let load = of_load.load;
        let time = bench.time * load.times;
        let logs = self.logs.get(..=load.others).context("too few logs")?;
        let (one, others) = logs.split_first().context("no log")?;
        let value = Bytes::from(bench.value.clone());
        self.runtime.block_on(async {
            // All begin at once; by then each is somewhere else in its turn.
            let from = now() + time / 4;
            let until = from + time;
            let log = one.log.clone();
            let timed = self
                .runtime
                .spawn(one_at_a_time(log, value.clone(), from..until));
            let mut writing = Vec::new();
            for other in others {
                let (log, value) = (other.log.clone(), value.clone());
                let next = move || Ok(Append::record(None, Some(&value), &[], 1)?);
                let time = until.duration_since(now());
                let write = async move { windowed(time, &log, load.window, next).await };
                writing.push(self.runtime.spawn(write));
            }
            let before = Snapshot::at(from, logs).await;
            let after = Snapshot::at(until, logs).await;
            for latency in timed.await?? {
                of_load.latencies.record(latency);
            }
            for other in writing {
                other.await??;
            }
            of_load.rounds.push(before.round(&after)?);
            Ok(())
        })
    }
}

/// Appends one record after the other until a time range is over, and gives how long each took that was
/// appended within it.
async fn one_at_a_time(
    log: Log<OsFileSystem, Direct, Counter>,
    value: Bytes,
    within: Range<Instant>,
) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    let mut last = now();
    while last < within.end {
        log.append(None, &value, &[], 1).await?;
        let done = now();
        if last >= within.start && done < within.end {
            took.push(done.duration_since(last));
        }
        last = done;
    }
    Ok(took)
}

/// What each log has done until some time.
struct Snapshot {
    at: Instant,
    turns: Vec<u64>,
    records: u64,
}

impl Snapshot {
    async fn at(time: Instant, logs: &[Counted]) -> Self {
        SystemClock.sleep(time.duration_since(now())).await;
        let turns = logs.iter().map(|l| l.counts.turns.load(Ordering::Relaxed));
        let records = logs
            .iter()
            .map(|l| l.counts.records.load(Ordering::Relaxed));
        Self {
            at: now(),
            turns: turns.collect(),
            records: records.sum(),
        }
    }

    /// What was done between this and a later one.
    fn round(&self, later: &Self) -> Result<Round> {
        let time = later.at.duration_since(self.at);
        let turns = self.turns.iter().zip(&later.turns).map(|(a, b)| b - a);
        let turns: Vec<_> = turns.collect();
        let (one, others) = turns.split_first().context("no log")?;
        let all: u64 = others.iter().sum();
        let least = others.iter().min().copied().unwrap_or(0);
        Ok(Round {
            one: per_second(*one, time),
            others: per_second(all, time) / float(others.len() as u64),
            least: per_second(least, time),
            turns: per_second(all + one, time),
            records: per_second(later.records - self.records, time),
        })
    }
}

fn report(measured: &[Measured], table: &mut Table) {
    let mut alone = f64::NAN;
    for Measured {
        load,
        rounds,
        latencies,
    } in measured
    {
        let of = |get: fn(&Round) -> f64| median(rounds.iter().map(get));
        let latency = latencies.summary();
        let (one, turns) = (of(|r| r.one), of(|r| r.turns));
        let row = Row::new(match load.others {
            0 => format!("{} of many, {THREADS} threads", load.name()),
            _ => format!("{}, turns; beside: their mean", load.name()),
        })
        .figure(one, Unit::PerSecond);
        if load.others == 0 {
            alone = one;
            table.push(row.note(quantiles(latency)));
            continue;
        }
        let all = format!(
            "the least of them {:.2} of that; all {}, {}, {:.2} of one alone",
            of(|r| r.least / r.others),
            write(turns, Unit::PerSecond),
            write_records(of(|r| r.records)),
            turns / alone,
        );
        let share = of(|r| r.one / r.others);
        table.push(
            row.beside(of(|r| r.others), Unit::PerSecond)
                .judge(share, Unit::Times, Target::AtLeast(0.9))
                .note(all),
        );
        let turn_of_each = 1e6 * float(load.others as u64 + 1) / turns;
        table.push(
            Row::new("... p99 of its appends; beside: a turn of each")
                .beside(turn_of_each, Unit::Microseconds)
                .figure(latency.p99, Unit::Microseconds)
                .ratio(latency.p99 / turn_of_each)
                .note(quantiles(latency)),
        );
    }
}

fn quantiles(latency: Summary) -> String {
    let us = |value| write(value, Unit::Microseconds);
    format!(
        "its appends: p50 {}, p99 {}, max {}",
        us(latency.p50),
        us(latency.p99),
        us(latency.max)
    )
}

fn write_records(per_second: f64) -> String {
    format!("{} records", write(per_second, Unit::PerSecond))
}
