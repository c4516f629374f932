//! Simple quotas of btrfs (btrfs-quota(8)): each extent counts for the subvolume that it was written in, and for the qgroups
//! that this is in.
//!
//! A volume has a qgroup of level 1. A subvolume that is made inside of another one joins the qgroups of that
//! (fs/btrfs/qgroup.c, qgroup_auto_inherit), so nothing that a pod makes in its volume escapes. With the other kind of
//! qgroups, which follow who shares an extent, it would.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::syncfs;

use super::super::super::{Enforceable, Quota, QuotaLimits};
use super::super::ioctl;
use crate::model::QuotaId;

/// BTRFS_QGROUP_*_KEY (linux/btrfs_tree.h)
const STATUS: u32 = 240;
const INFO: u32 = 242;
const LIMIT: u32 = 244;
const RELATION: u32 = 246;

/// BTRFS_QGROUP_STATUS_FLAG_ON and _SIMPLE_MODE
const ON: u64 = 1;
const SIMPLE: u64 = 1 << 3;

/// BTRFS_QGROUP_LIMIT_MAX_RFER
const MAX_REFERENCED: u64 = 1;

/// Which quotas are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    Full,
    Simple,
}

/// `1/ID`
fn qgroup(id: QuotaId) -> u64 {
    1 << 48 | u64::from(id.number())
}

fn mode(file: &File) -> nix::Result<Mode> {
    match ioctl::search_quotas(file, 0, STATUS, (0, 0)) {
        Err(Errno::ENOENT) => Ok(Mode::Off),
        items => Ok(match items?.first().map(|status| status.number(2)) {
            Some(flags) if flags & (ON | SIMPLE) == ON | SIMPLE => Mode::Simple,
            Some(flags) if flags & ON != 0 => Mode::Full,
            _ => Mode::Off,
        }),
    }
}

pub(super) fn enforceable(file: File) -> nix::Result<Enforceable> {
    let why = match mode(&file) {
        Ok(Mode::Simple) => return Ok(Enforceable::Bytes),
        Ok(Mode::Full) => {
            "btrfs has qgroups that a subvolume inside of a volume escapes; switch them off (btrfs quota disable) and simple quotas on (btrfs quota enable --simple, Linux 6.7)"
        }
        Ok(Mode::Off) => {
            "btrfs has no quotas; switch simple quotas on (btrfs quota enable --simple, Linux 6.7)"
        }
        Err(Errno::EPERM) => "the driver may not ask for quotas; give it CAP_SYS_ADMIN",
        Err(errno) => return Err(errno),
    };
    Ok(Enforceable::Nothing(why.to_owned()))
}

pub(super) fn switch_on(file: File) -> nix::Result<()> {
    match ioctl::switch_on_simple_quotas(&file) {
        // An older kernel does not know the command.
        Err(Errno::EINVAL) => return Err(Errno::EOPNOTSUPP),
        switched => switched?,
    }
    // Where the other ones are on, it is a success that changes nothing (fs/btrfs/qgroup.c, btrfs_quota_enable).
    if mode(&file)? == Mode::Simple { Ok(()) } else { Err(Errno::EINVAL) }
}

/// ENOENT of the tree of quotas, which a filesystem without them lacks.
fn search(file: &File, object: u64, kind: u32, offsets: (u64, u64)) -> nix::Result<Vec<ioctl::QuotaItem>> {
    match ioctl::search_quotas(file, object, kind, offsets) {
        Err(Errno::ENOENT) => Err(Errno::EOPNOTSUPP),
        items => items,
    }
}

pub(super) fn quota(file: File, id: QuotaId) -> nix::Result<Quota> {
    let number = qgroup(id);
    let of_it = |kind| Ok(search(&file, 0, kind, (number, number))?.into_iter().next());
    let (info, limit): (Option<_>, Option<_>) = (of_it(INFO)?, of_it(LIMIT)?);
    let limit = limit.filter(|limit: &ioctl::QuotaItem| limit.number(0) & MAX_REFERENCED != 0);
    Ok(Quota {
        bytes: info.map_or(0, |info: ioctl::QuotaItem| info.number(1)),
        inodes: 0,
        limits: QuotaLimits { bytes: limit.map_or(0, |limit| limit.number(1)), inodes: 0 },
    })
}

pub(super) fn set_limits(file: File, id: QuotaId, limits: QuotaLimits) -> nix::Result<()> {
    if mode(&file)? != Mode::Simple {
        return Err(Errno::EOPNOTSUPP);
    }
    match ioctl::create_qgroup(&file, qgroup(id)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    ioctl::limit_qgroup(&file, qgroup(id), Some(limits.bytes).filter(|bytes| *bytes != 0))
}

pub(super) fn create_subvolume(parent: impl AsFd, name: &CStr, id: QuotaId) -> nix::Result<()> {
    ioctl::create_subvolume(parent, name, qgroup(id))
}

pub(super) fn counts(file: File, id: QuotaId) -> nix::Result<bool> {
    let (number, subvolume) = (qgroup(id), ioctl::subvolume_of(&file)?);
    Ok(!search(&file, subvolume, RELATION, (number, number))?.is_empty())
}

/// A subvolume that was removed is a member until the cleaner has been there, and what it had counts so long. It is taken
/// out of the group with that, and what becomes of it is the kernel's business.
pub(super) fn give_back(file: File, id: QuotaId) -> nix::Result<()> {
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
            Err(Errno::EBUSY) if tries == 0 => syncfs(&file)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
