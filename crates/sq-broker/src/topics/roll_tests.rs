//! Rolls through the metadata, as a broker's producers meet them.

use std::sync::Arc;
use std::time::Duration;

use sq_sim::{InMemoryFileSystem, Keep, OpKind, VirtualClock};
use sq_storage::SyncPolicy;

use super::Topic;
use super::tests::{append, append_on, new_topic};
use crate::config::{Config, RollMode};
use crate::testing::{TestBroker, block_on, disk, try_start_with};

type Fs = InMemoryFileSystem;

/// What a producer of these tests writes at a time, in bytes.
const RECORD: usize = 900;

/// When what they wrote is synced, where that is not before it is acknowledged.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// What a paced producer meets while segments follow each other: how many of its appends had to wait
/// for time to pass, and how many rolls there were.
async fn paced_appends(set: impl FnOnce(&mut Config)) -> (usize, usize) {
    let (fs, clock) = (disk(1).await, VirtualClock::new());
    let set = |config: &mut Config| {
        config.topic.segment_bytes = 16 << 10;
        config.meta.commit_delay = Duration::from_millis(50);
        config.roll.longest_wait = Duration::from_secs(5);
        set(config);
    };
    let start = try_start_with(&fs, 1, Arc::new(clock.clone()), set);
    let pass = |time: Duration| {
        let clock = clock.clone();
        async move {
            for _ in 0..time.as_millis() {
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
                clock.advance(Duration::from_millis(1));
            }
        }
    };
    let mut waited = 0;
    let broker = tokio::select! {
        broker = start => broker.unwrap(),
        () = pass(Duration::from_mins(1)) => panic!("no start"),
    };
    let topic = tokio::select! {
        topic = broker.topics.create(new_topic("t")) => topic.unwrap(),
        () = pass(Duration::from_mins(1)) => panic!("no topic"),
    };
    for n in 0..300 {
        let before = clock.elapsed();
        assert_eq!(append_on(&clock, &topic, RECORD).await, Ok(n));
        waited += usize::from(clock.elapsed() != before);
        pass(Duration::from_millis(20)).await;
    }
    pass(Duration::from_secs(1)).await;
    let rolls = topic.partition(0).unwrap().rolls().await.unwrap().len();
    (waited, rolls)
}

#[test]
fn no_append_waits_for_a_commit_while_the_next_segment_is_ready_in_time() {
    // The next segment was asked for when the one before was full: everybody waited for the commit,
    // and consumers for the producers.
    block_on(async {
        let (waited, rolls) = paced_appends(|_| {}).await;
        assert!(rolls > 10, "{rolls}");
        // The first append finds the log still being opened, at the most.
        assert!(waited <= 1, "{waited} of 300 waited, {rolls} rolls");

        let reactive = |config: &mut Config| config.roll.mode = RollMode::Reactive;
        let (waited, rolls) = paced_appends(reactive).await;
        assert!(waited > 10, "{waited} of 300 waited, {rolls} rolls");
    });
}

#[test]
fn the_first_roll_of_a_broker_knows_how_long_a_commit_takes() {
    // It asked for its first successor at the mark for those that know nothing, which was too late where
    // commits are slow, although the topic's own commit had shown how slow they are.
    block_on(async {
        let slow = |config: &mut Config| config.meta.commit_delay = Duration::from_millis(150);
        let (waited, rolls) = paced_appends(slow).await;
        assert!(rolls > 10, "{rolls}");
        assert_eq!(waited, 0, "of 300, {rolls} rolls");
    });
}

/// Lets everything happen for which no time has to pass.
async fn settle() {
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
    }
}

async fn start_with_small_segments(fs: &Fs, clock: &VirtualClock, seed: u64) -> TestBroker {
    let set = |config: &mut Config| {
        config.sync = SyncPolicy::Every(SYNC_INTERVAL);
        config.topic.segment_bytes = 16 << 10;
        config.roll.longest_wait = Duration::from_secs(5);
    };
    let broker = try_start_with(fs, seed, Arc::new(clock.clone()), set).await;
    broker.unwrap()
}

async fn segments(topic: &Topic<Fs>) -> usize {
    let reader = topic.partition(0).unwrap().reader().await.unwrap();
    reader.segments().len()
}

/// A log that has taken so many records, of a broker that is the same each time.
async fn filled(records: u64) -> (Fs, VirtualClock, TestBroker, Arc<Topic<Fs>>) {
    let (fs, clock) = (disk(1).await, VirtualClock::new());
    let broker = start_with_small_segments(&fs, &clock, 1).await;
    let topic = broker.topics.create(new_topic("t")).await.unwrap();
    for n in 0..records {
        assert_eq!(append_on(&clock, &topic, RECORD).await, Ok(n));
        settle().await;
    }
    (fs, clock, broker, topic)
}

#[test]
fn a_log_rolls_on_where_a_seal_survived_a_power_failure_and_the_record_beside_it_did_not() {
    // It went on in the segment that the metadata had sealed. No successor of that was ever taken, and
    // once it was full every append failed, after each further start as well.
    block_on(async {
        let mut room = 10;
        while segments(&filled(room + 1).await.3).await < 2 {
            room += 1;
        }
        let (fs, clock, broker, topic) = filled(room).await;
        // What is there is synced. The next record crosses and is acknowledged before it is.
        clock.advance(2 * SYNC_INTERVAL);
        settle().await;
        fs.take_trace();
        assert_eq!(append(&topic, RECORD).await, Ok(room));
        settle().await;
        let commits =
            |op: &sq_sim::Op| op.kind == OpKind::SyncData && op.path.starts_with("/data/@raft");
        let trace = fs.take_trace();
        assert!(trace.iter().any(commits), "the seal is not committed");
        fs.power_loss(Keep::None);
        drop((broker, topic));

        let broker = start_with_small_segments(&fs, &clock, 2).await;
        let current = broker.topics.current();
        let topic = current.by_name("t").unwrap();
        for n in room..3 * room {
            assert_eq!(append_on(&clock, topic, RECORD).await, Ok(n));
            settle().await;
        }
        assert!(segments(topic).await > 2);
        broker.close().await;
    });
}
