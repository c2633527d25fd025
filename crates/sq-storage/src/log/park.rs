//! Polling a future on a thread of its own.

use std::cell::OnceCell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static WAKER: OnceCell<Waker> = const { OnceCell::new() };
}

/// Blocks the thread until the future is done.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    block_on_begun(|_| (future, false))
}

/// Blocks the thread until the future is done that `begin` makes. Where `begin` says that it waits, it
/// will wake the waker that it was given, and is not polled before.
pub(super) fn block_on_begun<F: Future>(begin: impl FnOnce(&Waker) -> (F, bool)) -> F::Output {
    with_waker(|waker| {
        let (future, waits) = begin(waker);
        let mut future = pin!(future);
        let mut context = Context::from_waker(waker);
        if waits {
            std::thread::park();
        }
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            std::thread::park();
        }
    })
}

/// A waker of this thread. It is made once.
fn with_waker<T>(work: impl FnOnce(&Waker) -> T) -> T {
    let new = || Waker::from(Arc::new(Unpark(std::thread::current())));
    // While the thread ends, its locals may be gone already.
    let waker = WAKER.try_with(|waker| waker.get_or_init(new).clone());
    work(&waker.unwrap_or_else(|_| new()))
}
