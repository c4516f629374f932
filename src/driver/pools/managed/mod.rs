//! Managed pools: a filesystem of the driver's own, in an image file or on a whole block device, made once and brought
//! to its mount point at every start.
//!
//! Two things would destroy what is in it: a second loop device on its image, because each has a cache of its own, and a
//! mkfs over it. So:
//!
//! - A lock beside the image is held as long as the process lives. For a device, and for an image that is reached by two
//!   names, the lock in the pool's own directory keeps a second driver out, as in every pool: whoever mounts the same
//!   device gets the same superblock and meets the same lock.
//! - The loop device is found by the image's (device, inode), which the kernel knows whatever the mount namespace. One
//!   that exists is used, two stop the start, and only if there is none is one attached. It has autoclear, so it lives
//!   exactly as long as its mounts and the volumes in them, and is gone after a reboot.
//! - An image gets its name when its filesystem is whole. Under its name it is never formatted, whatever is in it. A
//!   device is formatted only if it is blank and nobody has claimed it. If the state file knows of volumes in the pool,
//!   neither is formatted: then its disk is missing, not new.
//! - A file in the pool's root says whose it is, so that exchanged disks are noticed.
//!
//! Nothing is unmounted when the driver stops, because volumes may be in use.

mod device;
mod image;
mod marker;
mod mount;

use std::path::{Path, PathBuf};

use crate::backend::{Signature, make_filesystem};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{FileKind, MakeOptions, OpenLoop, Os};
use crate::model::{FsType, PoolKind, PoolName, PoolSettings, Settings};

/// A pool whose filesystem is mounted.
pub(super) struct Opened {
    /// The image or device with every link resolved.
    pub(super) medium: PathBuf,
    /// Held for life: the one in the pool's directory, and that of an image.
    pub(super) locks: Vec<Lock>,
}

/// Released when it is dropped.
type Lock = Box<dyn Send + Sync>;

/// A pool that is being opened.
struct Managed<'a> {
    os: &'a Os,
    settings: &'a Settings,
    name: &'a PoolName,
    fs_type: FsType,
    /// The directory of all mount points, links resolved.
    directory: PathBuf,
    /// The state file knows of volumes or snapshots in it.
    in_use: bool,
}

/// A block device with the pool's filesystem.
struct Medium {
    /// The image or device that the administrator knows.
    known_as: PathBuf,
    path: PathBuf,
    rdev: u64,
    /// The size in bytes that the superblock gives, which may be older than the last growth.
    filesystem_bytes: u64,
    /// The filesystem was made a moment ago.
    made: bool,
    /// A loop device, kept until it is mounted.
    device: Option<OpenLoop>,
}

/// Brings the filesystem of a managed pool to its mount point; `None` for a pool that is a directory.
///
/// # Errors
/// Whatever does not fit. Nothing is changed then that a later start would not find as it was.
pub(super) fn open(
    os: &Os,
    settings: &Settings,
    pool: &PoolSettings,
    in_use: bool,
) -> Result<Option<Opened>> {
    let resolving = || format!("resolve {}", settings.data_dir.display());
    let managed = |fs_type| -> Result<Managed<'_>> {
        let directory = os.files.canonicalize(&settings.data_dir).doing(resolving)?.join(Settings::POOLS_DIR);
        Ok(Managed { os, settings, name: &pool.name, fs_type, directory, in_use })
    };
    match &pool.kind {
        PoolKind::Directory => Ok(None),
        PoolKind::Image { file, bytes, fs_type } => managed(*fs_type)?.open_image(file, *bytes).map(Some),
        PoolKind::Device { device, fs_type } => managed(*fs_type)?.open_device(device).map(Some),
    }
}

impl Managed<'_> {
    fn open_image(&self, file: &Path, bytes: u64) -> Result<Opened> {
        let (parent, name) =
            file.parent().zip(file.file_name()).ok_or_else(|| self.refuse("it has no name"))?;
        let image = self.resolve(parent)?.join(name);
        self.make_directories()?;
        let of_image = self.lock(&image)?;
        let medium = self.attach(&image, bytes)?;
        let of_pool = self.mount(&medium)?;
        self.grow_image(&image, bytes, &medium)?;
        Ok(Opened { medium: image, locks: vec![of_pool, of_image] })
    }

    fn open_device(&self, device: &Path) -> Result<Opened> {
        let device = self.resolve(device)?;
        self.make_directories()?;
        let medium = self.take_device(&device)?;
        let of_pool = self.mount(&medium)?;
        let bytes = self.os.files.block_device(&device).doing(|| self.doing("look at its device"))?.bytes;
        self.grow_filesystem(&medium, bytes)?;
        Ok(Opened { medium: device, locks: vec![of_pool] })
    }

    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        self.os.files.canonicalize(path).doing(|| self.doing(&path.display().to_string()))
    }

    /// Where the filesystem is mounted.
    fn target(&self) -> PathBuf {
        self.directory.join(self.name.as_str())
    }

    /// Makes the mount point where it is missing.
    fn make_directories(&self) -> Result<()> {
        let files = &self.os.files;
        let parent = self.directory.parent().unwrap_or(&self.directory);
        for (path, parent) in [(&self.directory, parent), (&self.target(), &self.directory)] {
            let making = || self.doing("make its mount point");
            match files.stat(path).doing(making)?.map(|stat| stat.kind) {
                Some(FileKind::Directory) => {}
                Some(_) => return Err(self.refuse(format!("{} is not a directory", path.display()))),
                None => {
                    files.create_directory(path, 0o700).doing(making)?;
                    files.sync_directory(parent).doing(making)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the filesystem on a device that was seen blank. Durable on return.
    fn make_filesystem(&self, device: &Path, zeroed: bool) -> Result<()> {
        // Reflinks are the default of mkfs.xfs since 5.1 and always there on btrfs.
        let extra = match self.fs_type {
            FsType::Xfs => ["-m", "reflink=1"].map(str::to_owned).to_vec(),
            FsType::Ext4 | FsType::Btrfs => Vec::new(),
        };
        let making = || self.doing(&format!("make {} on {}", self.fs_type, device.display()));
        make_filesystem(self.os, device, self.fs_type, &MakeOptions { extra, zeroed }).doing(making)
    }

    /// Says that nothing can be made, where the state file knows that something was.
    fn refuse_if_in_use(&self, medium: &Path, found: &str) -> Result<()> {
        match self.in_use {
            true => Err(self.refuse(format!(
                "it should hold volumes, but {} {found}: is its disk there? Nothing is made in its place",
                medium.display()
            ))),
            false => Ok(()),
        }
    }

    /// Refuses what is not the pool's filesystem, and gives the size of what is.
    fn expect_filesystem(&self, medium: &Path, found: Signature) -> Result<u64> {
        match found {
            Signature::Filesystem { fs_type, bytes, .. } if fs_type == self.fs_type => Ok(bytes),
            found => Err(self.refuse(format!(
                "{} holds {}, not the {} filesystem of a pool; it is left as it is",
                medium.display(),
                found.describe(),
                self.fs_type
            ))),
        }
    }

    /// What was being done when the kernel failed.
    fn doing(&self, what: &str) -> String {
        format!("pool {}: {what}", self.name)
    }

    fn refuse(&self, why: impl std::fmt::Display) -> Error {
        Error::InUse(format!("pool {}: {why}", self.name))
    }
}
