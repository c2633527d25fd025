//! What a log must hold: what was acknowledged, and what may be there or not.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
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
    /// Each frame and the offset at which it begins.
    acknowledged: Vec<(u64, Entry)>,
    end: u64,
    /// For each offset from the end on, what was given to an append that failed there.
    open: BTreeMap<u64, Vec<Entry>>,
}

impl Oracle {
    pub(crate) fn end(&self) -> u64 {
        self.end
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
        assert!(
            log.next_offset() >= self.end,
            "everything below {} was acknowledged, the log ends at {}",
            self.end,
            log.next_offset()
        );
        for (offset, entry) in entries(&reader, self.end..log.next_offset()).await {
            let open = self.open.get(&offset);
            assert!(
                open.is_some_and(|o| o.contains(&entry)),
                "offset {offset} came from nowhere"
            );
            self.acknowledge_entry(entry);
        }
        self.open.clear();
        self.verify(&reader).await;
    }

    /// Compares what a reader sees with what was acknowledged, which is all that it may see.
    pub(crate) async fn verify(&self, reader: &Reader) {
        let found = entries(reader, 0..self.end).await;
        for (found, expected) in found.iter().zip(&self.acknowledged) {
            assert_eq!(found, expected);
        }
        assert_eq!(found.len(), self.acknowledged.len());
        let error = reader.read(self.end + 1, 1).await.unwrap_err();
        assert!(matches!(error, ReadError::OutOfRange { .. }), "{error}");
        let mut end = 0;
        for segment in reader.segments() {
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

/// The frames between two offsets at which frames begin, each right behind the one before it.
async fn entries(reader: &Reader, offsets: Range<u64>) -> Vec<(u64, Entry)> {
    let mut found = Vec::new();
    let mut next = offsets.start;
    while next < offsets.end {
        let frames = reader.read(next, 1 << 20).await.unwrap();
        assert!(!frames.is_empty(), "nothing at offset {next}");
        for frame in frames {
            assert_eq!(frame.base_offset, next);
            next = frame.end_offset();
            found.push((frame.base_offset, frame.into()));
        }
    }
    found
}
