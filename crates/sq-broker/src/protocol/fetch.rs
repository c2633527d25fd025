//! The Fetch response, encoded around the batches it carries.
//!
//! `kafka-protocol` wants a partition's records as one buffer and copies it into the response. Here
//! they stay a list of buffers, as they came from the log, and become chunks of the response.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::TopicName;
use uuid::Uuid;

use super::Api;
use super::chunks::Chunks;
use super::response::EncodeError;

/// A Fetch response, without what only a cluster or a transaction would fill in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchResponse {
    /// How long the request was delayed by a quota, in ms.
    pub throttle_time_ms: i32,
    /// The error of the request as a whole, from version 7 on (dropped before).
    pub error_code: i16,
    /// The fetch session, 0 for none, from version 7 on (dropped before).
    pub session_id: i32,
    /// The topics.
    pub topics: Vec<FetchedTopic>,
}

/// A topic of a [`FetchResponse`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchedTopic {
    /// Its name; sent up to version 12.
    pub name: TopicName,
    /// Its id; sent from version 13 on.
    pub topic_id: Uuid,
    /// Its partitions.
    pub partitions: Vec<FetchedPartition>,
}

/// A partition of a [`FetchedTopic`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchedPartition {
    /// The partition's number.
    pub partition_index: i32,
    /// Its error, or 0.
    pub error_code: i16,
    /// The offset behind the last one that may be read.
    pub high_watermark: i64,
    /// The offset behind the last one of no open transaction.
    pub last_stable_offset: i64,
    /// The first offset there is; sent from version 5 on.
    pub log_start_offset: i64,
    /// Stored batches: their concatenation is the partition's records.
    pub records: Vec<Bytes>,
}

/// The most that the fixed fields of a response, a topic or a partition take, in bytes.
const MOST_FIELDS: usize = 64;

impl FetchResponse {
    /// A bound on the encoded size in any version, without the batches.
    pub(super) fn own_size(&self) -> usize {
        let topic = |t: &FetchedTopic| MOST_FIELDS * (1 + t.partitions.len()) + t.name.len();
        MOST_FIELDS + self.topics.iter().map(topic).sum::<usize>()
    }

    /// Appends the body in `version`, 4 to 17.
    pub(super) fn encode(self, out: &mut Chunks, version: i16) -> Result<(), EncodeError> {
        let layout = Layout::of(version);
        out.own().put_i32(self.throttle_time_ms);
        if version >= 7 {
            out.own().put_i16(self.error_code);
            out.own().put_i32(self.session_id);
        }
        layout.put_count(out.own(), self.topics.len())?;
        for topic in self.topics {
            layout.put_topic(out, topic)?;
        }
        layout.put_no_tags(out.own());
        Ok(())
    }
}

/// How the parts of a Fetch response are laid out in one version.
#[derive(Clone, Copy)]
struct Layout {
    version: i16,
    flexible: bool,
}

impl Layout {
    fn of(version: i16) -> Self {
        Self {
            version,
            flexible: version >= Api::Fetch.flexible_from(),
        }
    }

    fn put_topic(self, out: &mut Chunks, topic: FetchedTopic) -> Result<(), EncodeError> {
        if self.version >= 13 {
            out.own().put_slice(topic.topic_id.as_bytes());
        } else {
            self.put_name(out.own(), &topic.name)?;
        }
        self.put_count(out.own(), topic.partitions.len())?;
        for partition in topic.partitions {
            self.put_partition(out, partition)?;
        }
        self.put_no_tags(out.own());
        Ok(())
    }

    fn put_partition(self, out: &mut Chunks, part: FetchedPartition) -> Result<(), EncodeError> {
        let own = out.own();
        own.put_i32(part.partition_index);
        own.put_i16(part.error_code);
        own.put_i64(part.high_watermark);
        own.put_i64(part.last_stable_offset);
        if self.version >= 5 {
            own.put_i64(part.log_start_offset);
        }
        let no_aborted_transactions = 0;
        self.put_count(own, no_aborted_transactions)?;
        if self.version >= 11 {
            let no_preferred_replica = -1;
            own.put_i32(no_preferred_replica);
        }
        self.put_count(own, part.records.iter().map(Bytes::len).sum())?;
        out.put(part.records);
        self.put_no_tags(out.own());
        Ok(())
    }

    /// The length of an array or of records: an `i32`, or a varint of one more.
    fn put_count(self, out: &mut BytesMut, count: usize) -> Result<(), EncodeError> {
        let count = i32::try_from(count).map_err(|_| EncodeError::TooLarge { length: count })?;
        if self.flexible {
            put_unsigned_varint(out, count.unsigned_abs() + 1);
        } else {
            out.put_i32(count);
        }
        Ok(())
    }

    fn put_name(self, out: &mut BytesMut, name: &TopicName) -> Result<(), EncodeError> {
        let length = name.len();
        let short = i16::try_from(length).map_err(|_| EncodeError::TooLarge { length })?;
        if self.flexible {
            put_unsigned_varint(out, u32::from(short.unsigned_abs()) + 1);
        } else {
            out.put_i16(short);
        }
        out.put_slice(name.as_bytes());
        Ok(())
    }

    fn put_no_tags(self, out: &mut BytesMut) {
        if self.flexible {
            out.put_u8(0);
        }
    }
}

fn put_unsigned_varint(out: &mut BytesMut, mut value: u32) {
    while let Some(low) = (value >= 0x80).then_some(value.to_le_bytes()[0]) {
        out.put_u8(low | 0x80);
        value >>= 7;
    }
    out.put_u8(value.to_le_bytes()[0]);
}
