//! How fast a log is opened and read, as ratios to a plain read of the same bytes with the same checksum.
//!
//! `cargo run --release -p sq-storage --example reads [MIB]`
//!
//! Writes a segment of 1 KiB records (1 GiB unless told otherwise) to the temporary directory, leaves it
//! as a crash would, and times, in turn and warm: the plain read, opening the log, reading it from its
//! start to its end. Prints the medians of the rounds.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sq_sim::{Clock, FileSystem, OsFileSystem, SystemClock};
use sq_storage::{Batch, StoredFrame, TailCache, TopicName, WalConfig, WalWriter};

const ROUNDS: usize = 7;
const READ_LEN: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mib: u64 = std::env::args()
        .nth(1)
        .map_or(Ok(1024), |arg| arg.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(run(mib))
}

async fn run(mib: u64) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let config = WalConfig {
        max_segment_bytes: u64::MAX,
        tail_cache: TailCache::off(),
        ..WalConfig::new(dir.path())
    };
    fill(config.clone(), mib << 10).await?;
    let segment = dir.path().join("measured/0/00000000000000000000.wal");
    let (mut plain, mut opening, mut reading) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(timed(plain_read(&segment)).await?);
        opening.push(timed(open(config.clone())).await?);
        let log = open(config.clone()).await?;
        reading.push(timed(read(&log)).await?);
    }
    let (plain, opening, reading) = (median(plain), median(opening), median(reading));
    println!("{mib} MiB of 1 KiB records, warm, medians of {ROUNDS}");
    println!("plain read with checksum  {plain:>10.1?}");
    println!(
        "open                      {opening:>10.1?}  {:.2} of the plain read's time",
        ratio(opening, plain)
    );
    println!(
        "sequential read           {reading:>10.1?}  {:.2} of the plain read's speed",
        ratio(plain, reading)
    );
    Ok(())
}

async fn open(config: WalConfig) -> Result<WalWriter<OsFileSystem>, Box<dyn Error>> {
    let (fs, topic) = (
        Arc::new(OsFileSystem::inline()),
        TopicName::new("measured")?,
    );
    Ok(WalWriter::new(fs, config, topic, 0).await?)
}

async fn fill(config: WalConfig, records: u64) -> Result<(), Box<dyn Error>> {
    let mut log = open(config).await?;
    let batch = Batch {
        payload: vec![Bytes::from(vec![0x5a; 1024 - 64])],
        record_count: 1,
        max_timestamp_ms: 0,
        leader_epoch: 0,
    };
    let batches = vec![batch; 256];
    for _ in 0..records / 256 {
        log.append_batches(&batches).await?;
    }
    Ok(())
}

async fn plain_read(path: &Path) -> Result<(), Box<dyn Error>> {
    let file = OsFileSystem::inline().open_read_only(path).await?;
    let len = file.len().await?;
    let mut checksum = crc32fast::Hasher::new();
    let mut position = 0;
    while position < len {
        let piece = file.read_at(position, READ_LEN).await?;
        checksum.update(&piece);
        position += piece.len() as u64;
    }
    std::hint::black_box(checksum.finalize());
    Ok(())
}

async fn read(log: &WalWriter<OsFileSystem>) -> Result<(), Box<dyn Error>> {
    let reader = log.reader();
    let mut next = 0;
    while next < reader.end_offset() {
        let frames = reader.read(next, READ_LEN).await?;
        next = frames.last().map_or(next, StoredFrame::end_offset);
        std::hint::black_box(frames);
    }
    Ok(())
}

async fn timed<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<Duration, E> {
    let clock = SystemClock;
    let began = clock.now();
    let done = work.await?;
    let took = clock.now().duration_since(began);
    drop(done);
    Ok(took)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}
