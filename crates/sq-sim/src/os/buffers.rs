//! Memory for large reads and for direct writes, used again.
//!
//! A new buffer of megabytes is memory that the system gives page by page as it is written, cleared
//! before, and takes back when it is freed. For a reader of the page cache that came to as much as all
//! the rest: a catching-up consumer took a third more of the broker's time per byte.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Reads below this have memory of their own; an allocator has that at hand.
pub(super) const LEAST_LEN: usize = 128 << 10;

/// Bytes that are kept for those who come next, at most.
const MAX_KEPT_LEN: usize = 32 << 20;

/// How many times as long as what is asked for a buffer may be that is taken for it.
const MAX_WASTE: usize = 2;

/// What nobody holds at the moment, the longest unused first.
static KEPT: Mutex<Kept> = Mutex::new(Kept {
    buffers: VecDeque::new(),
    len: 0,
});

struct Kept {
    buffers: VecDeque<Vec<u8>>,
    /// Their lengths together, in bytes.
    len: usize,
}

/// A buffer to read into or to write from. Dropped, also as [`Bytes`], it is kept for the next one.
#[derive(Debug)]
pub(super) struct Buffer {
    /// All of it has a value, of zeros or of whoever had it before.
    bytes: Vec<u8>,
    /// How much of it is what was read.
    filled: usize,
}

impl Buffer {
    /// A buffer with room for `len` bytes.
    pub(super) fn with_room(len: usize) -> io::Result<Self> {
        let kept = lock(&KEPT).take(len);
        let bytes = match kept {
            Some(bytes) => bytes,
            None => zeros(len)?,
        };
        Ok(Self { bytes, filled: 0 })
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The first `filled` bytes.
    pub(super) fn into_bytes(mut self, filled: usize) -> Bytes {
        self.filled = filled.min(self.bytes.len());
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // What had to make room is freed once the lock is.
        let _freed = lock(&KEPT).keep(std::mem::take(&mut self.bytes), MAX_KEPT_LEN);
    }
}

impl Kept {
    /// The shortest buffer that `len` bytes go into and do not waste, of several the one used last: some of
    /// it may be in the processor's caches still.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let fits = |buffer: &Vec<u8>| (len..=len.saturating_mul(MAX_WASTE)).contains(&buffer.len());
        let candidates = self.buffers.iter().enumerate().rev();
        let (at, _) = candidates
            .filter(|(_, buffer)| fits(buffer))
            .min_by_key(|(_, buffer)| buffer.len())?;
        let buffer = self.buffers.remove(at)?;
        self.len -= buffer.len();
        Some(buffer)
    }

    /// Keeps a buffer and gives back those that are then too many, the longest unused first.
    fn keep(&mut self, buffer: Vec<u8>, most: usize) -> Vec<Vec<u8>> {
        self.len += buffer.len();
        self.buffers.push_back(buffer);
        let mut freed = Vec::new();
        while self.len > most
            && let Some(oldest) = self.buffers.pop_front()
        {
            self.len -= oldest.len();
            freed.push(oldest);
        }
        freed
    }
}

fn zeros(len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

fn lock(kept: &Mutex<Kept>) -> std::sync::MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Buffer, Kept, LEAST_LEN};
    use std::collections::VecDeque;

    fn kept(lengths: &[usize]) -> Kept {
        let buffers: VecDeque<_> = lengths.iter().map(|len| vec![0; *len]).collect();
        let len = lengths.iter().sum();
        Kept { buffers, len }
    }

    #[test]
    fn the_shortest_buffer_that_fits_is_taken() {
        let mut kept = kept(&[80, 30, 40]);
        assert_eq!(kept.take(30).unwrap().len(), 30);
        assert_eq!(kept.take(30).unwrap().len(), 40);
        assert!(kept.take(30).is_none(), "80 would waste 50");
        assert!(kept.take(90).is_none());
        assert_eq!(kept.len, 80);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_goes_first() {
        let mut kept = kept(&[]);
        let mut keep = |len| -> Vec<usize> {
            let freed = kept.keep(vec![0; len], 10);
            freed.iter().map(Vec::len).collect()
        };
        assert!(keep(4).is_empty());
        assert!(keep(5).is_empty());
        assert_eq!(keep(6), [4, 5]);
        assert_eq!(
            keep(11),
            [6, 11],
            "one that is too large is not kept at all"
        );
        assert_eq!(kept.len, 0);
    }

    #[test]
    fn a_buffer_that_was_used_shows_nothing_of_that() {
        let mut first = Buffer::with_room(LEAST_LEN).unwrap();
        first.room().fill(7);
        let all = first.into_bytes(LEAST_LEN);
        assert!(all.iter().all(|byte| *byte == 7) && all.len() == LEAST_LEN);
        drop(all);
        let mut second = Buffer::with_room(LEAST_LEN).unwrap();
        second.room()[..2].copy_from_slice(b"ab");
        assert_eq!(second.into_bytes(2), "ab");
        assert!(
            Buffer::with_room(LEAST_LEN)
                .unwrap()
                .into_bytes(0)
                .is_empty()
        );
    }
}
