//! `produce`: a broker's produce path, memory and start-up.

mod batched;
mod single;
mod start_up;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::batch::value;
use crate::broker::{self, Broker};
use crate::run::Run;
use crate::table::Table;

/// Bytes of a record's value.
const RECORD_BYTES: usize = 1024;

/// What `produce` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    broker: broker::Args,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Job::Single, Job::Batched, Job::StartUp])]
    jobs: Vec<Job>,
    /// Rounds of each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement of latency in a round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Records of each batched round.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Bytes that a broker is started with after a crash.
    #[arg(long, default_value_t = 10 << 30)]
    start_up_bytes: u64,
    /// Segments that they are in.
    #[arg(long, default_value_t = 1_000)]
    start_up_segments: u64,
    /// Partitions that those are of.
    #[arg(long, default_value_t = 10)]
    start_up_partitions: u32,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Job {
    /// One record in flight.
    Single,
    /// As many as go, with memory, and with a consumer at the tail.
    Batched,
    /// Start-up, empty and after a crash.
    StartUp,
}

/// A broker under test and what drives it.
struct Bench<'a> {
    args: &'a Args,
    sq: PathBuf,
    run: Run,
    value: Vec<u8>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let rounds = args.rounds as u64;
    let steps = args.jobs.iter().map(|job| match job {
        Job::Single => 4 * rounds,
        Job::Batched => 5 * rounds,
        Job::StartUp => 2 * rounds + 1,
    });
    let (sq, run) = args.broker.begin(steps.sum())?;
    let bench = Bench {
        args,
        sq,
        run,
        value: value(RECORD_BYTES),
    };
    let mut table = Table::new("produce: records of 1 KiB, every acknowledgement synced");
    for job in &args.jobs {
        match job {
            Job::Single => single::run(&bench, &mut table)?,
            Job::Batched => batched::run(&bench, &mut table)?,
            Job::StartUp => start_up::run(&bench, &mut table)?,
        }
    }
    let load = bench.run.finish()?;
    crate::run::print(&table, &load)
}

impl Bench<'_> {
    /// Starts a broker on a directory of that name.
    fn broker(&self, name: &str) -> Result<Broker> {
        Broker::start(&self.sq, &self.run.dir().join(name))
    }
}
