//! What a connection owes: answers to come, in the order of the requests.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use sq_sim::FileSystem;

use super::reply::Owed;
use crate::budget::Held;

/// An answer to come, and what its request holds of the connection's memory until then.
pub(super) struct InFlight<F: FileSystem> {
    pub(super) owed: Owed<F>,
    pub(super) memory: Held,
}

/// The queue between the halves of a connection.
///
/// Both halves are one task's, so nobody is woken: whoever polls them polls both again for as long as
/// [`changes`](Self::changes) goes up. A channel would wake the task that is running, which has the
/// scheduler wake another thread for it.
pub(super) struct Owing<F: FileSystem> {
    most: usize,
    state: Mutex<State<F>>,
}

struct State<F: FileSystem> {
    queue: VecDeque<InFlight<F>>,
    is_over: bool,
    changes: u64,
}

impl<F: FileSystem> Owing<F> {
    /// A queue with room for `most`.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                is_over: false,
                changes: 0,
            }),
        }
    }

    /// Goes up with everything that lets one of the halves go on.
    pub(super) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Waits until there is room for one more.
    pub(super) async fn room(&self) {
        std::future::poll_fn(|_| {
            if self.lock().queue.len() < self.most {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Puts one at the end.
    pub(super) fn push(&self, owed: InFlight<F>) {
        let mut state = self.lock();
        state.queue.push_back(owed);
        state.changes += 1;
    }

    /// Says that there will be no more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.changes += 1;
    }

    /// Takes the first, once there is one; `None` once there will be no more.
    pub(super) async fn pop(&self) -> Option<InFlight<F>> {
        std::future::poll_fn(|_| {
            let mut state = self.lock();
            match state.queue.pop_front() {
                Some(owed) => {
                    state.changes += 1;
                    Poll::Ready(Some(owed))
                }
                None if state.is_over => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().queue.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
