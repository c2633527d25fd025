//! `sq segment`: looks into segment files, without opening the partition they belong to.
//!
//! Nothing is written. On a broker that runs, the end of an active segment may be seen half
//! written, and then looks like the tail of a crash.

mod batch_state;
mod dump;
mod verify;
mod walk;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use sq_sim::FileSystem;
use sq_storage::wal::segment::SegmentHeaderError;

use super::finish;

/// What `sq segment` can do.
#[derive(Clone, Debug, Subcommand)]
pub enum SegmentCommand {
    /// Print a segment file's header and frames, and whether their checksums are right.
    Dump {
        /// The file.
        file: PathBuf,
    },
    /// Check every segment below a directory: a partition's, a topic's or a broker's.
    Verify {
        /// The directory.
        dir: PathBuf,
    },
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// A file or directory could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file that is no segment.
    #[error("{}: {source}", path.display())]
    NoSegment {
        /// Which.
        path: PathBuf,
        /// What is wrong with its header.
        source: SegmentHeaderError,
    },
    /// A directory without a segment in it or below it.
    #[error("{}: there is no segment here", path.display())]
    NothingThere {
        /// Which.
        path: PathBuf,
    },
    /// Damage was found, and has been reported.
    #[error("{count} problems")]
    Damage {
        /// How many.
        count: usize,
    },
    /// The output could not be written.
    #[error("can't write: {0}")]
    Output(#[from] io::Error),
}

impl SegmentCommand {
    /// Does it, with output to standard output and errors to standard error.
    pub async fn run<F: FileSystem>(self, fs: Arc<F>) -> ExitCode {
        let mut out = BufWriter::new(io::stdout());
        let result = self.execute(&*fs, &mut out).await;
        let result = result.and_then(|()| Ok(out.flush()?));
        match result {
            // A reader that has read enough (`| head`) is no failure.
            Err(SegmentError::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => {
                ExitCode::SUCCESS
            }
            result => {
                let _ = out.flush();
                finish(&[], result)
            }
        }
    }

    /// Does it, with output to `out`.
    ///
    /// # Errors
    /// [`SegmentError`]; [`SegmentError::Damage`] once all of it has been told.
    pub async fn execute<F: FileSystem>(
        self,
        fs: &F,
        out: &mut impl Write,
    ) -> Result<(), SegmentError> {
        match self {
            Self::Dump { file } => dump::dump(fs, &file, out).await,
            Self::Verify { dir } => verify::verify(fs, &dir, out).await,
        }
    }
}
