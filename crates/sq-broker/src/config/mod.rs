//! The broker's settings: `sq.toml`, what the command line overrides, and what they may be.
//!
//! A file is a flat list of keys for this module: a table's keys are joined by dots, so that
//! `[limits]` and `max_frame_bytes` name `limits.max_frame_bytes`, and Kafka's own names of topic
//! settings can stand in `[topic]` as they are. A key that is not known is refused, with the nearest
//! one that is.

mod address;
mod error;
mod file;
mod nearest;
mod topic;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use sq_storage::SyncPolicy;

pub use address::{AddressError, HostPort};
pub use error::ConfigError;
pub use file::EXAMPLE;
pub use sq_roll::{Mode as RollMode, SoftMark};
pub use topic::{TopicConfig, TopicConfigError, TopicKey, TopicOverrides};

/// The longest time after an acknowledgement at which a record is synced, in milliseconds: an hour.
pub const MAX_SYNC_INTERVAL_MS: u64 = 60 * 60 * 1000;

/// The settings of a broker. [`Default`] is what a broker without a file runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where to listen (`listen`). Port 0 lets the system choose.
    pub listen: HostPort,
    /// What clients are told to connect to (`advertise`); without it, where the broker listens.
    pub advertise: Option<HostPort>,
    /// Where everything durable is (`data_dir`).
    pub data_dir: PathBuf,
    /// Whether a client's interest in a topic creates it (`auto_create_topics`).
    pub auto_create_topics: bool,
    /// Partitions of a topic that does not say how many (`default_partitions`).
    pub default_partitions: u32,
    /// How long a producer that sends nothing is remembered (`producer_id_expiry_ms`).
    pub producer_id_expiry: Duration,
    /// How long after its last append an idle partition says what is durable (`idle_mark_ms`).
    pub idle_mark: Duration,
    /// When what was appended is synced (`sync_interval_ms`, 0 for before every acknowledgement).
    pub sync: SyncPolicy,
    /// Whether durable writes of whole pages, appends above all, go past the page cache (`direct_writes`;
    /// [`OsFileSystem::with_direct_writes`](sq_sim::OsFileSystem::with_direct_writes)).
    pub direct_writes: bool,
    /// Room that is kept on the disk for what must still work when it is full: deleting and closing;
    /// in bytes, 0 for none (`reserve_bytes`).
    pub reserve_bytes: u64,
    /// Bytes of deleted segments that are kept to be written again, over all partitions, 0 for none
    /// (`spare_segment_bytes`; [`Spares`](sq_storage::Spares)).
    pub spare_segment_bytes: u64,
    /// How often it is looked for records that are not to be kept any longer
    /// (`retention_check_interval_ms`); Kafka's `log.retention.check.interval.ms`.
    pub retention_check_interval: Duration,
    /// The check of what nobody reads (`scrub.*`).
    pub scrub: ScrubConfig,
    /// How a log goes on in its next segment (`roll.*`).
    pub roll: RollConfig,
    /// The metadata's log (`meta.*`).
    pub meta: MetaConfig,
    /// What a topic has where its creation says nothing (`topic.*`).
    pub topic: TopicConfig,
    /// What is bounded (`limits.*`).
    pub limits: Limits,
}

/// How a log goes on in its next segment.
#[derive(Clone, Debug, PartialEq)]
pub struct RollConfig {
    /// When the next segment is prepared (`roll.mode`): `anticipatory`, before it is needed, or
    /// `reactive`, at the cap, where appends wait for it. The latter is there to compare with.
    pub mode: RollMode,
    /// Where in a segment the next one is asked for (`roll.soft_mark`): `auto`, as late as the write
    /// rate and the time that preparations take allow, or a fraction of the segment, above 0 and up to 1.
    pub soft_mark: SoftMark,
    /// Segments that are prepared at a time, over all partitions (`roll.preparations`).
    pub preparations: usize,
    /// How long an append waits for a segment to go to where there is none, before it is refused with an
    /// error that producers retry (`roll.longest_wait_ms`).
    pub longest_wait: Duration,
    /// How many of a partition's last rolls are remembered (`roll.kept_records`).
    pub kept_records: usize,
}

impl Default for RollConfig {
    fn default() -> Self {
        Self {
            mode: RollMode::Anticipatory,
            soft_mark: SoftMark::Auto,
            preparations: 8,
            longest_wait: Duration::from_secs(5),
            kept_records: 128,
        }
    }
}

/// The metadata's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaConfig {
    /// How much later than it could be a command is committed (`meta.commit_delay_ms`): what a quorum
    /// that is far away would cost. For tests and benchmarks; a broker refuses it unless it is told
    /// that the settings are those of a test.
    pub commit_delay: Duration,
}

/// How the broker checks its segments for rot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubConfig {
    /// Bytes that are read in a second, over all partitions (`scrub.bytes_per_second`); `None`, a 0 in
    /// the file, to check nothing.
    pub bytes_per_second: Option<NonZeroU64>,
    /// How long to rest between the end of one check of everything and the next one
    /// (`scrub.pause_ms`). The first one begins after at most ten minutes.
    pub pause: Duration,
}

impl Default for ScrubConfig {
    fn default() -> Self {
        Self {
            bytes_per_second: NonZeroU64::new(4 << 20),
            pause: Duration::from_hours(7 * 24),
        }
    }
}

/// Bounds on what clients can make a broker hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest request, in bytes (`limits.max_frame_bytes`).
    pub max_frame_bytes: usize,
    /// Connections at a time (`limits.max_connections`).
    pub max_connections: usize,
    /// Bytes of requests that one connection may have in flight
    /// (`limits.connection_in_flight_bytes`).
    pub connection_in_flight_bytes: usize,
    /// Bytes of requests in flight over all connections (`limits.node_in_flight_bytes`).
    pub node_in_flight_bytes: usize,
    /// The most one fetch response carries, in bytes, but for a first batch that is larger
    /// (`limits.max_fetch_bytes`).
    pub max_fetch_bytes: usize,
    /// Bytes of fetch responses that are being built and sent, over all connections
    /// (`limits.fetch_memory_bytes`).
    pub fetch_memory_bytes: usize,
    /// Bytes of the batches stored last, over all partitions, that are kept in memory for consumers that
    /// have caught up; 0 for none (`limits.tail_cache_bytes`).
    pub tail_cache_bytes: usize,
    /// The most that a batch may hold once decompressed for a lookup by timestamp, in bytes
    /// (`limits.max_decompressed_bytes`).
    pub max_decompressed_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: HostPort::new("127.0.0.1", 9092),
            advertise: None,
            data_dir: PathBuf::from("./sq-data"),
            auto_create_topics: true,
            default_partitions: 1,
            producer_id_expiry: Duration::from_hours(24),
            idle_mark: Duration::from_millis(100),
            sync: SyncPolicy::Always,
            direct_writes: true,
            reserve_bytes: 16 << 20,
            spare_segment_bytes: 2 << 30,
            retention_check_interval: Duration::from_mins(5),
            scrub: ScrubConfig::default(),
            roll: RollConfig::default(),
            meta: MetaConfig::default(),
            topic: TopicConfig::default(),
            limits: Limits::default(),
        }
    }
}

const MIB: usize = 1024 * 1024;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_frame_bytes: 100 * MIB,
            max_connections: 1_024,
            connection_in_flight_bytes: 128 * MIB,
            node_in_flight_bytes: 512 * MIB,
            max_fetch_bytes: 55 * MIB,
            fetch_memory_bytes: 512 * MIB,
            tail_cache_bytes: 64 * MIB,
            max_decompressed_bytes: 128 * MIB,
        }
    }
}

impl Config {
    /// Settings from the text of an `sq.toml`; what it leaves out has its default.
    ///
    /// They are not [validated](Self::validate) yet: the command line may still override them.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        file::parse(text)
    }

    /// Has what was appended synced every so many milliseconds, and before every acknowledgement if
    /// that is 0.
    pub fn sync_every_ms(&mut self, interval_ms: u64) {
        self.sync = match interval_ms {
            0 => SyncPolicy::Always,
            ms => SyncPolicy::Every(Duration::from_millis(ms)),
        };
    }

    /// Checks what no setting can tell alone.
    ///
    /// # Errors
    /// [`ConfigError`]: clients could not connect to what would be advertised, or a limit is beyond
    /// another that contains it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match &self.advertise {
            Some(advertise) if advertise.is_unspecified() || advertise.port == 0 => {
                return Err(ConfigError::UnreachableAdvertise {
                    advertise: advertise.clone(),
                });
            }
            None if self.listen.is_unspecified() => {
                return Err(ConfigError::AdvertiseNeeded {
                    listen: self.listen.clone(),
                });
            }
            _ => {}
        }
        let limits = &self.limits;
        for (inner_key, inner, outer_key, outer) in [
            (
                "limits.max_frame_bytes",
                limits.max_frame_bytes,
                "limits.connection_in_flight_bytes",
                limits.connection_in_flight_bytes,
            ),
            (
                "limits.connection_in_flight_bytes",
                limits.connection_in_flight_bytes,
                "limits.node_in_flight_bytes",
                limits.node_in_flight_bytes,
            ),
            (
                "limits.max_fetch_bytes",
                limits.max_fetch_bytes,
                "limits.fetch_memory_bytes",
                limits.fetch_memory_bytes,
            ),
            (
                "topic.max.message.bytes",
                self.topic.max_message_bytes as usize,
                "limits.max_frame_bytes",
                limits.max_frame_bytes,
            ),
        ] {
            if inner > outer {
                return Err(ConfigError::LimitBeyond {
                    inner_key,
                    inner,
                    outer_key,
                    outer,
                });
            }
        }
        Ok(())
    }

    /// Checks that no setting is one that only tests and benchmarks may have.
    ///
    /// # Errors
    /// [`ConfigError::OnlyInTests`].
    pub fn refuse_test_settings(&self) -> Result<(), ConfigError> {
        if self.meta.commit_delay.is_zero() {
            Ok(())
        } else {
            Err(ConfigError::OnlyInTests {
                key: "meta.commit_delay_ms",
            })
        }
    }

    /// What clients are told to connect to, once the port that was listened on is known.
    pub fn advertised(&self, bound_port: u16) -> HostPort {
        self.advertise.clone().unwrap_or_else(|| HostPort {
            port: bound_port,
            ..self.listen.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, ConfigError};

    #[test]
    fn what_nobody_can_connect_to_is_not_advertised() {
        // A broker that listened on 0.0.0.0 told its clients to connect to 0.0.0.0: each reached
        // itself, or nothing, and timed out without a word about why.
        for listen in ["0.0.0.0:9092", "[::]:9092"] {
            let mut config = Config::from_toml(&format!("listen = \"{listen}\"")).unwrap();
            let error = config.validate().unwrap_err();
            assert!(matches!(error, ConfigError::AdvertiseNeeded { .. }));
            assert!(error.to_string().contains("set advertise"), "{error}");
            for advertise in ["0.0.0.0:9092", "[::]:9092", "broker.test:0"] {
                config.advertise = Some(advertise.parse().unwrap());
                let error = config.validate().unwrap_err();
                assert!(
                    matches!(error, ConfigError::UnreachableAdvertise { .. }),
                    "{error}"
                );
            }
            config.advertise = Some("broker.test:19092".parse().unwrap());
            assert_eq!(config.validate(), Ok(()));
            assert_eq!(config.advertised(9092).to_string(), "broker.test:19092");
        }
    }

    #[test]
    fn without_advertise_clients_are_told_the_port_that_is_bound() {
        let config = Config::from_toml("listen = \"localhost:0\"").unwrap();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.advertised(43_210).to_string(), "localhost:43210");
    }

    #[test]
    fn a_limit_beyond_the_one_that_contains_it_is_refused() {
        for (text, message) in [
            (
                "[limits]\nconnection_in_flight_bytes = 1048576",
                "limits.max_frame_bytes (104857600) is more than \
                 limits.connection_in_flight_bytes (1048576), which contains it",
            ),
            (
                "[limits]\nnode_in_flight_bytes = 104857600",
                "limits.connection_in_flight_bytes (134217728) is more than \
                 limits.node_in_flight_bytes (104857600), which contains it",
            ),
            (
                "[limits]\nfetch_memory_bytes = 1048576",
                "limits.max_fetch_bytes (57671680) is more than \
                 limits.fetch_memory_bytes (1048576), which contains it",
            ),
            (
                "[topic]\nmax.message.bytes = 104857601",
                "topic.max.message.bytes (104857601) is more than \
                 limits.max_frame_bytes (104857600), which contains it",
            ),
        ] {
            let config = Config::from_toml(text).unwrap();
            assert_eq!(config.validate().unwrap_err().to_string(), message);
        }
    }
}
