//! What an append costs beside many partitions, and behind many segments, as ratios to one alone.
//!
//! `cargo run --release -p sq-storage --example scale [MOST]`
//!
//! With 1, 100 and 10,000 (or less, if told so) partitions open, and with as many sealed segments in the
//! one partition, appends of 1 KiB are timed in turn, each with its sync; medians.

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

async fn run(most: usize) -> Result<(), Box<dyn Error>> {
    println!("appends of 1 KiB, each synced, medians of {APPENDS}");
    println!(
        "{:>12} {:>24} {:>24}",
        "", "partitions open", "segments in the one"
    );
    let mut alone = None;
    for count in COUNTS.into_iter().filter(|count| *count <= most) {
        let (partitions, segments) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let mut many = Vec::new();
        for partition in 0..u32::try_from(count)? {
            let mut log = open(partitions.path(), partition).await?;
            log.append_batches(&[batch()]).await?;
            many.push(log);
        }
        let mut long = open(segments.path(), 0).await?;
        for _ in 1..count {
            long.append_batches(&[batch()]).await?;
            long.close_active_segment().await?;
        }
        let (mut beside, mut behind) = (Vec::new(), Vec::new());
        for n in 0..APPENDS {
            // Each of the many has its turn.
            let at = n * 7919 % count;
            if let Some(log) = many.get_mut(at) {
                beside.push(timed(log).await?);
            }
            behind.push(timed(&mut long).await?);
        }
        let (beside, behind) = (median(beside), median(behind));
        let (one, alone_behind) = *alone.get_or_insert((beside, behind));
        println!(
            "{count:>12} {beside:>14.1?} ({:>5.2}) {behind:>16.1?} ({:>5.2})",
            beside.as_secs_f64() / one.as_secs_f64(),
            behind.as_secs_f64() / alone_behind.as_secs_f64(),
        );
    }
    Ok(())
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
