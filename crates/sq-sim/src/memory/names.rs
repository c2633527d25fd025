//! Directories: the names a process sees, the names the disk holds, and the changes between.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::changes::{Change, Ino, Node, Slot, UnsyncedNames};

/// The root directory's number.
const ROOT: Ino = 0;

#[derive(Clone, Debug, Default)]
struct Directory {
    now: BTreeMap<OsString, Node>,
    durable: BTreeMap<OsString, Node>,
}

impl Directory {
    fn entries(&self, view: View) -> &BTreeMap<OsString, Node> {
        match view {
            View::Now => &self.now,
            View::Durable => &self.durable,
        }
    }
}

/// Which names to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Those a process sees.
    Now,
    /// Those that survive if nothing un-synced does.
    Durable,
}

/// The tree of names. The working directory is the root.
#[derive(Clone, Debug)]
pub(super) struct Names {
    directories: BTreeMap<Ino, Directory>,
    pending: UnsyncedNames,
    next_ino: Ino,
}

impl Names {
    pub(super) fn new() -> Self {
        Self {
            directories: BTreeMap::from([(ROOT, Directory::default())]),
            pending: UnsyncedNames::default(),
            next_ino: ROOT + 1,
        }
    }

    pub(super) fn resolve(&self, path: &Path, view: View) -> io::Result<Node> {
        let mut node = Node::Directory(ROOT);
        for name in components(path)? {
            let entries = self.directory(node)?.entries(view);
            node = *entries.get(&name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    fn directory(&self, node: Node) -> io::Result<&Directory> {
        let Node::Directory(ino) = node else {
            return Err(io::ErrorKind::NotADirectory.into());
        };
        self.directories
            .get(&ino)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn slot(&self, path: &Path) -> io::Result<Slot> {
        let mut names = components(path)?;
        let name = names.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = self.resolve(&names.iter().collect::<PathBuf>(), View::Now)?;
        match parent {
            Node::Directory(dir) => Ok(Slot { dir, name }),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn get(&self, slot: &Slot) -> Option<Node> {
        self.directories
            .get(&slot.dir)?
            .now
            .get(&slot.name)
            .copied()
    }

    fn is_empty_directory(&self, node: Node) -> bool {
        self.directory(node).is_ok_and(|d| d.now.is_empty())
    }

    /// Gives a new file a name; `AlreadyExists` if it is taken.
    pub(super) fn create_file(&mut self, path: &Path) -> io::Result<Ino> {
        let at = self.slot(path)?;
        if self.get(&at).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let ino = self.take_ino();
        self.apply(Change::Link {
            at,
            node: Node::File(ino),
        });
        Ok(ino)
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut dir = ROOT;
        let mut names = components(path)?.into_iter().peekable();
        while let Some(name) = names.next() {
            let at = Slot { dir, name };
            dir = match self.get(&at) {
                Some(Node::Directory(ino)) => ino,
                Some(Node::File(_)) if names.peek().is_none() => {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => {
                    let ino = self.take_ino();
                    self.directories.insert(ino, Directory::default());
                    self.apply(Change::Link {
                        at,
                        node: Node::Directory(ino),
                    });
                    ino
                }
            };
        }
        Ok(())
    }

    fn take_ino(&mut self) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        ino
    }

    /// Takes a file's name away and says which file it was.
    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<Ino> {
        let at = self.slot(path)?;
        match self.get(&at).ok_or(io::ErrorKind::NotFound)? {
            Node::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
            node @ Node::File(ino) => {
                self.apply(Change::Unlink { at, node });
                Ok(ino)
            }
        }
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let at = self.slot(path)?;
        let node = self.get(&at).ok_or(io::ErrorKind::NotFound)?;
        self.directory(node)?;
        if !self.is_empty_directory(node) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.apply(Change::Unlink { at, node });
        Ok(())
    }

    /// Renames, and gives back the file that had the new name.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<Option<Ino>> {
        let (old, new) = (components(from)?, components(to)?);
        let (from, to) = (self.slot(from)?, self.slot(to)?);
        let node = self.get(&from).ok_or(io::ErrorKind::NotFound)?;
        if new.len() > old.len() && new.starts_with(&old) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if old.len() > new.len() && old.starts_with(&new) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        if from == to {
            return Ok(None);
        }
        let replaced = match (node, self.get(&to)) {
            (_, None) => None,
            (Node::File(_), Some(Node::File(ino))) => Some(ino),
            (Node::File(_), Some(Node::Directory(_))) => {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            (Node::Directory(_), Some(Node::File(_))) => {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            (Node::Directory(_), Some(old)) if self.is_empty_directory(old) => None,
            (Node::Directory(_), Some(_)) => {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
        };
        self.apply(Change::Rename { from, to, node });
        Ok(replaced)
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Node)>> {
        let directory = self.directory(self.resolve(path, View::Now)?)?;
        Ok(directory
            .now
            .iter()
            .map(|(name, &node)| (name.clone(), node))
            .collect())
    }

    fn apply(&mut self, change: Change) {
        self.set(View::Now, &change);
        self.pending.push(change);
    }

    fn set(&mut self, view: View, change: &Change) {
        let (gone, new) = match change {
            Change::Link { at, node } => (None, Some((at, *node))),
            Change::Unlink { at, .. } => (Some(at), None),
            Change::Rename { from, to, node } => (Some(from), Some((to, *node))),
        };
        let mut entries = |slot: &Slot, node: Option<Node>| {
            let Some(directory) = self.directories.get_mut(&slot.dir) else {
                return;
            };
            let entries = match view {
                View::Now => &mut directory.now,
                View::Durable => &mut directory.durable,
            };
            match node {
                Some(node) => entries.insert(slot.name.clone(), node),
                None => entries.remove(&slot.name),
            };
        };
        if let Some(slot) = gone {
            entries(slot, None);
        }
        if let Some((slot, node)) = new {
            entries(slot, Some(node));
        }
    }

    /// Makes a directory's changes durable, with the earlier ones of other directories that they
    /// build on.
    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let Node::Directory(dir) = self.resolve(path, View::Now)? else {
            return Err(io::ErrorKind::NotADirectory.into());
        };
        let settled = self.pending.settle(|_, change| change.target().dir == dir);
        self.set_durable(&settled);
        Ok(())
    }

    fn set_durable(&mut self, changes: &[Change]) {
        for change in changes {
            self.set(View::Durable, change);
        }
    }

    /// Resolves every un-synced change: `keep` says of each whether it reached the disk.
    pub(super) fn power_loss(&mut self, keep: impl FnMut(u32) -> bool) {
        let kept = self.pending.resolve(keep);
        self.set_durable(&kept);
        for directory in self.directories.values_mut() {
            directory.now = directory.durable.clone();
        }
        self.drop_unreachable_directories();
    }

    fn drop_unreachable_directories(&mut self) {
        let mut reachable = BTreeMap::new();
        let mut next = vec![ROOT];
        while let Some(ino) = next.pop() {
            let Some(directory) = self.directories.remove(&ino) else {
                continue;
            };
            next.extend(directory.now.values().filter_map(|node| match node {
                Node::Directory(ino) => Some(*ino),
                Node::File(_) => None,
            }));
            reachable.insert(ino, directory);
        }
        self.directories = reachable;
    }

    /// Every file's path and number, sorted by path.
    pub(super) fn files(&self, view: View) -> BTreeMap<PathBuf, Ino> {
        let mut files = BTreeMap::new();
        let mut next = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, ino)) = next.pop() {
            let Some(directory) = self.directories.get(&ino) else {
                continue;
            };
            for (name, node) in directory.entries(view) {
                match node {
                    Node::File(ino) => {
                        files.insert(path.join(name), *ino);
                    }
                    Node::Directory(ino) => next.push((path.join(name), *ino)),
                }
            }
        }
        files
    }

    /// How many changes are not durable.
    pub(super) fn unsynced(&self) -> usize {
        self.pending.len()
    }

    /// Whether a power loss can bring the file back, or leave it.
    pub(super) fn may_survive(&self, ino: Ino) -> bool {
        let node = Node::File(ino);
        self.pending.mention(node)
            || self
                .directories
                .values()
                .any(|d| d.durable.values().any(|n| *n == node))
    }

    /// Makes the changes that `change` makes durable at once, with those they build on.
    pub(super) fn durably<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let earlier = self.pending.len();
        let done = change(self);
        let settled = self.pending.settle(|index, _| index >= earlier);
        self.set_durable(&settled);
        done
    }
}

/// The names on a path, with `.` and `..` taken out as a shell would.
fn components(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_owned()),
            Component::ParentDir => {
                names.pop();
            }
            Component::RootDir | Component::CurDir => {}
            Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}
