//! Appends: one at a time, by many callers, in batches, in a window, large ones.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use sq_sim::OsFileSystem;
use sq_storage::log::{Append, AppendThreads, Direct, Executor, Head, Log, LogConfig, Pending};

use super::Bench;
use super::sq::{SEGMENT_BYTES, Sq, batch, runtime};
use super::subject::{BATCH_RECORDS, Measured, Subject, callers, repeat};
use super::turning::Turning;
use crate::floor::{Floor, FloorRound};
use crate::stats::{float, median, per_second};
use crate::table::{Row, Table, Target, Unit};
use crate::time::now;

/// Steps of a round: the floor, what every log does, and what only sq does.
pub(super) const STEPS: u64 = 1 + 4 * 3 + 10;

/// Bytes of a segment of a log that keeps little: each is soon purged, and its file written again.
const TURNING_BYTES: u64 = 64 << 20;

/// Threads that the asynchronous handle appends on.
const THREADS: usize = 1;

/// Unacknowledged records of the one producer.
const WINDOW: usize = 256;

const LARGE_BYTES: usize = 1 << 20;

/// Unacknowledged large batches.
const LARGE_WINDOW: usize = 2;

struct Round {
    floor: FloorRound,
    floor_64k: FloorRound,
    floor_batch: FloorRound,
    /// Half a window at a time: while that is written, the other half is appended.
    floor_half: FloorRound,
    floor_large: FloorRound,
    /// The same three where the space was never written.
    fresh_batch: FloorRound,
    fresh_half: FloorRound,
    fresh_large: FloorRound,
    logs: Vec<Jobs>,
    one_async: Measured,
    one_batch: f64,
    window: f64,
    large: f64,
    large_window: f64,
    again: Again,
}

/// What sq does where segments are purged and their files written again.
struct Again {
    batch: f64,
    large: f64,
    window: f64,
}

/// What every log does, in records a second.
struct Jobs {
    subject: Subject,
    one: Measured,
    eight: f64,
    sixty_four: f64,
    batches: f64,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<()> {
    let mut floor = Floor::create(bench.run.dir())?;
    let threads = AppendThreads::start(THREADS)?;
    let rounds = (0..bench.rounds)
        .map(|_| round(bench, &mut floor, &threads))
        .collect::<Result<Vec<_>>>()?;
    floors(&rounds, table);
    one_caller(&rounds, table);
    many_callers(&rounds, table);
    batches(&rounds, table);
    windows(&rounds, table);
    Ok(())
}

fn round(bench: &Bench, floor: &mut Floor, threads: &AppendThreads) -> Result<Round> {
    bench.run.step("floor");
    let mut of = |bytes| floor.round(&vec![0x5a; bytes], bench.time);
    let floor_64k = of(64 << 10)?;
    let floor_batch = of(BATCH_RECORDS * bench.value.len())?;
    let floor_half = of(WINDOW / 2 * bench.value.len())?;
    let floor_large = of(LARGE_BYTES)?;
    let floor = of(bench.value.len())?;
    let fresh = |bytes| Floor::fresh(bench.run.dir())?.round(&vec![0x5a; bytes], bench.time);
    let fresh_batch = fresh(BATCH_RECORDS * bench.value.len())?;
    let fresh_half = fresh(WINDOW / 2 * bench.value.len())?;
    let fresh_large = fresh(LARGE_BYTES)?;
    let logs = Subject::ALL
        .into_iter()
        .map(|subject| jobs(bench, subject))
        .collect::<Result<_>>()?;
    let config = LogConfig {
        executor: Executor::Threads(threads.clone()),
        ..LogConfig::default()
    };
    let dir = bench.dir("threads")?;
    let handed = Sq::open_with(dir.path(), config, SEGMENT_BYTES)?;
    let dir = bench.dir("inline")?;
    let inline = Sq::open(dir.path())?;
    bench.run.step("sq, asynchronous");
    let one_async = one_async(bench, &handed.log)?;
    bench.run.step("sq, batches of 100 in one frame");
    let one_batch = one_batch(bench, &inline.log)?;
    bench.run.step("sq, a window of records");
    let window = window(bench, &handed.log)?;
    bench.run.step("sq, 1 MiB");
    let large = large(bench, &inline.log)?;
    bench.run.step("sq, a window of 1 MiB");
    let large_window = large_window(bench, &handed.log)?;
    drop((handed, inline));
    let again = again(bench, threads)?;
    bench.run.step("clean up");
    Ok(Round {
        floor,
        floor_64k,
        floor_batch,
        floor_half,
        floor_large,
        fresh_batch,
        fresh_half,
        fresh_large,
        logs,
        one_async,
        one_batch,
        window,
        large,
        large_window,
        again,
    })
}

fn again(bench: &Bench, threads: &AppendThreads) -> Result<Again> {
    bench.run.step("sq, until files are written again");
    let dir = bench.dir("again")?;
    let inline = Turning::written_again(dir.path(), LogConfig::default(), TURNING_BYTES)?;
    bench.run.step("sq, batches of 100, files written again");
    let batch = one_batch(bench, &inline.log)?;
    bench.run.step("sq, 1 MiB, files written again");
    let large = large(bench, &inline.log)?;
    drop(inline);
    bench
        .run
        .step("sq, a window of records, files written again");
    let config = LogConfig {
        executor: Executor::Threads(threads.clone()),
        ..LogConfig::default()
    };
    let dir = bench.dir("again")?;
    let handed = Turning::written_again(dir.path(), config, TURNING_BYTES)?;
    let window = window(bench, &handed.log)?;
    Ok(Again {
        batch,
        large,
        window,
    })
}

fn jobs(bench: &Bench, subject: Subject) -> Result<Jobs> {
    let dir = bench.dir(subject.name())?;
    let log = subject.open(dir.path())?;
    let step = |what| bench.run.step(format!("{}, {what}", subject.name()));
    step("one caller");
    let one = repeat(bench.time, || log.append(0, &bench.value))?;
    step("8 callers");
    let eight = callers(&*log, 8, &bench.value, bench.time)?;
    step("64 callers");
    let sixty_four = callers(&*log, 64, &bench.value, bench.time)?;
    step("batches of 100");
    let records = vec![bench.value.as_slice(); BATCH_RECORDS];
    let batches = repeat(bench.time, || log.append_all(0, &records))?;
    Ok(Jobs {
        subject,
        one,
        eight,
        sixty_four,
        batches: batches.per_second * float(BATCH_RECORDS as u64),
    })
}

fn one_async(bench: &Bench, log: &Log<OsFileSystem>) -> Result<Measured> {
    let runtime = runtime()?;
    repeat(bench.time, || {
        runtime.block_on(log.append(None, &bench.value, &[], 1))?;
        Ok(())
    })
}

fn one_batch(bench: &Bench, log: &Log<OsFileSystem>) -> Result<f64> {
    let record = Bytes::from(bench.value.clone());
    let parts = vec![record; BATCH_RECORDS];
    let measured = repeat(bench.time, || {
        log.append_batches_blocking(vec![batch(&parts)?])?;
        Ok(())
    })?;
    Ok(measured.per_second * float(BATCH_RECORDS as u64))
}

fn window(bench: &Bench, log: &Log<OsFileSystem>) -> Result<f64> {
    let next = || Ok(Append::record(None, Some(&bench.value), &[], 1)?);
    runtime()?.block_on(windowed(bench.time, log, WINDOW, next))
}

fn large(bench: &Bench, log: &Log<OsFileSystem>) -> Result<f64> {
    let bytes = Bytes::from(vec![0x5a; LARGE_BYTES]);
    let measured = repeat(bench.time, || {
        log.append_batches_blocking(vec![batch(std::slice::from_ref(&bytes))?])?;
        Ok(())
    })?;
    Ok(measured.per_second)
}

fn large_window(bench: &Bench, log: &Log<OsFileSystem>) -> Result<f64> {
    let bytes = Bytes::from(vec![0x5a; LARGE_BYTES]);
    let next = || Ok(batch(std::slice::from_ref(&bytes))?.into());
    runtime()?.block_on(windowed(bench.time, log, LARGE_WINDOW, next))
}

/// Keeps so many appends on their way: appends a second.
pub(super) async fn windowed<H: Head<OsFileSystem>>(
    time: Duration,
    log: &Log<OsFileSystem, Direct, H>,
    size: usize,
    next: impl Fn() -> Result<Append>,
) -> Result<f64> {
    let begun = now();
    let mut under_way: VecDeque<Pending<OsFileSystem, Direct, H>> = VecDeque::with_capacity(size);
    let mut count = 0;
    while now().duration_since(begun) < time {
        if under_way.len() >= size
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.await?;
        }
        under_way.push_back(log.submit(next()?).await?);
        count += 1;
    }
    for pending in under_way {
        pending.await?;
    }
    Ok(per_second(count, now().duration_since(begun)))
}

fn floors(rounds: &[Round], table: &mut Table) {
    let row = |name: &str, get: fn(&Round) -> FloorRound| {
        let round = FloorRound::median(&rounds.iter().map(get).collect::<Vec<_>>());
        let latency = round.latency;
        Row::new(format!("the floor: {name}"))
            .figure(round.appends_per_second, Unit::PerSecond)
            .note(format!(
                "p50 {:.0} us, p99 {:.0}, p99.9 {:.0}, max {:.0}",
                latency.p50, latency.p99, latency.p999, latency.max
            ))
    };
    table.push(row("pwrite and fdatasync, zeroed file, 1 KiB", |r| r.floor));
    table.push(row("64 KiB", |r| r.floor_64k));
    table.push(row("100 KiB", |r| r.floor_batch));
    table.push(row("128 KiB", |r| r.floor_half));
    table.push(row("1 MiB", |r| r.floor_large));
    table.push(row("100 KiB, in space that was never written", |r| {
        r.fresh_batch
    }));
    table.push(row("128 KiB, the same", |r| r.fresh_half));
    table.push(row("1 MiB, the same", |r| r.fresh_large));
}

/// How near a figure comes to the floor of its round where the space was never written.
fn of_fresh(rounds: &[Round], ours: fn(&Round) -> f64, floor: fn(&Round) -> f64) -> Row {
    Row::new("... beside the floor in space that was never written")
        .beside(median(rounds.iter().map(floor)), Unit::PerSecond)
        .ratio(median(rounds.iter().map(|r| ours(r) / floor(r))))
}

/// The figures of a log, and their ratio to the floor of their round.
fn of_log(
    rounds: &[Round],
    subject: Subject,
    get: fn(&Jobs) -> f64,
    floor: fn(&Round) -> f64,
) -> (f64, f64) {
    let pairs: Vec<_> = rounds
        .iter()
        .filter_map(|round| {
            let jobs = round.logs.iter().find(|jobs| jobs.subject == subject)?;
            Some((get(jobs), get(jobs) / floor(round)))
        })
        .collect();
    (
        median(pairs.iter().map(|pair| pair.0)),
        median(pairs.iter().map(|pair| pair.1)),
    )
}

/// sq's figure beside the better of the peers' in the same round.
fn to_best_peer(rounds: &[Round], get: fn(&Jobs) -> f64, ours: fn(&Round) -> f64) -> f64 {
    let ratio = |round: &Round| {
        let peers = round.logs.iter().filter(|jobs| jobs.subject != Subject::Sq);
        ours(round) / peers.map(get).fold(f64::NAN, f64::max)
    };
    median(rounds.iter().map(ratio))
}

fn of_sq(round: &Round, get: fn(&Jobs) -> f64) -> f64 {
    let sq = round.logs.iter().find(|jobs| jobs.subject == Subject::Sq);
    sq.map_or(f64::NAN, get)
}

/// A row for each log; sq's is judged by its ratio to the floor.
fn rows(
    rounds: &[Round],
    table: &mut Table,
    job: &str,
    get: fn(&Jobs) -> f64,
    floor: fn(&Round) -> f64,
    target: f64,
) {
    let beside = median(rounds.iter().map(floor));
    for subject in Subject::ALL {
        let (figure, ratio) = of_log(rounds, subject, get, floor);
        let row = Row::new(format!("{job}, {}", subject.name()))
            .beside(beside, Unit::PerSecond)
            .figure(figure, Unit::PerSecond);
        table.push(if subject == Subject::Sq {
            row.judge(ratio, Unit::Times, Target::AtLeast(target))
        } else {
            row.ratio(ratio)
        });
    }
}

fn one_caller(rounds: &[Round], table: &mut Table) {
    let floor = |r: &Round| r.floor.appends_per_second;
    rows(rounds, table, "1 caller", |j| j.one.per_second, floor, 0.95);
    let p99 = |round: &Round| of_sq(round, |jobs| jobs.one.latency.p99);
    table.push(
        Row::new("1 caller, sq, p99")
            .beside(
                median(rounds.iter().map(|r| r.floor.latency.p99)),
                Unit::Microseconds,
            )
            .figure(median(rounds.iter().map(p99)), Unit::Microseconds)
            .judge(
                median(rounds.iter().map(|r| p99(r) / r.floor.latency.p99)),
                Unit::Times,
                Target::AtMost(1.15),
            ),
    );
    let one = |round: &Round| round.one_async.per_second;
    table.push(
        Row::new("1 caller, sq, asynchronous handle")
            .beside(median(rounds.iter().map(floor)), Unit::PerSecond)
            .figure(median(rounds.iter().map(one)), Unit::PerSecond)
            .judge(
                median(rounds.iter().map(|r| one(r) / floor(r))),
                Unit::Times,
                Target::AtLeast(0.8),
            ),
    );
}

fn many_callers(rounds: &[Round], table: &mut Table) {
    let floor = |r: &Round| r.floor.appends_per_second;
    let best = |get: fn(&Jobs) -> f64, ours: fn(&Round) -> f64, target| {
        Row::new("... beside the best of the others").judge(
            to_best_peer(rounds, get, ours),
            Unit::Times,
            Target::AtLeast(target),
        )
    };
    rows(rounds, table, "8 callers", |j| j.eight, floor, 5.0);
    table.push(best(|j| j.eight, |r| of_sq(r, |j| j.eight), 1.5));
    rows(rounds, table, "64 callers", |j| j.sixty_four, floor, 18.0);
    table.push(best(|j| j.sixty_four, |r| of_sq(r, |j| j.sixty_four), 1.4));
}

fn batches(rounds: &[Round], table: &mut Table) {
    let floor = |r: &Round| r.floor_batch.appends_per_second * float(BATCH_RECORDS as u64);
    let job = "batches of 100 records";
    rows(rounds, table, job, |j| j.batches, floor, 0.95);
    let best = |ours: fn(&Round) -> f64| {
        Row::new("... beside the best of the others").judge(
            to_best_peer(rounds, |j| j.batches, ours),
            Unit::Times,
            Target::AtLeast(1.35),
        )
    };
    table.push(best(|r| of_sq(r, |j| j.batches)));
    table.push(
        Row::new("batches of 100 records, sq, one frame of 100 parts")
            .beside(median(rounds.iter().map(floor)), Unit::PerSecond)
            .figure(median(rounds.iter().map(|r| r.one_batch)), Unit::PerSecond)
            .judge(
                median(rounds.iter().map(|r| r.one_batch / floor(r))),
                Unit::Times,
                Target::AtLeast(0.95),
            ),
    );
    table.push(best(|r| r.one_batch));
    let fresh = |r: &Round| r.fresh_batch.appends_per_second * float(BATCH_RECORDS as u64);
    table.push(of_fresh(rounds, |r| r.one_batch, fresh));
    // The others begin new files here.
    table.push(
        Row::new("... in files that were written before")
            .beside(median(rounds.iter().map(floor)), Unit::PerSecond)
            .figure(
                median(rounds.iter().map(|r| r.again.batch)),
                Unit::PerSecond,
            )
            .judge(
                median(rounds.iter().map(|r| r.again.batch / floor(r))),
                Unit::Times,
                Target::AtLeast(0.95),
            ),
    );
    table.push(best(|r| r.again.batch));
}

fn windows(rounds: &[Round], table: &mut Table) {
    let row = |job: String, ours: fn(&Round) -> f64, floor: fn(&Round) -> f64, target| {
        Row::new(job)
            .beside(median(rounds.iter().map(floor)), Unit::PerSecond)
            .figure(median(rounds.iter().map(ours)), Unit::PerSecond)
            .judge(
                median(rounds.iter().map(|r| ours(r) / floor(r))),
                Unit::Times,
                Target::AtLeast(target),
            )
    };
    table.push(row(
        format!("one producer, window {WINDOW}, sq"),
        |r| r.window,
        |r| r.floor.appends_per_second,
        90.0,
    ));
    let half = |r: &Round| r.fresh_half.appends_per_second * float(WINDOW as u64 / 2);
    table.push(of_fresh(rounds, |r| r.window, half));
    let large = |r: &Round| r.floor_large.appends_per_second;
    table.push(row(
        "batches of 1 MiB, sq, one at a time".to_owned(),
        |r| r.large,
        large,
        0.9,
    ));
    let fresh = |r: &Round| r.fresh_large.appends_per_second;
    table.push(of_fresh(rounds, |r| r.large, fresh));
    table.push(row(
        format!("batches of 1 MiB, sq, {LARGE_WINDOW} under way"),
        |r| r.large_window,
        large,
        0.9,
    ));
    table.push(row(
        "batches of 1 MiB, sq, one at a time, in files that were written before".to_owned(),
        |r| r.again.large,
        large,
        0.9,
    ));
    table.push(row(
        format!("one producer, window {WINDOW}, sq, in files that were written before"),
        |r| r.again.window,
        |r| r.floor.appends_per_second,
        90.0,
    ));
    let half = |r: &Round| r.floor_half.appends_per_second * float(WINDOW as u64 / 2);
    table.push(
        Row::new("... beside the floor, half a window at a time")
            .beside(median(rounds.iter().map(half)), Unit::PerSecond)
            .ratio(median(rounds.iter().map(|r| r.again.window / half(r)))),
    );
}
