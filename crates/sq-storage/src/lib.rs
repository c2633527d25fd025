//! A segmented write-ahead log that is honest after any crash.

mod error;
pub mod frame;
pub mod record;
mod topic;
pub mod wal;

pub use error::{Action, DamageReason, Error, Evidence, ReadError, Result};
pub use record::{Header, Record};
pub use topic::{InvalidTopicName, MAX_TOPIC_NAME_LEN, TopicName};
pub use wal::{
    Batch, ClosedSegment, Damage, LogReader, RecoveryReport, Rotation, SegmentIds, SegmentInfo,
    StoredFrame, WalConfig, WalWriter,
};
