//! Rolls whose metadata comes behind, cut short anywhere, and what the next opening makes of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sq_meta::{
    Broker, BrokerId, Command, LinkState, MetaLog, MetaLogConfig, PartitionId, SegmentId,
    StoreConfig,
};
use sq_roll::{Request, Seal, SourceError, Start, SuccessorSource, Ticket, Trigger};
use sq_sim::{Effect, Errno, Fault, InMemoryFileSystem, Keep, OpKind, PathPattern, VirtualClock};
use sq_storage::{SegmentIds, TopicName, WalConfig, WalWriter};

use super::chain::{self, ChainError};
use super::{MetaSource, Metadata, TopicId, TopicRecord};
use crate::testing::{DIR, block_on, cut_short_anywhere, disk};

type Fs = InMemoryFileSystem;

const LOG: &str = "/data/t/0";

pub(super) fn topic() -> TopicRecord {
    TopicRecord {
        name: TopicName::new("t").unwrap(),
        id: TopicId::from_random(1),
        partitions: 1,
        configs: BTreeMap::new(),
    }
}

pub(super) fn partition() -> PartitionId {
    PartitionId {
        topic: topic().id,
        partition: 0,
    }
}

pub(super) fn broker(seed: u64) -> Broker {
    Broker {
        id: BrokerId(1),
        incarnation: seed,
        host: "localhost".into(),
        port: 9092,
        rack: None,
    }
}

/// A broker's metadata and one partition of it, open.
struct Node {
    metadata: Metadata<Fs>,
    writer: WalWriter<Fs>,
    source: MetaSource<Fs>,
    start: Start,
}

async fn metadata(fs: &Fs, seed: u64) -> Result<Metadata<Fs>, String> {
    let config = MetaLogConfig {
        store: StoreConfig {
            segment_ids: SegmentIds::seeded(seed + 1000),
            clock: Arc::new(VirtualClock::new()),
            ..StoreConfig::new("/data/@raft")
        },
        ..MetaLogConfig::new(BrokerId(1), "/data/@raft")
    };
    let log = MetaLog::open(Arc::new(fs.for_this_process()), config).await;
    let log = log.map_err(|e| e.to_string())?;
    let metadata = Metadata::new(log, broker(seed), SegmentIds::seeded(seed));
    if metadata.state().topic(topic().id).is_none() {
        let created = metadata.create_topic(topic()).await;
        created.map_err(|e| e.to_string())?;
    }
    Ok(metadata)
}

async fn writer(fs: &Fs, seed: u64) -> Result<WalWriter<Fs>, String> {
    let wal = WalConfig {
        max_segment_bytes: 4096,
        zero_ahead_bytes: 0,
        segment_ids: SegmentIds::seeded(seed + 2000),
        ..WalConfig::new(DIR)
    };
    let fs = Arc::new(fs.for_this_process());
    let writer = WalWriter::new(fs, wal, topic().name, 0).await;
    let mut writer = writer.map_err(|e| e.to_string())?;
    writer.take_no_step_alone();
    Ok(writer)
}

impl Node {
    async fn open(fs: &Fs, seed: u64) -> Result<Self, String> {
        let metadata = metadata(fs, seed).await?;
        let writer = writer(fs, seed).await?;
        let start = chain::resume(&metadata, partition(), &writer).await;
        let start = start.map_err(|e| e.to_string())?;
        let source = MetaSource::new(metadata.clone(), partition(), writer.reader());
        Ok(Self {
            metadata,
            writer,
            source,
            start,
        })
    }

    async fn append(&mut self) -> Result<(), String> {
        let goes_on_in = self.start.active.0;
        let active = self.writer.active_segment();
        if active.is_none_or(|active| active.id != goes_on_in) {
            let begun = self.writer.begin(goes_on_in).await;
            begun.map_err(|e| e.to_string())?;
        }
        let appended = self.writer.append(None, b"record", &[], 1).await;
        appended.map(drop).map_err(|e| e.to_string())
    }

    fn ticket(&self, segment: u64) -> Ticket {
        Ticket {
            segment: sq_roll::SegmentId(segment),
            epoch: self.start.epoch,
        }
    }

    fn request(&self, successor: u64) -> Request {
        let active = self.writer.active_segment().unwrap();
        Request {
            successor: self.ticket(successor),
            predecessor: sq_roll::SegmentId(active.id),
            trigger: Trigger::Size,
        }
    }

    /// A roll up to the switch, as a leader makes it: the metadata first, then the file.
    async fn switch(&mut self, successor: u64) -> Result<Seal, String> {
        let before = self.writer.active_segment().unwrap();
        let prepared = self.source.prepare(self.request(successor)).await;
        prepared.map_err(|e| e.to_string())?;
        let prepared = self.writer.preparation(Some(successor)).run().await;
        let armed = self.writer.arm(prepared.map_err(|e| e.to_string())?);
        assert!(armed.is_ok() && self.writer.switch());
        let seal = Seal {
            segment: self.ticket(before.id),
            end: self.writer.next_offset(),
            successor: sq_roll::SegmentId(successor),
        };
        self.start.active = seal.successor;
        self.start.base = seal.end;
        Ok(seal)
    }

    async fn sealed(&self, seal: Seal) -> Result<(), String> {
        self.source.sealed(seal).await.map_err(|e| e.to_string())
    }

    /// A roll: the seal is committed behind the next segment's first record.
    async fn roll(&mut self, successor: u64) -> Result<(), String> {
        let seal = self.switch(successor).await?;
        self.append().await?;
        self.sealed(seal).await
    }

    /// The same with the seal before the record: they are under way at the same time.
    async fn roll_with_an_early_seal(&mut self, successor: u64) -> Result<(), String> {
        let seal = self.switch(successor).await?;
        self.sealed(seal).await?;
        self.append().await
    }

    /// Appends and rolls until something fails.
    async fn live(&mut self, ids: std::ops::Range<u64>) -> Result<(), String> {
        for id in ids {
            self.append().await?;
            self.append().await?;
            if id.is_multiple_of(2) {
                self.roll_with_an_early_seal(id).await?;
            } else {
                self.roll(id).await?;
            }
        }
        Ok(())
    }

    fn check(&self, context: &str) {
        let state = self.metadata.state();
        state.validate().unwrap();
        let known = state.partition(partition()).unwrap();
        let held = self.writer.reader().segments();
        // The file of an empty one does not say which it is.
        for held in held.iter().filter(|s| s.base_offset < s.end_offset) {
            let found = known.find(SegmentId(held.id)).map(|link| link.state);
            let base = match found {
                Some(LinkState::Sealed { base, .. } | LinkState::Active { base }) => base,
                other => panic!(
                    "{context}: {held:?} is {other:?} of {known:#?} start {:?} all {:#?}",
                    self.start,
                    self.writer.reader().segments()
                ),
            };
            assert_eq!(base, held.base_offset, "{context}");
        }
        assert_eq!(known.prepared, None, "{context}");
        assert_eq!(known.active.segment.id.0, self.start.active.0, "{context}");
        assert_eq!(known.active.base, self.start.base, "{context}");
    }
}

/// A disk, and a node on it that has rolled to these segments.
async fn lived(ids: std::ops::Range<u64>) -> (Fs, Node) {
    let fs = disk(1).await;
    let mut node = Node::open(&fs, 1).await.unwrap();
    node.live(ids).await.unwrap();
    (fs, node)
}

fn segments(fs: &Fs) -> Vec<PathBuf> {
    let is_segment = |f: &PathBuf| f.starts_with(LOG) && f.extension().is_some_and(|e| e == "wal");
    fs.files().into_iter().filter(is_segment).collect()
}

#[test]
fn a_roll_that_is_cut_short_anywhere_is_finished_or_undone_by_the_next_opening() {
    block_on(async {
        cut_short_anywhere(async |stop, at| {
            let fs = disk(at).await;
            fs.crash_after(at);
            let mut lived = Node::open(&fs, 1).await;
            if let Ok(node) = &mut lived {
                let _ = node.live(1..3).await;
            }
            let crashed = fs.is_crashed();
            let acknowledged = lived.map_or(0, |node| node.writer.next_offset());
            stop.strike(&fs);
            let context = format!("{stop:?} at {at}");
            // The opening behind it is cut short as well.
            fs.crash_after(at % 40);
            drop(Node::open(&fs, 2).await);
            stop.strike(&fs);

            let mut node = Node::open(&fs, 3).await.unwrap();
            node.check(&context);
            assert!(node.writer.next_offset() >= acknowledged, "{context}");
            node.live(11..13).await.unwrap();
            drop(node);
            fs.process_crash();
            let node = Node::open(&fs, 4).await.unwrap();
            node.check(&context);
            crashed
        })
        .await;
    });
}

#[test]
fn an_opening_in_good_order_tells_the_metadata_nothing() {
    block_on(async {
        let (fs, node) = lived(1..4).await;
        let revision = node.metadata.state().revision();
        drop(node);
        fs.process_crash();
        let node = Node::open(&fs, 2).await.unwrap();
        assert_eq!(node.metadata.state().revision(), revision);
        node.check("again");
    });
}

#[test]
fn a_log_goes_on_while_the_metadata_takes_no_commands_and_is_followed_later() {
    block_on(async {
        let (fs, node) = lived(1..3).await;
        let metadata = node.metadata.clone();
        drop(node);
        fs.inject(
            Fault::new(Effect::Fail(Errno::Io))
                .on(&[OpKind::WriteAt, OpKind::SyncData, OpKind::CreateNew])
                .path(PathPattern::Under("/data/@raft".into()))
                .always(),
        );
        // Segments of which the metadata hears nothing.
        for seed in 2..4 {
            let mut writer = writer(&fs, seed).await.unwrap();
            writer.begin(100 + seed).await.unwrap();
            writer.append(None, b"record", &[], 1).await.unwrap();
            writer.close().await.unwrap();
        }
        let writer = writer(&fs, 4).await.unwrap();
        let start = chain::resume(&metadata, partition(), &writer)
            .await
            .unwrap();
        assert_eq!(start.active.0, 103);
        let source = MetaSource::new(metadata.clone(), partition(), writer.reader());
        let mut node = Node {
            metadata,
            writer,
            source,
            start,
        };
        let refused = node.source.prepare(node.request(200)).await;
        assert!(matches!(refused, Err(SourceError::Retry(_))), "{refused:?}");
        node.append().await.unwrap();
        // The disk is well: the call is made again, and brings the rest along.
        fs.clear_faults();
        node.roll(200).await.unwrap();
        node.check("followed");
        let known = node.metadata.state();
        let chain = known.partition(partition()).unwrap().chain();
        let ids: Vec<_> = chain.map(|link| link.segment.id.0).collect();
        assert!(ids.ends_with(&[2, 102, 103, 200]), "{ids:?}");
    });
}

#[test]
fn calls_that_come_again_or_too_late_change_nothing() {
    block_on(async {
        let (_fs, mut node) = lived(1..1).await;
        node.append().await.unwrap();
        let first = node.request(50);
        for _ in 0..2 {
            node.source.prepare(first).await.unwrap();
        }
        // Given up, which takes effect once; then another takes its place.
        for _ in 0..2 {
            node.source.abandon(node.ticket(50)).await.unwrap();
        }
        node.source.prepare(node.request(51)).await.unwrap();
        let at = node.writer.active_segment().unwrap().id;
        node.source.abandon(node.ticket(51)).await.unwrap();
        node.roll(52).await.unwrap();
        let state = node.metadata.state();
        let seal = Seal {
            segment: node.ticket(at),
            end: 1,
            successor: sq_roll::SegmentId(52),
        };
        node.source.sealed(seal).await.unwrap();
        let late = node.source.prepare(first).await;
        assert!(matches!(late, Err(SourceError::Retry(_))), "{late:?}");
        let other = Seal { end: 9, ..seal };
        assert!(node.source.sealed(other).await.is_err());
        assert_eq!(*node.metadata.state(), *state);
        // A deposed leader hears of it.
        let begun = Command::BeginFailover {
            partition: partition(),
        };
        node.metadata.submit(begun).await.unwrap();
        let fenced = node.source.prepare(node.request(53)).await;
        let Err(SourceError::Fenced(epoch)) = fenced else {
            panic!("{fenced:?}")
        };
        assert_eq!(epoch.0, 1);
        node.metadata.delete_topic(topic().id).await.unwrap();
        let deleted = node.source.prepare(node.request(54)).await;
        assert!(matches!(deleted, Err(SourceError::Deleted)), "{deleted:?}");
    });
}

#[test]
fn a_successor_that_was_proposed_late_gives_way_to_the_one_that_is_wanted() {
    block_on(async {
        let (_fs, mut node) = lived(1..1).await;
        node.append().await.unwrap();
        node.source.prepare(node.request(60)).await.unwrap();
        // The leader knows nothing of it: it asked for its abandonment before it was there.
        node.roll(61).await.unwrap();
        let state = node.metadata.state();
        let known = state.partition(partition()).unwrap();
        assert_eq!(known.active.segment.id, SegmentId(61));
        assert_eq!(known.find(SegmentId(60)), None);
    });
}

#[test]
fn a_segment_that_the_metadata_has_ended_takes_no_further_append() {
    // The seal was committed and the power went before the next segment had its first record. The log
    // went on in the segment that was sealed: no successor of that was ever taken, at no later start
    // either, and once it was full the partition took nothing more.
    block_on(async {
        let (fs, mut node) = lived(1..2).await;
        node.append().await.unwrap();
        let seal = node.switch(2).await.unwrap();
        node.sealed(seal).await.unwrap();
        let end = node.writer.next_offset();
        drop(node);
        fs.power_loss(Keep::None);
        let mut node = Node::open(&fs, 2).await.unwrap();
        assert_eq!(
            node.writer.active_segment().unwrap().id,
            1,
            "it was not closed"
        );
        assert_eq!((node.start.active.0, node.start.base), (2, end));
        node.check("opened");
        node.live(11..13).await.unwrap();
        node.check("rolled");
    });
}

#[test]
fn a_log_that_ends_before_what_was_sealed_takes_no_append() {
    // Its files were lost, and a log that began anew would give offsets again that were acknowledged.
    block_on(async {
        let (fs, node) = lived(1..3).await;
        drop(node);
        for file in fs.files() {
            if file.starts_with(LOG) {
                sq_sim::FileSystem::remove_file(&fs, &file).await.unwrap();
            }
        }
        let metadata = metadata(&fs, 2).await.unwrap();
        let writer = writer(&fs, 2).await.unwrap();
        let refused = chain::resume(&metadata, partition(), &writer).await;
        assert!(
            matches!(refused, Err(ChainError::Lost { .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn an_unknown_segments_file_is_set_aside_and_kept() {
    block_on(async {
        let (fs, node) = lived(1..3).await;
        // A file that continues nothing, as a crash of another kind than any of ours might leave it.
        let stray = Path::new(LOG).join(format!("{:020}.wal", 999));
        let bytes = fs.read_file(&segments(&fs)[0]).unwrap();
        fs.write_file(&stray, bytes).unwrap();
        drop(node);
        fs.process_crash();
        let before = fs.files().len();
        let node = Node::open(&fs, 2).await.unwrap();
        let set_aside = &node.writer.recovery_report().set_aside;
        assert_eq!(set_aside.len(), 1, "{set_aside:?}");
        assert_eq!(fs.files().len(), before, "set aside, and nothing removed");
    });
}
