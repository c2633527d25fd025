//! What a power loss leaves of what was not synced.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use super::content::{Content, Unsynced, at, copy_range, length};
use super::fault::{PathPattern, SyncFailure};
use crate::draws::Draws;

/// The unit that a disk writes whole or not, in bytes.
const SECTOR: u64 = 512;

/// What survives, for tests that need no more say than this. See [`PowerLoss`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keep {
    /// Nothing un-synced.
    None,
    /// Everything.
    All,
    /// Of each file, what was written up to some moment, drawn for each; of names, any.
    Prefix,
    /// Of each file, any sectors, in any state; any length; of names, any.
    Sectors,
    /// One of these, drawn for each file; of names, any.
    Mixed,
}

impl Keep {
    /// Every mode.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::All,
        Self::Prefix,
        Self::Sectors,
        Self::Mixed,
    ];
}

/// What becomes of a sector that holds bytes at risk. Its other bytes stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SectorFate {
    /// As before the un-synced writes.
    Old,
    /// As after them.
    New,
    /// As after some of them.
    Earlier,
    /// Zeros.
    Zero,
    /// Random bytes.
    Garbage,
    /// New up to some byte and old from there, or the other way round.
    Torn,
}

impl SectorFate {
    /// Every fate.
    pub const ALL: [Self; 6] = [
        Self::Old,
        Self::New,
        Self::Earlier,
        Self::Zero,
        Self::Garbage,
        Self::Torn,
    ];
}

/// What becomes of a file's bytes at risk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentFate {
    /// All are lost.
    Old,
    /// All survive.
    New,
    /// Those written before a moment, down to the byte, survive.
    Prefix,
    /// Each sector, or run of sectors, meets one of these fates, drawn evenly.
    Sectors(Vec<SectorFate>),
    /// Those in these ranges survive, the others are lost.
    NewIn(Vec<Range<u64>>),
    /// One of `Old`, `New`, `Prefix` and `Sectors` with every fate.
    Mixed,
}

/// What becomes of a file's un-synced length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LengthFate {
    /// As at the last sync.
    Old,
    /// As a process saw it last.
    New,
    /// Anything from the old to the new.
    Between,
    /// One of the three.
    Any,
    /// What goes with the content: old with `Old`, new with `New` and `NewIn`, that of the moment
    /// with `Prefix`, any with `Sectors`.
    AsContent,
}

/// What becomes of un-synced names: created, renamed, removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryFate {
    /// The directory is as at its last sync.
    Lost,
    /// The directory is as a process saw it last.
    Kept,
    /// Each change reaches the disk or not, unless it builds on one that does not.
    Any,
}

/// What becomes of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFate {
    /// Its bytes at risk.
    pub content: ContentFate,
    /// Its un-synced length.
    pub length: LengthFate,
}

impl FileFate {
    /// A fate whose length goes with the content.
    pub fn new(content: ContentFate) -> Self {
        Self {
            content,
            length: LengthFate::AsContent,
        }
    }

    /// The same content with another fate of the length.
    #[must_use]
    pub fn with_length(mut self, length: LengthFate) -> Self {
        self.length = length;
        self
    }
}

/// What a power loss does to what was not synced: the same for every file, but for those that have
/// a fate of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerLoss {
    file: FileFate,
    entries: EntryFate,
    of_paths: Vec<(PathPattern, FileFate)>,
}

impl PowerLoss {
    /// The fate of every file, and of names.
    pub fn new(file: FileFate, entries: EntryFate) -> Self {
        Self {
            file,
            entries,
            of_paths: Vec::new(),
        }
    }

    /// A file that has, or durably had, such a path meets this fate. The first match counts.
    #[must_use]
    pub fn with_file(mut self, path: PathPattern, fate: FileFate) -> Self {
        self.of_paths.push((path, fate));
        self
    }

    /// Another fate of names.
    #[must_use]
    pub fn with_entries(mut self, entries: EntryFate) -> Self {
        self.entries = entries;
        self
    }

    pub(super) fn keeps_entry(&self, draws: &mut Draws) -> bool {
        match self.entries {
            EntryFate::Lost => false,
            EntryFate::Kept => true,
            EntryFate::Any => draws.coin(),
        }
    }

    pub(super) fn fate_of(&self, paths: &[PathBuf]) -> &FileFate {
        self.of_paths
            .iter()
            .find(|(pattern, _)| paths.iter().any(|path| pattern.matches(path)))
            .map_or(&self.file, |(_, fate)| fate)
    }
}

impl From<Keep> for PowerLoss {
    fn from(keep: Keep) -> Self {
        let (content, entries) = match keep {
            Keep::None => (ContentFate::Old, EntryFate::Lost),
            Keep::All => (ContentFate::New, EntryFate::Kept),
            Keep::Prefix => (ContentFate::Prefix, EntryFate::Any),
            Keep::Sectors => (
                ContentFate::Sectors(SectorFate::ALL.to_vec()),
                EntryFate::Any,
            ),
            Keep::Mixed => (ContentFate::Mixed, EntryFate::Any),
        };
        Self::new(FileFate::new(content), entries)
    }
}

impl Content {
    /// The power fails. Of what was not synced remains what `fate` says, and it is durable.
    pub(super) fn power_loss(&mut self, fate: &FileFate, draws: &mut Draws) {
        if !self.is_durable() {
            let (image, _) = self.resolve(fate, draws);
            self.disk.clone_from(&image);
            self.cached = image;
        }
        self.dirty.clear();
        self.lost.clear();
        self.cut_to = None;
        self.journal.clear();
        self.allocated.truncate(self.len());
    }

    /// What the disk holds once the un-synced changes have met their fate, and whether a cut was
    /// among those that reached it.
    fn resolve(&self, fate: &FileFate, draws: &mut Draws) -> (Vec<u8>, bool) {
        let content = match &fate.content {
            ContentFate::Mixed => match draws.within(0..=3) {
                0 => ContentFate::Old,
                1 => ContentFate::New,
                2 => ContentFate::Prefix,
                _ => ContentFate::Sectors(SectorFate::ALL.to_vec()),
            },
            other => other.clone(),
        };
        if content == ContentFate::Prefix {
            return self.resolve_prefix(fate.length, draws);
        }
        let length_fate = match (fate.length, &content) {
            (LengthFate::AsContent, ContentFate::Old) => LengthFate::Old,
            (LengthFate::AsContent, ContentFate::Sectors(_)) => LengthFate::Any,
            (LengthFate::AsContent, _) => LengthFate::New,
            (other, _) => other,
        };
        let (len, cut) = self.draw_len(length_fate, draws);
        let mut image = self.disk.clone();
        if cut && let Some(cut_to) = self.cut_to {
            image.truncate(at(cut_to));
        }
        image.resize(image.len().max(self.cached.len()), 0);
        match content {
            ContentFate::New => self.keep(std::slice::from_ref(&(0..u64::MAX)), &mut image),
            ContentFate::NewIn(ranges) => self.keep(&ranges, &mut image),
            ContentFate::Sectors(fates) => self.resolve_sectors(&fates, &mut image, draws),
            ContentFate::Old | ContentFate::Prefix | ContentFate::Mixed => {}
        }
        image.resize(at(len), 0);
        (image, cut)
    }

    /// The length that reached the disk, and whether cuts did.
    fn draw_len(&self, fate: LengthFate, draws: &mut Draws) -> (u64, bool) {
        let (old, new) = (length(&self.disk), self.len());
        let fate = match fate {
            LengthFate::Any => *draws
                .pick(&[LengthFate::Old, LengthFate::New, LengthFate::Between])
                .unwrap_or(&LengthFate::New),
            other => other,
        };
        match fate {
            LengthFate::Old => (old, false),
            LengthFate::Between => (
                draws.within(old.min(new)..=old.max(new)),
                self.cut_to.is_some() && draws.coin(),
            ),
            LengthFate::New | LengthFate::Any | LengthFate::AsContent => {
                (new, self.cut_to.is_some())
            }
        }
    }

    fn keep(&self, ranges: &[Range<u64>], image: &mut [u8]) {
        for range in ranges {
            for dirty in self.dirty.overlap(range.clone()) {
                copy_range(&self.cached, image, dirty);
            }
        }
    }

    /// The changes up to a moment: whole ones, and some bytes of the next.
    fn resolve_prefix(&self, length_fate: LengthFate, draws: &mut Draws) -> (Vec<u8>, bool) {
        let whole = at(draws.within(0..=self.journal.len() as u64));
        let mut image = self.disk.clone();
        let mut cut = false;
        for change in self.journal.iter().take(whole) {
            cut |= matches!(change, Unsynced::SetLen(len) if *len < length(&image));
            replay(change, &mut image);
        }
        if let Some(Unsynced::Write { offset, data }) = self.journal.get(whole) {
            let bytes = at(draws.within(0..=length(data)));
            replay(
                &Unsynced::Write {
                    offset: *offset,
                    data: data.slice(..bytes),
                },
                &mut image,
            );
        }
        if length_fate != LengthFate::AsContent {
            let (len, _) = self.draw_len(length_fate, draws);
            image.resize(at(len), 0);
        }
        (image, cut)
    }

    fn resolve_sectors(&self, fates: &[SectorFate], image: &mut [u8], draws: &mut Draws) {
        let mut at_risk: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        for range in self.dirty.iter() {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min((start / SECTOR + 1) * SECTOR);
                at_risk.entry(start / SECTOR).or_default().push(start..end);
                start = end;
            }
        }
        let mut run = (0, SectorFate::Old);
        for (sector, ranges) in at_risk {
            if sector >= run.0 {
                let fate = draws.pick(fates).copied().unwrap_or(SectorFate::Old);
                // A disk often loses neighbouring sectors together: an erase block, a stripe.
                let together = if draws.one_in(4) {
                    draws.within(1..=16)
                } else {
                    1
                };
                run = (sector + together, fate);
            }
            self.resolve_sector(run.1, sector * SECTOR, &ranges, image, draws);
        }
    }

    fn resolve_sector(
        &self,
        fate: SectorFate,
        start: u64,
        at_risk: &[Range<u64>],
        image: &mut [u8],
        draws: &mut Draws,
    ) {
        let end = start + SECTOR;
        let new = match fate {
            SectorFate::Old => return,
            SectorFate::New => start..end,
            SectorFate::Torn => {
                let k = start + draws.within(1..=SECTOR - 1);
                if draws.coin() { start..k } else { k..end }
            }
            SectorFate::Earlier => return self.resolve_earlier(start, at_risk, image, draws),
            SectorFate::Zero | SectorFate::Garbage => {
                for position in at_risk.iter().cloned().flatten() {
                    if let Some(byte) = image.get_mut(at(position)) {
                        *byte = if fate == SectorFate::Zero {
                            0
                        } else {
                            draws.byte()
                        };
                    }
                }
                return;
            }
        };
        for range in at_risk {
            let kept = range.start.max(new.start)..range.end.min(new.end);
            if !kept.is_empty() {
                copy_range(&self.cached, image, kept);
            }
        }
    }

    /// The sector after some of the writes to it.
    fn resolve_earlier(
        &self,
        start: u64,
        at_risk: &[Range<u64>],
        image: &mut [u8],
        draws: &mut Draws,
    ) {
        let writes: Vec<_> = self
            .journal
            .iter()
            .filter_map(|change| match change {
                Unsynced::Write { offset, data }
                    if *offset < start + SECTOR && offset + length(data) > start =>
                {
                    Some((*offset, data))
                }
                _ => None,
            })
            .collect();
        let some = at(draws.within(0..=writes.len() as u64));
        for (offset, data) in writes.into_iter().take(some) {
            for range in at_risk {
                let from = range.start.max(offset);
                let to = range.end.min(offset + length(data));
                for position in from..to {
                    let byte = data.get(at(position - offset));
                    if let (Some(byte), Some(target)) = (byte, image.get_mut(at(position))) {
                        *target = *byte;
                    }
                }
            }
        }
    }

    /// A sync that fails.
    pub(super) fn fail_sync(&mut self, failure: SyncFailure, draws: &mut Draws) {
        match failure {
            SyncFailure::StillDirty => {}
            SyncFailure::Kept => self.sync(),
            SyncFailure::Lost => self.mark_clean(),
            SyncFailure::Torn => {
                let fate = FileFate::new(ContentFate::Sectors(SectorFate::ALL.to_vec()));
                let (image, cut) = self.resolve(&fate, draws);
                self.disk = image;
                if cut {
                    self.cut_to = None;
                }
                self.mark_clean();
            }
            SyncFailure::Reverted => self.revert(),
        }
    }

    /// The dirty bytes are clean without having been written. The length is metadata, which a later
    /// sync still writes.
    fn mark_clean(&mut self) {
        for range in self.dirty.iter() {
            self.lost.insert(range);
        }
        self.dirty.clear();
        self.cut_to = self.cut_to.filter(|cut| *cut < length(&self.disk));
        let lens = self.cut_to.into_iter().chain([self.len()]);
        self.journal = lens.map(Unsynced::SetLen).collect();
    }

    fn revert(&mut self) {
        let keep = self
            .cut_to
            .take()
            .unwrap_or(length(&self.disk))
            .min(self.len());
        self.cached.truncate(at(keep));
        self.cached
            .extend_from_slice(self.disk.get(at(keep)..).unwrap_or_default());
        for range in self.dirty.iter() {
            copy_range(&self.disk, &mut self.cached, range);
        }
        self.dirty.clear();
        self.lost.truncate(length(&self.disk));
        self.allocated.truncate(length(&self.disk));
        self.journal.clear();
    }

    /// The kernel drops clean pages: where their sync had failed, a read sees the disk again.
    pub(super) fn evict(&mut self) {
        for range in self.lost.iter() {
            copy_range(&self.disk, &mut self.cached, range);
        }
        self.lost.clear();
    }
}

fn replay(change: &Unsynced, image: &mut Vec<u8>) {
    match change {
        Unsynced::SetLen(len) => image.resize(at(*len), 0),
        Unsynced::Write { offset, data } => {
            let end = offset + length(data);
            if data.is_empty() {
                return;
            }
            if length(image) < end {
                image.resize(at(end), 0);
            }
            if let Some(target) = image.get_mut(at(*offset)..at(end)) {
                target.copy_from_slice(data);
            }
        }
    }
}
