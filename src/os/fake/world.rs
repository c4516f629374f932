//! The one state of the fake machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use nix::errno::Errno;

use super::Outcome;
use super::content::{BLOCK, Content};
use super::loops::Loop;
use super::mounts::Mount;
use super::seam::Seam;
use super::tree::{Backing, Filesystem, FsId, Inode, NodeRef};
use crate::model::FsType;
use crate::os::{FileId, MakeOptions};

/// The largest file of ext4 with blocks of 4 KiB.
const MAX_FILE: u64 = 16 << 40;

/// An open descriptor.
pub(super) struct Open {
    /// The process that has it; `None` for a pod.
    pub(super) generation: Option<u64>,
    /// The mount that it keeps busy.
    pub(super) mount: Option<u64>,
    pub(super) what: Opened,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    Loop(u32),
    File(NodeRef),
    /// A file with a flock on it.
    Lock(NodeRef),
}

/// Everything there is. Only [`super::Process::step_torn`], the pods and power change it.
pub(super) struct World {
    pub(super) filesystems: Vec<Filesystem>,
    /// By number, which is also the order of mounting.
    pub(super) mounts: BTreeMap<u64, Mount>,
    /// The mount on top of a place: the mount that the place is in and its inode.
    pub(super) covered: BTreeMap<(u64, NodeRef), u64>,
    pub(super) next_mount: u64,
    pub(super) loops: BTreeMap<u32, Loop>,
    pub(super) opens: BTreeMap<u64, Open>,
    next_open: u64,
    pub(super) seam: Seam,
    /// The newest process, and those that live.
    pub(super) generation: u64,
    pub(super) alive: BTreeSet<u64>,
    /// Size of the disk, and what others take of it.
    pub(super) disk_total: u64,
    pub(super) disk_other: u64,
    pub(super) formats: Vec<(FileId, FsType)>,
    pub(super) make_options: Vec<MakeOptions>,
    pub(super) missing_tools: BTreeSet<FsType>,
    pub(super) attached: u64,
    pub(super) hazards: Vec<String>,
    pub(super) direct_io: Option<u32>,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = World {
            filesystems: Vec::new(),
            mounts: BTreeMap::new(),
            covered: BTreeMap::new(),
            next_mount: 0,
            loops: BTreeMap::new(),
            opens: BTreeMap::new(),
            next_open: 0,
            seam: Seam::default(),
            generation: 1,
            alive: BTreeSet::from([1]),
            disk_total: 100 << 30,
            disk_other: 0,
            formats: Vec::new(),
            make_options: Vec::new(),
            missing_tools: BTreeSet::new(),
            attached: 0,
            hazards: Vec::new(),
            direct_io: Some(512),
        };
        world.filesystems.push(Filesystem::new("ext4", Backing::Disk));
        world.boot();
        world
    }

    pub(super) fn inode(&self, node: NodeRef) -> &Inode {
        self.filesystems[node.fs].inode(node.ino)
    }

    pub(super) fn fs_mut(&mut self, fs: FsId) -> &mut Filesystem {
        &mut self.filesystems[fs]
    }

    pub(super) fn content(&self, node: NodeRef) -> Outcome<&Content> {
        self.filesystems[node.fs].content(node.ino)
    }

    pub(super) fn content_mut(&mut self, node: NodeRef) -> Outcome<&mut Content> {
        self.filesystems[node.fs].content_mut(node.ino)
    }

    // Descriptors.

    pub(super) fn open(&mut self, open: Open) -> u64 {
        if let Opened::File(node) | Opened::Lock(node) = open.what {
            self.fs_mut(node.fs).opened(node.ino);
        }
        self.next_open += 1;
        self.opens.insert(self.next_open, open);
        self.next_open
    }

    /// Closes a descriptor; one of a process that is gone is closed already.
    pub(super) fn close(&mut self, id: u64) {
        match self.opens.remove(&id).map(|open| open.what) {
            Some(Opened::File(node) | Opened::Lock(node)) => self.fs_mut(node.fs).closed(node.ino),
            Some(Opened::Loop(number)) => self.settle(number),
            None => {}
        }
    }

    /// The process that has a file locked.
    pub(super) fn holder_of(&self, file: NodeRef) -> Option<u32> {
        let open = self.opens.values().find(|open| open.what == Opened::Lock(file))?;
        Some(open.generation.map(pid_of).unwrap_or(1))
    }

    // Space.

    /// The size of a filesystem and what of it is still free.
    pub(super) fn room(&self, fs: FsId) -> (u64, u64) {
        let filesystem = &self.filesystems[fs];
        let (total, taken) = match filesystem.backing {
            Backing::Disk => (self.disk_total, filesystem.used.saturating_add(self.disk_other)),
            Backing::Memory => (1 << 30, filesystem.used),
            Backing::Image(image) => (self.filesystem_size(image), filesystem.used),
        };
        (total, total.saturating_sub(taken))
    }

    /// Takes this many bytes of a filesystem; in an image they take as much of the image's filesystem as the
    /// image has not allocated yet.
    fn charge(&mut self, fs: FsId, bytes: u64) -> Outcome<()> {
        if bytes == 0 {
            return Ok(());
        }
        if self.room(fs).1 < bytes {
            return Err(Errno::ENOSPC);
        }
        if let Backing::Image(image) = self.filesystems[fs].backing {
            let content = self.content(image)?;
            let more = (self.filesystems[fs].used + bytes)
                .saturating_sub(content.allocated_bytes())
                .min(content.missing_bytes(0, content.size()));
            // A thin image that its pool has no room for: the loop device knows no other error.
            self.charge(image.fs, more).map_err(|_| Errno::EIO)?;
            self.content_mut(image)?.allocate_more(more);
        }
        self.fs_mut(fs).used += bytes;
        Ok(())
    }

    pub(super) fn write_at(&mut self, file: NodeRef, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let end =
            offset.checked_add(bytes.len() as u64).filter(|end| *end <= MAX_FILE).ok_or(Errno::EFBIG)?;
        let needed = self.content(file)?.missing_bytes(offset, end - offset);
        self.charge(file.fs, needed)?;
        self.content_mut(file)?.write(offset, bytes);
        Ok(())
    }

    /// How many of `len` bytes at `offset` there is room for.
    pub(super) fn fitting(&self, file: NodeRef, offset: u64, len: u64) -> Outcome<u64> {
        let missing = self.content(file)?.missing_bytes(offset, len);
        let free = self.room(file.fs).1 / BLOCK * BLOCK;
        Ok(if missing <= free { len } else { len.saturating_sub(missing - free) })
    }

    pub(super) fn allocate(&mut self, file: NodeRef, size: u64) -> Outcome<()> {
        if size == 0 {
            return Ok(());
        }
        if size > MAX_FILE {
            return Err(Errno::EFBIG);
        }
        let needed = self.content(file)?.missing_bytes(0, size);
        self.charge(file.fs, needed)?;
        self.content_mut(file)?.allocate(size);
        Ok(())
    }

    /// A change that frees blocks or none.
    pub(super) fn shrink(&mut self, file: NodeRef, change: impl FnOnce(&mut Content)) -> Outcome<()> {
        let before = self.content(file)?.allocated_bytes();
        change(self.content_mut(file)?);
        let freed = before - self.content(file)?.allocated_bytes();
        self.fs_mut(file.fs).used -= freed;
        Ok(())
    }

    pub(super) fn set_size(&mut self, file: NodeRef, size: u64) -> Outcome<()> {
        if size > MAX_FILE {
            return Err(Errno::EFBIG);
        }
        self.shrink(file, |content| content.set_size(size))
    }

    /// fsync(2). Within an image it goes through to the image, as the loop device flushes it.
    pub(super) fn sync(&mut self, node: NodeRef) {
        self.fs_mut(node.fs).sync(node.ino);
        if let Backing::Image(image) = self.filesystems[node.fs].backing {
            self.sync(image);
        }
    }

    /// syncfs(2).
    pub(super) fn sync_filesystem(&mut self, fs: FsId) {
        self.fs_mut(fs).sync_all();
        if let Backing::Image(image) = self.filesystems[fs].backing {
            self.sync(image);
        }
    }

    /// The identity of a file seen through a mount.
    pub(super) fn file_id(&self, mount: u64, node: NodeRef) -> FileId {
        FileId { dev: self.mounts[&mount].st_dev, ino: node.ino }
    }
}

/// The process id of a process of the driver.
pub(super) fn pid_of(generation: u64) -> u32 {
    1000 + u32::try_from(generation).unwrap_or(0)
}

/// A place in the tree of everything that is mounted.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The mount that it is in.
    pub(super) mount: u64,
    pub(super) node: NodeRef,
    /// Its path within its filesystem.
    pub(super) inner: PathBuf,
    /// Its path with every link resolved.
    pub(super) path: PathBuf,
}
