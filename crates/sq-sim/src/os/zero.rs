//! Zeroing a range past the page cache.
//!
//! A buffered fill of a large file lets dirty pages pile up, and the flush that writes them holds
//! up every other sync of the disk; direct writes do not (open(2), `O_DIRECT`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use rustix::io::{Errno, retry_on_intr};

use super::calls;
use super::direct::{self, Direct};

const PAGE: u64 = direct::PAGE as u64;

/// How many bytes one write zeroes. Larger ones would hold up a foreground sync for longer.
const PIECE: usize = 256 * 1024;

#[repr(align(4096))]
struct Zeros([u8; PIECE]);

static ZEROS: Zeros = Zeros([0; PIECE]);

/// Overwrites a range with zeros: whole pages past the cache where the file system takes that, the
/// ragged edges, and all of it elsewhere, through the cache.
pub(super) fn zero_range(fd: impl AsFd, direct: &Direct, offset: u64, len: u64) -> io::Result<()> {
    let end = offset.checked_add(len).ok_or(io::ErrorKind::FileTooLarge)?;
    let start = offset.checked_next_multiple_of(PAGE).unwrap_or(end);
    if start >= end - end % PAGE {
        return zero_buffered(fd, offset, end);
    }
    zero_around(&fd, direct.fd(&fd).as_deref(), offset, end)
}

fn zero_around(fd: impl AsFd, direct: Option<&OwnedFd>, offset: u64, end: u64) -> io::Result<()> {
    let Some(direct) = direct else {
        return zero_buffered(fd, offset, end);
    };
    let (start, stop) = (offset.next_multiple_of(PAGE), end - end % PAGE);
    zero_buffered(&fd, offset, start)?;
    let reached = zero_direct(direct, start, stop)?;
    zero_buffered(&fd, reached, end)
}

/// Zeroes whole pages, as far as the file system takes direct writes, and says how far it got.
fn zero_direct(direct: &OwnedFd, start: u64, end: u64) -> io::Result<u64> {
    let mut position = start;
    while position < end && position.is_multiple_of(PAGE) {
        let piece = piece(end - position);
        match retry_on_intr(|| rustix::io::pwrite(direct, piece, position)) {
            Ok(0) | Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
            Ok(written) => position += written as u64,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(position)
}

fn zero_buffered(fd: impl AsFd, start: u64, end: u64) -> io::Result<()> {
    let mut position = start;
    while position < end {
        let piece = Bytes::from_static(piece(end - position));
        let len = piece.len() as u64;
        calls::write(&fd, position, &[piece])?;
        position += len;
    }
    Ok(())
}

fn piece(wanted: u64) -> &'static [u8] {
    let len = usize::try_from(wanted).unwrap_or(PIECE).min(PIECE);
    ZEROS.0.get(..len).unwrap_or(&ZEROS.0)
}

#[cfg(test)]
mod tests {
    use rustix::fs::OFlags;

    use super::*;

    /// A direct write that the kernel refuses half-way leaves the rest to the cache.
    #[test]
    fn falls_back_where_direct_writes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let fd = calls::open(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
        calls::write(&fd, 0, &[Bytes::from(vec![7; 20_000])]).unwrap();
        zero_around(&fd, None, 100, 19_000).unwrap();
        let bytes = calls::read(&fd, 0, usize::MAX).unwrap();
        assert_eq!(bytes.iter().position(|&b| b == 0), Some(100));
        assert!(bytes[100..19_000].iter().all(|&b| b == 0));
        assert!(bytes[19_000..].iter().all(|&b| b == 7));
    }

    /// Direct writes were once opened by path: a file renamed since it was opened got none, and a
    /// new file of the old name would have got the zeros.
    #[test]
    fn a_renamed_file_is_still_the_one_that_is_zeroed() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("a"), dir.path().join("b"));
        let fd = calls::open(&old, OFlags::RDWR | OFlags::CREATE).unwrap();
        calls::write(&fd, 0, &[Bytes::from(vec![7; 8192])]).unwrap();
        calls::rename(&old, &new).unwrap();
        let other = calls::open(&old, OFlags::RDWR | OFlags::CREATE).unwrap();
        zero_range(&fd, &Direct::default(), 0, 8192).unwrap();
        assert_eq!(calls::read(&fd, 0, usize::MAX).unwrap(), vec![0; 8192]);
        assert_eq!(calls::len(&other).unwrap(), 0);
    }
}
