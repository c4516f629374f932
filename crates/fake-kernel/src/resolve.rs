//! From a path to an inode, through links and mounts.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

use super::Outcome;
use super::tree::{FsId, Node, NodeRef};
use super::world::{Resolved, World};

/// More links than this on the way are a loop (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Whether a link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Follow,
    Keep,
}

impl World {
    /// Walks a path. Links on the way are followed, one at its end as `last` says.
    pub(super) fn walk(&self, path: &Path, last: Last) -> Outcome<Resolved> {
        let (start, path) = match self.pinned(path) {
            Some((place, rest)) => (place, rest),
            None => (self.root(), path),
        };
        let mut stack = vec![start];
        let mut todo = names(path);
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                stack.truncate(stack.len().saturating_sub(1).max(1));
                continue;
            }
            let child = self.child(&stack[stack.len() - 1], &name)?;
            match &self.inode(child.node).node {
                Node::Symlink(target) if last == Last::Follow || !todo.is_empty() => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::ELOOP);
                    }
                    if target.is_absolute() {
                        stack.truncate(1);
                    }
                    todo.extend(names(target));
                }
                _ => stack.push(child),
            }
        }
        stack.pop().ok_or(Errno::ENOENT)
    }

    /// Walks from a directory down without a link (openat2(2), RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS).
    pub(super) fn beneath(&self, directory: &Path, below: &Path) -> Outcome<Resolved> {
        let mut place = self.walk(directory, Last::Follow)?;
        for part in below.components() {
            let name = match part {
                Component::Normal(name) => name.to_str().ok_or(Errno::EINVAL)?,
                Component::CurDir => continue,
                _ => return Err(Errno::EXDEV),
            };
            self.filesystems[place.node.fs].entries(place.node.ino)?;
            place = self.child(&place, name)?;
            if matches!(self.inode(place.node).node, Node::Symlink(_)) {
                return Err(Errno::ELOOP);
            }
        }
        Ok(place)
    }

    /// The root of a mount that a path through a descriptor leads to, and what follows in the path.
    fn pinned<'a>(&self, path: &'a Path) -> Option<(Resolved, &'a Path)> {
        let rest = path.strip_prefix("/proc/self/fd").ok()?;
        let number = rest.components().next()?;
        let place = self.pins.get(&number.as_os_str().to_str()?.parse().ok()?)?;
        Some((place.clone(), rest.strip_prefix(number).ok()?))
    }

    /// A path's directory and its last name, which may not be there.
    pub(super) fn parent(&self, path: &Path) -> Outcome<(Resolved, String)> {
        let name = path.file_name().and_then(OsStr::to_str).ok_or(Errno::EINVAL)?;
        let directory = self.walk(path.parent().ok_or(Errno::EINVAL)?, Last::Follow)?;
        self.filesystems[directory.node.fs].entries(directory.node.ino)?;
        Ok((directory, name.to_owned()))
    }

    /// Like [`parent`](Self::parent), of a directory whose entries may be changed.
    pub(super) fn writable_parent(&self, path: &Path) -> Outcome<(Resolved, String)> {
        let (directory, name) = self.parent(path)?;
        self.writable(&directory)?;
        Ok((directory, name))
    }

    /// EROFS where nothing can be written through this place's mount, EAGAIN where its filesystem is frozen.
    pub(super) fn writable(&self, place: &Resolved) -> Outcome<()> {
        let mount = &self.mounts[&place.mount];
        if mount.read_only || mount.superblock_read_only {
            return Err(Errno::EROFS);
        }
        self.unfrozen(place.node.fs)
    }

    /// EAGAIN where the filesystem is frozen.
    pub(super) fn unfrozen(&self, fs: FsId) -> Outcome<()> {
        if self.freezes.has(fs) { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// The inode of a name, not looking at what is mounted on it.
    pub(super) fn bare_child(&self, directory: &Resolved, name: &str) -> Outcome<NodeRef> {
        let entries = self.filesystems[directory.node.fs].entries(directory.node.ino)?;
        let ino = *entries.get(name).ok_or(Errno::ENOENT)?;
        Ok(NodeRef { fs: directory.node.fs, ino })
    }

    /// The place of a name, on top of everything that is mounted there.
    pub(super) fn child(&self, directory: &Resolved, name: &str) -> Outcome<Resolved> {
        let node = self.bare_child(directory, name)?;
        let (inner, path) = (directory.inner.join(name), directory.path.join(name));
        Ok(self.cross(Resolved { mount: directory.mount, node, inner, path }))
    }

    /// Whether anything is mounted on this inode, seen through whichever mount: it can be neither removed nor
    /// renamed then.
    pub(super) fn is_mount_point(&self, node: NodeRef) -> bool {
        self.covered.keys().any(|(_, at)| *at == node)
    }

    fn root(&self) -> Resolved {
        let (number, mount) = self.mounts.first_key_value().expect("the root is mounted");
        let root = PathBuf::from("/");
        self.cross(Resolved { mount: *number, node: mount.root, inner: root.clone(), path: root })
    }

    fn cross(&self, mut place: Resolved) -> Resolved {
        while let Some(top) = self.covered.get(&(place.mount, place.node)) {
            let mount = &self.mounts[top];
            place =
                Resolved { mount: *top, node: mount.root, inner: mount.root_path.clone(), path: place.path };
        }
        place
    }
}

/// The names of a path, last one first.
fn names(path: &Path) -> Vec<String> {
    let name = |component| match component {
        Component::Normal(name) => Some(OsStr::to_string_lossy(name).into_owned()),
        Component::ParentDir => Some("..".to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}
