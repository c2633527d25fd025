//! A file's bytes: what the page cache holds, what the disk holds, and what lies between.

use std::ops::Range;

use bytes::Bytes;

use super::ranges::RangeSet;

/// A change that no sync has made durable.
#[derive(Clone, Debug)]
pub(super) enum Unsynced {
    Write { offset: u64, data: Bytes },
    SetLen(u64),
}

/// The bytes of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// What a read sees.
    pub(super) cached: Vec<u8>,
    /// What the disk holds if nothing un-synced reaches it.
    pub(super) disk: Vec<u8>,
    /// Bytes that a sync would write: those that an un-synced write gave a new value.
    pub(super) dirty: RangeSet,
    /// Bytes that are clean, though the disk does not hold them: their sync failed.
    pub(super) lost: RangeSet,
    /// The shortest the file was since its last sync, if shorter than on disk.
    pub(super) cut_to: Option<u64>,
    /// The un-synced changes, in order.
    pub(super) journal: Vec<Unsynced>,
    /// The bytes that occupy space.
    pub(super) allocated: RangeSet,
}

/// Positions are below `isize::MAX` wherever there is memory behind them.
pub(super) fn at(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

pub(super) fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

/// Copies `range` of `from` to the same place in `to`; what `from` lacks is zero, what `to` lacks is
/// left out.
pub(super) fn copy_range(from: &[u8], to: &mut [u8], range: Range<u64>) {
    let end = at(range.end).min(to.len());
    let start = at(range.start).min(end);
    let Some(target) = to.get_mut(start..end) else {
        return;
    };
    let known = from.len().clamp(start, end) - start;
    let (copied, tail) = target.split_at_mut(known);
    if let Some(source) = from.get(start..start + known) {
        copied.copy_from_slice(source);
    }
    tail.fill(0);
}

impl Content {
    /// A file that is durable as it is.
    pub(super) fn durable(bytes: Vec<u8>) -> Self {
        let mut content = Self {
            cached: bytes.clone(),
            disk: bytes,
            ..Self::default()
        };
        content.allocated.insert(0..content.len());
        content
    }

    pub(super) fn len(&self) -> u64 {
        length(&self.cached)
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Bytes {
        let start = at(offset).min(self.cached.len());
        let end = start.saturating_add(len).min(self.cached.len());
        Bytes::copy_from_slice(self.cached.get(start..end).unwrap_or_default())
    }

    pub(super) fn write(&mut self, offset: u64, data: &Bytes) {
        if data.is_empty() {
            return;
        }
        let range = offset..offset + length(data);
        self.mark_changed(offset, data);
        self.lost.remove(range.clone());
        self.allocated.insert(range.clone());
        if self.len() < range.end {
            self.cached.resize(at(range.end), 0);
        }
        if let Some(target) = self.cached.get_mut(at(range.start)..at(range.end)) {
            target.copy_from_slice(data);
        }
        self.journal.push(Unsynced::Write {
            offset,
            data: data.clone(),
        });
    }

    /// A write that the cache shows and no sync will write.
    pub(super) fn write_to_cache_only(&mut self, offset: u64, data: &Bytes) {
        if data.is_empty() {
            return;
        }
        self.write(offset, data);
        let range = offset..offset + length(data);
        self.dirty.remove(range.clone());
        self.lost.insert(range);
        self.journal.pop();
        self.journal.push(Unsynced::SetLen(self.len()));
    }

    /// Bytes that the disk puts here by mistake, as far as the file reaches.
    pub(super) fn write_to_disk_only(&mut self, offset: u64, data: &[u8]) {
        let start = at(offset).min(self.disk.len());
        let end = start.saturating_add(data.len()).min(self.disk.len());
        if let (Some(target), Some(source)) =
            (self.disk.get_mut(start..end), data.get(..end - start))
        {
            target.copy_from_slice(source);
            let hidden = start as u64..(end as u64).min(self.len());
            self.lost.insert(hidden.clone());
            for dirty in self.dirty.overlap(hidden) {
                self.lost.remove(dirty);
            }
        }
    }

    /// Marks the bytes to which a write gives a new value. Rewriting a clean byte with the value it
    /// has puts nothing at risk, unless the disk never got it.
    fn mark_changed(&mut self, offset: u64, data: &[u8]) {
        let range = offset..offset + length(data);
        let known = self.cached.get(at(offset)..).unwrap_or_default();
        let mut run: Option<usize> = None;
        for (i, (old, new)) in known.iter().zip(data).enumerate() {
            match (old == new, run) {
                (true, Some(start)) => {
                    self.dirty.insert(offset + start as u64..offset + i as u64);
                    run = None;
                }
                (false, None) => run = Some(i),
                _ => {}
            }
        }
        let fresh = run.unwrap_or(known.len().min(data.len()));
        self.dirty.insert(offset + fresh as u64..range.end);
        for lost in self.lost.overlap(range) {
            self.dirty.insert(lost);
        }
    }

    /// Cuts the file or grows it with zeros, and says how much space that gave back.
    pub(super) fn set_len(&mut self, len: u64) -> u64 {
        let mut freed = 0;
        if len < self.len() {
            self.dirty.truncate(len);
            self.lost.truncate(len);
            freed = self.allocated.truncate(len);
            if len < length(&self.disk) {
                self.cut_to = Some(self.cut_to.map_or(len, |cut| cut.min(len)));
            }
        }
        if len != self.len() {
            self.cached.resize(at(len), 0);
            self.journal.push(Unsynced::SetLen(len));
        }
        freed
    }

    /// A sync that succeeds. It writes what is dirty, and only that.
    pub(super) fn sync(&mut self) {
        self.sync_len();
        for range in self.dirty.iter() {
            copy_range(&self.cached, &mut self.disk, range);
        }
        self.dirty.clear();
        self.journal.clear();
    }

    fn sync_len(&mut self) {
        if let Some(cut) = self.cut_to.take() {
            self.disk.truncate(at(cut));
        }
        self.disk.resize(self.cached.len(), 0);
    }

    /// Whether a power loss can change what a read sees.
    pub(super) fn is_durable(&self) -> bool {
        self.dirty.is_empty()
            && self.lost.is_empty()
            && self.cut_to.is_none()
            && self.cached.len() == self.disk.len()
    }
}
