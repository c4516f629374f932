//! Limits that filesystems enforce: project quotas on xfs and ext4, simple quotas on btrfs.
#![allow(clippy::disallowed_types, reason = "implements os::Quotas")]

mod device;
mod project;
mod qgroup;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, fstatfs};

use super::super::{Enforceable, Quota, QuotaLimits, Quotas, errno_error};
use super::open::open_file;
use super::trees::split;
use super::walk::open_below;
use super::{at, ioctl};
use crate::model::QuotaId;

/// `f_type` of statfs(2), which libc lacks with musl.
const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);

/// The filesystems of this mount namespace.
pub(super) struct LinuxQuotas;

/// How a filesystem limits directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Xfs,
    Ext4,
    Btrfs,
}

/// A directory, open, and how its filesystem limits what is in it.
fn open(directory: &Path) -> io::Result<(File, Option<Way>)> {
    let file = open_file(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    let way = match fstatfs(&file).map_err(at("statfs", directory))?.filesystem_type() {
        XFS_SUPER_MAGIC => Some(Way::Xfs),
        EXT4_SUPER_MAGIC => Some(Way::Ext4),
        BTRFS_SUPER_MAGIC => Some(Way::Btrfs),
        _ => None,
    };
    Ok((file, way))
}

/// The same where there has to be a way.
fn open_limited(doing: &str, directory: &Path) -> io::Result<(File, Way)> {
    let (file, way) = open(directory)?;
    let none = || errno_error(Errno::EOPNOTSUPP, format_args!("{doing} {}", directory.display()));
    Ok((file, way.ok_or_else(none)?))
}

impl Quotas for LinuxQuotas {
    fn enforceable(&self, directory: &Path) -> io::Result<Enforceable> {
        let (file, way) = open(directory)?;
        match way {
            Some(Way::Xfs) => project::enforceable(file, project::XFS),
            Some(Way::Ext4) => project::enforceable(file, project::EXT4),
            Some(Way::Btrfs) => qgroup::enforceable(file),
            None => Ok(Enforceable::Nothing(
                "only xfs, ext4 and btrfs can limit the size of a directory; use a pool on one of them"
                    .to_owned(),
            )),
        }
        .map_err(at("ask for the quotas of", directory))
    }

    fn switch_on(&self, directory: &Path) -> io::Result<()> {
        let doing = "switch simple quotas on for";
        match open_limited(doing, directory)? {
            (file, Way::Btrfs) => qgroup::switch_on(file).map_err(at(doing, directory)),
            _ => Err(errno_error(Errno::EOPNOTSUPP, format_args!("{doing} {}", directory.display()))),
        }
    }

    fn quota(&self, directory: &Path, id: QuotaId) -> io::Result<Quota> {
        let doing = "ask for a quota of";
        match open_limited(doing, directory)? {
            (file, Way::Btrfs) => qgroup::quota(file, id),
            (file, _) => project::quota(file, id),
        }
        .map_err(at(doing, directory))
    }

    fn set_limits(&self, directory: &Path, id: QuotaId, limits: QuotaLimits) -> io::Result<()> {
        let doing = "set a quota of";
        match open_limited(doing, directory)? {
            (file, Way::Btrfs) => qgroup::set_limits(file, id, limits),
            (file, _) => project::set_limits(file, id, limits),
        }
        .map_err(at(doing, directory))
    }

    fn create_directory(&self, path: &Path, mode: u32, id: QuotaId) -> io::Result<()> {
        let making = || at("make with a quota", path);
        let (parent, name) = split(path).map_err(making())?;
        let mode = Mode::from_bits_truncate(mode);
        let open_made = || open_below(&parent, &name, OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        let magic = fstatfs(parent.as_fd()).map_err(making())?.filesystem_type();
        let made: nix::Result<OwnedFd> = match magic {
            BTRFS_SUPER_MAGIC => qgroup::create_subvolume(&parent, &name, id).and_then(|()| open_made()),
            _ => mkdirat(&parent, name.as_c_str(), Mode::S_IRWXU).and_then(|()| {
                let made = open_made()?;
                ioctl::set_project(&made, id.number()).map(|()| made)
            }),
        };
        made.and_then(|made| fchmod(&made, mode)).map_err(making())
    }

    fn remove_at_once(&self, path: &Path) -> io::Result<bool> {
        let removing = || at("remove at once", path);
        let (parent, name) = match split(path) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(true),
            found => found.map_err(removing())?,
        };
        if fstatfs(parent.as_fd()).map_err(removing())?.filesystem_type() != BTRFS_SUPER_MAGIC {
            return Ok(false);
        }
        match ioctl::remove_subvolume(&parent, &name) {
            Ok(()) | Err(Errno::ENOENT) => Ok(true),
            // Others are in it, it is a plain directory, or something is mounted on it.
            Err(Errno::ENOTEMPTY | Errno::EINVAL | Errno::ENOTDIR | Errno::EBUSY) => Ok(false),
            Err(errno) => Err(removing()(errno)),
        }
    }

    fn counts(&self, path: &Path, id: QuotaId) -> io::Result<bool> {
        let doing = "ask for the project of";
        match open_limited(doing, path)? {
            (file, Way::Btrfs) => qgroup::counts(file, id),
            (file, _) => ioctl::project(file).map(|found| found == (id.number(), true)),
        }
        .map_err(at(doing, path))
    }

    fn give_back(&self, directory: &Path, id: QuotaId) -> io::Result<()> {
        let doing = "give a quota back to";
        match open_limited(doing, directory)? {
            (file, Way::Btrfs) => qgroup::give_back(file, id),
            (file, _) => project::set_limits(file, id, QuotaLimits::default()),
        }
        .map_err(at(doing, directory))
    }
}
