//! Reading ahead for a consumer that catches up.
//!
//! Such a consumer asks for the next batches once it has taken apart the last ones, and in between the
//! broker would do nothing for it. So where an answer was filled from one partition, the broker reads
//! on from its end while the answer is sent, and the next fetch finds its batches read.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sq_sim::{Clock, FileSystem};
use sq_storage::{LogReader, StoredFrame};
use tokio::sync::oneshot;

use crate::budget::{Budget, Held};
use crate::meta::TopicId;

/// How long what was read is kept for a fetch that does not come.
const PATIENCE: Duration = Duration::from_secs(1);

/// An answer below this is not worth the effort, in bytes.
const LEAST_BYTES: usize = 128 << 10;

/// What is read ahead, and with which limit. A topic that takes the name of a deleted one has an id of
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) topic: TopicId,
    pub(super) partition: i32,
    pub(super) offset: u64,
    /// Bytes that the fetch has room for.
    pub(super) room: usize,
}

/// Frames, and the part of the fetch memory that they take.
type Ready = (Vec<StoredFrame>, Held);

/// What is read ahead for a connection: one place at most.
#[derive(Debug, Default)]
pub struct ReadAhead(Mutex<Option<(Place, oneshot::Sender<oneshot::Sender<Ready>>)>>);

impl ReadAhead {
    /// Whether a fetch that had `bytes` of its `room` filled will want more of the same at once.
    pub(super) fn is_worth_it(bytes: usize, room: usize) -> bool {
        bytes >= LEAST_BYTES && bytes >= room / 2
    }

    /// Begins to read at a place, and forgets what was read at another. Does nothing where memory is
    /// short.
    pub(super) fn begin<F: FileSystem>(
        &self,
        place: Place,
        reader: LogReader<F>,
        memory: &Budget,
        clock: Arc<dyn Clock>,
    ) {
        if memory.is_wanted() {
            return;
        }
        let Some(held) = memory.try_take(place.room) else {
            return;
        };
        let (call, called) = oneshot::channel();
        *self.lock() = Some((place, call));
        tokio::spawn(async move {
            // A fetch that meets the error itself reports it.
            let Ok(frames) = reader.read(place.offset, place.room).await else {
                return;
            };
            let called = async {
                // An error means that the connection is gone, or reads elsewhere.
                if let Ok(answer) = called.await {
                    let _ = answer.send((frames, held));
                }
            };
            tokio::select! {
                biased;
                () = called => {}
                () = clock.sleep(PATIENCE) => {}
            }
        });
    }

    /// What was read ahead at this place, if anything was.
    pub(super) async fn take(&self, place: Place) -> Option<Ready> {
        let call = {
            let mut ahead = self.lock();
            ahead.take_if(|(there, _)| *there == place)?.1
        };
        let (answer, answered) = oneshot::channel();
        call.send(answer).ok()?;
        answered.await.ok()
    }

    /// Forgets what none of these places is about.
    pub(super) fn forget_unless(&self, wanted: impl FnOnce(&Place) -> bool) {
        let mut ahead = self.lock();
        if ahead.as_ref().is_some_and(|(place, _)| !wanted(place)) {
            *ahead = None;
        }
    }

    fn lock(
        &self,
    ) -> std::sync::MutexGuard<'_, Option<(Place, oneshot::Sender<oneshot::Sender<Ready>>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
