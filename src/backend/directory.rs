//! A directory on the pool's filesystem, bind-mounted: the classic hostpath, without a size limit of its own.

use std::path::{Path, PathBuf};

use super::{Backend, Place, Publish, Stage, Stats, Target, Uses, filesystem};
use crate::error::{Error, OsContext, Result};
use crate::model::BackendKind;
use crate::os::MountEntry;

/// See the module.
pub(super) struct Directory;

impl Backend for Directory {
    fn create(&self, place: Place<'_>) -> Result<()> {
        let disks = &place.os.disks;
        let creating = || format!("create the directory of {}", place.volume.id);
        disks.create_directory(&place.paths.directory, 0o700).doing(creating)?;
        disks.create_directory(&place.paths.data(), 0o755).doing(creating)?;
        disks.sync_directory(&place.paths.data()).doing(creating)?;
        disks.sync_directory(&place.paths.directory).doing(creating)?;
        disks.sync_directory(&place.paths.parent).doing(creating)
    }

    fn remove(&self, place: Place<'_>) -> Result<()> {
        super::remove_files(place.os, place.paths, BackendKind::Directory)
    }

    fn uses(&self, place: Place<'_>) -> Result<Uses> {
        let mounts = place.os.mounts.list().doing(|| "read mountinfo".to_owned())?;
        let data = place.paths.data();
        let (dev, root) = in_its_filesystem(&mounts, &data).ok_or_else(|| {
            let data = data.display();
            Error::InUse(format!(
                "mountinfo does not show what {data} is on (a chroot?), so its users are unknown"
            ))
        })?;
        let (mut whole, mut partial) = (Vec::new(), Vec::new());
        for mount in mounts {
            if mount.dev == dev && mount.root == root {
                whole.push(mount);
            } else if mount.dev == dev && mount.root.starts_with(&root) || mount.target.starts_with(&data) {
                // A part of it mounted elsewhere, or a mount that someone made inside, where removing must not go.
                partial.push(mount);
            }
        }
        Ok(Uses { mounts: whole, partial, loops: Vec::new() })
    }

    fn stage(&self, place: Place<'_>, stage: &Stage<'_>, _uses: &Uses) -> Result<()> {
        let source = place.paths.data();
        if place.os.disks.stat(&source).doing(|| format!("look at {}", source.display()))?.is_none() {
            let context =
                format!("volume {} has lost its directory; restore it or delete the volume", place.volume.id);
            let source = crate::os::errno_error(nix::errno::Errno::ENOENT, source.display());
            return Err(Error::Os { context, source });
        }
        let publish = Publish {
            staging: &source,
            target: stage.target,
            flags: stage.flags,
            read_only: stage.read_only,
        };
        filesystem::bind(place, &source, &publish)
    }

    fn finish_stage(&self, _place: Place<'_>, _stage: &Stage<'_>, _uses: &Uses) -> Result<()> {
        Ok(()) // the bind is all
    }

    fn unstage(&self, place: Place<'_>, staging: &Target, uses: &Uses) -> Result<()> {
        filesystem::unmount(place, staging, uses)
    }

    fn is_staged(&self, uses: &Uses, staging: &Path) -> bool {
        uses.at(staging).next().is_some()
    }

    fn publish(&self, place: Place<'_>, publish: &Publish<'_>, _uses: &Uses) -> Result<()> {
        filesystem::bind(place, publish.staging, publish)
    }

    fn is_read_only(&self, _place: Place<'_>, mount: &MountEntry, _uses: &Uses) -> Result<bool> {
        Ok(mount.read_only || mount.superblock_read_only)
    }

    fn after_unpublish(&self, _place: Place<'_>) -> Result<()> {
        Ok(())
    }

    fn grow(&self, _place: Place<'_>, bytes: u64) -> Result<u64> {
        Ok(bytes) // its size is a wish that nothing enforces
    }

    fn ungrow(&self, _place: Place<'_>, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn grow_in_use(&self, _place: Place<'_>, _uses: &Uses) -> Result<()> {
        Ok(())
    }

    fn stats(&self, place: Place<'_>, path: &Path, _uses: &Uses) -> Result<Stats> {
        let data = place.paths.data();
        let usage = place.os.disks.usage(&data).doing(|| format!("measure {}", data.display()))?;
        let space = place.os.disks.space(path).doing(|| format!("statvfs {}", path.display()))?;
        Ok(Stats::Directory(usage, space))
    }
}

/// Where a path is within its filesystem, as the mounts of it show their roots: the device number, and the path
/// from the filesystem's own root.
fn in_its_filesystem(mounts: &[MountEntry], path: &Path) -> Option<(u64, PathBuf)> {
    // The longest target covers the path; of several at one target the last lies on top.
    let covering = mounts.iter().filter(|mount| path.starts_with(&mount.target));
    let mount = covering.max_by_key(|mount| mount.target.components().count())?;
    Some((mount.dev, mount.root.join(path.strip_prefix(&mount.target).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(dev: u64, root: &str, target: &str) -> MountEntry {
        MountEntry {
            dev,
            root: root.into(),
            target: target.into(),
            fs_type: "ext4".to_owned(),
            source: "/dev/vda".to_owned(),
            read_only: false,
            flags: Vec::new(),
            superblock_read_only: false,
            shared: false,
        }
    }

    #[test]
    fn a_path_is_found_in_the_filesystem_that_covers_it() {
        let mounts = [
            mount(1, "/", "/"),
            mount(2, "/", "/srv"),
            mount(3, "/@/pool", "/srv"),
            mount(4, "/", "/srv/a/b"),
        ];
        let found = |path: &str| in_its_filesystem(&mounts, Path::new(path));
        assert_eq!(found("/var/lib/x"), Some((1, "/var/lib/x".into())));
        assert_eq!(found("/srv/a"), Some((3, "/@/pool/a".into())));
        assert_eq!(found("/srv/a/b"), Some((4, "/".into())));
        assert_eq!(found("/srvx"), Some((1, "/srvx".into())));
    }
}
