//! A record of the journal, version 1.
//!
//! ```text
//!   version = 1   1
//!   kind          1
//!   committed     1 (+ 24)   the log id up to which the log was known to be committed
//!   entry:        log id 24, kind 1, then nothing, or a command behind its length, or a membership
//!   truncated:    index 8    entries from there on are gone
//!   purged:       log id 24  entries up to there are gone
//!   committed:    nothing
//!   snapshot:     first 8    the offset of the record with the snapshot's first piece
//!                 piece 4, pieces 4
//!                 in the first piece: last log id 1 (+ 24), membership, id 4 + n
//!                 bytes 4 + n
//!   log id is: term 8, node 8, index 8
//! ```
//!
//! It carries no checksum: the frame that holds it does, and a snapshot has one more of its own.

use ::bytes::{BufMut, Bytes, BytesMut};

use super::bytes::{
    put_entry, put_log_id, put_snapshot_meta, read_entry, read_log_id, read_snapshot_meta,
};
use super::{Entry, LogId, SnapshotMeta};
use crate::codec::{Damage, Reader, put_count, put_option};

const VERSION: u8 = 1;

const ENTRY: u8 = 1;
const TRUNCATED: u8 = 2;
const PURGED: u8 = 3;
const COMMITTED: u8 = 4;
const SNAPSHOT: u8 = 5;

/// One record.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) committed: Option<LogId>,
    pub(super) body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Body {
    Entry(Entry),
    Truncated { since: u64 },
    Purged { upto: LogId },
    Committed,
    Snapshot(Piece),
}

/// A piece of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) first: u64,
    pub(super) number: u32,
    pub(super) of: u32,
    /// In the first piece.
    pub(super) meta: Option<SnapshotMeta>,
    pub(super) bytes: Bytes,
}

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(128);
        out.put_u8(VERSION);
        out.put_u8(match &self.body {
            Body::Entry(_) => ENTRY,
            Body::Truncated { .. } => TRUNCATED,
            Body::Purged { .. } => PURGED,
            Body::Committed => COMMITTED,
            Body::Snapshot(_) => SNAPSHOT,
        });
        put_option(&mut out, self.committed, put_log_id);
        match &self.body {
            Body::Entry(entry) => put_entry(&mut out, entry),
            Body::Truncated { since } => out.put_u64(*since),
            Body::Purged { upto } => put_log_id(&mut out, *upto),
            Body::Committed => {}
            Body::Snapshot(piece) => piece.put(&mut out),
        }
        out.freeze()
    }

    pub(super) fn decode(bytes: &Bytes) -> Result<Self, Damage> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Damage::Version(version.into()));
        }
        let kind = reader.u8()?;
        let committed = reader.option(read_log_id)?;
        let body = match kind {
            ENTRY => Body::Entry(read_entry(&mut reader)?),
            TRUNCATED => Body::Truncated {
                since: reader.u64()?,
            },
            PURGED => Body::Purged {
                upto: read_log_id(&mut reader)?,
            },
            COMMITTED => Body::Committed,
            SNAPSHOT => Body::Snapshot(Piece::read(&mut reader, bytes)?),
            _ => return Err(Damage::Content("a record is of an unknown kind")),
        };
        reader.end()?;
        Ok(Self { committed, body })
    }
}

impl Piece {
    fn put(&self, out: &mut BytesMut) {
        out.put_u64(self.first);
        out.put_u32(self.number);
        out.put_u32(self.of);
        if let Some(meta) = &self.meta {
            put_snapshot_meta(out, meta);
        }
        put_count(out, self.bytes.len());
        out.put_slice(&self.bytes);
    }

    /// The piece's bytes share the record's.
    fn read(reader: &mut Reader<'_>, record: &Bytes) -> Result<Self, Damage> {
        let (first, number, of) = (reader.u64()?, reader.u32()?, reader.u32()?);
        if number >= of {
            return Err(Damage::Content("a snapshot has more pieces than it says"));
        }
        let meta = if number == 0 {
            Some(read_snapshot_meta(reader)?)
        } else {
            None
        };
        let len = reader.count(1)?;
        Ok(Self {
            first,
            number,
            of,
            meta,
            bytes: record.slice_ref(reader.bytes(len)?),
        })
    }
}
