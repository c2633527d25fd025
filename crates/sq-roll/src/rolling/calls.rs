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

type Future<A> = Pin<Box<dyn std::future::Future<Output = A> + Send>>;

struct Call<A> {
    kind: Kind,
    ticket: Ticket,
    future: Future<A>,
}

/// Calls under way.
pub(super) struct Calls<A> {
    calls: Vec<Call<A>>,
}

impl<A> Calls<A> {
    pub(super) fn new() -> Self {
        Self { calls: Vec::new() }
    }

    pub(super) fn begin(&mut self, kind: Kind, ticket: Ticket, future: Future<A>) {
        self.calls.push(Call {
            kind,
            ticket,
            future,
        });
    }

    pub(super) fn count(&self, kind: Kind, ticket: Ticket) -> usize {
        let same = |call: &&Call<A>| call.kind == kind && call.ticket == ticket;
        self.calls.iter().filter(same).count()
    }

    /// Drops the calls of these kinds about `ticket`.
    pub(super) fn drop_all(&mut self, kinds: &[Kind], ticket: Ticket) {
        self.calls
            .retain(|call| call.ticket != ticket || !kinds.contains(&call.kind));
    }

    /// The next answer. Never, where no call is under way.
    pub(super) async fn next(&mut self) -> A {
        poll_fn(|context| {
            for at in 0..self.calls.len() {
                let Some(call) = self.calls.get_mut(at) else {
                    break;
                };
                if let Poll::Ready(answer) = call.future.as_mut().poll(context) {
                    self.calls.swap_remove(at);
                    return Poll::Ready(answer);
                }
            }
            Poll::Pending
        })
        .await
    }
}
