//! Rolls, deleted records, deleted topics and stops that meet.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sq_meta::SegmentId;
use sq_sim::{InMemoryFileSystem, Keep, VirtualClock};

use super::Topic;
use super::tests::{append_on, new_topic};
use crate::config::Config;
use crate::partition::DeleteTo;
use crate::testing::{TestBroker, block_on, disk, in_time, try_start_with};

type Fs = InMemoryFileSystem;

/// What is written at a time, in bytes: a segment holds four or so.
const RECORD: usize = 900;

/// Lets everything happen for which no time has to pass.
async fn settle() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

/// A broker whose metadata takes so long over a commit.
async fn start(fs: &Fs, clock: &VirtualClock, seed: u64, commit_delay: Duration) -> TestBroker {
    let set = |config: &mut Config| {
        config.topic.segment_bytes = 4_096;
        config.topic.retention_ms = None;
        config.roll.longest_wait = Duration::from_secs(5);
        config.meta.commit_delay = commit_delay;
    };
    let started = try_start_with(fs, seed, Arc::new(clock.clone()), set);
    in_time(clock, Box::pin(started)).await.unwrap()
}

async fn create(clock: &VirtualClock, broker: &TestBroker) -> Arc<Topic<Fs>> {
    let created = broker.topics.create(new_topic("t"));
    in_time(clock, created).await.unwrap()
}

async fn fill(clock: &VirtualClock, topic: &Topic<Fs>, offsets: std::ops::Range<u64>) {
    for offset in offsets {
        assert_eq!(append_on(clock, topic, RECORD).await, Ok(offset));
    }
}

/// Where the first partition's log begins and ends.
async fn offsets(clock: &VirtualClock, topic: &Topic<Fs>) -> (u64, u64) {
    let reader = topic.partition(0).unwrap().reader();
    let reader = in_time(clock, reader).await.unwrap();
    (reader.start_offset(), reader.end_offset())
}

/// What the metadata says of the first partition is in order, and in line with the log.
async fn is_in_line(topic: &Topic<Fs>, broker: &TestBroker) {
    let metadata = &broker.topics.meta;
    let state = metadata.state();
    state.validate().unwrap();
    let reader = topic.partition(0).unwrap().reader().await.unwrap();
    let id = metadata.partition_id(&topic.record.name, 0).unwrap();
    let known = state.partition(id).unwrap();
    assert!(known.log_start <= reader.start_offset());
    assert!(known.active.base <= reader.end_offset());
    for segment in reader.segments() {
        let is_known = known.find(SegmentId(segment.id)).is_some();
        assert!(is_known || segment.base_offset < known.log_start);
    }
}

fn files(fs: &Fs, part: &str) -> Vec<PathBuf> {
    let files = fs.files().into_iter();
    files
        .filter(|path| path.to_string_lossy().contains(part))
        .collect()
}

#[test]
fn records_that_are_deleted_at_any_point_of_a_roll_disturb_none() {
    block_on(async {
        let delays = [Duration::ZERO, Duration::from_millis(30)];
        for (records, delay) in (1..14).flat_map(|records| delays.map(|delay| (records, delay))) {
            for to in [DeleteTo::Offset(records / 2), DeleteTo::End] {
                for stop in [None, Some(Keep::None), Some(Keep::Mixed)] {
                    let (fs, clock) = (disk(records).await, VirtualClock::new());
                    let broker = start(&fs, &clock, 1, delay).await;
                    let topic = create(&clock, &broker).await;
                    fill(&clock, &topic, 0..records).await;
                    if records % 2 == 0 {
                        settle().await;
                    }
                    let partition = topic.partition(0).unwrap();
                    let deleted = in_time(&clock, partition.delete_records(to)).await;
                    let start_offset = match to {
                        DeleteTo::End => records,
                        DeleteTo::Offset(offset) => offset,
                    };
                    let context = format!("{records} {delay:?} {to:?} {stop:?}");
                    assert_eq!(deleted, Ok(start_offset), "{context}");
                    // At once, and on into the next segments and those after.
                    fill(&clock, &topic, records..records + 12).await;
                    assert_eq!(offsets(&clock, &topic).await, (start_offset, records + 12));
                    match stop {
                        None => in_time(&clock, broker.close()).await,
                        Some(keep) => fs.power_loss(keep),
                    }
                    drop((topic, broker));

                    let broker = start(&fs, &clock, 2, delay).await;
                    let topic = Arc::clone(broker.topics.current().by_name("t").unwrap());
                    let found = offsets(&clock, &topic).await;
                    assert_eq!(found, (start_offset, records + 12), "{context}");
                    is_in_line(&topic, &broker).await;
                    fill(&clock, &topic, records + 12..records + 18).await;
                    in_time(&clock, broker.close()).await;
                }
            }
        }
    });
}

#[test]
fn a_log_that_was_emptied_goes_on_after_any_stop() {
    block_on(async {
        for stop in [None, Some(Keep::None), Some(Keep::Mixed)] {
            for records in 1..10 {
                let (fs, clock) = (disk(records).await, VirtualClock::new());
                let mut next = 0;
                for life in 0..4 {
                    let broker = start(&fs, &clock, life, Duration::ZERO).await;
                    if life == 0 {
                        create(&clock, &broker).await;
                    }
                    let topic = Arc::clone(broker.topics.current().by_name("t").unwrap());
                    assert_eq!(offsets(&clock, &topic).await, (next, next));
                    is_in_line(&topic, &broker).await;
                    fill(&clock, &topic, next..next + records).await;
                    next += records;
                    let partition = topic.partition(0).unwrap();
                    assert_eq!(partition.delete_records(DeleteTo::End).await, Ok(next));
                    match stop {
                        None => in_time(&clock, broker.close()).await,
                        Some(keep) => fs.power_loss(keep),
                    }
                }
            }
        }
    });
}

#[test]
fn a_topic_that_is_deleted_in_the_middle_of_a_roll_leaves_nothing_to_the_next_of_its_name() {
    block_on(async {
        let delay = Duration::from_millis(200);
        for records in 1..12 {
            let (fs, clock) = (disk(records).await, VirtualClock::new());
            let broker = start(&fs, &clock, 1, delay).await;
            let topic = create(&clock, &broker).await;
            fill(&clock, &topic, 0..records).await;
            // Whatever commit is under way is not waited for.
            let partition = topic.partition(0).unwrap();
            let deleted = partition.delete_records(DeleteTo::Offset(records / 2));
            let gone = broker.topics.delete(topic.record.id);
            let both = async { tokio::join!(deleted, gone) };
            let (deleted, gone) = in_time(&clock, both).await;
            assert_eq!(deleted, Ok(records / 2));
            gone.unwrap();
            drop(topic);

            let topic = create(&clock, &broker).await;
            assert_eq!(offsets(&clock, &topic).await, (0, 0));
            fill(&clock, &topic, 0..9).await;
            is_in_line_soon(&clock, &topic, &broker).await;
            in_time(&clock, broker.close()).await;
            assert_eq!(files(&fs, ".prepared"), [] as [PathBuf; 0], "{records}");
            drop((topic, broker));

            let broker = start(&fs, &clock, 2, delay).await;
            let topic = Arc::clone(broker.topics.current().by_name("t").unwrap());
            assert_eq!(offsets(&clock, &topic).await, (0, 9));
            is_in_line(&topic, &broker).await;
            in_time(&clock, broker.close()).await;
        }
    });
}

/// What a roll leaves to the metadata is told a while later.
async fn is_in_line_soon(clock: &VirtualClock, topic: &Topic<Fs>, broker: &TestBroker) {
    crate::testing::pass(clock, Duration::from_secs(3)).await;
    is_in_line(topic, broker).await;
}

#[test]
fn a_broker_that_stops_in_the_middle_of_a_roll_leaves_no_prepared_file() {
    block_on(async {
        for delay in [Duration::ZERO, Duration::from_millis(200)] {
            for records in 1..12 {
                let (fs, clock) = (disk(records).await, VirtualClock::new());
                let broker = start(&fs, &clock, 1, delay).await;
                let topic = create(&clock, &broker).await;
                fill(&clock, &topic, 0..records).await;
                let partition = topic.partition(0).unwrap();
                let deleted = partition.delete_records(DeleteTo::End);
                let stopped = async { tokio::join!(deleted, broker.close()) };
                let (deleted, ()) = in_time(&clock, stopped).await;
                assert_eq!(deleted, Ok(records));
                assert_eq!(files(&fs, ".prepared"), [] as [PathBuf; 0], "{records}");
                fs.power_loss(Keep::None);
                let broker = start(&fs, &clock, 2, delay).await;
                let topic = Arc::clone(broker.topics.current().by_name("t").unwrap());
                assert_eq!(offsets(&clock, &topic).await, (records, records));
                is_in_line(&topic, &broker).await;
            }
        }
    });
}
