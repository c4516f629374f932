//! Mounting.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::loops::LoopBacking;
use super::mountable::is_known;
use super::resolve::Last;
use super::tree::{Backing, Filesystem, Node, NodeRef, ROOT};
use super::world::{Open, Opened, Resolved, World};
use super::{Outcome, Process};
use hostloop_kernel::{Frozen, MountEntry, Mounts, Pinned, Propagation};
use hostloop_model::{FsType, MountFlags, OptionName, VfsFlag};

#[derive(Clone)]
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
    pub(super) propagation: Propagation,
    /// Mounted at boot.
    pub(super) base: bool,
}

impl World {
    pub(super) fn add_mount(&mut self, mount: Mount) {
        self.next_mount += 1;
        let number = self.next_mount;
        if let Some(at) = mount.at {
            self.covered.insert(at, number);
        }
        self.mounts.insert(number, mount);
    }

    pub(super) fn entry(&self, number: u64, mount: &Mount) -> MountEntry {
        MountEntry {
            id: number,
            parent: mount.at.map_or(0, |(parent, _)| parent),
            dev: mount.dev,
            root: mount.root_path.clone(),
            target: mount.target.clone(),
            fs_type: self.filesystems[mount.root.fs].fs_type.to_owned(),
            source: mount.source.clone(),
            read_only: mount.read_only,
            flags: mount.flags.iter().copied().collect(),
            superblock_read_only: mount.superblock_read_only,
            propagation: mount.propagation,
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
        self.mount_quotas(fs, fs_type, flags)?;
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
        let (root, root_path) = self.mounted_root(fs, fs_type, flags)?;
        let shown = flags.vfs.iter().copied().filter(|flag| flag.is_shown_per_mount()).collect();
        let propagation = self.propagation_below(target.mount, Propagation::default());
        self.attach_mount(Mount {
            at: Some((target.mount, target.node)),
            propagation,
            target: target.path,
            root,
            root_path,
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

    fn bind(&mut self, source: &Path, target: &Path, flags: &MountFlags) -> Outcome<()> {
        let source = self.walk(source, Last::Follow)?;
        let target = self.walk(target, Last::Keep)?;
        let is_directory = |place: &Resolved| matches!(self.inode(place.node).node, Node::Directory { .. });
        if is_directory(&source) != is_directory(&target) {
            return Err(Errno::ENOTDIR);
        }
        if matches!(self.inode(target.node).node, Node::Symlink(_)) {
            return Err(Errno::ELOOP);
        }
        let propagation = self.propagation_below(target.mount, self.mounts[&source.mount].propagation);
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
            propagation,
            base: false,
        };
        self.attach_mount(mount);
        Ok(())
    }

    /// A mount gets more flags.
    fn tighten(&mut self, number: u64, flags: &MountFlags) -> Outcome<()> {
        // An open file may be written to, except by a descriptor that only names a path (O_PATH).
        let writes = |(id, open): (&u64, &Open)| open.mount == Some(number) && !self.pins.contains_key(id);
        if flags.read_only
            && (self.opens.iter().any(writes) || self.loops.values().any(|device| device.mount == number))
        {
            return Err(Errno::EBUSY);
        }
        let mount = self.mounts.get_mut(&number).ok_or(Errno::ESTALE)?;
        mount.read_only |= flags.read_only;
        mount.flags.extend(flags.vfs.iter().filter(|flag| flag.is_shown_per_mount()));
        Ok(())
    }

    /// The mount whose root is at this path.
    pub(super) fn mount_point(&self, target: &Path) -> Outcome<u64> {
        let place = self.walk(target, Last::Keep)?;
        let mount = &self.mounts[&place.mount];
        let is_root = mount.root == place.node && mount.target == place.path;
        if is_root { Ok(place.mount) } else { Err(Errno::EINVAL) }
    }

    /// Where exactly this mount can be reached: ESTALE where it has gone, or another one hides it.
    pub(super) fn reach(&self, mount: &MountEntry) -> Outcome<Resolved> {
        let place = self.walk(&mount.target, Last::Keep)?;
        if place.mount == mount.id { Ok(place) } else { Err(Errno::ESTALE) }
    }

    /// umount2(2), MNT_DETACH: the mount and all below it are in the tree no more.
    pub(super) fn detach_mount(&mut self, number: u64) {
        self.copies_of(number).into_iter().for_each(|copy| self.detach_alone(copy));
        self.detach_alone(number);
    }

    fn detach_alone(&mut self, number: u64) {
        let below: Vec<u64> = self
            .mounts
            .iter()
            .filter(|(_, mount)| mount.at.is_some_and(|(on, _)| on == number))
            .map(|(number, _)| *number)
            .collect();
        below.into_iter().for_each(|below| self.detach_alone(below));
        if let Some(mount) = self.mounts.remove(&number) {
            if let Some(at) = mount.at {
                self.covered.remove(&at);
            }
            self.detached.insert(number, mount);
            self.end_if_unused(number);
        }
    }

    /// Whether a descriptor or a loop device keeps the mount.
    fn keeps_busy(&self, number: u64) -> bool {
        self.opens.values().any(|open| open.mount == Some(number))
            || self.loops.values().any(|device| device.mount == number)
    }

    /// Ends a mount without a path that has lost its last user.
    pub(super) fn end_if_unused(&mut self, number: u64) {
        if self.keeps_busy(number) {
            return;
        }
        let is_apart = self.mounts.get(&number).is_some_and(Mount::is_apart);
        let apart = if is_apart { self.mounts.remove(&number) } else { None };
        if let Some(mount) = apart.or_else(|| self.detached.remove(&number)) {
            self.ended(&mount);
        }
    }

    /// A filesystem in the machine's memory, as somebody mounts it.
    pub(super) fn mount_memory(&mut self, target: &Path) -> Outcome<()> {
        let place = self.walk(target, Last::Keep)?;
        self.filesystems[place.node.fs].entries(place.node.ino)?;
        self.filesystems.push(Filesystem::new("tmpfs", Backing::Memory));
        let fs = self.filesystems.len() - 1;
        let dev = libc::makedev(0, 10_000 + self.unique() as u32);
        let propagation = self.propagation_below(place.mount, Propagation::default());
        self.attach_mount(Mount {
            at: Some((place.mount, place.node)),
            propagation,
            target: place.path,
            root: NodeRef { fs, ino: ROOT },
            root_path: "/".into(),
            dev,
            st_dev: dev,
            source: "tmpfs".to_owned(),
            loop_number: None,
            read_only: false,
            superblock_read_only: false,
            flags: BTreeSet::new(),
            base: false,
        });
        Ok(())
    }

    pub(super) fn unmount(&mut self, target: &Path) -> Outcome<()> {
        let number = self.mount_point(target)?;
        let copies = self.copies_of(number);
        if self.mounts[&number].base
            || self.has_below(number)
            || copies.iter().chain([&number]).any(|number| self.keeps_busy(*number))
        {
            return Err(Errno::EBUSY);
        }
        for number in copies.into_iter().chain([number]) {
            let mount = self.mounts.remove(&number).ok_or(Errno::EINVAL)?;
            if let Some(at) = mount.at {
                self.covered.remove(&at);
            }
            self.ended(&mount);
        }
        Ok(())
    }

    /// What follows when a mount is no more.
    fn ended(&mut self, mount: &Mount) {
        let same = |other: &Mount| other.root.fs == mount.root.fs && other.loop_number == mount.loop_number;
        if let Some(device) = mount.loop_number
            && !self.mounts.values().chain(self.detached.values()).any(same)
        {
            // The superblock goes, and all of it is written first.
            if !mount.superblock_read_only {
                self.sync_filesystem(mount.root.fs);
            }
            self.settle(device);
        }
    }

    /// Whether a superblock is on the device: it is mounted, or was unmounted while it was frozen.
    pub(super) fn is_mounted(&self, number: u32) -> bool {
        let mut all = self.mounts.values().chain(self.detached.values());
        all.any(|mount| mount.loop_number == Some(number)) || self.freezes.hold_device(number)
    }

    /// Whether anybody has the device open, another loop device included. A bound node is not open.
    pub(super) fn is_open(&self, number: u32) -> bool {
        self.opens.values().any(|open| open.what == Opened::Loop(number))
            || self.loops.values().any(|device| device.backing == LoopBacking::Loop(number))
    }
}

impl Mounts for Process {
    fn list(&self) -> std::io::Result<Vec<MountEntry>> {
        self.look("read", "/proc/self/mountinfo", |world| {
            let shown = world.mounts.iter().filter(|(_, mount)| !mount.is_apart());
            Ok(shown.map(|(number, mount)| world.entry(*number, mount)).collect())
        })
    }

    fn matching(&self, wanted: &dyn Fn(&MountEntry) -> bool) -> std::io::Result<Vec<MountEntry>> {
        Ok(self.list()?.into_iter().filter(wanted).collect())
    }

    fn mount_at(&self, path: &Path) -> std::io::Result<u64> {
        self.look("open", path.display(), |world| Ok(world.walk(path, Last::Keep)?.mount))
    }

    /// Like every open, no step.
    fn pin(&self, mount: &MountEntry) -> std::io::Result<Pinned> {
        self.pin_mount(mount)
    }

    /// Like every question to the kernel, no step.
    fn refused_option(&self, fs_type: FsType, words: &[String]) -> Option<OptionName> {
        words.iter().find(|word| !is_known(fs_type, word)).map(|word| OptionName::of(word))
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

    fn mount_apart(&self, device: &Path, fs_type: FsType, read_only: bool) -> std::io::Result<Pinned> {
        self.mount_at_no_path(device, fs_type, read_only)
    }

    fn bind(&self, source: &Path, target: &Path, flags: &MountFlags) -> std::io::Result<()> {
        let subject = format!("{} at {}", source.display(), target.display());
        let in_two = self.look("probe", "open_tree", |world| Ok(world.binds_in_two_steps))?;
        if !in_two || (!flags.read_only && flags.vfs.is_empty()) {
            return self.step("bind", subject, |world| world.bind(source, target, flags));
        }
        self.step("bind", subject, |world| world.bind(source, target, &MountFlags::default()))?;
        let flagged = self.step("remount", target.display(), |world| {
            let number = world.mount_point(target)?;
            world.tighten(number, flags)
        });
        flagged.inspect_err(|_| {
            // All or nothing, as on the real kernel.
            let _ = Mounts::unmount(self, target);
        })
    }

    fn tighten(&self, mount: &MountEntry, flags: &MountFlags) -> std::io::Result<()> {
        self.step("tighten", mount.target.display(), |world| {
            let number = world.reach(mount)?.mount;
            world.tighten(number, flags)
        })
    }

    fn unmount(&self, target: &Path) -> std::io::Result<()> {
        self.wait_for_looks(|world| world.mount_point(target).ok());
        self.step("unmount", target.display(), |world| world.unmount(target))
    }

    fn unmount_exactly(&self, mount: &MountEntry) -> std::io::Result<()> {
        self.wait_for_looks(|_| Some(mount.id));
        self.step("unmount", mount.target.display(), |world| match world.mounts.contains_key(&mount.id) {
            true => world.reach(mount).and_then(|_| world.unmount(&mount.target)),
            false => Ok(()),
        })
    }

    fn detach(&self, mount: &MountEntry) -> std::io::Result<()> {
        self.step("detach_mount", mount.target.display(), |world| {
            let number = world.reach(mount)?.mount;
            world.detach_mount(number);
            Ok(())
        })
    }

    fn freeze(&self, mount_point: &Path, limit: Duration) -> std::io::Result<Box<dyn Frozen>> {
        self.freeze_mount(mount_point, limit)
    }

    fn thaw(&self, mount_point: &Path) -> std::io::Result<bool> {
        self.thaw_mount(mount_point)
    }
}
