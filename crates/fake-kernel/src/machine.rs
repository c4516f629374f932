//! What a test configures of the machine: its disks, and what they can do.

use std::io;
use std::path::Path;

use super::FakeKernel;
use super::resolve::Last;
use super::tree::{Backing, Filesystem, FsId};
use super::world::{Disk, World};
use hostloop_kernel::Upkeep;
use hostloop_model::FsType;

impl World {
    /// The filesystem of a disk that holds this path.
    fn disk_at(&self, path: &Path) -> (FsId, usize) {
        let fs = self.walk(path, Last::Follow).expect("a path that is there").node.fs;
        match self.filesystems[fs].backing {
            Backing::Disk(disk) => (fs, disk),
            _ => panic!("{} is on no disk", path.display()),
        }
    }

    fn set_space(&mut self, disk: usize, total: u64, free: u64) {
        let used = self.filesystems[self.disks[disk].filesystem].used;
        self.disks[disk].total = total;
        self.disks[disk].other = total.saturating_sub(free).saturating_sub(used);
    }
}

impl FakeKernel {
    /// Adds a disk of this size, mounted at the directory `target`, which is made, now and whenever the machine starts.
    /// Its files can share blocks on xfs and btrfs.
    ///
    /// # Panics
    /// Where something else is in the way: the test is wrong.
    pub fn add_disk(&self, target: impl AsRef<Path>, fs_type: FsType, bytes: u64) {
        let target = target.as_ref();
        self.create_directories(target);
        let mut world = self.lock();
        let number = world.disks.len();
        let mut filesystem = Filesystem::new(fs_type.as_str(), Backing::Disk(number));
        filesystem.reflink = fs_type != FsType::Ext4;
        world.filesystems.push(filesystem);
        let filesystem = world.filesystems.len() - 1;
        world.disks.push(Disk { total: bytes, other: 0, filesystem, target: target.to_owned() });
        world.mount_disk(number);
    }

    /// Replaces the disk that holds `path` by an empty one of its size, while the machine is off. It starts afterwards.
    ///
    /// # Panics
    /// Where the path is on no disk: the test is wrong.
    pub fn replace_disk(&self, path: impl AsRef<Path>) {
        let mut world = self.lock();
        let (old, disk) = world.disk_at(path.as_ref());
        let mut empty = Filesystem::new(world.filesystems[old].fs_type, Backing::Disk(disk));
        empty.reflink = world.filesystems[old].reflink;
        world.filesystems.push(empty);
        world.disks[disk].filesystem = world.filesystems.len() - 1;
        world.reboot();
    }

    /// Whether files on the disk that holds `path` can share blocks; those of `/` cannot from the start.
    ///
    /// # Panics
    /// Where the path is on no disk: the test is wrong.
    pub fn set_reflink(&self, path: impl AsRef<Path>, possible: bool) {
        let mut world = self.lock();
        let (fs, _) = world.disk_at(path.as_ref());
        world.fs_mut(fs).reflink = possible;
    }

    /// What the filesystem of the disk that holds `path` takes for itself: `per_block` is taken for each run of a file's
    /// blocks, `unusable` stays available and cannot be had.
    ///
    /// # Panics
    /// Where the path is on no disk: the test is wrong.
    pub fn set_upkeep(&self, path: impl AsRef<Path>, upkeep: Upkeep) {
        let mut world = self.lock();
        let (fs, _) = world.disk_at(path.as_ref());
        world.fs_mut(fs).upkeep = upkeep;
    }

    /// The size of the disk with `/`, and how much of it is free now.
    pub fn set_space(&self, total: u64, free: u64) {
        self.lock().set_space(0, total, free);
    }

    /// The size of the disk that holds `path`, and how much of it is free now.
    ///
    /// # Panics
    /// Where the path is on no disk: the test is wrong.
    pub fn set_space_at(&self, path: impl AsRef<Path>, total: u64, free: u64) {
        let mut world = self.lock();
        let (_, disk) = world.disk_at(path.as_ref());
        world.set_space(disk, total, free);
    }

    /// Whether the filesystem that holds `path` answers a look at its files with EIO, as a disk does that fails, and as
    /// xfs and btrfs do after an error that they cannot get over.
    ///
    /// # Panics
    /// Where nothing is there: the test is wrong.
    pub fn set_failed(&self, path: impl AsRef<Path>, failed: bool) {
        let mut world = self.lock();
        let fs = world.walk(path.as_ref(), Last::Follow).expect("a path").node.fs;
        if failed {
            world.failed.insert(fs)
        } else {
            world.failed.remove(&fs)
        };
    }

    /// Whether a bind gets its flags in a step of its own, as before Linux 5.12.
    pub fn set_binds_in_two_steps(&self, two: bool) {
        self.lock().binds_in_two_steps = two;
    }

    /// Makes the filesystem that holds `path` read-only, or writable again, as the kernel does after an error: its
    /// mounts are what they were.
    ///
    /// # Panics
    /// Where nothing is there: the test is wrong.
    pub fn set_superblock_read_only(&self, path: impl AsRef<Path>, read_only: bool) {
        let mut world = self.lock();
        let fs = world.walk(path.as_ref(), Last::Follow).expect("a path").node.fs;
        let mounts = world.mounts.values_mut().filter(|mount| mount.root.fs == fs);
        mounts.for_each(|mount| mount.superblock_read_only = read_only);
    }

    /// Makes a directory of a btrfs, given by its path in the tree, what the next mount of it shows (btrfs subvolume
    /// set-default).
    ///
    /// # Panics
    /// Where nothing is there: the test is wrong.
    pub fn set_default_subvolume(&self, path: impl AsRef<Path>) {
        let mut world = self.lock();
        let place = world.walk(path.as_ref(), Last::Follow).expect("a path");
        world.fs_mut(place.node.fs).default = place.inner;
    }

    /// Damages the filesystem in an image, so that a check finds it.
    ///
    /// # Errors
    /// Where no such file is there; EINVAL where it holds no filesystem.
    pub fn damage(&self, image: impl AsRef<Path>) -> io::Result<()> {
        let image = image.as_ref();
        self.outside("damage", image, |world| {
            let node = world.walk(image, Last::Follow)?.node;
            let tree = world.content(node)?.image.ok_or(nix::errno::Errno::EINVAL)?;
            world.fs_mut(tree).damaged = true;
            Ok(())
        })
    }
}
