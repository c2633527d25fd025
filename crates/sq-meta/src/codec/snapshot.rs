//! A snapshot: the whole state, version 1.
//!
//! ```text
//!   0  magic "SQMS"          4
//!   4  version = 1           2
//!   6  zero                  2
//!   8  revision              8
//!  16  next producer id      8
//!  24  brokers               4   then for each, sorted by id: id 4, incarnation 8, host 4 + n,
//!                                port 2, rack 1 (+ 4 + n)
//!   …  topics                4   then for each, sorted by id: id 16, name 4 + n, settings 4, each key
//!                                4 + n and value 4 + n sorted by key, partitions 4, for each:
//!        epoch               4
//!        elected             1
//!        leader              4
//!        log start           8
//!        attempt             4
//!        sealed segments     4   then for each: segment, base 8, end 8
//!        active              segment, base 8
//!        prepared            1 (+ segment)
//!      a segment is: id 8, replicas 1 + 4 n, predecessor 1 (+ 8), writer epoch 4
//!   …  being deleted         4   then for each, sorted by id: id 16, name 4 + n, holders 4 + 4 n sorted
//!   …  CRC-32 of all before  4   and nothing behind it
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::command::{put_broker, put_configs, read_broker, read_configs};
use super::{
    Damage, Reader, put_bool, put_count, put_option, put_replicas, put_text, put_topic_id,
};
use crate::ids::{BrokerId, SegmentId};
use crate::state::{
    ActiveSegment, Broker, Deleted, MetaState, Partition, SealedSegment, Segment, Topic,
};

const MAGIC: &[u8; 4] = b"SQMS";
const VERSION: u16 = 1;
const CRC_LEN: usize = 4;

/// The shortest encoding of a segment.
const MIN_SEGMENT_LEN: usize = 8 + 1 + 4 + 1 + 4;
const MIN_PARTITION_LEN: usize = 4 + 1 + 4 + 8 + 4 + 4 + MIN_SEGMENT_LEN + 8 + 1;

/// The snapshot of a state.
pub fn encode(state: &MetaState) -> Bytes {
    let mut out = BytesMut::with_capacity(1 << 12);
    out.put_slice(MAGIC);
    out.put_u16(VERSION);
    out.put_u16(0);
    out.put_u64(state.revision);
    out.put_i64(state.next_producer_id);
    put_count(&mut out, state.brokers.len());
    for broker in state.brokers.values() {
        put_broker(&mut out, broker);
    }
    put_count(&mut out, state.topics.len());
    for topic in state.topics.values() {
        put_topic(&mut out, topic);
    }
    put_count(&mut out, state.deleted.len());
    for (id, deleted) in &state.deleted {
        put_topic_id(&mut out, *id);
        put_text(&mut out, deleted.name.as_str());
        put_count(&mut out, deleted.holders.len());
        for holder in &deleted.holders {
            out.put_u32(holder.0);
        }
    }
    let crc = crc32fast::hash(&out);
    out.put_u32(crc);
    out.freeze()
}

fn put_topic(out: &mut BytesMut, topic: &Topic) {
    put_topic_id(out, topic.id);
    put_text(out, topic.name.as_str());
    put_configs(out, &topic.configs);
    put_count(out, topic.partitions.len());
    for partition in &topic.partitions {
        put_partition(out, partition);
    }
}

fn put_partition(out: &mut BytesMut, partition: &Partition) {
    out.put_u32(partition.epoch);
    put_bool(out, partition.elected);
    out.put_u32(partition.leader.0);
    out.put_u64(partition.log_start);
    out.put_u32(partition.attempt);
    put_count(out, partition.sealed.len());
    for sealed in &partition.sealed {
        put_segment(out, &sealed.segment);
        out.put_u64(sealed.base);
        out.put_u64(sealed.end);
    }
    put_segment(out, &partition.active.segment);
    out.put_u64(partition.active.base);
    put_option(out, partition.prepared.as_ref(), put_segment);
}

fn put_segment(out: &mut BytesMut, segment: &Segment) {
    out.put_u64(segment.id.0);
    put_replicas(out, &segment.replicas);
    put_option(out, segment.predecessor, |out, id| out.put_u64(id.0));
    out.put_u32(segment.writer_epoch);
}

/// The state in a snapshot. It was [validated](MetaState::validate).
///
/// # Errors
/// [`Damage`]: any flipped bit, any other length, and any content that no commands lead to.
pub fn decode(bytes: &[u8]) -> Result<MetaState, Damage> {
    let (content, crc) = bytes
        .split_last_chunk::<CRC_LEN>()
        .ok_or(Damage::TooShort)?;
    let mut reader = Reader::new(content);
    if reader.bytes(MAGIC.len())? != MAGIC {
        return Err(Damage::Magic);
    }
    let version = reader.u16()?;
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let (stored, computed) = (u32::from_be_bytes(*crc), crc32fast::hash(content));
    if stored != computed {
        return Err(Damage::Checksum { stored, computed });
    }
    if reader.u16()? != 0 {
        return Err(Damage::Content("a reserved field is not zero"));
    }
    let state = read_state(&mut reader)?;
    reader.end()?;
    state
        .validate()
        .map_err(|violation| Damage::Content(violation.broken))?;
    Ok(state)
}

fn read_state(reader: &mut Reader<'_>) -> Result<MetaState, Damage> {
    let revision = reader.u64()?;
    let next_producer_id = reader.i64()?;
    let mut brokers: BTreeMap<BrokerId, Arc<Broker>> = BTreeMap::new();
    for _ in 0..reader.count(4 + 8 + 4 + 2 + 1)? {
        let broker = read_broker(reader)?;
        insert(&mut brokers, broker.id, Arc::new(broker))?;
    }
    let mut topics = BTreeMap::new();
    for _ in 0..reader.count(16 + 4 + 4 + 4)? {
        let topic = read_topic(reader)?;
        insert(&mut topics, topic.id, Arc::new(topic))?;
    }
    let mut deleted = BTreeMap::new();
    for _ in 0..reader.count(16 + 4 + 4)? {
        let (id, name) = (reader.topic_id()?, reader.topic_name()?);
        let holders = read_holders(reader)?;
        insert(&mut deleted, id, Deleted { name, holders })?;
    }
    Ok(MetaState::from_parts(
        revision,
        next_producer_id,
        brokers,
        topics,
        deleted,
    ))
}

/// Entries come in the order of their keys, each once.
fn insert<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) -> Result<(), Damage> {
    if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
        return Err(Damage::Content("entries are not in order"));
    }
    map.insert(key, value);
    Ok(())
}

fn read_holders(reader: &mut Reader<'_>) -> Result<BTreeSet<BrokerId>, Damage> {
    let mut holders = BTreeSet::new();
    for _ in 0..reader.count(4)? {
        let holder = BrokerId(reader.u32()?);
        if holders.last().is_some_and(|last| *last >= holder) {
            return Err(Damage::Content("entries are not in order"));
        }
        holders.insert(holder);
    }
    Ok(holders)
}

fn read_topic(reader: &mut Reader<'_>) -> Result<Topic, Damage> {
    let (id, name) = (reader.topic_id()?, reader.topic_name()?);
    let configs = read_configs(reader)?;
    let count = reader.count(MIN_PARTITION_LEN)?;
    let mut partitions = Vec::with_capacity(count);
    for _ in 0..count {
        partitions.push(Arc::new(read_partition(reader)?));
    }
    Ok(Topic {
        id,
        name,
        configs,
        partitions,
    })
}

fn read_partition(reader: &mut Reader<'_>) -> Result<Partition, Damage> {
    let epoch = reader.u32()?;
    let elected = reader.bool()?;
    let leader = BrokerId(reader.u32()?);
    let log_start = reader.u64()?;
    let attempt = reader.u32()?;
    let count = reader.count(MIN_SEGMENT_LEN + 16)?;
    let mut sealed = VecDeque::with_capacity(count);
    for _ in 0..count {
        sealed.push_back(SealedSegment {
            segment: read_segment(reader)?,
            base: reader.u64()?,
            end: reader.u64()?,
        });
    }
    Ok(Partition {
        epoch,
        elected,
        leader,
        log_start,
        sealed,
        active: ActiveSegment {
            segment: read_segment(reader)?,
            base: reader.u64()?,
        },
        prepared: reader.option(read_segment)?,
        attempt,
    })
}

fn read_segment(reader: &mut Reader<'_>) -> Result<Segment, Damage> {
    Ok(Segment {
        id: SegmentId(reader.u64()?),
        replicas: reader.replicas()?,
        predecessor: reader.option(|r| r.u64().map(SegmentId))?,
        writer_epoch: reader.u32()?,
    })
}
