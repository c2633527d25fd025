//! What an append costs beside many partitions, and behind many segments, as ratios to one alone.
//!
//! `cargo run --release -p sq-storage --example scale [MOST]`
//!
//! With 1, 100 and 10,000 (or less, if told so) partitions open, and with as many segments in the one
//! partition, appends of 1 KiB are timed in turn, each with its sync; medians. 10,000 partitions take as
//! many open files twice (`ulimit -n`).

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sq_sim::{Clock, OsFileSystem, SystemClock};
use sq_storage::{Batch, TopicName, WalConfig, WalWriter};

const APPENDS: usize = 400;
const COUNTS: [usize; 3] = [1, 100, 10_000];

type Log = WalWriter<OsFileSystem>;

fn main() -> Result<(), Box<dyn Error>> {
    let most: usize = std::env::args()
        .nth(1)
        .map_or(Ok(10_000), |arg| arg.parse())?;
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
        places.push((
            count,
            among_partitions(count).await?,
            behind_segments(count).await?,
        ));
    }
    // In turn, so that whatever else the machine does hits all alike.
    for _ in 0..APPENDS {
        for (_, among, behind) in &mut places {
            among.append().await?;
            behind.append().await?;
        }
    }
    println!("appends of 1 KiB, each synced, medians of {APPENDS}");
    println!(
        "{:>12} {:>24} {:>24}",
        "", "partitions open", "segments in the one"
    );
    let mut alone = None;
    for (count, among, behind) in places {
        let (among, behind) = (median(among.times), median(behind.times));
        let (first, second) = *alone.get_or_insert((among, behind));
        println!(
            "{count:>12} {among:>14.1?} ({:>5.2}) {behind:>16.1?} ({:>5.2})",
            among.as_secs_f64() / first.as_secs_f64(),
            behind.as_secs_f64() / second.as_secs_f64(),
        );
    }
    Ok(())
}

async fn among_partitions(count: usize) -> Result<Place, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let log = open(dir.path(), 0).await?;
    let mut others = Vec::new();
    for partition in 1..u32::try_from(count)? {
        let mut log = open(dir.path(), partition).await?;
        log.append_batches(&[batch()]).await?;
        others.push(log);
    }
    Ok(Place::new(log, others, dir))
}

async fn behind_segments(count: usize) -> Result<Place, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut log = open(dir.path(), 0).await?;
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

async fn open(dir: &Path, partition: u32) -> Result<Log, Box<dyn Error>> {
    let (fs, topic) = (
        Arc::new(OsFileSystem::inline()),
        TopicName::new("measured")?,
    );
    Ok(WalWriter::new(fs, WalConfig::new(dir), topic, partition).await?)
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
