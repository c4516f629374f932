//! Project quotas, see xfs_quota(8) and tune2fs(8).

use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;

use super::super::super::{Enforceable, Quota, QuotaLimits};
use super::super::ioctl::{self, ProjectQuota, ProjectQuotas};
use crate::model::QuotaId;

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

pub(super) fn enforceable(file: File, advice: Advice) -> nix::Result<Enforceable> {
    let Advice { name, nothing, not_enforced } = advice;
    let why = match ioctl::project_quotas(&file) {
        Ok(ProjectQuotas { enforced: true, .. }) => return Ok(Enforceable::BytesAndInodes),
        Ok(ProjectQuotas { accounted: true, .. }) => {
            format!("{name} counts project quotas and does not enforce them; {not_enforced}")
        }
        Ok(_) | Err(Errno::ESRCH | Errno::EINVAL) => format!("{name} has no project quotas; {nothing}"),
        Err(Errno::ENOSYS) => {
            format!(
                "this kernel has no quotas of {name} (CONFIG_XFS_QUOTA, CONFIG_QUOTA and CONFIG_QFMT_V2; quotactl_fd since Linux 5.14), or they are off; {nothing}"
            )
        }
        Err(Errno::EPERM) => "the driver may not ask for quotas; give it CAP_SYS_ADMIN".to_owned(),
        Err(errno) => return Err(errno),
    };
    Ok(Enforceable::Nothing(why))
}

pub(super) fn quota(file: impl AsFd, id: QuotaId) -> nix::Result<Quota> {
    match ioctl::project_quota(&file, id.number()) {
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
    match ioctl::set_project_limits(&file, id.number(), limits.bytes, limits.inodes) {
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
