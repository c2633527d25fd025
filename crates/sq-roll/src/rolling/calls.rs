//! Calls under way, of which some may be answered before others.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use crate::Ticket;

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Turn,
    Place,
    File,
    Seal,
    Abandon,
    Tail,
}

/// A call that was made.
pub(super) type Call<A> = Pin<Box<dyn Future<Output = A> + Send>>;

struct Made<A> {
    kind: Kind,
    ticket: Ticket,
    call: Call<A>,
}

/// Calls under way.
pub(super) struct Calls<A> {
    calls: Vec<Made<A>>,
}

impl<A> Calls<A> {
    pub(super) fn new() -> Self {
        Self { calls: Vec::new() }
    }

    pub(super) fn begin(&mut self, kind: Kind, ticket: Ticket, call: Call<A>) {
        self.calls.push(Made { kind, ticket, call });
    }

    pub(super) fn count(&self, kind: Kind, ticket: Ticket) -> usize {
        let same = |call: &&Made<A>| call.kind == kind && call.ticket == ticket;
        self.calls.iter().filter(same).count()
    }

    /// Drops the calls of these kinds about `ticket`.
    pub(super) fn drop_all(&mut self, kinds: &[Kind], ticket: Ticket) {
        self.calls
            .retain(|call| call.ticket != ticket || !kinds.contains(&call.kind));
    }

    /// Drops the call about `ticket` that was made first.
    pub(super) fn drop_oldest(&mut self, kind: Kind, ticket: Ticket) {
        let same = |call: &Made<A>| call.kind == kind && call.ticket == ticket;
        if let Some(at) = self.calls.iter().position(same) {
            self.calls.remove(at);
        }
    }

    /// The next answer. Never, where no call is under way.
    pub(super) async fn next(&mut self) -> A {
        poll_fn(|context| {
            for at in 0..self.calls.len() {
                let Some(call) = self.calls.get_mut(at) else {
                    break;
                };
                if let Poll::Ready(answer) = call.call.as_mut().poll(context) {
                    self.calls.remove(at);
                    return Poll::Ready(answer);
                }
            }
            Poll::Pending
        })
        .await
    }
}
