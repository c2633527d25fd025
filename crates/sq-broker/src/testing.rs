//! What unit tests on the simulated disk share.

use std::future::Future;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
pub(crate) use sq_sim::Stop;
use sq_sim::{FileSystem, InMemoryFileSystem};

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
