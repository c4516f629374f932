//! A tree as a stream of entries, and a tree made from one: a step for each entry and each piece of data, and one that
//! makes all of it durable. Files of the fake have no attribute but a mode.

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
use crate::model::pull::Piece;
use crate::model::tree::{Attributes, Entry, Item, Kind, Position};
use crate::os::TreeWriter;

/// The types of device nodes (inode(7)).
const CHARACTER: u32 = 0o020_000;
const BLOCK_DEVICE: u32 = 0o060_000;

/// A tree that is being read.
pub(super) struct Walk<'a> {
    process: &'a Process,
    from: Position,
    emit: &'a mut dyn FnMut(Item) -> bool,
    next: u64,
    /// The numbers of files with several names.
    linked: BTreeMap<NodeRef, u64>,
    /// Directories with their number and the names that are still to do, the next one last.
    todo: Vec<(Resolved, u64, Vec<String>)>,
}

impl Walk<'_> {
    /// What [`Trees::read`](crate::os::Trees::read) does here.
    pub(super) fn run(
        process: &Process,
        source: &Path,
        from: Position,
        emit: &mut dyn FnMut(Item) -> bool,
    ) -> io::Result<u64> {
        let top = process.look("read_tree", source.display(), |world| world.walk(source, Last::Keep))?;
        let (linked, todo) = (BTreeMap::new(), Vec::new());
        let mut walk = Walk { process, from, emit, next: 0, linked, todo };
        let mut going = walk.entry(top, 0, "")?;
        while going && let Some((directory, number, names)) = walk.todo.last_mut() {
            let Some(name) = names.pop() else {
                walk.todo.pop();
                continue;
            };
            let (number, path) = (*number, directory.path.join(&name));
            let child = process.look("read_tree", path.display(), |world| {
                let child = world.child(directory, &name)?;
                if child.mount == directory.mount { Ok(child) } else { Err(Errno::EXDEV) }
            })?;
            going = walk.entry(child, number, &name)?;
        }
        Ok(walk.next)
    }

    fn entry(&mut self, place: Resolved, parent: u64, name: &str) -> io::Result<bool> {
        let number = self.next;
        self.next += 1;
        let inode = self
            .process
            .look("read_tree", place.path.display(), |world| Ok(world.inode(place.node).clone()))?;
        let several = inode.links > 1 && !matches!(inode.node, Node::Directory { .. });
        let first = several.then(|| *self.linked.entry(place.node).or_insert(number));
        let mut content = None;
        let kind = match inode.node {
            _ if first.is_some_and(|first| first < number) => Kind::Link { entry: first.unwrap_or(number) },
            Node::Directory { now, .. } => {
                self.todo.push((place, number, now.into_keys().rev().collect()));
                Kind::Directory
            }
            Node::File { now, .. } => {
                let size = now.size();
                content = Some(now);
                Kind::File { size }
            }
            Node::Symlink(target) => Kind::Symlink { target: target.as_os_str().as_encoded_bytes().to_vec() },
            Node::Device { rdev, block } => {
                Kind::Special { file_type: if block { BLOCK_DEVICE } else { CHARACTER }, rdev }
            }
        };
        let linked = first == Some(number);
        let attributes = match kind {
            Kind::Link { .. } => Attributes::default(),
            _ => Attributes { mode: inode.mode, ..Attributes::default() },
        };
        let name = name.as_bytes().to_vec();
        let entry = Entry { number, parent, name, kind, linked, attributes };
        if number >= self.from.entry && !(self.emit)(Item::Entry(entry)) {
            return Ok(false);
        }
        let begin = if number + 1 == self.from.entry { self.from.offset } else { 0 };
        let wanted = number + 1 >= self.from.entry;
        Ok(content.filter(|_| wanted).is_none_or(|content| self.data(&content, begin)))
    }

    fn data(&mut self, content: &Content, begin: u64) -> bool {
        let mut at = begin;
        while let Some((start, end)) = content.next_data(at) {
            at = start;
            while at < end {
                let data = content.read(at, ((end - at) as usize).min(Piece::MOST));
                let piece = Piece::new(at, data);
                at += piece.data.len() as u64;
                if !(self.emit)(Item::Data(piece)) {
                    return false;
                }
            }
        }
        true
    }
}

/// A tree that is being made.
pub(super) struct Writer {
    process: Process,
    target: PathBuf,
    /// From the top to the current directory.
    levels: Vec<(u64, NodeRef)>,
    /// By number, those that links may follow to.
    linked: BTreeMap<u64, NodeRef>,
    /// Everything that was made.
    made: Vec<NodeRef>,
    file: Option<NodeRef>,
}

impl World {
    fn make_entry(
        &mut self,
        to: NodeRef,
        entry: &Entry,
        linked: &BTreeMap<u64, NodeRef>,
    ) -> Outcome<NodeRef> {
        let name = std::str::from_utf8(&entry.name).map_err(|_| Errno::EINVAL)?;
        let node = match &entry.kind {
            Kind::Link { entry } => {
                let file = *linked.get(entry).ok_or(Errno::EINVAL)?;
                self.fs_mut(to.fs).link(to.ino, name, file.ino)?;
                return Ok(file);
            }
            Kind::Directory => Node::directory(),
            Kind::File { .. } => Node::file(),
            Kind::Symlink { target } => {
                Node::Symlink(std::str::from_utf8(target).map_err(|_| Errno::EINVAL)?.into())
            }
            Kind::Special { file_type, rdev } => match *file_type {
                CHARACTER | BLOCK_DEVICE => Node::Device { rdev: *rdev, block: *file_type == BLOCK_DEVICE },
                _ => return Err(Errno::EINVAL),
            },
        };
        let ino = self.fs_mut(to.fs).add(to.ino, name, node, entry.attributes.mode)?;
        let made = NodeRef { fs: to.fs, ino };
        if let Kind::File { size } = entry.kind {
            self.set_size(made, size)?;
        }
        Ok(made)
    }
}

impl Writer {
    /// Makes the top.
    pub(super) fn new(process: &Process, target: &Path) -> io::Result<Self> {
        let top = process
            .step("write_tree", target.display(), |world| world.create(target, Node::directory(), 0o700))?;
        let process = process.clone();
        Ok(Writer {
            process,
            target: target.to_owned(),
            levels: vec![(0, top)],
            linked: BTreeMap::new(),
            made: vec![top],
            file: None,
        })
    }
}

impl TreeWriter for Writer {
    fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        let subject = format!("{} entry {}", self.target.display(), entry.number);
        if entry.number == 0 {
            let (mode, top) = (entry.attributes.mode, self.made[0]);
            return self.process.step("write_tree", subject, |world| {
                world.fs_mut(top.fs).inode_mut(top.ino).mode = mode;
                Ok(())
            });
        }
        while self.levels.last().is_some_and(|(number, _)| *number != entry.parent) {
            self.levels.pop();
        }
        let (parent, linked) = (self.levels.last().map(|(_, node)| *node), &self.linked);
        let made = self.process.step("write_tree", subject, |world| {
            world.make_entry(parent.ok_or(Errno::EINVAL)?, entry, linked)
        })?;
        self.file = matches!(entry.kind, Kind::File { .. }).then_some(made);
        if entry.kind == Kind::Directory {
            self.levels.push((entry.number, made));
        }
        if entry.linked {
            self.linked.insert(entry.number, made);
        }
        self.made.push(made);
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (file, subject) = (self.file, format!("{} at {offset}", self.target.display()));
        self.process.step_torn("write_tree", subject, |world, how| {
            let count = if how == Effect::Torn { bytes.len() / 2 } else { bytes.len() };
            world.write_at(file.ok_or(Errno::EINVAL)?, offset, &bytes[..count])
        })
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        let subject = format!("sync {}", self.target.display());
        self.process.step_torn("write_tree", subject, |world, how| {
            let count = if how == Effect::Torn { self.made.len() / 2 } else { self.made.len() };
            self.made.iter().take(count).for_each(|node| world.sync(*node));
            Ok(())
        })
    }
}
