//! What every connection of a broker shares.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sq_roll::Node;
use sq_sim::{Clock, FileSystem};
use sq_storage::{Reserve, SegmentIds, Spares, TailCache, WalConfig};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::budget::Budget;
use crate::care::Care;
use crate::config::{Config, HostPort};
use crate::data_dir::{DataDir, DataDirError};
use crate::meta::{self, Metadata, OpenError};
use crate::partition::{Appends, PartitionEnv, PartitionLimits};
use crate::producer_ids::ProducerIds;
use crate::producers::ProducerLimits;
use crate::topics::{self, Topics, TopicsError};

/// The id of the one broker of a cluster of one.
pub const BROKER_ID: i32 = 1;

/// Partitions that are opened at a time.
const OPENING_AT_A_TIME: usize = 16;

/// Who this broker is to its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's id, as Kafka writes one.
    pub cluster_id: String,
    /// The broker's number in it.
    pub broker_id: i32,
    /// What clients are told to connect to.
    pub advertised: HostPort,
}

/// A broker without its listener.
#[derive(Debug)]
pub struct Broker<F: FileSystem> {
    /// The settings.
    pub config: Config,
    /// Who this is.
    pub identity: Identity,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The topics.
    pub topics: Arc<Topics<F>>,
    /// Producer ids to give out.
    pub producer_ids: ProducerIds<F>,
    /// Bytes of requests in flight.
    pub request_memory: Budget,
    /// Bytes of fetched batches in flight.
    pub fetch_memory: Budget,
    meta: Metadata<F>,
    care: Care,
}

/// Why a broker does not start. Nothing was deleted.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory is not one to use.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Room for what must work on a full disk could not be taken, and not because there is none.
    #[error("{path}: {error}")]
    Reserve {
        /// The file.
        path: PathBuf,
        /// The file system's error.
        #[source]
        error: io::Error,
    },
    /// The metadata cannot be trusted.
    #[error(transparent)]
    Meta(#[from] OpenError),
    /// The topics could not be brought up.
    #[error(transparent)]
    Topics(#[from] TopicsError),
}

/// What a broker takes from outside.
#[derive(Debug)]
pub struct Surroundings<F: FileSystem> {
    /// The file system.
    pub fs: Arc<F>,
    /// How appends reach it.
    pub appends: Appends<F>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness: for the ids of the cluster and of topics and segments.
    pub rng: StdRng,
}

impl<F: FileSystem> Broker<F> {
    /// Opens the data directory and starts the partitions. `advertised` is what clients are told to
    /// connect to.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(
        config: Config,
        advertised: HostPort,
        surroundings: Surroundings<F>,
    ) -> Result<Arc<Self>, StartError> {
        let Surroundings {
            fs,
            appends,
            clock,
            mut rng,
        } = surroundings;
        let new_cluster_id = uuid::Builder::from_random_bytes(rng.random()).into_uuid();
        let data_dir =
            DataDir::open(Arc::clone(&fs), &config.data_dir, BROKER_ID, new_cluster_id).await?;
        let stamp = data_dir.stamp();
        let wal = WalConfig {
            segment_ids: SegmentIds::seeded(rng.random()),
            tail_cache: TailCache::new(config.limits.tail_cache_bytes),
            sync: config.sync,
            reserve: reserve(&data_dir, &fs, &clock, config.reserve_bytes).await?,
            spares: Spares::new(config.spare_segment_bytes),
            ..WalConfig::new(data_dir.path())
        };
        let setup = meta::Setup {
            fs: Arc::clone(&fs),
            clock: Arc::clone(&clock),
            broker: sq_meta::Broker {
                id: sq_meta::BrokerId(BROKER_ID.cast_unsigned()),
                incarnation: rng.random(),
                host: advertised.host.clone(),
                port: advertised.port,
                rack: None,
            },
            segment_ids: wal.segment_ids.clone(),
            commit_delay: config.meta.commit_delay,
        };
        let meta = meta::open(&data_dir, setup, |topic| {
            let overrides = topics::overrides_of(topic).unwrap_or_default();
            topics::wal_config(&wal, &overrides.over(&config.topic))
        })
        .await?;
        let env = Arc::new(PartitionEnv {
            fs,
            appends,
            clock: Arc::clone(&clock),
            limits: partition_limits(&config),
            wal,
            metadata: Some(meta.clone()),
            roll: config.roll.clone(),
            node: Node::new(Arc::clone(&clock), config.roll.preparations),
            opening: Semaphore::new(OPENING_AT_A_TIME),
            runtime: Handle::current(),
        });
        let topic_rng = StdRng::from_rng(&mut rng);
        let defaults = config.topic.clone();
        let topics = Topics::start(env, meta.clone(), data_dir, defaults, topic_rng).await;
        if topics.is_err() {
            meta.close().await;
        }
        let topics = topics?;
        let care = Care::begin(&topics, &clock, &config);
        Ok(Arc::new(Self {
            care,
            identity: Identity {
                cluster_id: kafka_text(stamp.cluster_id),
                broker_id: stamp.broker_id,
                advertised,
            },
            clock,
            topics,
            producer_ids: ProducerIds::new(meta.clone()),
            meta,
            request_memory: Budget::new(config.limits.node_in_flight_bytes),
            fetch_memory: Budget::new(config.limits.fetch_memory_bytes),
            config,
        }))
    }

    /// In how many places the check of what nobody reads found damage since the start.
    pub fn damage_found(&self) -> u64 {
        self.care.damage_found()
    }

    /// Closes every partition cleanly, so that the next start has the least to find out.
    pub async fn close(&self) {
        self.topics.close().await;
        self.meta.close().await;
    }
}

/// Takes room for what must work on a full disk.
async fn reserve<F: FileSystem>(
    data_dir: &DataDir<F>,
    fs: &Arc<F>,
    clock: &Arc<dyn Clock>,
    bytes: u64,
) -> Result<Option<Reserve>, StartError> {
    if bytes == 0 {
        return Ok(None);
    }
    let path = data_dir.reserve_path();
    let (fs, clock) = (Arc::clone(fs), Arc::clone(clock));
    match Reserve::take(fs, clock, &path, bytes).await {
        Ok(reserve) => Ok(Some(reserve)),
        Err(error) => Err(StartError::Reserve { path, error }),
    }
}

fn partition_limits(config: &Config) -> PartitionLimits {
    PartitionLimits {
        mark_after: config.idle_mark,
        producers: ProducerLimits {
            expiry: config.producer_id_expiry,
            ..ProducerLimits::default()
        },
        ..PartitionLimits::default()
    }
}

/// An id as Kafka writes it: base 64 for URLs, without padding, 22 characters.
fn kafka_text(id: Uuid) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = id.as_u128();
    // 22 digits of 6 bits are 132: the last digit's lower four are padding.
    let digit = |n: u32| {
        let shifted = if n < 21 {
            bits >> (122 - 6 * n)
        } else {
            bits << 4
        };
        let index = usize::try_from(shifted & 0x3f).unwrap_or(0);
        ALPHABET.get(index).copied().map_or('A', char::from)
    };
    (0..22).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use sq_sim::{Fault, FileSystem, InMemoryFileSystem, OpKind, PathPattern, VirtualClock};
    use uuid::Uuid;

    use super::kafka_text;
    use crate::testing::{DIR, TestBroker, block_on, try_start_with};

    /// A broker, and what its start synced before it could answer anybody. The metadata's log can't begin
    /// to run meanwhile.
    async fn start(fs: &InMemoryFileSystem, clock: &VirtualClock) -> (TestBroker, Vec<String>) {
        let never = Fault::delay(Duration::from_hours(1)).on(&[OpKind::ListDir]);
        fs.inject(never.path(PathPattern::Exactly("/data/@raft".into())));
        fs.take_trace();
        let started = try_start_with(fs, 1, Arc::new(clock.clone()), |_| {}).await;
        let is_sync = |kind| matches!(kind, OpKind::SyncDir | OpKind::SyncData | OpKind::SyncAll);
        let syncs = fs.take_trace().into_iter().filter(|op| is_sync(op.kind));
        let paths = syncs.map(|op| op.path.display().to_string()).collect();
        fs.clear_faults();
        (started.unwrap(), paths)
    }

    #[test]
    fn a_start_syncs_what_its_first_answers_rest_on_and_nothing_else() {
        // Room on the disk, and a log of the metadata that takes commands, are for later.
        block_on(async {
            let clock = VirtualClock::new();
            let fs = InMemoryFileSystem::with_clock(1, Arc::new(clock.clone()));
            fs.create_dir_all(Path::new(DIR)).await.unwrap();
            let (broker, first) = start(&fs, &clock).await;
            assert_eq!(first, ["/", "/data/@stamp@tmp", "/data"]);
            clock.advance(Duration::from_hours(1));
            broker.close().await;
            drop(broker);
            let (_broker, again) = start(&fs, &clock).await;
            let journal = "/data/@raft/log/0/00000000000000000000.wal";
            let read = ["/data/@stamp", "/data", journal, "/data/@raft/log/0"];
            assert_eq!(again, [&["/"][..], &read].concat());
        });
    }

    #[test]
    fn an_id_is_written_as_kafka_writes_it() {
        // Computed with java.util.Base64's URL encoder.
        assert_eq!(kafka_text(Uuid::from_u128(0)), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(
            kafka_text(Uuid::from_u128(u128::MAX)),
            "_____________________w"
        );
        assert_eq!(kafka_text(Uuid::from_u128(1)), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(
            kafka_text(Uuid::from_u128(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f)),
            "AAECAwQFBgcICQoLDA0ODw"
        );
    }
}
