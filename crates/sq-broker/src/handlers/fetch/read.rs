//! One pass over the partitions of a fetch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sq_sim::{FileSystem, Instant};
use sq_storage::frame::FrameKind;
use sq_storage::{LogReader, ReadError, StoredFrame};

use super::ahead::ReadAhead;
use super::request::{Fetch, Wanted};
use super::sleep_until;
use crate::batch::{BatchHeader, Compression, HEADER_LEN};
use crate::broker::Broker;
use crate::budget::Held;
use crate::handlers::{unavailable, wire_offset};
use crate::partition::Partition;
use crate::protocol::ResponseError;

/// The first version whose clients know zstd (KIP-110).
const ZSTD_SINCE: i16 = 10;

/// How long a partition that is being opened is waited for at least.
const OPENING_PATIENCE: Duration = Duration::from_secs(1);

/// What one partition gave.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) records: Vec<Bytes>,
}

/// What a pass gave.
#[derive(Debug)]
pub(super) struct Pass {
    /// For each partition of the request, in its order.
    pub(super) outcomes: Vec<Result<Read, ResponseError>>,
    /// Bytes of batches.
    pub(super) bytes: usize,
    /// Whether a partition gave an error, which is not waited with.
    pub(super) failed: bool,
    /// The first partition that had something and found no room.
    pub(super) no_room_at: Option<usize>,
    /// Bytes that had been appended to all the partitions before any was read.
    pub(super) seen: u64,
    /// The memory that the batches take.
    pub(super) memory: Held,
}

impl Pass {
    /// Reads every partition, beginning at index `start`, as far as the room goes.
    pub(super) async fn run<F: FileSystem>(
        broker: &Broker<F>,
        ahead: &ReadAhead,
        fetch: &Fetch<F>,
        start: usize,
        deadline: Instant,
    ) -> Self {
        ahead.forget_unless(|place| fetch.wanted.iter().any(|wanted| wanted.is_at(place)));
        let partitions = fetch.wanted.iter().filter_map(Wanted::partition);
        let seen = partitions
            .map(Partition::appended_bytes)
            .fold(0, u64::wrapping_add);
        let mut outcomes: Vec<Option<Result<Read, ResponseError>>> = Vec::new();
        outcomes.resize_with(fetch.wanted.len(), || None);
        let mut pass = Self {
            outcomes: Vec::new(),
            bytes: 0,
            failed: false,
            no_room_at: None,
            seen,
            memory: Held::nothing(),
        };
        for step in 0..fetch.wanted.len() {
            let at = (start + step) % fetch.wanted.len();
            let Some(wanted) = fetch.wanted.get(at) else {
                continue;
            };
            let place = (fetch, wanted, at);
            let outcome = pass.read(broker, ahead, place, deadline).await;
            pass.failed |= outcome.is_err();
            if let Some(slot) = outcomes.get_mut(at) {
                *slot = Some(outcome);
            }
        }
        let missing = || Err(ResponseError::UnknownServerError);
        pass.outcomes = outcomes
            .into_iter()
            .map(|slot| slot.unwrap_or_else(missing))
            .collect();
        pass
    }

    async fn read<F: FileSystem>(
        &mut self,
        broker: &Broker<F>,
        ahead: &ReadAhead,
        (fetch, wanted, at): (&Fetch<F>, &Wanted<F>, usize),
        deadline: Instant,
    ) -> Result<Read, ResponseError> {
        let partition = wanted.partition().ok_or_else(|| wanted.refusal())?;
        let reader = reader(broker, partition, deadline).await?;
        let (start, end) = (reader.start_offset(), reader.end_offset());
        let offset = u64::try_from(wanted.offset)
            .ok()
            .filter(|offset| (start..=end).contains(offset))
            .ok_or(ResponseError::OffsetOutOfRange)?;
        let nothing = Read {
            start: wire_offset(start),
            end: wire_offset(end),
            records: Vec::new(),
        };
        if offset == end {
            return Ok(nothing);
        }
        // The first batch of a response is always whole: one that is larger than every limit would
        // else never be read.
        let is_first = self.bytes == 0;
        let room = wanted
            .max_bytes
            .min(fetch.max_bytes.saturating_sub(self.bytes));
        let place = wanted.place(offset, room);
        let was_read = match place {
            Some(place) => ahead.take(place).await,
            None => None,
        };
        let (frames, mut held) = if let Some(ready) = was_read {
            ready
        } else {
            let held = if room == 0 && !is_first {
                None
            } else {
                self.find_memory(broker, room.max(1), is_first, deadline)
                    .await
            };
            let Some(held) = held else {
                self.no_room_at.get_or_insert(at);
                return Ok(nothing);
            };
            let read = reader.read(offset, room).await;
            let frames = read.map_err(|error| refusal(partition, &error))?;
            (frames, held)
        };
        check(fetch.version, partition, &frames)?;
        let bytes: usize = frames.iter().map(|frame| frame.payload.len()).sum();
        if bytes > room && !is_first {
            self.no_room_at.get_or_insert(at);
            return Ok(nothing);
        }
        held.shrink_to(bytes);
        self.memory.merge(held);
        self.bytes += bytes;
        // What was appended since the end was looked at is among them.
        let end = frames
            .last()
            .map_or(end, |frame| end.max(frame.end_offset()));
        let next = frames.last().map_or(end, StoredFrame::end_offset);
        if next < reader.end_offset()
            && ReadAhead::is_worth_it(bytes, room)
            && let Some(place) = wanted.place(next, room)
        {
            let clock = Arc::clone(&broker.clock);
            ahead.begin(place, reader, &broker.fetch_memory, clock);
        }
        let mut records = Vec::with_capacity(frames.len());
        for frame in &frames {
            records.extend_from_slice(frame.payload.parts());
        }
        Ok(Read {
            end: wire_offset(end),
            records,
            ..nothing
        })
    }

    /// Takes memory for a read. Only who holds none waits for it: two that each held some and
    /// waited for more could wait for each other.
    async fn find_memory<F: FileSystem>(
        &self,
        broker: &Broker<F>,
        bytes: usize,
        is_first: bool,
        deadline: Instant,
    ) -> Option<Held> {
        if let Some(held) = broker.fetch_memory.try_take(bytes) {
            return Some(held);
        }
        if !is_first {
            return None;
        }
        tokio::select! {
            biased;
            held = broker.fetch_memory.take(bytes) => Some(held),
            () = sleep_until(broker, deadline) => None,
        }
    }
}

/// A partition's log; one that is still being opened is waited for, for a moment also by a fetch that
/// does not wait for data.
async fn reader<F: FileSystem>(
    broker: &Broker<F>,
    partition: &Partition<F>,
    deadline: Instant,
) -> Result<LogReader<F>, ResponseError> {
    if let Some(reader) = partition.reader_if_open() {
        return Ok(reader);
    }
    let patience = deadline.max(broker.clock.now() + OPENING_PATIENCE);
    let opened = tokio::select! {
        biased;
        opened = partition.reader() => opened,
        () = sleep_until(broker, patience) => return Err(ResponseError::LeaderNotAvailable),
    };
    opened.map_err(|why| unavailable(&why))
}

fn refusal<F: FileSystem>(partition: &Partition<F>, error: &ReadError) -> ResponseError {
    match error {
        // Deleted since the offset was compared with the log's start.
        ReadError::OutOfRange { .. } => ResponseError::OffsetOutOfRange,
        ReadError::Damaged(_) => {
            tracing::error!(id = %partition.id(), %error, "damage found by a fetch");
            ResponseError::CorruptMessage
        }
        _ => {
            tracing::error!(id = %partition.id(), %error, "fetch failed");
            ResponseError::KafkaStorageError
        }
    }
}

/// Whether the client can make something of what was stored.
fn check<F: FileSystem>(
    version: i16,
    partition: &Partition<F>,
    frames: &[StoredFrame],
) -> Result<(), ResponseError> {
    if let Some(frame) = frames.iter().find(|frame| frame.kind != FrameKind::Batch) {
        let offset = frame.base_offset;
        tracing::error!(id = %partition.id(), offset, "the log holds what no Kafka client wrote");
        return Err(ResponseError::KafkaStorageError);
    }
    let is_zstd = |frame: &StoredFrame| {
        let header = BatchHeader::parse(&frame.payload.head(HEADER_LEN));
        header.is_some_and(|h| h.attributes.compression() == Some(Compression::Zstd))
    };
    if version < ZSTD_SINCE && frames.iter().any(is_zstd) {
        return Err(ResponseError::UnsupportedCompressionType);
    }
    Ok(())
}
