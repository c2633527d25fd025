//! Replacing a small file so that a crash leaves the old one or the new one, whole.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sq_sim::FileSystem;

/// What a file that is still being written ends in. It holds a character that no topic name can.
pub const TEMPORARY_SUFFIX: &str = "@tmp";

/// Reads a whole file, or `None` if there is none.
///
/// # Errors
/// The file system's own; `FileTooLarge` for one that is longer than `limit` bytes, of which
/// nothing is read.
pub async fn read_whole<F: FileSystem>(
    fs: &F,
    path: &Path,
    limit: usize,
) -> io::Result<Option<Bytes>> {
    let file = match fs.open_read_only(path).await {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let len = file.len().await?;
    let len = usize::try_from(len)
        .ok()
        .filter(|len| *len <= limit)
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("{} has {len} bytes, more than {limit}", path.display()),
            )
        })?;
    file.read_at(0, len).await.map(Some)
}

/// Reads a whole file as [`read_whole`] does, and makes sure that the disk holds what was read.
///
/// After a process crash the page cache may hold a file, or a name, that no disk has. Whoever acts on
/// it would be left without it by a later power loss. The bytes are written over themselves, which
/// needs no space and harms nothing at any moment, and synced with the name.
///
/// # Errors
/// As for [`read_whole`], and the file system's own.
pub async fn read_durably<F: FileSystem>(
    fs: &F,
    path: &Path,
    limit: usize,
) -> io::Result<Option<Bytes>> {
    let Some(content) = read_whole(fs, path, limit).await? else {
        return Ok(None);
    };
    if !content.is_empty() {
        let file = fs.open(path).await?;
        file.write_and_sync_at(0, std::slice::from_ref(&content))
            .await?;
    }
    fs.sync_dir(directory_of(path)?).await?;
    Ok(Some(content))
}

/// Why a file was not replaced, and what is known of it.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// It is as it was.
    #[error(transparent)]
    Unchanged(io::Error),
    /// It is the old one or the new one, and which of them a crash would leave is not known.
    #[error(transparent)]
    Unknown(io::Error),
}

impl From<ReplaceError> for io::Error {
    fn from(error: ReplaceError) -> Self {
        match error {
            ReplaceError::Unchanged(error) | ReplaceError::Unknown(error) => error,
        }
    }
}

/// Puts `content` at `path`, over whatever is there. On `Ok` the new content is durable.
///
/// # Errors
/// [`ReplaceError::Unchanged`] if the new content could not be written and synced,
/// [`ReplaceError::Unknown`] if the rename or the directory's sync failed.
pub async fn replace<F: FileSystem>(
    fs: &F,
    path: &Path,
    content: Bytes,
) -> Result<(), ReplaceError> {
    let temporary = write_temporary(fs, path, content)
        .await
        .map_err(ReplaceError::Unchanged)?;
    let directory = directory_of(path).map_err(ReplaceError::Unchanged)?;
    fs.rename(&temporary, path)
        .await
        .map_err(ReplaceError::Unknown)?;
    fs.sync_dir(directory).await.map_err(ReplaceError::Unknown)
}

async fn write_temporary<F: FileSystem>(
    fs: &F,
    path: &Path,
    content: Bytes,
) -> io::Result<PathBuf> {
    let temporary = temporary_name(path)?;
    // One that a crash or a failed sync left is not written again: its pages may be marked clean.
    remove_if_there(fs, &temporary).await?;
    let file = fs.create_new(&temporary).await?;
    file.write_and_sync_at(0, &[content]).await?;
    Ok(temporary)
}

/// Unlinks a file; one that is not there is fine.
///
/// # Errors
/// The file system's own.
pub async fn remove_if_there<F: FileSystem>(fs: &F, path: &Path) -> io::Result<()> {
    match fs.remove_file(path).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    let mut name: OsString = path.file_name().ok_or_else(no_name)?.to_owned();
    name.push(TEMPORARY_SUFFIX);
    Ok(path.with_file_name(name))
}

fn directory_of(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(no_name)
}

fn no_name() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a path of a file in a directory is needed",
    )
}
