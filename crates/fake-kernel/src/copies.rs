//! Copies of files, and where their blocks are.
//!
//! The files of a filesystem in an image are a tree beside its bytes. A copy that has all of the bytes gets a tree of its
//! own. One that has a part of them, or parts from different moments, has none and cannot be mounted.

use std::path::Path;

use nix::errno::Errno;

use super::blocks::{Ranges, Run};
use super::content::BLOCK;
use super::resolve::Last;
use super::seam::Effect;
use super::tree::{Backing, Filesystem, FsId, Node, NodeRef};
use super::world::World;
use super::{FakeKernel, Outcome};
use hostloop_kernel::Extent;

/// Bytes copied at once.
const BUFFER: u64 = 1 << 20;

/// A copy of an image that was begun.
pub(super) struct Progress {
    source: NodeRef,
    /// The tree in the source as it was then.
    tree: Filesystem,
}

impl World {
    pub(super) fn extents(&self, file: &Path, offset: u64, max: usize, sync: bool) -> Outcome<Vec<Extent>> {
        let node = self.walk(file, Last::Keep)?.node;
        let filesystem = &self.filesystems[node.fs];
        if filesystem.backing == Backing::Memory {
            return Err(Errno::EOPNOTSUPP);
        }
        self.content(node)?;
        let Node::File { now, durable, .. } = &self.inode(node).node else { return Err(Errno::EINVAL) };
        let others = filesystem.blocks_of_others(node.ino);
        let mut extents = Vec::new();
        for (run, written) in now.runs() {
            if sync {
                extents.extend(on_disk(run, written, &others));
                continue;
            }
            // What was not placed on the disk since: the kernel tells where its older bytes lie, if anywhere.
            let mut at = run.start;
            for (old, written) in durable.runs() {
                if old.end <= at || old.start >= run.end {
                    continue;
                }
                let old = old.clipped(at, run.end);
                extents.extend(nowhere(at, old.start));
                extents.extend(on_disk(old, written, &others));
                at = old.end;
            }
            extents.extend(nowhere(at, run.end));
        }
        Ok(extents.into_iter().filter_map(|extent| from(extent, offset)).take(max).collect())
    }

    pub(super) fn reflink(&mut self, source: &Path, target: &Path, how: Effect) -> Outcome<()> {
        let from = self.walk(source, Last::Keep)?.node;
        self.content(from)?;
        let to = self.writable_file(target)?.node;
        if self.content(to)?.size() != 0 {
            return Err(Errno::EEXIST);
        }
        match () {
            () if from.fs != to.fs => return Err(Errno::EXDEV),
            () if !self.filesystems[from.fs].reflink => return Err(Errno::EOPNOTSUPP),
            () if from == to => return Err(Errno::EINVAL),
            () => {}
        }
        // The kernel places what is dirty on the disk first.
        self.fs_mut(from.fs).sync(from.ino);
        let mut copy = self.content(from)?.clone();
        copy.in_place |= self.filesystems[from.fs].fs_type == "xfs";
        match how {
            Effect::Whole => copy.image = copy.image.map(|tree| self.add_tree(self.tree_of(tree), to)),
            // It shares run by run, and a signal ends it between two.
            _ => {
                copy.set_size(copy.size() / 2 / BLOCK * BLOCK);
                copy.image = None;
            }
        }
        *self.content_mut(to)? = copy;
        self.fs_mut(to.fs).begin_sharing();
        Ok(())
    }

    /// The files of a filesystem as a copy of its image has them: those that are on the device.
    fn tree_of(&self, fs: FsId) -> Filesystem {
        let in_use = |mount: &super::mounts::Mount| mount.root.fs == fs && !mount.superblock_read_only;
        let mut tree = self.filesystems[fs].clone();
        tree.lose_unsynced();
        tree.needs_recovery |= self.mounts.values().any(in_use);
        tree
    }

    fn add_tree(&mut self, mut tree: Filesystem, image: NodeRef) -> FsId {
        tree.backing = Backing::Image(image);
        self.filesystems.push(tree);
        self.filesystems.len() - 1
    }

    pub(super) fn copy_range(
        &mut self,
        (source, target): (&Path, &Path),
        offset: u64,
        len: u64,
        how: Effect,
    ) -> Outcome<()> {
        let from = self.walk(source, Last::Keep)?.node;
        let to = self.writable_file(target)?.node;
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let tree = self.content(from)?.image.map(|fs| self.tree_of(fs));
        // Whatever the target was until now, it is being written over.
        self.content_mut(to)?.image = None;
        if let Some(tree) = &tree
            && self.copying.get(&to).is_none_or(|begun| begun.source != from)
        {
            self.copying.insert(to, Progress { source: from, tree: tree.clone() });
        }
        let end = if how == Effect::Torn { offset + len / 2 } else { end };
        let mut at = offset;
        while at < end {
            let bytes = self.content(from)?.read(at, (end - at).min(BUFFER) as usize);
            if bytes.is_empty() {
                return Err(Errno::EIO);
            }
            let fitting = self.fitting(to, at, bytes.len() as u64)? as usize;
            self.write_at(to, at, &bytes[..fitting])?;
            if fitting < bytes.len() {
                return Err(Errno::ENOSPC);
            }
            at += bytes.len() as u64;
        }
        if how == Effect::Whole
            && let Some(tree) = tree
        {
            self.complete(from, to, tree)?;
        }
        Ok(())
    }

    /// Gives a copy the tree of its source if it has all of its bytes, and the tree has not changed since it began.
    fn complete(&mut self, from: NodeRef, to: NodeRef, tree: Filesystem) -> Outcome<()> {
        let unchanged = self.copying.get(&to).is_some_and(|begun| begun.tree.inodes == tree.inodes);
        if unchanged && self.content(to)?.covers(self.content(from)?) {
            let tree = self.add_tree(tree, to);
            self.content_mut(to)?.image = Some(tree);
        }
        Ok(())
    }

    pub(super) fn unshare(&mut self, file: &Path, how: Effect) -> Outcome<()> {
        let node = self.writable_file(file)?.node;
        if self.filesystems[node.fs].fs_type != "xfs" {
            return Err(Errno::EOPNOTSUPP);
        }
        let size = self.content(node)?.size();
        self.separate(node, if how == Effect::Torn { size / 2 } else { size })
    }
}

impl FakeKernel {
    /// Gives an image the files of an image of another machine. They are no bytes here, so that nothing carries them
    /// over a network; but the copy must have all of the bytes.
    ///
    /// # Errors
    /// EINVAL where the other image holds no filesystem, EIO where the copy has not all of its bytes.
    pub fn adopt_files(
        &self,
        image: impl AsRef<Path>,
        from: &FakeKernel,
        source: impl AsRef<Path>,
    ) -> std::io::Result<()> {
        let (image, source) = (image.as_ref(), source.as_ref());
        let (tree, content) = from.outside("read", source, |world| {
            let node = world.walk(source, Last::Keep)?.node;
            let content = world.content(node)?.clone();
            Ok((world.tree_of(content.image.ok_or(Errno::EINVAL)?), content))
        })?;
        self.outside("adopt", image, |world| {
            let node = world.walk(image, Last::Keep)?.node;
            if !world.content(node)?.covers(&content) {
                return Err(Errno::EIO);
            }
            let tree = world.add_tree(tree, node);
            let adopted = world.content_mut(node)?;
            adopted.image = Some(tree);
            world.sync(node);
            Ok(())
        })
    }
}

/// A run of blocks of which others may have a part.
fn on_disk(run: Run, written: bool, others: &Ranges) -> Vec<Extent> {
    let pieces = others.pieces(run.physical, run.physical + (run.end - run.start));
    let extent = |(start, end, shared): (u64, u64, bool)| Extent {
        logical: (run.start + (start - run.physical)) * BLOCK,
        physical: start * BLOCK,
        length: (end - start) * BLOCK,
        located: written,
        shared,
        unwritten: !written,
    };
    pieces.into_iter().map(extent).collect()
}

/// Blocks that wait to be placed on the disk.
fn nowhere(start: u64, end: u64) -> Option<Extent> {
    let length = end.saturating_sub(start) * BLOCK;
    let logical = start * BLOCK;
    let waiting = Extent { logical, physical: 0, length, located: false, shared: false, unwritten: false };
    (length > 0).then_some(waiting)
}

/// The part of an extent from `offset` on.
fn from(extent: Extent, offset: u64) -> Option<Extent> {
    let before = offset.saturating_sub(extent.logical).min(extent.length);
    let (logical, physical) = (extent.logical + before, extent.physical + before);
    (before < extent.length).then_some(Extent { logical, physical, length: extent.length - before, ..extent })
}
