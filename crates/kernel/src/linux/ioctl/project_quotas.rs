//! Project quotas of xfs and ext4: quotactl(2) with the requests of linux/dqblk_xfs.h, which the kernel takes for every
//! filesystem (fs/quota/quota.c), and the project of an inode (FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR).

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;

use super::{Fsxattr, fsxattr, request};

/// The same on every architecture (include/uapi/asm-generic/unistd.h); not in every libc.
const SYS_QUOTACTL_FD: libc::c_long = 443;

/// PRJQUOTA
const PROJECT: u32 = 2;
pub(super) const Q_XGETQUOTA: u32 = 0x5803;
pub(super) const Q_XSETQLIM: u32 = 0x5804;
pub(super) const Q_XGETQSTATV: u32 = 0x5808;

/// FS_DQUOT_VERSION and FS_QSTATV_VERSION1
const VERSION: i8 = 1;
/// FS_PROJ_QUOTA
pub(super) const PROJECT_QUOTA: u8 = 1 << 1;
/// FS_DQ_IHARD and FS_DQ_BHARD; the soft limits are set with them, to none.
pub(super) const LIMITS: u16 = 0xF;
pub(super) const ACCOUNTED: u16 = 1 << 4;
pub(super) const ENFORCED: u16 = 1 << 5;
/// FS_XFLAG_PROJINHERIT
pub(super) const INHERITED: u32 = 0x200;

/// `struct fs_disk_quota`. Blocks are of 512 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DiskQuota {
    pub(super) version: i8,
    pub(super) flags: u8,
    pub(super) fields: u16,
    pub(super) id: u32,
    pub(super) block_limit: u64,
    pub(super) soft_block_limit: u64,
    pub(super) inode_limit: u64,
    pub(super) soft_inode_limit: u64,
    pub(super) blocks: u64,
    pub(super) inodes: u64,
    pub(super) timers_and_warnings: [u32; 4],
    pub(super) of_realtime: [u64; 5],
}

/// `struct fs_quota_statv`: what of it is read.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QuotaState {
    pub(super) version: i8,
    pub(super) pad: u8,
    pub(super) flags: u16,
    pub(super) in_core: u32,
    pub(super) rest: [u64; 19],
}

/// Whether a filesystem keeps project quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::linux) struct ProjectQuotas {
    /// It counts what each project takes.
    pub(in crate::linux) accounted: bool,
    /// And enforces the limits.
    pub(in crate::linux) enforced: bool,
}

/// One project; bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::linux) struct ProjectQuota {
    pub(in crate::linux) bytes: u64,
    pub(in crate::linux) inodes: u64,
    pub(in crate::linux) byte_limit: u64,
    pub(in crate::linux) inode_limit: u64,
}

/// How a filesystem is named to the kernel.
#[derive(Debug, Clone, Copy)]
pub(in crate::linux) enum OfFilesystem<'a> {
    /// The one that holds this file: quotactl_fd(2) (Linux 5.14; ENOSYS before).
    File(BorrowedFd<'a>),
    /// The one on the block device with this path: quotactl(2).
    Device(&'a CStr),
}

fn quotactl<T>(of: OfFilesystem<'_>, request: u32, id: u32, argument: &mut T) -> nix::Result<()> {
    let (command, argument) = (request << 8 | PROJECT, std::ptr::from_mut(argument));
    let (command, id) = (command as libc::c_ulong, id as libc::c_ulong);
    // SAFETY: `T` has the layout that linux/dqblk_xfs.h gives the argument of this request, as the callers below see to; it is
    // writable and lives through the call, as the descriptor and the path do.
    let result = unsafe {
        match of {
            OfFilesystem::File(file) => {
                libc::syscall(SYS_QUOTACTL_FD, file.as_raw_fd(), command, id, argument)
            }
            OfFilesystem::Device(path) => {
                libc::syscall(libc::SYS_quotactl, command, path.as_ptr(), id, argument)
            }
        }
    };
    Errno::result(result).map(drop)
}

/// Whether this kernel has quotas and no way to name their filesystem by a file: before Linux 5.14.
pub(in crate::linux) fn has_quotas_by_device_only() -> bool {
    let mut state = QuotaState::default();
    // No file has this number and no device this path, so that neither call does anything.
    let nothing: libc::c_int = -1;
    let (command, argument) =
        ((Q_XGETQSTATV << 8 | PROJECT) as libc::c_ulong, std::ptr::from_mut(&mut state));
    // SAFETY: the argument is a writable `struct fs_quota_statv` that lives through the call.
    let by_file = unsafe { libc::syscall(SYS_QUOTACTL_FD, nothing, command, 0 as libc::c_ulong, argument) };
    Errno::result(by_file) == Err(Errno::ENOSYS)
        && quotactl(OfFilesystem::Device(c""), Q_XGETQSTATV, 0, &mut state) != Err(Errno::ENOSYS)
}

/// Whether a filesystem keeps project quotas (Q_XGETQSTATV).
///
/// # Errors
/// ENOSYS where the kernel or the filesystem knows no quotas.
pub(in crate::linux) fn project_quotas(of: OfFilesystem<'_>) -> nix::Result<ProjectQuotas> {
    let mut state = QuotaState { version: VERSION, ..QuotaState::default() };
    quotactl(of, Q_XGETQSTATV, 0, &mut state)?;
    let has = |flag: u16| state.flags & flag != 0;
    Ok(ProjectQuotas { accounted: has(ACCOUNTED), enforced: has(ENFORCED) })
}

/// What a project has and may have (Q_XGETQUOTA); ENOENT on xfs for one that nobody ever had, ESRCH without quotas.
pub(in crate::linux) fn project_quota(of: OfFilesystem<'_>, id: u32) -> nix::Result<ProjectQuota> {
    let mut quota = DiskQuota::default();
    quotactl(of, Q_XGETQUOTA, id, &mut quota)?;
    let bytes = |blocks: u64| blocks.saturating_mul(512);
    Ok(ProjectQuota {
        bytes: bytes(quota.blocks),
        inodes: quota.inodes,
        byte_limit: bytes(quota.block_limit),
        inode_limit: quota.inode_limit,
    })
}

/// Gives a project hard limits, 0 for none, and takes soft ones away (Q_XSETQLIM).
pub(in crate::linux) fn set_project_limits(
    of: OfFilesystem<'_>,
    id: u32,
    bytes: u64,
    inodes: u64,
) -> nix::Result<()> {
    let (version, flags, fields) = (VERSION, PROJECT_QUOTA, LIMITS);
    let (block_limit, inode_limit) = (bytes / 512, inodes);
    let mut quota =
        DiskQuota { version, flags, fields, id, block_limit, inode_limit, ..DiskQuota::default() };
    quotactl(of, Q_XSETQLIM, id, &mut quota)
}

/// The project of a file, and whether what is made in it gets it too (FS_IOC_FSGETXATTR).
pub(in crate::linux) fn project(file: impl AsFd) -> nix::Result<(u32, bool)> {
    let Fsxattr { project, flags, .. } = fsxattr(file)?;
    Ok((project, flags & INHERITED != 0))
}

/// Gives a directory a project, and with it what is made in it (FS_IOC_FSSETXATTR).
///
/// # Errors
/// EINVAL in a user namespace other than the first one; EOPNOTSUPP on ext4 without the feature `project`.
pub(in crate::linux) fn set_project(directory: impl AsFd, id: u32) -> nix::Result<()> {
    let before = fsxattr(directory.as_fd())?;
    let flags = before.flags | INHERITED;
    request::FS_IOC_FSSETXATTR.call(directory, &mut Fsxattr { flags, project: id, ..before })
}

/// The same for a file, in which nothing is made.
pub(in crate::linux) fn set_project_of_file(file: impl AsFd, id: u32) -> nix::Result<()> {
    let before = fsxattr(file.as_fd())?;
    request::FS_IOC_FSSETXATTR.call(file, &mut Fsxattr { project: id, ..before })
}
