//! What an administrator, or the owner of a file, does with quotas, and what a test sees of them.

use std::io;
use std::path::Path;

use super::FakeKernel;
use super::quotas::is_subvolume;
use super::resolve::Last;
use hostloop_kernel::{Qgroups, QuotaLimits};

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

    /// The same where the filesystem is btrfs, with what it counts.
    ///
    /// # Panics
    /// Where nothing is there: the test is wrong.
    pub fn set_qgroups(&self, path: impl AsRef<Path>, qgroups: Qgroups) {
        self.set_quotas(path.as_ref(), true);
        let mut world = self.lock();
        let fs = world.walk(path.as_ref(), Last::Follow).expect("a path of the machine").node.fs;
        world.fs_mut(fs).limits.qgroups = Some(qgroups);
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
        let filesystem = &world.filesystems[fs];
        // That of a subvolume goes with it.
        let is_there = |id: u32| !is_subvolume(id) || filesystem.counted(id).1 > 0;
        filesystem
            .limits
            .now
            .iter()
            .map(|(id, limits)| (*id, *limits))
            .filter(|(id, _)| is_there(*id))
            .collect()
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
