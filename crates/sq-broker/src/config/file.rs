//! `sq.toml`: from text to settings, each error with its key.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use toml::{Table, Value};

use super::nearest::nearest;
use super::topic::TopicKey;
use super::{Config, ConfigError, HostPort, MAX_SYNC_INTERVAL_MS, RollMode, SoftMark};

/// An `sq.toml` that says what is so anyway.
pub const EXAMPLE: &str = r#"# What stands here is what holds without a file.

# Where to listen, and what to tell clients to connect to: by default, where the broker listens.
# An address that stands for all of the machine's own (0.0.0.0, [::]) needs `advertise`.
listen = "127.0.0.1:9092"
# advertise = "broker.example.net:9092"

data_dir = "./sq-data"

# A topic that a client asks about and that is not there is created, with so many partitions.
auto_create_topics = true
default_partitions = 1

# How long a producer that sends nothing is remembered, so that a retry is recognised.
producer_id_expiry_ms = 86400000

# How long after its last append an idle partition writes down what is durable.
idle_mark_ms = 100

# When what was appended is synced. 0: before it is acknowledged, so that nothing acknowledged is ever
# lost. Any other number: at most so many milliseconds after that. What was acknowledged longer ago, and
# longer than a write and a sync take, is durable; what is younger can be lost from the end of a
# partition if the machine loses power or crashes, and not if only the broker dies.
sync_interval_ms = 0

# Whether what is appended goes past the page cache: durable sooner. A consumer that is far behind, so that
# the tail cache does not have what it reads, then waits for the disk. false: memory that nothing else needs
# holds what was appended last.
direct_writes = true

# Room that is kept on the disk for what must still work when it is full: deleting topics, and a clean
# stop. 0 for none.
reserve_bytes = 16777216

# Bytes of deleted segments that are kept for some minutes, to be written again as the next ones: that costs
# appends less than fresh space. 0 for none, as where backups hold hard links to segments.
spare_segment_bytes = 2147483648

# How often it is looked for records that are not to be kept any longer.
retention_check_interval_ms = 300000

# How a log goes on in its next segment. "anticipatory": it is prepared before it is needed, so that no
# append waits for it; "reactive": when it is needed, to compare with.
[roll]
mode = "anticipatory"
# Where in a segment the next one is asked for: "auto", as late as the write rate and the time that it
# takes allow, or a fraction of the segment, such as 0.9.
soft_mark = "auto"
# Segments that are prepared at a time, over all partitions.
preparations = 8
# How long an append waits where there is no segment to go to. Then producers are told to try again.
longest_wait_ms = 5000
# How many of a partition's last rolls are remembered.
kept_records = 128

# By how much each change of the metadata is held up. Only for tests and benchmarks, and refused without
# --unsafe-test-settings.
[meta]
commit_delay_ms = 0

# What a topic has where its creation says nothing. The names are Kafka's. -1: no bound.
[topic]
max.message.bytes = 1048588
retention.bytes = -1
retention.ms = 604800000
segment.bytes = 1073741824
segment.ms = 604800000

# Everything is read now and then, whether somebody wants it or not: rot is found while there is
# another copy. So many bytes a second, 0 for never, and a rest before it begins again.
[scrub]
bytes_per_second = 4194304
pause_ms = 604800000

[limits]
# The largest request.
max_frame_bytes = 104857600
max_connections = 1024
# Bytes of requests that are being served, of one connection and of all.
connection_in_flight_bytes = 134217728
node_in_flight_bytes = 536870912
# Bytes of one fetch response (a first batch is whole even if it is larger), and of all of them.
max_fetch_bytes = 57671680
fetch_memory_bytes = 536870912
# Bytes of the batches stored last that are kept in memory for consumers that have caught up.
tail_cache_bytes = 67108864
# Bytes of one batch decompressed, which only a lookup by timestamp does.
max_decompressed_bytes = 134217728
"#;

/// A setting of the file that is not a topic's.
type Setter = fn(&mut Config, &'static str, &Value) -> Result<(), ConfigError>;

/// The most that a frame's own length can say, in bytes.
const FRAME: i64 = i32::MAX as i64;
/// More memory than a machine has, in bytes.
const MEMORY: i64 = 1 << 44;

const SETTINGS: [(&str, Setter); 28] = [
    ("listen", |c, key, v| set(&mut c.listen, address(key, v)?)),
    ("advertise", |c, key, v| {
        set(&mut c.advertise, Some(address(key, v)?))
    }),
    ("data_dir", |c, key, v| set(&mut c.data_dir, path(key, v)?)),
    ("auto_create_topics", |c, key, v| {
        set(&mut c.auto_create_topics, boolean(key, v)?)
    }),
    ("default_partitions", |c, key, v| {
        set(&mut c.default_partitions, whole(key, v, 1, 100_000)?)
    }),
    ("producer_id_expiry_ms", |c, key, v| {
        set(&mut c.producer_id_expiry, millis(key, v)?)
    }),
    ("idle_mark_ms", |c, key, v| {
        set(&mut c.idle_mark, millis(key, v)?)
    }),
    ("sync_interval_ms", |c, key, v| {
        c.sync_every_ms(whole(key, v, 0, MAX_SYNC_INTERVAL_MS.cast_signed())?);
        Ok(())
    }),
    ("direct_writes", |c, key, v| {
        set(&mut c.direct_writes, boolean(key, v)?)
    }),
    ("reserve_bytes", |c, key, v| {
        set(&mut c.reserve_bytes, whole(key, v, 0, MEMORY)?)
    }),
    ("spare_segment_bytes", |c, key, v| {
        set(&mut c.spare_segment_bytes, whole(key, v, 0, MEMORY)?)
    }),
    ("retention_check_interval_ms", |c, key, v| {
        set(&mut c.retention_check_interval, millis(key, v)?)
    }),
    ("scrub.bytes_per_second", |c, key, v| {
        let bytes = whole(key, v, 0, MEMORY)?;
        set(&mut c.scrub.bytes_per_second, NonZeroU64::new(bytes))
    }),
    ("scrub.pause_ms", |c, key, v| {
        set(&mut c.scrub.pause, millis(key, v)?)
    }),
    ("roll.mode", |c, key, v| {
        set(&mut c.roll.mode, mode(key, v)?)
    }),
    ("roll.soft_mark", |c, key, v| {
        set(&mut c.roll.soft_mark, soft_mark(key, v)?)
    }),
    ("roll.preparations", |c, key, v| {
        set(&mut c.roll.preparations, whole(key, v, 1, 100_000)?)
    }),
    ("roll.longest_wait_ms", |c, key, v| {
        set(&mut c.roll.longest_wait, millis(key, v)?)
    }),
    ("roll.kept_records", |c, key, v| {
        set(&mut c.roll.kept_records, whole(key, v, 1, 100_000)?)
    }),
    ("meta.commit_delay_ms", |c, key, v| {
        let delay = whole(key, v, 0, 60_000)?;
        set(&mut c.meta.commit_delay, Duration::from_millis(delay))
    }),
    ("limits.max_frame_bytes", |c, key, v| {
        set(&mut c.limits.max_frame_bytes, whole(key, v, 1024, FRAME)?)
    }),
    ("limits.max_connections", |c, key, v| {
        set(&mut c.limits.max_connections, whole(key, v, 1, 1_000_000)?)
    }),
    ("limits.connection_in_flight_bytes", |c, key, v| {
        set(
            &mut c.limits.connection_in_flight_bytes,
            whole(key, v, 1024, MEMORY)?,
        )
    }),
    ("limits.node_in_flight_bytes", |c, key, v| {
        set(
            &mut c.limits.node_in_flight_bytes,
            whole(key, v, 1024, MEMORY)?,
        )
    }),
    ("limits.max_fetch_bytes", |c, key, v| {
        set(
            &mut c.limits.max_fetch_bytes,
            whole(key, v, 1024, FRAME / 2)?,
        )
    }),
    ("limits.fetch_memory_bytes", |c, key, v| {
        set(
            &mut c.limits.fetch_memory_bytes,
            whole(key, v, 1024, MEMORY)?,
        )
    }),
    ("limits.tail_cache_bytes", |c, key, v| {
        set(&mut c.limits.tail_cache_bytes, whole(key, v, 0, MEMORY)?)
    }),
    ("limits.max_decompressed_bytes", |c, key, v| {
        set(
            &mut c.limits.max_decompressed_bytes,
            whole(key, v, 1024, MEMORY)?,
        )
    }),
];

/// The topic settings' keys, in the order of [`TopicKey::ALL`].
const TOPIC_SETTINGS: [&str; TopicKey::ALL.len()] = [
    "topic.max.message.bytes",
    "topic.retention.bytes",
    "topic.retention.ms",
    "topic.segment.bytes",
    "topic.segment.ms",
];

/// The tables that a file may have.
const TABLES: [&str; 5] = ["topic", "scrub", "roll", "meta", "limits"];

fn known_keys() -> impl Iterator<Item = &'static str> {
    SETTINGS
        .into_iter()
        .map(|(key, _)| key)
        .chain(TOPIC_SETTINGS)
}

pub(super) fn parse(text: &str) -> Result<Config, ConfigError> {
    let table = text.parse::<Table>().map_err(|e| ConfigError::Syntax {
        reason: e.to_string().trim_end().to_owned(),
    })?;
    let mut config = Config::default();
    apply(&mut config, "", &table)?;
    Ok(config)
}

/// Applies a table's values; a key is its whole path, joined by dots.
fn apply(config: &mut Config, path: &str, table: &Table) -> Result<(), ConfigError> {
    for (name, value) in table {
        let key = format!("{path}{name}");
        match value {
            Value::Table(inner) => {
                let prefix = format!("{key}.");
                if !known_keys().any(|known| known.starts_with(&prefix)) {
                    return Err(unknown(key, TABLES.into_iter()));
                }
                apply(config, &prefix, inner)?;
            }
            value => apply_one(config, key, value)?,
        }
    }
    Ok(())
}

fn apply_one(config: &mut Config, key: String, value: &Value) -> Result<(), ConfigError> {
    if let Some((known, set)) = SETTINGS.into_iter().find(|(known, _)| *known == key) {
        return set(config, known, value);
    }
    let topic = TOPIC_SETTINGS
        .into_iter()
        .zip(TopicKey::ALL)
        .find(|(known, _)| *known == key);
    let Some((known, topic_key)) = topic else {
        return Err(unknown(key, known_keys()));
    };
    config
        .topic
        .set(topic_key, topic_key.check(integer(known, value)?)?);
    Ok(())
}

fn unknown(key: String, known: impl Iterator<Item = &'static str>) -> ConfigError {
    let nearest = nearest(&key, known);
    ConfigError::UnknownKey { key, nearest }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "the end of every setter, which can fail before it"
)]
fn set<T>(place: &mut T, value: T) -> Result<(), ConfigError> {
    *place = value;
    Ok(())
}

fn text<'a>(key: &'static str, value: &'a Value) -> Result<&'a str, ConfigError> {
    value.as_str().ok_or(wrong_type(key, "a text", value))
}

fn boolean(key: &'static str, value: &Value) -> Result<bool, ConfigError> {
    value
        .as_bool()
        .ok_or(wrong_type(key, "true or false", value))
}

fn integer(key: &'static str, value: &Value) -> Result<i64, ConfigError> {
    value
        .as_integer()
        .ok_or(wrong_type(key, "a whole number", value))
}

fn whole<T: TryFrom<i64>>(
    key: &'static str,
    value: &Value,
    least: i64,
    most: i64,
) -> Result<T, ConfigError> {
    let value = integer(key, value)?;
    let error = ConfigError::OutOfRange {
        key,
        value,
        least,
        most,
    };
    match T::try_from(value) {
        Ok(number) if (least..=most).contains(&value) => Ok(number),
        _ => Err(error),
    }
}

fn millis(key: &'static str, value: &Value) -> Result<Duration, ConfigError> {
    const YEAR_MS: i64 = 365 * 24 * 60 * 60 * 1000;
    whole(key, value, 1, 10 * YEAR_MS).map(Duration::from_millis)
}

fn address(key: &'static str, value: &Value) -> Result<HostPort, ConfigError> {
    text(key, value)?
        .parse()
        .map_err(|source| ConfigError::Address { key, source })
}

fn mode(key: &'static str, value: &Value) -> Result<RollMode, ConfigError> {
    match text(key, value)? {
        "anticipatory" => Ok(RollMode::Anticipatory),
        "reactive" => Ok(RollMode::Reactive),
        other => Err(ConfigError::UnknownValue {
            key,
            found: other.to_owned(),
            known: "\"anticipatory\" nor \"reactive\"",
        }),
    }
}

/// A number goes through its text, so that both are read in one way.
fn soft_mark(key: &'static str, value: &Value) -> Result<SoftMark, ConfigError> {
    let mark = match value {
        Value::String(text) => text.parse(),
        Value::Float(_) | Value::Integer(_) => value.to_string().parse(),
        other => return Err(wrong_type(key, "\"auto\" or a fraction", other)),
    };
    mark.map_err(|source| ConfigError::SoftMark { key, source })
}

fn path(key: &'static str, value: &Value) -> Result<PathBuf, ConfigError> {
    match text(key, value)? {
        "" => Err(ConfigError::EmptyPath { key }),
        path => Ok(PathBuf::from(path)),
    }
}

fn wrong_type(key: &'static str, wanted: &'static str, value: &Value) -> ConfigError {
    ConfigError::WrongType {
        key,
        wanted,
        found: value.type_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, ConfigError, EXAMPLE, SETTINGS, SoftMark, TOPIC_SETTINGS, TopicKey};
    use proptest::prelude::{prop_assert, proptest};
    use sq_storage::SyncPolicy;
    use std::time::Duration;

    #[test]
    fn the_example_says_what_is_so_without_it() {
        assert_eq!(Config::from_toml(EXAMPLE), Ok(Config::default()));
        assert_eq!(Config::from_toml(""), Ok(Config::default()));
        assert_eq!(Config::default().validate(), Ok(()));
        for (key, _) in SETTINGS {
            let name = key.rsplit('.').next().unwrap();
            assert!(
                EXAMPLE.contains(&format!("{name} = ")),
                "{key} is not in the example"
            );
        }
    }

    #[test]
    fn topic_settings_go_by_their_own_names() {
        for (path, key) in TOPIC_SETTINGS.into_iter().zip(TopicKey::ALL) {
            assert_eq!(path.strip_prefix("topic."), Some(key.name()));
        }
        for text in [
            "topic.segment.bytes = 4096",
            "[topic]\nsegment.bytes = 4096",
            "[topic]\n\"segment.bytes\" = 4096",
            "[topic.segment]\nbytes = 4096",
        ] {
            assert_eq!(
                Config::from_toml(text).unwrap().topic.segment_bytes,
                4096,
                "{text}"
            );
        }
    }

    #[test]
    fn a_soft_mark_is_a_word_or_a_fraction() {
        for (text, mark) in [
            ("\"auto\"", SoftMark::Auto),
            ("0.75", SoftMark::Fraction(0.75)),
            ("\"0.75\"", SoftMark::Fraction(0.75)),
            ("1", SoftMark::Fraction(1.0)),
        ] {
            let config = Config::from_toml(&format!("[roll]\nsoft_mark = {text}")).unwrap();
            assert_eq!(config.roll.soft_mark, mark);
        }
    }

    #[test]
    fn syncs_come_before_acknowledgements_unless_an_interval_is_given() {
        let of = |text| Config::from_toml(text).unwrap().sync;
        assert_eq!(of(""), SyncPolicy::Always);
        assert_eq!(of("sync_interval_ms = 0"), SyncPolicy::Always);
        let every = SyncPolicy::Every(Duration::from_millis(50));
        assert_eq!(of("sync_interval_ms = 50"), every);
        for wrong in ["-1", "3600001", "\"always\""] {
            Config::from_toml(&format!("sync_interval_ms = {wrong}")).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn whatever_a_file_says_is_a_setting_or_an_error(
            path in "(topic|limits|segment|x)?[.]?(listen|segment.bytes|max_frame_bytes|[a-z._]{0,9})",
            value in "-?[0-9]{1,20}|[0-9.e]{1,6}|true|\"[^\"\\\\]{0,12}\"|\\{ bytes = 5000 \\}|\\[1\\]",
        ) {
            if let Ok(config) = Config::from_toml(&format!("{path} = {value}")) {
                prop_assert!((1024..=i32::MAX as usize).contains(&config.limits.max_frame_bytes));
                prop_assert!(config.topic.segment_bytes >= 1024);
            }
        }
    }

    #[test]
    fn every_mistake_is_named_by_its_key() {
        for (text, message) in [
            ("listn = \"x:1\"", "unknown key listn; did you mean listen?"),
            (
                "[limits]\nmax_frame = 1",
                "unknown key limits.max_frame; did you mean limits.max_frame_bytes?",
            ),
            ("[limit]\nx = 1", "unknown key limit; did you mean limits?"),
            (
                "[topic]\nsegment.byte = 1",
                "unknown key topic.segment.byte; did you mean topic.segment.bytes?",
            ),
            ("zzz = 1", "unknown key zzz"),
            ("listen = 9092", "listen: a text is wanted, this is integer"),
            ("listen = \"9092\"", "listen: \"9092\" is not HOST:PORT"),
            ("data_dir = \"\"", "data_dir: a path is needed"),
            (
                "auto_create_topics = 1",
                "auto_create_topics: true or false is wanted, this is integer",
            ),
            (
                "default_partitions = 0",
                "default_partitions: 0 is not between 1 and 100000",
            ),
            (
                "idle_mark_ms = -1",
                "idle_mark_ms: -1 is not between 1 and 315360000000",
            ),
            (
                "[limits]\nmax_frame_bytes = 1.5",
                "limits.max_frame_bytes: a whole number is wanted, this is float",
            ),
            (
                "[roll]\nmode = \"lazy\"",
                "roll.mode: \"lazy\" is neither \"anticipatory\" nor \"reactive\"",
            ),
            (
                "[roll]\nsoft_mark = 1.5",
                "roll.soft_mark: a soft mark is \"auto\" or a fraction above 0 and up to 1, not \"1.5\"",
            ),
            (
                "[roll]\nsoft_mark = true",
                "roll.soft_mark: \"auto\" or a fraction is wanted, this is boolean",
            ),
            (
                "[roll]\npreparations = 0",
                "roll.preparations: 0 is not between 1 and 100000",
            ),
            (
                "[roll]\nkept_records = 0",
                "roll.kept_records: 0 is not between 1 and 100000",
            ),
            (
                "[meta]\ncommit_delay_ms = 60001",
                "meta.commit_delay_ms: 60001 is not between 0 and 60000",
            ),
            (
                "[topic]\nsegment.ms = 0",
                "topic.segment.ms: 0 is not between 1 and 9223372036854775807",
            ),
            (
                "[topic]\nsegment.ms = \"1\"",
                "topic.segment.ms: a whole number is wanted, this is string",
            ),
        ] {
            assert_eq!(
                Config::from_toml(text).unwrap_err().to_string(),
                message,
                "{text}"
            );
        }
        let error = Config::from_toml("listen = ").unwrap_err();
        assert!(
            matches!(&error, ConfigError::Syntax { reason } if reason.contains("line 1")),
            "{error}"
        );
    }
}
