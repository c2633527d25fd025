//! What unit tests on the simulated disk share.

use std::future::Future;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use sq_sim::{FileSystem, InMemoryFileSystem, Keep};

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

/// The ways in which a process or its machine can stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    Process,
    Power(Keep),
    ProcessThenPower(Keep),
}

impl Stop {
    pub(crate) const ALL: [Self; 7] = [
        Self::Process,
        Self::Power(Keep::None),
        Self::Power(Keep::All),
        Self::Power(Keep::Prefix),
        Self::Power(Keep::Mixed),
        Self::ProcessThenPower(Keep::None),
        Self::ProcessThenPower(Keep::Mixed),
    ];

    pub(crate) fn strike(self, fs: &InMemoryFileSystem) {
        match self {
            Self::Process => fs.process_crash(),
            Self::Power(keep) => fs.power_loss(keep),
            Self::ProcessThenPower(keep) => {
                fs.process_crash();
                fs.power_loss(keep);
            }
        }
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
