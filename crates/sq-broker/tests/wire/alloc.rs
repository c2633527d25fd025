//! An allocator that remembers the largest thing each thread asked it for.

#![expect(unsafe_code, reason = "an allocator can't be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Measured;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Measured = Measured;

/// What a thread asked for while it did something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The largest single allocation, in bytes.
    pub(crate) largest: usize,
    /// The most that was held at once, beyond what was held before, in bytes.
    pub(crate) peak: usize,
}

/// Does something and tells what memory it asked for.
pub(crate) fn measure<T>(work: impl FnOnce() -> T) -> (T, Asked) {
    LARGEST.set(0);
    LIVE.set(0);
    PEAK.set(0);
    let result = work();
    let peak = usize::try_from(PEAK.get()).unwrap_or(0);
    (
        result,
        Asked {
            largest: LARGEST.get(),
            peak,
        },
    )
}

fn note(taken: usize, given_back: usize) {
    // A thread that is being torn down has no counters any more, and needs none.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(taken)));
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + taken.cast_signed() - given_back.cast_signed());
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Measured {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: as our caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(0, layout.size());
        // SAFETY: as our caller promised.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size, layout.size());
        // SAFETY: as our caller promised.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[test]
fn the_measure_sees_what_is_asked_for() {
    let (_, asked) = measure(|| {
        let first = vec![0_u8; 100_000];
        let second = vec![0_u8; 50_000];
        first.len() + second.len()
    });
    assert_eq!(asked.largest, 100_000);
    assert!((150_000..160_000).contains(&asked.peak), "{asked:?}");
}
