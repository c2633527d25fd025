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
    /// From where on opening has to read it.
    Point,
}

impl Companion {
    pub(super) const ALL: [Self; 3] = [Self::Index, Self::Sidecar, Self::Point];

    /// Its file's extension.
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Sidecar => "sidecar",
            Self::Point => "point",
        }
    }

    fn temporary_extension(self) -> &'static str {
        match self {
            Self::Index => "index-tmp",
            Self::Sidecar => "sidecar-tmp",
            Self::Point => "point-tmp",
        }
    }

    /// The largest that is read, in bytes: beyond all that is ever written.
    fn max_len(self) -> usize {
        match self {
            Self::Index | Self::Point => 1 << 20,
            Self::Sidecar => 256 << 20,
        }
    }

    /// The companion of the segment whose file has this name.
    pub(super) fn path(self, dir: &Path, name: &SegmentName) -> PathBuf {
        dir.join(format!("{}.{}", stem(name), self.extension()))
    }

    /// Which companion a file is, whole or not, and of which segment.
    pub(super) fn parse(name: &OsStr) -> Option<(Self, SegmentName)> {
        let (stem, extension) = name.to_str()?.rsplit_once('.')?;
        let is_ours = |c: &Self| [c.extension(), c.temporary_extension()].contains(&extension);
        let companion = Self::ALL.into_iter().find(is_ours)?;
        let of = SegmentName::parse(OsStr::new(&format!("{stem}.wal")))?;
        Some((companion, of))
    }

    /// Whether a file is a companion that was never completed.
    pub(super) fn is_unfinished(name: &OsStr) -> bool {
        let found = Self::parse(name);
        let extension = Path::new(name).extension();
        found.is_some_and(|(c, _)| extension == Some(OsStr::new(c.temporary_extension())))
    }

    /// Whether it is of no use before it is durable.
    fn is_synced(self) -> bool {
        match self {
            Self::Index | Self::Sidecar => true,
            Self::Point => false,
        }
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
            if self.is_synced() {
                file.sync_data().await?;
            }
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
            assert_eq!(Companion::parse(file_name), Some((companion, name)));
            let mut unfinished = file_name.to_owned();
            unfinished.push("-tmp");
            assert_eq!(Companion::parse(&unfinished), Some((companion, name)));
            assert!(Companion::is_unfinished(&unfinished) && !Companion::is_unfinished(file_name));
            assert_eq!(Companion::parse(OsStr::new(&name.file_name())), None);
        }
        assert_eq!(Companion::parse(OsStr::new("57.index")), None);
    }
}
