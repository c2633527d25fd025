//! Reads, writes and syncs of a file, with the faults they meet and the space they take.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::changes::{Ino, Node};
use super::content;
use super::fault::{Effect, Errno};
use super::names::View;
use super::state::State;

/// The longest file there can be, in bytes. Files are not sparse here, and a position that was read
/// from damaged bytes must not take the memory of the machine.
const MAX_FILE_BYTES: u64 = 1 << 31;

fn end_of(offset: u64, len: u64) -> io::Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_FILE_BYTES => Ok(end),
        _ => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

impl State {
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.free_space = self.free_space.map(|free| free.saturating_add(bytes));
    }

    /// Takes space for a range of a file, as much of it as there is, and says where it ended.
    pub(super) fn take_space(&mut self, ino: Ino, start: u64, end: u64) -> io::Result<u64> {
        let Some(free) = self.free_space else {
            return Ok(end);
        };
        let file = self.file(ino)?;
        let mut left = free;
        let mut reached = start;
        for held in file
            .allocated
            .overlap(start..end)
            .into_iter()
            .chain(std::iter::once(end..end))
        {
            let missing = held.start - reached;
            if missing > left {
                reached += left;
                left = 0;
                break;
            }
            left -= missing;
            reached = held.end;
        }
        self.free_space = Some(left);
        Ok(reached)
    }

    /// Writes as much of `data` as a short write and the free space allow.
    pub(super) fn write(
        &mut self,
        ino: Ino,
        offset: u64,
        data: &[Bytes],
        fault: Option<Effect>,
    ) -> io::Result<()> {
        let total: u64 = data.iter().map(|d| d.len() as u64).sum();
        let (len, mut error) = match &fault {
            Some(Effect::ShortWrite { bytes, errno }) => (total.min(*bytes), Some(*errno)),
            _ => (total, None),
        };
        let end = end_of(offset, len)?;
        let reached = self.take_space(ino, offset, end)?;
        if reached < end {
            error = error.or(Some(Errno::NoSpace));
        }
        let file = self.file_mut(ino)?;
        let mut position = offset;
        let reaches_disk = !matches!(fault, Some(Effect::DropWrite | Effect::Misdirect { .. }));
        for part in data {
            let fits = part.slice(..part.len().min(content::at(reached - position)));
            if reaches_disk {
                file.write(position, &fits);
            } else {
                file.write_to_cache_only(position, &fits);
            }
            position += fits.len() as u64;
        }
        if let Some(Effect::Misdirect { path, offset }) = fault {
            let wrong = self.misdirected(ino, path);
            self.file_mut(wrong)?
                .write_to_disk_only(offset, &data.concat());
        }
        error.map_or(Ok(()), |errno| Err(errno.error()))
    }

    pub(super) fn read(
        &mut self,
        ino: Ino,
        offset: u64,
        len: usize,
        fault: Option<&Effect>,
    ) -> io::Result<Bytes> {
        let bytes = self.file(ino)?.read(offset, len);
        if fault != Some(&Effect::FlipBitOfRead) || bytes.is_empty() {
            return Ok(bytes);
        }
        let mut flipped = bytes.to_vec();
        let position = self.draws.within(0..=bytes.len() as u64 - 1);
        let bit = self.draws.within(0..=7);
        if let Some(byte) = flipped.get_mut(content::at(position)) {
            *byte ^= 1 << bit;
        }
        Ok(flipped.into())
    }

    fn misdirected(&self, ino: Ino, path: Option<PathBuf>) -> Ino {
        match path.map(|path| self.names.resolve(&path, View::Now)) {
            Some(Ok(Node::File(other))) => other,
            _ => ino,
        }
    }

    pub(super) fn allocate(&mut self, ino: Ino, offset: u64, len: u64) -> io::Result<()> {
        let end = end_of(offset, len)?;
        // fallocate takes all of the space or none.
        let free = self.free_space;
        if self.take_space(ino, offset, end)? < end {
            self.free_space = free;
            return Err(Errno::NoSpace.error());
        }
        let file = self.file_mut(ino)?;
        file.allocated.insert(offset..end);
        file.set_len(end.max(file.len()));
        Ok(())
    }

    pub(super) fn sync(&mut self, ino: Ino, fault: Option<&Effect>) -> io::Result<()> {
        let file = self.files.get_mut(&ino).ok_or(io::ErrorKind::NotFound)?;
        if let Some(Effect::FailSync(failure)) = fault {
            let freed = file.content.fail_sync(*failure, &mut self.draws);
            self.give_back(freed);
            return Err(Errno::Io.error());
        }
        if fault != Some(&Effect::IgnoreSync) {
            file.content.sync();
        }
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path, fault: Option<&Effect>) -> io::Result<()> {
        if fault != Some(&Effect::IgnoreSync) {
            self.names.sync_dir(path)?;
            self.forget_unreachable();
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, ino: Ino, len: u64) -> io::Result<()> {
        let freed = self.file_mut(ino)?.set_len(end_of(len, 0)?);
        self.give_back(freed);
        Ok(())
    }
}
