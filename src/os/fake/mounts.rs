//! Mounting.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::loops::LoopBacking;
use super::resolve::Last;
use super::superblock;
use super::tree::{Backing, FsId, Node, NodeRef, ROOT};
use super::world::{Opened, Place, World};
use super::{Outcome, Process};
use crate::model::{FsType, MountFlags, VfsFlag};
use crate::os::{Frozen, MountEntry, Mounts};

/// A mount.
pub(super) struct Mount {
    /// The mount and inode that it covers; `None` for the root.
    pub(super) at: Option<(u64, NodeRef)>,
    pub(super) target: PathBuf,
    /// What it shows: an inode, and its path within its filesystem.
    pub(super) root: NodeRef,
    pub(super) root_path: PathBuf,
    /// The superblock's device number, which mountinfo shows, and the one that stat(2) tells of its files:
    /// two numbers on btrfs.
    pub(super) dev: u64,
    pub(super) st_dev: u64,
    pub(super) source: String,
    /// The loop device that the superblock is on.
    pub(super) loop_number: Option<u32>,
    pub(super) read_only: bool,
    pub(super) superblock_read_only: bool,
    pub(super) flags: BTreeSet<VfsFlag>,
    pub(super) shared: bool,
    /// Mounted at boot.
    pub(super) base: bool,
}

impl World {
    pub(super) fn add_mount(&mut self, mount: Mount) {
        let number = self.next_mount;
        self.next_mount += 1;
        if let Some(at) = mount.at {
            self.covered.insert(at, number);
        }
        self.mounts.insert(number, mount);
    }

    pub(super) fn entry(&self, mount: &Mount) -> MountEntry {
        MountEntry {
            dev: mount.dev,
            root: mount.root_path.clone(),
            target: mount.target.clone(),
            fs_type: self.filesystems[mount.root.fs].fs_type.to_owned(),
            source: mount.source.clone(),
            read_only: mount.read_only,
            flags: mount.flags.iter().copied().collect(),
            superblock_read_only: mount.superblock_read_only,
            shared: mount.shared,
        }
    }

    /// The loop device that a path's node stands for.
    pub(super) fn loop_at(&self, device: &Path) -> Outcome<u32> {
        let place = self.walk(device, Last::Follow)?;
        if self.mounts[&place.mount].flags.contains(&VfsFlag::NoDev) {
            return Err(Errno::EACCES);
        }
        match self.inode(place.node).node {
            Node::Device { rdev, block: true } => self.loop_of_rdev(rdev),
            _ => Err(Errno::ENOTBLK),
        }
    }

    fn mount(&mut self, device: &Path, target: &Path, fs_type: FsType, flags: &MountFlags) -> Outcome<()> {
        let number = self.loop_at(device)?;
        let target = self.walk(target, Last::Keep)?;
        self.filesystems[target.node.fs].entries(target.node.ino)?;
        if !flags.data.iter().all(|word| is_known(fs_type, word)) {
            return Err(Errno::EINVAL);
        }
        let fs = self.mountable(number, fs_type, flags)?;
        if self.mounts[&target.mount].root == target.node && self.mounts[&target.mount].root.fs == fs {
            return Err(Errno::EBUSY);
        }
        let source = format!("/dev/loop{number}");
        let mut dev = self.loops[&number].rdev();
        let mut st_dev = dev;
        if fs_type == FsType::Btrfs {
            // Btrfs has a number of its own for the superblock and one for each subvolume.
            dev = libc::makedev(0, 100 + 2 * number);
            st_dev = libc::makedev(0, 101 + 2 * number);
        }
        let shown = flags.vfs.iter().copied().filter(|flag| flag.is_shown_per_mount()).collect();
        self.add_mount(Mount {
            at: Some((target.mount, target.node)),
            shared: self.mounts[&target.mount].shared,
            target: target.path,
            root: NodeRef { fs, ino: ROOT },
            root_path: "/".into(),
            dev,
            st_dev,
            source,
            loop_number: Some(number),
            read_only: flags.read_only,
            superblock_read_only: flags.read_only,
            flags: shown,
            base: false,
        });
        Ok(())
    }

    /// Whether this filesystem can be mounted from the device, and which it is.
    fn mountable(&mut self, number: u32, fs_type: FsType, flags: &MountFlags) -> Outcome<usize> {
        let device = &self.loops[&number];
        let read_only = device.read_only;
        if read_only && !flags.read_only {
            return Err(Errno::EACCES);
        }
        let image = self.image_of(number)?;
        let (found, size) = self.signature(image).ok_or(Errno::EINVAL)?;
        let fs = self.content(image)?.image.ok_or(Errno::EINVAL)?;
        let too_coarse = fs_type == FsType::Xfs && device.block_size > self.filesystems[fs].sector;
        if found != fs_type || size > device.size || too_coarse {
            return Err(Errno::EINVAL);
        }
        for other in self.mounts.values().filter(|mount| mount.root.fs == fs) {
            if other.loop_number == Some(number) {
                if other.superblock_read_only != flags.read_only {
                    return Err(Errno::EBUSY);
                }
            } else if fs_type != FsType::Ext4 && !flags.data.iter().any(|word| word == "nouuid") {
                // The same UUID is mounted already.
                return Err(if fs_type == FsType::Btrfs { Errno::EEXIST } else { Errno::EINVAL });
            } else if !(other.superblock_read_only && flags.read_only) {
                self.hazards.push(format!(
                    "one image mounted by two devices, /dev/loop{number} and {}",
                    other.source
                ));
            }
        }
        let own = !flags.data.iter().any(|word| word == "nouuid");
        if own && fs_type != FsType::Ext4 && self.is_mounted_elsewhere(fs, fs_type, image) {
            return Err(if fs_type == FsType::Btrfs { Errno::EEXIST } else { Errno::EINVAL });
        }
        if self.filesystems[fs].needs_recovery {
            // The journal is replayed even for a read-only mount, so that the device must be writable.
            if read_only && !flags.data.iter().any(|word| matches!(word.as_str(), "noload" | "norecovery")) {
                return Err(Errno::EROFS);
            }
            self.filesystems[fs].needs_recovery = read_only;
        }
        Ok(fs)
    }

    /// Whether another filesystem that has the same UUID, a copy, is mounted.
    fn is_mounted_elsewhere(&self, fs: FsId, fs_type: FsType, image: NodeRef) -> bool {
        let uuid_in = |image| self.content(image).map(|content| superblock::uuid(fs_type, content));
        self.mounts.values().filter(|mount| mount.root.fs != fs).any(|mount| {
            let other = &self.filesystems[mount.root.fs];
            match other.backing {
                Backing::Image(at) if other.fs_type == fs_type.as_str() => uuid_in(at) == uuid_in(image),
                _ => false,
            }
        })
    }

    fn bind(&mut self, source: &Path, target: &Path, flags: &MountFlags) -> Outcome<()> {
        let source = self.walk(source, Last::Follow)?;
        let target = self.walk(target, Last::Keep)?;
        let is_directory = |place: &Place| matches!(self.inode(place.node).node, Node::Directory { .. });
        if is_directory(&source) != is_directory(&target) {
            return Err(Errno::ENOTDIR);
        }
        if matches!(self.inode(target.node).node, Node::Symlink(_)) {
            return Err(Errno::ELOOP);
        }
        let from = &self.mounts[&source.mount];
        let mount = Mount {
            at: Some((target.mount, target.node)),
            target: target.path,
            root: source.node,
            root_path: source.inner,
            dev: from.dev,
            st_dev: from.st_dev,
            source: from.source.clone(),
            loop_number: from.loop_number,
            // A bind starts with the flags of the mount that it was made from.
            read_only: from.read_only || flags.read_only,
            superblock_read_only: from.superblock_read_only,
            flags: from
                .flags
                .iter()
                .chain(&flags.vfs)
                .copied()
                .filter(|flag| flag.is_shown_per_mount())
                .collect(),
            shared: self.mounts[&target.mount].shared,
            base: false,
        };
        self.add_mount(mount);
        Ok(())
    }

    pub(super) fn unmount(&mut self, target: &Path) -> Outcome<()> {
        let place = self.walk(target, Last::Keep)?;
        let number = place.mount;
        let mount = &self.mounts[&number];
        if mount.root != place.node || mount.target != place.path {
            return Err(Errno::EINVAL);
        }
        let below = self.mounts.values().any(|other| other.at.is_some_and(|(on, _)| on == number));
        let open = self.opens.values().any(|open| open.mount == Some(number));
        let image = self.loops.values().any(|device| device.mount == number);
        if mount.base || below || open || image {
            return Err(Errno::EBUSY);
        }
        let mount = self.mounts.remove(&number).ok_or(Errno::EINVAL)?;
        if let Some(at) = mount.at {
            self.covered.remove(&at);
        }
        let same = |other: &Mount| other.root.fs == mount.root.fs && other.loop_number == mount.loop_number;
        if let Some(device) = mount.loop_number
            && !self.mounts.values().any(same)
        {
            // The superblock goes, and all of it is written first.
            if !mount.superblock_read_only {
                self.sync_filesystem(mount.root.fs);
            }
            self.settle(device);
        }
        Ok(())
    }

    /// Whether a superblock is on the device: it is mounted, or was unmounted while it was frozen.
    pub(super) fn is_mounted(&self, number: u32) -> bool {
        self.mounts.values().any(|mount| mount.loop_number == Some(number))
            || self.freezes.hold_device(number)
    }

    /// Whether anybody has the device open, another loop device included. A bound node is not open.
    pub(super) fn is_open(&self, number: u32) -> bool {
        self.opens.values().any(|open| open.what == Opened::Loop(number))
            || self.loops.values().any(|device| device.backing == LoopBacking::Loop(number))
    }
}

/// Whether the filesystem takes this word as mount data; it refuses any other with EINVAL.
fn is_known(fs_type: FsType, word: &str) -> bool {
    const EVERY: &str = "context fscontext defcontext rootcontext seclabel discard nodiscard";
    let known = match fs_type {
        FsType::Ext4 => {
            "acl barrier commit data debug delalloc errors init_itable journal_checksum lazytime nobarrier \
             nodelalloc noinit_itable noload norecovery prjquota stripe user_xattr"
        }
        FsType::Xfs => {
            "allocsize attr2 gquota inode32 inode64 largeio logbsize logbufs norecovery nouuid pquota prjquota \
             sunit swalloc swidth uquota wsync"
        }
        FsType::Btrfs => {
            "acl autodefrag commit compress compress-force degraded flushoncommit noacl nodatacow nossd rescue \
             skip_balance space_cache ssd subvol user_subvol_rm_allowed"
        }
    };
    let key = word.split('=').next().unwrap_or(word);
    EVERY.split(' ').chain(known.split(' ')).any(|known| known == key)
}

impl Mounts for Process {
    fn list(&self) -> std::io::Result<Vec<MountEntry>> {
        self.look("read", "/proc/self/mountinfo", |world| {
            Ok(world.mounts.values().map(|mount| world.entry(mount)).collect())
        })
    }

    fn mount(
        &self,
        device: &Path,
        target: &Path,
        fs_type: FsType,
        flags: &MountFlags,
    ) -> std::io::Result<()> {
        let subject = format!("{} at {}", device.display(), target.display());
        self.step("mount", subject, |world| world.mount(device, target, fs_type, flags))
    }

    fn bind(&self, source: &Path, target: &Path, flags: &MountFlags) -> std::io::Result<()> {
        let subject = format!("{} at {}", source.display(), target.display());
        self.step("bind", subject, |world| world.bind(source, target, flags))
    }

    fn unmount(&self, target: &Path) -> std::io::Result<()> {
        self.step("unmount", target.display(), |world| world.unmount(target))
    }

    fn freeze(&self, mount_point: &Path, limit: Duration) -> std::io::Result<Box<dyn Frozen>> {
        self.freeze_mount(mount_point, limit)
    }

    fn thaw(&self, mount_point: &Path) -> std::io::Result<bool> {
        self.thaw_mount(mount_point)
    }
}
