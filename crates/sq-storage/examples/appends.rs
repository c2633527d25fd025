//! How many durable appends of 1 KiB a log takes, as ratios to one at a time on the bare disk.
//!
//! `cargo run --release -p sq-storage --example appends [window|callers|batches] [COUNT] [SECONDS]`
//!
//! One producer that keeps COUNT appends on their way (256 unless told otherwise), COUNT threads that each wait
//! for theirs, or one that appends COUNT records with each call. The bare disk, a write and a sync to a file of zeros, is measured before and
//! after. Under `perf stat` or `time -v` it tells what an append costs in processor time and switches,
//! which other load on the machine does not change.

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sq_sim::{Clock, FileSystem, Instant, OsFileSystem, SystemClock};
use sq_storage::log::{Append, AppendThreads, Executor, Log, LogConfig, Pending};
use sq_storage::{Batch, Maintenance, MaintenanceMode, TopicName, WalConfig, WalWriter};

const VALUE: [u8; 1024] = [0x5a; 1024];
const FLOOR_TIME: Duration = Duration::from_millis(300);
const FLOOR_BYTES: u64 = 16 << 20;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let job = args.next().unwrap_or_else(|| "window".to_owned());
    let count = args.next().map_or(Ok(256), |arg| arg.parse())?;
    let seconds = args.next().map_or(Ok(1.0), |arg| arg.parse())?;
    let time = Duration::from_secs_f64(seconds);
    let dir = tempfile::tempdir_in(".")?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let before = runtime.block_on(floor(dir.path()))?;
    let executor = match job.as_str() {
        "window" => Executor::Threads(AppendThreads::start(1)?),
        "callers" | "batches" => Executor::Inline,
        other => return Err(format!("{other}: there are window, callers and batches").into()),
    };
    let (log, chores) = runtime.block_on(open(dir.path(), executor.clone()))?;
    let chores = std::thread::Builder::new()
        .name("chores".to_owned())
        .spawn(move || do_chores(&chores))?;
    let (records, took) = match executor {
        Executor::Inline if job == "batches" => batches(&log, count, time)?,
        Executor::Inline => callers(&log, count, time)?,
        _ => runtime.block_on(window(&log, count, time))?,
    };
    runtime.block_on(log.close())?;
    chores.join().map_err(|_| "the chores panicked")??;
    let after = runtime.block_on(floor(dir.path()))?;
    let floor = f64::midpoint(before, after);
    let rate = f64::from(records) / took.as_secs_f64();
    println!(
        "{job} {count}: {records} records, {rate:.0}/s, {:.1} x the floor of {floor:.0}/s",
        rate / floor
    );
    Ok(())
}

/// Does what no append has to wait for, until the log is closed.
fn do_chores(chores: &Maintenance<OsFileSystem>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    runtime.block_on(async {
        while chores.wait().await {
            chores.run().await?;
        }
        Ok(())
    })
}

async fn open(
    dir: &Path,
    executor: Executor,
) -> Result<(Log<OsFileSystem>, Maintenance<OsFileSystem>), Failure> {
    let config = WalConfig {
        max_segment_bytes: 4 << 30,
        maintenance: MaintenanceMode::Handed,
        ..WalConfig::new(dir)
    };
    let fs = Arc::new(OsFileSystem::inline().with_direct_writes());
    let writer = WalWriter::new(fs, config, TopicName::new("measured")?, 0).await?;
    let config = LogConfig {
        executor,
        ..LogConfig::default()
    };
    let chores = writer.maintenance();
    Ok((Log::new(writer, config), chores))
}

/// Appends a second on the bare disk.
async fn floor(dir: &Path) -> Result<f64, Failure> {
    let fs = OsFileSystem::inline();
    let path = dir.join("floor");
    let file = fs.create_new(&path).await?;
    let zeros = [Bytes::from(vec![0; 1 << 20])];
    for position in (0..FLOOR_BYTES).step_by(1 << 20) {
        file.write_at(position, &zeros).await?;
    }
    file.sync_all().await?;
    let value = [Bytes::from_static(&VALUE)];
    let (mut count, began) = (0_u32, now());
    while now().duration_since(began) < FLOOR_TIME {
        let position = u64::from(count) * 1024 % FLOOR_BYTES;
        file.write_and_sync_at(position, &value).await?;
        count += 1;
    }
    let took = now().duration_since(began);
    fs.remove_file(&path).await?;
    Ok(f64::from(count) / took.as_secs_f64())
}

async fn window(
    log: &Log<OsFileSystem>,
    size: usize,
    time: Duration,
) -> Result<(u32, Duration), Failure> {
    let mut under_way: VecDeque<Pending<OsFileSystem>> = VecDeque::with_capacity(size);
    let (mut count, began) = (0, now());
    while now().duration_since(began) < time {
        if under_way.len() >= size
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.await?;
        }
        let record = Append::record(None, Some(&VALUE), &[], 1)?;
        under_way.push_back(log.submit(record).await?);
        count += 1;
    }
    for pending in under_way {
        pending.await?;
    }
    Ok((count, now().duration_since(began)))
}

fn callers(
    log: &Log<OsFileSystem>,
    callers: usize,
    time: Duration,
) -> Result<(u32, Duration), Failure> {
    let began = now();
    let counts: Vec<Result<u32, Failure>> = std::thread::scope(|scope| {
        let one = || {
            let mut count = 0;
            while now().duration_since(began) < time {
                log.append_blocking(None, &VALUE, &[], 1)?;
                count += 1;
            }
            Ok(count)
        };
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(one)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<u32, Failure>>| {
            let panicked = |_| Err("a caller panicked".into());
            thread.join().unwrap_or_else(panicked)
        };
        threads.into_iter().map(join).collect()
    });
    let records = counts.into_iter().sum::<Result<u32, _>>()?;
    Ok((records, now().duration_since(began)))
}

fn batches(
    log: &Log<OsFileSystem>,
    size: usize,
    time: Duration,
) -> Result<(u32, Duration), Failure> {
    let (mut count, began) = (0, now());
    while now().duration_since(began) < time {
        let one = |_| Batch {
            payload: vec![Bytes::copy_from_slice(&VALUE)],
            record_count: 1,
            max_timestamp_ms: 1,
            leader_epoch: 0,
        };
        let batches: Vec<_> = (0..size).map(one).collect();
        count += u32::try_from(batches.len())?;
        log.append_batches_blocking(batches)?;
    }
    Ok((count, now().duration_since(began)))
}

fn now() -> Instant {
    SystemClock.now()
}
