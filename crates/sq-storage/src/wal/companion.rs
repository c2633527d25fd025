//! The files beside a segment's: companions that may be missing at any time.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sq_sim::FileSystem;

use super::segment::SegmentName;
use super::state::Segment;

/// What lies beside a segment's file and goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Companion {
    /// Where its frames stand.
    Index,
    /// What the layer above knew at its end.
    Sidecar,
}

impl Companion {
    pub(super) const ALL: [Self; 2] = [Self::Index, Self::Sidecar];

    /// Its file's extension.
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Sidecar => "sidecar",
        }
    }

    fn temporary_extension(self) -> &'static str {
        match self {
            Self::Index => "index-tmp",
            Self::Sidecar => "sidecar-tmp",
        }
    }

    /// The largest that is read, in bytes: beyond all that is ever written.
    fn max_len(self) -> usize {
        match self {
            Self::Index => 1 << 20,
            Self::Sidecar => 256 << 20,
        }
    }

    /// The companion of the segment whose file has this name.
    pub(super) fn path(self, dir: &Path, name: &SegmentName) -> PathBuf {
        dir.join(format!("{}.{}", stem(name), self.extension()))
    }

    /// The segment that a file is a companion of, whole or not.
    pub(super) fn segment_of(name: &OsStr) -> Option<SegmentName> {
        let (stem, extension) = name.to_str()?.rsplit_once('.')?;
        let is_ours = |c: &Self| [c.extension(), c.temporary_extension()].contains(&extension);
        Self::ALL.iter().find(|c| is_ours(c))?;
        SegmentName::parse(OsStr::new(&format!("{stem}.wal")))
    }

    /// Reads the companion of a segment; `None` if there is none that could be one.
    pub(super) async fn read<F: FileSystem>(
        self,
        fs: &F,
        dir: &Path,
        name: &SegmentName,
    ) -> Option<Bytes> {
        self.read_at(fs, &self.path(dir, name)).await
    }

    /// [`read`](Self::read) of a companion that is at a path. Takes memory for no more than the file holds.
    pub(super) async fn read_at<F: FileSystem>(self, fs: &F, path: &Path) -> Option<Bytes> {
        let file = fs.open_read_only(path).await.ok()?;
        let len = usize::try_from(file.len().await.ok()?).ok()?;
        if len > self.max_len() {
            return None;
        }
        file.read_at(0, len).await.ok()
    }

    /// Writes a segment's companion, all or nothing, as long as the machine stays up: after a power
    /// loss its checksum tells.
    pub(super) async fn write<F: FileSystem>(
        self,
        fs: &F,
        dir: &Path,
        name: &SegmentName,
        content: Bytes,
    ) -> io::Result<()> {
        let temporary = dir.join(format!("{}.{}", stem(name), self.temporary_extension()));
        let file = match fs.create_new(&temporary).await {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                // An attempt that was cut short. Should it go on after all, it goes on in a file that is gone.
                fs.remove_file(&temporary).await?;
                fs.create_new(&temporary).await?
            }
            created => created?,
        };
        let written = async {
            file.write_at(0, &[content]).await?;
            file.sync_data().await?;
            fs.rename(&temporary, &self.path(dir, name)).await
        };
        let written = written.await;
        if written.is_err() {
            // Best effort: what stays is removed when the partition is opened next.
            let _ = fs.remove_file(&temporary).await;
        }
        written
    }
}

fn stem(name: &SegmentName) -> String {
    let mut file_name = name.file_name();
    file_name.truncate(file_name.len() - ".wal".len());
    file_name
}

/// The directory that a segment's files are in.
pub(super) fn dir(segment: &Segment) -> &Path {
    segment.path.parent().unwrap_or(Path::new(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_companion_belongs_to_the_segment_of_its_name() {
        for (id, companion) in [None, Some(0xfeed)]
            .into_iter()
            .flat_map(|id| Companion::ALL.map(|companion| (id, companion)))
        {
            let base_offset = 57;
            let name = SegmentName { base_offset, id };
            let path = companion.path(Path::new("/data"), &name);
            let file_name = path.file_name().unwrap();
            assert_eq!(Companion::segment_of(file_name), Some(name));
            let mut unfinished = file_name.to_owned();
            unfinished.push("-tmp");
            assert_eq!(Companion::segment_of(&unfinished), Some(name));
            assert_eq!(Companion::segment_of(OsStr::new(&name.file_name())), None);
        }
        assert_eq!(Companion::segment_of(OsStr::new("57.index")), None);
    }
}
