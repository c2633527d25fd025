//! A successor that is there before it is needed: `{id}.prepared`, an empty segment whose file is
//! created, allocated, zeroed as far as the first appends reach, and durable with its name.
//!
//! Where a purged segment left its file ([`spare`](super::spare)), that is renamed, and all of it counts as
//! zeroed; only its first page is written.
//!
//! It has an id and no base yet. The first frame that is written there binds its base, and only then
//! does the file get a segment's name.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sq_sim::{Clock, FileHandle, FileSystem, create_dir_durably};

use super::ahead::{PAGE_LEN, PIECE_LEN, whole_pages};
use super::config::SegmentIds;
use super::maintenance::{Backlog, Chore};
use super::removal::{TakenSpare, Trash};
use super::segment::SegmentHeader;
use super::state::LogState;
use super::zeroing::{Held, Zeroing};
use crate::error::{Error, Result};
use crate::reserve::Reserve;

/// A whole page is written, so that the first frame, which shares it, need not read it back: it is in the
/// cache then, or, where writes go past that, not in there, from where it would have to be removed.
const FIRST_PAGE_LEN: usize = 4096;

/// The name of the prepared file of segment `id`.
pub(super) fn file_name(id: u64) -> String {
    format!("{id:016x}.prepared")
}

/// The segment id in the name of a successor's file, `{id}.prepared`; `None` if it is not exactly such a name.
///
/// Such a file holds no record, but for a moment after the switch, and where a crash came before it was renamed.
pub fn prepared_id(name: &OsStr) -> Option<u64> {
    let id = name.to_str()?.strip_suffix(".prepared")?;
    let id = u64::from_str_radix(id, 16).ok()?;
    (name == OsStr::new(&file_name(id))).then_some(id)
}

/// How much of a successor is zeroed before it counts as ready, in bytes.
const ZEROED_WHEN_READY: u64 = 4 << 20;

/// What prepares the successors of one log's segments, for somebody who does not have the writer.
#[derive(Debug)]
pub struct Preparer<F: FileSystem> {
    pub(super) dir: PathBuf,
    pub(super) header: SegmentHeader,
    pub(super) length: u64,
    pub(super) zero_ahead_bytes: u64,
    pub(super) zeroing: Zeroing,
    pub(super) segment_ids: SegmentIds,
    pub(super) fs: Arc<F>,
    pub(super) append_fs: Arc<F>,
    pub(super) backlog: Arc<Backlog>,
    pub(super) state: Arc<LogState>,
    pub(super) reserve: Option<Reserve>,
    pub(super) trash: Arc<Trash>,
    pub(super) clock: Arc<dyn Clock>,
}

impl<F: FileSystem> Preparer<F> {
    /// What it takes to prepare a successor, whose id is drawn unless it is given. An id is used for
    /// one segment only, ever.
    pub fn preparation(&self, id: Option<u64>) -> Preparation<F> {
        let id = id.unwrap_or_else(|| self.segment_ids.draw());
        let is_segment = self.state.segments().iter().any(|s| s.id == id);
        let is_known = is_segment || self.trash.knows_id(id);
        let wanted = ZEROED_WHEN_READY.min(self.zero_ahead_bytes);
        let length = whole_pages(self.length);
        self.trash.want_spare(self.clock.now());
        Preparation {
            id,
            dir: self.dir.clone(),
            header: self.header,
            length,
            zeroed: self
                .zeroing
                .take(whole_pages(wanted).min(length), PAGE_LEN, false),
            fs: Arc::clone(&self.fs),
            append_fs: Arc::clone(&self.append_fs),
            backlog: Arc::clone(&self.backlog),
            reserve: self.reserve.clone(),
            is_taken: is_known || !self.backlog.claim(id),
            trash: Arc::clone(&self.trash),
            pace: None,
        }
    }
}

/// When a preparation lets appends have the disk.
#[async_trait]
pub trait Pace: fmt::Debug + Send + Sync {
    /// Awaited between two pieces of what is zeroed. A pause of 1 ms is enough, and none is right where
    /// somebody waits for the successor.
    async fn pause(&self);
}

/// What a successor is to be. [`run`](Self::run) makes it; it borrows nothing of the writer, so that
/// appends go on meanwhile.
#[derive(Debug)]
#[must_use = "nothing is prepared until it is run"]
pub struct Preparation<F: FileSystem> {
    pub(super) id: u64,
    pub(super) dir: PathBuf,
    pub(super) header: SegmentHeader,
    /// The bytes to allocate.
    pub(super) length: u64,
    /// What to zero of it, on the budget.
    pub(super) zeroed: Held,
    /// Through which the work is done.
    pub(super) fs: Arc<F>,
    /// Through which the writer writes.
    pub(super) append_fs: Arc<F>,
    pub(super) backlog: Arc<Backlog>,
    /// Room that is no successor's.
    pub(super) reserve: Option<Reserve>,
    /// Whether a segment has the id, or had it, or another preparation.
    pub(super) is_taken: bool,
    /// Where there may be a file to use again.
    pub(super) trash: Arc<Trash>,
    /// `None`: all of it in one go.
    pub(super) pace: Option<Arc<dyn Pace>>,
}

/// What a segment has to know of the file that was prepared for it.
pub(super) struct Origin {
    pub(super) path: PathBuf,
    pub(super) zeroed: Held,
    /// How much of the file was written when it was another segment's, if it was.
    pub(super) recycled: Option<u64>,
}

/// A prepared file, and how much of it was written when it was another segment's.
type Made = (Box<dyn FileHandle>, Option<u64>);

/// A successor that is ready. [`WalWriter::arm`](super::WalWriter::arm) gives it to the writer.
///
/// Dropped, it is removed with the next maintenance; what a crash leaves of it is removed by the
/// next opening.
#[derive(Debug)]
pub struct Prepared<F: FileSystem> {
    pub(super) id: u64,
    pub(super) file: Option<Box<dyn FileHandle>>,
    zeroed: Held,
    /// How much of the file was written when it was another segment's, if it was.
    recycled: Option<u64>,
    fs: Arc<F>,
    backlog: Arc<Backlog>,
    /// `None` once it is a segment, or removed.
    path: Option<PathBuf>,
}

impl<F: FileSystem> Preparation<F> {
    /// The id of the segment to be.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Zeroes in pieces of 256 KiB, with pauses. In one go, the 4 MiB that are zeroed hold up whatever is
    /// appended meanwhile for as long as the disk takes for them.
    pub fn paced_by(self, pace: Arc<dyn Pace>) -> Self {
        let pace = Some(pace);
        Self { pace, ..self }
    }

    /// Creates the file, allocates a segment's size, zeroes its beginning, and syncs file and name. Where a
    /// purged segment left its file, that is used again, and nothing of it is zeroed.
    ///
    /// After a failure nothing is left, or an empty file that no opening minds, and another
    /// preparation may have the same id. If the future is dropped, what is left is removed by
    /// maintenance, and the id is spent.
    ///
    /// # Errors
    /// [`Error::Io`]: the file system's, and `AlreadyExists` where the id is another's.
    /// [`Error::DiskFull`] while the reserve is given back.
    pub async fn run(mut self) -> Result<Prepared<F>> {
        let path = self.dir.join(file_name(self.id));
        if self.is_taken {
            let taken = io::ErrorKind::AlreadyExists.into();
            return Err(Error::io("create", path)(taken));
        }
        let mut prepared = Prepared {
            id: self.id,
            file: None,
            zeroed: self.zeroed.split(),
            recycled: None,
            fs: Arc::clone(&self.fs),
            backlog: Arc::clone(&self.backlog),
            path: Some(path.clone()),
        };
        let made = self.make_beside_reserve(&path, prepared.zeroed.bytes());
        match made.await {
            Ok((file, recycled)) => {
                prepared.file = Some(file);
                prepared.recycled = recycled;
                if recycled.is_some() {
                    prepared.zeroed.shrink_to(0);
                }
            }
            Err(e) => {
                // Best effort: what stays is removed with the next attempt, or the next opening.
                let _ = self.fs.remove_file(&path).await;
                prepared.path = None;
                self.backlog.release(self.id);
                return Err(e);
            }
        }
        Ok(prepared)
    }

    /// Makes the file where there is room beside the reserve: a successor must not use up what was given
    /// back for others.
    async fn make_beside_reserve(&self, path: &Path, zeroed: u64) -> Result<Made> {
        let Some(reserve) = &self.reserve else {
            return self.make(path, zeroed).await;
        };
        reserve.restore().await?;
        let made = self.make(path, zeroed).await;
        reserve.note_ahead(matches!(&made, Err(error) if error.is_out_of_space()));
        made
    }

    async fn make(&self, path: &Path, zeroed: u64) -> Result<Made> {
        let dir = &self.dir;
        let recycled = self.recycle(path).await;
        if recycled.is_none() {
            let made = create_dir_durably(&*self.fs, dir).await;
            made.map_err(Error::io("create", dir))?;
            let file = self.create(path).await.map_err(Error::io("create", path))?;
            self.fill(&*file, zeroed)
                .await
                .map_err(Error::io("prepare", path))?;
        }
        let synced = self.fs.sync_dir(dir).await;
        synced.map_err(Error::io("sync", dir))?;
        // Last, so that the writer's handle has seen no failed operation.
        let opened = self.append_fs.open(path).await;
        let opened = opened.map_err(Error::io("open", path))?;
        let header = if recycled.is_some() {
            self.header.recycled()
        } else {
            self.header
        };
        let header = Bytes::copy_from_slice(&header.encode());
        opened.expect_write_at(header.len() as u64, header).await;
        Ok((opened, recycled))
    }

    /// Makes the file of what a purged segment left, if there is one, and says how much of it was written.
    /// A failure costs nothing but that file.
    async fn recycle(&self, path: &Path) -> Option<u64> {
        let spare = self.trash.take_spare()?;
        match self.begin_again(&spare, path).await {
            Ok(written) => {
                spare.used();
                Some(written)
            }
            Err(error) => {
                let spare = spare.path().display();
                tracing::warn!(%spare, %error, "a file was not used again");
                None
            }
        }
    }

    /// The first page is durable under the old name already: the new one never stands for what the
    /// earlier segment had there.
    async fn begin_again(&self, spare: &TakenSpare<'_>, path: &Path) -> io::Result<u64> {
        let file = self.fs.open(spare.path()).await?;
        let written = file.len().await?;
        file.allocate(0, self.length).await?;
        self.write_first_page(&*file, self.header.recycled())
            .await?;
        self.fs.rename(spare.path(), path).await?;
        Ok(written)
    }

    /// Creates the file; one that an earlier attempt left is another file, which may still be written.
    async fn create(&self, path: &Path) -> io::Result<Box<dyn FileHandle>> {
        match self.fs.create_new(path).await {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.fs.remove_file(path).await?;
                self.fs.create_new(path).await
            }
            created => created,
        }
    }

    async fn fill(&self, file: &dyn FileHandle, zeroed: u64) -> io::Result<()> {
        file.allocate(0, self.length).await?;
        let piece = self.pace.as_ref().map_or(zeroed, |_| PIECE_LEN);
        let mut at = 0;
        while at < zeroed {
            if let Some(pace) = self.pace.as_ref().filter(|_| at > 0) {
                pace.pause().await;
            }
            let len = piece.min(zeroed - at);
            file.zero_range(at, len).await?;
            at += len;
        }
        self.write_first_page(file, self.header).await
    }

    async fn write_first_page(
        &self,
        file: &dyn FileHandle,
        header: SegmentHeader,
    ) -> io::Result<()> {
        let mut page = header.encode().to_vec();
        page.resize(FIRST_PAGE_LEN, 0);
        file.write_and_sync_at(0, &[Bytes::from(page)]).await?;
        Ok(())
    }
}

impl<F: FileSystem> Prepared<F> {
    /// The id of the segment to be.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Removes the file.
    ///
    /// # Errors
    /// [`Error::Io`]. What is left is removed by the next opening.
    pub async fn discard(mut self) -> Result<()> {
        let Some(path) = self.path.clone() else {
            return Ok(());
        };
        let removed = self.fs.remove_file(&path).await;
        self.path = None;
        self.backlog.release(self.id);
        removed.map_err(Error::io("remove", path))
    }

    /// Whether it was prepared for the writer that has this backlog.
    pub(super) fn is_for(&self, backlog: &Arc<Backlog>) -> bool {
        Arc::ptr_eq(&self.backlog, backlog)
    }

    /// The file, and where it comes from, to be a segment from now on.
    pub(super) fn into_segment(mut self) -> Option<(Box<dyn FileHandle>, Origin)> {
        let file = self.file.take()?;
        let origin = Origin {
            path: self.path.take()?,
            zeroed: self.zeroed.split(),
            recycled: self.recycled,
        };
        Some((file, origin))
    }
}

impl<F: FileSystem> Drop for Prepared<F> {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            self.backlog.push(Chore::Discard(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn name_round_trip(id in any::<u64>()) {
            prop_assert_eq!(prepared_id(OsStr::new(&file_name(id))), Some(id));
        }
    }

    #[test]
    fn names_that_are_not_exactly_ours_are_not_prepared_files() {
        for name in [
            "1.prepared",
            "000000000000000A.prepared",
            "000000000000000a.prepared.aside",
            "000000000000000a",
            "+00000000000000a.prepared",
        ] {
            assert_eq!(prepared_id(OsStr::new(name)), None, "{name}");
        }
    }
}
