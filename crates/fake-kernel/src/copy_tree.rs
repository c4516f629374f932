//! Copying a whole tree: a step for each entry, and one that makes all of it durable.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::content::Content;
use super::resolve::Last;
use super::seam::Effect;
use super::tree::{Node, NodeRef};
use super::world::{Resolved, World};
use super::{Outcome, Process};

/// A copy on its way.
pub(super) struct Copy<'a> {
    process: &'a Process,
    progress: &'a mut dyn FnMut(u64) -> io::Result<()>,
    bytes: u64,
    /// The copy of each file of several names.
    links: BTreeMap<NodeRef, NodeRef>,
    /// Everything that was made.
    made: Vec<NodeRef>,
    /// Directories whose entries are still to copy: where they are, their copy and its path.
    todo: Vec<(Resolved, NodeRef, PathBuf)>,
}

/// What copying an entry came to.
enum Copied {
    /// It was gone.
    Nothing,
    /// Another name of what was copied before.
    Link,
    Directory(Resolved, NodeRef),
    /// Anything else.
    File {
        /// What it was copied from, where that has further names.
        linked: Option<NodeRef>,
        copy: NodeRef,
        bytes: u64,
    },
}

impl World {
    /// Copies an entry, a directory without what is in it.
    fn copy_entry(
        &mut self,
        from: &Resolved,
        name: &str,
        to: NodeRef,
        links: &BTreeMap<NodeRef, NodeRef>,
        how: Effect,
    ) -> Outcome<Copied> {
        if !self.is_there(from) {
            return Ok(Copied::Nothing);
        }
        let place = match self.child(from, name) {
            Err(Errno::ENOENT) => return Ok(Copied::Nothing),
            other => other?,
        };
        if place.mount != from.mount {
            return Err(Errno::EXDEV);
        }
        if let Some(copy) = links.get(&place.node) {
            let there = self.filesystems[to.fs].entries(to.ino)?.contains_key(name);
            if !there {
                self.fs_mut(to.fs).link(to.ino, name, copy.ino)?;
            }
            return Ok(Copied::Link);
        }
        let inode = self.inode(place.node);
        let (mode, linked) = (inode.mode, (inode.links > 1).then_some(place.node));
        let node = match &inode.node {
            Node::File { .. } => Node::file(),
            Node::Directory { .. } => Node::directory(),
            other => other.clone(),
        };
        let ino = self.fs_mut(to.fs).add(to.ino, name, node, mode)?;
        let copy = NodeRef { fs: to.fs, ino };
        let bytes = match &self.inode(place.node).node {
            Node::Directory { .. } => return Ok(Copied::Directory(place, copy)),
            Node::File { now, .. } => {
                let content = now.clone();
                self.copy_content(&content, copy, how)?
            }
            _ => 0,
        };
        Ok(Copied::File { linked, copy, bytes })
    }

    /// Copies the data of a file and leaves its holes; torn, half of it.
    fn copy_content(&mut self, content: &Content, to: NodeRef, how: Effect) -> Outcome<u64> {
        let size = if how == Effect::Torn { content.size() / 2 } else { content.size() };
        let (mut at, mut bytes) = (0, 0);
        while let Some((start, end)) = content.next_data(at).filter(|(start, _)| *start < size) {
            let end = end.min(size);
            self.write_at(to, start, &content.read(start, (end - start) as usize))?;
            bytes += end - start;
            at = end;
        }
        self.set_size(to, size)?;
        Ok(bytes)
    }

    /// False where somebody has removed this directory for good.
    fn is_there(&self, directory: &Resolved) -> bool {
        self.filesystems[directory.node.fs].inodes.contains_key(&directory.node.ino)
    }

    fn names_to_copy(&self, from: &Resolved, root: NodeRef) -> Outcome<Vec<String>> {
        if from.node == root {
            return Err(Errno::EINVAL);
        }
        if !self.is_there(from) {
            return Ok(Vec::new());
        }
        Ok(self.filesystems[from.node.fs].entries(from.node.ino)?.keys().cloned().collect())
    }

    /// Makes the root of the copy.
    fn copy_root(&mut self, source: &Path, target: &Path) -> Outcome<(Resolved, NodeRef)> {
        let from = self.walk(source, Last::Keep)?;
        self.filesystems[from.node.fs].entries(from.node.ino)?;
        let mode = self.inode(from.node).mode;
        let to = self.create(target, Node::directory(), mode)?;
        Ok((from, to))
    }
}

impl<'a> Copy<'a> {
    /// What [`Trees::copy`](hostloop_kernel::Trees::copy) does here. Blocks are not shared: that is the worst for
    /// a driver that counts on room.
    pub(super) fn run(
        process: &'a Process,
        source: &Path,
        target: &Path,
        progress: &'a mut dyn FnMut(u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let (from, to) =
            process.step("copy_tree", target.display(), |world| world.copy_root(source, target))?;
        let mut copy = Copy {
            process,
            progress,
            bytes: 0,
            links: BTreeMap::new(),
            made: vec![to],
            todo: vec![(from, to, target.to_owned())],
        };
        let root = to;
        while let Some((from, to, path)) = copy.todo.pop() {
            let look = |world: &World| world.names_to_copy(&from, root);
            for name in process.look("copy_tree", path.display(), look)? {
                copy.entry(&from, &name, to, path.join(&name))?;
            }
        }
        (copy.progress)(copy.bytes)?;
        copy.sync(target)
    }

    fn entry(&mut self, from: &Resolved, name: &str, to: NodeRef, path: PathBuf) -> io::Result<()> {
        let links = &self.links;
        let copied = self.process.step_torn("copy_tree", path.display(), |world, how| {
            world.copy_entry(from, name, to, links, how)
        })?;
        match copied {
            Copied::Nothing | Copied::Link => {}
            Copied::Directory(place, copy) => {
                self.made.push(copy);
                self.todo.push((place, copy, path));
            }
            Copied::File { linked, copy, bytes } => {
                self.links.extend(linked.map(|file| (file, copy)));
                self.made.push(copy);
                self.bytes += bytes;
            }
        }
        (self.progress)(self.bytes)
    }

    /// Makes everything that was copied durable, and nothing else: the entry of the target is the caller's affair.
    /// Torn, half of it.
    fn sync(&self, target: &Path) -> io::Result<()> {
        self.process.step_torn("copy_tree", format_args!("sync {}", target.display()), |world, how| {
            let count = if how == Effect::Torn { self.made.len() / 2 } else { self.made.len() };
            self.made.iter().take(count).for_each(|node| world.sync(*node));
            Ok(())
        })
    }
}
