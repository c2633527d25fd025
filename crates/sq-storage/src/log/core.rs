//! Taking turns: who writes next, and who is woken when.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use sq_sim::{Clock, FileSystem};
use tokio::sync::{Semaphore, watch};

use super::append::Append;
use super::executor::{Executor, Turns};
use super::flusher::{Flusher, FrontOf, Job};
use super::front::{Front, Phase, Queued, Work};
use super::head::Head;
use super::intake::Intake;
use super::slots::{Answered, SlotId};
use crate::wal::lock;

/// Half-way through a turn, or between two.
enum Driver<F: FileSystem, I: Intake<F>, H: Head<F>> {
    Idle(Box<Flusher<F, I, H>>),
    Turning(TurnFuture<F, I, H>),
    /// A turn panicked.
    Gone,
}

/// Whether frames are left of the last turn, which the next one writes.
fn is_under_way<F: FileSystem, I: Intake<F>, H: Head<F>>(driver: &Driver<F, I, H>) -> bool {
    matches!(driver, Driver::Idle(flusher) if flusher.is_under_way())
}

type TurnFuture<F, I, H> = Pin<Box<dyn Future<Output = Box<Flusher<F, I, H>>> + Send>>;

/// What the handles of a log share.
pub(super) struct Core<F: FileSystem, I: Intake<F>, H: Head<F>> {
    front: Mutex<FrontOf<F, I, H>>,
    /// How many entries the queue has, to look at without a lock.
    queued: AtomicUsize,
    /// Locked by the one that takes a turn, and by nobody else.
    driver: Mutex<Driver<F, I, H>>,
    room: Semaphore,
    closed: watch::Sender<bool>,
    executor: Executor,
    clock: Arc<dyn Clock>,
}

/// What an entry counts for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    /// Permits of the queue's room.
    pub(super) weight: u32,
    /// Bytes of a turn's limit.
    pub(super) bytes: usize,
}

/// What is left to do once the next turn may begin.
#[derive(Default)]
struct Afterwards {
    wakers: Vec<Waker>,
    /// Dropped last.
    garbage: Vec<Append>,
}

/// Ends the log if a turn panics: whoever waits for it must not wait for ever.
struct WreckOnPanic<'a, F: FileSystem, I: Intake<F>, H: Head<F>>(&'a Core<F, I, H>);

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Drop for WreckOnPanic<'_, F, I, H> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let wakers = lock(&self.0.front).wreck(I::closed);
            self.0.room.close();
            self.0.closed.send_replace(true);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Core<F, I, H> {
    pub(super) fn new(
        flusher: Flusher<F, I, H>,
        room: usize,
        executor: Executor,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            front: Mutex::new(Front::new()),
            queued: AtomicUsize::new(0),
            driver: Mutex::new(Driver::Idle(Box::new(flusher))),
            room: Semaphore::new(room),
            closed: watch::Sender::new(false),
            executor,
            clock,
        }
    }

    /// Queues what holds `weight` permits of room already. An answer that it is closed may be there
    /// at once.
    pub(super) fn push(self: &Arc<Self>, size: Size, work: Work<I::Entry, Job<I, H>>) -> SlotId {
        let mut front = lock(&self.front);
        let (slot, schedule) = self.queue(&mut front, size, work);
        drop(front);
        if schedule {
            self.executor.schedule(self);
        }
        slot
    }

    /// [`push`](Self::push) for a caller that is going to wait for the answer, and takes a turn now where
    /// nobody else does. Whether it is to wait until it is woken.
    pub(super) fn push_and_lead(
        self: &Arc<Self>,
        size: Size,
        work: Work<I::Entry, Job<I, H>>,
        waker: &Waker,
    ) -> (SlotId, bool) {
        let mut front = lock(&self.front);
        let (slot, schedule) = self.queue(&mut front, size, work);
        front.slots.wait(slot, waker);
        let waits = front.slots.waker(slot).is_some();
        let lead = waits && self.executor.is_inline() && front.lead();
        drop(front);
        if schedule {
            self.executor.schedule(self);
        }
        if lead {
            // What has come of it, the next poll tells.
            let _ = self.take_turn(Some(slot), true);
        }
        (slot, waits && !lead)
    }

    /// Queues work; whether the executor is to be told.
    fn queue(
        &self,
        front: &mut FrontOf<F, I, H>,
        size: Size,
        work: Work<I::Entry, Job<I, H>>,
    ) -> (SlotId, bool) {
        let slot = front.slots.take_place();
        if front.closed {
            let answer = match work {
                Work::Append(_) => Answered::Append(I::closed()),
                Work::Job(_) => Answered::Closed,
            };
            let _ = front.slots.answer(slot, answer);
            return (slot, false);
        }
        let Size { weight, bytes } = size;
        front.push(Queued {
            slot,
            weight,
            bytes,
            work,
        });
        self.queued.store(front.queue.len(), Ordering::Relaxed);
        let schedule = front.phase == Phase::Idle && !self.executor.is_inline();
        if schedule {
            front.phase = Phase::Scheduled;
        }
        (slot, schedule)
    }

    /// Takes room in the queue if there is some.
    pub(super) fn try_room(&self, weight: u32) -> bool {
        match self.room.try_acquire_many(weight) {
            Ok(room) => {
                room.forget();
                true
            }
            Err(tokio::sync::TryAcquireError::NoPermits) => false,
            // The answer is given in place of the room.
            Err(tokio::sync::TryAcquireError::Closed) => true,
        }
    }

    /// Takes room in the queue, in the order of the calls; takes turns meanwhile where nobody else
    /// does.
    pub(super) async fn room(self: &Arc<Self>, weight: u32) {
        if self.try_room(weight) {
            return;
        }
        let mut acquire = std::pin::pin!(self.room.acquire_many(weight));
        std::future::poll_fn(|context| {
            loop {
                if let Poll::Ready(room) = acquire.as_mut().poll(context) {
                    if let Ok(room) = room {
                        room.forget();
                    }
                    return Poll::Ready(());
                }
                if self.executor.is_inline() {
                    let mut front = lock(&self.front);
                    front.wait_for_room(context.waker());
                    let lead = front.lead();
                    drop(front);
                    if lead && self.take_turn(None, false).is_ready() {
                        continue;
                    }
                }
                return Poll::Pending;
            }
        })
        .await;
    }

    /// The answer, once it is there. Where nobody takes the turns, this does.
    pub(super) fn poll_answer(
        self: &Arc<Self>,
        slot: SlotId,
        context: &Context<'_>,
        may_wait: bool,
    ) -> Poll<Answered<I::Answer>> {
        loop {
            let mut front = lock(&self.front);
            if let Some(answer) = front.slots.fetch(slot) {
                return Poll::Ready(answer);
            }
            front.slots.wait(slot, context.waker());
            let lead = self.executor.is_inline() && front.lead();
            drop(front);
            if !lead || self.take_turn(Some(slot), may_wait).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Nobody waits for this answer any more.
    pub(super) fn abandon(&self, slot: SlotId) {
        let mut front = lock(&self.front);
        let pending = front.slots.abandon(slot);
        let running = matches!(front.phase, Phase::Running { .. });
        let successors = if pending && self.executor.is_inline() && !running {
            // It may have been its task's turn.
            front.successors()
        } else {
            Vec::new()
        };
        drop(front);
        successors.into_iter().for_each(Waker::wake);
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Refuses what is queued from now on.
    pub(super) fn refuse_more(&self) {
        lock(&self.front).closed = true;
        self.closed.send_replace(true);
    }

    /// Turns true when the log is closed.
    pub(super) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// Goes on with the turn under way, or takes one. The caller leads; it does no more afterwards.
    fn take_turn(self: &Arc<Self>, own: Option<SlotId>, may_wait: bool) -> Poll<()> {
        let wreck = WreckOnPanic(self);
        let mut afterwards = Afterwards::default();
        let (polled, successors) = {
            let mut driver = lock(&self.driver);
            let polled = self.poll_driver(&mut driver, may_wait, &mut afterwards);
            let mut front = lock(&self.front);
            let woken = front.phase == (Phase::Running { again: true });
            let pending = polled.is_pending();
            front.phase = if pending || is_under_way(&driver) {
                Phase::Suspended
            } else {
                Phase::Idle
            };
            let goes_on = own.is_some_and(|own| front.slots.waker(own).is_some());
            let successors = match (pending, goes_on) {
                (true, _) if woken => front.everybody(),
                (true, _) | (false, true) => Vec::new(),
                (false, false) => front.successors(),
            };
            (polled, successors)
        };
        successors.into_iter().for_each(Waker::wake);
        afterwards.wakers.into_iter().for_each(Waker::wake);
        drop(wreck);
        polled
    }

    fn poll_driver(
        self: &Arc<Self>,
        driver: &mut Driver<F, I, H>,
        may_wait: bool,
        afterwards: &mut Afterwards,
    ) -> Poll<()> {
        let (mut turning, is_noted) = match std::mem::replace(driver, Driver::Gone) {
            Driver::Gone => return Poll::Ready(()),
            Driver::Turning(turning) => (turning, false),
            Driver::Idle(mut flusher) => {
                if !flusher.is_under_way() {
                    if may_wait {
                        self.wait_to_fill(&mut flusher);
                    }
                    let mut front = lock(&self.front);
                    let some = flusher.take(&mut front);
                    self.queued.store(front.queue.len(), Ordering::Relaxed);
                    drop(front);
                    if !some {
                        *driver = Driver::Idle(flusher);
                        return Poll::Ready(());
                    }
                    flusher.stage();
                }
                (Box::pin(flusher.write()) as TurnFuture<F, I, H>, may_wait)
            }
        };
        let waker = Waker::from(Arc::clone(self));
        let mut flusher = match turning.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(flusher) => flusher,
            Poll::Pending => {
                *driver = Driver::Turning(turning);
                return Poll::Pending;
            }
        };
        afterwards.garbage = flusher.settle();
        let mut front = lock(&self.front);
        for (slot, answer) in flusher.answers.drain(..) {
            let waker = front.slots.answer(slot, answer);
            afterwards.wakers.extend(waker);
        }
        let queued = front.queue.len();
        drop(front);
        self.room.add_permits(std::mem::take(&mut flusher.freed));
        if is_noted {
            flusher.fill.note(flusher.entries, queued, self.clock.now());
        }
        *driver = Driver::Idle(flusher);
        Poll::Ready(())
    }

    /// Waits a moment for more entries, if that pays.
    fn wait_to_fill(&self, flusher: &mut Flusher<F, I, H>) {
        let queued = || self.queued.load(Ordering::Relaxed);
        let Some(target) = flusher.fill.target(queued()) else {
            return;
        };
        let began = self.clock.now();
        while queued() < target && self.clock.now() - began < flusher.fill.most() {
            // Others need the processor in order to come.
            std::thread::yield_now();
        }
    }
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Wake for Core<F, I, H> {
    /// The file system has something for the turn that is under way.
    fn wake(self: Arc<Self>) {
        let mut front = lock(&self.front);
        let wakers = match front.phase {
            Phase::Running { .. } => {
                front.phase = Phase::Running { again: true };
                return;
            }
            Phase::Scheduled => return,
            Phase::Idle | Phase::Suspended if self.executor.is_inline() => front.everybody(),
            Phase::Idle | Phase::Suspended => {
                front.phase = Phase::Scheduled;
                Vec::new()
            }
        };
        drop(front);
        if self.executor.is_inline() {
            wakers.into_iter().for_each(Waker::wake);
        } else {
            self.executor.schedule(&self);
        }
    }
}

impl<F: FileSystem, I: Intake<F>, H: Head<F>> Turns for Core<F, I, H> {
    fn take_one(self: Arc<Self>) -> bool {
        lock(&self.front).phase = Phase::Running { again: false };
        let wreck = WreckOnPanic(&*self);
        let mut afterwards = Afterwards::default();
        let again = {
            let mut driver = lock(&self.driver);
            let polled = self.poll_driver(&mut driver, false, &mut afterwards);
            let mut front = lock(&self.front);
            let woken = front.phase == (Phase::Running { again: true });
            let more = is_under_way(&driver) || !front.queue.is_empty();
            let more = polled.is_ready() && more;
            front.phase = match (woken || more, polled) {
                (true, _) => Phase::Scheduled,
                (false, Poll::Pending) => Phase::Suspended,
                (false, Poll::Ready(())) => Phase::Idle,
            };
            woken || more
        };
        afterwards.wakers.into_iter().for_each(Waker::wake);
        drop(wreck);
        again
    }
}
