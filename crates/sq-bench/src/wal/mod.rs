//! `wal`: sq-storage beside the disk and beside other logs.

mod appends;
mod fair;
mod okaywal;
mod open;
mod raft_engine;
mod read;
mod roll;
mod sq;
mod subject;
mod turning;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::batch::value;
use crate::run::Run;
use crate::table::Table;

pub(crate) use open::{FillArgs, fill};

/// Bytes of a record's value.
const RECORD_BYTES: usize = 1024;

/// What `wal` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where scratch data goes [default: the build's directory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Job::ALL)]
    jobs: Vec<Job>,
    /// Rounds of each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement in a round.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// MiB that are written, to be opened or read.
    #[arg(long, default_value_t = 1024)]
    mebibytes: u32,
    /// A short run that checks that everything is measured and that figures can be true, without a
    /// word about whether they are good ones.
    #[arg(long)]
    quick: bool,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Job {
    /// Appends: one at a time, by many callers, in batches, in a window, large ones.
    Appends,
    /// One log's appends beside those of others.
    Fair,
    /// Opening after a crash.
    Open,
    /// Appends while a successor is prepared, and while a segment is removed.
    Roll,
    /// Reading from the first record to the last.
    Read,
}

impl Job {
    const ALL: [Self; 5] = [
        Self::Appends,
        Self::Fair,
        Self::Open,
        Self::Roll,
        Self::Read,
    ];
}

/// What every job is told.
struct Bench {
    run: Run,
    rounds: usize,
    time: Duration,
    /// Bytes that are written, to be opened or read.
    bytes: u64,
    value: Vec<u8>,
    quick: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (rounds, seconds, mebibytes) = if args.quick {
        (1, 0.05, 16)
    } else {
        (args.rounds, args.seconds, args.mebibytes)
    };
    let steps = args.jobs.iter().map(|job| match job {
        Job::Appends => appends::STEPS * rounds as u64,
        Job::Fair => fair::STEPS_BEFORE + fair::STEPS * rounds as u64,
        Job::Open => open::STEPS * rounds as u64,
        Job::Roll => roll::STEPS * rounds as u64,
        Job::Read => read::STEPS * rounds as u64,
    });
    let bench = Bench {
        run: Run::new(args.dir.clone(), steps.sum())?,
        rounds,
        time: Duration::from_secs_f64(seconds),
        bytes: u64::from(mebibytes) << 20,
        value: value(RECORD_BYTES),
        quick: args.quick,
    };
    let mut table = Table::new("wal: records of 1 KiB, every append synced");
    for job in &args.jobs {
        match job {
            Job::Appends => appends::run(&bench, &mut table)?,
            Job::Fair => fair::run(&bench, &mut table)?,
            Job::Open => open::run(&bench, &mut table)?,
            Job::Roll => roll::run(&bench, &mut table)?,
            Job::Read => read::run(&bench, &mut table)?,
        }
    }
    let load = bench.run.finish()?;
    if args.quick {
        table.check_plausible()?;
        table = table.without_verdicts();
    }
    crate::run::print(&table, &load)
}

impl Bench {
    /// An empty directory of that name.
    fn dir(&self, name: &str) -> Result<tempfile::TempDir> {
        Ok(tempfile::Builder::new()
            .prefix(name)
            .tempdir_in(self.run.dir())?)
    }
}
