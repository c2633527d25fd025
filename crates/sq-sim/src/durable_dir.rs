//! Making a directory that is still there after a power loss.

use std::io;
use std::path::Path;

use crate::fs::FileSystem;

/// Creates a directory and its missing parents so that the names that lead to it are durable.
///
/// Each level is synced into the one above it before the next is created, so that a directory that
/// exists has durable names above its own, however often creating it was cut short.
///
/// # Errors
/// The file system's. A directory above an existing one that may not be opened is left alone: who
/// made it had to sync it.
pub async fn create_dir_durably<F: FileSystem + ?Sized>(fs: &F, dir: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut level = dir;
    while !exists(fs, level).await? {
        missing.push(level);
        level = parent(level);
    }
    match fs.sync_dir(parent(level)).await {
        Err(e) if e.kind() != io::ErrorKind::PermissionDenied => return Err(e),
        _ => {}
    }
    for level in missing.into_iter().rev() {
        fs.create_dir_all(level).await?;
        fs.sync_dir(parent(level)).await?;
    }
    Ok(())
}

async fn exists<F: FileSystem + ?Sized>(fs: &F, dir: &Path) -> io::Result<bool> {
    match fs.list_dir(dir).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// The directory that holds a directory's name; the root is its own, and a relative path of one
/// component stands in the working directory.
fn parent(dir: &Path) -> &Path {
    match dir.parent() {
        None => dir,
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InMemoryFileSystem, Keep};

    #[test]
    fn what_was_made_survives_a_power_loss_also_after_attempts_that_were_cut_short() {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(async {
                for operations in 0..30 {
                    let fs = InMemoryFileSystem::new(operations);
                    fs.crash_after(operations);
                    let whole = create_dir_durably(&fs, "/a/b/c".as_ref()).await.is_ok();
                    fs.process_crash();
                    create_dir_durably(&fs, "/a/b/c/d".as_ref()).await.unwrap();
                    fs.power_loss(Keep::None);
                    assert!(exists(&fs, "/a/b/c/d".as_ref()).await.unwrap());
                    assert!(whole || operations < 20);
                }
            });
    }
}
