//! What the records of a journal come to: a pure function of them, in their order.

use std::collections::VecDeque;

use ::bytes::{Bytes, BytesMut};

use super::record::{Body, Piece, Record};
use super::{Entry, LogId, SnapshotMeta};
use crate::codec::Damage;

/// A snapshot that is whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredSnapshot {
    pub(super) meta: SnapshotMeta,
    pub(super) bytes: Bytes,
    /// The journal's offset of its first piece.
    pub(super) first: u64,
}

/// The log, as it stands after some records.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) purged: Option<LogId>,
    pub(super) committed: Option<LogId>,
    pub(super) snapshot: Option<StoredSnapshot>,
    /// The entries behind the purged ones, each with its record's offset.
    entries: VecDeque<(Entry, u64)>,
    /// A snapshot that is being written.
    partial: Option<Partial>,
}

/// A snapshot of which some pieces are there.
#[derive(Clone, Debug)]
struct Partial {
    meta: SnapshotMeta,
    first: u64,
    next_piece: u32,
    bytes: BytesMut,
}

impl View {
    /// The next record, and the journal's offset of it.
    pub(super) fn follow(&mut self, record: Record, offset: u64) -> Result<(), Damage> {
        self.committed = self.committed.max(record.committed);
        match record.body {
            Body::Entry(entry) => self.add(entry, offset)?,
            Body::Truncated { since } => self.truncate(since),
            Body::Purged { upto } => self.purge(upto),
            Body::Committed => {}
            Body::Snapshot(piece) => self.piece(piece, offset)?,
        }
        Ok(())
    }

    fn add(&mut self, entry: Entry, offset: u64) -> Result<(), Damage> {
        if self
            .purged
            .is_some_and(|purged| entry.log_id.index <= purged.index)
        {
            // It is part of what the snapshot holds.
            return Ok(());
        }
        // The first of all may have any index: those before it were removed with their files.
        let follows = self
            .last_log_id()
            .is_none_or(|last| entry.log_id.index == last.index.wrapping_add(1));
        if !follows {
            return Err(Damage::Content(
                "an entry does not follow the one before it",
            ));
        }
        self.entries.push_back((entry, offset));
        Ok(())
    }

    fn truncate(&mut self, since: u64) {
        let keep = self
            .entries
            .partition_point(|(e, _)| e.log_id.index < since);
        self.entries.truncate(keep);
    }

    fn purge(&mut self, upto: LogId) {
        let gone = self
            .entries
            .partition_point(|(e, _)| e.log_id.index <= upto.index);
        self.entries.drain(..gone);
        self.purged = self.purged.max(Some(upto));
    }

    fn piece(&mut self, piece: Piece, offset: u64) -> Result<(), Damage> {
        if let Some(meta) = piece.meta {
            if piece.first != offset {
                return Err(Damage::Content("a snapshot begins elsewhere than it says"));
            }
            // An earlier one that was not finished never will be.
            self.partial = Some(Partial {
                meta,
                first: offset,
                next_piece: 0,
                bytes: BytesMut::new(),
            });
        }
        let Some(partial) = &mut self.partial else {
            return Ok(());
        };
        if partial.first != piece.first {
            return Ok(());
        }
        if partial.next_piece != piece.number {
            return Err(Damage::Content("a piece of a snapshot is missing"));
        }
        partial.bytes.extend_from_slice(&piece.bytes);
        partial.next_piece += 1;
        if partial.next_piece == piece.of
            && let Some(whole) = self.partial.take()
            && self
                .snapshot
                .as_ref()
                .is_none_or(|s| s.meta.last_log_id <= whole.meta.last_log_id)
        {
            self.snapshot = Some(StoredSnapshot {
                meta: whole.meta,
                bytes: whole.bytes.freeze(),
                first: whole.first,
            });
        }
        Ok(())
    }

    /// The last entry, or where they were purged to.
    pub(super) fn last_log_id(&self) -> Option<LogId> {
        let last = self.entries.back().map(|(entry, _)| entry.log_id);
        last.or(self.purged)
    }

    /// The entries of these indexes, as far as they are there.
    pub(super) fn entries(&self, from: u64, to: Option<u64>) -> Vec<Entry> {
        let from = self.entries.partition_point(|(e, _)| e.log_id.index < from);
        let entries = self.entries.iter().skip(from).map(|(entry, _)| entry);
        entries
            .take_while(|e| to.is_none_or(|to| e.log_id.index < to))
            .cloned()
            .collect()
    }
}
