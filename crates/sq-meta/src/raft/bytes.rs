//! openraft's values as bytes. Integers are big-endian.

use std::collections::{BTreeMap, BTreeSet};

use ::bytes::{BufMut, BytesMut};
use openraft::{BasicNode, EntryPayload, LeaderId};

use super::{Entry, LogId, Membership, SnapshotMeta, StoredMembership, Vote};
use crate::codec::{Damage, Reader, command, put_bool, put_count, put_option, put_text};

pub(super) fn put_log_id(out: &mut BytesMut, id: LogId) {
    out.put_u64(id.leader_id.term);
    out.put_u64(id.leader_id.node_id);
    out.put_u64(id.index);
}

pub(super) fn read_log_id(reader: &mut Reader<'_>) -> Result<LogId, Damage> {
    let leader_id = LeaderId::new(reader.u64()?, reader.u64()?);
    Ok(LogId::new(leader_id, reader.u64()?))
}

pub(super) fn put_vote(out: &mut BytesMut, vote: &Vote) {
    out.put_u64(vote.leader_id.term);
    out.put_u64(vote.leader_id.node_id);
    put_bool(out, vote.committed);
}

pub(super) fn read_vote(reader: &mut Reader<'_>) -> Result<Vote, Damage> {
    Ok(Vote {
        leader_id: LeaderId::new(reader.u64()?, reader.u64()?),
        committed: reader.bool()?,
    })
}

fn put_membership(out: &mut BytesMut, membership: &Membership) {
    put_count(out, membership.get_joint_config().len());
    for voters in membership.get_joint_config() {
        put_count(out, voters.len());
        for voter in voters {
            out.put_u64(*voter);
        }
    }
    put_count(out, membership.nodes().count());
    for (id, node) in membership.nodes() {
        out.put_u64(*id);
        put_text(out, &node.addr);
    }
}

const DISORDER: Damage = Damage::Content("the members are not in order");

fn read_membership(reader: &mut Reader<'_>) -> Result<Membership, Damage> {
    let mut configs = Vec::new();
    for _ in 0..reader.count(4)? {
        let mut voters = BTreeSet::new();
        for _ in 0..reader.count(8)? {
            let voter = reader.u64()?;
            if voters.last().is_some_and(|last| *last >= voter) {
                return Err(DISORDER);
            }
            voters.insert(voter);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.count(8 + 4)? {
        let id = reader.u64()?;
        if nodes.last_key_value().is_some_and(|(last, _)| *last >= id) {
            return Err(DISORDER);
        }
        nodes.insert(id, BasicNode::new(reader.text()?));
    }
    if configs
        .iter()
        .flatten()
        .any(|voter| !nodes.contains_key(voter))
    {
        return Err(Damage::Content("a voter is not among the nodes"));
    }
    Ok(Membership::new(configs, nodes))
}

pub(super) fn put_snapshot_meta(out: &mut BytesMut, meta: &SnapshotMeta) {
    put_option(out, meta.last_log_id, put_log_id);
    put_option(out, *meta.last_membership.log_id(), put_log_id);
    put_membership(out, meta.last_membership.membership());
    put_text(out, &meta.snapshot_id);
}

pub(super) fn read_snapshot_meta(reader: &mut Reader<'_>) -> Result<SnapshotMeta, Damage> {
    let last_log_id = reader.option(read_log_id)?;
    let log_id = reader.option(read_log_id)?;
    Ok(SnapshotMeta {
        last_log_id,
        last_membership: StoredMembership::new(log_id, read_membership(reader)?),
        snapshot_id: reader.text()?.to_owned(),
    })
}

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;

pub(super) fn put_entry(out: &mut BytesMut, entry: &Entry) {
    put_log_id(out, entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => out.put_u8(BLANK),
        EntryPayload::Normal(command) => {
            out.put_u8(COMMAND);
            let bytes = command::encode(command);
            put_count(out, bytes.len());
            out.put_slice(&bytes);
        }
        EntryPayload::Membership(membership) => {
            out.put_u8(MEMBERSHIP);
            put_membership(out, membership);
        }
    }
}

pub(super) fn read_entry(reader: &mut Reader<'_>) -> Result<Entry, Damage> {
    let log_id = read_log_id(reader)?;
    let payload = match reader.u8()? {
        BLANK => EntryPayload::Blank,
        COMMAND => {
            let len = reader.count(1)?;
            EntryPayload::Normal(command::decode(reader.bytes(len)?)?)
        }
        MEMBERSHIP => EntryPayload::Membership(read_membership(reader)?),
        _ => return Err(Damage::Content("an entry is of an unknown kind")),
    };
    Ok(Entry { log_id, payload })
}
