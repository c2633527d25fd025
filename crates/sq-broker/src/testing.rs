//! What unit tests on the simulated disk share.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use rand::SeedableRng;
use rand::rngs::StdRng;
pub(crate) use sq_sim::Stop;
use sq_sim::{FileSystem, InMemoryFileSystem, VirtualClock};
use sq_storage::log::Executor;

use crate::broker::{Broker, Surroundings};
use crate::config::{Config, HostPort};
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

/// A broker on a simulated disk and clock.
pub(crate) async fn broker(
    fs: &InMemoryFileSystem,
    clock: &VirtualClock,
    set: impl FnOnce(&mut Config),
) -> Arc<Broker<InMemoryFileSystem>> {
    let fs = Arc::new(fs.for_this_process());
    let surroundings = Surroundings {
        fs: Arc::clone(&fs),
        appends: Appends {
            fs,
            executor: Executor::Runtime(tokio::runtime::Handle::current()),
        },
        clock: Arc::new(clock.clone()),
        rng: StdRng::seed_from_u64(1),
    };
    let mut config = Config {
        data_dir: DIR.into(),
        reserve_bytes: 0,
        ..Config::default()
    };
    // What these batches hold is from 1970.
    config.topic.retention_ms = None;
    set(&mut config);
    let advertised = HostPort::new("localhost", 9092);
    Broker::start(config, advertised, surroundings)
        .await
        .unwrap()
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
