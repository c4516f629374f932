//! The files of a filesystem in an image, for this process alone: what becomes a tree, and what is made from one. No other process
//! sees the mount, and the kernel ends it with this process.

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
    /// Its top.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Mounts a cut of a volume for reading. The image is a copy that nobody else uses: its journal is replayed, and its filesystem gets
    /// an identity of its own, since that of the volume can be mounted at the same time.
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

    /// Makes a filesystem in the blank image of a new volume that nobody uses, and mounts it.
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

    /// Mounts the filesystem of a volume that nobody uses.
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

    /// What the names at the top begin with that are this project's own until a copy is complete. The node of the source, and whoever
    /// reads a message, knows the id of a copy, so no file at the top of its tree may have such a name.
    pub(crate) fn own_names(id: &VolumeId) -> String {
        format!(".hostloop-{id}")
    }

    /// The directory where the tree of a volume is until it is whole.
    pub(crate) fn trees(&self, place: Place<'_>) -> PathBuf {
        self.path().join(Self::own_names(&place.volume.id))
    }

    /// Makes the tree that is in [`trees`](Self::trees) all that is in the filesystem; durable on return. A call that was cut off is
    /// repeated. Returns `false` if there is no such tree.
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
            // It is empty, and the tree may have one of its own. As long as `trees` is there, nothing of the tree is beside it.
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
