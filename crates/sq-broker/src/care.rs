//! What a broker does for all of its partitions by and by: it lets go of what is not to be kept any
//! longer, and reads what nobody reads, to find rot.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sq_sim::{Clock, FileSystem};
use sq_storage::{Damage, Scrub, ScrubFinding, ScrubTotals};
use tokio::task::{AbortHandle, JoinHandle};

use crate::config::{Config, ScrubConfig};
use crate::partition::PartitionId;
use crate::topics::Topics;

/// The longest wait for the first check for rot: a broker that is restarted every day has one too.
const FIRST_SCRUB_WITHIN: Duration = Duration::from_mins(10);

/// Tasks that end with this.
#[derive(Debug)]
pub(crate) struct Care {
    tasks: Vec<AbortHandle>,
    /// How many findings of the scrub were told.
    told: Arc<AtomicU64>,
}

impl Drop for Care {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Care {
    /// Begins to care for the topics.
    pub(crate) fn begin<F: FileSystem>(
        topics: &Arc<Topics<F>>,
        clock: &Arc<dyn Clock>,
        config: &Config,
    ) -> Self {
        let retention = retain(
            Arc::downgrade(topics),
            Arc::clone(clock),
            config.retention_check_interval,
        );
        let findings = Findings::default();
        let told = Arc::clone(&findings.told);
        let scrub = scrub(
            Arc::downgrade(topics),
            Arc::clone(clock),
            config.scrub.clone(),
            findings,
        );
        let tasks = [tokio::spawn(retention), tokio::spawn(scrub)];
        let tasks = tasks.iter().map(JoinHandle::abort_handle).collect();
        Self { tasks, told }
    }

    /// How many places were found damaged since the start.
    pub(crate) fn damage_found(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }
}

/// Applies every topic's retention, again and again, until the topics are gone.
async fn retain<F: FileSystem>(topics: Weak<Topics<F>>, clock: Arc<dyn Clock>, interval: Duration) {
    loop {
        clock.sleep(interval).await;
        let Some(current) = topics.upgrade().map(|topics| topics.current()) else {
            return;
        };
        for topic in current.iter() {
            let retention = topic.config.retention();
            for partition in topic.partitions() {
                partition.retain(retention).await;
            }
        }
    }
}

/// Reads every segment, again and again, until the topics are gone.
async fn scrub<F: FileSystem>(
    topics: Weak<Topics<F>>,
    clock: Arc<dyn Clock>,
    config: ScrubConfig,
    mut findings: Findings,
) {
    let Some(bytes_per_second) = config.bytes_per_second else {
        return;
    };
    let scrub = Scrub::new(Arc::clone(&clock), bytes_per_second);
    let mut pause = config.pause.min(FIRST_SCRUB_WITHIN);
    loop {
        clock.sleep(pause).await;
        pause = config.pause;
        let mut totals = ScrubTotals::default();
        let Some(current) = topics.upgrade().map(|topics| topics.current()) else {
            return;
        };
        for topic in current.iter() {
            for partition in topic.partitions() {
                let Some(reader) = partition.reader_if_open() else {
                    continue;
                };
                let mut found = Vec::new();
                let checked = scrub.check(&reader, |finding| found.push(finding)).await;
                if partition.reader_if_open().is_none() {
                    // Its files went with it.
                    continue;
                }
                for finding in found {
                    findings.tell(partition.id(), finding);
                }
                totals.segments += checked.segments;
                totals.bytes += checked.bytes;
                totals.findings += checked.findings;
            }
        }
        findings.forget_what_was_not_found();
        let ScrubTotals {
            segments,
            bytes,
            findings,
            ..
        } = totals;
        tracing::info!(segments, bytes, findings, "all segments were read for rot");
    }
}

/// What was found, so that it is told once and not with every check.
#[derive(Debug, Default)]
struct Findings {
    before: HashSet<Place>,
    now: HashSet<Place>,
    told: Arc<AtomicU64>,
}

/// Where something is wrong; of a file that can't be read, nothing but which.
type Place = (PathBuf, Option<(u64, Range<u64>)>);

impl Findings {
    fn tell(&mut self, id: &PartitionId, finding: ScrubFinding) {
        let place = match &finding {
            ScrubFinding::Damage(damage) => {
                let within = (damage.position, damage.offsets.clone());
                (damage.path.clone(), Some(within))
            }
            ScrubFinding::Unreadable { path, .. } => (path.clone(), None),
        };
        let is_known = self.before.contains(&place);
        if !self.now.insert(place) || is_known {
            return;
        }
        self.told.fetch_add(1, Ordering::Relaxed);
        match finding {
            ScrubFinding::Damage(Damage {
                path,
                position,
                offsets,
                reason,
                evidence,
            }) => {
                let path = path.display();
                tracing::error!(%id, %path, position, ?offsets, %reason, %evidence,
                    "damage was found; what is around it is served");
            }
            ScrubFinding::Unreadable { path, source } => {
                let path = path.display();
                tracing::error!(%id, %path, error = %source, "a segment could not be read");
            }
        }
    }

    fn forget_what_was_not_found(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sq_sim::{InMemoryFileSystem, VirtualClock};
    use sq_storage::TopicName;

    use crate::batch::BatchHeader;
    use crate::config::TopicOverrides;
    use crate::partition::{NewBatch, Partition};
    use crate::testing::{self, DIR, batch, block_on, disk, pass};
    use crate::topics::NewTopic;

    async fn append(partition: &Partition<InMemoryFileSystem>) {
        let bytes = batch(None, 1, 100);
        let header = BatchHeader::parse(&bytes).unwrap();
        let pending = partition.enqueue(NewBatch::new(bytes, &header)).await;
        pending.unwrap().outcome().await.unwrap();
    }

    #[test]
    fn what_was_found_is_told_once() {
        block_on(async {
            let (fs, clock) = (disk(1).await, VirtualClock::new());
            let broker = testing::broker(&fs, &clock, |_| {}).await;
            let topic = NewTopic {
                name: TopicName::new("t").unwrap(),
                partitions: 2,
                overrides: TopicOverrides::default(),
            };
            let topic = broker.topics.create(topic).await.unwrap();
            for partition in topic.partitions() {
                for _ in 0..3 {
                    append(partition).await;
                }
            }
            let minutes = |n| Duration::from_mins(n);
            pass(&clock, minutes(11)).await;
            assert_eq!(broker.damage_found(), 0);
            let segment = format!("{DIR}/t/1/{:020}.wal", 0);
            fs.flip_bit(&segment, 32 + 70, 0).unwrap();
            // A week later, and once more a week after that.
            let week = Duration::from_hours(7 * 24);
            for found in [1, 1] {
                clock.advance(week);
                pass(&clock, minutes(1)).await;
                assert_eq!(broker.damage_found(), found);
            }
            // What is new is told, and a topic that goes meanwhile is no damage.
            let segment = format!("{DIR}/t/0/{:020}.wal", 0);
            fs.flip_bit(&segment, 32 + 70, 0).unwrap();
            clock.advance(week);
            pass(&clock, minutes(1)).await;
            assert_eq!(broker.damage_found(), 2);
            clock.advance(week);
            broker.topics.delete(topic.record.id).await.unwrap();
            pass(&clock, minutes(1)).await;
            assert_eq!(broker.damage_found(), 2);
        });
    }
}
