//! The file of a segment's index: a companion that may be missing at any time.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sq_sim::FileSystem;

use super::segment::SegmentName;
use super::state::Segment;

const SUFFIX: &str = ".index";
const TEMPORARY_SUFFIX: &str = ".index-tmp";

/// The largest that is read, in bytes: beyond all that is ever written.
const MAX_FILE_LEN: usize = 1 << 20;

/// The index file of the segment whose file has this name.
pub(super) fn path(dir: &Path, name: &SegmentName) -> PathBuf {
    dir.join(format!("{}{SUFFIX}", stem(name)))
}

/// The segment that a file is the index of, whole or not.
pub(super) fn segment_of(name: &OsStr) -> Option<SegmentName> {
    let name = name.to_str()?;
    let stem = name
        .strip_suffix(SUFFIX)
        .or_else(|| name.strip_suffix(TEMPORARY_SUFFIX))?;
    SegmentName::parse(OsStr::new(&format!("{stem}.wal")))
}

fn stem(name: &SegmentName) -> String {
    let mut file_name = name.file_name();
    file_name.truncate(file_name.len() - ".wal".len());
    file_name
}

fn dir(segment: &Segment) -> &Path {
    segment.path.parent().unwrap_or(Path::new(""))
}

/// Reads a segment's index file; `None` if there is none that could be one.
pub(super) async fn read<F: FileSystem>(fs: &F, segment: &Segment) -> Option<Bytes> {
    let file = fs
        .open_read_only(&path(dir(segment), &segment.name))
        .await
        .ok()?;
    let content = file.read_at(0, MAX_FILE_LEN + 1).await.ok()?;
    (content.len() <= MAX_FILE_LEN).then_some(content)
}

/// Writes a segment's index file, all or nothing, as long as the machine stays up: after a power loss
/// its checksum tells.
pub(super) async fn write<F: FileSystem>(
    fs: &F,
    segment: &Segment,
    content: Bytes,
) -> io::Result<()> {
    let dir = dir(segment);
    let temporary = dir.join(format!("{}{TEMPORARY_SUFFIX}", stem(&segment.name)));
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
        fs.rename(&temporary, &path(dir, &segment.name)).await
    };
    let written = written.await;
    if written.is_err() {
        // Best effort: what stays is removed when the partition is opened next.
        let _ = fs.remove_file(&temporary).await;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_belongs_to_the_segment_of_its_name() {
        for id in [None, Some(0xfeed)] {
            let base_offset = 57;
            let name = SegmentName { base_offset, id };
            let path = path(Path::new("/data"), &name);
            assert_eq!(segment_of(path.file_name().unwrap()), Some(name));
            assert_eq!(segment_of(OsStr::new(&name.file_name())), None);
        }
        assert_eq!(segment_of(OsStr::new("57.index")), None);
    }
}
