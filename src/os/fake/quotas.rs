//! Quotas: numbers of inodes, and limits for each number.
//!
//! A process of the driver has CAP_SYS_RESOURCE, so that ext4 lets it take more than a limit allows.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::content::BLOCK;
use super::resolve::Last;
use super::seam::Effect;
use super::tree::{Filesystem, FsId, Node};
use super::world::World;
use super::{FakeKernel, Outcome, Process};
use crate::model::{FsType, MountFlags, QuotaId};
use crate::os::{Enforceable, Quota, QuotaLimits, Quotas};

/// What a filesystem limits.
#[derive(Clone, Default)]
pub(super) struct Limits {
    /// It was mounted with quotas.
    on: bool,
    /// Who writes now may go beyond.
    ignored: bool,
    now: BTreeMap<u32, QuotaLimits>,
    durable: BTreeMap<u32, QuotaLimits>,
}

impl Limits {
    pub(super) fn sync(&mut self) {
        self.durable.clone_from(&self.now);
    }

    pub(super) fn lose_unsynced(&mut self) {
        self.now.clone_from(&self.durable);
    }

    fn of(&self, project: u32) -> QuotaLimits {
        let limits = self.now.get(&project).filter(|_| self.on && project != 0 && !self.ignored);
        limits.copied().unwrap_or_default()
    }
}

impl Filesystem {
    /// What counts under a number.
    fn counted(&self, project: u32) -> (u64, u64) {
        let counts =
            |inode: &&super::tree::Inode| inode.project == project && (inode.links > 0 || inode.open > 0);
        let bytes = |inode: &super::tree::Inode| match &inode.node {
            Node::File { now, .. } => now.allocated_bytes(),
            Node::Directory { .. } => BLOCK,
            Node::Symlink(_) | Node::Device { .. } => 0,
        };
        let inodes = self.inodes.values().filter(counts);
        inodes.fold((0, 0), |(all, count), inode| (all + bytes(inode), count + 1))
    }

    /// What a project of xfs, or a qgroup, that has reached its limit says.
    fn full(&self) -> Errno {
        if self.fs_type == "xfs" { Errno::ENOSPC } else { Errno::EDQUOT }
    }

    /// Whether there can be one more inode under a number.
    pub(super) fn one_more(&self, project: u32) -> Outcome<()> {
        match self.limits.of(project).inodes {
            0 => Ok(()),
            most if self.counted(project).1 < most => Ok(()),
            _ => Err(self.full()),
        }
    }

    /// Whether a file can have so many bytes more.
    pub(super) fn more_bytes(&self, ino: u64, bytes: u64) -> Outcome<()> {
        let project = self.inode(ino).project;
        match self.limits.of(project).bytes {
            0 => Ok(()),
            most if bytes == 0 || self.counted(project).0 + bytes <= most => Ok(()),
            _ => Err(self.full()),
        }
    }

    fn limited(&self) -> Outcome<()> {
        if self.limits.on { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }
}

impl World {
    /// Whether what is written from here on may go beyond the limits of ext4.
    pub(super) fn ignore_limits(&mut self, ignore: bool) {
        let ignore = ignore && self.sys_resource;
        let limited = self.filesystems.iter_mut().filter(|fs| fs.limits.on && fs.fs_type == "ext4");
        limited.for_each(|fs| fs.limits.ignored = ignore);
    }

    /// What the option `prjquota` of xfs does: nothing where the filesystem is mounted already.
    pub(super) fn mount_quotas(&mut self, fs: FsId, fs_type: FsType, flags: &MountFlags) -> Outcome<()> {
        let wanted = fs_type == FsType::Xfs && flags.data.iter().any(|word| word == "prjquota");
        if wanted && !self.project_quotas {
            return Err(Errno::EINVAL);
        }
        if !self.mounts.values().chain(self.detached.values()).any(|mount| mount.root.fs == fs) {
            self.fs_mut(fs).limits.on = wanted;
        }
        Ok(())
    }

    fn filesystem_at(&self, directory: &Path) -> Outcome<&Filesystem> {
        let node = self.walk(directory, Last::Follow)?.node;
        self.filesystems[node.fs].entries(node.ino)?;
        Ok(&self.filesystems[node.fs])
    }

    fn enforceable(&self, directory: &Path) -> Outcome<Enforceable> {
        let filesystem = self.filesystem_at(directory)?;
        Ok(match (filesystem.limits.on, filesystem.fs_type) {
            (true, "btrfs") => Enforceable::Bytes,
            (true, _) => Enforceable::BytesAndInodes,
            (false, fs_type) => {
                Enforceable::Nothing(format!("{fs_type} has no quotas; mount it with prjquota"))
            }
        })
    }

    fn quota(&self, directory: &Path, id: u32) -> Outcome<Quota> {
        let filesystem = self.filesystem_at(directory)?;
        filesystem.limited()?;
        let (bytes, inodes) = filesystem.counted(id);
        let limits = filesystem.limits.now.get(&id).copied().unwrap_or_default();
        Ok(match filesystem.fs_type {
            "btrfs" => Quota { bytes, inodes: 0, limits: QuotaLimits { inodes: 0, ..limits } },
            _ => Quota { bytes, inodes, limits },
        })
    }

    fn set_limits(&mut self, directory: &Path, id: u32, limits: Option<QuotaLimits>) -> Outcome<()> {
        self.filesystem_at(directory)?.limited()?;
        let fs = self.walk(directory, Last::Follow)?.node.fs;
        let (counts_inodes, all) = (self.filesystems[fs].fs_type != "btrfs", &mut self.fs_mut(fs).limits.now);
        match limits {
            // Without limits and what counts there is nothing of a project; a qgroup stays.
            Some(limits) if counts_inodes && limits == QuotaLimits::default() => drop(all.remove(&id)),
            Some(limits) => {
                let inodes = if counts_inodes { limits.inodes } else { 0 };
                all.insert(id, QuotaLimits { inodes, ..limits });
            }
            None => drop(all.remove(&id)),
        }
        Ok(())
    }

    /// Torn, it does not count: mkdir(2) is a call of its own, but on btrfs.
    fn create_counting(&mut self, path: &Path, mode: u32, id: u32, how: Effect) -> Outcome<()> {
        let parent = path.parent().ok_or(Errno::EEXIST)?;
        let filesystem = self.filesystem_at(parent)?;
        let is_one_call = filesystem.fs_type == "btrfs";
        if how == Effect::Torn && is_one_call {
            return Err(Errno::EIO);
        }
        filesystem.limited()?;
        let made = self.create(path, Node::directory(), mode)?;
        if how == Effect::Whole {
            let inode = self.fs_mut(made.fs).inode_mut(made.ino);
            inode.project = id;
            if is_one_call {
                inode.durable_project = id;
            }
        }
        Ok(())
    }
}

impl Quotas for Process {
    fn enforceable(&self, directory: &Path) -> io::Result<Enforceable> {
        self.look("enforceable", directory.display(), |world| world.enforceable(directory))
    }

    fn switch_on(&self, directory: &Path) -> io::Result<()> {
        self.step("switch_quotas_on", directory.display(), |world| {
            let fs = world.walk(directory, Last::Follow)?.node.fs;
            if world.filesystems[fs].fs_type != "btrfs" {
                return Err(Errno::EOPNOTSUPP);
            }
            world.fs_mut(fs).limits.on = true;
            Ok(())
        })
    }

    fn quota(&self, directory: &Path, id: QuotaId) -> io::Result<Quota> {
        self.look("quota", directory.display(), |world| world.quota(directory, id.number()))
    }

    fn set_limits(&self, directory: &Path, id: QuotaId, limits: QuotaLimits) -> io::Result<()> {
        self.step("set_limits", directory.display(), |world| {
            world.set_limits(directory, id.number(), Some(limits))
        })
    }

    fn create_directory(&self, path: &Path, mode: u32, id: QuotaId) -> io::Result<()> {
        self.step_torn("create_limited", path.display(), |world, how| {
            world.create_counting(path, mode, id.number(), how)
        })
    }

    fn remove_at_once(&self, path: &Path) -> io::Result<bool> {
        let is_btrfs =
            self.look("remove_at_once", path.display(), |world| match world.walk(path, Last::Keep) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
                found => {
                    let node = found?.node;
                    let is_subvolume = world.inode(node).project != 0;
                    Ok(Some(world.filesystems[node.fs].fs_type == "btrfs" && is_subvolume))
                }
            })?;
        match is_btrfs {
            None => Ok(true),
            Some(false) => Ok(false),
            Some(true) => self
                .step("remove_subvolume", path.display(), |world| world.remove_tree(path, Effect::Whole))
                .map(|()| true),
        }
    }

    fn counts(&self, path: &Path, id: QuotaId) -> io::Result<bool> {
        self.look("counts", path.display(), |world| {
            let node = world.walk(path, Last::Follow)?.node;
            world.filesystems[node.fs].entries(node.ino)?;
            Ok(world.inode(node).project == id.number())
        })
    }

    fn give_back(&self, directory: &Path, id: QuotaId) -> io::Result<()> {
        self.step("give_back_quota", directory.display(), |world| {
            world.set_limits(directory, id.number(), None)
        })
    }
}

impl FakeKernel {
    /// Whether the filesystem of the disk that holds `path` was mounted with quotas; that of `/` was not.
    ///
    /// # Panics
    /// Where nothing is there: the test is wrong.
    pub fn set_quotas(&self, path: impl AsRef<Path>, on: bool) {
        let mut world = self.lock();
        let fs = world.walk(path.as_ref(), Last::Follow).expect("a path of the machine").node.fs;
        world.fs_mut(fs).limits.on = on;
    }

    /// Whether the kernel has project quotas of xfs; it has from the start.
    pub fn set_project_quotas(&self, has: bool) {
        self.lock().project_quotas = has;
    }

    /// The limits that the filesystem which holds `path` enforces, by their numbers.
    ///
    /// # Panics
    /// Where nothing is there: the test is wrong.
    pub fn quotas(&self, path: impl AsRef<Path>) -> Vec<(u32, QuotaLimits)> {
        let world = self.lock();
        let fs = world.walk(path.as_ref(), Last::Follow).expect("a path of the machine").node.fs;
        world.filesystems[fs].limits.now.iter().map(|(id, limits)| (*id, *limits)).collect()
    }

    /// The number that something counts under, 0 for none; nothing where there is nothing.
    pub fn project(&self, path: impl AsRef<Path>) -> Option<u32> {
        let world = self.lock();
        let node = world.walk(path.as_ref(), Last::Keep).ok()?.node;
        Some(world.inode(node).project)
    }

    /// Changes the number of a file or directory, as its owner may in the first user namespace.
    pub fn set_project(&self, path: impl AsRef<Path>, project: u32) -> io::Result<()> {
        let path = path.as_ref();
        self.outside("set project", path, |world| {
            let node = world.walk(path, Last::Keep)?.node;
            world.fs_mut(node.fs).inode_mut(node.ino).project = project;
            Ok(())
        })
    }
}
