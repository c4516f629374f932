//! The one state of the fake machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::SystemTime;

use super::Outcome;
use super::afterwards::Afterwards;
use super::content::Content;
use super::copies::Progress;
use super::freeze::Freezes;
use super::loops::Loop;
use super::mounts::Mount;
use super::seam::Seam;
use super::tree::{Backing, Filesystem, FsId, Inode, NodeRef};
use hostloop_kernel::{FileId, MakeOptions};
use hostloop_model::FsType;

/// A disk with a filesystem that is mounted from the start of the machine.
pub(super) struct Disk {
    /// Its size in bytes, and what others take of it.
    pub(super) total: u64,
    pub(super) other: u64,
    pub(super) filesystem: FsId,
    pub(super) target: PathBuf,
}

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
    /// Those that were taken out of the tree while they were in use.
    pub(super) detached: BTreeMap<u64, Mount>,
    /// The mount on top of a place: the mount that the place is in and its inode.
    pub(super) covered: BTreeMap<(u64, NodeRef), u64>,
    pub(super) next_mount: u64,
    /// The peer group that was made last.
    pub(super) next_peers: u64,
    pub(super) loops: BTreeMap<u32, Loop>,
    /// Numbers without a device whose next one cannot discard (since Linux 6.9), until they are given back.
    pub(super) stuck: BTreeSet<u32>,
    pub(super) opens: BTreeMap<u64, Open>,
    /// The roots of mounts that a process holds, by its descriptor: what its /proc/self/fd leads to.
    pub(super) pins: BTreeMap<u64, Resolved>,
    next_open: u64,
    pub(super) seam: Seam,
    /// The newest process, and those that live.
    pub(super) generation: u64,
    pub(super) alive: BTreeSet<u64>,
    /// The disks, the one with `/` first.
    pub(super) disks: Vec<Disk>,
    /// By the copy: how copies of images by reading and writing go on.
    pub(super) copying: BTreeMap<NodeRef, Progress>,
    /// Counts up for whatever has to be unlike all before.
    pub(super) serial: u64,
    pub(super) formats: Vec<(FileId, FsType)>,
    pub(super) make_options: Vec<MakeOptions>,
    /// Whether processes have CAP_SYS_RESOURCE, without which ext4 does not grow while it is mounted.
    pub(super) sys_resource: bool,
    pub(super) missing_tools: BTreeSet<FsType>,
    /// Their mkfs does not see that a write fails.
    pub(super) blind_tools: BTreeSet<FsType>,
    /// Filesystems that answer everything with EIO.
    pub(super) failed: BTreeSet<FsId>,
    pub(super) attached: u64,
    pub(super) hazards: Vec<String>,
    pub(super) direct_io: Option<u32>,
    pub(super) freezes: Freezes,
    pub(super) afterwards: Afterwards,
    /// A bind gets its flags in a step of its own, as before Linux 5.12.
    pub(super) binds_in_two_steps: bool,
    /// Whether xfs can be mounted with project quotas.
    pub(super) project_quotas: bool,
    /// When files have changed, by their paths.
    pub(super) changed: BTreeMap<PathBuf, SystemTime>,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = World {
            filesystems: Vec::new(),
            mounts: BTreeMap::new(),
            detached: BTreeMap::new(),
            covered: BTreeMap::new(),
            next_mount: 0,
            next_peers: 0,
            loops: BTreeMap::new(),
            stuck: BTreeSet::new(),
            opens: BTreeMap::new(),
            pins: BTreeMap::new(),
            next_open: 0,
            seam: Seam::default(),
            generation: 1,
            alive: BTreeSet::from([1]),
            disks: vec![Disk { total: 100 << 30, other: 0, filesystem: 0, target: "/".into() }],
            copying: BTreeMap::new(),
            serial: 0,
            formats: Vec::new(),
            make_options: Vec::new(),
            sys_resource: true,
            missing_tools: BTreeSet::new(),
            blind_tools: BTreeSet::new(),
            failed: BTreeSet::new(),
            attached: 0,
            hazards: Vec::new(),
            direct_io: Some(512),
            freezes: Freezes::default(),
            afterwards: Afterwards::default(),
            binds_in_two_steps: false,
            project_quotas: true,
            changed: BTreeMap::new(),
        };
        world.filesystems.push(Filesystem::new("ext4", Backing::Disk(0)));
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
        self.pins.remove(&id);
        let Some(open) = self.opens.remove(&id) else { return };
        let by_the_living = open.generation.is_some_and(|generation| self.alive.contains(&generation));
        match open.what {
            Opened::File(node) | Opened::Lock(node) => self.fs_mut(node.fs).closed(node.ino),
            Opened::Loop(number) => {
                if !self.is_open(number) {
                    self.write_back(number);
                }
                self.settle(number);
                // Whoever lives gives the number back.
                if by_the_living && !self.loops.contains_key(&number) {
                    self.stuck.remove(&number);
                }
            }
        }
        if let Some(mount) = open.mount {
            self.end_if_unused(mount);
        }
    }

    /// The process that has a file locked.
    pub(super) fn holder_of(&self, file: NodeRef) -> Option<u32> {
        let open = self.opens.values().find(|open| open.what == Opened::Lock(file))?;
        Some(open.generation.map(pid_of).unwrap_or(1))
    }

    /// A number that was not there before.
    pub(super) fn unique(&mut self) -> u64 {
        self.serial += 1;
        self.serial
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
        let mount = self.mounts.get(&mount).or_else(|| self.detached.get(&mount)).expect("a mount in use");
        FileId { dev: mount.st_dev, ino: node.ino }
    }
}

/// The process id of a process of the driver.
pub(super) fn pid_of(generation: u64) -> u32 {
    1000 + u32::try_from(generation).unwrap_or(0)
}

/// A place in the tree of everything that is mounted.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    /// The mount that it is in.
    pub(super) mount: u64,
    pub(super) node: NodeRef,
    /// Its path within its filesystem.
    pub(super) inner: PathBuf,
    /// Its path with every link resolved.
    pub(super) path: PathBuf,
}
