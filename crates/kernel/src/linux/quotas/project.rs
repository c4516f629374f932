//! Project quotas, see xfs_quota(8) and tune2fs(8).

use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;

use super::super::super::{Enforceable, Quota, QuotaLimits};
use super::super::ioctl::{self, OfFilesystem, ProjectQuota, ProjectQuotas};
use super::device;
use hostloop_model::QuotaId;

/// What is to be done where a filesystem does not enforce them.
pub(super) struct Advice {
    name: &'static str,
    /// Where it keeps no project quotas.
    nothing: &'static str,
    /// Where it counts and does not enforce.
    not_enforced: &'static str,
}

pub(super) const XFS: Advice = Advice {
    name: "xfs",
    nothing: "unmount it and mount it with the option prjquota, which a remount does not change (as the root filesystem: rootflags=prjquota on the kernel's command line)",
    not_enforced: "it is mounted with pqnoenforce; unmount it and mount it with prjquota",
};

pub(super) const EXT4: Advice = Advice {
    name: "ext4",
    nothing: "unmount it, run: tune2fs -O project,quota -Q prjquota DEVICE; mount it with the option prjquota",
    not_enforced: "mount it with the option prjquota (mount -o remount,prjquota)",
};

/// Asks by file, and by block device where the kernel is older than that.
fn ask<T>(file: &impl AsFd, request: impl Fn(OfFilesystem<'_>) -> nix::Result<T>) -> nix::Result<T> {
    match request(OfFilesystem::File(file.as_fd())) {
        // This is also the answer of a filesystem that knows no quotas; then no node is made for nothing.
        Err(Errno::ENOSYS) if ioctl::has_quotas_by_device_only() => {
            device::path(file).and_then(|path| request(OfFilesystem::Device(&path)))
        }
        asked => asked,
    }
}

pub(super) fn enforceable(file: File, advice: Advice) -> nix::Result<Enforceable> {
    let Advice { name, nothing, not_enforced } = advice;
    let why = match ask(&file, ioctl::project_quotas) {
        Ok(ProjectQuotas { enforced: true, .. }) => return Ok(Enforceable::BytesAndInodes),
        Ok(ProjectQuotas { accounted: true, .. }) => {
            format!("{name} counts project quotas and does not enforce them; {not_enforced}")
        }
        Ok(_) | Err(Errno::ESRCH | Errno::EINVAL) => format!("{name} has no project quotas; {nothing}"),
        Err(Errno::ENOSYS) => {
            format!(
                "this kernel has no quotas of {name} (CONFIG_XFS_QUOTA, CONFIG_QUOTA and CONFIG_QFMT_V2), or they are off; {nothing}"
            )
        }
        Err(Errno::ENODEV | Errno::ENOTBLK) => {
            format!(
                "before Linux 5.14, {name} is asked for its quotas by its block device, which the driver does not find below /dev; give the driver's container the /dev of the node"
            )
        }
        Err(Errno::EPERM) => "the driver may not ask for quotas; give it CAP_SYS_ADMIN".to_owned(),
        Err(errno) => return Err(errno),
    };
    Ok(Enforceable::Nothing(why))
}

pub(super) fn quota(file: impl AsFd, id: QuotaId) -> nix::Result<Quota> {
    match ask(&file, |of| ioctl::project_quota(of, id.number())) {
        Ok(ProjectQuota { bytes, inodes, byte_limit, inode_limit }) => Ok(Quota {
            bytes,
            own_bytes: bytes,
            inodes,
            limits: QuotaLimits { bytes: byte_limit, inodes: inode_limit },
        }),
        Err(Errno::ENOENT) => Ok(Quota::default()),
        Err(errno) => Err(off(errno)),
    }
}

pub(super) fn set_limits(file: impl AsFd, id: QuotaId, limits: QuotaLimits) -> nix::Result<()> {
    let set = |of: OfFilesystem<'_>| ioctl::set_project_limits(of, id.number(), limits.bytes, limits.inodes);
    match ask(&file, set) {
        // Nothing is known of it that could be taken away.
        Err(Errno::ENOENT) if limits == QuotaLimits::default() => Ok(()),
        set => set.map_err(off),
    }
}

/// The errors of a filesystem whose quotas are off.
fn off(errno: Errno) -> Errno {
    match errno {
        Errno::ESRCH | Errno::ENOSYS => Errno::EOPNOTSUPP,
        other => other,
    }
}
