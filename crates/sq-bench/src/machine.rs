//! What the system says of itself and of processes: load, processor time, memory.

use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What `/proc/PID/stat` counts in: `USER_HZ`, 100 on every Linux that there is.
const TICKS_PER_SECOND: f64 = 100.0;

const KIB_PER_MIB: f64 = 1024.0;

/// The number of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pid(pub(crate) u32);

impl Pid {
    pub(crate) fn this() -> Self {
        Self(process::id())
    }

    /// The processor time that the process has taken, in its own code and in the kernel's.
    pub(crate) fn cpu_time(self) -> Result<Duration> {
        let stat = read(&format!("/proc/{}/stat", self.0))?;
        cpu_time(&stat).with_context(|| format!("process {} has no times", self.0))
    }

    /// The memory that the process has now, and the most it had, in MiB.
    pub(crate) fn memory(self) -> Result<Memory> {
        let status = read(&format!("/proc/{}/status", self.0))?;
        let mib = |key| {
            status_kib(&status, key)
                .map(|kib| kib / KIB_PER_MIB)
                .with_context(|| format!("process {} has no {key}", self.0))
        };
        Ok(Memory {
            now_mib: mib("VmRSS:")?,
            peak_mib: mib("VmHWM:")?,
        })
    }
}

/// Memory of a process, in MiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) now_mib: f64,
    pub(crate) peak_mib: f64,
}

/// Raises the number of files that may be open to what the system allows at most, as the broker does.
pub(crate) fn allow_open_files() -> Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    Ok(())
}

/// The mean number of runnable tasks over the last minute.
pub(crate) fn load() -> Result<String> {
    let text = read("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

fn cpu_time(stat: &str) -> Option<Duration> {
    // The name is in parentheses and may hold anything; behind it are the state and the numbers, of
    // which utime and stime are the 12th and 13th.
    let (_, behind_the_name) = stat.rsplit_once(')')?;
    let mut fields = behind_the_name.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    let ticks = f64::from(user) + f64::from(system);
    Some(Duration::from_secs_f64(ticks / TICKS_PER_SECOND))
}

fn status_kib(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find(|line| line.starts_with(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "what the kernel says of a process has no simulated twin"
)]
fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.to_owned())
}

#[expect(
    clippy::disallowed_methods,
    reason = "what the kernel says of a process has no simulated twin"
)]
fn names(path: &str) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(path).with_context(|| path.to_owned())?;
    Ok(entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect())
}

/// The files of a directory.
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let names = names(&dir.to_string_lossy())?;
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::{Pid, cpu_time, status_kib};
    use std::time::Duration;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 9 0 77 1 2";
        assert_eq!(cpu_time(stat), Some(Duration::from_secs(2)));
        assert_eq!(cpu_time("42 (short) S 1"), None);
    }

    #[test]
    fn memory_is_found_by_its_key() {
        let status = "Name:\tsq\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(status_kib(status, "VmRSS:"), Some(1024.0));
        assert_eq!(status_kib(status, "VmSwap:"), None);
    }

    #[test]
    fn a_process_knows_itself() {
        let memory = Pid::this().memory().unwrap();
        assert!(memory.now_mib > 0.0 && memory.peak_mib >= memory.now_mib);
        Pid::this().cpu_time().unwrap();
    }
}
