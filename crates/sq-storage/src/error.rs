//! What can go wrong, and what a caller should do about it.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use sq_sim::is_out_of_handles;

use crate::frame::FrameError;
use crate::record::RecordError;
use crate::reserve::is_out_of_space;
use crate::wal::segment::SegmentHeaderError;

/// The result of a storage operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller should do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing was appended; the same call may succeed later (a full disk, too many open files).
    Retry,
    /// Drop the writer and open the partition again.
    Reopen,
    /// Data is damaged or missing: an operator has to look. Nothing was changed.
    Repair,
    /// The call can never succeed as it is.
    GiveUp,
}

/// An error of the log. Each names the file it is about, and the position where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on a file or directory failed; the log is as it was.
    #[error("{op} {path}: {source}")]
    Io {
        /// What was being done.
        op: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A write failed or was cut short. Nothing was appended, and nothing can land behind the part
    /// that was written.
    #[error("write {path} at byte {position}: {source}")]
    Write {
        /// The segment file.
        path: PathBuf,
        /// Where the write began, in bytes.
        position: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// A sync failed. Nothing was appended as far as the log is concerned, the file takes no further
    /// write, and the next append goes to a fresh one.
    #[error("sync {path}: {source}")]
    Sync {
        /// The segment file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The disk was found full, and there is no room yet. Nothing was written.
    #[error("the disk is full: there is no room for {path}")]
    DiskFull {
        /// The file of the [`Reserve`](crate::Reserve) that was given back.
        path: PathBuf,
    },
    /// Several files in a row had a failed write or sync: the partition takes no append until
    /// [`allow_writes`](crate::wal::WalWriter::allow_writes) is called.
    #[error("{path} is read-only: {poisoned_in_a_row} files in a row failed")]
    ReadOnly {
        /// The partition's directory.
        path: PathBuf,
        /// How many files failed without a good append between them.
        poisoned_in_a_row: u32,
    },
    /// The segment before is full or takes no further write, and the next one is not ready yet. Nothing
    /// was written.
    #[error("{path}: the next segment is not ready yet")]
    NoSuccessor {
        /// The partition's directory.
        path: PathBuf,
    },
    /// Whoever decided where the log's segments end has stopped: another leads, or the log is deleted.
    #[error("{path} is not written any more: {reason}")]
    Stopped {
        /// The partition's directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An append larger than a frame may be.
    #[error("{bytes} bytes are more than a frame may have ({limit})")]
    TooLarge {
        /// The frame's size in bytes.
        bytes: usize,
        /// The largest allowed, in bytes.
        limit: usize,
    },
    /// A batch that says it holds no record.
    #[error("a batch needs at least one record")]
    EmptyBatch,
    /// A timestamp beyond `i64::MAX` milliseconds.
    #[error("the timestamp {0} does not fit 63 bits")]
    Timestamp(u64),
    /// The partition has given out every offset.
    #[error("no offset is left after {0}")]
    OffsetsExhausted(u64),
    /// A record that has no encoding.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Acknowledged data is damaged. The file was not changed.
    #[error("{path} is damaged at byte {position}, offset {offset}: {reason} ({evidence})")]
    Damaged {
        /// The segment file.
        path: PathBuf,
        /// The first damaged byte's frame, in bytes from the file's start.
        position: u64,
        /// The first offset that can't be read.
        offset: u64,
        /// What is wrong there.
        reason: DamageReason,
        /// What says that the data was acknowledged.
        evidence: Evidence,
    },
    /// A segment that the manifest lists is not there.
    #[error("{path} is missing; it held the offsets from {base_offset} on")]
    MissingSegment {
        /// The segment file.
        path: PathBuf,
        /// Its first offset.
        base_offset: u64,
    },
    /// A log that should end within a batch, which is stored as a whole.
    #[error("offset {offset} is within the batch of the offsets {batch:?}")]
    InsideBatch {
        /// Where the log should end.
        offset: u64,
        /// The offsets of the batch.
        batch: Range<u64>,
    },
    /// A log that should end before it starts.
    #[error("offset {offset} is below the log's start, {start}")]
    BelowStart {
        /// Where the log should end.
        offset: u64,
        /// Where it starts.
        start: u64,
    },
    /// The manifest is damaged, and no segment is there to say where the log was.
    #[error("{path} is damaged, and nothing else says which offsets the log has given out")]
    UnknownStart {
        /// The manifest.
        path: PathBuf,
    },
    /// A segment file that is another partition's.
    #[error("{path}: {source}")]
    SegmentHeader {
        /// The segment file.
        path: PathBuf,
        /// What is wrong with it.
        source: SegmentHeaderError,
    },
}

/// What is wrong with a damaged place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DamageReason {
    /// The bytes are no frame.
    #[error("{0}")]
    Frame(FrameError),
    /// A valid frame of another segment.
    #[error("the frame belongs to segment {found:016x}, not {expected:016x}")]
    OtherSegment {
        /// The id in the frame.
        found: u64,
        /// The segment's own.
        expected: u64,
    },
    /// A valid frame that does not continue the one before it.
    #[error("the frame starts at offset {0}")]
    Discontinuous(u64),
    /// The log should go on, and the file ends here or holds zeros.
    #[error("nothing was written here")]
    EndOfFile,
    /// The file's header is not what was written.
    #[error("the segment's header is damaged: {0}")]
    Header(SegmentHeaderError),
    /// The file is shorter than when it was sealed.
    #[error("the file has {actual} bytes, {expected} when it was sealed")]
    Length {
        /// Its length in bytes.
        actual: u64,
        /// The least it can be.
        expected: u64,
    },
    /// The file is not there.
    #[error("the file is missing")]
    Missing,
    /// The index is not the one that was written for the segment.
    #[error("the index is not what was written")]
    Index,
}

/// What says that a record was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Evidence {
    /// A later frame says that everything below this offset was committed.
    #[error("a later frame says all below {0} was committed")]
    LaterFrame(u64),
    /// The manifest says that the log reached this offset.
    #[error("the manifest says the log reached {0}")]
    Manifest(u64),
    /// It is below the end that the log has told its readers.
    #[error("the log was readable up to {0}")]
    Readable(u64),
}

impl Error {
    /// What a caller should do.
    pub fn action(&self) -> Action {
        match self {
            Self::Io { .. }
            | Self::Write { .. }
            | Self::Sync { .. }
            | Self::DiskFull { .. }
            | Self::NoSuccessor { .. } => Action::Retry,
            Self::ReadOnly { .. } | Self::Stopped { .. } => Action::Reopen,
            Self::Damaged { .. }
            | Self::MissingSegment { .. }
            | Self::UnknownStart { .. }
            | Self::SegmentHeader { .. } => Action::Repair,
            Self::TooLarge { .. }
            | Self::EmptyBatch
            | Self::Timestamp(_)
            | Self::OffsetsExhausted(_)
            | Self::InsideBatch { .. }
            | Self::BelowStart { .. }
            | Self::Record(_) => Action::GiveUp,
        }
    }

    /// Whether there was no room for it on the disk.
    pub fn is_out_of_space(&self) -> bool {
        match self {
            Self::Io { source, .. } | Self::Write { source, .. } | Self::Sync { source, .. } => {
                source.kind() != io::ErrorKind::FileTooLarge && is_out_of_space(source)
            }
            Self::DiskFull { .. } => true,
            _ => false,
        }
    }

    /// Whether the process or the system had as many files open as it may have (EMFILE, ENFILE). Nothing
    /// was done, and the same call succeeds once others are closed.
    pub fn is_out_of_handles(&self) -> bool {
        match self {
            Self::Io { source, .. } | Self::Write { source, .. } | Self::Sync { source, .. } => {
                is_out_of_handles(source)
            }
            _ => false,
        }
    }

    pub(crate) fn io(op: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { op, path, source }
    }
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The offset is below the log's start or above its end.
    #[error("offset {offset} is outside of {start}..={end}")]
    OutOfRange {
        /// The offset asked for.
        offset: u64,
        /// The log's first offset.
        start: u64,
        /// The offset that the next record will get.
        end: u64,
    },
    /// A record that was acknowledged can't be read back.
    #[error(transparent)]
    Damaged(Error),
    /// The file could not be read.
    #[error("read {path}: {source}")]
    Io {
        /// The segment file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}
