//! Mounts that only a descriptor leads to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::mounts::Mount;
use super::world::{Resolved, World};
use super::{Outcome, Process};
use hostloop_kernel::{Pinned, Propagation};
use hostloop_model::{FsType, MountFlags};

impl Mount {
    /// Whether only a descriptor leads to it.
    pub(super) fn is_apart(&self) -> bool {
        self.at.is_none() && !self.base
    }
}

impl World {
    fn mount_apart(&mut self, device: &Path, fs_type: FsType, read_only: bool) -> Outcome<Resolved> {
        let number = self.loop_at(device)?;
        let data = if fs_type == FsType::Xfs { vec!["nouuid".to_owned()] } else { Vec::new() };
        let flags = MountFlags { read_only, data, ..MountFlags::default() };
        let fs = self.mountable(number, fs_type, &flags)?;
        let (root, root_path) = self.mounted_root(fs, fs_type, &flags)?;
        let dev = self.loops[&number].rdev();
        self.add_mount(Mount {
            at: None,
            target: PathBuf::new(),
            root,
            root_path: root_path.clone(),
            dev,
            st_dev: dev,
            source: format!("/dev/loop{number}"),
            loop_number: Some(number),
            read_only,
            superblock_read_only: read_only,
            flags: BTreeSet::new(),
            propagation: Propagation::default(),
            base: false,
        });
        Ok(Resolved { mount: self.next_mount, node: root, inner: root_path, path: PathBuf::from("/") })
    }
}

impl Process {
    /// What [`Mounts::mount_apart`](hostloop_kernel::Mounts::mount_apart) does here.
    pub(super) fn mount_at_no_path(
        &self,
        device: &Path,
        fs_type: FsType,
        read_only: bool,
    ) -> std::io::Result<Pinned> {
        let id = self.step("mount_apart", device.display(), |world| {
            let place = world.mount_apart(device, fs_type, read_only)?;
            // The mount is held by its descriptor alone, so a process that is killed here leaves no mount.
            Ok(world.pin(self.generation, place))
        })?;
        Ok(self.pinned(id, "/."))
    }
}
