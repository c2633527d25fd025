//! What the layer above knew at a segment's end, kept beside the segment.
//!
//! ```text
//! file:   {segment's name without .wal}.sidecar
//!
//!  0       4   6   8               16              24
//!  +-------+---+---+---------------+---------------+---------+-------+
//!  | "SQSC"|ver| 0 |  segment id   |  end offset   | content |  CRC  |
//!  +-------+---+---+---------------+---------------+---------+-------+
//! ```
//!
//! The CRC-32 covers all before it. All integers are big-endian. A segment never changes below the
//! offset at which it ended, so id and end offset say of which records the content speaks: of a segment
//! that was cut since, or of another that had the name, it says nothing.
//!
//! It is written behind the seal, and durable before the manifest calls the segment sealed. One that is
//! missing or wrong in any way costs reading the segment.
//!
//! What only a purged segment knew is not forgotten with it: the sidecar of the last one becomes
//! `start.sidecar` once it is durable that the log begins behind it. From then on nothing below its end
//! offset can change, so it stays right for ever; it is of use while the log begins just there.

use std::io;
use std::path::Path;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use sq_sim::FileSystem;

use super::companion::Companion;
use super::reader::StoredFrame;
use super::segment::SegmentName;

/// What a sidecar starts with: magic, version, zero.
const SIDECAR_HEADER: [u8; 8] = *b"SQSC\x00\x01\x00\x00";

/// The sidecar of the last segment that was purged.
const AT_START: &str = "start.sidecar";

/// The bytes in front of the content.
const CONTENT_POSITION: usize = 24;

const CRC_LEN: usize = 4;

/// What the layer above knew of all records below an offset. Opaque to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// The offset behind the last record that it takes in.
    pub end_offset: u64,
    /// What the layer above made of them.
    pub content: Bytes,
}

impl Sidecar {
    fn encode(&self, id: u64) -> Bytes {
        let mut file = BytesMut::with_capacity(CONTENT_POSITION + self.content.len() + CRC_LEN);
        file.put_slice(&SIDECAR_HEADER);
        file.put_u64(id);
        file.put_u64(self.end_offset);
        file.put_slice(&self.content);
        file.put_u32(crc32fast::hash(&file));
        file.freeze()
    }

    /// The sidecar in a file, and its segment's id.
    fn decode(file: &Bytes) -> Option<(u64, Self)> {
        let covered = file.len().checked_sub(CRC_LEN)?;
        let (body, crc) = file.split_at_checked(covered)?;
        let (mut head, _) = body.split_at_checked(CONTENT_POSITION)?;
        let is_whole =
            head.starts_with(&SIDECAR_HEADER) && crc == crc32fast::hash(body).to_be_bytes();
        head.advance(SIDECAR_HEADER.len());
        let (id, end_offset) = (head.get_u64(), head.get_u64());
        let content = file.slice(CONTENT_POSITION..covered);
        let sidecar = Self {
            end_offset,
            content,
        };
        is_whole.then_some((id, sidecar))
    }
}

/// Reads the sidecar of a segment at its end; `None` if there is none, or anything is wrong with it.
pub(super) async fn read<F: FileSystem>(
    fs: &F,
    dir: &Path,
    name: &SegmentName,
    id: u64,
    end_offset: u64,
) -> Option<Sidecar> {
    let path = Companion::Sidecar.path(dir, name);
    read_at(fs, &path, Some(id), end_offset).await
}

/// Reads the sidecar of the last segment that was purged, if it ended at this offset.
pub(super) async fn read_at_start<F: FileSystem>(
    fs: &F,
    dir: &Path,
    end_offset: u64,
) -> Option<Sidecar> {
    read_at(fs, &dir.join(AT_START), None, end_offset).await
}

async fn read_at<F: FileSystem>(
    fs: &F,
    path: &Path,
    id: Option<u64>,
    end_offset: u64,
) -> Option<Sidecar> {
    let is_it = |of: u64, sidecar: &Sidecar| {
        id.is_none_or(|id| id == of) && sidecar.end_offset == end_offset
    };
    // Twice, as in a walk: a bit may have been lost on the way.
    for _ in 0..2 {
        let file = Companion::Sidecar.read_at(fs, path).await?;
        if let Some((of, sidecar)) = Sidecar::decode(&file)
            && is_it(of, &sidecar)
        {
            return Some(sidecar);
        }
    }
    None
}

/// Keeps the sidecar at `path`, if it is that of this segment at its end, as that of the last segment that
/// was purged. The log must begin there or behind it, durably.
pub(super) async fn keep<F: FileSystem>(
    fs: &F,
    path: &Path,
    id: u64,
    end_offset: u64,
) -> io::Result<()> {
    match read_at(fs, path, Some(id), end_offset).await {
        Some(_) => fs.rename(path, &path.with_file_name(AT_START)).await,
        None => Ok(()),
    }
}

/// Writes the sidecar of a segment, and makes it and its name durable.
pub(super) async fn write<F: FileSystem>(
    fs: &F,
    dir: &Path,
    name: &SegmentName,
    id: u64,
    sidecar: &Sidecar,
) -> io::Result<()> {
    let file = sidecar.encode(id);
    Companion::Sidecar.write(fs, dir, name, file).await?;
    fs.sync_dir(dir).await
}

/// A layer above the log that comes back together with it: from what it left in a sidecar, and the
/// frames behind that, which opening reads anyway.
///
/// ```
/// # use std::sync::Arc;
/// # use sq_sim::{OsFileSystem, SystemClock};
/// # use sq_storage::{RecoveryVisitor, Sidecar, StoredFrame, TopicName, WalConfig, WalWriter};
/// # use std::sync::atomic::{AtomicU64, Ordering};
/// /// Counts the bytes that a log ever took, and where it stands.
/// #[derive(Default)]
/// struct Total {
///     bytes: u64,
///     offset: u64,
/// }
///
/// impl RecoveryVisitor for Total {
///     fn begin(&mut self, sidecar: Option<&Sidecar>) -> Option<u64> {
///         *self = Self::default();
///         if let Some(Sidecar { end_offset, content }) = sidecar {
///             self.bytes = u64::from_be_bytes(content.as_ref().try_into().ok()?);
///             self.offset = *end_offset;
///         }
///         Some(self.offset)
///     }
///
///     fn frame(&mut self, frame: &StoredFrame) {
///         self.bytes += frame.payload.len() as u64;
///         self.offset = frame.end_offset();
///     }
///
///     fn sidecar(&mut self, end_offset: u64) -> Option<bytes::Bytes> {
///         let is_there = self.offset == end_offset;
///         is_there.then(|| self.bytes.to_be_bytes().to_vec().into())
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let (fs, clock) = (Arc::new(OsFileSystem::inline()), Arc::new(SystemClock));
/// # let config = WalConfig { max_segment_bytes: 1 << 20, ..WalConfig::new(dir.path()) };
/// # let orders = TopicName::new("orders")?;
/// let mut total = Total::default();
/// let mut log = WalWriter::visited(fs, config, orders, 0, clock, &mut total).await?;
/// let total = Arc::new(std::sync::Mutex::new(total));
/// let shared = Arc::clone(&total);
/// log.set_sidecar_source(move |end_offset| shared.lock().ok()?.sidecar(end_offset));
///
/// let start = log.next_offset();
/// log.append(None, b"two of them", &[], 0).await?;
/// for frame in log.reader().read(start, 1 << 20).await? {
///     total.lock().unwrap().frame(&frame);
/// }
/// log.close_active_segment().await?; // ... with its sidecar.
/// # assert!(dir.path().join("orders/0/00000000000000000000.sidecar").exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait RecoveryVisitor: Send {
    /// Starts over, from what a sidecar says or, where there is none, from nothing. Returns the offset
    /// from which on it wants to see frames, usually [`Sidecar::end_offset`]; `None` if it can make
    /// nothing of the sidecar, whereupon an older one is tried.
    ///
    /// It may be called again at any time before opening is done: what was seen so far does not count.
    fn begin(&mut self, sidecar: Option<&Sidecar>) -> Option<u64>;

    /// Takes in the next frame of the log, in the order of the offsets. Marks are left out, and so is
    /// what a damaged part held: the offsets tell.
    fn frame(&mut self, frame: &StoredFrame);

    /// What it knows of all records below `end_offset`, at which a segment ends that has no sidecar and
    /// up to which it has seen the log. `None`, which is the default, to leave that one without.
    fn sidecar(&mut self, end_offset: u64) -> Option<Bytes> {
        let _ = end_offset;
        None
    }
}

/// Says what the layer above knows of all records below an offset.
pub(super) type SidecarSource = Box<dyn FnMut(u64) -> Option<Bytes> + Send + Sync>;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sidecar_comes_back_as_it_was_or_not_at_all(
            id: u64, end_offset: u64, content: Vec<u8>, bit: prop::sample::Index, cut: prop::sample::Index,
        ) {
            let sidecar = Sidecar { end_offset, content: content.into() };
            let file = sidecar.encode(id);
            prop_assert_eq!(Sidecar::decode(&file), Some((id, sidecar)));
            let mut flipped = file.to_vec();
            let bit = bit.index(flipped.len() * 8);
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Sidecar::decode(&flipped.into()), None);
            let short = file.slice(..cut.index(file.len()));
            prop_assert_eq!(Sidecar::decode(&short), None);
        }
    }
}
