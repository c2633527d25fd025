//! The manifest: what a partition's directory is known to hold, as an appended list of lines.
//!
//! ```text
//! file:   "SQMF", u16 version (2), u16 zero, then lines of 64 bytes
//!
//!  0 1 2   4       8               16              24              32
//!  +-+-+---+-------+---------------+---------------+---------------+
//!  |k|f| 0 |ordinal|      id       |  base offset  |  end offset   |
//!  +-+-+---+-------+---------------+---------------+-------+-------+
//!  |    length     | max timestamp |  last append  | index | crc   |
//!  +---------------+---------------+---------------+-sum---+-------+
//!  32              40              48              56      60      64
//! ```
//!
//! | `k` | line | its fields |
//! |---|---|---|
//! | 1 | created | ordinal, id, base offset |
//! | 2 | sealed | also end offset, length, the times if they are known, the checksum of its index or 0 |
//! | 3 | removed | as sealed; the segment is no part of the log, its file is or will be removed |
//! | 4 | log start | base offset: all below it is gone; ordinal: that of the next segment |
//! | 5 | truncated | base offset: what segments below the ordinal hold from it on is void |
//!
//! In `f`, bit 0 says that the file's name carries the id, bit 1 that the times are known. Fields that
//! a line does not have are 0. `crc` is the CRC-32 of the 60 bytes before it. All integers are
//! big-endian. Manifests of version 1, with lines of 48 bytes, are read and written anew.
//!
//! The manifest is evidence: what it does not say of a segment, recovery finds by scanning. So a
//! *created* or *sealed* line that fails to be written holds nothing up; the file is written anew,
//! whole and atomically, the next time. A damaged line costs a scan, not its neighbours. What it alone
//! knows, where the log starts and what was cut off it, is only ever written that way.

mod content;
mod line;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use bytes::{BufMut, Bytes, BytesMut};
use sq_sim::FileSystem;

use super::removal::Trash;

pub use content::ManifestContent;
pub use line::{
    LogStart, MANIFEST_LINE_LEN, ManifestEntry, ManifestLine, Seal, SegmentTimes, Truncation,
};

/// The manifest's name in a partition's directory.
pub const MANIFEST_NAME: &str = "manifest";

/// How a manifest that is being written anew is called until it is complete.
const TEMPORARY_SUFFIX: &str = ".manifest-tmp";

/// Reads a partition's manifest.
///
/// # Errors
/// The file system's, but for a manifest that does not exist.
pub async fn read_manifest<F: FileSystem>(fs: &F, dir: &Path) -> io::Result<ManifestContent> {
    let file = match fs.open_read_only(&dir.join(MANIFEST_NAME)).await {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Ok(ManifestContent {
                unreadable: true,
                ..ManifestContent::default()
            });
        }
        Err(e) => return Err(e),
    };
    let len = usize::try_from(file.len().await?).unwrap_or(usize::MAX);
    let content = ManifestContent::decode(&file.read_at(0, len).await?);
    if content.is_intact() {
        return Ok(content);
    }
    // A bit may have been lost on the way from the disk, this time or the next.
    let again = ManifestContent::decode(&file.read_at(0, len).await?);
    let lost = |c: &ManifestContent| (c.unreadable, c.damaged_lines);
    Ok(if lost(&again) <= lost(&content) {
        again
    } else {
        content
    })
}

/// Writes a manifest that was found again in place, and syncs it: what it says may have been in the
/// page cache only, or its sync may have failed.
///
/// # Errors
/// The file system's, and where the manifest does not say any more what was found.
pub(super) async fn rewrite<F: FileSystem>(
    fs: &F,
    dir: &Path,
    found: &ManifestContent,
) -> io::Result<()> {
    let file = match fs.open(&dir.join(MANIFEST_NAME)).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let len = usize::try_from(file.len().await?).unwrap_or(usize::MAX);
    let bytes = file.read_at(0, len).await?;
    if ManifestContent::decode(&bytes) != *found {
        return Err(io::Error::other(
            "the manifest changed while the log was being opened",
        ));
    }
    file.write_at(0, &[bytes]).await?;
    file.sync_data().await
}

/// The manifest of an open partition.
#[derive(Debug)]
pub(super) struct Manifest {
    dir: PathBuf,
    known: ManifestContent,
    /// How long the file is that lines are appended to; `None` when it has to be written anew first. It
    /// is open only while that is done: lines are few, and every partition has a manifest.
    len: Option<u64>,
    /// A file that is being written anew.
    rewrite: Option<Rewrite>,
    /// What is known is not what the file says, and nothing but the file could say it.
    is_uncommitted: bool,
    trash: Arc<Trash>,
}

impl Manifest {
    /// Takes over what recovery found to be there. A manifest that says just that is appended to;
    /// any other is written anew with the next line.
    pub(super) async fn adopt<F: FileSystem>(
        fs: &F,
        dir: PathBuf,
        found: &ManifestContent,
        entries: Vec<ManifestEntry>,
        removed: Vec<ManifestEntry>,
        trash: Arc<Trash>,
    ) -> Self {
        let known = ManifestContent {
            entries,
            removed,
            log_start: found.log_start,
            truncations: found.truncations.clone(),
            ..ManifestContent::default()
        };
        let mut len = None;
        if found.takes_lines()
            && found.says_the_same_as(&known)
            && let Ok(file) = fs.open(&dir.join(MANIFEST_NAME)).await
        {
            len = file.len().await.ok();
        }
        Self {
            dir,
            known,
            len,
            rewrite: None,
            is_uncommitted: false,
            trash,
        }
    }

    /// The directory that it lists.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What becomes of the files of removed segments.
    pub(super) fn trash(&self) -> &Arc<Trash> {
        &self.trash
    }

    /// Writes the file anew, so that what it says is durable for certain: what was read from it may
    /// have been in the page cache only.
    pub(super) async fn make_durable<F: FileSystem>(&mut self, fs: &Arc<F>) -> io::Result<()> {
        self.len = None;
        self.record(fs, &[]).await
    }

    /// Changes what nothing but the manifest can say. It takes effect with
    /// [`commit`](Self::commit), and no other line is written before that.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut ManifestContent)) {
        change(&mut self.known);
        self.len = None;
        self.is_uncommitted = true;
    }

    /// Makes all changes durable, in one step.
    pub(super) async fn commit<F: FileSystem>(&mut self, fs: &Arc<F>) -> io::Result<()> {
        self.finish_what_is_left().await;
        if self.is_uncommitted {
            self.record(fs, &[]).await?;
        }
        Ok(())
    }

    /// Brings a rewrite to its end whose caller went away: it must not replace a later one.
    async fn finish_what_is_left(&mut self) {
        if let Some(left) = &mut self.rewrite {
            let _ = left.finish().await;
            self.rewrite = None;
        }
    }

    /// Adds to or replaces entries, and makes that durable.
    ///
    /// On an error, or when the future is dropped, the entries are kept all the same and the next
    /// call writes the whole file.
    pub(super) async fn record<F: FileSystem>(
        &mut self,
        fs: &Arc<F>,
        changed: &[ManifestEntry],
    ) -> io::Result<()> {
        let mut lines = BytesMut::with_capacity(changed.len() * MANIFEST_LINE_LEN);
        for entry in changed {
            // What was removed stays so.
            if self.known.set(*entry) {
                lines.put_slice(&ManifestLine::Segment(*entry).encode());
            }
        }
        // Taken out while the file is written to: an error or a drop leaves `None`, so that nothing is
        // ever appended behind a line whose fate is unknown.
        let appended = match self.len.take() {
            Some(len) => append(&**fs, &self.dir, len, lines.freeze()).await?,
            None => None,
        };
        self.len = Some(match appended {
            Some(len) => len,
            None => self.write_anew(fs).await?,
        });
        Ok(())
    }

    /// Writes the file anew, and gives its length.
    async fn write_anew<F: FileSystem>(&mut self, fs: &Arc<F>) -> io::Result<u64> {
        self.finish_what_is_left().await;
        let mut content = self.known.clone();
        self.trash.strike_off(&mut content.removed);
        content.drop_what_is_settled();
        let work = write_file(Arc::clone(fs), self.dir.clone(), content.encode());
        let rewrite = self.rewrite.insert(Rewrite::new(work));
        let written = rewrite.finish().await;
        self.rewrite = None;
        let written = written?;
        self.trash.condemn(&self.dir, &content);
        self.known = content;
        self.is_uncommitted = false;
        Ok(written)
    }
}

/// A file that is being written anew, by whoever polls it. It outlives the call that began it.
struct Rewrite(Mutex<Pin<Box<dyn Future<Output = Written> + Send>>>);

type Written = io::Result<u64>;

impl Rewrite {
    fn new(work: impl Future<Output = Written> + Send + 'static) -> Self {
        Self(Mutex::new(Box::pin(work)))
    }

    async fn finish(&mut self) -> Written {
        let work = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        work.as_mut().await
    }
}

impl fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rewrite")
    }
}

/// Appends lines to the manifest, which is `len` bytes long, and gives its length then. `None` if it has
/// another length: a rewrite that was under way when an earlier writer was dropped has put another file
/// in its place.
async fn append<F: FileSystem>(
    fs: &F,
    dir: &Path,
    len: u64,
    lines: Bytes,
) -> io::Result<Option<u64>> {
    let file = fs.open(&dir.join(MANIFEST_NAME)).await?;
    if file.len().await? != len {
        return Ok(None);
    }
    let end = len + lines.len() as u64;
    file.write_and_sync_at(len, &[lines]).await?;
    Ok(Some(end))
}

/// Writes a whole manifest beside the one that is there, and puts it in its place. Gives its length.
async fn write_file<F: FileSystem>(fs: Arc<F>, dir: PathBuf, bytes: Bytes) -> Written {
    // The name is unique among attempts, since one whose writer was dropped may still be under way.
    let len = bytes.len() as u64;
    let mut attempt = u64::from(crc32fast::hash(&bytes));
    let (temporary, file) = loop {
        let path = dir.join(format!("{attempt:016x}{TEMPORARY_SUFFIX}"));
        match fs.create_new(&path).await {
            Ok(file) => break (path, file),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => attempt += 1 << 32,
            Err(e) => return Err(e),
        }
    };
    let written = async {
        file.write_at(0, &[bytes]).await?;
        file.sync_all().await?;
        fs.rename(&temporary, &dir.join(MANIFEST_NAME)).await?;
        fs.sync_dir(&dir).await
    };
    if let Err(e) = written.await {
        // Best effort: what stays is removed when the partition is opened next.
        let _ = fs.remove_file(&temporary).await;
        return Err(e);
    }
    Ok(len)
}

/// Whether a file is a manifest that was never completed.
pub(super) fn is_temporary(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|n| n.ends_with(TEMPORARY_SUFFIX))
}
