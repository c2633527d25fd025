use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, Effect, Errno, Fault, InMemoryFileSystem, OpKind, SystemClock, VirtualClock};
use sq_storage::TopicName;

use super::{CreateTopicError, DeleteTopicError, NewTopic, Topic};
use crate::batch::BatchHeader;
use crate::broker::StartError;
use crate::config::{Config, TopicOverrides};
use crate::meta::MetaError;
use crate::partition::{AppendError, NewBatch};
use crate::testing::{TestBroker, batch, block_on, cut_short_anywhere, disk, try_start_with};

async fn try_start(fs: &InMemoryFileSystem, seed: u64) -> Result<TestBroker, StartError> {
    try_start_with(fs, seed, Arc::new(SystemClock), |_| {}).await
}

async fn start(fs: &InMemoryFileSystem, seed: u64) -> TestBroker {
    try_start(fs, seed).await.unwrap()
}

pub(super) fn new_topic(name: &str) -> NewTopic {
    let name = TopicName::new(name).unwrap();
    NewTopic {
        name,
        partitions: 2,
        overrides: TopicOverrides::default(),
    }
}

/// Appends a batch whose size tells which one it is.
pub(super) async fn append(
    topic: &Topic<InMemoryFileSystem>,
    mark: usize,
) -> Result<u64, AppendError> {
    let bytes = batch(None, 1, mark);
    let header = BatchHeader::parse(&bytes).unwrap();
    let partition = topic.partition(0).unwrap();
    let pending = partition.enqueue(NewBatch::new(bytes, &header)).await?;
    Ok(pending.outcome().await?.base_offset)
}

/// Appends while time goes by: what waits gives up at last.
pub(super) async fn append_on(
    clock: &VirtualClock,
    topic: &Topic<InMemoryFileSystem>,
    mark: usize,
) -> Result<u64, AppendError> {
    let time = async {
        loop {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_millis(1));
        }
    };
    tokio::select! {
        biased;
        appended = append(topic, mark) => appended,
        () = time => unreachable!("it has no end"),
    }
}

/// The marks of what a topic holds.
async fn marks(topic: &Topic<InMemoryFileSystem>) -> Vec<usize> {
    let reader = topic.partition(0).unwrap().reader().await.unwrap();
    let frames = reader.read(0, 1 << 20).await.unwrap();
    frames
        .iter()
        .map(|frame| frame.payload.len() - batch(None, 1, 0).len())
        .collect()
}

/// What a client was told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    deleted: bool,
    created: bool,
    stored: bool,
}

/// Deletes a topic that holds the mark 1, creates it again, and appends the mark 2.
async fn delete_and_create_again(broker: &TestBroker) -> Told {
    let mut told = Told::default();
    let old = broker.topics.current().by_name("t").unwrap().record.id;
    told.deleted = broker.topics.delete(old).await.is_ok();
    if !told.deleted {
        return told;
    }
    let Ok(topic) = broker.topics.create(new_topic("t")).await else {
        return told;
    };
    told.created = true;
    told.stored = append(&topic, 2).await.is_ok();
    told
}

#[test]
fn a_topic_created_again_never_shows_what_the_deleted_one_held() {
    block_on(async {
        cut_short_anywhere(async |stop, at| {
            let fs = disk(at).await;
            let broker = start(&fs, 1).await;
            let topic = broker.topics.create(new_topic("t")).await.unwrap();
            let old = topic.record.id;
            assert_eq!(append(&topic, 1).await, Ok(0));
            fs.crash_after(at);
            let told = delete_and_create_again(&broker).await;
            let crashed = fs.is_crashed();
            drop((broker, topic));
            stop.strike(&fs);

            let broker = start(&fs, 2).await;
            let current = broker.topics.current();
            let context = format!("{stop:?} at {at}: {told:?}");
            let found = current.by_name("t");
            match found {
                Some(topic) if topic.record.id == old => {
                    assert!(!told.deleted, "{context}");
                    assert_eq!(marks(topic).await, [1], "{context}");
                }
                Some(topic) => {
                    let marks = marks(topic).await;
                    assert!(
                        marks == [2] || (marks.is_empty() && !told.stored),
                        "{context}"
                    );
                }
                None => assert!(!told.created, "{context}"),
            }
            if found.is_none() {
                let topic = broker.topics.create(new_topic("t")).await.unwrap();
                assert_eq!(append(&topic, 3).await, Ok(0), "{context}");
            }
            broker.close().await;
            crashed
        })
        .await;
    });
}

#[test]
fn a_directory_that_can_not_be_moved_away_keeps_the_name_taken_until_it_can() {
    block_on(async {
        let fs = disk(1).await;
        let broker = start(&fs, 1).await;
        let topic = broker.topics.create(new_topic("t")).await.unwrap();
        append(&topic, 1).await.unwrap();
        let fault = Fault::new(Effect::Fail(Errno::Denied)).on(&[OpKind::Rename]);
        fs.inject(
            fault
                .path(sq_sim::PathPattern::Exactly("/data/t".into()))
                .times(2),
        );
        broker.topics.delete(topic.record.id).await.unwrap();
        let refused = broker.topics.create(new_topic("t")).await.unwrap_err();
        assert!(
            matches!(refused, CreateTopicError::InTheWay(_)),
            "{refused}"
        );
        assert_eq!(append(&topic, 1).await, Err(AppendError::Closed));

        let again = broker.topics.create(new_topic("t")).await.unwrap();
        assert_eq!(marks(&again).await, Vec::<usize>::new());
        broker.close().await;
    });
}

#[test]
fn a_topic_whose_deletion_is_in_doubt_takes_nothing_more() {
    // The deletion may be in the metadata's log or not: whoever finds it there later removes the topic,
    // and what it acknowledged until then would be gone.
    block_on(async {
        let fs = disk(1).await;
        let broker = start(&fs, 1).await;
        let topic = broker.topics.create(new_topic("t")).await.unwrap();
        append(&topic, 1).await.unwrap();
        fs.inject(failing_metadata());
        let error = broker.topics.delete(topic.record.id).await.unwrap_err();
        assert!(
            matches!(error, DeleteTopicError::Meta(MetaError::InDoubt(_))),
            "{error}"
        );
        assert_eq!(append(&topic, 2).await, Err(AppendError::Closed));
        let refused = broker.topics.create(new_topic("u")).await.unwrap_err();
        assert!(matches!(refused, CreateTopicError::Meta(_)), "{refused}");

        // The disk is well again: whoever changes topics next finds out, and nothing waits for a restart.
        fs.clear_faults();
        broker.topics.create(new_topic("u")).await.unwrap();
        let current = broker.topics.current();
        match current.by_name("t") {
            Some(topic) => assert_eq!(append(topic, 2).await, Ok(1), "it was not deleted"),
            None => drop(broker.topics.create(new_topic("t")).await.unwrap()),
        }
        broker.close().await;
    });
}

/// Every write and sync of the metadata's log fails, and so do those of the next ones.
fn failing_metadata() -> Fault {
    Fault::new(Effect::Fail(Errno::Io))
        .on(&[OpKind::WriteAt, OpKind::SyncData, OpKind::CreateNew])
        .path(sq_sim::PathPattern::Under("/data/@raft".into()))
        .always()
}

#[test]
fn a_topic_whose_creation_is_in_doubt_is_served_once_it_shows() {
    block_on(async {
        for skip in 0..12 {
            let fs = disk(1).await;
            let broker = start(&fs, 1).await;
            broker.topics.create(new_topic("first")).await.unwrap();
            fs.inject(failing_metadata().skip(skip));
            let created = broker.topics.create(new_topic("t")).await;
            fs.clear_faults();
            let again = broker.topics.create(new_topic("t")).await;
            let is_there = matches!(
                again,
                Err(CreateTopicError::Meta(MetaError::TopicExists(_)))
            );
            assert!(again.is_ok() != is_there, "{skip}: {again:?}");
            assert!(created.is_err() || is_there, "{skip}");
            let current = broker.topics.current();
            let topic = current.by_name("t").unwrap();
            assert_eq!(append(topic, 1).await, Ok(0), "{skip}");
            let id = topic.record.id;
            broker.close().await;
            drop((broker, current));
            fs.power_loss(sq_sim::Keep::None);
            let broker = start(&fs, 2).await;
            let found = broker.topics.current();
            assert_eq!(found.by_name("t").unwrap().record.id, id, "{skip}");
            assert_eq!(marks(found.by_name("t").unwrap()).await, [1]);
            broker.close().await;
        }
    });
}

#[test]
fn a_partition_that_does_not_open_hurts_no_other() {
    block_on(async {
        let fs = disk(1).await;
        let broker = start(&fs, 1).await;
        for name in ["a", "b"] {
            let topic = broker.topics.create(new_topic(name)).await.unwrap();
            append(&topic, 1).await.unwrap();
        }
        broker.close().await;
        fs.process_crash();
        let fault = Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::ListDir]);
        fs.inject(fault.path(sq_sim::PathPattern::Under("/data/a/0".into())));

        let broker = start(&fs, 2).await;
        let current = broker.topics.current();
        let refused = append(current.by_name("a").unwrap(), 2).await;
        assert!(
            matches!(refused, Err(AppendError::Unavailable(_))),
            "{refused:?}"
        );
        assert_eq!(append(current.by_name("b").unwrap(), 2).await, Ok(1));
        broker.close().await;
        drop((broker, current));
        let broker = start(&fs, 3).await;
        let current = broker.topics.current();
        assert_eq!(
            append(current.by_name("a").unwrap(), 2).await,
            Ok(1),
            "it was the disk"
        );
        broker.close().await;
    });
}

#[test]
fn a_start_needs_no_room_on_the_disk() {
    // With the disk full a broker could not even start, and so nobody could read or make room.
    block_on(async {
        let fs = disk(1).await;
        // A reserve would be taken again a second after there is room.
        let without_reserve = |config: &mut Config| config.reserve_bytes = 0;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let broker = try_start_with(&fs, 1, Arc::clone(&clock), without_reserve)
            .await
            .unwrap();
        let topic = broker.topics.create(new_topic("t")).await.unwrap();
        for n in 0..10 {
            assert_eq!(append(&topic, 1).await, Ok(n));
        }
        drop((broker, topic));
        fs.set_free_space(Some(0));
        fs.process_crash();

        let broker = try_start_with(&fs, 2, clock, without_reserve)
            .await
            .unwrap();
        let current = broker.topics.current();
        let topic = current.by_name("t").unwrap();
        assert_eq!(marks(topic).await, [1; 10]);
        let refused = append(topic, 100_000).await;
        assert!(
            matches!(refused, Err(AppendError::Storage(_))),
            "{refused:?}"
        );
        // What opening gave back of the log's unused room is taken by somebody else.
        fs.set_free_space(Some(0));
        // Nothing was changed by what failed, so nothing has to wait for a restart.
        let refused = broker.topics.create(new_topic("u")).await.unwrap_err();
        assert!(
            matches!(refused, CreateTopicError::Meta(MetaError::Unavailable(_))),
            "{refused}"
        );
        let refused = append(topic, 100_000).await;
        assert!(
            matches!(refused, Err(AppendError::Storage(_))),
            "{refused:?}"
        );
        assert_eq!(marks(topic).await, [1; 10]);
        fs.set_free_space(None);
        assert_eq!(append(topic, 2).await, Ok(10));
        broker.topics.create(new_topic("u")).await.unwrap();
        broker.close().await;
    });
}

#[test]
fn missing_metadata_beside_data_is_not_taken_for_a_beginning() {
    block_on(async {
        let fs = disk(1).await;
        let broker = start(&fs, 1).await;
        let topic = broker.topics.create(new_topic("t")).await.unwrap();
        append(&topic, 1).await.unwrap();
        broker.close().await;
        fs.process_crash();
        for vote_is_left in [true, false] {
            let raft: Vec<_> = fs
                .files()
                .into_iter()
                .filter(|f| f.starts_with("/data/@raft"))
                .collect();
            assert!(!raft.is_empty());
            for file in raft
                .iter()
                .filter(|f| !(vote_is_left && f.ends_with("vote")))
            {
                sq_sim::FileSystem::remove_file(&fs, file).await.unwrap();
            }
            let (files, errors) = (fs.files(), "holds nothing|was lost|is missing");
            let error = try_start(&fs, 2).await.unwrap_err().to_string();
            assert!(errors.split('|').any(|e| error.contains(e)), "{error}");
            let is_topics = |f: &&std::path::PathBuf| f.starts_with("/data/t");
            let left: Vec<_> = fs.files().into_iter().filter(|f| is_topics(&f)).collect();
            let before: Vec<_> = files.into_iter().filter(|f| is_topics(&f)).collect();
            assert_eq!(left, before);
        }
    });
}

#[test]
fn a_directory_of_a_partition_that_the_topic_has_not_is_set_aside() {
    block_on(async {
        let fs = disk(1).await;
        let broker = start(&fs, 1).await;
        let topic = broker.topics.create(new_topic("t")).await.unwrap();
        append(&topic, 1).await.unwrap();
        broker.close().await;
        fs.process_crash();
        let stray = std::path::Path::new("/data/t/2");
        sq_sim::FileSystem::create_dir_all(&fs, stray)
            .await
            .unwrap();
        fs.write_file(stray.join("00000000000000000000.wal"), "x")
            .unwrap();

        let broker = start(&fs, 2).await;
        let moved = std::path::Path::new("/data/@orphans/1/t/2/00000000000000000000.wal");
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(fs.read_file(moved).unwrap(), b"x");
        assert_eq!(
            marks(broker.topics.current().by_name("t").unwrap()).await,
            [1]
        );
        broker.close().await;
    });
}

#[test]
fn a_client_that_goes_away_half_way_leaves_no_half_a_topic() {
    block_on(async {
        for polls in 0.. {
            let fs = disk(1).await;
            let broker = start(&fs, 1).await;
            let created = broker.topics.create(new_topic("t"));
            let done = sq_sim::poll_n_then_drop(created, polls).await.is_some();
            // Whoever asks next waits for what is under way, and finds all of it or nothing.
            let again = broker.topics.create(new_topic("t")).await;
            let taken = matches!(
                again,
                Err(CreateTopicError::Meta(MetaError::TopicExists(_)))
            );
            assert!(again.is_ok() || taken, "{polls}");
            let current = broker.topics.current();
            assert_eq!(
                append(current.by_name("t").unwrap(), 1).await,
                Ok(0),
                "{polls}"
            );
            broker.close().await;
            if done {
                break;
            }
        }
    });
}

#[test]
fn a_broker_that_has_stopped_changes_nothing() {
    block_on(async {
        let fs = disk(1).await;
        let broker = start(&fs, 1).await;
        let topic = broker.topics.create(new_topic("t")).await.unwrap();
        broker.close().await;
        let refused = broker.topics.create(new_topic("u")).await.unwrap_err();
        assert!(matches!(refused, CreateTopicError::Stopping));
        let refused = broker.topics.delete(topic.record.id).await.unwrap_err();
        assert!(matches!(refused, DeleteTopicError::Stopping));
    });
}

#[test]
fn on_a_full_disk_topics_can_be_deleted_and_the_broker_closed() {
    // A broker whose disk was full could not delete the topic that had filled it: that took room, too.
    block_on(async {
        const RESERVE: u64 = 256 << 10;
        let (fs, clock) = (disk(1).await, VirtualClock::new());
        let begin = |fs: InMemoryFileSystem, clock: VirtualClock| async move {
            let set = |config: &mut Config| {
                config.reserve_bytes = RESERVE;
                config.topic.segment_bytes = 64 << 10;
                config.limits.tail_cache_bytes = 0;
            };
            let clock = Arc::new(clock);
            try_start_with(&fs, 1, clock, set).await.unwrap()
        };
        let broker = begin(fs.clone(), clock.clone()).await;
        let kept = broker.topics.create(new_topic("kept")).await.unwrap();
        append_on(&clock, &kept, 10).await.unwrap();
        let large = broker.topics.create(new_topic("large")).await.unwrap();
        append_on(&clock, &large, 10).await.unwrap();
        let fresh = broker.topics.create(new_topic("fresh")).await.unwrap();
        assert_eq!(
            fs.read_file("/data/@reserve").unwrap().len() as u64,
            RESERVE
        );
        fs.set_free_space(Some(600 << 10));
        let mut acknowledged = 1;
        let full = loop {
            match append_on(&clock, &large, 3_000).await {
                Ok(offset) => assert_eq!(offset, acknowledged),
                Err(error) => break error,
            }
            acknowledged += 1;
            assert!(acknowledged < 1_000);
        };
        assert!(matches!(full, AppendError::Storage(_)), "{full}");
        // Whatever is tried, what was given back stays free.
        let held = || fs.read_file("/data/@reserve").unwrap().len() as u64;
        // It was given back when the disk was found full, and what it held is free.
        assert_eq!(held(), 0);
        assert!(fs.free_space().unwrap() >= RESERVE, "{:?}", fs.free_space());
        // Nor does the first segment of a log that has none.
        let room = fs.free_space();
        append_on(&clock, &fresh, 10).await.unwrap_err();
        assert_eq!(fs.free_space(), room);
        for _ in 0..20 {
            // Long enough for a successor to be tried again, and for the reserve.
            for _ in 0..50 {
                tokio::task::yield_now().await;
                clock.advance(Duration::from_millis(20));
            }
            match append_on(&clock, &large, 3_000).await {
                // A small one may find room beside the reserve, once that is taken again.
                Ok(offset) => {
                    assert_eq!(offset, acknowledged);
                    acknowledged += 1;
                }
                // However often it is tried, nothing of an append's uses that room up.
                Err(_) if held() == 0 => {
                    assert!(fs.free_space().unwrap() >= RESERVE, "{:?}", fs.free_space());
                }
                Err(_) => {}
            }
        }

        // A clean stop, and a start.
        broker.close().await;
        drop((kept, large, fresh, broker));
        let broker = begin(fs.clone(), clock.clone()).await;
        let current = broker.topics.current();
        let large = Arc::clone(current.by_name("large").unwrap());
        let reader = large.partition(0).unwrap().reader().await.unwrap();
        assert_eq!(reader.end_offset(), acknowledged);
        // And what filled the disk can go. There is room then, without another start.
        broker.topics.delete(large.record.id).await.unwrap();
        let kept = Arc::clone(current.by_name("kept").unwrap());
        for _ in 0..2_000 {
            tokio::task::yield_now().await;
            clock.advance(Duration::from_millis(10));
        }
        assert_eq!(append_on(&clock, &kept, 11).await, Ok(1));
        assert_eq!(marks(&kept).await, [10, 11]);
        assert_eq!(
            fs.read_file("/data/@reserve").unwrap().len() as u64,
            RESERVE
        );
        broker.close().await;
    });
}
