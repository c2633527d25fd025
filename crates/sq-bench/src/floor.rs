//! The floor: what the disk itself takes for one durable append.
//!
//! A `pwrite` and an `fdatasync` into a file that was written with zeros before, so that neither its
//! length nor its blocks change: the least that a log on this file system can do.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::pwrite;

use crate::stats::{Latencies, Summary, float};
use crate::time::now;

/// The file's size in bytes. What is appended past its end begins anew at its start.
const FILE_BYTES: u64 = 64 << 20;

/// The size in bytes of a file whose space is only allocated.
const FRESH_FILE_BYTES: u64 = 2 << 30;

/// A file to append to.
#[derive(Debug)]
pub(crate) struct Floor {
    file: OwnedFd,
    bytes: u64,
    position: u64,
}

/// What one round of appends gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloorRound {
    pub(crate) latency: Summary,
    pub(crate) appends_per_second: f64,
}

impl FloorRound {
    /// Each figure's median over the rounds.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let latencies: Vec<_> = rounds.iter().map(|round| round.latency).collect();
        Self {
            latency: Summary::median(&latencies),
            appends_per_second: crate::stats::median(rounds.iter().map(|r| r.appends_per_second)),
        }
    }
}

impl Floor {
    /// Writes the file in `dir`, and syncs it.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        let file = create(&dir.join("floor"))?;
        let zeros = vec![0; 1 << 20];
        for at in (0..FILE_BYTES).step_by(zeros.len()) {
            write_all(&file, &zeros, at)?;
        }
        rustix::fs::fsync(&file)?;
        Ok(Self {
            file,
            bytes: FILE_BYTES,
            position: 0,
        })
    }

    /// A file in `dir` whose space is allocated and was never written: what a log has to grow into. It is gone
    /// when it is closed.
    pub(crate) fn fresh(dir: &Path) -> Result<Self> {
        let path = dir.join("fresh");
        let file = create(&path)?;
        rustix::fs::unlink(&path)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FRESH_FILE_BYTES)?;
        rustix::fs::fsync(&file)?;
        Ok(Self {
            file,
            bytes: FRESH_FILE_BYTES,
            position: 0,
        })
    }

    /// Appends `block` durably, one after the other, for `duration`.
    pub(crate) fn round(&mut self, block: &[u8], duration: Duration) -> Result<FloorRound> {
        let mut latencies = Latencies::new()?;
        let begun = now();
        let mut last = begun;
        let mut appends = 0;
        while last.duration_since(begun) < duration {
            self.append(block)?;
            let done = now();
            latencies.record(done.duration_since(last));
            last = done;
            appends += 1;
        }
        Ok(FloorRound {
            latency: latencies.summary(),
            appends_per_second: float(appends) / last.duration_since(begun).as_secs_f64(),
        })
    }

    /// Appends `block` durably.
    pub(crate) fn append(&mut self, block: &[u8]) -> Result<()> {
        let len = block.len() as u64;
        if self.position + len > self.bytes {
            self.position = 0;
        }
        write_all(&self.file, block, self.position)?;
        rustix::fs::fdatasync(&self.file)?;
        self.position += len;
        Ok(())
    }
}

fn create(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .with_context(|| path.display().to_string())
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = pwrite(file, bytes, at)?;
        anyhow::ensure!(written > 0, "nothing was written");
        bytes = bytes.get(written..).unwrap_or_default();
        at += written as u64;
    }
    Ok(())
}
