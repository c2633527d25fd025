//! What is done for a log's rolls behind its appends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sq_sim::FileSystem;
use sq_storage::{LogReader, Prepared, Preparer};

use super::calls::{Call, Calls, Kind};
use super::shared::{DriverState, Shared, Work};
use crate::node::{Turn, lock};
use crate::{
    Event, PrepareFailure, Request, Seal, SegmentId, SourceError, SuccessorSource, Ticket,
};

/// How many calls about the same thing are under way at most. One may never be answered, so the oldest
/// is given up for a further one; one that is only slow has time for so many repeats.
const CALLS_AT_ONCE: usize = 8;

/// Does what a [`RollingWriter`](super::RollingWriter) wants done behind its appends: prepares
/// successors, and tells the source of what became of them. [`run`](Self::run) it beside the log; while
/// nobody does, no successor is ever ready.
///
/// It sleeps while there is nothing to do: an idle log costs no time, no timer and no open file.
pub struct Driver<F: FileSystem, S: SuccessorSource> {
    shared: Arc<Shared<F>>,
    source: Arc<S>,
    preparer: Preparer<F>,
    reader: LogReader<F>,
    calls: Calls<Answer<F>>,
    pending: Option<Pending<F>>,
}

/// A successor that is being prepared.
struct Pending<F: FileSystem> {
    request: Request,
    asked_at: Duration,
    turn: Option<Turn>,
    is_placed: bool,
    file: Option<Prepared<F>>,
    /// A try failed, and the next is not made yet.
    is_paused: bool,
}

enum Answer<F: FileSystem> {
    Turn(Ticket, Turn),
    Placed(Ticket, Result<(), SourceError>),
    File(Ticket, sq_storage::Result<Prepared<F>>),
    Sealed(Ticket, Result<(), SourceError>),
    Abandoned(Ticket, Result<(), SourceError>),
    Seen(SegmentId),
}

impl<F: FileSystem, S: SuccessorSource> Driver<F, S> {
    pub(super) fn new(
        shared: Arc<Shared<F>>,
        source: Arc<S>,
        preparer: Preparer<F>,
        reader: LogReader<F>,
    ) -> Self {
        Self {
            shared,
            source,
            preparer,
            reader,
            calls: Calls::new(),
            pending: None,
        }
    }

    /// Does what there is to do, until the log is closed.
    pub async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        lock(&shared.core).driver = DriverState::Running;
        let mut work = VecDeque::new();
        while let Some(pause) = shared.take_work(&mut work) {
            for work in work.drain(..) {
                self.begin(work);
            }
            tokio::select! {
                biased;
                answer = self.calls.next() => self.take(answer),
                () = shared.news() => {}
                () = sleep(&shared, pause) => {}
            }
        }
    }

    fn begin(&mut self, work: Work) {
        match work {
            Work::Prepare(request) => self.prepare(request),
            Work::Seal(seal) => self.seal(seal),
            Work::Abandon(successor) => self.abandon(successor),
            Work::Discard(segment) => {
                if let Some(pending) = self.pending.take_if(|p| p.is_of(segment)) {
                    self.forget(pending.request.successor);
                }
            }
            Work::Watch(ticket, offset) => {
                let reader = self.reader.clone();
                let watch = async move {
                    reader.wait_for(offset).await;
                    Answer::Seen(ticket.segment)
                };
                self.calls.begin(Kind::Tail, ticket, Box::pin(watch));
            }
        }
    }

    fn prepare(&mut self, request: Request) {
        let ticket = request.successor;
        if let Some(other) = self.pending.take_if(|p| p.request.successor != ticket) {
            self.forget(other.request.successor);
        }
        let asked_at = self.shared.node.now();
        let pending = self.pending.get_or_insert_with(|| Pending {
            request,
            asked_at,
            turn: None,
            is_placed: false,
            file: None,
            is_paused: false,
        });
        pending.is_paused = false;
        if pending.turn.is_some() {
            self.go_on_preparing();
        } else if self.calls.count(Kind::Turn, ticket) == 0 {
            let turn = self.shared.node.clone().turn(self.shared.key, self.due());
            let turn = async move { Answer::Turn(ticket, turn.await) };
            self.calls.begin(Kind::Turn, ticket, Box::pin(turn));
        }
    }

    /// When the segment will be at its cap.
    fn due(&self) -> Duration {
        let core = lock(&self.shared.core);
        let (bytes, age) = (core.roll.active_bytes(), core.roll.active_age());
        let now = self.shared.node.now();
        core.slack.due(now, core.roll.limits(), bytes, age)
    }

    /// Places the successor and makes its file, at the same time.
    fn go_on_preparing(&mut self) {
        let Some(pending) = &self.pending else { return };
        let (request, ticket) = (pending.request, pending.request.successor);
        let (is_placed, has_file) = (pending.is_placed, pending.file.is_some());
        if !is_placed {
            let source = Arc::clone(&self.source);
            let place = async move { Answer::Placed(ticket, source.prepare(request).await) };
            self.repeat(Kind::Place, ticket, Box::pin(place));
        }
        if !has_file && self.calls.count(Kind::File, ticket) == 0 {
            let preparation = self.preparer.preparation(Some(ticket.segment.0));
            let preparation = preparation.paced_by(self.shared.clone());
            let file = async move { Answer::File(ticket, preparation.run().await) };
            self.calls.begin(Kind::File, ticket, Box::pin(file));
        }
    }

    fn seal(&mut self, seal: Seal) {
        let (source, shared) = (Arc::clone(&self.source), Arc::clone(&self.shared));
        let call = async move {
            // Whoever waits for the record that crossed is woken with this, and goes first.
            tokio::task::yield_now().await;
            let done = until_done(&shared, || source.sealed(seal)).await;
            Answer::Sealed(seal.segment, done)
        };
        self.repeat(Kind::Seal, seal.segment, Box::pin(call));
    }

    fn abandon(&mut self, successor: Ticket) {
        // Or else its placement might be committed behind this.
        self.forget(successor);
        let (source, shared) = (Arc::clone(&self.source), Arc::clone(&self.shared));
        let call = async move {
            let done = until_done(&shared, || source.abandon(successor)).await;
            Answer::Abandoned(successor, done)
        };
        self.repeat(Kind::Abandon, successor, Box::pin(call));
    }

    /// Makes a call, beside those about the same thing that were not answered yet.
    fn repeat(&mut self, kind: Kind, ticket: Ticket, call: Call<Answer<F>>) {
        if self.calls.count(kind, ticket) >= CALLS_AT_ONCE {
            self.calls.drop_oldest(kind, ticket);
        }
        self.calls.begin(kind, ticket, call);
    }

    fn forget(&mut self, successor: Ticket) {
        let kinds = [Kind::Turn, Kind::Place, Kind::File];
        self.calls.drop_all(&kinds, successor);
        self.pending.take_if(|p| p.request.successor == successor);
    }

    fn take(&mut self, answer: Answer<F>) {
        match answer {
            Answer::Turn(ticket, turn) => {
                if let Some(pending) = self.pending_for(ticket) {
                    pending.turn = Some(turn);
                    self.go_on_preparing();
                }
            }
            Answer::Placed(ticket, Ok(())) => {
                if let Some(pending) = self.pending_for(ticket) {
                    pending.is_placed = true;
                    self.calls.drop_all(&[Kind::Place], ticket);
                    self.finish();
                }
            }
            Answer::Placed(ticket, Err(error)) => self.not_prepared(ticket, error),
            Answer::File(ticket, Ok(file)) => {
                if let Some(pending) = self.pending_for(ticket) {
                    pending.file = Some(file);
                    pending.turn.take_if(|_| pending.is_paused);
                    self.finish();
                }
            }
            Answer::File(ticket, Err(error)) => {
                self.not_prepared(ticket, SourceError::Retry(Box::new(error)));
            }
            Answer::Sealed(segment, done) => {
                self.calls.drop_all(&[Kind::Seal], segment);
                self.tell_done(Event::Sealed { segment }, done);
            }
            Answer::Abandoned(successor, done) => {
                self.calls.drop_all(&[Kind::Abandon], successor);
                self.tell_done(Event::Abandoned { successor }, done);
            }
            Answer::Seen(segment) => {
                let now = self.shared.node.now();
                lock(&self.shared.core).history.seen(now, segment);
            }
        }
    }

    fn pending_for(&mut self, ticket: Ticket) -> Option<&mut Pending<F>> {
        let pending = self.pending.as_mut();
        pending.filter(|pending| pending.request.successor == ticket)
    }

    /// The successor is ready, if all of it is.
    fn finish(&mut self) {
        let is_whole = |p: &mut Pending<F>| p.is_placed && p.file.is_some();
        let Some(pending) = self.pending.take_if(is_whole) else {
            return;
        };
        let node = &self.shared.node;
        node.prepared_in(node.now().saturating_sub(pending.asked_at));
        let successor = pending.request.successor;
        let mut core = lock(&self.shared.core);
        // Another that is not wanted any more is removed by being dropped.
        if core.roll.successor() == Some(successor.segment) {
            core.prepared = pending.file;
            self.shared
                .tell_between(&mut core, Event::Ready { successor });
        }
    }

    fn not_prepared(&mut self, ticket: Ticket, error: SourceError) {
        if self.pending_for(ticket).is_none() {
            return;
        }
        tracing::warn!(successor = %ticket, %error, "no successor prepared");
        let failure = match error {
            SourceError::Retry(_) => PrepareFailure::Retry,
            SourceError::Final(_) => PrepareFailure::Final,
            stopped => return self.stop(&stopped),
        };
        let files = self.calls.count(Kind::File, ticket);
        if let Some(pending) = self.pending_for(ticket) {
            pending.is_paused = true;
            // What is under way on the disk keeps its turn.
            pending.turn.take_if(|_| files == 0);
        }
        self.tell(Event::PrepareFailed {
            successor: ticket,
            failure,
        });
    }

    fn tell_done(&self, event: Event, done: Result<(), SourceError>) {
        match done {
            Ok(()) => self.tell(event),
            Err(stopped) => self.stop(&stopped),
        }
    }

    /// The source says that this leader is none any more.
    fn stop(&self, error: &SourceError) {
        match error {
            SourceError::Fenced(epoch) => self.tell(Event::Fenced { epoch: *epoch }),
            SourceError::Deleted => self.tell(Event::Deleted),
            SourceError::Retry(_) | SourceError::Final(_) => {}
        }
    }

    fn tell(&self, event: Event) {
        self.shared
            .tell_between(&mut lock(&self.shared.core), event);
    }
}

impl<F: FileSystem> Pending<F> {
    fn is_of(&self, segment: SegmentId) -> bool {
        self.request.successor.segment == segment
    }
}

impl<F: FileSystem, S: SuccessorSource> Drop for Driver<F, S> {
    fn drop(&mut self) {
        self.calls = Calls::new();
        self.pending = None;
        lock(&self.shared.core).driver = DriverState::Gone;
        self.shared.relief.notify_waiters();
    }
}

impl<F: FileSystem, S: SuccessorSource> std::fmt::Debug for Driver<F, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Makes a call again and again until it succeeds, or will never be wanted any more.
async fn until_done<F, T>(
    shared: &Shared<F>,
    mut call: impl FnMut() -> T,
) -> Result<(), SourceError>
where
    F: FileSystem,
    T: Future<Output = Result<(), SourceError>>,
{
    let patience = shared.settings.patience;
    let mut pause = patience.pause;
    loop {
        match call().await {
            Err(error @ (SourceError::Retry(_) | SourceError::Final(_))) => {
                tracing::warn!(%error, "the metadata do not know of a roll yet");
                shared.node.clock().sleep(pause).await;
                pause = pause.saturating_mul(2).min(patience.longest_pause);
            }
            done => return done,
        }
    }
}

async fn sleep<F: FileSystem>(shared: &Shared<F>, pause: Duration) {
    if pause == Duration::MAX {
        std::future::pending::<()>().await;
    }
    shared.node.clock().sleep(pause).await;
}
