//! Bringing the layer above back while a partition opens.
//!
//! What opening reads anyway is shown to the visitor as it is read, in the hope that all of it will
//! count and that the sidecar before it is there. Once the chain is known, that hope is checked; where
//! it was wrong the visitor starts over, and sees the log as it turned out to be.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use sq_sim::FileSystem;

use super::chain::{Chain, Link};
use super::companion::Companion;
use super::manifest::{ManifestContent, ManifestEntry};
use super::recovery::{Candidate, Place};
use super::scan::{Seen, Walk, Window};
use super::segment::{SEGMENT_HEADER_LEN, SegmentName};
use super::sidecar::{self, RecoveryVisitor, Sidecar};
use crate::error::{Error, Result};
use crate::frame::FrameHeader;

/// A visitor, and what it has seen.
pub(super) struct Replay<'v> {
    visitor: &'v mut dyn RecoveryVisitor,
    /// What the manifest said.
    found: &'v ManifestContent,
    shown: Shown,
}

enum Shown {
    Nothing,
    /// What was read so far, as one log.
    Live(Live),
    /// Something that can't be a log's end.
    Disorder,
}

/// What a visitor has seen so far, in the order in which it was read.
struct Live {
    /// The segment whose sidecar it began with.
    began: Option<u64>,
    /// Where it wants to see frames from.
    from: u64,
    /// The files whose frames it saw.
    files: Vec<PathBuf>,
    /// The name and id of the segment that was read last, once a frame told it.
    last: Option<(SegmentName, u64)>,
    /// The offset behind the last frame that was read.
    end: u64,
    /// The sidecar that the last segment but one lacks.
    missing: Option<Missing>,
}

/// A sidecar that is to be written.
struct Missing {
    name: SegmentName,
    id: u64,
    sidecar: Sidecar,
}

impl<'v> Replay<'v> {
    pub(super) fn new(visitor: &'v mut dyn RecoveryVisitor, found: &'v ManifestContent) -> Self {
        Self {
            visitor,
            found,
            shown: Shown::Nothing,
        }
    }

    /// A segment is about to be read.
    pub(super) async fn before<F: FileSystem>(
        &mut self,
        fs: &F,
        place: &Place,
        candidate: &Candidate,
    ) {
        let base = candidate.name.base_offset;
        let shown = std::mem::replace(&mut self.shown, Shown::Disorder);
        let before = match &shown {
            Shown::Nothing => newest_sealed(self.found),
            Shown::Live(live) => live.last.map(|(name, id)| (name, id, live.end)),
            Shown::Disorder => return,
        };
        let begins = match before {
            None => Some((None, kept(fs, place, self.found, base).await)),
            Some((name, id, end)) if end == base => {
                let sidecar = sidecar::read(fs, &place.dir, &name, id, end).await;
                sidecar.map(|sidecar| (Some(id), Some(sidecar)))
            }
            Some(_) => None,
        };
        let live = match (begins, shown) {
            (Some((began, sidecar)), _) => {
                let from = self.visitor.begin(sidecar.as_ref());
                from.map(|from| Live::new(began, from, base))
            }
            (None, Shown::Live(live)) if live.end == base => Some(self.at_an_end(live)),
            (None, _) => None,
        };
        if let Some(mut live) = live {
            live.files.push(candidate.path.clone());
            live.last = None;
            self.shown = Shown::Live(live);
        }
    }

    /// Asks for the sidecar of the segment that was read last, which has none.
    fn at_an_end(&mut self, mut live: Live) -> Live {
        live.missing = live.last.and_then(|(name, id)| {
            let content = self.visitor.sidecar(live.end)?;
            let end_offset = live.end;
            let sidecar = Sidecar {
                end_offset,
                content,
            };
            Some(Missing { name, id, sidecar })
        });
        live
    }

    /// A frame was read of the segment with this name.
    pub(super) fn see(&mut self, name: SegmentName, seen: &Seen<'_>) {
        let log_start = self.found.start_offset();
        let Shown::Live(live) = &mut self.shown else {
            return;
        };
        live.last = Some((name, seen.header.segment_id));
        live.end = seen.header.end_offset();
        if is_wanted(seen.header, live.from, log_start) {
            let frame = super::StoredFrame::new(seen.header, seen.body().into());
            self.visitor.frame(&frame);
        }
    }

    /// The chain is known: sees to it that the visitor saw just that.
    ///
    /// # Errors
    /// [`Error::Io`] where a segment can't be read.
    pub(super) async fn finish<F: FileSystem>(
        mut self,
        fs: &F,
        place: &Place,
        chain: &Chain,
        names: &[(OsString, u64)],
    ) -> Result<()> {
        let ended = chain.links.last().filter(|link| !link.is_open());
        let newest = match ended {
            Some(link) => read_sidecar(fs, place, link, names).await,
            None => None,
        };
        let shown = std::mem::replace(&mut self.shown, Shown::Nothing);
        let mut missing = match shown {
            Shown::Live(live) if newest.is_none() && live.is_all_of(chain) => live.missing,
            _ => self.start_over(fs, place, chain, names).await?,
        };
        if let Some(link) = ended.filter(|_| newest.is_none()) {
            missing = self.sidecar_of(link);
        }
        if let Some(Missing { name, id, sidecar }) = missing {
            let written = sidecar::write(fs, &place.dir, &name, id, &sidecar).await;
            if let Err(error) = written {
                tracing::warn!(%error, "sidecar not written");
            }
        }
        Ok(())
    }

    /// Begins with the newest sidecar that is of use, and reads what is behind it.
    async fn start_over<F: FileSystem>(
        &mut self,
        fs: &F,
        place: &Place,
        chain: &Chain,
        names: &[(OsString, u64)],
    ) -> Result<Option<Missing>> {
        let mut behind = 0;
        let mut from = None;
        for (n, link) in chain.links.iter().enumerate().rev() {
            if let Some(sidecar) = read_sidecar(fs, place, link, names).await {
                from = self.visitor.begin(Some(&sidecar));
                behind = n + 1;
            }
            if from.is_some() {
                break;
            }
        }
        if from.is_none() {
            behind = 0;
            let first = chain.links.first();
            let first = first.map_or(self.found.start_offset(), |l| l.candidate.name.base_offset);
            if let Some(sidecar) = kept(fs, place, self.found, first).await {
                from = self.visitor.begin(Some(&sidecar));
            }
            from = from.or_else(|| self.visitor.begin(None));
        }
        let Some(from) = from else { return Ok(None) };
        let mut missing = None;
        let links = chain.links.get(behind..).unwrap_or_default();
        for (n, link) in links.iter().enumerate() {
            self.show(fs, link, from).await?;
            if n + 2 == links.len() {
                missing = self.sidecar_of(link);
            }
        }
        Ok(missing)
    }

    /// Shows the frames of a segment that count.
    async fn show<F: FileSystem>(&mut self, fs: &F, link: &Link, from: u64) -> Result<()> {
        let candidate = &link.candidate;
        let (path, end) = (&candidate.path, link.extent.end_offset);
        let log_start = self.found.start_offset();
        if end <= from.max(log_start) {
            return Ok(());
        }
        let opened;
        let file = match &candidate.scan {
            Some(scan) => scan.file(),
            None => match fs.open_read_only(path).await {
                // It was lost, which is in the report.
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                file => {
                    opened = file.map_err(Error::io("open", path))?;
                    &*opened
                }
            },
        };
        let window = Window::new(file, link.extent.bytes);
        let start = SEGMENT_HEADER_LEN as u64;
        let base = candidate.name.base_offset;
        let mut walk = Walk::from(window, start, candidate.id(), base);
        let failed = || Error::io("read", path);
        while walk.position < link.extent.bytes {
            match walk.next().await.map_err(failed())? {
                Ok((_, frame)) if frame.header.end_offset() > end => break,
                Ok((_, frame)) => {
                    if is_wanted(&frame.header, from, log_start) {
                        self.visitor.frame(&frame.into());
                    }
                }
                Err(_) => {
                    if !walk.skip().await.map_err(failed())? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn sidecar_of(&mut self, link: &Link) -> Option<Missing> {
        let id = link.candidate.id()?;
        let end_offset = link.extent.end_offset;
        let content = self.visitor.sidecar(end_offset)?;
        let sidecar = Sidecar {
            end_offset,
            content,
        };
        Some(Missing {
            name: link.candidate.name,
            id,
            sidecar,
        })
    }
}

impl Live {
    fn new(began: Option<u64>, from: u64, base: u64) -> Self {
        Self {
            began,
            from,
            files: Vec::new(),
            last: None,
            end: base,
            missing: None,
        }
    }

    /// Whether what was seen is what the chain holds behind the sidecar, no less and no more.
    fn is_all_of(&self, chain: &Chain) -> bool {
        let links = &chain.links;
        let behind = match self.began {
            None => 0,
            Some(id) => match links.iter().position(|l| l.candidate.id() == Some(id)) {
                Some(n) => n + 1,
                None => return false,
            },
        };
        let links = links.get(behind..).unwrap_or_default();
        links.len() == self.files.len()
            && links.iter().zip(&self.files).all(|(link, file)| {
                let is_it = link.candidate.path == *file;
                is_it
                    && link
                        .candidate
                        .scan
                        .as_ref()
                        .is_some_and(|s| s.all_count(link.extent))
            })
    }
}

fn is_wanted(header: &FrameHeader, from: u64, log_start: u64) -> bool {
    header.record_count > 0 && header.base_offset >= from && header.end_offset() > log_start
}

/// The newest segment that the manifest lists as sealed, and where it ends.
fn newest_sealed(found: &ManifestContent) -> Option<(SegmentName, u64, u64)> {
    let counts = |e: &&ManifestEntry| !e.is_empty() && !found.is_void(e);
    let sealed = found.entries.iter().filter(counts);
    let sealed = sealed.filter_map(|e| e.seal.map(|s| (e.name, e.id, s.end_offset)));
    sealed.max_by_key(|(.., end)| *end)
}

/// The sidecar of the last segment that was purged, if the log's first one begins where that ended, and
/// nothing of it is gone: a layer above that misses frames in between knows less than one that knows none.
async fn kept<F: FileSystem>(
    fs: &F,
    place: &Place,
    found: &ManifestContent,
    first: u64,
) -> Option<Sidecar> {
    if found.log_start?.offset != first {
        return None;
    }
    if let Some((entry, end)) = found.last_purged().filter(|(_, end)| *end == first) {
        // Its removal may not have come to that.
        let sidecar = sidecar::read(fs, &place.dir, &entry.name, entry.id, end).await;
        if sidecar.is_some() {
            return sidecar;
        }
    }
    sidecar::read_at_start(fs, &place.dir, first).await
}

/// The sidecar of a segment of the chain, if there is a good one.
async fn read_sidecar<F: FileSystem>(
    fs: &F,
    place: &Place,
    link: &Link,
    names: &[(OsString, u64)],
) -> Option<Sidecar> {
    let (candidate, dir) = (&link.candidate, Path::new(""));
    let path = Companion::Sidecar.path(dir, &candidate.name);
    let is_there = names.iter().any(|(name, _)| path.as_os_str() == name);
    let id = candidate.id().filter(|_| is_there)?;
    sidecar::read(fs, &place.dir, &candidate.name, id, link.extent.end_offset).await
}
