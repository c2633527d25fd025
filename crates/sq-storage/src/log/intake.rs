//! What stands between those who append and the log: decisions that need the offset.

use std::sync::Arc;

use sq_sim::FileSystem;

use super::append::Append;
use super::error::AppendError;
use crate::error::Error;
use crate::wal::WalWriter;

/// Decides about entries at the moment at which they are gathered for a write, when the offset is
/// known that each would get, and about nothing else being in flight.
///
/// One turn of a log: [`begin`](Self::begin), then [`stage`](Self::stage) for each entry in the order
/// of the queue, one write and one sync, [`settle`](Self::settle) for each entry that is decided by
/// it, in the same order, and [`end`](Self::end). What did not fit the segment is written in turns of
/// its own, before anything else is staged.
///
/// None of these calls may block: the disk waits for them.
pub trait Intake<F: FileSystem>: Send + 'static {
    /// What is submitted.
    type Entry: Send + 'static;
    /// What is kept of an entry while it is being written.
    type Staged: Send + 'static;
    /// What the one who submitted it gets.
    type Answer: Send + 'static;

    /// What an entry counts against [`LogConfig::queue_bytes`](super::LogConfig::queue_bytes) and
    /// [`LogConfig::turn_bytes`](super::LogConfig::turn_bytes).
    fn bytes(entry: &Self::Entry) -> usize;

    /// A turn begins.
    fn begin(&mut self, writer: &mut WalWriter<F>) {
        let _ = writer;
    }

    /// Decides about an entry, whose first record would get `offset`. What is to be written is pushed
    /// to `frames`.
    fn stage(
        &mut self,
        entry: Self::Entry,
        offset: u64,
        frames: &mut Vec<Append>,
    ) -> Stage<Self::Staged, Self::Answer>;

    /// Says what became of an entry that was staged.
    fn settle(&mut self, staged: Self::Staged, outcome: Outcome<'_>) -> Self::Answer;

    /// A turn ends; everything that it decided is settled.
    fn end(&mut self, writer: &mut WalWriter<F>, outcome: Outcome<'_>) {
        let _ = (writer, outcome);
    }

    /// The answer to what was still queued when the log was closed, or when a turn panicked.
    fn closed() -> Self::Answer;
}

/// What is done with an entry.
#[derive(Debug)]
pub enum Stage<S, A> {
    /// It is settled once every frame is durable, or failed, that was pushed for it or for an entry
    /// before it.
    Settle(S),
    /// It needs no write. The answer is given at the end of the turn.
    Answer(A),
}

/// What a turn has come to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// Everything below this offset is durable.
    pub end_offset: u64,
    /// Why nothing at or above it is, where a write failed.
    pub failure: Option<&'a Arc<Error>>,
}

/// The intake of a log whose entries need no decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

/// An entry of a [`Direct`] log: what one call appends.
#[derive(Debug)]
pub enum DirectEntry {
    /// One frame.
    One(Append),
    /// Several, one behind the other.
    Many(Vec<Append>),
}

impl DirectEntry {
    fn appends(&self) -> &[Append] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<F: FileSystem> Intake<F> for Direct {
    type Entry = DirectEntry;
    type Staged = std::ops::Range<u64>;
    type Answer = Result<u64, AppendError>;

    fn bytes(entry: &DirectEntry) -> usize {
        entry.appends().iter().map(Append::frame_len).sum()
    }

    fn stage(
        &mut self,
        entry: DirectEntry,
        offset: u64,
        frames: &mut Vec<Append>,
    ) -> Stage<Self::Staged, Self::Answer> {
        let records = entry.appends().iter();
        let records: u64 = records.map(|a| u64::from(a.record_count())).sum();
        match entry {
            DirectEntry::One(one) => frames.push(one),
            DirectEntry::Many(many) => frames.extend(many),
        }
        // Where offsets end, the writer refuses the frame.
        Stage::Settle(offset..offset.saturating_add(records))
    }

    fn settle(&mut self, staged: Self::Staged, outcome: Outcome<'_>) -> Self::Answer {
        let failure = match outcome.failure {
            Some(failure) if staged.end > outcome.end_offset => failure,
            _ => return Ok(staged.start),
        };
        Err(AppendError::Failed {
            stored: staged.start..outcome.end_offset.max(staged.start),
            error: Arc::clone(failure),
        })
    }

    fn closed() -> Self::Answer {
        Err(AppendError::Closed)
    }
}
