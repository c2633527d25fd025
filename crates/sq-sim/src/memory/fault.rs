//! Faults: what goes wrong, with which operations, and when.

use std::io;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::trace::{Op, OpKind};
use crate::draws::Draws;

/// An operating system's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Errno {
    /// EIO: the device failed.
    Io,
    /// ENOSPC: the disk is full.
    NoSpace,
    /// EDQUOT: the quota is used up.
    Quota,
    /// EMFILE: the process has too many files open.
    TooManyOpenFiles,
    /// ENFILE: the system has too many files open.
    TooManyOpenFilesInSystem,
    /// EROFS: the file system was remounted read-only, as ext4 does after an error.
    ReadOnly,
    /// EACCES: permission denied.
    Denied,
}

impl Errno {
    pub(super) fn error(self) -> io::Error {
        use rustix::io::Errno as Os;
        match self {
            Self::Io => Os::IO,
            Self::NoSpace => Os::NOSPC,
            Self::Quota => Os::DQUOT,
            Self::TooManyOpenFiles => Os::MFILE,
            Self::TooManyOpenFilesInSystem => Os::NFILE,
            Self::ReadOnly => Os::ROFS,
            Self::Denied => Os::ACCESS,
        }
        .into()
    }
}

/// What a failed sync leaves behind. It reports EIO in each case.
///
/// The first three are what Rebello et al. found Linux file systems to do ("Can Applications Recover
/// from fsync Failures?", USENIX ATC 2020): the pages are marked clean, so that the next sync
/// reports success and writes none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncFailure {
    /// The cache goes on showing the new bytes (until they are evicted), the disk has the old ones.
    Lost,
    /// The disk has the new bytes all the same; only the report is wrong.
    Kept,
    /// The cache shows the old bytes, and the old length, again (btrfs).
    Reverted,
    /// As `Lost`, but each sector of the disk has the old bytes, the new ones, zeros, garbage or a
    /// mixture.
    Torn,
    /// Nothing was written and the pages stay dirty: the next sync can make them durable. Kernels do
    /// this less often than programs believe.
    StillDirty,
}

impl SyncFailure {
    /// Every model.
    pub const ALL: [Self; 5] = [
        Self::Lost,
        Self::Kept,
        Self::Reverted,
        Self::Torn,
        Self::StillDirty,
    ];
}

/// What happens to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does nothing and fails.
    Fail(Errno),
    /// It is carried out, and fails all the same.
    FailAfterwards(Errno),
    /// A write (or zeroing) stops after so many bytes and fails.
    ShortWrite {
        /// How many bytes get into the file.
        bytes: u64,
        /// What it reports.
        errno: Errno,
    },
    /// A sync of a file fails.
    FailSync(SyncFailure),
    /// A write succeeds, but the disk puts its bytes elsewhere: at `offset` of `path`, or of the same
    /// file, as far as that reaches. The cache shows nothing of it until the pages are evicted or the
    /// power fails; then the right place holds what it held before.
    Misdirect {
        /// Another file, if it exists.
        path: Option<PathBuf>,
        /// Where, in bytes.
        offset: u64,
    },
    /// A write succeeds, and the disk never puts its bytes anywhere; as with `Misdirect` the cache
    /// hides it.
    DropWrite,
    /// A read succeeds with one bit flipped, drawn from its bytes; the file is as it was.
    FlipBitOfRead,
    /// The process dies in the middle: of a write, so many bytes got into the page cache; any other
    /// operation was not carried out.
    Crash {
        /// How many bytes get into the file.
        bytes: u64,
    },
    /// A sync of a file or directory reports success and does nothing: a drive that ignores flushes.
    /// Nothing survives that, so it is a test's negative control: with it, a test of what is durable
    /// has to fail.
    IgnoreSync,
    /// It takes this long on the file system's clock, drawn evenly. Every matching delay counts.
    Delay(RangeInclusive<Duration>),
}

impl Effect {
    fn applies_to(&self, kind: OpKind) -> bool {
        match self {
            Self::ShortWrite { .. } => matches!(kind, OpKind::WriteAt | OpKind::ZeroRange),
            Self::Misdirect { .. } | Self::DropWrite => kind == OpKind::WriteAt,
            Self::FlipBitOfRead => kind == OpKind::ReadAt,
            Self::IgnoreSync => {
                matches!(kind, OpKind::SyncData | OpKind::SyncAll | OpKind::SyncDir)
            }
            Self::FailSync(_) => matches!(kind, OpKind::SyncData | OpKind::SyncAll),
            Self::Fail(_) | Self::FailAfterwards(_) | Self::Crash { .. } | Self::Delay(_) => true,
        }
    }
}

/// Which paths a fault is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PathPattern {
    /// Every path.
    #[default]
    Any,
    /// This path.
    Exactly(PathBuf),
    /// Everything in or below this directory.
    Under(PathBuf),
    /// Paths whose text ends so, such as `.wal`.
    EndsWith(String),
    /// Paths whose text contains this.
    Contains(String),
}

impl PathPattern {
    pub(super) fn matches(&self, path: &Path) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(wanted) => path == wanted,
            Self::Under(dir) => path.starts_with(dir),
            Self::EndsWith(text) => path.to_string_lossy().ends_with(text.as_str()),
            Self::Contains(text) => path.to_string_lossy().contains(text.as_str()),
        }
    }
}

/// An effect, and the operations that meet it: by default the next one, of any kind, on any path.
///
/// ```
/// use sq_sim::{Effect, Errno, Fault, OpKind};
/// let third_sync_of_a_segment = Fault::new(Effect::Fail(Errno::Io))
///     .on(&[OpKind::SyncData])
///     .path_ends_with(".wal")
///     .skip(2);
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    effect: Effect,
    kinds: Vec<OpKind>,
    path: PathPattern,
    skip: u64,
    times: u64,
    one_in: u64,
    at_op: Option<u64>,
    bytes: Option<Range<u64>>,
}

impl Fault {
    /// A fault that the next operation meets.
    pub fn new(effect: Effect) -> Self {
        Self {
            effect,
            kinds: Vec::new(),
            path: PathPattern::Any,
            skip: 0,
            times: 1,
            one_in: 1,
            at_op: None,
            bytes: None,
        }
    }

    /// Every operation takes so long, until the fault is narrowed or taken away.
    pub fn delay(duration: Duration) -> Self {
        Self::new(Effect::Delay(duration..=duration)).always()
    }

    /// Only operations of these kinds. A rename matches by either path.
    #[must_use]
    pub fn on(mut self, kinds: &[OpKind]) -> Self {
        self.kinds = kinds.to_vec();
        self
    }

    /// Only operations on such paths.
    #[must_use]
    pub fn path(mut self, pattern: PathPattern) -> Self {
        self.path = pattern;
        self
    }

    /// Only operations on paths that end so.
    #[must_use]
    pub fn path_ends_with(self, end: &str) -> Self {
        self.path(PathPattern::EndsWith(end.to_owned()))
    }

    /// Lets so many matching operations pass first.
    #[must_use]
    pub fn skip(mut self, operations: u64) -> Self {
        self.skip = operations;
        self
    }

    /// Happens so often; once if not said.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Happens until taken away.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    /// Happens to one in `n` matching operations, drawn from the file system's seed.
    #[must_use]
    pub fn one_in(mut self, n: u64) -> Self {
        self.one_in = n;
        self
    }

    /// Only the operation of this number, as the trace counts.
    #[must_use]
    pub fn at_op(mut self, number: u64) -> Self {
        self.at_op = Some(number);
        self
    }

    /// Only reads, writes, zeroing and allocation that touch these bytes: a bad sector.
    #[must_use]
    pub fn bytes(mut self, range: Range<u64>) -> Self {
        self.bytes = Some(range);
        self
    }

    fn matches_bytes(&self, op: &Op) -> bool {
        let Some(range) = &self.bytes else {
            return true;
        };
        let ranged = matches!(
            op.kind,
            OpKind::ReadAt | OpKind::WriteAt | OpKind::ZeroRange | OpKind::Allocate
        );
        ranged && op.offset < range.end && op.offset.saturating_add(op.len) > range.start
    }

    fn meets(&mut self, op: &Op, draws: &mut Draws) -> bool {
        let matches = self.times > 0
            && (self.kinds.is_empty() || self.kinds.contains(&op.kind))
            && self.effect.applies_to(op.kind)
            && self.at_op.is_none_or(|number| number == op.number)
            && self.matches_bytes(op)
            && (self.path.matches(&op.path)
                || op.to.as_ref().is_some_and(|to| self.path.matches(to)));
        if !matches {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.one_in > 1 && !draws.one_in(self.one_in) {
            return false;
        }
        self.times = self.times.saturating_sub(u64::from(self.times != u64::MAX));
        true
    }
}

/// The faults that wait for their operations.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// What happens to an operation, and how long it takes. Where several faults match, the one
    /// that was injected first happens and the others go on waiting.
    pub(super) fn decide(&mut self, op: &Op, draws: &mut Draws) -> (Option<Effect>, Duration) {
        let mut effect = None;
        let mut delay = Duration::ZERO;
        for fault in &mut self.0 {
            if let Effect::Delay(range) = fault.effect.clone() {
                if fault.meets(op, draws) {
                    delay += drawn(&range, draws);
                }
            } else if effect.is_none() && fault.meets(op, draws) {
                effect = Some(fault.effect.clone());
            }
        }
        self.0.retain(|fault| fault.times > 0);
        (effect, delay)
    }
}

fn drawn(range: &RangeInclusive<Duration>, draws: &mut Draws) -> Duration {
    let nanos = |d: &Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(draws.within(nanos(range.start())..=nanos(range.end())))
}
