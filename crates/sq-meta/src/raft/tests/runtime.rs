//! What openraft runs on in the tests of this module: tokio, in time that passes when nothing else is
//! to be done, with every draw and every turn of its tasks following from a seed.
//!
//! | what could differ from run to run | what is done about it |
//! |---|---|
//! | which task runs next | tokio's scheduler of one thread takes them in turn; by the seed, a task gives its turn away |
//! | when a timer fires | time is tokio's, paused; it moves when no task can run |
//! | the election timeout, the only thing that openraft draws | [`AsyncRuntime::thread_rng`] |
//! | `tokio::select!`, which polls its branches in an order of its own | can't be seeded; see [`Sleep`] |
//! | `tokio::sync::watch`, which wakes several who wait in an order of its own | can't be seeded; one waits at a time |
//!
//! On a thread without a seed it is tokio as it is.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use openraft::{AsyncRuntime, TokioRuntime};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_core::RngCore;
use sq_sim::{Clock, SystemClock};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A task gives away one turn in so many.
const TURNS_PER_LOST_ONE: u64 = 3;

thread_local! {
    static DRAWS: RefCell<Option<Draws>> = const { RefCell::new(None) };
    /// Of the task that is polled.
    static FIRED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// What is drawn from a seed.
#[derive(Debug)]
pub(super) struct Draws(StdRng);

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.random()
    }

    /// A number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0.random_range(0..n)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).unwrap()]
    }
}

/// Runs a future to its end, and drops all that it spawned: a process.
pub(super) fn run<T>(seed: u64, future: impl Future<Output = T>) -> T {
    DRAWS.set(Some(Draws::new(seed)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let output = runtime.block_on(future);
    drop(runtime);
    DRAWS.set(None);
    output
}

/// Spawns a task whose turns follow from the seed.
pub(super) fn spawn<T>(future: T) -> JoinHandle<T::Output>
where
    T: Future + Send + 'static,
    T::Output: Send + 'static,
{
    tokio::spawn(Scattered {
        fired: Arc::default(),
        future: Box::pin(future),
    })
}

/// A task that sometimes lets all others that can run have their turn before its own.
struct Scattered<F> {
    /// One of its timers has fired since it was polled.
    fired: Arc<AtomicBool>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scattered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let fired = self.fired.swap(false, Ordering::Relaxed);
        let waits = DRAWS.with_borrow_mut(|draws| {
            let draws = draws.as_mut();
            draws.is_some_and(|draws| draws.one_in(TURNS_PER_LOST_ONE))
        });
        if waits && !fired {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        FIRED.set(Some(Arc::clone(&self.fired)));
        let polled = self.future.as_mut().poll(cx);
        FIRED.set(None);
        polled
    }
}

/// A sleep whose task keeps its turn when it is over.
///
/// openraft waits for a sleep or a message, whichever is first, and takes either when both are there. A
/// sleep is over when nothing could run, so no message was there; as the task runs before any that is
/// woken by those that woke with it, none is there when it looks.
pub(crate) struct Sleep(Pin<Box<tokio::time::Sleep>>);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let fired = FIRED.with_borrow(Clone::clone);
        let Some(fired) = fired else {
            return self.0.as_mut().poll(cx);
        };
        let waker = Waker::from(Arc::new(Firing {
            fired,
            waker: cx.waker().clone(),
        }));
        self.0.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

struct Firing {
    fired: Arc<AtomicBool>,
    waker: Waker,
}

impl Wake for Firing {
    fn wake(self: Arc<Self>) {
        self.fired.store(true, Ordering::Relaxed);
        self.waker.wake_by_ref();
    }
}

/// The seed's numbers; where there is no seed, always the same ones.
pub(crate) struct SeededRng;

impl RngCore for SeededRng {
    fn next_u32(&mut self) -> u32 {
        u32::try_from(self.next_u64() >> 32).unwrap()
    }

    fn next_u64(&mut self) -> u64 {
        DRAWS.with_borrow_mut(|draws| draws.as_mut().map_or(0, Draws::next))
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        rand_core::impls::fill_bytes_via_next(self, bytes);
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

/// openraft's runtime.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SeededRuntime;

impl AsyncRuntime for SeededRuntime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: Send + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + Send> = tokio::time::Timeout<T>;
    type ThreadLocalRng = SeededRng;
    type OneshotSender<T: Send> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;
    type OneshotReceiver<T: Send> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        Self::sleep_until(SystemClock.now() + duration)
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        Sleep(Box::pin(tokio::time::sleep_until(deadline)))
    }

    fn timeout<R, F: Future<Output = R> + Send>(
        duration: Duration,
        future: F,
    ) -> tokio::time::Timeout<F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(
        deadline: Instant,
        future: F,
    ) -> tokio::time::Timeout<F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(error)
    }

    fn thread_rng() -> SeededRng {
        SeededRng
    }

    fn oneshot<T: Send>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}

#[test]
fn a_wait_that_is_over_comes_before_what_is_sent_because_of_the_time() {
    // As in openraft: a timer that wakes the core, which sends to a replication that waits.
    let wait = Duration::from_millis(500);
    for seed in 0..100 {
        let is_over = run(seed, async {
            let (to_core, mut core) = mpsc::unbounded_channel();
            let (to_replication, mut replication) = mpsc::unbounded_channel();
            spawn(async move {
                while let Some(()) = core.recv().await {
                    // It may have taken the other branch, and be gone.
                    let _ = to_replication.send(());
                }
            });
            spawn(async move {
                SeededRuntime::sleep(wait).await;
                to_core.send(()).unwrap();
            });
            let waits = spawn(async move {
                tokio::select! {
                    () = SeededRuntime::sleep(wait) => true,
                    _ = replication.recv() => false,
                }
            });
            waits.await.unwrap()
        });
        assert!(is_over, "seed {seed}");
    }
}
