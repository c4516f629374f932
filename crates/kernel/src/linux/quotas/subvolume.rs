//! Full qgroups of btrfs (btrfs-quota(8)): for each subvolume what it refers to, however many others have the same extents.
//!
//! A volume is a subvolume, and its limit is one of the qgroup that every subvolume has (`0/ID`). A qgroup of level 1 would
//! make each snapshot a reason to count everything anew (fs/btrfs/qgroup.c, btrfs_qgroup_inherit). What is made inside of
//! the subvolume as a subvolume of its own does not count.

use std::ffi::CStr;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::stat::fstat;
use nix::unistd::syncfs;

use super::super::super::{Quota, QuotaLimits, Subvolume};
use super::super::ioctl;
use super::qgroup::{self, Mode};

/// The first id that a subvolume has, and the inode of the top of each (BTRFS_FIRST_FREE_OBJECTID).
const FIRST: u64 = 256;

/// The id of the subvolume whose top a directory is; nothing for a plain one, and for the top of the filesystem.
fn id_of(directory: impl AsFd) -> nix::Result<Option<u64>> {
    if fstat(&directory)?.st_ino != FIRST {
        return Ok(None);
    }
    let id = ioctl::subvolume_of(directory)?;
    Ok((id >= FIRST).then_some(id))
}

pub(super) fn quota(directory: impl AsFd, is_consistent: bool) -> nix::Result<Quota> {
    let Some(id) = id_of(&directory)? else { return Ok(Quota::default()) };
    let quota = qgroup::quota_of(directory, id)?;
    // While it is not known what nobody else has, it is not relied on.
    Ok(Quota { own_bytes: if is_consistent { quota.own_bytes } else { 0 }, ..quota })
}

/// A plain directory has none that could be lifted. The call wants room in the subvolume that it is made on, which one that
/// has reached its limit lacks, so it is made on the directory above.
pub(super) fn set_limits(parent: impl AsFd, directory: impl AsFd, limits: QuotaLimits) -> nix::Result<()> {
    match id_of(&directory)? {
        Some(id) => qgroup::limit(parent, id, limits),
        None if limits == QuotaLimits::default() => Ok(()),
        None => Err(Errno::EOPNOTSUPP),
    }
}

pub(super) fn counts(directory: impl AsFd, inside: impl AsFd) -> nix::Result<bool> {
    Ok(match id_of(directory)? {
        Some(id) => ioctl::subvolume_of(inside)? == id,
        None => false,
    })
}

/// The kernel places what was written before, and commits (fs/btrfs/ioctl.c, btrfs_mksnapshot). A limit of the original
/// comes along (fs/btrfs/qgroup.c, btrfs_qgroup_inherit).
pub(super) fn snapshot(original: impl AsFd, parent: impl AsFd, name: &CStr) -> nix::Result<()> {
    match id_of(&original)? {
        Some(_) => ioctl::create_snapshot(original, parent, name),
        None => Err(Errno::EOPNOTSUPP),
    }
}

pub(super) fn look(directory: impl AsFd, sync: bool) -> nix::Result<Option<Subvolume>> {
    let (Mode::Full { is_consistent: true }, Some(id)) = (qgroup::mode(&directory)?, id_of(&directory)?)
    else {
        return Ok(None);
    };
    if sync {
        syncfs(directory.as_fd())?;
    }
    let has_others = ioctl::has_subvolumes(&directory, id)?;
    let Quota { bytes, own_bytes, .. } = qgroup::quota_of(directory, id)?;
    Ok(Some(Subvolume { bytes, own_bytes, has_others }))
}
