//! What the jobs of one run share.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use crate::broker::target_dir;
use crate::machine::load;
use crate::table::Table;

/// A scratch directory, a bar that shows how far the run is, and the load it ran under.
#[derive(Debug)]
pub(crate) struct Run {
    dir: TempDir,
    bar: ProgressBar,
    load_before: String,
}

impl Run {
    /// A run of so many steps, whose scratch data is in a new directory in `parent`; by default
    /// beside the build's own files, as a system's directory for such things is often no disk.
    pub(crate) fn new(parent: Option<PathBuf>, steps: u64) -> Result<Self> {
        let parent = parent.map_or_else(target_dir, Ok)?;
        let dir = tempfile::Builder::new()
            .prefix("sq-bench-")
            .tempdir_in(&parent)
            .with_context(|| parent.display().to_string())?;
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({elapsed})")?;
        Ok(Self {
            dir,
            bar: ProgressBar::new(steps).with_style(style),
            load_before: load()?,
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Says what is done next.
    pub(crate) fn step(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
        self.bar.inc(1);
    }

    /// Ends the bar, and says under what load the run was.
    pub(crate) fn finish(&self) -> Result<String> {
        self.bar.finish_and_clear();
        Ok(format!(
            "load (one minute) before {}, after {}",
            self.load_before,
            load()?
        ))
    }
}

/// Prints a table, and under what load it was made.
pub(crate) fn print(table: &Table, load: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{table}\n{load}")?;
    Ok(())
}
