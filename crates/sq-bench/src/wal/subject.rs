//! What the logs have in common, and how they are driven.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::stats::{Latencies, Summary, per_second};
use crate::time::now;

/// Records of one batch.
pub(super) const BATCH_RECORDS: usize = 100;

/// Operations before those that are measured.
const WARM_UP: usize = 50;

/// A log that many threads append to, each append durable when it returns.
pub(super) trait DurableLog: Sync {
    /// Appends one record for one of the callers.
    fn append(&self, caller: usize, record: &[u8]) -> Result<()>;

    /// Appends records with one sync, for one of the callers.
    fn append_all(&self, caller: usize, records: &[&[u8]]) -> Result<()>;
}

/// A kind of log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Subject {
    Okaywal,
    RaftEngine,
    Sq,
}

impl Subject {
    pub(super) const ALL: [Self; 3] = [Self::Okaywal, Self::RaftEngine, Self::Sq];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Okaywal => "okaywal",
            Self::RaftEngine => "raft-engine",
            Self::Sq => "sq",
        }
    }

    /// Opens a log in a directory, new or with what was written to it before. It keeps whatever is
    /// written in one place, as long as that is no more than 2 GiB.
    pub(super) fn open(self, dir: &Path) -> Result<Box<dyn DurableLog>> {
        Ok(match self {
            Self::Okaywal => Box::new(super::okaywal::Okaywal::open(dir)?),
            Self::RaftEngine => Box::new(super::raft_engine::RaftEngine::open(dir)?),
            Self::Sq => Box::new(super::sq::Sq::open(dir)?),
        })
    }
}

/// What a measurement gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Of records or of bytes, as the job has it.
    pub(super) per_second: f64,
    pub(super) latency: Summary,
}

/// Does `operation` again and again on one thread for `time`.
pub(super) fn repeat(
    time: Duration,
    mut operation: impl FnMut() -> Result<()>,
) -> Result<Measured> {
    for _ in 0..WARM_UP {
        operation()?;
    }
    let mut latencies = Latencies::new()?;
    let begun = now();
    let mut last = begun;
    let mut count = 0;
    while last.duration_since(begun) < time {
        operation()?;
        let done = now();
        latencies.record(done.duration_since(last));
        last = done;
        count += 1;
    }
    Ok(Measured {
        per_second: per_second(count, last.duration_since(begun)),
        latency: latencies.summary(),
    })
}

/// So many threads, each of which appends `record` again and again for `time`: records a second of
/// all together.
pub(super) fn callers(
    log: &dyn DurableLog,
    callers: usize,
    record: &[u8],
    time: Duration,
) -> Result<f64> {
    let begun = now();
    let counts = thread::scope(|scope| {
        let spawn = |caller| {
            thread::Builder::new()
                .name(format!("caller-{caller}"))
                .spawn_scoped(scope, move || -> Result<u64> {
                    let mut count = 0;
                    while now().duration_since(begun) < time {
                        log.append(caller, record)?;
                        count += 1;
                    }
                    Ok(count)
                })
        };
        let threads: Vec<_> = (0..callers).map(spawn).collect::<Result<_, _>>()?;
        let join = |thread: thread::ScopedJoinHandle<'_, Result<u64>>| {
            thread.join().ok().context("a caller panicked")?
        };
        threads.into_iter().map(join).sum::<Result<u64>>()
    })?;
    ensure!(counts > 0, "no caller appended anything");
    Ok(per_second(counts, now().duration_since(begun)))
}
