//! What a log must hold: what was acknowledged, and what may be there or not.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use sq_sim::Instant;
use sq_storage::frame::FrameKind;
use sq_storage::record::encode_record;
use sq_storage::{Batch, ReadError, Result, StoredFrame};

use crate::support::{Reader, Writer};

/// What one frame carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    kind: FrameKind,
    payload: Bytes,
    record_count: u32,
    max_timestamp_ms: i64,
    leader_epoch: u32,
}

impl Entry {
    fn record(value: &[u8], timestamp_ms: i64) -> Self {
        Self {
            kind: FrameKind::Record,
            payload: encode_record(None, Some(value), &[]).unwrap(),
            record_count: 1,
            max_timestamp_ms: timestamp_ms,
            leader_epoch: 0,
        }
    }
}

impl From<&Batch> for Entry {
    fn from(batch: &Batch) -> Self {
        Self {
            kind: FrameKind::Batch,
            payload: batch.payload.concat().into(),
            record_count: batch.record_count,
            max_timestamp_ms: batch.max_timestamp_ms,
            leader_epoch: batch.leader_epoch,
        }
    }
}

impl From<StoredFrame> for Entry {
    fn from(frame: StoredFrame) -> Self {
        Self {
            kind: frame.kind,
            payload: frame.payload.to_bytes(),
            record_count: frame.record_count,
            max_timestamp_ms: frame.max_timestamp_ms,
            leader_epoch: frame.leader_epoch,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    /// Each frame and the offset at which it begins, of those that hold a record from the start on.
    acknowledged: Vec<(u64, Entry)>,
    start: u64,
    end: u64,
    /// Where what is acknowledged and not durable begins: it may be missing after a crash, from the end. `None` if
    /// all is durable.
    unsynced: Option<u64>,
    /// When each of the appends above it ended that were acknowledged, and where.
    acknowledged_at: Vec<(Instant, u64)>,
    /// For each offset from the end on, what was given to an append that failed there.
    open: BTreeMap<u64, Vec<Entry>>,
    /// Where the log may start again after a crash, as a purge was not confirmed.
    earlier_start: Option<u64>,
    /// What the log may be again after a crash, as what moved its end was not confirmed.
    before: Option<Box<Oracle>>,
}

impl Oracle {
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The offsets at which frames begin, and the end.
    pub(crate) fn boundaries(&self) -> Vec<u64> {
        let bases = self.acknowledged.iter().map(|(base, _)| *base);
        bases
            .chain([self.end])
            .filter(|o| *o >= self.start)
            .collect()
    }

    /// Notes what the log says of how much is durable, which must be what its policy allows, at least: everything
    /// as it was an `interval` before the last append.
    pub(crate) fn settle(&mut self, log: &Writer, now: Instant, interval: Duration) {
        let durable = log.durable_offset();
        assert!(durable <= self.end);
        if self
            .acknowledged_at
            .last()
            .is_none_or(|(_, end)| *end < self.end)
        {
            let is_old = |(at, _): &&(Instant, u64)| *at + interval <= now;
            let old = self.acknowledged_at.iter().rev().find(is_old);
            assert!(
                old.is_none_or(|(_, end)| *end <= durable),
                "{durable} is durable, {old:?} was acknowledged too long ago"
            );
            self.acknowledged_at.push((now, self.end));
        }
        self.acknowledged_at.retain(|(_, end)| *end > durable);
        self.unsynced = (durable < self.end).then_some(durable);
    }

    /// Everything is durable.
    pub(crate) fn settle_all(&mut self) {
        self.unsynced = None;
        self.acknowledged_at.clear();
    }

    /// The log may start further back than a purge said.
    pub(crate) fn starts_at(&mut self, start: u64) {
        assert!(start <= self.start);
        self.earlier_start = Some(start);
    }

    /// Truncates the log and notes what came of it.
    pub(crate) async fn truncate_from(&mut self, log: &mut Writer, offset: u64) -> Result<()> {
        let done = log.truncate_from(offset).await;
        self.truncated(log, offset, done.is_ok());
        done
    }

    /// Notes what came of a truncation, which may have been dropped.
    pub(crate) fn truncated(&mut self, log: &Writer, offset: u64, confirmed: bool) {
        let is_cut = log.next_offset() != self.end;
        assert!(is_cut || !confirmed || offset >= self.end);
        if is_cut {
            assert_eq!(log.next_offset(), offset);
            self.settle_all();
            let before = Box::new(self.clone());
            self.acknowledged.retain(|(base, _)| *base < offset);
            self.end = offset;
            self.open.clear();
            self.before = Some(before);
        }
        if confirmed {
            self.confirm();
        }
    }

    /// Purges the log and notes what came of it.
    pub(crate) async fn purge_to(&mut self, log: &mut Writer, offset: u64) -> Result<()> {
        let done = log.purge_to(offset).await;
        self.purged(log, offset, done.is_ok());
        done
    }

    /// Advances the log's start and notes what came of it.
    pub(crate) async fn advance_start(&mut self, log: &mut Writer, offset: u64) -> Result<()> {
        let done = log.advance_start(offset).await;
        self.purged(log, offset.min(self.end), done.is_ok());
        done
    }

    /// Notes what came of a purge, which may have been dropped.
    pub(crate) fn purged(&mut self, log: &Writer, offset: u64, confirmed: bool) {
        let start = log.reader().start_offset();
        assert!(start == self.start || start == offset);
        assert!(!confirmed || start >= offset);
        if start != self.start {
            self.settle_all();
            let before = self.clone();
            self.earlier_start = Some(self.start);
            self.start = start;
            if start > self.end {
                self.end = start;
                self.open.clear();
                self.before = Some(Box::new(before));
            }
            self.let_go();
        }
        assert_eq!(log.next_offset(), self.end);
        if confirmed {
            self.confirm();
        }
    }

    /// What was done to the log's ends is durable.
    fn confirm(&mut self) {
        (self.earlier_start, self.before) = (None, None);
    }

    /// Forgets what lies before the start.
    fn let_go(&mut self) {
        let start = self.start;
        let ends_behind =
            |(base, entry): &(u64, Entry)| base + u64::from(entry.record_count) > start;
        self.acknowledged.retain(ends_behind);
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The frames from an offset on: where each begins and ends, and its payload's checksum.
    pub(crate) fn frames_from(&self, offset: u64) -> impl Iterator<Item = (u64, u64, u32)> {
        let behind = self
            .acknowledged
            .partition_point(|(base, _)| *base < offset);
        self.acknowledged[behind..].iter().map(|(base, entry)| {
            let end = base + u64::from(entry.record_count);
            (*base, end, crc32fast::hash(&entry.payload))
        })
    }

    /// Whether a record may turn up that was not acknowledged.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Appends a record and notes what came of it.
    pub(crate) async fn append(&mut self, log: &mut Writer, value: Vec<u8>) -> Result<u64> {
        self.append_at(log, value, 1).await
    }

    /// Appends a record with a timestamp and notes what came of it.
    pub(crate) async fn append_at(
        &mut self,
        log: &mut Writer,
        value: Vec<u8>,
        timestamp_ms: u64,
    ) -> Result<u64> {
        let expected = self.end;
        assert_eq!(log.next_offset(), expected);
        let entry = Entry::record(&value, timestamp_ms.cast_signed());
        match log.append(None, &value, &[], timestamp_ms).await {
            Ok(offset) => {
                assert_eq!(offset, expected, "an offset was skipped or given twice");
                self.acknowledge_entry(entry);
                Ok(offset)
            }
            Err(e) => {
                self.may_hold_entries([entry]);
                Err(e)
            }
        }
    }

    /// Appends batches with one call and notes what came of it.
    pub(crate) async fn append_batches(
        &mut self,
        log: &mut Writer,
        batches: &[Batch],
    ) -> Result<usize> {
        assert_eq!(log.next_offset(), self.end);
        match log.append_batches(batches).await {
            Ok(count) => {
                self.acknowledge_batches(&batches[..count]);
                assert_eq!(log.next_offset(), self.end);
                Ok(count)
            }
            Err(e) => {
                self.may_hold_batches(batches);
                Err(e)
            }
        }
    }

    /// A call was dropped or failed: its record may turn up, or not.
    pub(crate) fn may_hold(&mut self, value: &[u8], timestamp_ms: i64) {
        self.may_hold_entries([Entry::record(value, timestamp_ms)]);
    }

    /// A call was dropped or failed: the first so many of its batches may turn up.
    pub(crate) fn may_hold_batches(&mut self, batches: &[Batch]) {
        self.may_hold_entries(batches.iter().map(Entry::from));
    }

    fn may_hold_entries(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let mut offset = self.end;
        for entry in entries {
            let next = offset + u64::from(entry.record_count);
            self.open.entry(offset).or_default().push(entry);
            offset = next;
        }
    }

    pub(crate) fn acknowledge(&mut self, value: &[u8], timestamp_ms: i64) {
        self.acknowledge_entry(Entry::record(value, timestamp_ms));
    }

    pub(crate) fn acknowledge_batches(&mut self, batches: &[Batch]) {
        for batch in batches {
            self.acknowledge_entry(batch.into());
        }
    }

    fn acknowledge_entry(&mut self, entry: Entry) {
        // Nothing is appended before the end is certain.
        self.before = None;
        let offset = self.end;
        self.end += u64::from(entry.record_count);
        self.acknowledged.push((offset, entry));
        self.open = self.open.split_off(&self.end);
    }

    /// Compares what a log that was just opened holds, and takes what it adopted as acknowledged from
    /// here on.
    pub(crate) async fn check(&mut self, log: &Writer) {
        let reader = log.reader();
        assert_eq!(reader.end_offset(), log.next_offset());
        if let Some(before) = self.before.take()
            && before.fits(&reader).await
        {
            *self = *before;
        }
        let start = reader.start_offset();
        assert!(
            start == self.start || Some(start) == self.earlier_start,
            "the log starts at {start}, not at {} or {:?}",
            self.start,
            self.earlier_start
        );
        if start != self.start {
            // What the purge had let go of is not known any more, only where it is.
            let until = self
                .acknowledged
                .first()
                .map_or(self.end, |(base, _)| *base);
            let mut back = entries(&reader, start..until).await;
            back.retain(|(base, _)| *base < until);
            self.acknowledged.splice(0..0, back);
            self.start = start;
        }
        self.earlier_start = None;
        let end = log.next_offset();
        let durable = self.unsynced.unwrap_or(self.end);
        assert!(
            end >= durable,
            "everything below {durable} is durable, the log ends at {end}"
        );
        if end < self.end {
            assert!(self.boundaries().contains(&end), "{end} is within a frame");
            self.acknowledged.retain(|(base, _)| *base < end);
            self.end = end;
        }
        for (offset, entry) in entries(&reader, self.end..log.next_offset()).await {
            let open = self.open.get(&offset);
            assert!(
                open.is_some_and(|o| o.contains(&entry)),
                "offset {offset} came from nowhere"
            );
            self.acknowledge_entry(entry);
        }
        self.open.clear();
        self.settle_all();
        self.verify(&reader).await;
    }

    /// Whether a log that was just opened is this one.
    async fn fits(&self, reader: &Reader) -> bool {
        let (start, end) = (reader.start_offset(), reader.end_offset());
        if end < self.end || (start != self.start && Some(start) != self.earlier_start) {
            return false;
        }
        let Some((base, entry)) = self.acknowledged.last() else {
            return true;
        };
        // The log may begin within a batch.
        let offset = start.max(*base);
        let found = reader.read(offset, 1).await.unwrap().into_iter().next();
        found.is_some_and(|f| f.base_offset == *base && Entry::from(f) == *entry)
    }

    /// Compares what a reader sees with what was acknowledged, which is all that it may see.
    pub(crate) async fn verify(&self, reader: &Reader) {
        assert_eq!(reader.start_offset(), self.start);
        let found = entries(reader, self.start..self.end).await;
        for (found, expected) in found.iter().zip(&self.acknowledged) {
            assert_eq!(found, expected);
        }
        assert_eq!(found.len(), self.acknowledged.len());
        for outside in [self.start.checked_sub(1), Some(self.end + 1)] {
            let Some(outside) = outside else { continue };
            let error = reader.read(outside, 1).await.unwrap_err();
            assert!(matches!(error, ReadError::OutOfRange { .. }), "{error}");
        }
        let segments = reader.segments();
        let first = segments.first().map_or(self.start, |s| s.base_offset);
        assert!(first <= self.start, "{first} is behind {}", self.start);
        let mut end = first;
        for segment in segments {
            assert_eq!(segment.base_offset, end, "{}", segment.path.display());
            end = segment.end_offset;
        }
        assert_eq!(end, self.end);
    }

    /// Looks up an offset and a timestamp.
    pub(crate) async fn look_up(&self, reader: &Reader, offset: u64, timestamp_ms: i64) {
        let holds = |(base, entry): &&(u64, Entry)| {
            (*base..*base + u64::from(entry.record_count)).contains(&offset)
        };
        let expected = self.acknowledged.iter().find(holds);
        let found = reader.read(offset, 1).await.unwrap().into_iter().next();
        assert_same(found, expected, "offset", offset.cast_signed());

        let expected = self.first_at(timestamp_ms);
        let found = reader.find_by_timestamp(timestamp_ms).await.unwrap();
        assert_same(found, expected, "timestamp", timestamp_ms);

        let times = self.acknowledged.iter().map(|(_, e)| e.max_timestamp_ms);
        let greatest = times.max().unwrap_or_default();
        let expected = self.first_at(greatest);
        let found = reader.find_max_timestamp().await.unwrap();
        assert_same(found, expected, "greatest timestamp", greatest);
    }

    fn first_at(&self, timestamp_ms: i64) -> Option<&(u64, Entry)> {
        let mut acknowledged = self.acknowledged.iter();
        acknowledged.find(|(_, entry)| entry.max_timestamp_ms >= timestamp_ms)
    }
}

fn assert_same(
    found: Option<StoredFrame>,
    expected: Option<&(u64, Entry)>,
    what: &str,
    wanted: i64,
) {
    let found = found.map(|frame| (frame.base_offset, Entry::from(frame)));
    assert_eq!(found.as_ref(), expected, "{what} {wanted}");
}

/// The frames that hold the offsets from one to another at which a frame begins, each right behind the
/// one before it.
async fn entries(reader: &Reader, offsets: Range<u64>) -> Vec<(u64, Entry)> {
    let mut found = Vec::new();
    let mut next = offsets.start;
    while next < offsets.end {
        let frames = reader.read(next, 1 << 20).await.unwrap();
        assert!(!frames.is_empty(), "nothing at offset {next}");
        for frame in frames {
            // The log may begin within a batch.
            let is_first = found.is_empty() && frame.base_offset < next;
            assert!(is_first || frame.base_offset == next);
            next = frame.end_offset();
            found.push((frame.base_offset, frame.into()));
        }
    }
    found
}
