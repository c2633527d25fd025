//! What the log says about its producers, gathered while it is opened and kept from then on.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use sq_storage::frame::FrameKind;
use sq_storage::{RecoveryVisitor, Sidecar, StoredFrame};

use crate::batch::{BatchHeader, HEADER_LEN};
use crate::producers::{ProducerLimits, ProducerStamp, ProducerTable};

/// The producers of a log, as all batches below an offset show them.
#[derive(Clone, Debug)]
pub(super) struct Producers {
    pub(super) table: ProducerTable,
    pub(super) end_offset: u64,
}

/// The same, for whoever appends and for the segments' sidecars.
pub(super) type SharedProducers = Arc<Mutex<Producers>>;

impl Producers {
    fn none(limits: ProducerLimits) -> Self {
        Self {
            table: ProducerTable::new(limits),
            end_offset: 0,
        }
    }

    fn take_in(&mut self, frame: &StoredFrame) {
        if frame.base_offset < self.end_offset {
            return;
        }
        self.end_offset = frame.end_offset();
        if frame.kind != FrameKind::Batch {
            return;
        }
        let header = BatchHeader::parse(&frame.payload.head(HEADER_LEN));
        if let Some(stamp) = header.as_ref().and_then(ProducerStamp::of) {
            let (base_offset, append_ms) = (frame.base_offset, frame.append_time_ms);
            self.table.record(&stamp, base_offset, append_ms);
        }
    }

    /// What a sidecar keeps of them, if they are those of the log below this offset.
    fn sidecar(&self, end_offset: u64) -> Option<Bytes> {
        let is_there = self.end_offset == end_offset;
        is_there.then(|| self.table.encode_snapshot(end_offset))
    }
}

/// What gives a log its sidecars.
pub(super) fn sidecars(
    producers: &SharedProducers,
) -> impl FnMut(u64) -> Option<Bytes> + Send + Sync + 'static {
    let producers = Arc::clone(producers);
    move |end_offset| {
        let producers = producers.lock().unwrap_or_else(PoisonError::into_inner);
        producers.sidecar(end_offset)
    }
}

/// Gathers producers while a log is opened.
#[derive(Debug)]
pub(super) struct Gathering {
    limits: ProducerLimits,
    /// What an earlier version left, where the log has no sidecar.
    earlier: Option<(ProducerTable, u64)>,
    /// From a sidecar, or else from nothing.
    found: Producers,
    /// From what an earlier version left.
    continued: Option<Producers>,
    /// Whether the log has a sidecar that was of use.
    pub(super) has_sidecar: bool,
}

impl Gathering {
    pub(super) fn new(limits: ProducerLimits, earlier: Option<(ProducerTable, u64)>) -> Self {
        Self {
            limits,
            earlier,
            found: Producers::none(limits),
            continued: None,
            has_sidecar: false,
        }
    }

    /// The producers of a log that ends at an offset.
    pub(super) fn finish(self, end_offset: u64) -> Producers {
        // A snapshot beyond the log's end speaks of batches that are not there.
        let continued = self.continued.filter(|c| c.end_offset <= end_offset);
        let table = continued.map_or(self.found.table, |c| c.table);
        Producers { table, end_offset }
    }
}

impl RecoveryVisitor for Gathering {
    fn begin(&mut self, sidecar: Option<&Sidecar>) -> Option<u64> {
        self.found = Producers::none(self.limits);
        self.continued = None;
        self.has_sidecar = false;
        let Some(Sidecar {
            end_offset,
            content,
        }) = sidecar
        else {
            let continued = self.earlier.clone();
            self.continued = continued.map(|(table, end_offset)| Producers { table, end_offset });
            return Some(0);
        };
        let (table, stated) = ProducerTable::decode_snapshot(content, self.limits).ok()?;
        let end_offset = Some(*end_offset).filter(|end| *end == stated)?;
        self.found = Producers { table, end_offset };
        self.has_sidecar = true;
        Some(end_offset)
    }

    fn frame(&mut self, frame: &StoredFrame) {
        self.found.take_in(frame);
        if let Some(continued) = &mut self.continued {
            continued.take_in(frame);
        }
    }

    fn sidecar(&mut self, end_offset: u64) -> Option<Bytes> {
        match &self.continued {
            Some(continued) if continued.end_offset <= end_offset => continued.sidecar(end_offset),
            _ => self.found.sidecar(end_offset),
        }
    }
}
