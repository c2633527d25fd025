//! The state machine, replicated by [openraft]. Nothing outside this module knows of it.
//!
//! | openraft asks for | where it is |
//! |---|---|
//! | the log, its purged and committed positions, the snapshot | one [`Journal`]: records in a log of sq-storage |
//! | the vote | a [`VoteFile`] |
//! | the state machine | a [`Machine`]: the [`MetaState`](crate::MetaState) in memory |
//!
//! The journal is only ever appended to. A truncation or a purge is a record like an entry, so that it
//! is there wholly or not at all, and in the order in which it was asked for: a vote can't stand beside
//! a log whose old tail comes back. What no record needs any more is removed file by file, behind.
//!
//! All of it is durable before it is answered, but for the committed position, which rides on the next
//! record: an older one is as right, and costs no sync.

mod bytes;
mod journal;
mod log_store;
mod machine;
mod network;
mod node;
mod record;
mod rpc;
#[cfg(test)]
mod tests;
mod view;
mod vote_file;

use std::path::PathBuf;
use std::sync::Arc;

use openraft::StorageIOError;
use sq_sim::{Clock, FileSystem, SystemClock};
use sq_storage::SegmentIds;

pub use journal::JournalError;
pub use network::Transport;
pub use vote_file::VoteFileError;

pub(crate) use log_store::LogStore;
pub(crate) use machine::Machine;
pub(crate) use node::{Node, NodeConfig, NodeError, Peers, ReceiveError, WriteError};

use journal::Journal;
use vote_file::VoteFile;

use crate::command::{Applied, Command, Refusal};

#[cfg(not(test))]
type Runtime = openraft::TokioRuntime;

/// The same; under a seed where a test gives one.
#[cfg(test)]
type Runtime = tests::runtime::SeededRuntime;

openraft::declare_raft_types!(
    /// What openraft is told to work with.
    pub(crate) Types:
        D = Command,
        R = Outcome,
        NodeId = u64,
        Node = openraft::BasicNode,
        SnapshotData = ::bytes::Bytes,
        AsyncRuntime = Runtime,
);

/// What came of an entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The entry was openraft's own.
    Own,
    /// It was a command.
    Command(Result<Applied, Refusal>),
}

type LogId = openraft::LogId<u64>;
type Vote = openraft::Vote<u64>;
type Entry = openraft::Entry<Types>;
type Membership = openraft::Membership<u64, openraft::BasicNode>;
type StoredMembership = openraft::StoredMembership<u64, openraft::BasicNode>;
type SnapshotMeta = openraft::SnapshotMeta<u64, openraft::BasicNode>;
type StorageError = openraft::StorageError<u64>;

/// Where the log of a node is kept.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// A directory that is nobody else's. It is created.
    pub dir: PathBuf,
    /// The size of a journal's file, in bytes: what is removed at a time, and a commit may wait for it.
    pub segment_bytes: u64,
    /// Where the ids of the journal's segments come from.
    pub segment_ids: SegmentIds,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl StoreConfig {
    /// The defaults for a directory: files of 1 MiB, random ids, the system's clock.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            segment_bytes: 1 << 20,
            segment_ids: SegmentIds::from_system(),
            clock: Arc::new(SystemClock),
        }
    }
}

/// Why a node's log could not be opened. Nothing was changed, but for what a crash left half done.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal can't be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The vote can't be read.
    #[error(transparent)]
    Vote(#[from] VoteFileError),
    /// There is a vote and no log. An only voter writes its first entry before it votes.
    #[error("{0} holds a vote and an empty log: the log was lost")]
    LogLost(PathBuf),
    /// The log has entries of a later leader than the vote knows: another vote was there, and whoever
    /// starts without it could vote twice in a term.
    #[error("{dir}: the vote is of term {vote}, the log of term {log}: the vote was lost")]
    VoteLost {
        /// The node's directory.
        dir: PathBuf,
        /// The vote's term.
        vote: u64,
        /// The log's.
        log: u64,
    },
}

/// Reads the log and the state of a node. That needs no room on the disk, nor a directory; the log takes
/// nothing before it is [settled](LogStore::settle), which does.
///
/// # Errors
/// [`OpenError`].
pub(crate) async fn read<F: FileSystem>(
    fs: Arc<F>,
    config: &StoreConfig,
    machine: &Machine,
) -> Result<LogStore<F>, OpenError> {
    let vote = VoteFile::read(Arc::clone(&fs), &config.dir).await?;
    let journal = Journal::open(fs, config).await?;
    let voted = vote.vote().map_or(0, |v| v.leader_id.term);
    let logged = journal.last_term();
    if voted < logged {
        return Err(OpenError::VoteLost {
            dir: config.dir.clone(),
            vote: voted,
            log: logged,
        });
    }
    machine.restore(&journal)?;
    Ok(LogStore::new(journal, vote))
}

/// An error of ours as one of openraft's, which stops the node.
fn fatal<E: std::error::Error + Send + Sync + 'static>(
    kind: impl FnOnce(openraft::AnyError) -> StorageIOError<u64>,
    error: &E,
) -> StorageError {
    kind(openraft::AnyError::new(error)).into()
}

/// Decodes bytes as everything that comes from a disk or a network. What is accepted encodes to them.
///
/// # Panics
/// If it does not.
#[cfg(fuzzing)]
pub fn check_any_bytes(bytes: &::bytes::Bytes) {
    if let Ok(record) = record::Record::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
    if let Ok(request) = rpc::Request::decode(bytes) {
        assert_eq!(request.encode(), bytes);
    }
    if let Ok(answer) = rpc::Answer::decode(bytes) {
        assert_eq!(answer.encode(), bytes);
    }
}
