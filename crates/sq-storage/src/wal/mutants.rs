//! Recovery, and what it relies on, without one of its guards: for tests that show that they would notice.

use std::cell::Cell;

/// A guard of recovery, or of the writer for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A segment begins where the one before it ends.
    Continuity,
    /// A segment ends where its last good frame does, however long the file is.
    LastFrame,
    /// A file with something behind its last good frame takes no further append.
    Tail,
    /// A frame that is found by search carries the segment's id.
    SegmentId,
    /// A recovery point counts for the segment that it is of.
    PointsSegment,
    /// A recovery point says only what is durable.
    PointsSync,
    /// No segment is gone on from while something in it is acknowledged and not durable.
    SwitchSync,
    /// The write that follows a refused one is synced.
    RefusalSync,
}

thread_local! {
    static LACKING: Cell<Option<Guard>> = const { Cell::new(None) };
}

/// Does something on this thread while recovery lacks a guard.
pub fn without<T>(guard: Guard, work: impl FnOnce() -> T) -> T {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            LACKING.set(None);
        }
    }
    let _restore = Restore;
    LACKING.set(Some(guard));
    work()
}

pub(super) fn lacks(guard: Guard) -> bool {
    LACKING.get() == Some(guard)
}
