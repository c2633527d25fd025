use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sq_meta::{Broker, BrokerId};
use sq_sim::{FileSystem, InMemoryFileSystem, Keep, OpKind, VirtualClock};
use sq_storage::{SegmentIds, TopicName, WalConfig, WalWriter};
use uuid::Uuid;

use super::earlier::{self, MetaImage};
use super::{MetaError, Metadata, Setup, TopicId, TopicRecord};
use crate::data_dir::DataDir;
use crate::testing::{DIR, block_on, cut_short_anywhere, disk};

type Meta = Metadata<InMemoryFileSystem>;

fn name(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn topic(text: &str, id: u128) -> TopicRecord {
    TopicRecord {
        name: name(text),
        id: TopicId::from_random(id),
        partitions: 3,
        configs: BTreeMap::from([("segment.bytes".to_owned(), "1048576".to_owned())]),
    }
}

fn put(image: &mut MetaImage, topic: TopicRecord) {
    image.topics.insert(topic.name.clone(), Arc::new(topic));
}

fn image() -> MetaImage {
    let mut image = MetaImage {
        revision: 7,
        next_producer_id: 1000,
        ..MetaImage::default()
    };
    put(&mut image, topic("orders", 1));
    put(&mut image, topic("-0", 2));
    image.deleting.insert(TopicId::from_random(3), name("gone"));
    image
}

#[test]
fn every_flipped_bit_and_every_other_length_of_the_earlier_file_is_refused() {
    let bytes = earlier::encode(&image());
    assert_eq!(earlier::decode(&bytes), Ok(image()));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(earlier::decode(&bad).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(earlier::decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert!(earlier::decode(&longer).is_err());
}

proptest! {
    #[test]
    fn any_image_comes_back(
        topics in proptest::collection::btree_map("[a-zA-Z0-9_-]{1,249}", (any::<u128>(), any::<u32>()), 0..8),
        deleted in proptest::collection::btree_map(any::<u128>(), "[a-zA-Z0-9_-]{1,249}", 0..4),
        next in 0..i64::MAX,
    ) {
        let mut image = MetaImage { next_producer_id: next, ..MetaImage::default() };
        for (text, (id, partitions)) in &topics {
            put(&mut image, TopicRecord { partitions: *partitions, ..topic(text, *id) });
        }
        for (id, text) in &deleted {
            image.deleting.insert(TopicId::from_random(*id), name(text));
        }
        prop_assert_eq!(earlier::decode(&earlier::encode(&image)), Ok(image));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic_or_take_much_memory(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        seal in any::<bool>(),
    ) {
        if seal && bytes.len() >= 20 {
            // Past the checksum, into the body.
            let body = u64::try_from(bytes.len() - 20).unwrap();
            bytes[..8].copy_from_slice(b"SQMT\0\x01\0\0");
            bytes[8..16].copy_from_slice(&body.to_be_bytes());
            let at = bytes.len() - 4;
            let crc = crc32fast::hash(&bytes[..at]);
            bytes[at..].copy_from_slice(&crc.to_be_bytes());
        }
        let _ = earlier::decode(&bytes);
    }
}

fn wal(_: &TopicRecord) -> WalConfig {
    WalConfig {
        max_segment_bytes: 256,
        zero_ahead_bytes: 0,
        segment_ids: SegmentIds::seeded(99),
        ..WalConfig::new(DIR)
    }
}

/// The metadata, and what holds the directory's lock.
async fn try_open(
    fs: &InMemoryFileSystem,
    seed: u64,
) -> Result<(Meta, DataDir<InMemoryFileSystem>), String> {
    let fs = Arc::new(fs.for_this_process());
    let cluster = Uuid::from_u128(7);
    let data_dir = DataDir::open(Arc::clone(&fs), Path::new(DIR), 1, cluster)
        .await
        .map_err(|e| e.to_string())?;
    let setup = Setup {
        fs,
        clock: Arc::new(VirtualClock::new()),
        broker: Broker {
            id: BrokerId(1),
            incarnation: seed,
            host: "localhost".into(),
            port: 9092,
            rack: None,
        },
        segment_ids: SegmentIds::seeded(seed),
        commit_delay: Duration::ZERO,
    };
    let meta = super::open(&data_dir, setup, wal).await;
    Ok((meta.map_err(|e| e.to_string())?, data_dir))
}

async fn open(fs: &InMemoryFileSystem, seed: u64) -> (Meta, DataDir<InMemoryFileSystem>) {
    try_open(fs, seed).await.unwrap()
}

fn meta_file() -> PathBuf {
    Path::new(DIR).join(super::META_FILE)
}

/// A data directory as an earlier version left it: two topics, one of them with several segments of
/// which the first ones are gone, and a third that was being deleted.
async fn earlier_version(seed: u64) -> InMemoryFileSystem {
    let fs = disk(seed).await;
    let shared = Arc::new(fs.clone());
    let cluster = Uuid::from_u128(7);
    let opened = DataDir::open(Arc::clone(&shared), Path::new(DIR), 1, cluster).await;
    drop(opened.unwrap());
    fs.write_file(meta_file(), earlier::encode(&image()))
        .unwrap();
    for (text, partition, records) in [("orders", 0, 20), ("orders", 2, 1), ("gone", 0, 1)] {
        let wal = wal(&topic(text, 1));
        let writer = WalWriter::new(Arc::clone(&shared), wal, name(text), partition).await;
        let mut writer = writer.unwrap();
        for n in 0..records {
            let appended = writer.append(None, &[0; 60], &[], n).await;
            assert_eq!(appended.unwrap(), n);
        }
        if records > 10 {
            writer.purge_to(7).await.unwrap();
        }
        writer.close().await.unwrap();
    }
    fs.sync_dir(Path::new(DIR)).await.unwrap();
    fs
}

/// What the metadata says of a partition: its log start, and base and id of each segment.
fn chain_of(meta: &Meta, partition: usize) -> (u64, Vec<(u64, u64)>) {
    let state = meta.state();
    let topic = state.topic_named(&name("orders")).unwrap();
    let partition = &topic.partitions[partition];
    let sealed = partition.sealed.iter().map(|s| (s.base, s.segment.id.0));
    let active = (partition.active.base, partition.active.segment.id.0);
    (partition.log_start, sealed.chain([active]).collect())
}

/// The same of its directory.
async fn chain_on_disk(fs: &InMemoryFileSystem, partition: u32) -> (u64, Vec<(u64, u64)>) {
    let wal = wal(&topic("orders", 1));
    let writer = WalWriter::new(Arc::new(fs.clone()), wal, name("orders"), partition).await;
    let reader = writer.unwrap().reader();
    let segments = reader.segments().into_iter();
    (
        reader.start_offset(),
        segments.map(|s| (s.base_offset, s.id)).collect(),
    )
}

async fn check_taken_over(fs: &InMemoryFileSystem, meta: &Meta, context: &str) {
    let state = meta.state();
    let names: Vec<_> = state.topics().map(|t| t.name.to_string()).collect();
    assert_eq!(names, ["-0", "orders"], "{context}");
    for found in state.topics() {
        let record = Arc::new(TopicRecord::of(found));
        assert_eq!(image().topics.get(&found.name), Some(&record), "{context}");
    }
    assert_eq!(state.next_producer_id(), 1000, "{context}");
    let (log_start, chain) = chain_of(meta, 0);
    assert_eq!(
        (log_start, chain.clone()),
        chain_on_disk(fs, 0).await,
        "{context}"
    );
    assert!(log_start == 7 && chain.len() > 3, "{context}: {chain:?}");
    assert_eq!(chain_of(meta, 2), chain_on_disk(fs, 2).await, "{context}");
    let (log_start, chain) = chain_of(meta, 1);
    assert_eq!(
        (log_start, chain[0].0),
        (0, 0),
        "{context}: nothing was written"
    );
    state.validate().unwrap();
    assert!(!fs.files().contains(&meta_file()), "{context}");
    assert!(
        fs.list_dir(Path::new("/data/gone")).await.is_err(),
        "{context}"
    );
}

#[test]
fn what_an_earlier_version_left_is_taken_over_whenever_the_process_or_the_power_goes() {
    block_on(async {
        cut_short_anywhere(async |stop, at| {
            let fs = earlier_version(at).await;
            let data = |fs: &InMemoryFileSystem| {
                let files = fs.files().into_iter();
                let files = files.filter(|f| f.starts_with("/data/orders"));
                let files = files.filter(|f| f.extension().is_some_and(|e| e == "wal"));
                files.collect::<Vec<_>>()
            };
            let files = data(&fs);
            fs.crash_after(at);
            let opened = try_open(&fs, 1).await;
            if let Ok((meta, _)) = &opened {
                let _ = meta.register().await;
            }
            let crashed = fs.is_crashed();
            drop(opened);
            stop.strike(&fs);
            let context = format!("{stop:?} at {at}");
            // The next start goes on with it, crashes too, and the one after that goes on.
            fs.crash_after(at / 2);
            drop(try_open(&fs, 2).await);
            stop.strike(&fs);
            let (meta, lock) = open(&fs, 3).await;
            check_taken_over(&fs, &meta, &context).await;
            assert_eq!(data(&fs), files, "{context}");
            meta.close().await;
            drop((meta, lock));
            // And no later start finds anything else.
            fs.power_loss(Keep::None);
            let (meta, _lock) = open(&fs, 4).await;
            check_taken_over(&fs, &meta, &context).await;
            crashed
        })
        .await;
    });
}

#[test]
fn a_damaged_earlier_file_stops_the_start_and_stays_as_it_is() {
    // A node whose metadata was damaged took its data directories for orphans and deleted them; so
    // did one that found the file empty, created and never synced before a crash.
    block_on(async {
        let good = earlier::encode(&image());
        for bad in [
            Vec::new(),
            good[..good.len() / 2].to_vec(),
            vec![0; good.len()],
        ] {
            let fs = earlier_version(1).await;
            fs.write_file(meta_file(), bad.clone()).unwrap();
            fs.take_trace();
            let error = try_open(&fs, 1).await.unwrap_err();
            assert!(error.contains("@meta is damaged"), "{error}");
            assert_eq!(fs.read_file(meta_file()).unwrap(), bad);
            let changes = [
                OpKind::RemoveFile,
                OpKind::RemoveDir,
                OpKind::Rename,
                OpKind::SetLen,
            ];
            assert!(!fs.take_trace().iter().any(|op| changes.contains(&op.kind)));
        }
    });
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_or_the_new() {
    block_on(async {
        cut_short_anywhere(async |stop, at| {
            let fs = disk(at).await;
            let (meta, lock) = open(&fs, 1).await;
            let kept = meta.create_topic(topic("kept", 1)).await.unwrap();
            fs.crash_after(at);
            let outcome = meta.create_topic(topic("new", 2)).await;
            let crashed = fs.is_crashed();
            drop((meta, lock));
            stop.strike(&fs);

            let (meta, lock) = open(&fs, 2).await;
            let after = meta.state();
            let found = after.topic_named(&name("kept")).unwrap();
            assert_eq!(TopicRecord::of(found), *kept);
            let is_new = after.topic_named(&name("new")).is_some();
            assert!(is_new || outcome.is_err(), "{stop:?} at {at}");
            drop((meta, lock));
            // And what was read is not lost by a power failure later on.
            fs.power_loss(Keep::None);
            let (meta, _lock) = open(&fs, 3).await;
            assert_eq!(meta.state().topics().count(), after.topics().count());
            crashed
        })
        .await;
    });
}

#[test]
fn no_producer_id_is_given_out_twice() {
    block_on(async {
        cut_short_anywhere(async |stop, at| {
            let fs = disk(at).await;
            let (meta, lock) = open(&fs, 1).await;
            let mut given = meta.allocate_producer_ids(10).await.unwrap().end;
            fs.crash_after(at);
            if let Ok(ids) = meta.allocate_producer_ids(10).await {
                assert!(ids.start >= given);
                given = ids.end;
            }
            let crashed = fs.is_crashed();
            drop((meta, lock));
            stop.strike(&fs);
            let (meta, _lock) = open(&fs, 2).await;
            let ids = meta.allocate_producer_ids(10).await.unwrap();
            assert!(ids.start >= given, "{stop:?} at {at}");
            crashed
        })
        .await;
    });
}

#[test]
fn a_name_is_free_again_once_nothing_is_left_under_it() {
    block_on(async {
        let fs = disk(1).await;
        let (meta, _lock) = open(&fs, 1).await;
        let first = meta.create_topic(topic("t", 1)).await.unwrap();
        let error = meta.create_topic(topic("t", 2)).await.unwrap_err();
        assert!(matches!(error, MetaError::TopicExists(_)));
        meta.delete_topic(first.id).await.unwrap();
        let error = meta.create_topic(topic("t", 2)).await.unwrap_err();
        assert!(matches!(error, MetaError::BeingDeleted(_)));
        meta.forget_deleted(first.id).await.unwrap();
        let error = meta.delete_topic(first.id).await.unwrap_err();
        assert!(matches!(error, MetaError::UnknownTopic(_)));
        meta.create_topic(topic("t", 2)).await.unwrap();
    });
}
