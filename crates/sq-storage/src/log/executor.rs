//! Who takes the turns of a log.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use tokio::runtime::Handle;

use crate::wal::lock;

/// Who takes the turns of a [`Log`](super::Log): who writes and syncs.
#[derive(Clone, Debug, Default)]
pub enum Executor {
    /// Those who wait for an answer: the first takes a turn for all that wait, on its own thread. For
    /// embedders and tools. The quickest where the file system works on the thread it is called on
    /// ([`OsFileSystem::inline`](sq_sim::OsFileSystem::inline)); a caller must be ready to block then.
    #[default]
    Inline,
    /// Threads of their own. For a program of many partitions and asynchronous callers, which must
    /// not be blocked.
    Threads(AppendThreads),
    /// Tasks of a tokio runtime, one for each log that has something to do: for tests and
    /// simulations, and where the file system does not block.
    Runtime(Handle),
}

/// Something that takes turns.
pub(super) trait Turns: Send + Sync {
    /// Takes one turn. Whether there is something for another.
    fn take_one(self: Arc<Self>) -> bool;
}

impl Executor {
    pub(super) fn is_inline(&self) -> bool {
        matches!(self, Self::Inline)
    }

    pub(super) fn schedule<T: Turns + 'static>(&self, turns: &Arc<T>) {
        match self {
            Self::Inline => {}
            Self::Threads(threads) => threads.owner.ready.push(Arc::clone(turns) as _),
            Self::Runtime(runtime) => {
                let turns = Arc::clone(turns);
                // It ends by itself when there is nothing to do.
                drop(runtime.spawn(async move {
                    while Arc::clone(&turns).take_one() {
                        tokio::task::yield_now().await;
                    }
                }));
            }
        }
    }
}

/// A group of threads that take the turns of any number of logs.
///
/// Logs that have something to do stand in a line. A thread takes the first, takes one turn of it (one
/// write and one sync) and puts it at the line's end if it has more; so each log that is ready gets
/// the disk once before any gets it twice. A log has no more than one turn under way.
///
/// The threads end when the last clone and the last log that uses it are gone.
#[derive(Clone)]
pub struct AppendThreads {
    owner: Arc<Owner>,
}

/// Whoever can still hand something to the threads holds it.
struct Owner {
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Ready {
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    turns: VecDeque<Arc<dyn Turns>>,
    /// Threads that wait. The last is woken first: its caches are the warmest, and under little load
    /// the same thread takes every turn.
    idle: Vec<Thread>,
    over: bool,
}

impl AppendThreads {
    /// Starts `count` threads (at least one), named `sq-append-0` and so on.
    ///
    /// # Errors
    /// The system starts no more threads. Those that were started end.
    pub fn start(count: usize) -> io::Result<Self> {
        let ready = Arc::new(Ready::default());
        let owner = Arc::new(Owner {
            ready: Arc::clone(&ready),
        });
        for n in 0..count.max(1) {
            let ready = Arc::clone(&ready);
            std::thread::Builder::new()
                .name(format!("sq-append-{n}"))
                .spawn(move || ready.serve())?;
        }
        Ok(Self { owner })
    }
}

impl fmt::Debug for AppendThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AppendThreads")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut line = lock(&self.ready.line);
        line.over = true;
        line.idle.drain(..).for_each(|thread| thread.unpark());
    }
}

impl Ready {
    fn push(&self, turns: Arc<dyn Turns>) {
        let mut line = lock(&self.line);
        line.turns.push_back(turns);
        let wake = line.idle.pop();
        drop(line);
        if let Some(thread) = wake {
            thread.unpark();
        }
    }

    fn next(&self) -> Option<Arc<dyn Turns>> {
        let me = std::thread::current();
        loop {
            let mut line = lock(&self.line);
            // A thread may wake for no reason, and stand here still.
            line.idle.retain(|thread| thread.id() != me.id());
            if let Some(turns) = line.turns.pop_front() {
                return Some(turns);
            }
            if line.over {
                return None;
            }
            line.idle.push(me.clone());
            drop(line);
            std::thread::park();
        }
    }

    fn serve(&self) {
        while let Some(turns) = self.next() {
            let turn = || Arc::clone(&turns).take_one();
            // A turn that panics has ended its log and told everybody; the others go on.
            match catch_unwind(AssertUnwindSafe(turn)) {
                Ok(true) => self.push(turns),
                Ok(false) => {}
                Err(_) => tracing::error!("a turn of a log panicked; the log is closed"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    /// Has some turns to take, and tells of each.
    struct Busy {
        name: usize,
        left: AtomicUsize,
        told: mpsc::Sender<usize>,
    }

    impl Turns for Busy {
        fn take_one(self: Arc<Self>) -> bool {
            let left = self.left.fetch_sub(1, Ordering::Relaxed) - 1;
            // An error means that the test is over.
            let _ = self.told.send(self.name);
            left > 0
        }
    }

    #[test]
    fn each_that_is_ready_has_one_turn_before_any_has_two() {
        let ready = Ready::default();
        let (told, turns) = mpsc::channel();
        for name in 0..5 {
            let left = AtomicUsize::new(name + 1);
            let told = told.clone();
            ready.push(Arc::new(Busy { name, left, told }));
        }
        drop(told);
        lock(&ready.line).over = true;
        ready.serve();
        let order: Vec<_> = turns.iter().collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 1, 2, 3, 4, 2, 3, 4, 3, 4, 4]);
    }

    #[test]
    fn threads_end_with_their_last_user() {
        let threads = AppendThreads::start(2).unwrap();
        let ready = Arc::downgrade(&threads.owner.ready);
        let clone = threads.clone();
        drop(threads);
        let (told, turns) = mpsc::channel();
        let left = AtomicUsize::new(100);
        clone.owner.ready.push(Arc::new(Busy {
            name: 0,
            left,
            told,
        }));
        drop(clone);
        assert_eq!(turns.iter().count(), 100);
        while ready.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
