//! `roll`: what a producer and a consumer at the tail see of a broker's segment rolls.
//!
//! A broker of small segments is driven at a steady rate, once with segments that are prepared ahead of
//! time and once with a broker that reacts at the cap, while commits of its metadata are held up by
//! known times. Where the segments end is what the broker's own records of its rolls say.

mod drive;
mod plot;
mod records;
mod report;
mod windows;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::broker::{self, Broker};
use crate::run::Run;
use crate::wire::Connection;
use drive::Load;
use report::Series;

const TOPIC: &str = "rolls";

/// Bytes of a record's value, such that four frames make a page or so.
const RECORD_BYTES: usize = 1000;

/// What a record takes in a segment, in bytes, with the header of its batch and frame.
const FRAME_BYTES: u64 = 1160;

/// What `roll` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    broker: broker::Args,
    /// Rolls of each series; a tenth of it where commits take half a second or more.
    #[arg(long, default_value_t = 1_000)]
    rolls: u64,
    /// By how much commits are held up, in milliseconds.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 5, 50, 500])]
    delays: Vec<u64>,
    /// Records a second.
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
    /// Where the figure goes.
    #[arg(long, value_name = "FILE", default_value = "roll.svg")]
    svg: PathBuf,
}

/// Who asks for the next segment when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Reactive,
    Anticipatory,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Reactive => "reactive",
            Self::Anticipatory => "anticipatory",
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (sq, run) = args.broker.begin(2 * args.delays.len() as u64)?;
    let mut all = Vec::new();
    for &delay in &args.delays {
        for mode in [Mode::Reactive, Mode::Anticipatory] {
            run.step(format!("{}, commits {delay} ms late", mode.name()));
            all.push(series(args, &sq, &run, mode, delay)?);
        }
    }
    let load = run.finish()?;
    plot::draw(&args.svg, &all)?;
    report::print(&all, &load, &args.svg)
}

fn series(args: &Args, sq: &Path, run: &Run, mode: Mode, delay_ms: u64) -> Result<Series> {
    let dir = run.dir().join(format!("{}-{delay_ms}", mode.name()));
    fs_create_dir(&dir)?;
    let (config, log) = (dir.join("sq.toml"), dir.join("log"));
    let settings = format!(
        "[roll]\nmode = \"{}\"\n[meta]\ncommit_delay_ms = {delay_ms}\n",
        mode.name()
    );
    write(&config, &settings)?;
    let broker = Broker::start_rolling(sq, &dir.join("data"), &config, create(&log)?)?;
    let bootstrap = broker.address().to_string();
    // Longer than two commits and a preparation, and no less than two windows and what is between.
    let fill = Duration::from_millis(3 * delay_ms).max(Duration::from_millis(250));
    let records = args.rate * u64::try_from(fill.as_millis())? / 1000;
    let bytes = records * FRAME_BYTES;
    let settings = [("segment.bytes", bytes.to_string())];
    Connection::open(broker.address())?.create_topic(TOPIC, 1, &settings)?;
    let rolls = if delay_ms >= 500 {
        args.rolls.div_ceil(10)
    } else {
        args.rolls
    };
    let load = Load {
        records: records * (rolls + 1),
        rate: args.rate,
    };
    let seen = drive::run(&bootstrap, TOPIC, load)?;
    drop(broker);
    let rolls = records::parse(&read(&log)?)?;
    Ok(Series {
        mode,
        delay_ms,
        seen,
        rolls,
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a scratch directory of a benchmark"
)]
fn fs_create_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| path.display().to_string())
}

#[expect(clippy::disallowed_methods, reason = "a scratch file of a benchmark")]
fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

#[expect(clippy::disallowed_methods, reason = "a scratch file of a benchmark")]
fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| path.display().to_string())
}

#[expect(clippy::disallowed_methods, reason = "a scratch file of a benchmark")]
fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}
