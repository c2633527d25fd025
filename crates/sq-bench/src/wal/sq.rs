//! sq-storage, as an embedder would use it.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use sq_sim::OsFileSystem;
use sq_storage::log::{Log, LogConfig};
use sq_storage::{Batch, Maintenance, MaintenanceMode, Spares, TopicName, WalConfig, WalWriter};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::subject::DurableLog;

/// Bytes of a segment that takes all that one run appends.
pub(super) const SEGMENT_BYTES: u64 = 4 << 30;

const TIMESTAMP_MS: u64 = 1_700_000_000_000;

/// A log, and the thread that does what no append has to wait for.
#[derive(Debug)]
pub(super) struct Sq {
    pub(super) log: Log<OsFileSystem>,
    _chores: Chores,
}

impl Sq {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        Self::open_with(dir, LogConfig::default(), SEGMENT_BYTES)
    }

    pub(super) fn open_with(dir: &Path, config: LogConfig, segment_bytes: u64) -> Result<Self> {
        let writer = writer(dir, segment_bytes)?;
        let chores = Chores::start(writer.maintenance())?;
        Ok(Self {
            log: Log::new(writer, config),
            _chores: chores,
        })
    }
}

/// Opens the one partition there is in a directory.
pub(super) fn writer(dir: &Path, segment_bytes: u64) -> Result<WalWriter<OsFileSystem>> {
    writer_with(dir, segment_bytes, Spares::default())
}

/// [`writer`], with a bound on the files that are kept to be written again.
pub(super) fn writer_with(
    dir: &Path,
    segment_bytes: u64,
    spares: Spares,
) -> Result<WalWriter<OsFileSystem>> {
    let config = WalConfig {
        max_segment_bytes: segment_bytes,
        spares,
        maintenance: MaintenanceMode::Handed,
        ..WalConfig::new(dir)
    };
    let topic = TopicName::new("bench")?;
    let fs = Arc::new(OsFileSystem::inline().with_direct_writes());
    Ok(runtime()?.block_on(WalWriter::new(fs, config, topic, 0))?)
}

/// Something to wait on, for calls that are futures.
pub(super) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_time()
        .build()
        .context("no runtime")
}

/// One batch that carries so many records.
pub(super) fn batch(records: &[Bytes]) -> Result<Batch> {
    Ok(Batch {
        payload: records.to_vec(),
        record_count: u32::try_from(records.len())?,
        max_timestamp_ms: TIMESTAMP_MS.cast_signed(),
        leader_epoch: 0,
    })
}

impl DurableLog for Sq {
    fn append(&self, _caller: usize, record: &[u8]) -> Result<()> {
        self.log.append_blocking(None, record, &[], TIMESTAMP_MS)?;
        Ok(())
    }

    fn append_all(&self, _caller: usize, records: &[&[u8]]) -> Result<()> {
        let one = |record: &&[u8]| batch(&[Bytes::copy_from_slice(record)]);
        let batches = records.iter().map(one).collect::<Result<_>>()?;
        self.log.append_batches_blocking(batches)?;
        Ok(())
    }
}

/// A thread that does a log's chores until it is dropped.
#[derive(Debug)]
pub(super) struct Chores {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    fn start(chores: Maintenance<OsFileSystem>) -> Result<Self> {
        Self::spawn(async move {
            while chores.wait().await {
                // It is said where it fails; what is left is tried again.
                let _ = chores.run().await;
            }
        })
    }

    pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Result<Self> {
        let runtime = runtime()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("chores".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        _ = stopped => {}
                        () = work => {}
                    }
                });
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}
