//! What several targets begin with: a log of one sealed segment and an open one behind it, as the files of a
//! disk.

use std::path::PathBuf;
use std::sync::Arc;

use sq_sim::{InMemoryFileSystem, VirtualClock};
use sq_storage::wal::manifest::ManifestContent;
use sq_storage::{
    RecoveryVisitor, SegmentIds, Sidecar, StoredFrame, TopicName, WalConfig, WalWriter,
};

pub const DIR: &str = "/data/t/0";

pub type Log = WalWriter<InMemoryFileSystem>;

pub struct Image {
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The sealed segment.
    pub id: u64,
    pub end_offset: u64,
    pub bytes: u64,
}

impl Image {
    /// A record for each length in the sealed segment, which is purged then if that is wanted, and one
    /// behind it.
    pub fn new(lengths: &[usize], is_purged: bool) -> Self {
        block_on(async {
            let disk = InMemoryFileSystem::new(0);
            let mut log = open(&disk, &mut Nobody).await;
            log.set_sidecar_source(|_| Some("known".into()));
            for (n, len) in (0..).zip(lengths) {
                log.append(None, &value(n, *len), &[], n).await.unwrap();
            }
            let closed = log.close_active_segment().await.unwrap().unwrap();
            let end_offset = closed.offsets.end;
            if is_purged {
                log.purge_to(end_offset).await.unwrap();
                log.removal().run().await.unwrap();
            }
            log.append(None, b"behind", &[], 0).await.unwrap();
            log.close().await.unwrap();
            Self {
                files: files(&disk),
                id: closed.id,
                end_offset,
                bytes: closed.bytes,
            }
        })
    }

    /// A record for each length in a segment that goes on and has a recovery point, and one behind it; nobody
    /// closed the log.
    pub fn unsealed(lengths: &[usize]) -> Self {
        block_on(async {
            let disk = InMemoryFileSystem::new(0);
            let mut log = open(&disk, &mut Nobody).await;
            for (n, len) in (0..).zip(lengths) {
                log.append(None, &value(n, *len), &[], n).await.unwrap();
            }
            let active = log.active_segment().unwrap();
            let end_offset = log.next_offset();
            log.append(None, b"behind", &[], 0).await.unwrap();
            Self {
                files: files(&disk),
                id: active.id,
                end_offset,
                bytes: active.bytes,
            }
        })
    }

    /// The recovery point of the segment.
    pub fn point(&self) -> &[u8] {
        let is_point =
            |(path, _): &&(PathBuf, Vec<u8>)| path.extension().is_some_and(|e| e == "point");
        let (_, point) = self.files.iter().find(is_point).unwrap();
        point
    }

    pub fn disk(&self) -> InMemoryFileSystem {
        let disk = InMemoryFileSystem::new(0);
        for (path, content) in &self.files {
            disk.write_file(path, content.clone()).unwrap();
        }
        disk
    }

    /// The manifest, which does not say what checksum an index has.
    pub fn manifest_of_no_index(&self) -> Vec<u8> {
        let is_manifest = |(path, _): &&(PathBuf, Vec<u8>)| path.ends_with("manifest");
        let (_, manifest) = self.files.iter().find(is_manifest).unwrap();
        let mut manifest = ManifestContent::decode(manifest);
        for seal in manifest.entries.iter_mut().flat_map(|e| &mut e.seal) {
            seal.index_checksum = 0;
        }
        manifest.encode().to_vec()
    }
}

fn files(disk: &InMemoryFileSystem) -> Vec<(PathBuf, Vec<u8>)> {
    let files = disk.files().into_iter();
    let files = files.map(|path| (path.clone(), disk.read_file(path).unwrap()));
    files.collect()
}

/// The value of a record.
pub fn value(n: u64, len: usize) -> Vec<u8> {
    vec![n as u8; len]
}

/// How the logs are kept: a recovery point is written right in front of the record that is appended last.
fn config() -> WalConfig {
    WalConfig {
        zero_ahead_bytes: 0,
        recovery_point_bytes: 150_000,
        segment_ids: SegmentIds::seeded(1),
        ..WalConfig::new("/data")
    }
}

/// Opens a log that nothing is wrong with but, perhaps, a recovery point, which is used.
pub async fn open_alone(disk: &InMemoryFileSystem) -> Log {
    let (fs, clock) = (disk.for_this_process(), VirtualClock::new());
    let topic = TopicName::new("t").unwrap();
    let opened = WalWriter::with_clock(Arc::new(fs), config(), topic, 0, Arc::new(clock)).await;
    let log = opened.expect("what is beside a segment hinders no opening");
    assert_eq!(log.recovery_report().damage, []);
    log
}

/// Opens a log that nothing is wrong with but, perhaps, a file beside a segment.
pub async fn open(disk: &InMemoryFileSystem, visitor: &mut dyn RecoveryVisitor) -> Log {
    let (fs, clock) = (disk.for_this_process(), VirtualClock::new());
    let topic = TopicName::new("t").unwrap();
    let opened =
        WalWriter::visited(Arc::new(fs), config(), topic, 0, Arc::new(clock), visitor).await;
    let log = opened.expect("what is beside a segment hinders no opening");
    assert_eq!(log.recovery_report().damage, []);
    log
}

/// A layer above that wants to know nothing.
pub struct Nobody;

impl RecoveryVisitor for Nobody {
    fn begin(&mut self, _: Option<&Sidecar>) -> Option<u64> {
        Some(u64::MAX)
    }

    fn frame(&mut self, _: &StoredFrame) {}
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}
