//! Why settings are refused, each time with the key.

use sq_roll::InvalidSoftMark;

use super::nearest::suggestion;
use super::topic::TopicConfigError;
use super::{AddressError, HostPort};

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not TOML.
    #[error("not TOML: {reason}")]
    Syntax {
        /// What the parser says, with line and column.
        reason: String,
    },
    /// There is no such key.
    #[error("unknown key {key}{}", suggestion(*nearest))]
    UnknownKey {
        /// The key, its tables before it.
        key: String,
        /// The key it is nearest to, if it is near to any.
        nearest: Option<&'static str>,
    },
    /// A value of another type.
    #[error("{key}: {wanted} is wanted, this is {found}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// What the value should be.
        wanted: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A number out of range.
    #[error("{key}: {value} is not between {least} and {most}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// What was given.
        value: i64,
        /// The least it may be.
        least: i64,
        /// The most it may be.
        most: i64,
    },
    /// A text that is no address.
    #[error("{key}: {source}")]
    Address {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        source: AddressError,
    },
    /// A text that is none of those that are known.
    #[error("{key}: {found:?} is neither {known}")]
    UnknownValue {
        /// The key.
        key: &'static str,
        /// What was given.
        found: String,
        /// What it could be.
        known: &'static str,
    },
    /// Not a soft mark.
    #[error("{key}: {source}")]
    SoftMark {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        source: InvalidSoftMark,
    },
    /// A setting that makes a broker worse, on purpose.
    #[error("{key} is for tests and benchmarks: it takes --unsafe-test-settings")]
    OnlyInTests {
        /// The key.
        key: &'static str,
    },
    /// A path that is empty.
    #[error("{key}: a path is needed")]
    EmptyPath {
        /// The key.
        key: &'static str,
    },
    /// A topic's default that no topic could have.
    #[error("topic.{0}")]
    Topic(#[from] TopicConfigError),
    /// Clients would be told to connect to all of their own machine's addresses, or to no port.
    #[error(
        "advertise: clients can't connect to {advertise}; give a host and port that they can reach"
    )]
    UnreachableAdvertise {
        /// What was given.
        advertise: HostPort,
    },
    /// Clients would be told to connect to all of their own machine's addresses.
    #[error(
        "listen: {listen} is every address of this machine, and clients need one that they can reach: \
         set advertise (or --advertise HOST:PORT)"
    )]
    AdvertiseNeeded {
        /// Where to listen.
        listen: HostPort,
    },
    /// A bound that another makes meaningless.
    #[error("{inner_key} ({inner}) is more than {outer_key} ({outer}), which contains it")]
    LimitBeyond {
        /// The key that is too large.
        inner_key: &'static str,
        /// Its value.
        inner: usize,
        /// The key that contains it.
        outer_key: &'static str,
        /// Its value.
        outer: usize,
    },
}
