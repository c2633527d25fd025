//! Why an append through a [`Log`](super::Log) failed.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Action, Error};

/// Why an append through a [`Log`](super::Log) failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// It was refused, or its write or sync failed. All whose bytes were in it get the same error.
    #[error("{error}")]
    Failed {
        /// What of it was stored before: nothing, unless the call appended several frames and a
        /// segment ended between two of them.
        stored: Range<u64>,
        /// The log's error.
        error: Arc<Error>,
    },
    /// The log was closed first, or a turn of it panicked. Nothing was appended as far as the caller
    /// knows; a panic is like a crash.
    #[error("the log is closed")]
    Closed,
}

impl AppendError {
    /// What to do about it.
    pub fn action(&self) -> Action {
        match self {
            Self::Failed { error, .. } => error.action(),
            Self::Closed => Action::Reopen,
        }
    }
}

impl From<Error> for AppendError {
    fn from(error: Error) -> Self {
        Self::Failed {
            stored: 0..0,
            error: Arc::new(error),
        }
    }
}
