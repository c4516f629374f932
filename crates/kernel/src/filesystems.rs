//! Making, growing and checking filesystems.

use std::io;
use std::path::Path;

use hostloop_model::FsType;

/// What mkfs is told beside the kind and the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeOptions {
    /// The words of the parameter `mkfsOptions`, in their order.
    pub extra: Vec<String>,
    /// The device reads as zeros, so that nothing needs to be zeroed again.
    pub zeroed: bool,
}

/// Making and growing filesystems with the tools of e2fsprogs, xfsprogs and btrfs-progs.
pub trait Filesystems: Send + Sync {
    /// Makes a filesystem on the device; durable when it returns. Never discards. The caller has made sure
    /// that the device holds nothing. EINVAL for extra words that name a file (any with `/`).
    fn make(&self, device: &Path, fs_type: FsType, options: &MakeOptions) -> io::Result<()>;
    /// Grows a mounted filesystem to the size of its device. A filesystem that has the size already stays as it is.
    /// btrfs cannot be grown to less than 256 MiB.
    ///
    /// # Errors
    /// EPERM where ext4 would have to grow and this process lacks CAP_SYS_RESOURCE; the filesystem stays as it is.
    fn grow(&self, fs_type: FsType, device: &Path, mount_point: &Path) -> io::Result<()>;
    /// Grows ext4 that is not mounted to the size of its device, after the check and the replay of its journal that
    /// this needs. Durable when it returns. Where it is cut off the filesystem may be lost: the device holds a copy.
    ///
    /// # Errors
    /// EBUSY where it is mounted; EOPNOTSUPP for another filesystem, which grows only while it is mounted.
    fn grow_unmounted(&self, fs_type: FsType, device: &Path) -> io::Result<()>;
    /// Repairs what can be repaired without a question before mounting (e2fsck -p); for ext4 that its
    /// superblock marks as having errors.
    fn repair(&self, fs_type: FsType, device: &Path) -> io::Result<()>;
    /// Gives a copied filesystem an identity of its own, so that it can be mounted beside its source: a new fsid for
    /// btrfs, which keeps the old one as metadata_uuid, and its log; nothing for ext4, which does not mind, and for xfs,
    /// which is mounted with `nouuid`. Can be repeated after a crash in the middle. Durable when it returns.
    ///
    /// # Errors
    /// EBUSY where the device is mounted, EUCLEAN where it holds no btrfs, EOPNOTSUPP where the id cannot be changed: a
    /// seed, several devices, or a copy of a filesystem in use that mkfsOptions gave other checksums than crc32c.
    fn renew_identity(&self, fs_type: FsType, device: &Path) -> io::Result<()>;
    /// Checks a whole filesystem that is not mounted and whose journal has been replayed, without changing it
    /// (xfs_repair -n, btrfs check --readonly, e2fsck -fn).
    ///
    /// # Errors
    /// EUCLEAN with what the tool said, where something is wrong; EBUSY where it is mounted.
    fn check(&self, fs_type: FsType, device: &Path) -> io::Result<()>;
    /// What there is to say about the tool of this process that works on a device, such as `/usr/sbin/e2fsck works for
    /// 90 s, 2 GiB read, 0 written`; `None` in its first second.
    fn working_on(&self, device: &Path) -> Option<String>;
    /// Whether the tools for this filesystem are there.
    ///
    /// # Errors
    /// ENOENT naming the missing tool and the package that has it.
    fn check_tools(&self, fs_type: FsType) -> io::Result<()>;
}
