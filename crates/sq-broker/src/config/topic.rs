//! What a topic can be created with.
//!
//! Names, defaults and meanings are Apache Kafka's. What is set at creation is kept apart from what
//! follows from the broker's defaults, because a client may ask which is which.

use std::collections::BTreeMap;
use std::time::Duration;

use sq_storage::Retention;

use super::nearest::{nearest, suggestion};

/// A setting of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopicKey {
    /// `max.message.bytes`: the largest record batch that is taken.
    MaxMessageBytes,
    /// `retention.bytes`: bytes of a partition to keep; −1 for all.
    RetentionBytes,
    /// `retention.ms`: how long to keep records, in ms; −1 for ever.
    RetentionMs,
    /// `segment.bytes`: bytes at which a segment is full.
    SegmentBytes,
    /// `segment.ms`: age at which a segment that is not full is closed, in ms.
    SegmentMs,
}

/// The type of a setting, by its number in `DescribeConfigs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigType {
    /// A 32-bit integer.
    Int = 3,
    /// A 64-bit integer.
    Long = 5,
}

impl TopicKey {
    /// Every setting, by name.
    pub const ALL: [Self; 5] = [
        Self::MaxMessageBytes,
        Self::RetentionBytes,
        Self::RetentionMs,
        Self::SegmentBytes,
        Self::SegmentMs,
    ];

    /// The name, Kafka's own.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxMessageBytes => "max.message.bytes",
            Self::RetentionBytes => "retention.bytes",
            Self::RetentionMs => "retention.ms",
            Self::SegmentBytes => "segment.bytes",
            Self::SegmentMs => "segment.ms",
        }
    }

    /// What it means, for `DescribeConfigs`.
    pub const fn documentation(self) -> &'static str {
        match self {
            Self::MaxMessageBytes => "The largest record batch that is taken, in bytes.",
            Self::RetentionBytes => "Bytes of a partition to keep; -1 keeps all.",
            Self::RetentionMs => {
                "How long records are kept, in milliseconds; -1 keeps them for ever."
            }
            Self::SegmentBytes => "Bytes at which a segment is full.",
            Self::SegmentMs => {
                "Age at which a segment that is not full is closed, in milliseconds."
            }
        }
    }

    /// The type, as Kafka declares it.
    pub const fn config_type(self) -> ConfigType {
        match self {
            Self::MaxMessageBytes | Self::SegmentBytes => ConfigType::Int,
            Self::RetentionBytes | Self::RetentionMs | Self::SegmentMs => ConfigType::Long,
        }
    }

    /// The least and the greatest value.
    const fn range(self) -> (i64, i64) {
        match self {
            Self::MaxMessageBytes => (0, i32::MAX as i64),
            Self::RetentionBytes | Self::RetentionMs => (-1, i64::MAX),
            Self::SegmentBytes => (1024, i32::MAX as i64),
            Self::SegmentMs => (1, i64::MAX),
        }
    }

    /// The setting of this name.
    ///
    /// # Errors
    /// [`TopicConfigError::Unknown`], naming the nearest one there is.
    pub fn from_name(name: &str) -> Result<Self, TopicConfigError> {
        Self::ALL
            .into_iter()
            .find(|key| key.name() == name)
            .ok_or_else(|| {
                let nearest = nearest(name, Self::ALL.into_iter().map(Self::name));
                TopicConfigError::Unknown {
                    name: name.to_owned(),
                    nearest,
                }
            })
    }

    /// Checks a value against the setting's range.
    ///
    /// # Errors
    /// [`TopicConfigError::OutOfRange`].
    pub fn check(self, value: i64) -> Result<i64, TopicConfigError> {
        let (least, most) = self.range();
        if (least..=most).contains(&value) {
            Ok(value)
        } else {
            Err(TopicConfigError::OutOfRange {
                key: self,
                value,
                least,
                most,
            })
        }
    }
}

/// Why a topic's settings are refused: `INVALID_CONFIG` to a client, with this as the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicConfigError {
    /// There is no such setting.
    #[error("unknown topic setting {name}{}", suggestion(*nearest))]
    Unknown {
        /// What was given.
        name: String,
        /// The setting it is nearest to, if it is near to any.
        nearest: Option<&'static str>,
    },
    /// The value is not a whole number.
    #[error("{}: {value:?} is not a whole number", key.name())]
    NotANumber {
        /// The setting.
        key: TopicKey,
        /// What was given.
        value: String,
    },
    /// There is no value.
    #[error("{}: a value is needed", key.name())]
    NoValue {
        /// The setting.
        key: TopicKey,
    },
    /// The value is out of range.
    #[error("{}: {value} is not between {least} and {most}", key.name())]
    OutOfRange {
        /// The setting.
        key: TopicKey,
        /// What was given.
        value: i64,
        /// The least it may be.
        least: i64,
        /// The most it may be.
        most: i64,
    },
}

/// What was set at a topic's creation, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicOverrides {
    values: BTreeMap<TopicKey, i64>,
}

impl TopicOverrides {
    /// From names and values as text. Of two values of one setting the later one counts.
    ///
    /// # Errors
    /// [`TopicConfigError`] for the first pair that is not right.
    pub fn from_pairs<'a>(
        pairs: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<Self, TopicConfigError> {
        let mut values = BTreeMap::new();
        for (name, value) in pairs {
            let key = TopicKey::from_name(name)?;
            let text = value.ok_or(TopicConfigError::NoValue { key })?.trim();
            let number = text.parse().map_err(|_| TopicConfigError::NotANumber {
                key,
                value: text.to_owned(),
            })?;
            values.insert(key, key.check(number)?);
        }
        Ok(Self { values })
    }

    /// The value that was set, if one was.
    pub fn get(&self, key: TopicKey) -> Option<i64> {
        self.values.get(&key).copied()
    }

    /// What was set, by name.
    pub fn iter(&self) -> impl Iterator<Item = (TopicKey, i64)> + '_ {
        self.values.iter().map(|(key, value)| (*key, *value))
    }

    /// The settings of a topic with these, on a broker with those defaults.
    pub fn over(&self, defaults: &TopicConfig) -> TopicConfig {
        let mut config = defaults.clone();
        for (key, value) in self.iter() {
            config.set(key, value);
        }
        config
    }
}

/// A topic's settings, all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// The largest record batch that is taken, in bytes (`max.message.bytes`).
    pub max_message_bytes: u32,
    /// Bytes of a partition to keep (`retention.bytes`); `None` for all.
    pub retention_bytes: Option<u64>,
    /// How long to keep records, in ms (`retention.ms`); `None` for ever.
    pub retention_ms: Option<u64>,
    /// Bytes at which a segment is full (`segment.bytes`).
    pub segment_bytes: u64,
    /// Age at which a segment is closed, in ms (`segment.ms`).
    pub segment_ms: u64,
}

impl Default for TopicConfig {
    fn default() -> Self {
        const DAY_MS: u64 = 24 * 60 * 60 * 1000;
        Self {
            max_message_bytes: 1024 * 1024 + 12,
            retention_bytes: None,
            retention_ms: Some(7 * DAY_MS),
            segment_bytes: 1024 * 1024 * 1024,
            segment_ms: 7 * DAY_MS,
        }
    }
}

impl TopicConfig {
    /// What its partitions keep.
    pub fn retention(&self) -> Retention {
        Retention {
            max_bytes: self.retention_bytes,
            max_age: self.retention_ms.map(Duration::from_millis),
        }
    }

    /// A setting's value, as Kafka writes it: −1 for no bound.
    pub fn get(&self, key: TopicKey) -> i64 {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        match key {
            TopicKey::MaxMessageBytes => self.max_message_bytes.into(),
            TopicKey::RetentionBytes => self.retention_bytes.map_or(-1, number),
            TopicKey::RetentionMs => self.retention_ms.map_or(-1, number),
            TopicKey::SegmentBytes => number(self.segment_bytes),
            TopicKey::SegmentMs => number(self.segment_ms),
        }
    }

    /// Sets a value that [`TopicKey::check`] has let through; another is brought into range.
    pub(super) fn set(&mut self, key: TopicKey, value: i64) {
        let (least, most) = key.range();
        let value = value.clamp(least, most);
        let bound = u64::try_from(value).ok();
        let unsigned = value.unsigned_abs();
        match key {
            TopicKey::MaxMessageBytes => {
                self.max_message_bytes = u32::try_from(unsigned).unwrap_or(u32::MAX);
            }
            TopicKey::RetentionBytes => self.retention_bytes = bound,
            TopicKey::RetentionMs => self.retention_ms = bound,
            TopicKey::SegmentBytes => self.segment_bytes = unsigned,
            TopicKey::SegmentMs => self.segment_ms = unsigned,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TopicConfig, TopicConfigError, TopicKey, TopicOverrides};

    #[test]
    fn overrides_go_over_the_defaults_and_stay_apart_from_them() {
        let overrides = TopicOverrides::from_pairs([
            ("segment.bytes", Some("1048576")),
            ("retention.ms", Some("-1")),
            ("segment.bytes", Some(" 2048 ")),
        ])
        .unwrap();
        let config = overrides.over(&TopicConfig::default());
        assert_eq!(config.segment_bytes, 2048);
        assert_eq!(config.retention_ms, None);
        assert_eq!(config.segment_ms, TopicConfig::default().segment_ms);
        assert_eq!(overrides.get(TopicKey::SegmentMs), None);
        let set: Vec<_> = overrides
            .iter()
            .map(|(key, value)| (key.name(), value))
            .collect();
        assert_eq!(set, [("retention.ms", -1), ("segment.bytes", 2048)]);
    }

    #[test]
    fn every_setting_gives_back_what_it_was_given() {
        for key in TopicKey::ALL {
            let (least, most) = key.range();
            for value in [least, 4096, most] {
                let text = value.to_string();
                let overrides =
                    TopicOverrides::from_pairs([(key.name(), Some(text.as_str()))]).unwrap();
                assert_eq!(
                    overrides.over(&TopicConfig::default()).get(key),
                    value,
                    "{key:?}"
                );
            }
            assert_eq!(TopicKey::from_name(key.name()), Ok(key));
        }
    }

    #[test]
    fn defaults_are_those_of_kafka() {
        let defaults = TopicConfig::default();
        let values = TopicKey::ALL.map(|key| (key.name(), defaults.get(key)));
        assert_eq!(
            values,
            [
                ("max.message.bytes", 1_048_588),
                ("retention.bytes", -1),
                ("retention.ms", 604_800_000),
                ("segment.bytes", 1_073_741_824),
                ("segment.ms", 604_800_000),
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, value, message) in [
            (
                "segment.byte",
                Some("1"),
                "unknown topic setting segment.byte; did you mean segment.bytes?",
            ),
            ("cleanup", Some("delete"), "unknown topic setting cleanup"),
            (
                "segment.ms",
                Some("soon"),
                "segment.ms: \"soon\" is not a whole number",
            ),
            ("segment.ms", None, "segment.ms: a value is needed"),
            (
                "segment.ms",
                Some("0"),
                "segment.ms: 0 is not between 1 and 9223372036854775807",
            ),
            (
                "retention.ms",
                Some("-2"),
                "retention.ms: -2 is not between -1 and 9223372036854775807",
            ),
            (
                "segment.bytes",
                Some("2147483648"),
                "segment.bytes: 2147483648 is not between 1024 and 2147483647",
            ),
            (
                "segment.bytes",
                Some("1e3"),
                "segment.bytes: \"1e3\" is not a whole number",
            ),
        ] {
            let error = TopicOverrides::from_pairs([(name, value)]).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        assert!(matches!(
            TopicKey::from_name("xyz"),
            Err(TopicConfigError::Unknown { nearest: None, .. })
        ));
    }
}
