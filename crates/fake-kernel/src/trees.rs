//! Whole directory trees.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::content::{BLOCK, Content};
use super::copy_tree::Copy;
use super::resolve::Last;
use super::seam::Effect;
use super::tree::{Node, NodeRef};
use super::tree_stream::{Walk, Writer};
use super::world::{Resolved, World};
use super::{Outcome, Process};
use hostloop_kernel::{Base, Reuse, TreeWriter, Trees, Usage};
use hostloop_model::tree::{Item, Position};

impl World {
    fn usage(&self, directory: &Path) -> Outcome<Usage> {
        let top = self.walk(directory, Last::Keep)?;
        let mut seen = std::collections::BTreeSet::from([top.node]);
        let mut todo = vec![top];
        let mut usage = Usage::default();
        while let Some(place) = todo.pop() {
            usage.inodes += 1;
            match &self.inode(place.node).node {
                Node::File { now, .. } => usage.bytes += now.allocated_bytes(),
                Node::Directory { now, .. } => {
                    usage.bytes += BLOCK;
                    let children =
                        now.keys().map(|name| self.child(&place, name)).collect::<Outcome<Vec<_>>>()?;
                    todo.extend(
                        children.into_iter().filter(|c| c.mount == place.mount && seen.insert(c.node)),
                    );
                }
                Node::Symlink(_) | Node::Device { .. } => {}
            }
        }
        Ok(usage)
    }

    fn find(&self, directory: &Path, names: &[&str]) -> Outcome<Option<PathBuf>> {
        let top = self.walk(directory, Last::Keep)?;
        let Node::Directory { .. } = &self.inode(top.node).node else { return Err(Errno::ENOTDIR) };
        let mut todo = vec![(top, PathBuf::new())];
        while let Some((place, path)) = todo.pop() {
            let Node::Directory { now, .. } = &self.inode(place.node).node else { continue };
            if let Some(name) = names.iter().find(|name| now.contains_key(**name)) {
                return Ok(Some(path.join(name)));
            }
            for below in now.keys() {
                let child = self.child(&place, below)?;
                if child.mount == place.mount {
                    todo.push((child, path.join(below)));
                }
            }
        }
        Ok(None)
    }

    fn fingerprint(&self, path: &Path) -> Outcome<u64> {
        let top = self.walk(path, Last::Keep)?;
        let mut hasher = DefaultHasher::new();
        let mut todo = vec![top];
        while let Some(place) = todo.pop() {
            (place.node.ino, self.inode(place.node).mode).hash(&mut hasher);
            match &self.inode(place.node).node {
                Node::File { now, .. } => self.hash_file(now, &mut hasher),
                Node::Directory { now, .. } => {
                    now.hash(&mut hasher);
                    for name in now.keys() {
                        let child = self.child(&place, name)?;
                        (child.mount == place.mount).then_some(()).ok_or(Errno::EXDEV)?;
                        todo.push(child);
                    }
                }
                Node::Symlink(target) => target.hash(&mut hasher),
                Node::Device { rdev, .. } => rdev.hash(&mut hasher),
            }
        }
        Ok(hasher.finish())
    }

    /// The files of a filesystem in an image are among its bytes.
    fn hash_file(&self, content: &Content, hasher: &mut DefaultHasher) {
        content.hash_bytes(hasher);
        if let Some(inside) = content.image {
            for (ino, inode) in &self.filesystems[inside].inodes {
                ino.hash(hasher);
                match &inode.node {
                    Node::File { now, .. } => now.hash_bytes(hasher),
                    Node::Directory { now, .. } => now.hash(hasher),
                    Node::Symlink(target) => target.hash(hasher),
                    Node::Device { rdev, .. } => rdev.hash(hasher),
                }
            }
        }
    }

    pub(super) fn remove_tree(&mut self, path: &Path, how: Effect) -> Outcome<()> {
        self.remove_entries(path, usize::MAX, how).map(drop)
    }

    /// How many entries there are to remove.
    fn entries_of(&self, path: &Path) -> usize {
        let Ok((parent, name)) = self.parent(path) else { return 0 };
        let mut order = Vec::new();
        self.post_order(&parent, &name, &mut order);
        order.len()
    }

    /// Removes this number of entries of a tree, and returns whether the tree is gone. Attributes of what is in the tree are taken away,
    /// those of the directory that the tree is in are not.
    fn remove_entries(&mut self, path: &Path, most: usize, how: Effect) -> Outcome<bool> {
        let (parent, name) = match self.parent(path) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(true),
            other => other?,
        };
        if self.bare_child(&parent, &name) == Err(Errno::ENOENT) {
            return Ok(true);
        }
        self.writable(&parent)?;
        let mut order = Vec::new();
        self.post_order(&parent, &name, &mut order);
        let (whole, asked) = (order.len(), order.len().min(most));
        let count = if how == Effect::Torn { asked / 2 } else { asked };
        for (directory, name, node) in order.into_iter().take(count) {
            if self.is_mount_point(node) {
                return Err(Errno::EBUSY);
            }
            for released in [node, directory].into_iter().filter(|released| *released != parent.node) {
                let inode = self.fs_mut(released.fs).inode_mut(released.ino);
                (inode.immutable, inode.append_only) = (false, false);
            }
            self.can_lose_name(directory, node)?;
            self.fs_mut(node.fs).unlink(directory.ino, &name)?;
        }
        Ok(count == whole)
    }

    /// A tree, children before their directory, as it lies beneath all mounts. A mount point comes without
    /// what is in it.
    fn post_order(&self, directory: &Resolved, name: &str, order: &mut Vec<(NodeRef, String, NodeRef)>) {
        let Ok(node) = self.bare_child(directory, name) else {
            return;
        };
        if let Node::Directory { now, .. } = &self.inode(node).node
            && !self.is_mount_point(node)
        {
            let (inner, path) = (directory.inner.join(name), directory.path.join(name));
            let place = Resolved { mount: directory.mount, node, inner, path };
            now.keys().for_each(|child| self.post_order(&place, child, order));
        }
        order.push((directory.node, name.to_owned(), node));
    }
}

impl Trees for Process {
    fn copy(
        &self,
        source: &Path,
        target: &Path,
        _share: bool,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> io::Result<()> {
        Copy::run(self, source, target, progress)
    }

    fn read(
        &self,
        source: &Path,
        base: Option<Base<'_>>,
        from: Position,
        emit: &mut dyn FnMut(Item) -> bool,
    ) -> io::Result<u64> {
        Walk::run(self, source, base.map(|base| base.path), from, emit)
    }

    fn write(&self, target: &Path, base: Option<(&Path, Reuse)>) -> io::Result<Box<dyn TreeWriter>> {
        Ok(Box::new(Writer::new(self, target, base)?))
    }

    fn lift(&self, directory: &Path) -> io::Result<()> {
        let above = directory.parent().unwrap_or(Path::new("/"));
        let names = self.look("lift", directory.display(), |world| {
            let place = world.walk(directory, Last::Keep)?;
            Ok(world.filesystems[place.node.fs].entries(place.node.ino)?.keys().cloned().collect::<Vec<_>>())
        })?;
        for name in names {
            let (from, to) = (directory.join(&name), above.join(&name));
            self.step("lift", from.display(), |world| match world.walk(&to, Last::Keep) {
                Ok(_) => Err(Errno::EEXIST),
                Err(_) => world.rename(&from, &to),
            })?;
        }
        self.step("lift", directory.display(), |world| {
            let (from, to) = (world.walk(directory, Last::Keep)?.node, world.walk(above, Last::Keep)?.node);
            let mode = world.inode(from).mode;
            world.fs_mut(to.fs).inode_mut(to.ino).mode = mode;
            world.remove(directory, true)
        })?;
        self.step("lift", format_args!("sync {}", above.display()), |world| {
            let fs = world.walk(above, Last::Keep)?.node.fs;
            world.sync_filesystem(fs);
            Ok(())
        })
    }

    fn usage(&self, directory: &Path) -> io::Result<Usage> {
        self.look("usage", directory.display(), |world| world.usage(directory))
    }

    fn find(&self, directory: &Path, names: &[&str]) -> io::Result<Option<PathBuf>> {
        self.look("find", directory.display(), |world| world.find(directory, names))
    }

    fn fingerprint(&self, path: &Path) -> io::Result<u64> {
        self.look("fingerprint", path.display(), |world| world.fingerprint(path))
    }

    fn remove_while(&self, path: &Path, go_on: &mut dyn FnMut() -> bool) -> io::Result<bool> {
        let there = self.alive().map_or(0, |world| world.entries_of(path));
        let most = (0..there.max(1)).take_while(|_| go_on()).count();
        if most == 0 {
            return Ok(false);
        }
        self.step_torn("remove_tree", path.display(), |world, how| world.remove_entries(path, most, how))
    }
}
