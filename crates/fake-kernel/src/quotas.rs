//! Quotas: numbers of inodes, and limits for each number.
//!
//! A process of the driver has CAP_SYS_RESOURCE, so that ext4 lets it take more than a limit allows.
//!
//! Where btrfs has full qgroups, each subvolume has a number that it is given when it is made (`subvolumes`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::content::BLOCK;
use super::resolve::Last;
use super::seam::Effect;
use super::tree::{Filesystem, FsId, Node};
use super::world::World;
use super::{Outcome, Process};
use hostloop_kernel::{Enforceable, Qgroups, Quota, QuotaLimits, Quotas, Subvolume};
use hostloop_model::{FsType, MountFlags, QuotaId};

/// What a filesystem limits.
#[derive(Clone, Default)]
pub(super) struct Limits {
    /// It was mounted with quotas.
    pub(super) on: bool,
    /// Who writes now may go beyond.
    ignored: bool,
    /// What btrfs counts where it is on.
    pub(super) qgroups: Option<Qgroups>,
    /// How many subvolumes were made with full qgroups.
    pub(super) subvolumes: u32,
    pub(super) now: BTreeMap<u32, QuotaLimits>,
    pub(super) durable: BTreeMap<u32, QuotaLimits>,
}

impl Limits {
    pub(super) fn sync(&mut self) {
        self.durable.clone_from(&self.now);
    }

    pub(super) fn lose_unsynced(&mut self) {
        self.now.clone_from(&self.durable);
    }

    fn of(&self, project: u32) -> QuotaLimits {
        let enforced = self.on && self.qgroups != Some(Qgroups::Inconsistent);
        let limits = self.now.get(&project).filter(|_| enforced && project != 0 && !self.ignored);
        limits.copied().unwrap_or_default()
    }
}

impl Filesystem {
    /// What counts under a number.
    pub(super) fn counted(&self, project: u32) -> (u64, u64) {
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

    pub(super) fn limited(&self) -> Outcome<()> {
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
        if fs_type == FsType::Btrfs {
            return Ok(()); // what is on stays on
        }
        if !self.mounts.values().chain(self.detached.values()).any(|mount| mount.root.fs == fs) {
            self.fs_mut(fs).limits.on = wanted;
        }
        Ok(())
    }

    pub(super) fn filesystem_at(&self, directory: &Path) -> Outcome<&Filesystem> {
        let node = self.walk(directory, Last::Follow)?.node;
        self.filesystems[node.fs].entries(node.ino)?;
        Ok(&self.filesystems[node.fs])
    }

    fn enforceable(&self, directory: &Path) -> Outcome<Enforceable> {
        let filesystem = self.filesystem_at(directory)?;
        Ok(match (filesystem.limits.on, filesystem.fs_type) {
            (true, "btrfs") => Enforceable::Bytes(filesystem.limits.qgroups.unwrap_or(Qgroups::Simple)),
            (true, _) => Enforceable::BytesAndInodes,
            (false, "btrfs") => Enforceable::Off("btrfs has no quotas; switch them on".to_owned()),
            (false, fs_type) => {
                Enforceable::Nothing(format!("{fs_type} has no quotas; mount it with prjquota"))
            }
        })
    }

    /// The filesystem that is asked for a directory with a number, and the number.
    fn numbered(&self, directory: &Path, id: u32) -> Outcome<(FsId, Option<u32>)> {
        let (parent, name) = self.parent(directory)?;
        let filesystem = &self.filesystems[parent.node.fs];
        filesystem.limited()?;
        if !filesystem.has_full_qgroups() {
            return Ok((parent.node.fs, Some(id)));
        }
        let project = match self.bare_child(&parent, &name) {
            Err(Errno::ENOENT) => None,
            child => Some(self.inode(child?).project).filter(|project| is_subvolume(*project)),
        };
        Ok((parent.node.fs, project))
    }

    fn quota(&self, directory: &Path, id: u32) -> Outcome<Quota> {
        let (fs, number) = self.numbered(directory, id)?;
        let (filesystem, Some(number)) = (&self.filesystems[fs], number) else {
            return Ok(Quota::default());
        };
        let (bytes, inodes) = filesystem.counted(number);
        let own_bytes = match filesystem.limits.qgroups {
            Some(Qgroups::Full) => filesystem.own_bytes(number),
            Some(Qgroups::Inconsistent) => 0,
            _ => bytes,
        };
        let limits = filesystem.limits.now.get(&number).copied().unwrap_or_default();
        Ok(match filesystem.fs_type {
            "btrfs" => Quota { bytes, own_bytes, inodes: 0, limits: QuotaLimits { inodes: 0, ..limits } },
            _ => Quota { bytes, own_bytes, inodes, limits },
        })
    }

    pub(super) fn set_limits(
        &mut self,
        directory: &Path,
        id: u32,
        limits: Option<QuotaLimits>,
    ) -> Outcome<()> {
        let (fs, number) = self.numbered(directory, id)?;
        let Some(number) = number else {
            let nothing = limits.unwrap_or_default() == QuotaLimits::default();
            return if nothing { Ok(()) } else { Err(Errno::ENOENT) };
        };
        let (counts_inodes, all) = (self.filesystems[fs].fs_type != "btrfs", &mut self.fs_mut(fs).limits.now);
        match limits {
            // Without limits and what counts there is nothing of a project; a qgroup stays.
            Some(limits) if counts_inodes && limits == QuotaLimits::default() => drop(all.remove(&number)),
            Some(limits) => {
                let inodes = if counts_inodes { limits.inodes } else { 0 };
                all.insert(number, QuotaLimits { inodes, ..limits });
            }
            None => drop(all.remove(&number)),
        }
        Ok(())
    }

    /// A directory with a number and a limit of its own, in one call.
    pub(super) fn create_subvolume(&mut self, path: &Path, mode: u32, limits: QuotaLimits) -> Outcome<()> {
        let made = self.create(path, Node::directory(), mode)?;
        let number = self.fs_mut(made.fs).next_subvolume();
        let filesystem = self.fs_mut(made.fs);
        let inode = filesystem.inode_mut(made.ino);
        (inode.project, inode.durable_project) = (number, number);
        let limits = QuotaLimits { inodes: 0, ..limits };
        filesystem.limits.now.insert(number, limits);
        filesystem.limits.durable.insert(number, limits);
        Ok(())
    }

    /// Torn, half of it counts.
    fn adopt(&mut self, directory: &Path, id: u32, how: Effect) -> Outcome<()> {
        let (fs, _) = self.numbered(directory, id)?;
        if self.filesystems[fs].fs_type == "btrfs" {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut below = vec![self.walk(directory, Last::Keep)?.node.ino];
        let mut next = 0;
        while let Some(ino) = below.get(next).copied() {
            next += 1;
            if let Ok(entries) = self.filesystems[fs].entries(ino) {
                below.extend(entries.values().copied());
            }
        }
        let count = if how == Effect::Torn { below.len() / 2 } else { below.len() };
        for ino in below.into_iter().take(count) {
            let inode = self.fs_mut(fs).inode_mut(ino);
            if matches!(inode.node, Node::File { .. } | Node::Directory { .. }) {
                (inode.project, inode.durable_project) = (id, id);
            }
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

/// Whether a number is that of a subvolume, with full qgroups.
pub(super) fn is_subvolume(number: u32) -> bool {
    number > Filesystem::SUBVOLUMES
}

impl Process {
    fn has_full_qgroups(&self, directory: &Path) -> io::Result<bool> {
        self.look("enforceable", directory.display(), |world| {
            let (parent, _) = world.parent(directory)?;
            Ok(world.filesystems[parent.node.fs].has_full_qgroups())
        })
    }
}

impl Quotas for Process {
    fn enforceable(&self, directory: &Path) -> io::Result<Enforceable> {
        self.look("enforceable", directory.display(), |world| world.enforceable(directory))
    }

    fn switch_on(&self, directory: &Path, qgroups: Qgroups) -> io::Result<()> {
        self.step("switch_quotas_on", directory.display(), |world| {
            let fs = world.walk(directory, Last::Follow)?.node.fs;
            if world.filesystems[fs].fs_type != "btrfs" {
                return Err(Errno::EOPNOTSUPP);
            }
            let limits = &mut world.fs_mut(fs).limits;
            match limits.qgroups {
                Some(on) if (on == Qgroups::Simple) != (qgroups == Qgroups::Simple) => Err(Errno::EINVAL),
                _ => {
                    (limits.on, limits.qgroups) = (true, Some(qgroups));
                    Ok(())
                }
            }
        })
    }

    fn recount(&self, directory: &Path) -> io::Result<()> {
        let is_inconsistent = Enforceable::Bytes(Qgroups::Inconsistent);
        if self.enforceable(directory)? != is_inconsistent {
            return Ok(());
        }
        self.step("recount", directory.display(), |world| {
            let fs = world.walk(directory, Last::Follow)?.node.fs;
            world.fs_mut(fs).limits.qgroups = Some(Qgroups::Full);
            Ok(())
        })
    }

    fn quota(&self, directory: &Path, id: QuotaId) -> io::Result<Quota> {
        self.look("quota", directory.display(), |world| world.quota(directory, id.number()))
    }

    /// It counts at once, with every filesystem.
    fn count_written(&self, directory: &Path) -> io::Result<()> {
        self.look("count_written", directory.display(), |world| world.parent(directory).map(drop))
    }

    fn set_limits(&self, directory: &Path, id: QuotaId, limits: QuotaLimits) -> io::Result<()> {
        self.step("set_limits", directory.display(), |world| {
            world.set_limits(directory, id.number(), Some(limits))
        })
    }

    fn create_directory(
        &self,
        directory: &Path,
        mode: u32,
        id: QuotaId,
        limits: QuotaLimits,
    ) -> io::Result<()> {
        if self.has_full_qgroups(directory)? {
            return self.step("create_limited", directory.display(), |world| {
                world.create_subvolume(directory, mode, limits)
            });
        }
        self.set_limits(directory, id, limits)?;
        self.step_torn("create_limited", directory.display(), |world, how| {
            world.create_counting(directory, mode, id.number(), how)
        })
    }

    fn adopt(&self, directory: &Path, id: QuotaId) -> io::Result<()> {
        self.step_torn("adopt", directory.display(), |world, how| world.adopt(directory, id.number(), how))
    }

    fn remove_at_once(&self, path: &Path) -> io::Result<bool> {
        let is_btrfs =
            self.look("remove_at_once", path.display(), |world| match world.walk(path, Last::Keep) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
                found => {
                    let node = found?.node;
                    let filesystem = &world.filesystems[node.fs];
                    let is_subvolume = world.inode(node).project != 0 && !filesystem.has_others(node.ino);
                    Ok(Some(filesystem.fs_type == "btrfs" && is_subvolume))
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

    fn counts(&self, directory: &Path, inside: &Path, id: QuotaId) -> io::Result<bool> {
        self.look("counts", inside.display(), |world| {
            let (top, node) =
                (world.walk(directory, Last::Keep)?.node, world.walk(inside, Last::Follow)?.node);
            world.filesystems[node.fs].entries(node.ino)?;
            let number = match world.filesystems[top.fs].has_full_qgroups() {
                true => world.inode(top).project,
                false => id.number(),
            };
            Ok(number != 0 && world.inode(node).project == number)
        })
    }

    fn subvolume(&self, directory: &Path, _sync: bool) -> io::Result<Option<Subvolume>> {
        self.look("subvolume", directory.display(), |world| world.subvolume(directory))
    }

    fn snapshot(&self, original: &Path, directory: &Path, limits: QuotaLimits) -> io::Result<()> {
        let subject = format!("{} of {}", directory.display(), original.display());
        self.step("snapshot", subject, |world| world.snapshot(original, directory))?;
        self.step("set_limits", directory.display(), |world| world.set_limits(directory, 0, Some(limits)))
    }

    fn give_back(&self, directory: &Path, id: QuotaId) -> io::Result<()> {
        self.step("give_back_quota", directory.display(), |world| {
            world.set_limits(directory, id.number(), None)
        })
    }
}
