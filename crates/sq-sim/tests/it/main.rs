//! What the simulated file system, the real one and the clocks do, each fault shown to happen.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod cancel;
mod clock;
mod determinism;
mod faults;
mod loss;
mod model;
mod names;
mod os;
mod plain;
mod syncs;

use std::future::Future;
use std::path::Path;

use bytes::Bytes;
use sq_sim::{FileHandle, FileSystem, InMemoryFileSystem};

/// Runs a future to its end on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn b(bytes: &[u8]) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(bytes)]
}

/// A file with these bytes, durable with its name, and a handle on it.
async fn durable_file(fs: &InMemoryFileSystem, path: &str, bytes: &[u8]) -> Box<dyn FileHandle> {
    fs.write_file(path, bytes).unwrap();
    fs.open(p(path)).await.unwrap()
}
