//! `DescribeRolls`: how a partition's log rolled last.
//!
//! Kafka has no such request. Its key is "sq" in ASCII, far above Kafka's, and `ApiVersions` does not name
//! it, so no client meets it that was not made to ask. There is one version, 0, which may change with any
//! release: it is for the `sq` of the broker's own.
//!
//! | request | | answer | |
//! |---|---|---|---|
//! | topic | string | error code | `i16` |
//! | partition | `i32` | rolls | array of 16 `i64` each |
//! | most | `i32` | | |

use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::buf::{ByteBuf, ByteBufMut};
use kafka_protocol::protocol::{
    Decodable, Encodable, HeaderVersion, Message, Request, StrBytes, VersionRange,
};

use super::Api;

/// The one version.
const VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

/// The most rolls in one answer.
pub const MOST_ROLLS: usize = 1_000;

/// Asks how a partition's log rolled last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeRollsRequest {
    /// The topic.
    pub topic: TopicName,
    /// The partition's number.
    pub partition: i32,
    /// So many rolls, the last there were. Above [`MOST_ROLLS`] counts as that.
    pub most: i32,
}

/// A partition's last rolls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeRollsResponse {
    /// Why there are none, or 0.
    pub error_code: i16,
    /// The rolls, the oldest first.
    pub rolls: Vec<RollEntry>,
}

/// What ended a segment, in the order of [`RollEntry::trigger`].
pub const TRIGGERS: [&str; 4] = ["size", "age", "asked", "failure"];

/// One roll. Times are in microseconds, and −1 stands for one that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollEntry {
    /// The id of the segment that ended, an unsigned number.
    pub from: i64,
    /// The id of the one that followed it.
    pub to: i64,
    /// The first offset of the new one.
    pub end: i64,
    /// What ended the old one: the place in [`TRIGGERS`].
    pub trigger: i64,
    /// When appends went to the new one, in milliseconds since the Unix epoch.
    pub switch_wall_ms: i64,
    /// How long before that the soft mark was passed.
    pub soft_mark_us: i64,
    /// How long before the switch a successor was asked for.
    pub request_us: i64,
    /// How long before the switch it was ready.
    pub ready_us: i64,
    /// How long after the switch the old one's end was committed.
    pub sealed_us: i64,
    /// The old one's size at the soft mark, in bytes.
    pub soft_mark_bytes: i64,
    /// Its size at the switch.
    pub switch_bytes: i64,
    /// By how much it passed its cap, in bytes.
    pub overrun_bytes: i64,
    /// How long appends waited for this roll.
    pub waited_us: i64,
    /// From the last acknowledgement in the old one to the first in the new.
    pub producer_gap_us: i64,
    /// From that last acknowledgement until a reader at the tail was told of the record behind it.
    pub tail_gap_us: i64,
    /// The median of the times between two acknowledgements.
    pub usual_gap_us: i64,
}

impl RollEntry {
    const FIELDS: usize = 16;

    fn fields(&mut self) -> [&mut i64; Self::FIELDS] {
        [
            &mut self.from,
            &mut self.to,
            &mut self.end,
            &mut self.trigger,
            &mut self.switch_wall_ms,
            &mut self.soft_mark_us,
            &mut self.request_us,
            &mut self.ready_us,
            &mut self.sealed_us,
            &mut self.soft_mark_bytes,
            &mut self.switch_bytes,
            &mut self.overrun_bytes,
            &mut self.waited_us,
            &mut self.producer_gap_us,
            &mut self.tail_gap_us,
            &mut self.usual_gap_us,
        ]
    }
}

impl Encodable for DescribeRollsRequest {
    fn encode<B: ByteBufMut>(&self, buf: &mut B, _: i16) -> anyhow::Result<()> {
        buf.put_i16(i16::try_from(self.topic.len())?);
        buf.put_slice(self.topic.as_bytes());
        buf.put_i32(self.partition);
        buf.put_i32(self.most);
        Ok(())
    }

    fn compute_size(&self, _: i16) -> anyhow::Result<usize> {
        Ok(2 + self.topic.len() + 4 + 4)
    }
}

impl Decodable for DescribeRollsRequest {
    fn decode<B: ByteBuf>(buf: &mut B, _: i16) -> anyhow::Result<Self> {
        let length = usize::try_from(buf.try_get_i16()?)?;
        let topic = StrBytes::try_from(buf.try_get_bytes(length)?)?;
        Ok(Self {
            topic: TopicName(topic),
            partition: buf.try_get_i32()?,
            most: buf.try_get_i32()?,
        })
    }
}

impl Encodable for DescribeRollsResponse {
    fn encode<B: ByteBufMut>(&self, buf: &mut B, _: i16) -> anyhow::Result<()> {
        buf.put_i16(self.error_code);
        buf.put_i32(i32::try_from(self.rolls.len())?);
        for mut roll in self.rolls.iter().copied() {
            for field in roll.fields() {
                buf.put_i64(*field);
            }
        }
        Ok(())
    }

    fn compute_size(&self, _: i16) -> anyhow::Result<usize> {
        Ok(2 + 4 + self.rolls.len() * RollEntry::FIELDS * 8)
    }
}

impl Decodable for DescribeRollsResponse {
    fn decode<B: ByteBuf>(buf: &mut B, _: i16) -> anyhow::Result<Self> {
        let error_code = buf.try_get_i16()?;
        let mut rolls = Vec::new();
        for _ in 0..buf.try_get_i32()? {
            let mut roll = RollEntry::default();
            for field in roll.fields() {
                *field = buf.try_get_i64()?;
            }
            rolls.push(roll);
        }
        Ok(Self { error_code, rolls })
    }
}

impl Message for DescribeRollsRequest {
    const VERSIONS: VersionRange = VERSIONS;
    const DEPRECATED_VERSIONS: Option<VersionRange> = None;
}

impl Message for DescribeRollsResponse {
    const VERSIONS: VersionRange = VERSIONS;
    const DEPRECATED_VERSIONS: Option<VersionRange> = None;
}

impl HeaderVersion for DescribeRollsRequest {
    fn header_version(_: i16) -> i16 {
        1
    }
}

impl HeaderVersion for DescribeRollsResponse {
    fn header_version(_: i16) -> i16 {
        0
    }
}

impl Request for DescribeRollsRequest {
    const KEY: i16 = Api::DescribeRolls.key();
    type Response = DescribeRollsResponse;
}
