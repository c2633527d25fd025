//! Durable writes past the page cache.
//!
//! A buffered write copies into the cache, and the sync then looks for what it put there. A direct one
//! hands the disk the caller's memory (open(2), `O_DIRECT`). It takes whole pages of the file only, so
//! the page that a write begins in is written again with what it held: bytes that are durable get the
//! value that they have.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};

use super::buffers::Buffer;
use super::calls;

/// What direct access is aligned to, in memory and in the file: no device asks for more.
pub(super) const PAGE: usize = 4096;

/// A file's second descriptor, for direct access, and what its last page holds.
#[derive(Debug, Default)]
pub(super) struct Direct {
    /// Opened at the first need; `None` where there is no direct access.
    fd: OnceLock<Option<OwnedFd>>,
    last: Mutex<LastPage>,
}

/// The page that the last direct write ended with, as far as nothing else was written since.
#[derive(Debug, Default)]
struct LastPage {
    start: u64,
    bytes: Vec<u8>,
}

impl Direct {
    /// The descriptor. Opened through the first, not by path: the file may have been renamed.
    pub(super) fn fd(&self, file: impl AsFd) -> Option<&OwnedFd> {
        let open = || {
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
            // `tmpfs` and others refuse direct access, and `/proc` may not be mounted.
            calls::open(&path, OFlags::RDWR | OFlags::DIRECT).ok()
        };
        self.fd.get_or_init(open).as_ref()
    }

    /// Something else writes to the file.
    pub(super) fn forget(&self) {
        self.last().bytes = Vec::new();
    }

    /// Writes all of `data`, which has to end where a page does; `false` if it doesn't, or the file
    /// takes no direct write: nothing was done then that a buffered write does not do again.
    pub(super) fn write(&self, file: impl AsFd, offset: u64, data: &[Bytes]) -> io::Result<bool> {
        let len: usize = data.iter().map(Bytes::len).sum();
        let before = usize::try_from(offset % PAGE as u64).unwrap_or(0);
        if len == 0 || !(before + len).is_multiple_of(PAGE) {
            self.forget();
            return Ok(false);
        }
        let Some(fd) = self.fd(&file) else {
            return Ok(false);
        };
        let mut last = self.last();
        let mut buffer = Buffer::with_room((before + len + PAGE).next_power_of_two())?;
        let room = buffer.room();
        let skipped = room.as_ptr().align_offset(PAGE);
        let room = room.get_mut(skipped..).unwrap_or_default();
        let pages = room.get_mut(..before + len).unwrap_or_default();
        let start = offset - before as u64;
        if let Some(head) = pages.get_mut(..before) {
            last.read(&file, start, head)?;
        }
        let mut rest = pages.get_mut(before..).unwrap_or_default();
        for part in data {
            let (to, behind) = rest.split_at_mut_checked(part.len()).unwrap_or_default();
            to.copy_from_slice(part);
            rest = behind;
        }
        // Until it is known what the page holds.
        last.bytes.clear();
        if !write_pages(fd, start, pages)? {
            return Ok(false);
        }
        if let Some((_, page)) = pages.split_last_chunk::<PAGE>() {
            last.bytes.extend_from_slice(page);
            last.start = start + (before + len - PAGE) as u64;
        }
        Ok(true)
    }

    fn last(&self) -> std::sync::MutexGuard<'_, LastPage> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LastPage {
    /// The first bytes of a page of the file.
    fn read(&self, file: impl AsFd, start: u64, head: &mut [u8]) -> io::Result<()> {
        if head.is_empty() {
            return Ok(());
        }
        match self.bytes.get(..head.len()) {
            Some(known) if self.start == start => head.copy_from_slice(known),
            _ => {
                let known = calls::read(file, start, head.len())?;
                let (there, missing) = head.split_at_mut_checked(known.len()).unwrap_or_default();
                there.copy_from_slice(&known);
                // The file ends in this page.
                missing.fill(0);
            }
        }
        Ok(())
    }
}

/// Writes whole pages; `false` if the file system takes no such write.
fn write_pages(fd: &OwnedFd, mut start: u64, mut pages: &[u8]) -> io::Result<bool> {
    while !pages.is_empty() {
        let written = match retry_on_intr(|| rustix::io::pwrite(fd, pages, start)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        // Behind a short write, the page that it ended in is written again.
        let whole = written - written % PAGE;
        if whole == 0 {
            return Ok(false);
        }
        pages = pages.get(whole..).unwrap_or_default();
        start += whole as u64;
    }
    Ok(true)
}
