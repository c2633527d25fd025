//! What may become of what was not synced.

use std::ops::Range;
use std::path::PathBuf;

use super::fault::PathPattern;
use crate::draws::Draws;

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
    /// The changes whose bit is set reach the disk (the first un-synced one's is the lowest, from
    /// the 65th on they are lost), unless they build on one that does not: for a test that goes
    /// through all combinations.
    These(u64),
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

    /// Whether the `index`th un-synced change of names reaches the disk.
    pub(super) fn keeps_entry(&self, index: u32, draws: &mut Draws) -> bool {
        match self.entries {
            EntryFate::Lost => false,
            EntryFate::Kept => true,
            EntryFate::Any => draws.coin(),
            EntryFate::These(bits) => bits.checked_shr(index).unwrap_or(0) & 1 == 1,
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
