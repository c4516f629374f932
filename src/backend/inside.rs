//! Mounts of filesystems in images that only this process can reach. Conversions read the files of a volume through them, and write the
//! files of a copy. The kernel removes such a mount when the process ends.

use std::path::{Path, PathBuf};

use super::{Place, Signature, Uses, device, inspect, make_filesystem};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{AttachOptions, LoopDevice, MakeOptions, Os, Pinned};
use crate::model::{FsType, VolumeId};

/// A filesystem that is mounted for this process alone.
pub(crate) struct Inside(Pinned);

/// The directory that `mkfs.ext4` makes.
const LOST_AND_FOUND: &str = "lost+found";

impl Inside {
    /// Returns the top of the filesystem.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Mounts a cut of a volume for reading. No other process uses the image of a cut. The kernel replays its journal, and the filesystem
    /// gets a new identity, because the filesystem of the volume can be mounted at the same time.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it does not hold this filesystem; those of the kernel.
    pub(crate) fn of_cut(os: &Os, image: &Path, (fs_type, block_size): (FsType, u32)) -> Result<Self> {
        let opening = || format!("open the filesystem of {}", image.display());
        let errors = match inspect(os.images.as_ref(), image)? {
            Signature::Filesystem { fs_type: found, errors, .. } if found == fs_type => errors,
            found => {
                return Err(Error::InUse(format!(
                    "{} holds {}, and a {fs_type} was made there; check the volume",
                    image.display(),
                    found.describe()
                )));
            }
        };
        let options =
            AttachOptions { read_only: false, autoclear: true, direct_io: false, block_size, discard: false };
        let open = os.loops.attach(image, options).doing(opening)?;
        let path = open.device.path();
        if errors {
            os.filesystems.repair(fs_type, &path).doing(opening)?;
        }
        os.filesystems.renew_identity(fs_type, &path).doing(opening)?;
        os.mounts.mount_apart(&path, fs_type, true).doing(opening).map(Inside)
    }

    /// Makes a filesystem in the blank image of a new, unused volume, and mounts it.
    ///
    /// # Errors
    /// Those of the tool and of the kernel.
    pub(crate) fn make(place: Place<'_>, fs_type: FsType) -> Result<Self> {
        let making = || format!("make {fs_type} for {}", place.volume.id);
        let open = device::attach(place, &Uses::default(), false, true)?;
        let options = MakeOptions { extra: place.volume.parameters.mkfs_options.clone(), zeroed: true };
        let node = device::node(place, &open.device).path;
        make_filesystem(place.os, &node, fs_type, &options).doing(making)?;
        Self::mount(place, &open.device, fs_type)
    }

    /// Mounts the filesystem of an unused volume.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it does not hold this filesystem; those of the kernel.
    pub(crate) fn of_volume(place: Place<'_>, fs_type: FsType) -> Result<Self> {
        let open = device::attach(place, &Uses::default(), false, true)?;
        super::format::check(place, &open.device, fs_type)?;
        Self::mount(place, &open.device, fs_type)
    }

    fn mount(place: Place<'_>, device: &LoopDevice, fs_type: FsType) -> Result<Self> {
        let node = device::node(place, device).path;
        let mounting = || format!("mount {fs_type} of {}", place.volume.id);
        place.os.mounts.mount_apart(&node, fs_type, false).doing(mounting).map(Inside)
    }

    /// Returns the prefix of the names at the top that the node needs until a copy is complete. The id of a copy is no secret: the node of
    /// the source has it, and it is in messages. So no file at the top of the tree may have such a name.
    pub(crate) fn own_names(id: &VolumeId) -> String {
        format!(".hostloop-{id}")
    }

    /// Returns the directory that has the tree of a copy until the copy is complete.
    pub(crate) fn trees(&self, place: Place<'_>) -> PathBuf {
        self.path().join(Self::own_names(&place.volume.id))
    }

    /// Moves the tree in [`trees`](Self::trees) to the top of the filesystem. Durable on return. If a call is interrupted, it can be
    /// repeated. Returns `false` if there is no tree.
    pub(crate) fn lift(&self, place: Place<'_>) -> Result<bool> {
        let (os, trees) = (place.os, self.trees(place));
        let whole = self.path().join(format!("{}-whole", Self::own_names(&place.volume.id)));
        let lifting = || format!("put the files of {} in their place", place.volume.id);
        let is_there = |path: &Path| os.files.stat(path).doing(lifting).map(|found| found.is_some());
        if is_there(&trees)? {
            let data = trees.join(super::tree::DATA);
            if is_there(&data)? {
                os.files.rename(&data, &whole).doing(lifting)?;
                os.files.sync_directory(self.path()).doing(lifting)?;
            }
            if !is_there(&whole)? {
                return Ok(false);
            }
            // That of mkfs is empty, and the tree may have one. Files of the tree are moved only after `trees` is removed.
            os.files.remove_directory(&self.path().join(LOST_AND_FOUND)).doing(lifting)?;
            super::remove_trees_beside(os, &trees)?;
            os.files.remove_directory(&trees).doing(lifting)?;
        }
        let there = is_there(&whole)?;
        if there {
            os.trees.lift(&whole).doing(lifting)?;
        }
        Ok(there)
    }
}
