//! What an append costs beside many partitions, and behind many segments, as ratios to one alone.
//!
//! `cargo run --release -p sq-storage --example scale [MOST]`
//!
//! With 1, 100 and 10,000 (or less, if told so) partitions open, and with as many segments in the one
//! partition, appends of 1 KiB are timed in turn, each with its sync; medians. Every partition that was
//! written to keeps one file open, so 10,000 of them need a hard limit of some more (`ulimit -Hn`). They
//! are made in the system's directory for temporary files, which should be on a disk (`TMPDIR`).

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sq_sim::{Clock, FileSystem, OsFileSystem, SystemClock};
use sq_storage::{Batch, TopicName, WalConfig, WalWriter};

const APPENDS: usize = 400;
const COUNTS: [usize; 3] = [1, 100, 10_000];

type Log = WalWriter<OsFileSystem>;

fn main() -> Result<(), Box<dyn Error>> {
    let most: usize = std::env::args()
        .nth(1)
        .map_or(Ok(10_000), |arg| arg.parse())?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(run(most))
}

/// One partition among many that are open, or one with many sealed segments.
struct Place {
    log: Log,
    times: Vec<Duration>,
    _others: Vec<Log>,
    _dir: tempfile::TempDir,
}

async fn run(most: usize) -> Result<(), Box<dyn Error>> {
    let mut places = Vec::new();
    for count in COUNTS.into_iter().filter(|count| *count <= most) {
        let before = open_files().await?;
        let among = among_partitions(count).await?;
        let files = open_files().await? - before;
        places.push((count, among, files, behind_segments(count).await?));
    }
    // In turn, so that whatever else the machine does hits all alike.
    for _ in 0..APPENDS {
        for (_, among, _, behind) in &mut places {
            among.append().await?;
            behind.append().await?;
        }
    }
    println!("appends of 1 KiB, each synced, medians of {APPENDS}");
    println!(
        "{:>12} {:>24} {:>12} {:>24}",
        "", "partitions open", "files open", "segments in the one"
    );
    let mut alone = None;
    for (count, among, files, behind) in places {
        let (among, behind) = (median(among.times), median(behind.times));
        let (first, second) = *alone.get_or_insert((among, behind));
        println!(
            "{count:>12} {among:>14.1?} ({:>5.2}) {files:>14} {behind:>16.1?} ({:>5.2})",
            among.as_secs_f64() / first.as_secs_f64(),
            behind.as_secs_f64() / second.as_secs_f64(),
        );
    }
    Ok(())
}

async fn among_partitions(count: usize) -> Result<Place, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    // Its clones share their bounds, as a node's partitions do.
    let config = WalConfig::new(dir.path());
    let mut log = open(&config, 0).await?;
    log.append_batches(&[batch()]).await?;
    let mut others = Vec::new();
    for partition in 1..u32::try_from(count)? {
        let mut log = open(&config, partition).await?;
        log.append_batches(&[batch()]).await?;
        others.push(log);
    }
    Ok(Place::new(log, others, dir))
}

async fn behind_segments(count: usize) -> Result<Place, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut log = open(&WalConfig::new(dir.path()), 0).await?;
    for _ in 1..count {
        log.append_batches(&[batch()]).await?;
        log.close_active_segment().await?;
    }
    Ok(Place::new(log, Vec::new(), dir))
}

impl Place {
    fn new(log: Log, others: Vec<Log>, dir: tempfile::TempDir) -> Self {
        Self {
            log,
            times: Vec::new(),
            _others: others,
            _dir: dir,
        }
    }

    async fn append(&mut self) -> Result<(), Box<dyn Error>> {
        let took = timed(&mut self.log).await?;
        self.times.push(took);
        Ok(())
    }
}

async fn open(config: &WalConfig, partition: u32) -> Result<Log, Box<dyn Error>> {
    let (fs, topic) = (
        Arc::new(OsFileSystem::inline()),
        TopicName::new("measured")?,
    );
    Ok(WalWriter::new(fs, config.clone(), topic, partition).await?)
}

/// How many files this process has open.
async fn open_files() -> std::io::Result<usize> {
    let fs = OsFileSystem::inline();
    Ok(fs.list_dir(Path::new("/proc/self/fd")).await?.len())
}

fn batch() -> Batch {
    Batch {
        payload: vec![Bytes::from(vec![0x5a; 1024 - 64])],
        record_count: 1,
        max_timestamp_ms: 0,
        leader_epoch: 0,
    }
}

async fn timed(log: &mut Log) -> Result<Duration, Box<dyn Error>> {
    let clock = SystemClock;
    let batch = [batch()];
    let began = clock.now();
    log.append_batches(&batch).await?;
    Ok(clock.now().duration_since(began))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
