//! The mount of a managed pool: taken over, or made after a check.

use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;

use super::{Lock, Managed, Medium, marker::Absent};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{MountEntry, is_errno};
use crate::model::{FsType, MountFlags};

impl Managed<'_> {
    /// Makes sure that the filesystem is mounted at its mount point, and is this pool's.
    ///
    /// What the kernel says decides: where it is mounted already it is taken over. Where its device is claimed, the
    /// filesystem is mounted somewhere else, most often in the mount namespace of a container that is gone, whose
    /// volumes keep it: mounting the device again gives the very same filesystem. Only one that nobody uses is
    /// checked first, since then the machine, or the last user, may have ended in the middle of something.
    pub(super) fn mount(&self, medium: &Medium) -> Result<Lock> {
        self.unmount_check()?;
        let target = self.target();
        if let Some(top) = self.mounted()? {
            if !self.is_of(&top, medium)? {
                return Err(self.covered(&top));
            }
            if top.read_only || top.superblock_read_only {
                return Err(self.refuse(format!(
                    "{} is mounted read-only, perhaps after an error of its disk: see dmesg; unmount it and start again",
                    target.display()
                )));
            }
            let lock = self.own(Absent::Write)?;
            tracing::info!(pool = %self.name, device = %medium.path.display(), "took over the pool's mount");
            return Ok(lock);
        }
        self.refuse_if_not_empty()?;
        let looking = || self.doing("look at its device");
        let live = !medium.made && self.os.files.block_device(&medium.path).doing(looking)?.held;
        if !medium.made && !live {
            self.check(medium)?;
        }
        self.mount_at(medium, &target)?;
        let owned = self.own(if live { Absent::Refuse } else { Absent::Write });
        let unmount = || self.os.mounts.unmount(&target).doing(|| self.doing("unmount it again"));
        let lock = owned.map_err(|cause| cause.after_undo(unmount()))?;
        tracing::info!(
            pool = %self.name, device = %medium.path.display(), mount_point = %target.display(), in_use = live,
            "mounted the pool"
        );
        Ok(lock)
    }

    /// Makes sure that the mounted filesystem is this pool's, and takes it for this process alone.
    fn own(&self, absent: Absent) -> Result<Lock> {
        self.check_marker(absent)?;
        self.os.files.lock(&self.target().join("lock")).doing(|| self.doing("lock it"))
    }

    /// Replays the journal, which a check does not, and checks the whole filesystem without changing it. The journal is
    /// replayed at a mount point of its own: where a start ends in the middle, the next one sees that it was not done.
    fn check(&self, medium: &Medium) -> Result<()> {
        let started = Instant::now();
        let place = self.check_place();
        let preparing = || self.doing("check its filesystem");
        if self.os.files.stat(&place).doing(preparing)?.is_none() {
            self.os.files.create_directory(&place, 0o700).doing(preparing)?;
        }
        self.mount_at(medium, &place)?;
        self.os.mounts.unmount(&place).doing(preparing)?;
        self.os.files.remove_directory(&place).doing(preparing)?;
        match self.os.filesystems.check(self.fs_type, &medium.path) {
            Err(error) if is_errno(&error, Errno::EUCLEAN) => {
                let (fs_type, advice) = (self.fs_type, self.how_to_repair(medium));
                return Err(self.refuse(format!("its {fs_type} filesystem is damaged: {error}; {advice}")));
            }
            checked => checked.doing(preparing)?,
        }
        tracing::info!(
            pool = %self.name, fs_type = %self.fs_type, ms = started.elapsed().as_millis() as u64,
            "checked the pool's filesystem, which was not mounted: it is sound"
        );
        Ok(())
    }

    fn mount_at(&self, medium: &Medium, place: &Path) -> Result<()> {
        self.mount_with_quotas(medium, place).map_err(|error| {
            let advice = self.how_to_repair(medium);
            self.refuse(format!("its filesystem cannot be mounted: {error}; see dmesg; {advice}"))
        })
    }

    /// xfs is mounted with project quotas, for directories with an enforced size, where the kernel has them: whether it does
    /// can be seen in no other way (CONFIG_XFS_QUOTA). Where the filesystem is mounted already, it stays as it is.
    fn mount_with_quotas(&self, medium: &Medium, place: &Path) -> std::io::Result<()> {
        let mount = |flags: &MountFlags| self.os.mounts.mount(&medium.path, place, self.fs_type, flags);
        if self.fs_type != FsType::Xfs {
            return mount(&MountFlags::default());
        }
        let with_quotas = MountFlags { data: vec!["prjquota".to_owned()], ..MountFlags::default() };
        match mount(&with_quotas) {
            Err(error) if is_errno(&error, Errno::EINVAL) => mount(&MountFlags::default()),
            mounted => mounted,
        }
    }

    fn how_to_repair(&self, medium: &Medium) -> String {
        let medium = medium.known_as.display();
        match self.fs_type {
            FsType::Btrfs => {
                format!(
                    "copy what can be read from {medium}, then see btrfs-check(8); the driver changes nothing"
                )
            }
            FsType::Xfs | FsType::Ext4 => {
                format!("while the driver is stopped, run: xfs_repair {medium}; the driver changes nothing")
            }
        }
    }

    /// Where the journal is replayed before a check. No pool can have this name.
    fn check_place(&self) -> PathBuf {
        self.directory.join(format!("{}.check", self.name))
    }

    /// Undoes a check that was cut off.
    fn unmount_check(&self) -> Result<()> {
        let place = self.check_place();
        let undoing = || self.doing("undo a check that was cut off");
        if self.os.files.stat(&place).doing(undoing)?.is_none() {
            return Ok(());
        }
        while self.top_mount(&place)?.is_some() {
            self.os.mounts.unmount(&place).doing(undoing)?;
        }
        self.os.files.remove_directory(&place).doing(undoing)
    }

    /// What lies on top at the mount point.
    fn mounted(&self) -> Result<Option<MountEntry>> {
        self.top_mount(&self.target())
    }

    fn top_mount(&self, place: &Path) -> Result<Option<MountEntry>> {
        let mounts = self.os.mounts.list().doing(|| "read mountinfo".to_owned())?;
        Ok(mounts.into_iter().rfind(|mount| mount.target == place))
    }

    /// Whether a mount is the whole filesystem of the device. btrfs shows an anonymous device number, so there the
    /// source is asked, which may be another name of the device.
    fn is_of(&self, mount: &MountEntry, medium: &Medium) -> Result<bool> {
        if mount.root != Path::new("/") || mount.fs_type != self.fs_type.as_str() {
            return Ok(false);
        }
        if mount.dev == medium.rdev || Path::new(&mount.source) == medium.path {
            return Ok(true);
        }
        let Ok(source) = self.os.files.canonicalize(Path::new(&mount.source)) else { return Ok(false) };
        let stat = self.os.files.stat(&source).doing(|| self.doing("look at what is mounted"))?;
        Ok(stat.is_some_and(|stat| stat.rdev != 0 && stat.rdev == medium.rdev))
    }

    /// Refuses to make anything where the mount point is taken: the medium that belongs to what is mounted has gone.
    pub(super) fn refuse_if_covered(&self) -> Result<()> {
        self.mounted()?.map_or(Ok(()), |top| Err(self.covered(&top)))
    }

    fn covered(&self, top: &MountEntry) -> Error {
        self.refuse(format!(
            "{} is mounted at {} and is not the configured image or device: unmount it, or correct --pool",
            top.source,
            top.target.display()
        ))
    }

    /// Mounting would hide what lies in the directory.
    fn refuse_if_not_empty(&self) -> Result<()> {
        let target = self.target();
        match self.os.files.list(&target).doing(|| self.doing("list its mount point"))? {
            names if names.is_empty() => Ok(()),
            _ => {
                Err(self
                    .refuse(format!("{} is not empty: mounting would hide what is in it", target.display())))
            }
        }
    }
}
