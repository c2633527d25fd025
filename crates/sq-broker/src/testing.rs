//! What unit tests on the simulated disk share.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use rand::SeedableRng;
use rand::rngs::StdRng;
pub(crate) use sq_sim::Stop;
use sq_sim::{Clock, FileSystem, InMemoryFileSystem, VirtualClock};
use sq_storage::log::Executor;

use crate::broker::{Broker, StartError, Surroundings};
use crate::config::{Config, HostPort, RollConfig};
use crate::partition::Appends;

/// The data directory of the tests.
pub(crate) const DIR: &str = "/data";

/// Runs a test on one thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// An empty disk with a data directory.
pub(crate) async fn disk(seed: u64) -> InMemoryFileSystem {
    let fs = InMemoryFileSystem::new(seed);
    fs.create_dir_all(Path::new(DIR)).await.unwrap();
    fs.sync_dir(Path::new("/")).await.unwrap();
    fs
}

/// Runs a life for every way of ending it, and for each with ever more operations before the end, until
/// it says that it was not cut short.
pub(crate) async fn cut_short_anywhere(mut life: impl AsyncFnMut(Stop, u64) -> bool) {
    for stop in Stop::ALL {
        let mut at = 0;
        while life(stop, at).await {
            at += 1;
        }
    }
}

pub(crate) type TestBroker = Arc<Broker<InMemoryFileSystem>>;

/// Starts a broker on a disk, as a process of its own.
pub(crate) async fn try_start_with(
    fs: &InMemoryFileSystem,
    seed: u64,
    clock: Arc<dyn Clock>,
    set: impl FnOnce(&mut Config),
) -> Result<TestBroker, StartError> {
    let mut config = Config {
        data_dir: DIR.into(),
        // The simulated disk is slow to allocate much.
        reserve_bytes: 64 << 10,
        ..Config::default()
    };
    // On a disk that takes nothing there is no successor to wait for.
    config.roll.longest_wait = Duration::from_millis(1);
    set(&mut config);
    let fs = Arc::new(fs.for_this_process());
    let surroundings = Surroundings {
        fs: Arc::clone(&fs),
        appends: Appends {
            fs,
            executor: Executor::Runtime(tokio::runtime::Handle::current()),
        },
        clock,
        rng: StdRng::seed_from_u64(seed),
    };
    Broker::start(config, HostPort::new("localhost", 9092), surroundings).await
}

/// A broker on a simulated disk and clock that keeps no reserve, and whatever it is given.
pub(crate) async fn broker(
    fs: &InMemoryFileSystem,
    clock: &VirtualClock,
    set: impl FnOnce(&mut Config),
) -> TestBroker {
    let set = |config: &mut Config| {
        config.reserve_bytes = 0;
        config.roll = RollConfig::default();
        // What these batches hold is from 1970.
        config.topic.retention_ms = None;
        set(config);
    };
    let started = try_start_with(fs, 1, Arc::new(clock.clone()), set).await;
    started.unwrap()
}

/// Lets the tasks run for so long.
pub(crate) async fn pass(clock: &VirtualClock, mut time: Duration) {
    while !time.is_zero() {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        let step = time.min(Duration::from_secs(1));
        clock.advance(step);
        time -= step;
    }
}

/// What becomes of something while time goes by: what waits for a segment to go to gives up at last.
pub(crate) async fn in_time<T>(clock: &VirtualClock, future: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        output = future => output,
        () = pass(clock, Duration::from_mins(1)) => panic!("no end within a minute"),
    }
}

/// A record batch whose header is right and whose records are `padding` bytes of nothing in
/// particular: the broker looks at no record.
pub(crate) fn batch(producer: Option<(i64, i16, i32)>, records: i32, padding: usize) -> Bytes {
    let (id, epoch, sequence) = producer.unwrap_or((-1, -1, -1));
    let mut covered = BytesMut::new();
    covered.put_i16(0); // attributes
    covered.put_i32(records - 1);
    covered.put_i64(1_000); // base timestamp
    covered.put_i64(1_000); // max timestamp
    covered.put_i64(id);
    covered.put_i16(epoch);
    covered.put_i32(sequence);
    covered.put_i32(records);
    covered.put_bytes(7, padding);
    let mut batch = BytesMut::new();
    batch.put_i64(0); // base offset
    batch.put_i32(i32::try_from(covered.len() + 9).unwrap());
    batch.put_i32(-1); // leader epoch
    batch.put_i8(2);
    batch.put_u32(crc32c::crc32c(&covered));
    batch.put_slice(&covered);
    batch.freeze()
}
