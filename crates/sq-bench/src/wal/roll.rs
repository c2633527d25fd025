//! Appends while a successor is prepared, and while a segment's file is removed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use bytes::Bytes;
use sq_sim::{Clock as _, FileSystem as _, OsFileSystem, SystemClock};
use sq_storage::Pace;
use sq_storage::log::LogConfig;
use sq_storage::wal::remove_file_in_steps;

use super::Bench;
use super::sq::{Sq, runtime};
use super::subject::{DurableLog as _, repeat};
use super::turning::{Past, Turning};
use crate::stats::{Latencies, Summary, median};
use crate::table::{Row, Table, Target, Unit};
use crate::time::now;

/// Steps of a round: undisturbed, preparing, removing, and beside another log in three ways.
pub(super) const STEPS: u64 = 3 + 3;

/// Preparations in a round: each takes but a moment.
const PREPARATIONS: usize = 20;

/// Segments that another log writes.
const SEGMENTS: u64 = 4;

struct Round {
    undisturbed: Summary,
    preparing: Summary,
    removing: Summary,
    /// Beside another log that writes segment after segment.
    kept: Summary,
    removed: Summary,
    written_again: Summary,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<()> {
    let rounds = (0..bench.rounds)
        .map(|_| round(bench))
        .collect::<Result<Vec<_>>>()?;
    let undisturbed = |get: fn(&Summary) -> f64| median(rounds.iter().map(|r| get(&r.undisturbed)));
    let row = |name: &str, get: fn(&Summary) -> f64, of: fn(&Round) -> Summary, bound| {
        let figures = rounds.iter().map(|round| get(&of(round)));
        let ratios = rounds
            .iter()
            .map(|round| get(&of(round)) / get(&round.undisturbed));
        Row::new(name)
            .beside(undisturbed(get), Unit::Microseconds)
            .figure(median(figures), Unit::Microseconds)
            .judge(median(ratios), Unit::Times, Target::AtMost(bound))
    };
    table.push(row(
        "append while a successor is prepared, p99; beside: undisturbed",
        |s| s.p99,
        |r| r.preparing,
        1.2,
    ));
    table.push(row(
        "append while a segment is removed, p99; beside: undisturbed",
        |s| s.p99,
        |r| r.removing,
        1.5,
    ));
    table.push(row(
        "append while a segment is removed, max; beside: undisturbed",
        |s| s.max,
        |r| r.removing,
        2.0,
    ));
    beside_another(&rounds, table);
    Ok(())
}

/// One of the series of a round.
type Of = fn(&Round) -> &Summary;

/// As fast as they are written, another log's segments are removed, or written again.
fn beside_another(rounds: &[Round], table: &mut Table) {
    let row = |name: String, get: fn(&Summary) -> f64, of: Of, bound| {
        let ratios = rounds.iter().map(|round| get(of(round)) / get(&round.kept));
        Row::new(name)
            .beside(
                median(rounds.iter().map(|round| get(&round.kept))),
                Unit::Microseconds,
            )
            .figure(
                median(rounds.iter().map(|round| get(of(round)))),
                Unit::Microseconds,
            )
            .judge(median(ratios), Unit::Times, Target::AtMost(bound))
    };
    let fates: [(&str, Of); 2] = [
        ("removed", |r| &r.removed),
        ("written again", |r| &r.written_again),
    ];
    for (fate, of) in fates {
        let name = |figure| {
            format!(
                "append while another log's segments are {fate} as fast as they are written, \
                 {figure}; beside: while they are kept"
            )
        };
        table.push(row(name("p99"), |s| s.p99, of, 1.5));
        table.push(row(name("max"), |s| s.max, of, 2.0));
    }
}

fn round(bench: &Bench) -> Result<Round> {
    let dir = bench.dir("roll")?;
    let condemned = dir.path().join("condemned");
    runtime()?.block_on(write(&condemned, bench.bytes))?;
    let sq = Sq::open_with(dir.path(), LogConfig::default(), bench.bytes)?;
    bench.run.step("undisturbed");
    let time = bench.time * 2;
    let undisturbed = repeat(time, || sq.append(0, &bench.value))?.latency;
    bench.run.step("a successor is prepared");
    let mut latencies = Latencies::new()?;
    for _ in 0..PREPARATIONS {
        prepare(bench, &sq, &mut latencies)?;
    }
    let preparing = latencies.summary();
    bench.run.step("a segment is removed");
    let mut latencies = Latencies::new()?;
    beside(bench, &sq, &mut latencies, || {
        let fs = OsFileSystem::inline();
        runtime()?.block_on(remove_file_in_steps(&fs, &SystemClock, &condemned))?;
        Ok(())
    })?;
    let removing = latencies.summary();
    Ok(Round {
        undisturbed,
        preparing,
        removing,
        kept: another(bench, &sq, Past::Kept)?,
        removed: another(bench, &sq, Past::Removed)?,
        written_again: another(bench, &sq, Past::WrittenAgain)?,
    })
}

/// Appends while another log writes some segments as fast as it can.
fn another(bench: &Bench, sq: &Sq, past: Past) -> Result<Summary> {
    bench.run.step("another log writes");
    let dir = bench.dir("another")?;
    let other = Turning::open(dir.path(), LogConfig::default(), bench.bytes, past)?;
    if past != Past::Kept {
        other.write(2 * bench.bytes)?;
    }
    let mut latencies = Latencies::new()?;
    beside(bench, sq, &mut latencies, || {
        other.write(SEGMENTS * bench.bytes)
    })?;
    Ok(latencies.summary())
}

/// A file of so many bytes that are on the disk, as a log leaves it: written past the page cache.
async fn write(path: &Path, bytes: u64) -> Result<()> {
    let file = OsFileSystem::inline()
        .with_direct_writes()
        .create_new(path)
        .await?;
    let piece = Bytes::from(vec![0x5a; 1 << 20]);
    for at in (0..bytes).step_by(piece.len()) {
        file.write_at(at, std::slice::from_ref(&piece)).await?;
    }
    file.sync_all().await?;
    Ok(())
}

/// As a driver of rolls goes about a successor that nothing waits for.
#[derive(Debug)]
struct Unhurried;

#[async_trait]
impl Pace for Unhurried {
    async fn pause(&self) {
        SystemClock.sleep(Duration::from_millis(1)).await;
    }
}

/// Prepares a successor while records are appended, and then removes it.
fn prepare(bench: &Bench, sq: &Sq, latencies: &mut Latencies) -> Result<()> {
    let preparation = runtime()?
        .block_on(sq.log.with_writer(|writer, _| {
            let preparation = writer.as_ref().map(|writer| writer.preparation(None));
            Box::pin(async { preparation })
        }))?
        .context("the log is closed")?;
    let mut prepared = None;
    beside(bench, sq, latencies, || {
        let preparation = preparation.paced_by(Arc::new(Unhurried));
        prepared = Some(runtime()?.block_on(preparation.run())?);
        Ok(())
    })?;
    if let Some(prepared) = prepared {
        runtime()?.block_on(prepared.discard())?;
    }
    Ok(())
}

/// Appends for as long as `work` takes on another thread.
fn beside(
    bench: &Bench,
    sq: &Sq,
    latencies: &mut Latencies,
    work: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = thread::Builder::new().spawn_scoped(scope, || {
            let outcome = work();
            is_over.store(true, Ordering::Release);
            outcome
        })?;
        let mut last = now();
        while !is_over.load(Ordering::Acquire) {
            sq.append(0, &bench.value)?;
            let done = now();
            latencies.record(done.duration_since(last));
            last = done;
        }
        worker.join().ok().context("the other thread panicked")?
    })
}
