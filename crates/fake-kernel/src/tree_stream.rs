//! A tree as a stream of entries, and a tree made from one: a step for each entry and each piece of data, and one that
//! makes all of it durable. Files of the fake have no attribute but a mode.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::content::Content;
use super::resolve::Last;
use super::seam::Effect;
use super::tree::{Inode, Node, NodeRef};
use super::world::{Resolved, World};
use super::{Outcome, Process};
use hostloop_kernel::{Change, Extent, Reuse, Side, Sides, TreeWriter, each_sent};
use hostloop_model::pull::Piece;
use hostloop_model::tree::{Attributes, Basis, Entry, Item, Kind, Position};

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
    /// The earlier files, and the number of the first entry that has the name of one.
    owners: BTreeMap<NodeRef, u64>,
    /// Directories with their number and the names that are still to do, the next one last; and the same directory of the
    /// earlier tree.
    todo: Vec<(Resolved, u64, Vec<String>, Option<NodeRef>)>,
}

impl Side for &Content {
    type Error = Infallible;

    fn extents(&self, _at: u64, _most: usize) -> Result<Option<Vec<Extent>>, Infallible> {
        Ok(None)
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Infallible> {
        Ok(Content::read(self, at, len))
    }
}

/// What differs between two contents, from `begin` on. Whether `take` took all.
fn each_change(
    base: &Content,
    later: &Content,
    begin: u64,
    take: &mut dyn FnMut(Change<'_>) -> bool,
) -> bool {
    let mut sides = Sides::new((base, base.size()), (later, later.size()));
    match sides.each_change(begin, &mut |change| Ok(take(change))) {
        Ok(all) => all,
        Err(never) => match never {},
    }
}

impl Walk<'_> {
    /// What [`Trees::read`](hostloop_kernel::Trees::read) does here.
    pub(super) fn run(
        process: &Process,
        source: &Path,
        base: Option<&Path>,
        from: Position,
        emit: &mut dyn FnMut(Item) -> bool,
    ) -> io::Result<u64> {
        let find =
            |base: &Path| process.look("read_tree", base.display(), |world| world.walk(base, Last::Keep));
        let base = base.map(find).transpose()?.map(|base| base.node);
        let top = process.look("read_tree", source.display(), |world| world.walk(source, Last::Keep))?;
        let (linked, owners, todo) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let mut walk = Walk { process, from, emit, next: 0, linked, owners, todo };
        let mut going = walk.entry(top, base, 0, "")?;
        while going && let Some((directory, number, names, base)) = walk.todo.last_mut() {
            let Some(name) = names.pop() else {
                walk.todo.pop();
                continue;
            };
            let (number, path, base) = (*number, directory.path.join(&name), *base);
            let child = process.look("read_tree", path.display(), |world| {
                let child = world.child(directory, &name)?;
                if child.mount != directory.mount {
                    return Err(Errno::EXDEV);
                }
                Ok((child, base.and_then(|base| world.earlier(base, &name))))
            })?;
            going = walk.entry(child.0, child.1, number, &name)?;
        }
        Ok(walk.next)
    }

    fn entry(&mut self, place: Resolved, base: Option<NodeRef>, parent: u64, name: &str) -> io::Result<bool> {
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
                self.todo.push((place, number, now.into_keys().rev().collect(), base));
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
        let earlier = content
            .as_ref()
            .and(base)
            .map(|base| self.process.look("read_tree", "the earlier", |world| Ok(world.inode(base).clone())));
        let earlier = earlier.transpose()?;
        let basis = match (&content, &earlier) {
            (Some(content), Some(earlier)) => {
                let owner = base.map(|base| *self.owners.entry(base).or_insert(number));
                basis(earlier, content, inode.mode, earlier.links == 1 || owner == Some(number))
            }
            _ => Basis::Nothing,
        };
        let entry = Entry { number, parent, name, kind, linked, attributes, basis };
        if number >= self.from.entry && !(self.emit)(Item::Entry(entry)) {
            return Ok(false);
        }
        let begin = if number + 1 == self.from.entry { self.from.offset } else { 0 };
        let Some(content) = content.filter(|_| number + 1 >= self.from.entry) else { return Ok(true) };
        Ok(match (basis, earlier.map(|earlier| earlier.node)) {
            (Basis::Everything, _) => true,
            (Basis::Content, Some(Node::File { now, .. })) => {
                each_change(&now, &content, begin, &mut |change| match change {
                    Change::None { .. } => (self.emit)(Item::Alive),
                    Change::Differs { range, bytes } => {
                        each_sent(range.start, bytes, &mut |sent| (self.emit)(sent.into()))
                    }
                })
            }
            _ => self.data(&content, begin),
        })
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

/// What a file has of an earlier inode.
fn basis(earlier: &Inode, later: &Content, mode: u32, is_free: bool) -> Basis {
    let Node::File { now, .. } = &earlier.node else { return Basis::Nothing };
    if now.size() == 0 && later.size() > 0 {
        return Basis::Nothing;
    }
    let alike = is_free && earlier.mode == mode && now.size() == later.size();
    let same = |change: Change<'_>| matches!(change, Change::None { .. });
    match alike && each_change(now, later, 0, &mut |change| same(change)) {
        true => Basis::Everything,
        false => Basis::Content,
    }
}

/// A tree that is being made.
pub(super) struct Writer {
    process: Process,
    target: PathBuf,
    /// From the top to the current directory, each with the same directory of the earlier tree.
    levels: Vec<(u64, NodeRef, Option<NodeRef>)>,
    /// By number, those that links may follow to.
    linked: BTreeMap<u64, NodeRef>,
    /// Everything that was made.
    made: Vec<NodeRef>,
    file: Option<NodeRef>,
    reuse: Reuse,
    copied_bytes: u64,
}

impl World {
    /// What has this name in a directory of an earlier tree.
    fn earlier(&self, directory: NodeRef, name: &str) -> Option<NodeRef> {
        let ino = *self.filesystems[directory.fs].entries(directory.ino).ok()?.get(name)?;
        Some(NodeRef { fs: directory.fs, ino })
    }

    fn make_entry(
        &mut self,
        to: NodeRef,
        (base, reuse): (Option<NodeRef>, Reuse),
        entry: &Entry,
        linked: &BTreeMap<u64, NodeRef>,
    ) -> Outcome<NodeRef> {
        let name = std::str::from_utf8(&entry.name).map_err(|_| Errno::EINVAL)?;
        let earlier = match entry.basis {
            Basis::Nothing => None,
            _ => {
                let earlier = base.and_then(|base| self.earlier(base, name)).ok_or(Errno::EBADMSG)?;
                let content = self.content(earlier).map_err(|_| Errno::EBADMSG)?.clone();
                Some((earlier, content))
            }
        };
        if let (Basis::Everything, Some((file, content))) = (entry.basis, &earlier) {
            if entry.kind != (Kind::File { size: content.size() }) || file.fs != to.fs {
                return Err(Errno::EBADMSG);
            }
            self.fs_mut(to.fs).link(to.ino, name, file.ino)?;
            return Ok(*file);
        }
        if let (Kind::File { size }, Some((file, _))) = (&entry.kind, &earlier)
            && reuse == Reuse::InPlace
            && self.inode(*file).links == 1
        {
            self.fs_mut(to.fs).link(to.ino, name, file.ino)?;
            self.fs_mut(to.fs).inode_mut(file.ino).mode = entry.attributes.mode;
            self.set_size(*file, *size)?;
            return Ok(*file);
        }
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
            if let Some((_, content)) = earlier {
                self.set_size(made, content.size())?;
                let mut at = 0;
                while let Some((start, end)) = content.next_data(at) {
                    self.write_at(made, start, &content.read(start, (end - start) as usize))?;
                    at = end;
                }
            }
            self.set_size(made, size)?;
        }
        Ok(made)
    }
}

impl Writer {
    /// Makes the top.
    pub(super) fn new(process: &Process, target: &Path, base: Option<(&Path, Reuse)>) -> io::Result<Self> {
        let (base, reuse) = base.unzip();
        let find =
            |base: &Path| process.look("write_tree", base.display(), |world| world.walk(base, Last::Keep));
        let base = base.map(find).transpose()?.map(|base| base.node);
        let top = process
            .step("write_tree", target.display(), |world| world.create(target, Node::directory(), 0o700))?;
        let process = process.clone();
        Ok(Writer {
            process,
            target: target.to_owned(),
            levels: vec![(0, top, base)],
            linked: BTreeMap::new(),
            made: vec![top],
            file: None,
            reuse: reuse.unwrap_or(Reuse::Share),
            copied_bytes: 0,
        })
    }
}

impl TreeWriter for Writer {
    fn entry(&mut self, entry: Entry) -> io::Result<()> {
        let subject = format!("{} entry {}", self.target.display(), entry.number);
        if entry.number == 0 {
            let (mode, top) = (entry.attributes.mode, self.made[0]);
            return self.process.step("write_tree", subject, |world| {
                world.fs_mut(top.fs).inode_mut(top.ino).mode = mode;
                Ok(())
            });
        }
        while self.levels.last().is_some_and(|(number, ..)| *number != entry.parent) {
            self.levels.pop();
        }
        let (parent, linked, reuse) = (self.levels.last().copied(), &self.linked, self.reuse);
        let (made, base, copied) = self.process.step("write_tree", subject, |world| {
            let (_, parent, base) = parent.ok_or(Errno::EINVAL)?;
            let made = world.make_entry(parent, (base, reuse), &entry, linked)?;
            let name = std::str::from_utf8(&entry.name).unwrap_or_default();
            let base = base.and_then(|base| world.earlier(base, name));
            let is_copied =
                entry.basis == Basis::Content && !world.filesystems[parent.fs].reflink && base != Some(made);
            let copied = base.filter(|_| is_copied).and_then(|file| Some(world.content(file).ok()?.size()));
            Ok((made, base, copied.unwrap_or_default()))
        })?;
        self.copied_bytes += copied;
        let is_new = matches!(entry.kind, Kind::File { .. }) && entry.basis != Basis::Everything;
        self.file = is_new.then_some(made);
        if entry.kind == Kind::Directory {
            self.levels.push((entry.number, made, base));
        }
        if entry.linked {
            self.linked.insert(entry.number, made);
        }
        self.made.push(made);
        Ok(())
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (file, subject) = (self.file, format!("{} at {offset}", self.target.display()));
        self.process.step_torn("write_tree", subject, |world, how| {
            let count = if how == Effect::Torn { bytes.len() / 2 } else { bytes.len() };
            world.write_at(file.ok_or(Errno::EINVAL)?, offset, &bytes[..count])
        })
    }

    fn zeros(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let (file, subject) = (self.file, format!("{} zeros at {offset}", self.target.display()));
        self.process.step("write_tree", subject, |world| {
            let end = offset.saturating_add(len);
            world.shrink(file.ok_or(Errno::EINVAL)?, |content| content.erase_range(offset, end))
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
