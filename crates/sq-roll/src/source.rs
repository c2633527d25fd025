//! Where a broker's metadata and placement plug in.

use std::error::Error;
use std::fmt;

use async_trait::async_trait;

use crate::{Epoch, SegmentId, Ticket, Trigger};

/// A successor that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its id, and the leader's epoch.
    pub successor: Ticket,
    /// The segment that it will follow.
    pub predecessor: SegmentId,
    /// What asked for it.
    pub trigger: Trigger,
}

/// A segment that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Its id, and the leader's epoch.
    pub segment: Ticket,
    /// Where it ends: the first offset that it doesn't hold, and its successor's base.
    pub end: u64,
    /// Becomes the active one by it.
    pub successor: SegmentId,
}

/// Why a [`SuccessorSource`] did not do what it was asked.
#[derive(Debug)]
pub enum SourceError {
    /// Not done, or not known to be done. The same call is made again after a pause.
    Retry(Box<dyn Error + Send + Sync>),
    /// It can never be done. A successor is abandoned then, and another asked for; a seal or an
    /// abandonment is asked for again all the same, since there is no other way on.
    Final(Box<dyn Error + Send + Sync>),
    /// A newer leader of this epoch is there: the log takes no append any more.
    Fenced(Epoch),
    /// The partition is deleted: the log takes no append any more.
    Deleted,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry(error) | Self::Final(error) => error.fmt(f),
            Self::Fenced(epoch) => write!(f, "there is a newer leader, of epoch {epoch}"),
            Self::Deleted => f.write_str("the partition is deleted"),
        }
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Retry(error) | Self::Final(error) => Some(&**error),
            Self::Fenced(_) | Self::Deleted => None,
        }
    }
}

/// What decides about the segments of one log besides its writer: where they are placed, and that
/// others know of it. The file on this machine is no part of it; a driver prepares
/// that meanwhile.
///
/// No append waits for any of these calls. Each can be made again with the same argument: after an
/// error, and after [`Patience::answer`](crate::Patience::answer) beside the first one, which may still
/// be under way. One that is done already is answered with success. A call may be dropped at any await.
#[async_trait]
pub trait SuccessorSource: Send + Sync + 'static {
    /// Commits a successor's placement. When this returns, and the file is there, the successor may
    /// be written to at any time.
    async fn prepare(&self, request: Request) -> Result<(), SourceError>;

    /// Commits where a segment ended. Everything below that is durable on all of its replicas.
    async fn sealed(&self, seal: Seal) -> Result<(), SourceError>;

    /// Commits that a successor will never be used. Nothing acknowledged was written to it.
    async fn abandon(&self, successor: Ticket) -> Result<(), SourceError>;
}

/// For a log whose segments are files on this machine, and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalSource;

#[async_trait]
impl SuccessorSource for LocalSource {
    async fn prepare(&self, _: Request) -> Result<(), SourceError> {
        Ok(())
    }

    async fn sealed(&self, _: Seal) -> Result<(), SourceError> {
        Ok(())
    }

    async fn abandon(&self, _: Ticket) -> Result<(), SourceError> {
        Ok(())
    }
}
