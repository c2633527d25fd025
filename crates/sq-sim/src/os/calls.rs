//! System calls, repeated where a signal interrupts them.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{self, AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::buffers::{self, Buffer};
use crate::fs::{DirEntry, EntryKind};

/// The most buffers that one call takes: `IOV_MAX` of Linux, see writev(2).
const MAX_BUFFERS: usize = 1024;

pub(super) fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(0o644);
    let fd = retry_on_intr(|| fs::open(path, flags | OFlags::CLOEXEC, mode))?;
    // A directory can be opened for reading, and would then fail at its first use.
    if !flags.contains(OFlags::DIRECTORY) && kind_of(&fs::fstat(&fd)?) == EntryKind::Directory {
        return Err(Errno::ISDIR.into());
    }
    Ok(fd)
}

pub(super) fn flock(fd: &OwnedFd, operation: FlockOperation) -> io::Result<()> {
    Ok(retry_on_intr(|| fs::flock(fd, operation))?)
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    Ok(retry_on_intr(|| fs::rename(from, to))?)
}

pub(super) fn unlink(path: &Path) -> io::Result<()> {
    Ok(retry_on_intr(|| fs::unlink(path))?)
}

pub(super) fn rmdir(path: &Path) -> io::Result<()> {
    Ok(retry_on_intr(|| fs::rmdir(path))?)
}

pub(super) fn create_dir_all(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    match retry_on_intr(|| fs::mkdir(path, Mode::from_raw_mode(0o755))) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => {
            let parent = path.parent().ok_or(io::ErrorKind::NotFound)?;
            create_dir_all(parent)?;
            match retry_on_intr(|| fs::mkdir(path, Mode::from_raw_mode(0o755))) {
                // Someone else made it in between.
                Err(Errno::EXIST) => Ok(()),
                made => Ok(made?),
            }
        }
        Err(Errno::EXIST)
            if kind_of(&retry_on_intr(|| fs::stat(path))?) == EntryKind::Directory =>
        {
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    let dir = open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    Ok(retry_on_intr(|| fs::fsync(&dir))?)
}

pub(super) fn list(path: &Path) -> io::Result<Vec<DirEntry>> {
    let dir = open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut entries = Vec::new();
    for entry in fs::Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match retry_on_intr(|| fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)) {
            // It was removed in between.
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        let kind = kind_of(&stat);
        let len = if kind == EntryKind::File {
            size_of(&stat)
        } else {
            0
        };
        entries.push(DirEntry {
            name: OsString::from(OsStr::from_bytes(name.to_bytes())),
            kind,
            len,
        });
    }
    entries.sort();
    Ok(entries)
}

fn kind_of(stat: &fs::Stat) -> EntryKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        _ => EntryKind::Other,
    }
}

fn size_of(stat: &fs::Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

pub(super) fn len(fd: impl AsFd) -> io::Result<u64> {
    Ok(size_of(&fs::fstat(fd)?))
}

/// Reads up to `wanted` bytes; takes memory for no more than the file holds there.
pub(super) fn read(fd: impl AsFd, offset: u64, wanted: usize) -> io::Result<Bytes> {
    let held = len(&fd)?.saturating_sub(offset);
    let wanted = wanted.min(usize::try_from(held).unwrap_or(usize::MAX));
    if wanted >= buffers::LEAST_LEN {
        let mut buffer = Buffer::with_room(wanted)?;
        let room = buffer.room().get_mut(..wanted).unwrap_or_default();
        let filled = fill(fd, offset, room)?;
        return Ok(buffer.into_bytes(filled));
    }
    let mut bytes = vec![0; wanted];
    let filled = fill(fd, offset, &mut bytes)?;
    bytes.truncate(filled);
    Ok(bytes.into())
}

/// Reads until `room` is full or the file ends, and returns how much that was.
fn fill(fd: impl AsFd, offset: u64, room: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let position = offset + filled as u64;
        // EINTR means that nothing was read, so it's safe to call again.
        match rustix::io::pread(&fd, rest, position) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(filled)
}

/// Writes all of `data`, going on after short writes.
pub(super) fn write(fd: impl AsFd, offset: u64, data: &[Bytes]) -> io::Result<()> {
    let mut position = offset;
    for group in data.chunks(MAX_BUFFERS) {
        let mut buffers: Vec<_> = group
            .iter()
            .filter(|b| !b.is_empty())
            .map(|b| IoSlice::new(b))
            .collect();
        let mut left = buffers.as_mut_slice();
        while !left.is_empty() {
            let written = retry_on_intr(|| rustix::io::pwritev(&fd, left, position))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            position = position.saturating_add(written as u64);
            IoSlice::advance_slices(&mut left, written);
        }
    }
    Ok(())
}

pub(super) fn fdatasync(fd: impl AsFd) -> io::Result<()> {
    Ok(retry_on_intr(|| fs::fdatasync(&fd))?)
}

pub(super) fn fsync(fd: impl AsFd) -> io::Result<()> {
    Ok(retry_on_intr(|| fs::fsync(&fd))?)
}

pub(super) fn set_len(fd: impl AsFd, len: u64) -> io::Result<()> {
    Ok(retry_on_intr(|| fs::ftruncate(&fd, len))?)
}

/// Reserves a range. Where the file system can't, the file only grows: space that runs out later
/// is then met by the write.
pub(super) fn allocate(fd: impl AsFd, offset: u64, wanted: u64) -> io::Result<()> {
    if wanted == 0 {
        return Ok(());
    }
    match retry_on_intr(|| fs::fallocate(&fd, FallocateFlags::empty(), offset, wanted)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let end = offset
                .checked_add(wanted)
                .ok_or(io::ErrorKind::FileTooLarge)?;
            if len(&fd)? < end {
                set_len(&fd, end)
            } else {
                Ok(())
            }
        }
        done => Ok(done?),
    }
}
