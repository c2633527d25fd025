use std::path::{Path, PathBuf};
use std::sync::Arc;

use sq_sim::{FileSystem, InMemoryFileSystem, Keep, OpKind, VirtualClock};
use sq_storage::TopicName;
use uuid::Uuid;

use super::{DataDir, DataDirError};
use crate::meta::TopicId;
use crate::testing::{DIR, block_on, cut_short_anywhere, disk};

async fn open(fs: &InMemoryFileSystem) -> Result<DataDir<InMemoryFileSystem>, DataDirError> {
    open_as(fs, 1, 7).await
}

async fn open_as(
    fs: &InMemoryFileSystem,
    broker: i32,
    cluster: u128,
) -> Result<DataDir<InMemoryFileSystem>, DataDirError> {
    let cluster = Uuid::from_u128(cluster);
    DataDir::open(Arc::new(fs.clone()), Path::new(DIR), broker, cluster).await
}

fn name(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

/// A directory with a segment in it.
async fn put_topic(fs: &InMemoryFileSystem, name: &str) {
    let directory = Path::new(DIR).join(name).join("0");
    fs.create_dir_all(&directory).await.unwrap();
    fs.write_file(directory.join("00000000000000000000.wal"), name.as_bytes())
        .unwrap();
    for directory in [
        directory.as_path(),
        directory.parent().unwrap(),
        Path::new(DIR),
    ] {
        fs.sync_dir(directory).await.unwrap();
    }
}

#[test]
fn a_new_directory_is_stamped_and_known_again() {
    block_on(async {
        let fs = disk(1).await;
        let first = open_as(&fs, 1, 7).await.unwrap();
        assert!(!first.holds_topics());
        drop(first);
        let again = open_as(&fs, 1, 8).await.unwrap();
        assert_eq!(
            again.stamp().cluster_id,
            Uuid::from_u128(7),
            "the one it was given first"
        );
        drop(again);
        let error = open_as(&fs, 2, 7).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "/data belongs to broker 1, and this is broker 2"
        );
    });
}

#[test]
fn two_brokers_can_not_use_it_at_once() {
    block_on(async {
        let fs = disk(1).await;
        let first = open(&fs).await.unwrap();
        assert!(matches!(open(&fs).await, Err(DataDirError::Locked(_))));
        drop(first);
        assert!(open(&fs).await.is_ok());
    });
}

#[test]
fn a_damaged_stamp_is_refused_with_the_reason() {
    block_on(async {
        let fs = disk(1).await;
        drop(open(&fs).await.unwrap());
        fs.flip_bit("/data/@stamp", 10, 3).unwrap();
        let error = open(&fs).await.unwrap_err();
        assert!(
            error.to_string().contains("the checksum does not match"),
            "{error}"
        );
    });
}

#[test]
fn a_directory_with_something_else_in_it_is_not_taken_over() {
    block_on(async {
        for (entry, is_taken) in [
            ("home", false),
            ("@meta", false),
            ("lost+found", true),
            // It holds nothing, whoever left it.
            ("@reserve", true),
        ] {
            let fs = disk(1).await;
            if entry == "@meta" {
                fs.write_file("/data/@meta", "x").unwrap();
            } else {
                put_topic(&fs, entry).await;
            }
            assert_eq!(open(&fs).await.is_ok(), is_taken, "{entry}");
        }
    });
}

#[test]
fn metadata_may_begin_anew_only_where_nothing_is() {
    block_on(async {
        cut_short_anywhere(async |stop, at| {
            let fs = disk(at).await;
            fs.crash_after(at);
            let opened = open(&fs.for_this_process()).await.is_ok();
            let crashed = fs.is_crashed();
            stop.strike(&fs);
            let again = open(&fs).await.unwrap();
            assert!(!again.holds_topics(), "{stop:?} at {at}");
            assert!(!opened || again.stamp().cluster_id == Uuid::from_u128(7));
            drop(again);
            put_topic(&fs, "orders").await;
            assert!(
                open(&fs).await.unwrap().holds_topics(),
                "its metadata is missing, not new"
            );
            crashed
        })
        .await;
    });
}

#[test]
fn a_directory_that_is_no_topics_is_kept_out_of_the_way() {
    block_on(async {
        let fs = disk(1).await;
        let data_dir = open(&fs).await.unwrap();
        put_topic(&fs, "stray").await;
        put_topic(&fs, "lost+found").await;
        fs.take_trace();
        let longest = "x".repeat(249);
        put_topic(&fs, &longest).await;
        let moved = data_dir.quarantine_orphans(|_| false).await.unwrap();
        assert_eq!(moved.len(), 2);
        assert_eq!(moved[&name("stray")], Path::new("/data/@orphans/1/stray"));
        // Again, under the same name.
        put_topic(&fs, "stray").await;
        let moved = data_dir.quarantine_orphans(|_| false).await.unwrap();
        assert_eq!(moved[&name("stray")], Path::new("/data/@orphans/3/stray"));

        fs.power_loss(Keep::None);
        for place in ["@orphans/1/stray", "@orphans/3/stray", "lost+found"] {
            let file = PathBuf::from(format!("/data/{place}/0/00000000000000000000.wal"));
            assert!(fs.files().contains(&file), "{place}");
        }
        let removals = [OpKind::RemoveFile, OpKind::RemoveDir];
        assert!(!fs.trace().iter().any(|op| removals.contains(&op.kind)));
    });
}

#[test]
fn a_deleted_topics_directory_is_out_of_the_way_at_once_and_gone_later() {
    block_on(async {
        let id = TopicId::from_random(5);
        cut_short_anywhere(async |stop, at| {
            let fs = disk(at).await;
            let process = fs.for_this_process();
            let data_dir = open(&process).await.unwrap();
            put_topic(&fs, "orders").await;
            put_topic(&fs, "other").await;
            fs.crash_after(at);
            let moved = data_dir.move_deleted(&name("orders"), id).await;
            let is_moved = moved.is_ok();
            if let Ok(Some(path)) = moved {
                let _ = data_dir.remover().remove(&VirtualClock::new(), &path).await;
            }
            let crashed = fs.is_crashed();
            drop(data_dir);
            stop.strike(&fs);

            // The next start does it again, and finds what is left.
            let data_dir = open(&fs).await.unwrap();
            let there = fs.list_dir(Path::new("/data/orders")).await.is_ok();
            assert!(!(is_moved && there), "{stop:?} at {at}");
            data_dir.move_deleted(&name("orders"), id).await.unwrap();
            for path in data_dir.leftovers(|_| false).await.unwrap() {
                data_dir
                    .remover()
                    .remove(&VirtualClock::new(), &path)
                    .await
                    .unwrap();
            }
            let left: Vec<_> = fs
                .files()
                .into_iter()
                .filter(|f| f.extension().is_some())
                .collect();
            assert_eq!(left, [Path::new("/data/other/0/00000000000000000000.wal")]);
            crashed
        })
        .await;
    });
}

#[test]
fn a_directory_of_a_living_topic_is_no_leftover_of_its_deletion() {
    block_on(async {
        let fs = disk(1).await;
        let data_dir = open(&fs).await.unwrap();
        let (living, gone) = (TopicId::from_random(5), TopicId::from_random(6));
        put_topic(&fs, "living").await;
        put_topic(&fs, "gone").await;
        data_dir
            .move_deleted(&name("living"), living)
            .await
            .unwrap();
        let left = data_dir.move_deleted(&name("gone"), gone).await.unwrap();
        put_topic(&fs, "@deleted-by-hand").await;
        let leftovers = data_dir.leftovers(|id| id == living).await.unwrap();
        assert_eq!(leftovers, [left.unwrap()]);
    });
}

#[test]
fn a_directory_that_is_no_partitions_is_kept_out_of_the_way() {
    block_on(async {
        let fs = disk(1).await;
        let data_dir = open(&fs).await.unwrap();
        for number in ["0", "1", "2", "10", "notes"] {
            let directory = Path::new(DIR).join("t").join(number);
            fs.create_dir_all(&directory).await.unwrap();
            fs.write_file(directory.join("file"), number).unwrap();
        }
        for directory in ["/data", "/data/t", "/data/t/1", "/data/t/2", "/data/t/10"] {
            fs.sync_dir(Path::new(directory)).await.unwrap();
        }
        fs.take_trace();
        let mut moved = data_dir.quarantine_partitions(&name("t"), 2).await.unwrap();
        moved.sort();
        assert_eq!(moved.len(), 2);
        let again = data_dir.quarantine_partitions(&name("t"), 2).await.unwrap();
        let none = data_dir.quarantine_partitions(&name("u"), 2).await.unwrap();
        assert!(again.is_empty() && none.is_empty());
        fs.power_loss(Keep::None);
        let there = |directory: &Path| fs.files().contains(&directory.join("file"));
        for directory in moved
            .iter()
            .map(PathBuf::as_path)
            .chain([Path::new("/data/t/1")])
        {
            assert!(there(directory), "{}", directory.display());
        }
        assert!(!there(Path::new("/data/t/2")) && !there(Path::new("/data/t/10")));
        let removals = [OpKind::RemoveFile, OpKind::RemoveDir];
        assert!(!fs.trace().iter().any(|op| removals.contains(&op.kind)));
    });
}
