//! Changes of names that no directory sync has made durable.

use std::collections::BTreeSet;
use std::ffi::OsString;

/// The number of a file or directory.
pub(super) type Ino = u64;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(Ino),
    Directory(Ino),
}

/// A place for a name: a directory and the name in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) dir: Ino,
    pub(super) name: OsString,
}

/// A change of names. A rename is one change: both names never go at once.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Link { at: Slot, node: Node },
    Unlink { at: Slot, node: Node },
    Rename { from: Slot, to: Slot, node: Node },
}

impl Change {
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let (first, second) = match self {
            Self::Link { at, .. } | Self::Unlink { at, .. } => (at, None),
            Self::Rename { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(first).chain(second)
    }

    /// The slot whose directory has to be synced: of a rename, the new name's.
    pub(super) fn target(&self) -> &Slot {
        match self {
            Self::Link { at, .. } | Self::Unlink { at, .. } => at,
            Self::Rename { to, .. } => to,
        }
    }

    fn node(&self) -> Node {
        match self {
            Self::Link { node, .. } | Self::Unlink { node, .. } | Self::Rename { node, .. } => {
                *node
            }
        }
    }
}

/// The changes that are not durable, in order. One builds on an earlier one that shares a name with
/// it.
#[derive(Clone, Debug, Default)]
pub(super) struct UnsyncedNames(Vec<Change>);

impl UnsyncedNames {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, change: Change) {
        self.0.push(change);
    }

    /// Whether a change is about this file or directory.
    pub(super) fn mention(&self, node: Node) -> bool {
        self.0.iter().any(|change| change.node() == node)
    }

    /// Takes out the changes that are wanted, and those they build on.
    pub(super) fn settle(&mut self, wanted: impl Fn(usize, &Change) -> bool) -> Vec<Change> {
        let mut needed = BTreeSet::new();
        let mut settled = Vec::new();
        let mut left = Vec::new();
        for (index, change) in std::mem::take(&mut self.0).into_iter().enumerate().rev() {
            if wanted(index, &change) || change.slots().any(|slot| needed.contains(slot)) {
                needed.extend(change.slots().cloned());
                settled.push(change);
            } else {
                left.push(change);
            }
        }
        left.reverse();
        settled.reverse();
        self.0 = left;
        settled
    }

    /// Takes out all, and gives back those that reach the disk: those that `keep` keeps, unless
    /// they build on one that it does not.
    pub(super) fn resolve(&mut self, mut keep: impl FnMut(u32) -> bool) -> Vec<Change> {
        let mut lost = BTreeSet::new();
        let mut kept = Vec::new();
        for (index, change) in (0..).zip(std::mem::take(&mut self.0)) {
            // Drawn for every change, so that one fate does not shift the draws of the others.
            let reaches = keep(index);
            if reaches && !change.slots().any(|slot| lost.contains(slot)) {
                kept.push(change);
            } else {
                lost.extend(change.slots().cloned());
            }
        }
        kept
    }
}
