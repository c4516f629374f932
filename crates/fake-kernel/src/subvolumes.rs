//! Full qgroups: what a subvolume refers to, and what of that nobody else has.

use std::collections::BTreeMap;
use std::path::Path;

use nix::errno::Errno;

use super::blocks::Ranges;
use super::content::BLOCK;
use super::quotas::is_subvolume;
use super::resolve::Last;
use super::tree::{Filesystem, Node};
use super::world::World;
use super::{FakeKernel, Outcome};
use hostloop_kernel::{Qgroups, Subvolume};

impl Filesystem {
    /// Numbers of subvolumes are above those that the driver chooses.
    pub(super) const SUBVOLUMES: u32 = 1 << 31;

    pub(super) fn has_full_qgroups(&self) -> bool {
        self.limits.on && matches!(self.limits.qgroups, Some(Qgroups::Full | Qgroups::Inconsistent))
    }

    pub(super) fn next_subvolume(&mut self) -> u32 {
        self.limits.subvolumes += 1;
        Self::SUBVOLUMES + self.limits.subvolumes
    }

    /// What only files of this number have.
    pub(super) fn own_bytes(&self, project: u32) -> u64 {
        let (mut all, mut of_others) = (Ranges::default(), Ranges::default());
        for (_, inode, now, _) in self.files().filter(|(_, inode, ..)| inode.links > 0 || inode.open > 0) {
            for run in now.places().all() {
                let (start, end) = (run.physical, run.physical + (run.end - run.start));
                all.insert(start, end);
                if inode.project != project {
                    of_others.insert(start, end);
                }
            }
        }
        (all.total() - of_others.total()) * BLOCK + self.directory_bytes(project)
    }

    fn directory_bytes(&self, project: u32) -> u64 {
        let ours = |inode: &&super::tree::Inode| inode.project == project && inode.links > 0;
        let directories =
            self.inodes.values().filter(ours).filter(|inode| matches!(inode.node, Node::Directory { .. }));
        directories.count() as u64 * BLOCK
    }

    /// Whether other subvolumes lie in a directory.
    pub(super) fn has_others(&self, directory: u64) -> bool {
        let project = self.inode(directory).project;
        let entries = self.entries(directory).map(|entries| entries.values().copied().collect::<Vec<_>>());
        entries.unwrap_or_default().into_iter().any(|child| {
            let other = self.inode(child).project;
            (is_subvolume(other) && other != project)
                || (matches!(self.inode(child).node, Node::Directory { .. }) && self.has_others(child))
        })
    }
}

/// A subvolume that is being copied.
struct Snapshot<'a> {
    filesystem: &'a mut Filesystem,
    /// The number of the original.
    number: u32,
    /// The copy of each file.
    links: BTreeMap<u64, u64>,
}

impl Snapshot<'_> {
    fn directory(&mut self, from: u64, to: u64) -> Outcome<()> {
        for (name, ino) in self.filesystem.entries(from)?.clone() {
            self.entry(&name, ino, to)?;
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, ino: u64, to: u64) -> Outcome<()> {
        let original = self.filesystem.inode(ino).clone();
        let attributes = (original.immutable, original.append_only);
        match original.node {
            Node::Directory { .. } => {
                let made = self.filesystem.add(to, name, Node::directory(), original.mode)?;
                let inode = self.filesystem.inode_mut(made);
                (inode.immutable, inode.append_only) = attributes;
                // Another subvolume is an empty directory in it.
                if original.project == self.number { self.directory(ino, made) } else { Ok(()) }
            }
            _ if self.links.contains_key(&ino) => {
                let copy = self.links.get(&ino).copied().ok_or(Errno::ENOENT)?;
                self.filesystem.link(to, name, copy)
            }
            node => {
                let copy = self.filesystem.add(to, name, node, original.mode)?;
                self.links.insert(ino, copy);
                let inode = self.filesystem.inode_mut(copy);
                (inode.immutable, inode.append_only) = attributes;
                Ok(())
            }
        }
    }
}

impl World {
    /// What was made before is durable with it: it commits.
    pub(super) fn snapshot(&mut self, original: &Path, directory: &Path) -> Outcome<()> {
        let from = self.walk(original, Last::Keep)?.node;
        let (number, mode) = (self.inode(from).project, self.inode(from).mode);
        if !self.filesystems[from.fs].has_full_qgroups() || !is_subvolume(number) {
            return Err(Errno::EOPNOTSUPP);
        }
        let limits = self.filesystems[from.fs].limits.now.get(&number).copied().unwrap_or_default();
        self.create_subvolume(directory, mode, limits)?;
        let to = self.walk(directory, Last::Keep)?.node;
        let filesystem = self.fs_mut(from.fs);
        filesystem.begin_sharing();
        Snapshot { filesystem, number, links: BTreeMap::new() }.directory(from.ino, to.ino)?;
        let filesystem = self.fs_mut(from.fs);
        filesystem.recount_shared();
        filesystem.sync_all();
        Ok(())
    }

    pub(super) fn subvolume(&self, directory: &Path) -> Outcome<Option<Subvolume>> {
        let (parent, name) = self.parent(directory)?;
        let filesystem = &self.filesystems[parent.node.fs];
        let node = match self.bare_child(&parent, &name) {
            Err(Errno::ENOENT) => return Ok(None),
            child => child?,
        };
        let project = self.inode(node).project;
        if filesystem.limits.qgroups != Some(Qgroups::Full) || !filesystem.limits.on || !is_subvolume(project)
        {
            return Ok(None);
        }
        let (bytes, own_bytes) = (filesystem.counted(project).0, filesystem.own_bytes(project));
        Ok(Some(Subvolume { bytes, own_bytes, has_others: filesystem.has_others(node.ino) }))
    }
}

impl FakeKernel {
    /// Makes a subvolume in one that has full qgroups, as a pod may in its volume.
    pub fn make_subvolume(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        let path = path.as_ref();
        self.outside("make subvolume", path, |world| {
            let made = world.create(path, Node::directory(), 0o755)?;
            let number = world.fs_mut(made.fs).next_subvolume();
            let inode = world.fs_mut(made.fs).inode_mut(made.ino);
            (inode.project, inode.durable_project) = (number, number);
            Ok(())
        })
    }
}
