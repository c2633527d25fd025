//! Durable writes past the page cache.
//!
//! A buffered write copies into the cache, and the sync then looks for what it put there. A direct one
//! hands the disk the caller's memory (open(2), `O_DIRECT`). It takes whole pages of the file only, so
//! the page that a write begins in is written again with what it held: bytes that are durable get the
//! value that they have.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};

use super::buffers::Buffer;
use super::calls;

/// What direct access is aligned to, in memory and in the file: no device asks for more.
pub(super) const PAGE: usize = 4096;

/// How many descriptors are kept for direct access: that many files at least are written to without opening
/// one first, and a process with tens of thousands of idle ones keeps no more.
const MAX_OPEN: usize = 512;

/// The descriptors that are open.
static OPEN: Mutex<Ring> = Mutex::new(Ring::new(MAX_OPEN));

/// A file's second descriptor, for direct access, and what its last page holds.
#[derive(Debug, Default)]
pub(super) struct Direct(Arc<Slot>);

#[derive(Debug, Default)]
struct Slot {
    access: Mutex<Access>,
    /// Whether it was used since the last time that one was looked for that is not.
    is_used: AtomicBool,
}

#[derive(Debug, Default)]
struct Access {
    descriptor: Descriptor,
    last: LastPage,
}

#[derive(Debug, Default)]
enum Descriptor {
    /// To be opened at the next need.
    #[default]
    Closed,
    Open(Arc<OwnedFd>),
    /// There is no direct access.
    Refused,
}

/// Files with an open descriptor. Where there are too many, one goes that was not used lately.
struct Ring {
    slots: VecDeque<Weak<Slot>>,
    most: usize,
}

/// What is known of the page that the next direct write begins in, as far as nothing else was written
/// since: most begin in the one that the last ended with.
#[derive(Debug, Default)]
struct LastPage {
    start: u64,
    bytes: Vec<u8>,
}

impl Ring {
    const fn new(most: usize) -> Self {
        Self {
            slots: VecDeque::new(),
            most,
        }
    }

    /// Takes in one that is open now. Where all others are in use, there is one too many for a while.
    fn admit(&mut self, slot: &Arc<Slot>) {
        if self.slots.len() >= self.most {
            self.slots.retain(|slot| slot.strong_count() > 0);
        }
        // The first time round, those that were used are passed over.
        for _ in 0..2 * self.slots.len() {
            if self.slots.len() < self.most {
                break;
            }
            let next = self.slots.pop_front();
            if let Some(slot) = next.and_then(|slot| slot.upgrade())
                && !slot.let_go()
            {
                self.slots.push_back(Arc::downgrade(&slot));
            }
        }
        self.slots.push_back(Arc::downgrade(slot));
    }
}

impl Slot {
    /// Closes the descriptor, unless it was used lately; whether it did.
    fn let_go(&self) -> bool {
        if self.is_used.swap(false, Ordering::Relaxed) {
            return false;
        }
        // One that is held is in use.
        let Ok(mut access) = self.access.try_lock() else {
            return false;
        };
        *access = Access::default();
        true
    }
}

impl Access {
    /// The descriptor. Opened through the first, not by path: the file may have been renamed.
    fn descriptor(&mut self, slot: &Arc<Slot>, file: impl AsFd) -> Option<Arc<OwnedFd>> {
        slot.is_used.store(true, Ordering::Relaxed);
        if matches!(self.descriptor, Descriptor::Closed) {
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
            self.descriptor = match calls::open(&path, OFlags::RDWR | OFlags::DIRECT) {
                Ok(fd) => {
                    lock(&OPEN).admit(slot);
                    Descriptor::Open(Arc::new(fd))
                }
                // There may be one for the next write.
                Err(e) if is_out_of_handles(&e) => Descriptor::Closed,
                // `tmpfs` and others refuse direct access, and `/proc` may not be mounted.
                Err(_) => Descriptor::Refused,
            };
        }
        match &self.descriptor {
            Descriptor::Open(fd) => Some(Arc::clone(fd)),
            Descriptor::Closed | Descriptor::Refused => None,
        }
    }
}

fn is_out_of_handles(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Direct {
    /// The descriptor, as long as it is held.
    pub(super) fn fd(&self, file: impl AsFd) -> Option<Arc<OwnedFd>> {
        lock(&self.0.access).descriptor(&self.0, file)
    }

    /// Something else writes to the file.
    pub(super) fn forget(&self) {
        lock(&self.0.access).last.bytes = Vec::new();
    }

    /// Opens the descriptor for a write at `offset`, in a page that holds `before` in front of that.
    pub(super) fn expect(&self, file: impl AsFd, offset: u64, before: &[u8]) {
        let mut access = lock(&self.0.access);
        if access.descriptor(&self.0, file).is_some()
            && let Some(start) = offset.checked_sub(before.len() as u64)
        {
            let bytes = before.to_vec();
            access.last = LastPage { start, bytes };
        }
    }

    /// Writes all of `data`, which has to end where a page does; `false` if it doesn't, or the file
    /// takes no direct write: nothing was done then that a buffered write does not do again.
    pub(super) fn write(&self, file: impl AsFd, offset: u64, data: &[Bytes]) -> io::Result<bool> {
        let len: usize = data.iter().map(Bytes::len).sum();
        let before = usize::try_from(offset % PAGE as u64).unwrap_or(0);
        if len == 0 || !(before + len).is_multiple_of(PAGE) {
            return Ok(false);
        }
        let mut access = lock(&self.0.access);
        let Some(fd) = access.descriptor(&self.0, &file) else {
            return Ok(false);
        };
        let last = &mut access.last;
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
        if !write_pages(&fd, start, pages)? {
            return Ok(false);
        }
        if let Some((_, page)) = pages.split_last_chunk::<PAGE>() {
            last.bytes.extend_from_slice(page);
            last.start = start + (before + len - PAGE) as u64;
        }
        Ok(true)
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
        let direct = Direct::default();
        *lock(&direct.0.access) = Access {
            descriptor: Descriptor::Open(Arc::new(refuses)),
            last: LastPage {
                start: 0,
                bytes: vec![1; PAGE],
            },
        };
        let failed = direct.write(&file, 100, &of(2, PAGE - 100));
        assert!(failed.is_err());
        assert!(lock(&direct.0.access).last.bytes.is_empty());
    }

    /// The first write to a file that others had made ready opened it anew and read its first page back:
    /// who crossed to the next segment of a log waited for that.
    #[test]
    fn a_write_that_is_expected_finds_its_page_known() {
        let dir = tempfile::tempdir().unwrap();
        let file = calls::open(&dir.path().join("a"), OFlags::RDWR | OFlags::CREATE).unwrap();
        let expecting = |offset: u64, before: usize| {
            let direct = Direct::default();
            // Not what the file holds, so that it shows whether that was read.
            direct.expect(&file, offset, &vec![2; before]);
            direct
        };
        let takes_it = Direct::default().fd(&file).is_some();
        // Where it is told of another place, or of more or less than what is in front of it, nothing is known.
        for (offset, before, byte) in [
            (PAGE + 100, 100, 2),
            (100, 100, 1),
            (PAGE + 100, 99, 1),
            (100, 200, 1),
        ] {
            calls::write(&file, 0, &of(1, 2 * PAGE)).unwrap();
            let direct = expecting(offset as u64, before);
            assert_eq!(is_open(&direct), takes_it);
            let written = direct.write(&file, PAGE as u64 + 100, &of(3, PAGE - 100));
            assert_eq!(written.unwrap(), takes_it);
            if takes_it {
                let content = calls::read(&file, 0, usize::MAX).unwrap();
                let parts = [vec![1; PAGE], vec![byte; 100], vec![3; PAGE - 100]];
                assert_eq!(content, parts.concat());
            }
        }
    }

    fn is_open(direct: &Direct) -> bool {
        matches!(lock(&direct.0.access).descriptor, Descriptor::Open(_))
    }

    /// A file's, with a descriptor that was not used yet.
    fn open() -> Direct {
        let null = calls::open(std::path::Path::new("/dev/null"), OFlags::RDWR).unwrap();
        let direct = Direct::default();
        lock(&direct.0.access).descriptor = Descriptor::Open(Arc::new(null));
        direct
    }

    /// Ten thousand partitions that were written to once held twenty thousand descriptors: more than a
    /// process has by default on many systems.
    #[test]
    fn no_more_stay_open_than_that_and_what_is_used_stays() {
        let mut ring = Ring::new(3);
        let busy = open();
        ring.admit(&busy.0);
        let mut idle = Vec::new();
        for _ in 0..10 {
            busy.0.is_used.store(true, Ordering::Relaxed);
            idle.push(open());
            ring.admit(&idle.last().unwrap().0);
            assert!(is_open(&busy));
            assert!(idle.iter().filter(|direct| is_open(direct)).count() <= 2);
        }
        // One whose file was closed makes room before any that is open.
        drop(idle.pop());
        let next = open();
        ring.admit(&next.0);
        assert!(is_open(&busy) && is_open(&next) && is_open(&idle[8]));
        // Nothing is closed that is being written through.
        let held: Vec<_> = [&busy, &next, &idle[8]]
            .into_iter()
            .map(|direct| direct.0.access.lock().unwrap())
            .collect();
        ring.admit(&open().0);
        drop(held);
        assert!(is_open(&busy) && is_open(&next) && is_open(&idle[8]));
    }

    /// Were those in use only passed over, there would be one more with each file that is opened, for as
    /// long as all of them are written to in between.
    #[test]
    fn where_all_were_used_lately_the_first_of_them_goes() {
        let mut ring = Ring::new(3);
        let mut busy: Vec<Direct> = Vec::new();
        for _ in 0..10 {
            for direct in &busy {
                direct.0.is_used.store(true, Ordering::Relaxed);
            }
            busy.push(open());
            ring.admit(&busy.last().unwrap().0);
            let newest_first: Vec<_> = busy.iter().rev().map(is_open).collect();
            assert!(newest_first.iter().take(3).all(|is_open| *is_open));
            assert!(newest_first.iter().skip(3).all(|is_open| !is_open));
        }
    }

    /// The bound is of no use to a descriptor that it is not told of.
    #[test]
    fn a_descriptor_that_is_opened_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let file = calls::open(&dir.path().join("a"), OFlags::RDWR | OFlags::CREATE).unwrap();
        let direct = Direct::default();
        let takes_it = direct.fd(&file).is_some();
        let slot = Arc::downgrade(&direct.0);
        let is_counted = lock(&OPEN).slots.iter().any(|known| known.ptr_eq(&slot));
        assert_eq!(is_counted, takes_it);
    }

    #[test]
    fn a_file_whose_descriptor_was_closed_is_written_to_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let file = calls::open(&dir.path().join("a"), OFlags::RDWR | OFlags::CREATE).unwrap();
        let direct = Direct::default();
        let takes_it = direct.fd(&file).is_some();
        for (byte, offset) in [(1, 0), (2, 100_u16), (3, 200)] {
            let data = of(byte, PAGE - usize::from(offset));
            let written = direct.write(&file, offset.into(), &data);
            assert_eq!(written.unwrap(), takes_it);
            assert!(!direct.0.let_go(), "it was used");
            assert!(direct.0.let_go() && !is_open(&direct));
        }
        if takes_it {
            let content = calls::read(&file, 0, usize::MAX).unwrap();
            let parts = [vec![1; 100], vec![2; 100], vec![3; PAGE - 200]];
            assert_eq!(content, parts.concat());
        }
    }
}
