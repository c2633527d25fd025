//! Errors that name the path they are about.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What an operation on a path failed with. It is the inner error of the `io::Error` that both file
/// systems return, whose kind is the operating system's.
#[derive(Debug)]
pub struct PathError {
    /// What was tried, such as `write`.
    pub operation: &'static str,
    /// The path that was given, or the one the handle was opened with.
    pub path: PathBuf,
    /// The operating system's error.
    pub source: io::Error,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {}",
            self.operation,
            self.path.display(),
            self.source
        )
    }
}

impl std::error::Error for PathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Wraps an error with what was tried on which path, keeping its kind.
pub(crate) fn name_path(operation: &'static str, path: &Path, source: io::Error) -> io::Error {
    let kind = source.kind();
    io::Error::new(
        kind,
        PathError {
            operation,
            path: path.to_owned(),
            source,
        },
    )
}

/// The operating system's number of an error, also of one that names its path.
///
/// `io::Error::raw_os_error` gives none for an error that wraps another.
pub fn os_error_number(error: &io::Error) -> Option<i32> {
    error.raw_os_error().or_else(|| {
        let inner = error.get_ref()?.downcast_ref::<PathError>()?;
        inner.source.raw_os_error()
    })
}

/// Whether an operation failed because the process (EMFILE) or the system (ENFILE) has as many files open
/// as it may have: open(2). Nothing was done then, and it works again once others are closed.
pub fn is_out_of_handles(error: &io::Error) -> bool {
    let number = os_error_number(error);
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
        .iter()
        .any(|errno| number == Some(errno.raw_os_error()))
}
