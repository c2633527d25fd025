//! What a topic keeps, and what becomes of the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::DeleteTopicsRequest;
use sq_broker::config::Config;
use sq_broker::protocol::ResponseError;
use sq_sim::{Clock, DirEntry, FileSystem, OsFileSystem, SystemClock, VirtualClock};

use crate::support::{Batch, Client, TestBroker, block_on, code, name};

const EARLIEST: i64 = -2;
const LIST_OFFSETS: i16 = 7;
const DELETE_TOPICS: i16 = 3;

/// What the pool of threads does takes real time, and so does the network.
async fn a_moment() {
    SystemClock.sleep(Duration::from_millis(2)).await;
}

/// Lets the broker's tasks run, and time pass by little, until something holds.
async fn until(clock: &VirtualClock, mut holds: impl AsyncFnMut() -> bool) {
    let mut tries = 0;
    while !holds().await {
        a_moment().await;
        clock.advance(Duration::from_millis(1));
        tries += 1;
        assert!(tries < 5_000, "it never came to that");
    }
}

/// What is in a directory, sorted by name; nothing if it is not there.
async fn list(dir: &Path) -> Vec<DirEntry> {
    let fs = OsFileSystem::blocking_pool();
    fs.list_dir(dir).await.unwrap_or_default()
}

fn is(entry: &DirEntry, part: &str) -> bool {
    entry.name.to_str().unwrap().contains(part)
}

/// The segments of a topic's first partition.
async fn segments(topic: &Path) -> Vec<DirEntry> {
    let mut entries = list(&topic.join("0")).await;
    entries.retain(|e| is(e, ".wal"));
    entries
}

/// What is left of deleted topics.
async fn deleted(data_dir: &Path) -> Vec<PathBuf> {
    let mut entries = list(data_dir).await;
    entries.retain(|e| is(e, "@deleted-"));
    entries.iter().map(|e| data_dir.join(&e.name)).collect()
}

async fn earliest(client: &mut Client, topic: &str) -> i64 {
    let found = client.list_offsets(LIST_OFFSETS, topic, EARLIEST).await;
    assert_eq!(found.error_code, 0);
    found.offset
}

#[test]
fn a_topic_lets_go_of_what_is_too_old_or_too_much() {
    block_on(async {
        let clock = VirtualClock::new();
        let broker = TestBroker::on(Arc::new(clock.clone()), |_| {}).await;
        let mut client = broker.client().await;
        let by_age = [("retention.ms", "600000"), ("segment.bytes", "4096")];
        let by_size = [("retention.bytes", "6000"), ("segment.bytes", "4096")];
        assert_eq!(client.create("aged", 1, &by_age).await, 0);
        assert_eq!(client.create("sized", 1, &by_size).await, 0);
        assert_eq!(client.create("kept", 1, &[]).await, 0);
        let now = i64::try_from(clock.wall_ms()).unwrap();
        for _ in 0..10 {
            for topic in ["aged", "sized", "kept"] {
                let batch = Batch::of(1).sized(1000).at(&[now]);
                client.append(topic, batch.bytes()).await;
            }
        }
        // Five minutes later it is looked for what is too much, after ten for what is too old.
        clock.advance(Duration::from_mins(5));
        until(&clock, async || earliest(&mut client, "sized").await > 0).await;
        assert_eq!(earliest(&mut client, "aged").await, 0);
        // A moment more, as a record goes when it is older than that.
        clock.advance(Duration::from_secs(301));
        until(&clock, async || earliest(&mut client, "aged").await == 10).await;
        assert_eq!(earliest(&mut client, "kept").await, 0);
        let start = earliest(&mut client, "sized").await;
        assert!(start < 10);
        // A segment overruns its cap by a record where the next one is not ready yet.
        for (topic, start, files) in [("aged", 10, 0..=0), ("sized", start, 2..=3)] {
            let path = broker.data_dir().join(topic);
            until(&clock, async || {
                files.contains(&segments(&path).await.len())
            })
            .await;
            assert_eq!(client.end(topic).await, 10);
            // Below the start is out of range, at the end there is nothing yet.
            let (error, _) = client.fetch(topic, start - 1).await;
            assert_eq!(error, code(ResponseError::OffsetOutOfRange));
            let (error, records) = client.fetch(topic, start).await;
            assert_eq!(
                (error, i64::try_from(records.len()).unwrap()),
                (0, 10 - start)
            );
            assert_eq!(client.fetch(topic, 10).await, (0, vec![]));
        }
        assert!(segments(&broker.data_dir().join("aged")).await.is_empty());
        // With nothing left, the offsets go on.
        let broker = broker.restart().await;
        let mut client = broker.client().await;
        assert_eq!(
            (
                earliest(&mut client, "aged").await,
                client.end("aged").await
            ),
            (10, 10)
        );
        assert_eq!(earliest(&mut client, "sized").await, start);
        assert_eq!(
            client.append("aged", Batch::of(1).at(&[now]).bytes()).await,
            10
        );
        broker.stop().await;
    });
}

/// How many of a topic's files were another segment's before, by their headers.
async fn written_again(topic: &Path) -> usize {
    let fs = OsFileSystem::blocking_pool();
    let mut again = 0;
    for entry in segments(topic).await {
        // One that went meanwhile doesn't count.
        let Ok(file) = fs.open(&topic.join("0").join(&entry.name)).await else {
            continue;
        };
        let head = file.read_at(4, 2).await.unwrap();
        again += usize::from(head[..] == [0, 2]);
    }
    again
}

#[test]
fn a_deleted_segment_is_written_again_as_a_later_one_unless_a_setting_forbids_it() {
    for (bytes, is_kept) in [(1 << 20, true), (0, false)] {
        block_on(async {
            let clock = VirtualClock::new();
            let set = |config: &mut Config| config.spare_segment_bytes = bytes;
            let broker = TestBroker::on(Arc::new(clock.clone()), set).await;
            let mut client = broker.client().await;
            let configs = [("retention.bytes", "6000"), ("segment.bytes", "4096")];
            assert_eq!(client.create("turns", 1, &configs).await, 0);
            let path = broker.data_dir().join("turns");
            // A file that something still holds when its segment goes, such as a chore of its seal, is not kept:
            // on a busy machine one turn is not enough.
            let (mut expected, mut again) = (0, 0);
            for _ in 0..if is_kept { 100 } else { 3 } {
                for _ in 0..12 {
                    let batch = Batch::of(1).sized(1000);
                    assert_eq!(client.append("turns", batch.bytes()).await, expected);
                    expected += 1;
                    a_moment().await;
                    clock.advance(Duration::from_millis(1));
                }
                let start = earliest(&mut client, "turns").await;
                clock.advance(Duration::from_mins(5));
                until(&clock, async || {
                    earliest(&mut client, "turns").await > start
                })
                .await;
                until(&clock, async || segments(&path).await.len() <= 3).await;
                again += written_again(&path).await;
                if again > 0 {
                    break;
                }
            }
            assert_eq!(again > 0, is_kept);
            // And nothing of what it held before.
            until(&clock, async || {
                let start = earliest(&mut client, "turns").await;
                let (error, records) = client.fetch("turns", start).await;
                (error, start + i64::try_from(records.len()).unwrap()) == (0, expected)
            })
            .await;
            broker.stop().await;
            let mut files = list(&path.join("0")).await;
            files.retain(|e| is(e, ".spare"));
            assert!(files.is_empty(), "a clean stop leaves none");
        });
    }
}

#[test]
fn a_deleted_topic_goes_in_small_steps_also_across_a_restart() {
    // One unlink of a large segment held up every other partition's appends.
    block_on(async {
        let clock = VirtualClock::new();
        let broker = TestBroker::on(Arc::new(clock.clone()), |_| {}).await;
        let mut client = broker.client_with("large").await;
        for _ in 0..6 {
            client
                .append("large", Batch::of(1).sized(1_000_000).bytes())
                .await;
        }
        let len = segments(&broker.data_dir().join("large")).await[0].len;
        assert!(len > 5 << 20);
        let request = DeleteTopicsRequest::default().with_topic_names(vec![name("large")]);
        let response = client.call(DELETE_TOPICS, &request).await;
        assert_eq!(response.responses[0].error_code, 0);
        // Time stands still, so the first step is all that is done.
        let mut left = len;
        for _ in 0..5_000 {
            a_moment().await;
            let rest = deleted(broker.data_dir()).await;
            left = segments(&rest[0]).await[0].len;
            if left < len {
                break;
            }
        }
        assert!(left < len && left >= len - (1 << 20), "{left} of {len}");
        // The name is free meanwhile.
        assert_eq!(client.create("large", 1, &[]).await, 0);
        assert_eq!(client.end("large").await, 0);

        let broker = broker.restart().await;
        until(&clock, async || deleted(broker.data_dir()).await.is_empty()).await;
        broker.stop().await;
    });
}
