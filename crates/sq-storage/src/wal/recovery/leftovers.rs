//! What opening sets aside, keeps, or removes.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sq_sim::FileSystem;

use super::super::companion::Companion;
use super::super::manifest::{self, ManifestContent};
use super::super::sidecar;
use super::{Place, Recovered, RecoveryReport};
use crate::error::{Error, Result};

/// Renames a segment that continues nothing to a name that no recovery reads again.
pub(super) async fn set_aside<F: FileSystem>(
    fs: &F,
    path: &Path,
    names: &[(OsString, u64)],
) -> Result<PathBuf> {
    let taken = |p: &Path| names.iter().any(|(name, _)| p.file_name() == Some(name));
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    let mut aside = path.with_extension(format!("{extension}.aside"));
    let mut attempt = 1u32;
    while taken(&aside) {
        aside = path.with_extension(format!("{extension}.aside-{attempt}"));
        attempt += 1;
    }
    fs.rename(path, &aside)
        .await
        .map_err(Error::io("rename", path))?;
    tracing::warn!(segment = %path.display(), aside = %aside.display(),
        "a segment continues nothing and nothing says that it was acknowledged; it was set aside");
    Ok(aside)
}

/// Has the sidecar of the last segment that was purged outlive it, where the removal did not come to that.
pub(super) async fn keep_last_sidecar<F: FileSystem>(
    fs: &F,
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
) {
    let Some((entry, end_offset)) = found.last_purged() else {
        return;
    };
    let path = Companion::Sidecar.path(&place.dir, &entry.name);
    if !names.iter().any(|(name, _)| path.file_name() == Some(name)) {
        return;
    }
    let kept = sidecar::keep(fs, &path, entry.id, end_offset).await;
    // Before the manifest can forget the segment.
    if let Err(error) = kept.and(fs.sync_dir(&place.dir).await) {
        tracing::warn!(%error, "sidecar not kept");
    }
}

/// Removes prepared files that were never switched to. A failure costs nothing but the leftover.
pub(super) async fn remove_prepared<F: FileSystem>(
    fs: &F,
    place: &Place,
    empty: Vec<PathBuf>,
    report: &mut RecoveryReport,
) {
    if empty.is_empty() {
        return;
    }
    for path in empty {
        if fs.remove_file(&path).await.is_ok() {
            report.removed_empty.push(path);
        }
    }
    let _ = fs.sync_dir(&place.dir).await;
}

/// Removes what earlier attempts left: manifests and companions that were never completed, companions of
/// segments that are gone, recovery points of such as the manifest lists as sealed, and segments without a
/// record, once the manifest durably says that they have none: a name whose removal was not durable comes back
/// at a power loss, and must not be taken for more than it was. A failure costs nothing but the leftover.
pub(super) async fn remove_leftovers<F: FileSystem>(
    fs: &Arc<F>,
    place: &Place,
    names: &[(OsString, u64)],
    found: &ManifestContent,
    recovered: &mut Recovered,
) {
    let segments: HashSet<_> = recovered.segments.iter().map(|s| s.name).collect();
    let active = recovered.active.as_ref().map(|active| active.segment.name);
    let sealed = found.entries.iter().filter(|e| e.seal.is_some());
    let sealed: HashSet<_> = sealed.map(|e| e.name).collect();
    let is_leftover = |name: &OsString| {
        let of = Companion::parse(name);
        manifest::is_temporary(name)
            || Companion::is_unfinished(name)
            || of.is_some_and(|(companion, of)| {
                let is_outdated = sealed.contains(&of) && active != Some(of);
                !segments.contains(&of) || companion == Companion::Point && is_outdated
            })
    };
    for (name, _) in names.iter().filter(|(name, _)| is_leftover(name)) {
        let _ = fs.remove_file(&place.dir.join(name)).await;
    }
    let empty = std::mem::take(&mut recovered.report.removed_empty);
    if empty.is_empty() || recovered.manifest.make_durable(fs).await.is_err() {
        return;
    }
    for path in empty {
        if fs.remove_file(&path).await.is_ok() {
            recovered.report.removed_empty.push(path);
        }
    }
    let _ = fs.sync_dir(&place.dir).await;
}
