//! A disk, a clock, and a log on them.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use sq_sim::Stop;
use sq_sim::{InMemoryFileSystem, VirtualClock};
use sq_storage::wal::segment::SegmentName;
use sq_storage::{
    Error, LogReader, Record, RecoveryVisitor, Result, SegmentIds, Spares, TailCache, TopicName,
    WalConfig, WalWriter,
};

use crate::disk::{Disk, Habits};

pub(crate) type Writer = WalWriter<Disk>;
pub(crate) type Reader = LogReader<Disk>;

/// Where the tests keep their log.
pub(crate) const DIR: &str = "/data/orders/7";

/// The file of the segment that starts at `base`.
pub(crate) fn segment(base: u64) -> PathBuf {
    format!("{DIR}/{base:020}.wal").into()
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

/// Runs a future to its end; whenever it waits for time, time passes.
pub(crate) async fn as_time_passes<T>(clock: &VirtualClock, future: impl Future<Output = T>) -> T {
    let passing = async {
        loop {
            tokio::task::yield_now().await;
            clock.advance_to_next();
        }
    };
    tokio::select! {
        biased;
        output = future => output,
        () = passing => unreachable!("time does not end"),
    }
}

/// A machine with one partition on it.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) fs: InMemoryFileSystem,
    pub(crate) clock: VirtualClock,
    pub(crate) config: WalConfig,
    pub(crate) habits: Habits,
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Self {
        let config = WalConfig {
            max_segment_bytes: 1 << 20,
            max_segment_age: Duration::from_hours(1),
            max_frame_bytes: 1 << 18,
            segment_ids: SegmentIds::seeded(seed),
            zero_ahead_bytes: 0,
            // Most tests are about what the files hold.
            tail_cache: TailCache::off(),
            spares: Spares::none(),
            ..WalConfig::new("/data")
        };
        let clock = VirtualClock::new();
        Self {
            fs: InMemoryFileSystem::with_clock(seed, Arc::new(clock.clone())),
            clock,
            config,
            habits: Habits::default(),
        }
    }

    pub(crate) fn with_segment_bytes(mut self, bytes: u64) -> Self {
        self.config.max_segment_bytes = bytes;
        self
    }

    pub(crate) async fn try_open(&self) -> Result<Writer> {
        self.open_as("orders", 7).await
    }

    pub(crate) async fn open_as(&self, topic: &str, partition: u32) -> Result<Writer> {
        let topic = TopicName::new(topic).unwrap();
        let fs = Arc::new(Disk::new(&self.fs, self.habits));
        let clock = Arc::new(self.clock.clone());
        WalWriter::with_clock(fs, self.config.clone(), topic, partition, clock).await
    }

    /// Opens the log and brings a layer above back with it.
    pub(crate) async fn open_with(&self, layer: &mut dyn RecoveryVisitor) -> Result<Writer> {
        self.open_as_with("orders", 7, layer).await
    }

    pub(crate) async fn open_as_with(
        &self,
        topic: &str,
        partition: u32,
        layer: &mut dyn RecoveryVisitor,
    ) -> Result<Writer> {
        let topic = TopicName::new(topic).unwrap();
        let fs = Arc::new(Disk::new(&self.fs, self.habits));
        let clock = Arc::new(self.clock.clone());
        WalWriter::visited(fs, self.config.clone(), topic, partition, clock, layer).await
    }

    pub(crate) async fn open(&self) -> Writer {
        self.try_open().await.unwrap()
    }

    /// The segment files, in the order of their names.
    pub(crate) fn segments(&self) -> Vec<PathBuf> {
        let is_segment =
            |p: &PathBuf| SegmentName::parse(p.file_name().unwrap_or_default()).is_some();
        self.fs
            .files()
            .into_iter()
            .filter(|p| p.starts_with("/data"))
            .filter(is_segment)
            .collect()
    }
}

/// Every record's value, with the offsets checked to be consecutive from 0.
pub(crate) async fn values(reader: &Reader) -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    while (values.len() as u64) < reader.end_offset() {
        let frames = reader.read(values.len() as u64, 1 << 20).await.unwrap();
        assert!(!frames.is_empty(), "nothing at offset {}", values.len());
        for frame in frames {
            assert_eq!(frame.base_offset, values.len() as u64);
            let record = Record::decode(frame.payload).unwrap();
            values.push(record.value.unwrap().to_vec());
        }
    }
    values
}

/// A value that says which append it belongs to, of a length that varies.
pub(crate) fn value(n: u64) -> Vec<u8> {
    let mut value = format!("record {n} ").into_bytes();
    value.resize(
        20 + usize::try_from(n * 37 % 300).unwrap(),
        b'a' + (n % 26) as u8,
    );
    value
}

/// Whether an error is the simulated machine's own end.
pub(crate) fn is_crash(fs: &InMemoryFileSystem) -> bool {
    fs.is_crashed()
}

/// The file that an error names.
pub(crate) fn path_of(error: &Error) -> Option<&Path> {
    match error {
        Error::Damaged { path, .. }
        | Error::MissingSegment { path, .. }
        | Error::SegmentHeader { path, .. }
        | Error::Io { path, .. }
        | Error::Write { path, .. }
        | Error::Sync { path, .. } => Some(path),
        _ => None,
    }
}
