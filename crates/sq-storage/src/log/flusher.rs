//! A turn: what is gathered, written and settled together.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use sq_sim::FileSystem;

use super::append::Append;
use super::fill::FillWait;
use super::front::{Front, Queued, Work};
use super::head::Head;
use super::intake::{Intake, Outcome, Stage};
use super::slots::{Answered, SlotId};
use crate::error::Error;

/// Something that needs the writer for itself.
pub(super) type Job<I, H> = Box<
    dyn for<'a> FnOnce(
            &'a mut Option<H>,
            &'a mut I,
        ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>
        + Send,
>;

pub(super) type FrontOf<F, I, H> =
    Front<<I as Intake<F>>::Entry, <I as Intake<F>>::Answer, Job<I, H>>;

/// How much one turn takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnLimits {
    pub(super) bytes: usize,
    pub(super) entries: usize,
}

/// Who waits for a write.
struct Waiting<S> {
    slot: SlotId,
    weight: u32,
    staged: S,
    /// So many of the turn's frames have to be durable first.
    frames: usize,
}

/// The one who writes.
pub(super) struct Flusher<F: FileSystem, I: Intake<F>, H: Head<F>> {
    /// Gone once the log is closed.
    head: Option<H>,
    intake: I,
    limits: TurnLimits,
    taken: VecDeque<Queued<I::Entry, Job<I, H>>>,
    frames: Vec<Append>,
    /// How many of the frames are durable.
    written: usize,
    waiting: VecDeque<Waiting<I::Staged>>,
    failure: Option<Arc<Error>>,
    /// How many entries the turn answers by its write.
    pub(super) entries: usize,
    pub(super) answers: Vec<(SlotId, Answered<I::Answer>)>,
    /// Permits of the queue's room to give back.
    pub(super) freed: usize,
    pub(super) fill: FillWait,
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Flusher<F, I, H> {
    pub(super) fn new(head: H, intake: I, limits: TurnLimits, fill: FillWait) -> Self {
        Self {
            head: Some(head),
            intake,
            limits,
            taken: VecDeque::new(),
            frames: Vec::new(),
            written: 0,
            waiting: VecDeque::new(),
            failure: None,
            entries: 0,
            answers: Vec::new(),
            freed: 0,
            fill,
        }
    }

    /// Frames are left of the turn before.
    pub(super) fn is_under_way(&self) -> bool {
        self.written < self.frames.len()
    }

    /// Takes from the queue what goes into a turn: a job alone, or entries up to the limits, at least
    /// one. Whether there was something.
    pub(super) fn take(&mut self, front: &mut FrontOf<F, I, H>) -> bool {
        let TurnLimits { bytes, entries } = self.limits;
        if let Some(all) = front.take_all(bytes, entries, std::mem::take(&mut self.taken)) {
            self.taken = all;
            return !self.taken.is_empty();
        }
        let mut taken = 0;
        while let Some(next) = front.queue.front() {
            let is_job = matches!(next.work, Work::Job(_));
            let full = is_job || self.taken.len() >= entries || taken + next.bytes > bytes;
            if full && !self.taken.is_empty() {
                break;
            }
            taken += next.bytes;
            self.taken.extend(front.pop());
            if is_job {
                break;
            }
        }
        !self.taken.is_empty()
    }

    /// Has the intake decide about what was taken.
    pub(super) fn stage(&mut self) {
        let is_job = matches!(self.taken.front(), Some(q) if matches!(q.work, Work::Job(_)));
        if is_job {
            return;
        }
        let Some(head) = &mut self.head else {
            for queued in self.taken.drain(..) {
                self.answers
                    .push((queued.slot, Answered::Append(I::closed())));
                self.freed += queued.weight as usize;
            }
            return;
        };
        self.intake.begin(head.writer_mut());
        let mut offset = head.writer().next_offset();
        for Queued {
            slot, weight, work, ..
        } in self.taken.drain(..)
        {
            let Work::Append(entry) = work else {
                continue;
            };
            let before = self.frames.len();
            match self.intake.stage(entry, offset, &mut self.frames) {
                Stage::Settle(staged) => self.waiting.push_back(Waiting {
                    slot,
                    weight,
                    staged,
                    frames: self.frames.len(),
                }),
                Stage::Answer(answer) => {
                    self.answers.push((slot, Answered::Append(answer)));
                    self.freed += weight as usize;
                }
            }
            for frame in self.frames.iter().skip(before) {
                offset = offset.saturating_add(u64::from(frame.record_count()));
            }
        }
    }

    /// The write and the sync of a turn, or its job.
    pub(super) async fn write(mut self: Box<Self>) -> Box<Self> {
        if let Some(Queued {
            slot, weight, work, ..
        }) = self.taken.pop_front()
        {
            if let Work::Job(job) = work {
                job(&mut self.head, &mut self.intake).await;
            }
            self.answers.push((slot, Answered::Job));
            self.freed += weight as usize;
            return self;
        }
        if let Some(head) = &mut self.head
            && let Some(rest @ [_, ..]) = self.frames.get(self.written..)
        {
            match head.append(rest).await {
                Ok(count) => self.written += count,
                Err(error) => self.failure = Some(Arc::new(error)),
            }
        }
        self
    }

    /// Settles what the write decided. Returns the frames that are of no more use, to be dropped when
    /// nobody waits for it.
    pub(super) fn settle(&mut self) -> Vec<Append> {
        let Some(head) = &mut self.head else {
            return Vec::new();
        };
        let outcome = Outcome {
            end_offset: head.writer().next_offset(),
            failure: self.failure.as_ref(),
        };
        self.entries = 0;
        while let Some(first) = self.waiting.front() {
            if first.frames > self.written && outcome.failure.is_none() {
                break;
            }
            let Some(next) = self.waiting.pop_front() else {
                break;
            };
            let answer = self.intake.settle(next.staged, outcome);
            self.answers.push((next.slot, Answered::Append(answer)));
            self.freed += next.weight as usize;
            self.entries += 1;
        }
        self.intake.end(head.writer_mut(), outcome);
        let over = self.failure.take().is_some() || self.written >= self.frames.len();
        if !over {
            return Vec::new();
        }
        self.written = 0;
        let capacity = self.frames.len();
        std::mem::replace(&mut self.frames, Vec::with_capacity(capacity))
    }
}
