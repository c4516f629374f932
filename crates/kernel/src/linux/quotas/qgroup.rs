//! Simple quotas of btrfs (btrfs-quota(8)): each extent counts for the subvolume that it was written in, and for the qgroups
//! that this is in.
//!
//! A volume has a qgroup of level 1. A subvolume that is made inside of another one joins the qgroups of that
//! (fs/btrfs/qgroup.c, qgroup_auto_inherit), so nothing that a pod makes in its volume escapes. The other kind of qgroups,
//! which follow who shares an extent, is in `subvolume`.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::syncfs;

use super::super::super::{Enforceable, Qgroups, Quota, QuotaLimits};
use super::super::ioctl;
use hostloop_model::QuotaId;

/// BTRFS_QGROUP_*_KEY (linux/btrfs_tree.h)
const STATUS: u32 = 240;
const INFO: u32 = 242;
const LIMIT: u32 = 244;
const RELATION: u32 = 246;

/// BTRFS_QGROUP_STATUS_FLAG_ON, _RESCAN, _INCONSISTENT and _SIMPLE_MODE
const ON: u64 = 1;
const RESCAN: u64 = 1 << 1;
const INCONSISTENT: u64 = 1 << 2;
const SIMPLE: u64 = 1 << 3;

/// BTRFS_QGROUP_LIMIT_MAX_RFER
const MAX_REFERENCED: u64 = 1;

/// Which quotas are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Off,
    Full { is_consistent: bool },
    Simple,
}

/// `1/ID`
fn qgroup(id: QuotaId) -> u64 {
    1 << 48 | u64::from(id.number())
}

pub(super) fn mode(file: impl AsFd) -> nix::Result<Mode> {
    match ioctl::search_quotas(file, 0, STATUS, (0, 0)) {
        Err(Errno::ENOENT) => Ok(Mode::Off),
        items => Ok(items?.first().map_or(Mode::Off, |status| mode_of(status.number(2)))),
    }
}

fn mode_of(flags: u64) -> Mode {
    match flags {
        _ if flags & ON == 0 => Mode::Off,
        _ if flags & SIMPLE != 0 => Mode::Simple,
        _ => Mode::Full { is_consistent: flags & (INCONSISTENT | RESCAN) == 0 },
    }
}

pub(super) fn enforceable(file: &File) -> nix::Result<Enforceable> {
    let why = match mode(file) {
        Ok(Mode::Simple) => return Ok(Enforceable::Bytes(Qgroups::Simple)),
        Ok(Mode::Full { is_consistent: true }) => return Ok(Enforceable::Bytes(Qgroups::Full)),
        Ok(Mode::Full { is_consistent: false }) => return Ok(Enforceable::Bytes(Qgroups::Inconsistent)),
        Ok(Mode::Off) => {
            let how = "btrfs has no quotas; switch them on (btrfs quota enable, or btrfs quota enable --simple since Linux 6.7)";
            return Ok(Enforceable::Off(how.to_owned()));
        }
        Err(Errno::EPERM) => "the driver may not ask for quotas; give it CAP_SYS_ADMIN",
        Err(errno) => return Err(errno),
    };
    Ok(Enforceable::Nothing(why.to_owned()))
}

pub(super) fn switch_on(file: &File, qgroups: Qgroups) -> nix::Result<()> {
    let is_simple = qgroups == Qgroups::Simple;
    if mode(file)? == Mode::Off {
        match ioctl::switch_on_quotas(file, is_simple) {
            // An older kernel does not know the command.
            Err(Errno::EINVAL) => return Err(Errno::EOPNOTSUPP),
            switched => switched?,
        }
    }
    // Where the other ones are on, it is a success that changes nothing (fs/btrfs/qgroup.c, btrfs_quota_enable).
    match mode(file)? {
        Mode::Simple if is_simple => Ok(()),
        Mode::Full { is_consistent: true } if !is_simple => Ok(()),
        Mode::Full { .. } if !is_simple => {
            ioctl::rescan_quotas(file)?;
            ioctl::await_rescan(file)?;
            // What it found is in the tree of quotas when it is committed.
            syncfs(file)
        }
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn recount(file: &File) -> nix::Result<()> {
    match mode(file)? {
        Mode::Full { is_consistent: false } => ioctl::rescan_quotas(file),
        _ => Ok(()),
    }
}

/// ENOENT of the tree of quotas, which a filesystem without them lacks.
fn search(
    file: impl AsFd,
    object: u64,
    kind: u32,
    offsets: (u64, u64),
) -> nix::Result<Vec<ioctl::QuotaItem>> {
    match ioctl::search_quotas(file, object, kind, offsets) {
        Err(Errno::ENOENT) => Err(Errno::EOPNOTSUPP),
        items => items,
    }
}

/// What counts for a qgroup of whatever level, and its limit.
pub(super) fn quota_of(file: impl AsFd, number: u64) -> nix::Result<Quota> {
    let of_it = |kind| Ok(search(&file, 0, kind, (number, number))?.into_iter().next());
    let (info, limit): (Option<_>, Option<_>) = (of_it(INFO)?, of_it(LIMIT)?);
    let limit = limit.filter(|limit: &ioctl::QuotaItem| limit.number(0) & MAX_REFERENCED != 0);
    let counted = |n| info.as_ref().map_or(0, |info: &ioctl::QuotaItem| info.number(n));
    Ok(Quota {
        bytes: counted(1),
        own_bytes: counted(3),
        inodes: 0,
        limits: QuotaLimits { bytes: limit.map_or(0, |limit| limit.number(1)), inodes: 0 },
    })
}

pub(super) fn quota(file: impl AsFd, id: QuotaId) -> nix::Result<Quota> {
    let quota = quota_of(file, qgroup(id))?;
    Ok(Quota { own_bytes: quota.bytes, ..quota })
}

/// Where simple quotas are on.
pub(super) fn set_limits(file: impl AsFd, id: QuotaId, limits: QuotaLimits) -> nix::Result<()> {
    match ioctl::create_qgroup(&file, qgroup(id)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    limit(file, qgroup(id), limits)
}

pub(super) fn limit(file: impl AsFd, number: u64, limits: QuotaLimits) -> nix::Result<()> {
    ioctl::limit_qgroup(file, number, Some(limits.bytes).filter(|bytes| *bytes != 0))
}

pub(super) fn create_subvolume(parent: impl AsFd, name: &CStr, id: QuotaId) -> nix::Result<()> {
    ioctl::create_subvolume(parent, name, qgroup(id))
}

pub(super) fn counts(file: &File, id: QuotaId) -> nix::Result<bool> {
    let (number, subvolume) = (qgroup(id), ioctl::subvolume_of(file)?);
    Ok(!search(file, subvolume, RELATION, (number, number))?.is_empty())
}

/// A subvolume that was removed is a member until the cleaner has been there, and what it had counts so long. It is taken
/// out of the group with that, and what becomes of it is the kernel's business.
pub(super) fn give_back(file: impl AsFd, id: QuotaId) -> nix::Result<()> {
    let number = qgroup(id);
    for tries in 0.. {
        // As many as one search gives, until there are none.
        loop {
            let members = match ioctl::search_quotas(&file, number, RELATION, (0, u64::MAX)) {
                Err(Errno::ENOENT) => return Ok(()), // with the quotas all of it has gone
                members => members?,
            };
            if members.is_empty() {
                break;
            }
            for member in members {
                match ioctl::assign_qgroup(&file, member.offset, number, false) {
                    Ok(()) | Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        match ioctl::remove_qgroup(&file, number) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTCONN) => return Ok(()),
            // What was written last counts when it is committed.
            Err(Errno::EBUSY) if tries == 0 => syncfs(file.as_fd())?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_says_which_quotas_are_on() {
        let full = |is_consistent| Mode::Full { is_consistent };
        for (flags, mode) in [
            (0, Mode::Off),
            (INCONSISTENT, Mode::Off),
            (ON, full(true)),
            (ON | RESCAN, full(false)),
            (ON | INCONSISTENT, full(false)),
            (ON | SIMPLE, Mode::Simple),
        ] {
            assert_eq!(mode_of(flags), mode, "{flags:#x}");
        }
    }
}
