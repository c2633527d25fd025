//! The manifest: what a partition's directory is known to hold, as an appended list of lines.
//!
//! ```text
//! file:   "SQMF", u16 version, u16 zero, then lines of 48 bytes
//!
//!  0 1 2   4       8               16              24              32
//!  +-+-+---+-------+---------------+---------------+---------------+
//!  |k|n| 0 |ordinal|      id       |  base offset  |  end offset   |
//!  +-+-+---+-------+---------------+---------------+---------------+
//!  |    length     | index | crc   |
//!  +---------------+-sum---+-------+
//!  32              40      44      48
//! ```
//!
//! `k` is the kind (1 created, 2 sealed), `n` is 1 where the file's name carries the id. `length` and
//! `end offset` are 0 in a *created* line; `index sum` is kept for the checksum of a sealed segment's
//! index, 0 while there is none. `crc` is the CRC-32 of the 44 bytes before it. All integers are
//! big-endian.
//!
//! The manifest is evidence, never the only copy of anything: what it does not say, recovery finds
//! by scanning. So a line that fails to be written holds nothing up; the file is written anew, whole
//! and atomically, the next time. A damaged line costs a scan, not its neighbours.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use sq_sim::{FileHandle, FileSystem};

use super::segment::SegmentName;

/// The manifest's name in a partition's directory.
pub const MANIFEST_NAME: &str = "manifest";

/// What a manifest starts with: magic, version, zero.
const MANIFEST_HEADER: [u8; 8] = *b"SQMF\x00\x01\x00\x00";

/// The bytes of one line.
pub const MANIFEST_LINE_LEN: usize = 48;

/// How a manifest that is being written anew is called until it is complete.
const TEMPORARY_SUFFIX: &str = ".manifest-tmp";

/// What sealing a segment fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The offset behind its last record.
    pub end_offset: u64,
    /// The bytes of header and frames.
    pub length: u64,
}

/// What the manifest says of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The segment's id.
    pub id: u64,
    /// Its place among all segments ever made for the partition.
    pub ordinal: u32,
    /// Its file's name.
    pub name: SegmentName,
    /// Its end, once it is sealed.
    pub seal: Option<Seal>,
}

const CREATED: u8 = 1;
const SEALED: u8 = 2;

impl ManifestEntry {
    /// Whether the segment was sealed without a record.
    pub fn is_empty(&self) -> bool {
        self.seal
            .is_some_and(|s| s.end_offset == self.name.base_offset)
    }

    /// One line, 48 bytes.
    pub fn encode(&self) -> [u8; MANIFEST_LINE_LEN] {
        let mut line = [0; MANIFEST_LINE_LEN];
        let mut rest = line.as_mut_slice();
        rest.put_u8(if self.seal.is_some() { SEALED } else { CREATED });
        rest.put_u8(u8::from(self.name.id.is_some()));
        rest.put_u16(0);
        rest.put_u32(self.ordinal);
        rest.put_u64(self.id);
        rest.put_u64(self.name.base_offset);
        rest.put_u64(self.seal.map_or(0, |s| s.end_offset));
        rest.put_u64(self.seal.map_or(0, |s| s.length));
        let crc = crc32fast::hash(line.get(..MANIFEST_LINE_LEN - 4).unwrap_or_default());
        if let Some(slot) = line.last_chunk_mut::<4>() {
            *slot = crc.to_be_bytes();
        }
        line
    }

    /// Reads a line; `None` if it is not whole and valid.
    pub fn decode(line: &[u8]) -> Option<Self> {
        let (covered, mut crc) = line.split_at_checked(MANIFEST_LINE_LEN - 4)?;
        if crc.len() != 4 || crc.get_u32() != crc32fast::hash(covered) {
            return None;
        }
        let mut rest = covered;
        let (kind, named) = (rest.get_u8(), rest.get_u8());
        let zero = rest.get_u16();
        let ordinal = rest.get_u32();
        let id = rest.get_u64();
        let base_offset = rest.get_u64();
        let seal = Seal {
            end_offset: rest.get_u64(),
            length: rest.get_u64(),
        };
        if zero != 0 || named > 1 {
            return None;
        }
        let seal = match kind {
            CREATED => None,
            SEALED if seal.end_offset >= base_offset => Some(seal),
            _ => return None,
        };
        let name = SegmentName {
            base_offset,
            id: (named == 1).then_some(id),
        };
        Some(Self {
            id,
            ordinal,
            name,
            seal,
        })
    }
}

/// A manifest as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestContent {
    /// One entry for each segment, in the order in which they were first listed.
    pub entries: Vec<ManifestEntry>,
    /// How many lines could not be read, a torn last one included.
    pub damaged_lines: usize,
    /// Whether the file as a whole is not what a manifest should be: missing, short, or of another
    /// version.
    pub unreadable: bool,
}

impl ManifestContent {
    /// Reads a manifest's bytes. Never fails: what can't be read is counted.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        let Some(lines) = bytes.strip_prefix(&MANIFEST_HEADER) else {
            content.unreadable = true;
            return content;
        };
        let mut places = HashMap::new();
        for line in lines.chunks(MANIFEST_LINE_LEN) {
            let Some(entry) = ManifestEntry::decode(line) else {
                content.damaged_lines += 1;
                continue;
            };
            let place = *places.entry(entry.id).or_insert(content.entries.len());
            match content.entries.get_mut(place) {
                Some(known) => *known = entry,
                None => content.entries.push(entry),
            }
        }
        content
    }

    /// The entries by their files' names. Where a name was used again, its last one.
    pub fn by_name(&self) -> HashMap<SegmentName, ManifestEntry> {
        self.entries.iter().map(|e| (e.name, *e)).collect()
    }

    /// Whether lines can be appended to the file that this was read from.
    pub fn is_intact(&self) -> bool {
        !self.unreadable && self.damaged_lines == 0
    }

    fn encode(entries: &[ManifestEntry]) -> Bytes {
        let mut out = BytesMut::with_capacity(8 + entries.len() * MANIFEST_LINE_LEN);
        out.put_slice(&MANIFEST_HEADER);
        for entry in entries {
            out.put_slice(&entry.encode());
        }
        out.freeze()
    }
}

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
    // A bit may have been lost on the way from the disk.
    Ok(ManifestContent::decode(&file.read_at(0, len).await?))
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
    entries: Vec<ManifestEntry>,
    /// Where lines are appended; `None` when the file has to be written anew first.
    file: Option<(Box<dyn FileHandle>, u64)>,
}

impl Manifest {
    /// Takes over what recovery found to be there. A manifest that says just that is appended to;
    /// any other is written anew with the next line.
    pub(super) async fn adopt<F: FileSystem>(
        fs: &F,
        dir: PathBuf,
        found: &ManifestContent,
        entries: Vec<ManifestEntry>,
    ) -> Self {
        let mut file = None;
        if found.is_intact()
            && same(&found.entries, &entries)
            && let Ok(handle) = fs.open(&dir.join(MANIFEST_NAME)).await
            && let Ok(len) = handle.len().await
        {
            file = Some((handle, len));
        }
        Self { dir, entries, file }
    }

    /// The directory that it lists.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes the file anew, so that what it says is durable for certain: what was read from it may
    /// have been in the page cache only.
    pub(super) async fn make_durable<F: FileSystem>(&mut self, fs: &F) -> io::Result<()> {
        self.file = None;
        self.record(fs, &[]).await
    }

    /// Adds to or replaces entries, and makes that durable.
    ///
    /// On an error, or when the future is dropped, the entries are kept all the same and the next
    /// call writes the whole file.
    pub(super) async fn record<F: FileSystem>(
        &mut self,
        fs: &F,
        changed: &[ManifestEntry],
    ) -> io::Result<()> {
        let mut lines = BytesMut::with_capacity(changed.len() * MANIFEST_LINE_LEN);
        for entry in changed {
            lines.put_slice(&entry.encode());
            match self.entries.iter_mut().find(|e| e.id == entry.id) {
                Some(known) => *known = *entry,
                None => self.entries.push(*entry),
            }
        }
        // Taken out while it is in use: an error or a drop leaves `None`, so that nothing is ever
        // appended behind a line whose fate is unknown.
        let (file, position) = match self.file.take() {
            Some((file, position)) => {
                let next = position + lines.len() as u64;
                file.write_and_sync_at(position, &[lines.freeze()])
                    .await
                    .map_err(|e| match e {
                        sq_sim::DurableWriteError::Write(e)
                        | sq_sim::DurableWriteError::Sync(e) => e,
                    })?;
                (file, next)
            }
            None => self.write_anew(fs).await?,
        };
        self.file = Some((file, position));
        Ok(())
    }

    async fn write_anew<F: FileSystem>(&self, fs: &F) -> io::Result<(Box<dyn FileHandle>, u64)> {
        // The name is unique among attempts, since one whose future was dropped may still be
        // under way. Entries only ever grow or change, so their checksum tells attempts apart.
        let bytes = ManifestContent::encode(&self.entries);
        let len = bytes.len() as u64;
        let mut attempt = u64::from(crc32fast::hash(&bytes));
        let (temporary, file) = loop {
            let path = self.dir.join(format!("{attempt:016x}{TEMPORARY_SUFFIX}"));
            match fs.create_new(&path).await {
                Ok(file) => break (path, file),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => attempt += 1 << 32,
                Err(e) => return Err(e),
            }
        };
        let written = async {
            file.write_at(0, &[bytes]).await?;
            file.sync_all().await?;
            fs.rename(&temporary, &self.dir.join(MANIFEST_NAME)).await?;
            fs.sync_dir(&self.dir).await
        };
        if let Err(e) = written.await {
            // Best effort: what stays is removed when the partition is opened next.
            let _ = fs.remove_file(&temporary).await;
            return Err(e);
        }
        Ok((file, len))
    }
}

/// Whether two lists say the same of the same segments, in whatever order.
fn same(one: &[ManifestEntry], other: &[ManifestEntry]) -> bool {
    let sorted = |entries: &[ManifestEntry]| {
        let mut entries = entries.to_vec();
        entries.sort_by_key(|e| e.id);
        entries
    };
    sorted(one) == sorted(other)
}

/// Whether a file is a manifest that was never completed.
pub(super) fn is_temporary(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|n| n.ends_with(TEMPORARY_SUFFIX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = ManifestEntry> {
        (
            any::<u64>(),
            any::<u32>(),
            any::<u64>(),
            any::<bool>(),
            any::<Option<(u64, u64)>>(),
        )
            .prop_map(|(id, ordinal, base_offset, named, seal)| ManifestEntry {
                id,
                ordinal,
                name: SegmentName {
                    base_offset,
                    id: named.then_some(id),
                },
                seal: seal.map(|(more, length)| Seal {
                    end_offset: base_offset.saturating_add(more),
                    length,
                }),
            })
    }

    proptest! {
        #[test]
        fn line_round_trip(entry in entry()) {
            prop_assert_eq!(ManifestEntry::decode(&entry.encode()), Some(entry));
        }

        #[test]
        fn every_bit_flip_and_every_other_size_is_refused(entry in entry()) {
            let line = entry.encode();
            for bit in 0..MANIFEST_LINE_LEN * 8 {
                let mut flipped = line;
                flipped[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(ManifestEntry::decode(&flipped), None);
            }
            for len in 0..MANIFEST_LINE_LEN {
                prop_assert_eq!(ManifestEntry::decode(&line[..len]), None);
            }
            prop_assert_eq!(ManifestEntry::decode(&[&line[..], &[0]].concat()), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let content = ManifestContent::decode(&bytes);
            prop_assert!(content.entries.len() <= bytes.len() / MANIFEST_LINE_LEN);
        }

        #[test]
        fn a_damaged_line_hides_no_other(
            entries in proptest::collection::vec(entry(), 1..6), at in any::<usize>(), bit in 0..384usize,
        ) {
            let mut bytes = ManifestContent::encode(&entries).to_vec();
            let hit = at % entries.len();
            bytes[8 + hit * MANIFEST_LINE_LEN + bit / 8] ^= 1 << (bit % 8);
            let content = ManifestContent::decode(&bytes);
            prop_assert_eq!(content.damaged_lines, 1);
            prop_assert!(!content.is_intact());
            for (i, entry) in entries.iter().enumerate() {
                let same_id = entries.iter().filter(|e| e.id == entry.id).count();
                if i != hit && same_id == 1 {
                    prop_assert!(content.entries.contains(entry));
                }
            }
        }
    }

    #[test]
    fn the_last_line_of_a_segment_counts() {
        let name = SegmentName {
            base_offset: 5,
            id: None,
        };
        let created = ManifestEntry {
            id: 9,
            ordinal: 1,
            name,
            seal: None,
        };
        let sealed = ManifestEntry {
            seal: Some(Seal {
                end_offset: 8,
                length: 300,
            }),
            ..created
        };
        let content = ManifestContent::decode(&ManifestContent::encode(&[created, sealed]));
        assert_eq!(content.entries, [sealed]);
        assert!(content.is_intact());
    }

    #[test]
    fn an_empty_file_is_unreadable_and_not_an_error() {
        assert!(ManifestContent::decode(&[]).unreadable);
    }
}
