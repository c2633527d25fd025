//! A command in the metadata log.
//!
//! ```text
//!   version = 1   1
//!   kind          1   as in `Kind`
//!   fields        …   in the order of `Command`'s; texts with their length in 4 bytes, lists with
//!                     their count in 4, replicas with theirs in 1, what may be missing behind a 0 or 1
//! ```
//!
//! It carries no checksum: the frame that holds it does.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::{Damage, Reader, put_count, put_new_segment, put_option, put_text, put_topic_id};
use crate::command::{Command, Ends, Kept, NewPartition, NewTopic, SealedBefore};
use crate::ids::{BrokerId, PartitionId, SegmentId};
use crate::state::Broker;

const VERSION: u8 = 1;

/// The shortest encoding of a segment with one replica.
const MIN_SEGMENT_LEN: usize = 8 + 1 + 4;

mod kind {
    pub(super) const REGISTER_BROKER: u8 = 1;
    pub(super) const CREATE_TOPIC: u8 = 2;
    pub(super) const DELETE_TOPIC: u8 = 3;
    pub(super) const FORGET_DELETED: u8 = 4;
    pub(super) const ALLOCATE_PRODUCER_IDS: u8 = 5;
    pub(super) const SKIP_PRODUCER_IDS: u8 = 6;
    pub(super) const PREPARE_SEGMENT: u8 = 7;
    pub(super) const SEAL_SEGMENT: u8 = 8;
    pub(super) const ABANDON_SEGMENT: u8 = 9;
    pub(super) const BEGIN_FAILOVER: u8 = 10;
    pub(super) const ELECT_LEADER: u8 = 11;
    pub(super) const ADVANCE_LOG_START: u8 = 12;
}

/// The bytes of a command.
pub fn encode(command: &Command) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    out.put_u8(VERSION);
    match command {
        Command::RegisterBroker(broker) => {
            out.put_u8(kind::REGISTER_BROKER);
            put_broker(&mut out, broker);
        }
        Command::CreateTopic(topic) => {
            out.put_u8(kind::CREATE_TOPIC);
            put_topic(&mut out, topic);
        }
        Command::DeleteTopic { topic } => {
            out.put_u8(kind::DELETE_TOPIC);
            put_topic_id(&mut out, *topic);
        }
        Command::ForgetDeleted { topic, broker } => {
            out.put_u8(kind::FORGET_DELETED);
            put_topic_id(&mut out, *topic);
            out.put_u32(broker.0);
        }
        Command::AllocateProducerIds { count } => {
            out.put_u8(kind::ALLOCATE_PRODUCER_IDS);
            out.put_u32(*count);
        }
        Command::SkipProducerIds { below } => {
            out.put_u8(kind::SKIP_PRODUCER_IDS);
            out.put_i64(*below);
        }
        _ => put_partition_command(&mut out, command),
    }
    out.freeze()
}

fn put_partition_command(out: &mut BytesMut, command: &Command) {
    match command {
        Command::PrepareSegment {
            partition,
            epoch,
            predecessor,
            attempt,
            successor,
        } => {
            put_head(out, kind::PREPARE_SEGMENT, *partition, Some(*epoch));
            out.put_u64(predecessor.0);
            out.put_u32(*attempt);
            put_new_segment(out, successor);
        }
        Command::SealSegment {
            partition,
            epoch,
            segment,
            end,
            successor,
        } => {
            put_head(out, kind::SEAL_SEGMENT, *partition, Some(*epoch));
            out.put_u64(segment.0);
            out.put_u64(*end);
            out.put_u64(successor.0);
        }
        Command::AbandonSegment {
            partition,
            epoch,
            segment,
        } => {
            put_head(out, kind::ABANDON_SEGMENT, *partition, Some(*epoch));
            out.put_u64(segment.0);
        }
        Command::BeginFailover { partition } => {
            put_head(out, kind::BEGIN_FAILOVER, *partition, None);
        }
        Command::ElectLeader {
            partition,
            epoch,
            leader,
            ends,
            segment,
        } => {
            put_head(out, kind::ELECT_LEADER, *partition, Some(*epoch));
            out.put_u32(leader.0);
            out.put_u64(ends.active_end);
            put_option(out, ends.successor, |out, kept| {
                out.put_u64(kept.base);
                out.put_u64(kept.end);
            });
            put_new_segment(out, segment);
        }
        Command::AdvanceLogStart {
            partition,
            epoch,
            log_start,
        } => {
            put_head(out, kind::ADVANCE_LOG_START, *partition, Some(*epoch));
            out.put_u64(*log_start);
        }
        // `encode` has dealt with the others.
        _ => {}
    }
}

fn put_head(out: &mut BytesMut, kind: u8, partition: PartitionId, epoch: Option<u32>) {
    out.put_u8(kind);
    put_topic_id(out, partition.topic);
    out.put_u32(partition.partition);
    if let Some(epoch) = epoch {
        out.put_u32(epoch);
    }
}

pub(super) fn put_broker(out: &mut BytesMut, broker: &Broker) {
    out.put_u32(broker.id.0);
    out.put_u64(broker.incarnation);
    put_text(out, &broker.host);
    out.put_u16(broker.port);
    put_option(out, broker.rack.as_deref(), put_text);
}

pub(super) fn put_configs(out: &mut BytesMut, configs: &BTreeMap<String, String>) {
    put_count(out, configs.len());
    for (key, value) in configs {
        put_text(out, key);
        put_text(out, value);
    }
}

fn put_topic(out: &mut BytesMut, topic: &NewTopic) {
    put_topic_id(out, topic.id);
    put_text(out, topic.name.as_str());
    put_configs(out, &topic.configs);
    put_count(out, topic.partitions.len());
    for partition in &topic.partitions {
        out.put_u32(partition.leader.0);
        out.put_u64(partition.log_start);
        put_count(out, partition.sealed.len());
        for before in &partition.sealed {
            put_new_segment(out, &before.segment);
            out.put_u64(before.base);
            out.put_u64(before.end);
        }
        put_new_segment(out, &partition.active);
        out.put_u64(partition.active_base);
    }
}

/// The command in these bytes.
///
/// # Errors
/// [`Damage`].
pub fn decode(bytes: &[u8]) -> Result<Command, Damage> {
    let mut reader = Reader::new(bytes);
    let version = reader.u8()?;
    if version != VERSION {
        return Err(Damage::Version(version.into()));
    }
    let command = read_command(&mut reader)?;
    reader.end()?;
    Ok(command)
}

fn read_command(reader: &mut Reader<'_>) -> Result<Command, Damage> {
    Ok(match reader.u8()? {
        kind::REGISTER_BROKER => Command::RegisterBroker(read_broker(reader)?),
        kind::CREATE_TOPIC => Command::CreateTopic(read_topic(reader)?),
        kind::DELETE_TOPIC => Command::DeleteTopic {
            topic: reader.topic_id()?,
        },
        kind::FORGET_DELETED => Command::ForgetDeleted {
            topic: reader.topic_id()?,
            broker: BrokerId(reader.u32()?),
        },
        kind::ALLOCATE_PRODUCER_IDS => Command::AllocateProducerIds {
            count: reader.u32()?,
        },
        kind::SKIP_PRODUCER_IDS => Command::SkipProducerIds {
            below: reader.i64()?,
        },
        kind::PREPARE_SEGMENT => Command::PrepareSegment {
            partition: read_partition_id(reader)?,
            epoch: reader.u32()?,
            predecessor: SegmentId(reader.u64()?),
            attempt: reader.u32()?,
            successor: reader.new_segment()?,
        },
        kind::SEAL_SEGMENT => Command::SealSegment {
            partition: read_partition_id(reader)?,
            epoch: reader.u32()?,
            segment: SegmentId(reader.u64()?),
            end: reader.u64()?,
            successor: SegmentId(reader.u64()?),
        },
        kind::ABANDON_SEGMENT => Command::AbandonSegment {
            partition: read_partition_id(reader)?,
            epoch: reader.u32()?,
            segment: SegmentId(reader.u64()?),
        },
        kind::BEGIN_FAILOVER => Command::BeginFailover {
            partition: read_partition_id(reader)?,
        },
        kind::ELECT_LEADER => Command::ElectLeader {
            partition: read_partition_id(reader)?,
            epoch: reader.u32()?,
            leader: BrokerId(reader.u32()?),
            ends: Ends {
                active_end: reader.u64()?,
                successor: reader.option(read_kept)?,
            },
            segment: reader.new_segment()?,
        },
        kind::ADVANCE_LOG_START => Command::AdvanceLogStart {
            partition: read_partition_id(reader)?,
            epoch: reader.u32()?,
            log_start: reader.u64()?,
        },
        _ => return Err(Damage::Content("a command is of an unknown kind")),
    })
}

fn read_partition_id(reader: &mut Reader<'_>) -> Result<PartitionId, Damage> {
    Ok(PartitionId {
        topic: reader.topic_id()?,
        partition: reader.u32()?,
    })
}

fn read_kept(reader: &mut Reader<'_>) -> Result<Kept, Damage> {
    Ok(Kept {
        base: reader.u64()?,
        end: reader.u64()?,
    })
}

pub(super) fn read_broker(reader: &mut Reader<'_>) -> Result<Broker, Damage> {
    Ok(Broker {
        id: BrokerId(reader.u32()?),
        incarnation: reader.u64()?,
        host: reader.text()?.to_owned(),
        port: reader.u16()?,
        rack: reader.option(|r| r.text().map(str::to_owned))?,
    })
}

pub(super) fn read_configs(reader: &mut Reader<'_>) -> Result<BTreeMap<String, String>, Damage> {
    let mut configs = BTreeMap::new();
    for _ in 0..reader.count(8)? {
        let (key, value) = (reader.text()?.to_owned(), reader.text()?.to_owned());
        if configs
            .last_key_value()
            .is_some_and(|(last, _)| *last >= key)
        {
            return Err(Damage::Content("settings are not in order"));
        }
        configs.insert(key, value);
    }
    Ok(configs)
}

fn read_topic(reader: &mut Reader<'_>) -> Result<NewTopic, Damage> {
    let (id, name) = (reader.topic_id()?, reader.topic_name()?);
    let configs = read_configs(reader)?;
    let count = reader.count(4 + 8 + 4 + MIN_SEGMENT_LEN + 8)?;
    let mut partitions = Vec::with_capacity(count);
    for _ in 0..count {
        partitions.push(read_partition(reader)?);
    }
    Ok(NewTopic {
        id,
        name,
        configs,
        partitions,
    })
}

fn read_partition(reader: &mut Reader<'_>) -> Result<NewPartition, Damage> {
    let leader = BrokerId(reader.u32()?);
    let log_start = reader.u64()?;
    let count = reader.count(MIN_SEGMENT_LEN + 16)?;
    let mut sealed = Vec::with_capacity(count);
    for _ in 0..count {
        sealed.push(SealedBefore {
            segment: reader.new_segment()?,
            base: reader.u64()?,
            end: reader.u64()?,
        });
    }
    Ok(NewPartition {
        leader,
        log_start,
        sealed,
        active: reader.new_segment()?,
        active_base: reader.u64()?,
    })
}
