//! Opening a log after its process was killed, with what was written in the page cache.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use sq_sim::Instant;
use sq_storage::log::LogConfig;

use super::Bench;
use super::read::warm;
use super::sq::{SEGMENT_BYTES, Sq, runtime, writer};
use super::subject::{BATCH_RECORDS, Subject};
use crate::batch::value;
use crate::stats::median;
use crate::table::{Row, Table, Target, Unit};
use crate::time::now;

/// Steps of a round: each log, and sq with everything in sealed segments.
pub(super) const STEPS: u64 = 4;

/// Bytes of a segment where everything is sealed.
const SEALED_BYTES: u64 = 64 << 20;

/// What the process that writes is told.
#[derive(Debug, clap::Args)]
pub(crate) struct FillArgs {
    subject: Subject,
    dir: PathBuf,
    bytes: u64,
    segment_bytes: u64,
}

/// Writes, says so, and waits for its end.
pub(crate) fn fill(args: &FillArgs) -> Result<()> {
    let value = value(super::RECORD_BYTES);
    let records = vec![value.as_slice(); BATCH_RECORDS];
    let log = match args.subject {
        Subject::Sq => Box::new(Sq::open_with(
            &args.dir,
            LogConfig::default(),
            args.segment_bytes,
        )?),
        peer => peer.open(&args.dir)?,
    };
    let batch_bytes = (BATCH_RECORDS * value.len()) as u64;
    for _ in 0..args.bytes / batch_bytes {
        log.append_all(0, &records)?;
    }
    writeln!(std::io::stdout(), "written")?;
    // Whoever reads that kills this process. Should it have ended itself, so has its end of this.
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// Has a process write, and kills it.
fn written(bench: &Bench, subject: Subject, dir: &Path, segment_bytes: u64) -> Result<()> {
    let mut process = Command::new(std::env::current_exe()?)
        .args(["fill", subject.name()])
        .arg(dir)
        .args([bench.bytes.to_string(), segment_bytes.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = process.stdout.take().context("no output to read")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    process.kill()?;
    process.wait()?;
    ensure!(line == "written\n", "{} wrote nothing", subject.name());
    warm(dir)
}

/// Milliseconds that each opening took.
struct Round {
    peers: Vec<f64>,
    sq: f64,
    sealed: f64,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<()> {
    let rounds = (0..bench.rounds)
        .map(|_| round(bench))
        .collect::<Result<Vec<_>>>()?;
    let ms = Unit::Milliseconds;
    let peers = Subject::ALL.into_iter().filter(|s| *s != Subject::Sq);
    for (at, peer) in peers.enumerate() {
        let of = |r: &Round| r.peers.get(at).copied().unwrap_or(f64::NAN);
        let row = Row::new(format!("open after a crash, {}", peer.name()));
        table.push(row.figure(median(rounds.iter().map(of)), ms));
    }
    let best = |r: &Round| r.peers.iter().copied().fold(f64::NAN, f64::min);
    table.push(
        Row::new("open after a crash, sq; beside: the best of the others")
            .beside(median(rounds.iter().map(best)), ms)
            .figure(median(rounds.iter().map(|r| r.sq)), ms)
            .judge(
                median(rounds.iter().map(|r| r.sq / best(r))),
                Unit::Times,
                Target::AtMost(0.5),
            )
            .note(format!("{} MiB in one segment", bench.bytes >> 20)),
    );
    table.push(
        Row::new("open after a crash, sq, sealed segments")
            .beside(median(rounds.iter().map(|r| r.sq)), ms)
            .figure(median(rounds.iter().map(|r| r.sealed)), ms)
            .ratio(median(rounds.iter().map(|r| r.sealed / r.sq)))
            .note(format!(
                "{} MiB in segments of {} MiB, the last of them open",
                bench.bytes >> 20,
                SEALED_BYTES >> 20
            )),
    );
    Ok(())
}

fn round(bench: &Bench) -> Result<Round> {
    let mut peers = Vec::new();
    let mut sq = f64::NAN;
    for subject in Subject::ALL {
        bench.run.step(format!("open, {}", subject.name()));
        let dir = bench.dir(subject.name())?;
        written(bench, subject, dir.path(), SEGMENT_BYTES)?;
        if subject == Subject::Sq {
            sq = open_sq(bench, dir.path(), SEGMENT_BYTES)?;
            continue;
        }
        let begun = now();
        let _log = subject.open(dir.path())?;
        peers.push(milliseconds(begun));
    }
    bench.run.step("open, sq, sealed segments");
    let dir = bench.dir("sealed")?;
    written(bench, Subject::Sq, dir.path(), SEALED_BYTES)?;
    let sealed = open_sq(bench, dir.path(), SEALED_BYTES)?;
    Ok(Round { peers, sq, sealed })
}

/// How long opening takes, with everything there that was acknowledged.
fn open_sq(bench: &Bench, dir: &Path, segment_bytes: u64) -> Result<f64> {
    let begun = now();
    let writer = writer(dir, segment_bytes)?;
    let took = milliseconds(begun);
    let batch_bytes = (BATCH_RECORDS * super::RECORD_BYTES) as u64;
    let records = bench.bytes / batch_bytes * BATCH_RECORDS as u64;
    ensure!(writer.next_offset() == records, "records are missing");
    runtime()?.block_on(writer.close())?;
    Ok(took)
}

fn milliseconds(begun: Instant) -> f64 {
    now().duration_since(begun).as_secs_f64() * 1e3
}
