//! Beginning to read a segment at its recovery point.

use std::ffi::OsString;
use std::path::Path;

use sq_sim::{FileHandle, FileSystem};

use super::super::companion::Companion;
use super::super::config::WalConfig;
use super::super::manifest::ManifestContent;
use super::super::point::Point;
use super::super::segment::SegmentName;
use super::{Candidate, Place, longest_write};
use crate::frame::FrameHeader;

/// A recovery point that fits its segment, and the frame in front of it.
pub(super) struct Resumed {
    pub(super) point: Point,
    pub(super) last: FrameHeader,
}

/// Whether a recovery point lies beside a segment, by the names in their directory.
pub(super) fn has_point(names: &[(OsString, u64)], name: &SegmentName) -> bool {
    let path = Companion::Point.path(Path::new(""), name);
    let found = names.binary_search_by(|(name, _)| name.as_os_str().cmp(path.as_os_str()));
    found.is_ok()
}

/// The recovery point of a segment, if there is one that can be gone by: it is whole, of this segment, the
/// frame that it names ends there, and no truncation cut off anything in front of it. It says no more than
/// reading the segment would, so that nothing is lost with one that is not used.
pub(super) async fn resumed<F: FileSystem>(
    fs: &F,
    config: &WalConfig,
    place: &Place,
    file: &dyn FileHandle,
    found: &ManifestContent,
    candidate: &Candidate,
) -> Option<Resumed> {
    // What is not known to be the segment that the point says is none, and what has no name yet has none.
    let id = candidate.id().filter(|_| candidate.has_point)?;
    let name = &candidate.name;
    let written = Companion::Point.read(fs, &place.dir, name).await;
    let point = written.and_then(|file| Point::decode(&file, id, name.base_offset));
    let resumed = match point {
        Some(point) => confirmed(config, file, found, candidate, point).await,
        None => None,
    };
    if resumed.is_none() {
        tracing::debug!(segment = %candidate.path.display(), "a recovery point that does not fit");
    }
    resumed
}

async fn confirmed(
    config: &WalConfig,
    file: &dyn FileHandle,
    found: &ManifestContent,
    candidate: &Candidate,
    point: Point,
) -> Option<Resumed> {
    let len = file.len().await.ok()?;
    let last = point
        .confirm(file, len, longest_write(config))
        .await
        .ok()??;
    let ordinal = candidate.entry.map_or(last.ordinal, |entry| entry.ordinal);
    let is_cut = found.limit_of(ordinal) < point.subject.extent.end_offset;
    (!is_cut).then_some(Resumed { point, last })
}
