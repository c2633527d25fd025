//! Single steps of a future: giving way once, and stopping it half-way.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// Gives way once, on any executor.
pub(crate) async fn yield_once() {
    struct Yield(bool);
    impl Future for Yield {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if self.0 {
                return Poll::Ready(());
            }
            self.0 = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
    Yield(false).await;
}

/// Polls a future up to `polls` times, whenever it asks to be polled, and drops it if it is still
/// not done; then the answer is `None`.
///
/// With `polls` counting up from 0 until the answer is `Some`, a test drops the future at every
/// await at which it gave way:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// for polls in 0.. {
///     let fs = sq_sim::InMemoryFileSystem::new(1);
///     let made = sq_sim::poll_n_then_drop(async {
///         use sq_sim::FileSystem;
///         fs.create_dir_all("/a".as_ref()).await
///     }, polls).await;
///     // ... look at what a create that was dropped there left behind ...
///     if made.is_some() {
///         break;
///     }
/// }
/// # });
/// ```
pub async fn poll_n_then_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
