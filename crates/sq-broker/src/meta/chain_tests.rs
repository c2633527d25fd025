//! Rolls whose metadata comes behind, cut short anywhere, and what the next opening makes of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use sq_meta::{
    Broker, BrokerId, Command, Fate, LinkState, MetaLog, MetaLogConfig, MetaState, NewPartition,
    NewSegment, NewTopic, PartitionId, ReplicaSet, SegmentId, StoreConfig,
};
use sq_roll::{Request, Seal, SourceError, Start, SuccessorSource, Ticket, Trigger};
use sq_sim::{Effect, Errno, Fault, InMemoryFileSystem, OpKind, PathPattern, VirtualClock};
use sq_storage::{SegmentIds, TopicName, WalConfig, WalWriter};

use super::chain::{self, ChainError, Held, Rest};
use super::{MetaSource, Metadata, TopicId, TopicRecord};
use crate::testing::{DIR, Stop, block_on, disk};

type Fs = InMemoryFileSystem;

const LOG: &str = "/data/t/0";

fn topic() -> TopicRecord {
    TopicRecord {
        name: TopicName::new("t").unwrap(),
        id: TopicId::from_random(1),
        partitions: 1,
        configs: BTreeMap::new(),
    }
}

fn partition() -> PartitionId {
    PartitionId {
        topic: topic().id,
        partition: 0,
    }
}

fn broker(seed: u64) -> Broker {
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
        if self.writer.active_segment().is_none() {
            let begun = self.writer.begin(self.start.active.0).await;
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

    /// One roll as a leader makes it: the metadata first, then the file, the switch with the next
    /// record, and the seal behind it.
    async fn roll(&mut self, successor: u64) -> Result<(), String> {
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
        self.append().await?;
        self.source.sealed(seal).await.map_err(|e| e.to_string())
    }

    /// Appends and rolls until something fails.
    async fn live(&mut self, ids: std::ops::Range<u64>) -> Result<(), String> {
        for id in ids {
            self.append().await?;
            self.append().await?;
            self.roll(id).await?;
        }
        Ok(())
    }

    fn check(&self, context: &str) {
        let state = self.metadata.state();
        state.validate().unwrap();
        let known = state.partition(partition()).unwrap();
        for held in self.writer.reader().segments() {
            let found = known.find(SegmentId(held.id)).map(|link| link.state);
            let base = match found {
                Some(LinkState::Sealed { base, .. } | LinkState::Active { base }) => base,
                other => panic!("{context}: {held:?} is {other:?}"),
            };
            assert_eq!(base, held.base_offset, "{context}");
        }
        assert_eq!(known.prepared, None, "{context}");
        assert_eq!(known.active.segment.id.0, self.start.active.0, "{context}");
        assert_eq!(known.active.base, self.start.base, "{context}");
    }
}

fn segments(fs: &Fs) -> Vec<PathBuf> {
    let is_segment = |f: &PathBuf| f.starts_with(LOG) && f.extension().is_some_and(|e| e == "wal");
    fs.files().into_iter().filter(is_segment).collect()
}

#[test]
fn a_roll_that_is_cut_short_anywhere_is_finished_or_undone_by_the_next_opening() {
    block_on(async {
        for stop in Stop::ALL {
            for at in 0.. {
                let fs = disk(at).await;
                fs.crash_after(at);
                let mut lived = Node::open(&fs, 1).await;
                if let Ok(node) = &mut lived {
                    let _ = node.live(1..3).await;
                }
                let crashed = fs.is_crashed();
                drop(lived);
                stop.strike(&fs);
                let context = format!("{stop:?} at {at}");
                // The opening behind it is cut short as well.
                fs.crash_after(at % 40);
                drop(Node::open(&fs, 2).await);
                stop.strike(&fs);

                let files = segments(&fs);
                let mut node = Node::open(&fs, 3).await.unwrap();
                node.check(&context);
                // An empty file of an interrupted creation may go, and none with a record in it.
                let kept: Vec<_> = node.writer.reader().segments();
                assert!(
                    kept.iter().all(|s| segments(&fs).contains(&s.path))
                        && kept.len() <= files.len() + 1,
                    "{context}"
                );
                node.live(11..13).await.unwrap();
                drop(node);
                fs.process_crash();
                let node = Node::open(&fs, 4).await.unwrap();
                node.check(&context);
                if !crashed {
                    return;
                }
            }
        }
    });
}

#[test]
fn an_opening_in_good_order_tells_the_metadata_nothing() {
    block_on(async {
        let fs = disk(1).await;
        let mut node = Node::open(&fs, 1).await.unwrap();
        node.live(1..4).await.unwrap();
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
        let fs = disk(1).await;
        let mut node = Node::open(&fs, 1).await.unwrap();
        node.live(1..3).await.unwrap();
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
        node.start.active = sq_roll::SegmentId(200);
        node.start.base = node.writer.active_segment().unwrap().base_offset;
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
        let fs = disk(1).await;
        let mut node = Node::open(&fs, 1).await.unwrap();
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
        let fs = disk(1).await;
        let mut node = Node::open(&fs, 1).await.unwrap();
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
fn a_log_that_ends_before_what_was_sealed_takes_no_append() {
    // Its files were lost, and a log that began anew would give offsets again that were acknowledged.
    block_on(async {
        let fs = disk(1).await;
        let mut node = Node::open(&fs, 1).await.unwrap();
        node.live(1..3).await.unwrap();
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
fn nothing_says_that_an_unknown_segments_file_is_unneeded() {
    block_on(async {
        let fs = disk(1).await;
        let mut node = Node::open(&fs, 1).await.unwrap();
        node.live(1..3).await.unwrap();
        // A file that continues nothing, as a crash of another kind than any of ours might leave it.
        let stray = Path::new(LOG).join(format!("{:020}.wal", 999));
        let bytes = fs.read_file(&segments(&fs)[0]).unwrap();
        fs.write_file(&stray, bytes).unwrap();
        let state = node.metadata.state();
        let fate = state.fate_of(BrokerId(1), partition(), SegmentId(0xdead), 1000);
        assert_eq!(fate, Fate::Unproven);
        drop(node);
        fs.process_crash();
        let before = fs.files().len();
        if let Ok(node) = Node::open(&fs, 2).await {
            let set_aside = &node.writer.recovery_report().set_aside;
            assert_eq!(set_aside.len(), 1, "{set_aside:?}");
        }
        assert_eq!(fs.files().len(), before, "set aside or left, never removed");
    });
}

fn state(active: u64, base: u64, prepared: Option<u64>) -> MetaState {
    let here = |id| NewSegment {
        id: SegmentId(id),
        replicas: ReplicaSet::of(BrokerId(1)),
    };
    let mut state = MetaState::default();
    state.apply(&Command::RegisterBroker(broker(1))).unwrap();
    let new = NewTopic {
        id: topic().id,
        name: topic().name,
        configs: BTreeMap::new(),
        partitions: vec![NewPartition {
            log_start: base,
            active_base: base,
            ..NewPartition::empty(BrokerId(1), here(active))
        }],
    };
    state.apply(&Command::CreateTopic(new)).unwrap();
    if let Some(prepared) = prepared {
        let prepare = Command::PrepareSegment {
            partition: partition(),
            epoch: 0,
            predecessor: SegmentId(active),
            attempt: 0,
            successor: here(prepared),
        };
        state.apply(&prepare).unwrap();
    }
    state
}

proptest! {
    #[test]
    fn any_log_that_continues_the_metadata_is_followed(
        base in 0_u64..100,
        lengths in proptest::collection::vec(0_u64..5, 0..6),
        knows_active: bool,
        prepared in proptest::option::of(0_usize..8),
        log_start in 0_u64..120,
        opening: bool,
    ) {
        // Ids from 10 on; the metadata's prepared successor is one of the log, or another.
        let mut held = Vec::new();
        let mut at = base;
        for (id, length) in (10..).zip(&lengths) {
            held.push(Held { id: SegmentId(id), base: at });
            at += length;
        }
        let active = if knows_active { 10 } else { 1 };
        let prepared = prepared.map(|n| n as u64 + 11);
        let mut state = state(active, base, prepared);
        let rest = if opening { Rest::Opening } else { Rest::Running };
        let mut steps = 0;
        while let Some(step) = {
            let known = state.partition(partition()).unwrap();
            chain::next_step(partition(), known, &held, log_start, rest)
        } {
            state.apply(&step).unwrap();
            state.validate().unwrap();
            steps += 1;
            prop_assert!(steps <= 2 * lengths.len() + 3, "it does not end");
        }
        let known = state.partition(partition()).unwrap();
        if let Some(last) = held.last() {
            prop_assert_eq!(known.active.segment.id, last.id);
            prop_assert_eq!(known.active.base, last.base);
        }
        prop_assert!(!opening || known.prepared.is_none());
        for held in held.iter().filter(|held| held.base >= known.log_start) {
            let found = known.find(held.id);
            let is_empty_and_gone = held.base == known.log_start && found.is_none();
            prop_assert!(found.is_some() || is_empty_and_gone);
        }
        prop_assert_eq!(known.log_start, log_start.min(known.active.base).max(base));
    }
}
