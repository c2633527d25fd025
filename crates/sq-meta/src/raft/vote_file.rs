//! The vote: a small file that is overwritten in place, version 1.
//!
//! ```text
//!      0  slot            28, then zeros up to 4096
//!   4096  slot            the same
//!
//!   a slot is:
//!   0  magic "SQVT"         4
//!   4  version = 1          2
//!   6  is there a vote      1
//!   7  committed            1
//!   8  term                 8
//!  16  node                 8
//!  24  CRC-32 of all before 4
//! ```
//!
//! A vote is written to the first slot and synced, then to the second. So one of them is whole whenever
//! the power fails, and once a vote was saved rot in either leaves the other. The first whole one counts. With
//! neither whole the file is damaged, and the node does not start: whoever forgets its vote may vote
//! twice in a term.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::bytes::{Buf, BufMut, Bytes, BytesMut};
use openraft::LeaderId;
use sq_sim::{FileHandle, FileSystem, create_dir_durably};

use super::Vote;

/// The file's name in the node's directory.
const VOTE_FILE: &str = "vote";

/// What it is called until it is complete.
const NEW_FILE: &str = "vote-new";

const MAGIC: &[u8; 4] = b"SQVT";
const VERSION: u16 = 1;
const SLOT_LEN: usize = 28;
/// Slots are a page apart, so that no write touches both.
const SLOT_SPACING: u32 = 4096;

/// Why the vote can't be read or saved.
#[derive(Debug, thiserror::Error)]
pub enum VoteFileError {
    /// Neither slot is whole.
    #[error("{0} is damaged: the node can't know how it voted")]
    Damaged(PathBuf),
    /// A later version wrote it.
    #[error(
        "{path} has format version {version}, which is not known here (this is version {VERSION})"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version.
        version: u16,
    },
    /// The file system's error.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A save failed before. What the disk holds is unknown, and a second sync of the file would prove
    /// nothing: the node has to open it again.
    #[error("{0}: a vote could not be saved before")]
    Latched(PathBuf),
}

/// The file, open.
#[derive(Debug)]
pub(crate) struct VoteFile<F: FileSystem> {
    fs: Arc<F>,
    path: PathBuf,
    slot: Slot,
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot(Option<Vote>);

impl<F: FileSystem> VoteFile<F> {
    /// Reads the file in a node's directory; one that is not there has no vote. Changes nothing.
    ///
    /// # Errors
    /// [`VoteFileError`].
    pub(crate) async fn read(fs: Arc<F>, dir: &Path) -> Result<Self, VoteFileError> {
        let path = dir.join(VOTE_FILE);
        let content = read(&*fs, &path).await;
        let slot = match content.map_err(|e| io(&path, e))? {
            None => Slot(None),
            Some(bytes) => whole(&path, &bytes)?,
        };
        Ok(Self {
            fs,
            path,
            slot,
            // Until it was settled.
            failed: true,
        })
    }

    /// Makes the directory and what was read durable; votes can be saved from then on.
    ///
    /// After a process crash the page cache may show a vote that no disk has, or one whose sync failed.
    /// A fresh file, synced before it takes the name, holds what this node says.
    ///
    /// # Errors
    /// [`VoteFileError::Io`].
    pub(crate) async fn settle(&mut self) -> Result<(), VoteFileError> {
        let replaced = self.replace().await;
        replaced.map_err(|e| io(&self.path, e))?;
        self.failed = false;
        Ok(())
    }

    /// The vote that was saved last.
    pub(crate) fn vote(&self) -> Option<Vote> {
        self.slot.0
    }

    /// Saves a vote, durably.
    ///
    /// # Errors
    /// [`VoteFileError`]: the vote that was saved before may or may not be there still, and no further
    /// one is taken.
    pub(crate) async fn save(&mut self, vote: Vote) -> Result<(), VoteFileError> {
        if self.failed {
            return Err(VoteFileError::Latched(self.path.clone()));
        }
        let slot = Slot(Some(vote));
        // Set first: a call that is dropped may still take place.
        self.failed = true;
        self.write(&slot.encode()).await?;
        self.failed = false;
        self.slot = slot;
        Ok(())
    }

    async fn write(&self, slot: &Bytes) -> Result<(), VoteFileError> {
        let opened = self.fs.open(&self.path).await;
        let file = opened.map_err(|e| io(&self.path, e))?;
        for at in [0, SLOT_SPACING.into()] {
            let written = write(&*file, at, slot.clone()).await;
            written.map_err(|e| io(&self.path, e))?;
        }
        Ok(())
    }

    /// Puts a fresh file with the present slot, twice, in the place of the one there is.
    async fn replace(&self) -> std::io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        create_dir_durably(&*self.fs, dir).await?;
        let new = self.path.with_file_name(NEW_FILE);
        match self.fs.remove_file(&new).await {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = self.fs.create_new(&new).await?;
        let slot = self.slot.encode();
        file.write_at(SLOT_SPACING.into(), std::slice::from_ref(&slot))
            .await?;
        write(&*file, 0, slot).await?;
        self.fs.rename(&new, &self.path).await?;
        self.fs.sync_dir(dir).await
    }
}

async fn write(file: &dyn FileHandle, at: u64, slot: Bytes) -> std::io::Result<()> {
    file.write_and_sync_at(at, &[slot]).await?;
    Ok(())
}

async fn read<F: FileSystem>(fs: &F, path: &Path) -> std::io::Result<Option<Bytes>> {
    let file = match fs.open_read_only(path).await {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    file.read_at(0, 2 * SLOT_SPACING as usize).await.map(Some)
}

fn whole(path: &Path, bytes: &[u8]) -> Result<Slot, VoteFileError> {
    let second = bytes.get(SLOT_SPACING as usize..).unwrap_or_default();
    let slots = [Slot::decode(bytes), Slot::decode(second)];
    if let Some(slot) = slots.iter().flatten().next() {
        return Ok(*slot);
    }
    let later = |bytes: &[u8]| {
        let version = bytes.strip_prefix(MAGIC)?.try_get_u16().ok()?;
        (version > VERSION).then_some(version)
    };
    match later(bytes).or_else(|| later(second)) {
        Some(version) => Err(VoteFileError::Version {
            path: path.to_owned(),
            version,
        }),
        None => Err(VoteFileError::Damaged(path.to_owned())),
    }
}

fn io(path: &Path, source: std::io::Error) -> VoteFileError {
    VoteFileError::Io {
        path: path.to_owned(),
        source,
    }
}

impl Slot {
    fn encode(self) -> Bytes {
        let vote = self.0.unwrap_or_default();
        let mut out = BytesMut::with_capacity(SLOT_LEN);
        out.put_slice(MAGIC);
        out.put_u16(VERSION);
        out.put_u8(u8::from(self.0.is_some()));
        out.put_u8(u8::from(vote.committed));
        out.put_u64(vote.leader_id.term);
        out.put_u64(vote.leader_id.node_id);
        let crc = crc32fast::hash(&out);
        out.put_u32(crc);
        out.freeze()
    }

    /// `None` for anything that `encode` does not give.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SLOT_LEN)?;
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let _version = rest.try_get_u16().ok()?;
        let is_there = rest.try_get_u8().ok()? == 1;
        let committed = rest.try_get_u8().ok()? == 1;
        let term = rest.try_get_u64().ok()?;
        let node = rest.try_get_u64().ok()?;
        let vote = Vote {
            leader_id: LeaderId::new(term, node),
            committed,
        };
        let slot = Self(is_there.then_some(vote));
        (slot.encode() == bytes).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{SLOT_LEN, Slot};
    use crate::raft::Vote;

    fn slot(term: u64, node: u64, committed: bool) -> Slot {
        let mut vote = Vote::new(term, node);
        vote.committed = committed;
        Slot(Some(vote))
    }

    proptest! {
        #[test]
        fn any_slot_comes_back(term in any::<u64>(), node in any::<u64>(), committed: bool) {
            let given = slot(term, node, committed);
            let bytes = given.encode();
            prop_assert_eq!(bytes.len(), SLOT_LEN);
            prop_assert_eq!(Slot::decode(&bytes), Some(given));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_refused() {
        let none = Slot(None);
        assert_eq!(Slot::decode(&none.encode()), Some(none));
        let bytes = slot(7, 2, true).encode();
        for bit in 0..SLOT_LEN * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::decode(&bad), None, "bit {bit}");
        }
        for len in 0..SLOT_LEN {
            assert_eq!(Slot::decode(&bytes[..len]), None, "cut at {len}");
        }
        assert_eq!(Slot::decode(&[0; 4096]), None);
    }
}
