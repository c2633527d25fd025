//! What nodes say to each other, as bytes: a version, a kind, and the fields. Big-endian.

use ::bytes::{BufMut, Bytes, BytesMut};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};

use super::bytes::{
    put_entry, put_log_id, put_snapshot_meta, put_vote, read_entry, read_log_id,
    read_snapshot_meta, read_vote,
};
use super::{SnapshotMeta, Types, Vote};
use crate::codec::{Damage, Reader, put_bool, put_count, put_option};

const VERSION: u8 = 1;

const APPEND: u8 = 1;
const VOTE: u8 = 2;
const SNAPSHOT: u8 = 3;

/// Answers have kinds of their own, so that none is taken for a request.
const APPENDED: u8 = 11;
const VOTED: u8 = 12;
const INSTALLED: u8 = 13;

const SUCCESS: u8 = 0;
const PARTIAL_SUCCESS: u8 = 1;
const CONFLICT: u8 = 2;
const HIGHER_VOTE: u8 = 3;

/// The shortest entry.
const MIN_ENTRY_LEN: usize = 24 + 1;

pub(super) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(Vote, SnapshotMeta, Bytes),
}

impl Request {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(128);
        out.put_u8(VERSION);
        match self {
            Self::Append(request) => {
                out.put_u8(APPEND);
                put_vote(&mut out, &request.vote);
                put_option(&mut out, request.prev_log_id, put_log_id);
                put_option(&mut out, request.leader_commit, put_log_id);
                put_count(&mut out, request.entries.len());
                for entry in &request.entries {
                    put_entry(&mut out, entry);
                }
            }
            Self::Vote(request) => {
                out.put_u8(VOTE);
                put_vote(&mut out, &request.vote);
                put_option(&mut out, request.last_log_id, put_log_id);
            }
            Self::Snapshot(vote, meta, bytes) => {
                out.put_u8(SNAPSHOT);
                put_vote(&mut out, vote);
                put_snapshot_meta(&mut out, meta);
                put_count(&mut out, bytes.len());
                out.put_slice(bytes);
            }
        }
        out.freeze()
    }

    pub(super) fn decode(bytes: &Bytes) -> Result<Self, Damage> {
        let mut reader = versioned(bytes)?;
        let request = match reader.u8()? {
            APPEND => {
                let vote = read_vote(&mut reader)?;
                let prev_log_id = reader.option(read_log_id)?;
                let leader_commit = reader.option(read_log_id)?;
                let count = reader.count(MIN_ENTRY_LEN)?;
                let mut entries = Vec::with_capacity(count);
                for _ in 0..count {
                    entries.push(read_entry(&mut reader)?);
                }
                Self::Append(AppendEntriesRequest {
                    vote,
                    prev_log_id,
                    entries,
                    leader_commit,
                })
            }
            VOTE => Self::Vote(VoteRequest {
                vote: read_vote(&mut reader)?,
                last_log_id: reader.option(read_log_id)?,
            }),
            SNAPSHOT => {
                let vote = read_vote(&mut reader)?;
                let meta = read_snapshot_meta(&mut reader)?;
                let len = reader.count(1)?;
                Self::Snapshot(vote, meta, bytes.slice_ref(reader.bytes(len)?))
            }
            _ => return Err(Damage::Content("a request is of an unknown kind")),
        };
        reader.end()?;
        Ok(request)
    }
}

/// Each kind of request has its own kind of answer.
pub(super) enum Answer {
    Append(AppendEntriesResponse<u64>),
    Vote(VoteResponse<u64>),
    Snapshot(SnapshotResponse<u64>),
}

impl Answer {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_u8(VERSION);
        match self {
            Self::Append(answer) => {
                out.put_u8(APPENDED);
                match answer {
                    AppendEntriesResponse::Success => out.put_u8(SUCCESS),
                    AppendEntriesResponse::PartialSuccess(upto) => {
                        out.put_u8(PARTIAL_SUCCESS);
                        put_option(&mut out, *upto, put_log_id);
                    }
                    AppendEntriesResponse::Conflict => out.put_u8(CONFLICT),
                    AppendEntriesResponse::HigherVote(vote) => {
                        out.put_u8(HIGHER_VOTE);
                        put_vote(&mut out, vote);
                    }
                }
            }
            Self::Vote(answer) => {
                out.put_u8(VOTED);
                put_vote(&mut out, &answer.vote);
                put_bool(&mut out, answer.vote_granted);
                put_option(&mut out, answer.last_log_id, put_log_id);
            }
            Self::Snapshot(answer) => {
                out.put_u8(INSTALLED);
                put_vote(&mut out, &answer.vote);
            }
        }
        out.freeze()
    }

    pub(super) fn decode(bytes: &Bytes) -> Result<Self, Damage> {
        let mut reader = versioned(bytes)?;
        let answer = match reader.u8()? {
            APPENDED => Self::Append(match reader.u8()? {
                SUCCESS => AppendEntriesResponse::Success,
                PARTIAL_SUCCESS => {
                    AppendEntriesResponse::PartialSuccess(reader.option(read_log_id)?)
                }
                CONFLICT => AppendEntriesResponse::Conflict,
                HIGHER_VOTE => AppendEntriesResponse::HigherVote(read_vote(&mut reader)?),
                _ => return Err(Damage::Content("an answer is of an unknown kind")),
            }),
            VOTED => Self::Vote(VoteResponse {
                vote: read_vote(&mut reader)?,
                vote_granted: reader.bool()?,
                last_log_id: reader.option(read_log_id)?,
            }),
            INSTALLED => Self::Snapshot(SnapshotResponse::new(read_vote(&mut reader)?)),
            _ => return Err(Damage::Content("an answer is of an unknown kind")),
        };
        reader.end()?;
        Ok(answer)
    }
}

fn versioned(bytes: &Bytes) -> Result<Reader<'_>, Damage> {
    let mut reader = Reader::new(bytes);
    match reader.u8()? {
        VERSION => Ok(reader),
        other => Err(Damage::Version(other.into())),
    }
}
