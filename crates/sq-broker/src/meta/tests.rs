use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use sq_sim::{Effect, Errno, Fault, FileSystem, InMemoryFileSystem, Keep, OpKind};
use sq_storage::TopicName;

use super::{
    FileMetaStore, MetaError, MetaImage, MetaStore, OpenError, TopicId, TopicRecord, format,
};
use crate::testing::{DIR, Stop, block_on, disk};

type Store = FileMetaStore<InMemoryFileSystem>;

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

fn image() -> MetaImage {
    let mut image = MetaImage::default();
    image.create_topic(topic("orders", 1)).unwrap();
    image.create_topic(topic("-0", 2)).unwrap();
    image.create_topic(topic("gone", 3)).unwrap();
    image.delete_topic(TopicId::from_random(3)).unwrap();
    image.allocate_producer_ids(1000).unwrap();
    image
}

async fn create(fs: &InMemoryFileSystem) -> Store {
    FileMetaStore::create(Arc::new(fs.clone()), Path::new(DIR))
        .await
        .unwrap()
}

async fn try_open(fs: &InMemoryFileSystem) -> Result<Store, OpenError> {
    FileMetaStore::open(Arc::new(fs.clone()), Path::new(DIR)).await
}

fn file() -> PathBuf {
    Path::new(DIR).join(super::META_FILE)
}

#[test]
fn every_flipped_bit_and_every_other_length_of_the_file_is_refused() {
    let bytes = format::encode(&image());
    assert_eq!(format::decode(&bytes), Ok(image()));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(format::decode(&bad).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(format::decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert!(format::decode(&longer).is_err());
}

proptest! {
    #[test]
    fn any_image_comes_back(
        topics in proptest::collection::btree_map("[a-zA-Z0-9_-]{1,249}", (any::<u128>(), any::<u32>()), 0..8),
        deleted in 0_usize..4,
        next in 0..i64::MAX,
    ) {
        let mut image = MetaImage { next_producer_id: next, ..MetaImage::default() };
        for (text, (id, partitions)) in &topics {
            let record = TopicRecord { partitions: *partitions, ..topic(text, *id) };
            image.create_topic(record).unwrap();
        }
        let ids: Vec<TopicId> = image.topics.values().map(|t| t.id).take(deleted).collect();
        for id in ids {
            image.delete_topic(id).unwrap();
        }
        prop_assert_eq!(format::decode(&format::encode(&image)), Ok(image));
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
        let _ = format::decode(&bytes);
    }
}

#[test]
fn a_damaged_file_stops_the_start_and_stays_as_it_is() {
    // A node whose metadata was damaged took its data directories for orphans and deleted them; so
    // did one that found the file empty, created and never synced before a crash.
    block_on(async {
        let good = format::encode(&image());
        for bad in [
            Vec::new(),
            good[..good.len() / 2].to_vec(),
            vec![0; good.len()],
        ] {
            let fs = disk(1).await;
            fs.write_file(file(), bad.clone()).unwrap();
            fs.create_dir_all(Path::new("/data/orders/0"))
                .await
                .unwrap();
            fs.write_file("/data/orders/0/00000000000000000000.wal", "segment")
                .unwrap();
            fs.take_trace();
            assert!(matches!(
                try_open(&fs).await,
                Err(OpenError::Damaged { .. })
            ));
            assert_eq!(fs.read_file(file()).unwrap(), bad);
            let changes = [
                OpKind::RemoveFile,
                OpKind::RemoveDir,
                OpKind::Rename,
                OpKind::SetLen,
            ];
            assert!(!fs.take_trace().iter().any(|op| changes.contains(&op.kind)));
        }
        assert!(matches!(
            try_open(&disk(1).await).await,
            Err(OpenError::Missing(_))
        ));
    });
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_or_the_new() {
    block_on(async {
        for stop in Stop::ALL {
            for at in 0.. {
                let fs = disk(at).await;
                let process = fs.for_this_process();
                let store = create(&process).await;
                let kept = store.create_topic(topic("kept", 1)).await.unwrap();
                let before = store.image();
                fs.crash_after(at);
                let outcome = store.create_topic(topic("new", 2)).await;
                let crashed = fs.is_crashed();
                stop.strike(&fs);

                let after = try_open(&fs).await.unwrap().image();
                assert_eq!(after.topics.get("kept"), Some(&kept));
                match outcome {
                    Ok(_) => assert!(after.topics.contains_key("new"), "{stop:?} at {at}"),
                    Err(_) if after.topics.contains_key("new") => {}
                    Err(_) => assert_eq!(after, before, "{stop:?} at {at}"),
                }
                // And what was read is not lost by a power failure later on.
                fs.power_loss(Keep::None);
                assert_eq!(
                    try_open(&fs).await.unwrap().image(),
                    after,
                    "{stop:?} at {at}"
                );
                if !crashed {
                    break;
                }
            }
        }
    });
}

#[test]
fn no_producer_id_is_given_out_twice() {
    block_on(async {
        for stop in Stop::ALL {
            for at in 0.. {
                let fs = disk(at).await;
                let process = fs.for_this_process();
                let store = create(&process).await;
                let mut given = store.allocate_producer_ids(10).await.unwrap().end;
                fs.crash_after(at);
                if let Ok(ids) = store.allocate_producer_ids(10).await {
                    assert!(ids.start >= given);
                    given = ids.end;
                }
                let crashed = fs.is_crashed();
                stop.strike(&fs);
                let ids = try_open(&fs)
                    .await
                    .unwrap()
                    .allocate_producer_ids(10)
                    .await
                    .unwrap();
                assert!(ids.start >= given, "{stop:?} at {at}");
                if !crashed {
                    break;
                }
            }
        }
    });
}

#[test]
fn producer_ids_end_where_their_bits_do() {
    let mut image = MetaImage {
        next_producer_id: i64::MAX - 5,
        ..MetaImage::default()
    };
    assert!(matches!(
        image.allocate_producer_ids(6),
        Err(MetaError::ProducerIdsExhausted)
    ));
    assert_eq!(
        image.allocate_producer_ids(5).unwrap(),
        i64::MAX - 5..i64::MAX
    );
}

#[test]
fn a_deletion_that_could_not_be_made_durable_is_taken_back() {
    // The rename took place and the directory's sync failed. The client is told no and goes on
    // producing: a restart must not find the topic deleted.
    block_on(async {
        let fs = disk(1).await;
        let store = create(&fs).await;
        let kept = store.create_topic(topic("kept", 1)).await.unwrap();
        fs.fail_next(OpKind::SyncDir, Errno::Io);
        let error = store.delete_topic(kept.id).await.unwrap_err();
        assert!(matches!(error, MetaError::Write(_)), "{error}");
        assert!(store.image().topics.contains_key("kept"));
        fs.power_loss(Keep::All);
        assert!(
            try_open(&fs)
                .await
                .unwrap()
                .image()
                .topics
                .contains_key("kept")
        );
    });
}

#[test]
fn a_change_that_can_not_be_taken_back_ends_all_changes() {
    block_on(async {
        let fs = disk(1).await;
        let store = create(&fs).await;
        let kept = store.create_topic(topic("kept", 1)).await.unwrap();
        fs.inject(
            Fault::new(Effect::Fail(Errno::Io))
                .on(&[OpKind::SyncDir])
                .times(2),
        );
        let error = store.delete_topic(kept.id).await.unwrap_err();
        assert!(matches!(error, MetaError::Latched(_)), "{error}");
        // The disk is well again, but what it holds is not known.
        let error = store.create_topic(topic("new", 2)).await.unwrap_err();
        assert!(matches!(error, MetaError::Latched(_)), "{error}");
    });
}

#[test]
fn a_name_is_free_again_once_nothing_is_left_under_it() {
    block_on(async {
        let fs = disk(1).await;
        let store = create(&fs).await;
        let first = store.create_topic(topic("t", 1)).await.unwrap();
        let error = store.create_topic(topic("t", 2)).await.unwrap_err();
        assert!(matches!(error, MetaError::TopicExists(_)));
        store.delete_topic(first.id).await.unwrap();
        let error = store.create_topic(topic("t", 2)).await.unwrap_err();
        assert!(matches!(error, MetaError::BeingDeleted(_)));
        assert!(matches!(
            store.delete_topic(first.id).await,
            Err(MetaError::UnknownTopic(_))
        ));
        store.forget_deleted(first.id).await.unwrap();
        store.create_topic(topic("t", 2)).await.unwrap();
    });
}
