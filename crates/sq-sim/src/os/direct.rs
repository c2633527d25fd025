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
            return Ok(false);
        }
        let Some(fd) = self.fd(&file) else {
            return Ok(false);
        };
        let mut last = self.last();
        let mut buffer = Buffer::with_room((before + len + PAGE).next_power_of_two())?;
        let room = buffer.room();
        let skipped = room.as_ptr().align_offset(PAGE);
        let aligned = room.get_mut(skipped..).unwrap_or_default();
        let Some((pages, _)) = aligned.split_at_mut_checked(before + len) else {
            return Ok(false);
        };
        let start = offset - before as u64;
        let (head, mut rest) = pages.split_at_mut(before);
        last.read(&file, start, head)?;
        for part in data {
            let (to, behind) = rest.split_at_mut(part.len());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(byte: u8, len: usize) -> [Bytes; 1] {
        [Bytes::from(vec![byte; len])]
    }

    /// Were all writes buffered, nothing but the time would tell.
    #[test]
    fn what_ends_with_a_page_is_written_directly_whatever_the_file_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("a"), dir.path().join("b"));
        let file = calls::open(&old, OFlags::RDWR | OFlags::CREATE).unwrap();
        calls::rename(&old, &new).unwrap();
        let direct = Direct::default();
        let takes_it = direct.fd(&file).is_some();
        for (byte, offset) in [(1, 0), (2, 100_u16)] {
            let data = of(byte, PAGE - usize::from(offset));
            let written = direct.write(&file, offset.into(), &data);
            assert_eq!(written.unwrap(), takes_it);
        }
        for (offset, len) in [(0, 0), (0, 100), (100, PAGE)] {
            assert!(!direct.write(&file, offset, &of(3, len)).unwrap());
        }
        if takes_it {
            let content = calls::read(&file, 0, usize::MAX).unwrap();
            assert_eq!(content, [vec![1; 100], vec![2; PAGE - 100]].concat());
        }
    }

    #[test]
    fn what_a_failed_write_has_left_of_a_page_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = calls::open(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
        let refuses = calls::open(&path, OFlags::RDONLY).unwrap();
        let direct = Direct {
            fd: OnceLock::from(Some(refuses)),
            last: Mutex::new(LastPage {
                start: 0,
                bytes: vec![1; PAGE],
            }),
        };
        let failed = direct.write(&file, 100, &of(2, PAGE - 100));
        assert!(failed.is_err());
        assert!(direct.last().bytes.is_empty());
    }
}
