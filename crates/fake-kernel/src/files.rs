//! Names, small files and directories.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::content::BLOCK;
use super::resolve::Last;
use super::tree::{FsId, Node, NodeRef};
use super::world::{Resolved, World};
use super::{Outcome, Process};
use hostloop_kernel::{BlockDevice, FileKind, FileStat, Files, LogFile, Pinned, Space};

/// A whole file larger than this is not read at once: the caller has mistaken an image for a small file.
const MAX_READ: u64 = 1 << 30;
/// When everything has changed that a test says nothing of, since the epoch.
const LONG_AGO: Duration = Duration::from_secs(1_000_000_000);

impl World {
    pub(super) fn stat(&self, path: &Path) -> Outcome<Option<FileStat>> {
        let place = match self.walk(path, Last::Keep) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            other => other?,
        };
        self.answering(place.node.fs)?;
        let (kind, size, allocated, rdev) = match &self.inode(place.node).node {
            Node::File { now, .. } => (FileKind::File, now.size(), now.allocated_bytes(), 0),
            Node::Directory { .. } => (FileKind::Directory, BLOCK, BLOCK, 0),
            Node::Symlink(target) => (FileKind::Symlink, target.as_os_str().len() as u64, 0, 0),
            Node::Device { rdev, block: true } => (FileKind::BlockDevice, 0, 0, *rdev),
            Node::Device { rdev, block: false } => (FileKind::Other, 0, 0, *rdev),
        };
        let links = u64::from(self.inode(place.node).links);
        Ok(Some(FileStat { kind, id: self.file_id(place.mount, place.node), size, allocated, rdev, links }))
    }

    /// EIO of a filesystem that a test has made fail.
    fn answering(&self, fs: FsId) -> Outcome<()> {
        if self.failed.contains(&fs) { Err(Errno::EIO) } else { Ok(()) }
    }

    pub(super) fn list(&self, directory: &Path) -> Outcome<Vec<String>> {
        let place = self.walk(directory, Last::Follow)?;
        Ok(self.filesystems[place.node.fs].entries(place.node.ino)?.keys().cloned().collect())
    }

    fn space(&self, path: &Path) -> Outcome<Space> {
        let fs = self.walk(path, Last::Follow)?.node.fs;
        self.answering(fs)?;
        let (total, available) = self.room(fs);
        let filesystem = &self.filesystems[fs];
        let inodes = if filesystem.fs_type == "btrfs" { 0 } else { total / 16384 };
        let taken =
            filesystem.inodes.values().filter(|inode| inode.links > 0 || inode.open > 0).count() as u64;
        let inodes_free = inodes.saturating_sub(taken);
        Ok(Space { total, available, given: 0, used: total - available, inodes, inodes_free })
    }

    /// A regular file that may be changed; a link is not followed.
    pub(super) fn writable_file(&self, file: &Path) -> Outcome<Resolved> {
        let place = self.walk(file, Last::Keep)?;
        self.content(place.node)?;
        self.writable(&place)?;
        match self.inode(place.node) {
            inode if inode.immutable || inode.append_only => Err(Errno::EPERM),
            _ => Ok(place),
        }
    }

    /// EPERM if the attributes of a directory keep it from getting another entry.
    pub(super) fn can_get_entry(&self, directory: NodeRef) -> Outcome<()> {
        if self.inode(directory).immutable { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// EPERM if its attributes, or those of its directory, keep an entry from losing its name.
    pub(super) fn can_lose_name(&self, directory: NodeRef, node: NodeRef) -> Outcome<()> {
        let is_protected = |node| self.inode(node).immutable || self.inode(node).append_only;
        if is_protected(directory) || is_protected(node) { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Makes something new under a name that is free.
    pub(super) fn create(&mut self, path: &Path, node: Node, mode: u32) -> Outcome<NodeRef> {
        if path.file_name().is_none() {
            return Err(Errno::EEXIST);
        }
        let (directory, name) = self.parent(path)?;
        if self.bare_child(&directory, &name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.writable(&directory)?;
        self.can_get_entry(directory.node)?;
        let ino = self.fs_mut(directory.node.fs).add(directory.node.ino, &name, node, mode)?;
        Ok(NodeRef { fs: directory.node.fs, ino })
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Outcome<()> {
        let (source, old_name) = self.writable_parent(from)?;
        let (target, new_name) = self.writable_parent(to)?;
        if source.mount != target.mount {
            return Err(Errno::EXDEV);
        }
        let node = self.bare_child(&source, &old_name)?;
        let moves_directory = matches!(self.inode(node).node, Node::Directory { .. });
        if self.is_mount_point(node) {
            return Err(Errno::EBUSY);
        }
        self.can_lose_name(source.node, node)?;
        self.can_get_entry(target.node)?;
        let project = |node| self.inode(node).project;
        if project(target.node) != 0 && project(target.node) != project(node) {
            return Err(Errno::EXDEV);
        }
        if moves_directory && target.path.starts_with(source.path.join(&old_name)) {
            return Err(Errno::EINVAL);
        }
        if let Ok(replaced) = self.bare_child(&target, &new_name) {
            if replaced == node {
                return Ok(());
            }
            if self.is_mount_point(replaced) {
                return Err(Errno::EBUSY);
            }
            self.can_lose_name(target.node, replaced)?;
            match (&self.inode(replaced).node, moves_directory) {
                (Node::Directory { now, .. }, true) if !now.is_empty() => return Err(Errno::ENOTEMPTY),
                (Node::Directory { .. }, false) => return Err(Errno::EISDIR),
                (Node::Directory { .. }, true) => {}
                (_, true) => return Err(Errno::ENOTDIR),
                (_, false) => {}
            }
        }
        let filesystem = self.fs_mut(source.node.fs);
        filesystem.rename((source.node.ino, &old_name), (target.node.ino, &new_name), node.ino)
    }

    /// Removes one name: of a directory, which must be empty, or of anything else. Fine if nothing is there.
    pub(super) fn remove(&mut self, path: &Path, directory: bool) -> Outcome<()> {
        let gone = |errno| {
            if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) { Ok(()) } else { Err(errno) }
        };
        let (parent, name) = match self.parent(path) {
            Ok(found) => found,
            Err(errno) => return gone(errno),
        };
        let node = match self.bare_child(&parent, &name) {
            Ok(node) => node,
            Err(errno) => return gone(errno),
        };
        self.writable(&parent)?;
        self.can_lose_name(parent.node, node)?;
        match (&self.inode(node).node, directory) {
            (Node::Directory { .. }, false) => return Err(Errno::EISDIR),
            (Node::Directory { .. }, true) if self.is_mount_point(node) => return Err(Errno::EBUSY),
            (Node::Directory { now, .. }, true) if !now.is_empty() => return Err(Errno::ENOTEMPTY),
            (Node::Directory { .. }, true) => {}
            (_, true) => return Err(Errno::ENOTDIR),
            (_, false) if self.is_mount_point(node) => return Err(Errno::EBUSY),
            (_, false) => {}
        }
        self.fs_mut(node.fs).unlink(parent.node.ino, &name)
    }
}

impl Files for Process {
    fn stat(&self, path: &Path) -> io::Result<Option<FileStat>> {
        self.look("stat", path.display(), |world| world.stat(path))
    }

    fn changed(&self, path: &Path) -> io::Result<Option<SystemTime>> {
        self.look("changed", path.display(), |world| {
            let at = world.changed.get(path).copied().unwrap_or_else(|| UNIX_EPOCH + LONG_AGO);
            Ok(world.stat(path)?.map(|_| at))
        })
    }

    fn open_below(&self, directory: &Path, below: &Path) -> io::Result<Pinned> {
        self.pin_below(directory, below)
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        self.look("canonicalize", path.display(), |world| Ok(world.walk(path, Last::Follow)?.path))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.look("list", directory.display(), |world| world.list(directory))
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        self.look("read", file.display(), |world| {
            let content = world.content(world.walk(file, Last::Follow)?.node)?;
            if content.size() > MAX_READ {
                Err(Errno::EFBIG)
            } else {
                Ok(content.read(0, content.size() as usize))
            }
        })
    }

    fn read_through(&self, file: &Path) -> io::Result<()> {
        self.look("read_through", file.display(), |world| world.read_at(file, 0, 4096).map(drop))
    }

    fn seen_closed(&self, file: &Path) -> std::io::Result<bool> {
        self.look("lease", file.display(), |world| {
            let node = world.walk(file, Last::Keep)?.node;
            Ok(matches!(world.inode(node).node, Node::File { .. }) && world.inode(node).open == 0)
        })
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.look("statvfs", path.display(), |world| world.space(path))
    }

    fn block_device(&self, device: &Path) -> io::Result<BlockDevice> {
        self.look("look at", device.display(), |world| {
            let number = world.loop_at(device)?;
            let device = &world.loops[&number];
            let held = world.is_mounted(number) || world.has_program(number);
            Ok(BlockDevice { rdev: device.rdev(), bytes: device.size, held, partitioned: false })
        })
    }

    fn create_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.step("create_directory", path.display(), |world| {
            world.create(path, Node::directory(), mode).map(drop)
        })
    }

    fn create_file(&self, path: &Path) -> io::Result<()> {
        self.step("create_file", path.display(), |world| world.create(path, Node::file(), 0o600).map(drop))
    }

    fn sync_file(&self, file: &Path) -> io::Result<()> {
        self.step_sync("sync_file", file.display(), |world| {
            let node = world.walk(file, Last::Keep)?.node;
            world.content(node).map(|_| node)
        })
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.step_sync("sync_directory", directory.display(), |world| {
            let node = world.walk(directory, Last::Follow)?.node;
            world.filesystems[node.fs].entries(node.ino).map(|_| node)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let subject = format!("{} to {}", from.display(), to.display());
        self.step("rename", subject, |world| world.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step("remove_file", path.display(), |world| world.remove(path, false))
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.step("remove_directory", path.display(), |world| world.remove(path, true))
    }

    fn open_log(&self, file: &Path, len: u64) -> io::Result<Box<dyn LogFile>> {
        self.log(file, len)
    }

    fn lock(&self, file: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.flock(file)
    }

    fn random_id(&self) -> io::Result<String> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(format!("00000000-0000-4000-8000-{:012x}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}
