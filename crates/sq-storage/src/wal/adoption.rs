//! What opening makes of prepared files: a segment, nothing, or something to be looked at.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sq_sim::FileSystem;

use super::manifest::ManifestContent;
use super::prepared;
use super::recovery::{Candidate, Place};
use super::scan::{Window, first_frame};
use super::segment::{SEGMENT_HEADER_LEN, SegmentName};
use crate::error::{Error, Result};
use crate::frame::{FRAME_HEADER_LEN, FrameHeader};

/// What the prepared files of a partition are.
#[derive(Default)]
pub(super) struct PreparedFiles {
    /// Those that hold frames: a switch took place, and the file did not get its name. In the order
    /// of their bases, not scanned yet.
    pub(super) switched: Vec<Candidate>,
    /// Those with nothing but zeros behind their header, and what an earlier segment left.
    pub(super) empty: Vec<PathBuf>,
    /// Those with something in them that is no frame.
    pub(super) unexplained: Vec<PathBuf>,
}

/// A prepared file's first readable frame.
struct Switched {
    id: u64,
    path: PathBuf,
    first: FrameHeader,
    /// Whether that is the first there is.
    is_whole: bool,
    /// The base that the first frame states, where it can't be read as a whole.
    stated: Option<u64>,
}

enum Content {
    Frames(Switched),
    Zeros,
    Unexplained,
}

impl Content {
    /// Whether a bit that was lost on the way from the disk could have made it what it seems to be.
    fn is_doubtful(&self) -> bool {
        match self {
            Self::Frames(found) => !found.is_whole,
            Self::Zeros => false,
            Self::Unexplained => true,
        }
    }

    /// Which of two looks at a file saw more of it.
    fn or_rather(self, again: Self) -> Self {
        match (&self, &again) {
            (Self::Frames(first), Self::Frames(second))
                if first.first.base_offset <= second.first.base_offset =>
            {
                self
            }
            (Self::Frames(_), Self::Zeros | Self::Unexplained) => self,
            _ => again,
        }
    }
}

/// Looks at every prepared file beside the other segments. `most` are the bytes of a first write.
pub(super) async fn look<F: FileSystem>(
    fs: &F,
    place: &Place,
    most: u64,
    names: &[(OsString, u64)],
    found: &ManifestContent,
    others: &[Candidate],
) -> Result<PreparedFiles> {
    let ends = others.iter().filter_map(Candidate::readable_end);
    let start = found.log_start.map(|start| start.offset);
    let mut ends: HashSet<_> = ends.chain(start).collect();
    let mut bases: Vec<_> = others
        .iter()
        .filter_map(|other| Some((other.ordinal()?, other.name.base_offset)))
        .collect();
    let mut files = PreparedFiles::default();
    let mut switched = Vec::new();
    for (name, _) in names {
        let Some(id) = prepared::prepared_id(name) else {
            continue;
        };
        let path = place.dir.join(name);
        let mut content = read(fs, &path, id, most).await?;
        if content.is_doubtful() {
            // A bit may have been lost on the way from the disk, this time or the next.
            content = content.or_rather(read(fs, &path, id, most).await?);
        }
        match content {
            Content::Frames(found) => switched.push(found),
            Content::Zeros => files.empty.push(path),
            Content::Unexplained => files.unexplained.push(path),
        }
    }
    switched.sort_by_key(|s| (s.first.base_offset, s.first.ordinal));
    let known = switched.iter().filter(|s| s.is_whole);
    bases.extend(known.map(|s| (s.first.ordinal, s.first.base_offset)));
    let mut taken: HashSet<_> = names
        .iter()
        .filter_map(|(name, _)| SegmentName::parse(name))
        .chain(found.removed.iter().map(|e| e.name))
        .collect();
    for Switched {
        id,
        path,
        first,
        is_whole,
        stated,
    } in switched
    {
        // A base that nothing proves is believed only where it continues another segment.
        let base_offset = stated.filter(|b| ends.contains(b));
        let base_offset = base_offset.unwrap_or(first.base_offset);
        // With no segment in front of it, it goes on where the log begins.
        let is_alone = !is_whole && others.is_empty() && files.switched.is_empty();
        let base_offset = start
            .filter(|start| is_alone && *start < base_offset)
            .unwrap_or(base_offset);
        // What is left of a torn write may say a later one. No segment begins behind one that came after it.
        let later = bases.iter().filter(|(of, _)| *of > first.ordinal);
        let later = later.map(|(_, base)| *base).min();
        let base_offset = later.map_or(base_offset, |base| base_offset.min(base));
        let plain = SegmentName {
            base_offset,
            id: None,
        };
        let name = SegmentName {
            base_offset,
            id: taken.contains(&plain).then_some(id),
        };
        taken.insert(name);
        ends.insert(first.end_offset());
        files.switched.push(Candidate {
            name,
            path: place.dir.join(name.file_name()),
            prepared: Some((id, path)),
            entry: None,
            unfit: None,
            has_point: false,
            scan: None,
        });
    }
    Ok(files)
}

async fn read<F: FileSystem>(fs: &F, path: &Path, id: u64, most: u64) -> Result<Content> {
    let file = fs.open(path).await.map_err(Error::io("open", path))?;
    let failed = || Error::io("read", path);
    let limit = file.len().await.map_err(failed())?;
    let start = SEGMENT_HEADER_LEN as u64;
    let found = first_frame(&*file, id, most).await;
    let (found, has_data) = found.map_err(failed())?;
    let Some((position, first)) = found else {
        return Ok(if has_data {
            Content::Unexplained
        } else {
            Content::Zeros
        });
    };
    let mut stated = None;
    if position > start {
        let mut window = Window::new(&*file, limit);
        let head = window.at(start, FRAME_HEADER_LEN).await.map_err(failed())?;
        let header = FrameHeader::decode(&head).ok().map(|(header, _)| header);
        stated = header
            .filter(|h| h.segment_id == id && h.base_offset <= first.base_offset)
            .map(|h| h.base_offset);
    }
    Ok(Content::Frames(Switched {
        id,
        path: path.to_owned(),
        first,
        is_whole: position == start,
        stated,
    }))
}

/// Gives the prepared files that became segments their names. The directory is yet to be synced.
pub(super) async fn rename<F: FileSystem>(fs: &F, candidate: &Candidate) -> Result<bool> {
    let Some((_, from)) = &candidate.prepared else {
        return Ok(false);
    };
    let renamed = fs.rename(from, &candidate.path).await;
    renamed.map_err(Error::io("rename", from))?;
    Ok(true)
}
