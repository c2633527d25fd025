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
    /// The offset of the record that says up to where entries are purged.
    purged_at: Option<u64>,
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
            Body::Purged { upto } => self.purge(upto, offset),
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
        // The first one of all may have any index: replay may begin with an entry whose predecessors
        // are gone with their files, since they, and with them this one, were truncated later.
        let last = self.entries.back().map(|(last, _)| last.log_id.index);
        if last.is_some_and(|last| last.checked_add(1) != Some(entry.log_id.index)) {
            return Err(Damage::Content(
                "an entry does not follow the one before it",
            ));
        }
        self.entries.push_back((entry, offset));
        Ok(())
    }

    /// Checks that the first entry follows what was purged, as it does after every record but in the
    /// middle of a replay.
    pub(super) fn check_begin(&self) -> Result<(), Damage> {
        let first = self.entries.front().map(|(first, _)| first.log_id.index);
        match (self.purged, first) {
            (Some(purged), Some(first)) if purged.index.checked_add(1) != Some(first) => Err(
                Damage::Content("an entry does not follow what was purged before it"),
            ),
            _ => Ok(()),
        }
    }

    fn truncate(&mut self, since: u64) {
        let keep = self
            .entries
            .partition_point(|(e, _)| e.log_id.index < since);
        self.entries.truncate(keep);
    }

    fn purge(&mut self, upto: LogId, offset: u64) {
        let gone = self
            .entries
            .partition_point(|(e, _)| e.log_id.index <= upto.index);
        self.entries.drain(..gone);
        if self.purged <= Some(upto) {
            self.purged = Some(upto);
            self.purged_at = Some(offset);
        }
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

    /// The first offset of the journal that anything here still needs; `end` if nothing does.
    pub(super) fn needed_from(&self, end: u64) -> u64 {
        let needed = [
            self.entries.front().map(|(_, offset)| *offset),
            self.snapshot.as_ref().map(|s| s.first),
            self.partial.as_ref().map(|p| p.first),
            self.purged_at,
        ];
        needed.into_iter().flatten().min().unwrap_or(end)
    }
}
