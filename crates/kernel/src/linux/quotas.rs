//! Limits that filesystems enforce: project quotas on xfs and ext4, simple quotas or full qgroups on btrfs.
#![allow(clippy::disallowed_types, reason = "implements Quotas")]

mod adopt;
mod device;
mod project;
mod qgroup;
mod subvolume;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, fstatfs};
use nix::unistd::syncfs;

use super::super::{Enforceable, Qgroups, Quota, QuotaLimits, Quotas, Subvolume, errno_error};
use super::open::open_file;
use super::trees::split;
use super::walk::open_below;
use super::{at, ioctl};
use hostloop_model::QuotaId;

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
    let way = way(&file).map_err(at("statfs", directory))?;
    Ok((file, way))
}

fn way(file: impl AsFd) -> nix::Result<Option<Way>> {
    Ok(match fstatfs(file)?.filesystem_type() {
        XFS_SUPER_MAGIC => Some(Way::Xfs),
        EXT4_SUPER_MAGIC => Some(Way::Ext4),
        BTRFS_SUPER_MAGIC => Some(Way::Btrfs),
        _ => None,
    })
}

/// The directory above one with a number, and its name in there.
struct Place {
    parent: Dir,
    name: CString,
    way: Option<Way>,
}

impl Place {
    /// The directory itself is not looked at.
    fn of(directory: &Path) -> nix::Result<Self> {
        let (parent, name) = split(directory)?;
        let way = way(&parent)?;
        Ok(Place { parent, name, way })
    }

    /// The same where there has to be a way.
    fn limited(directory: &Path) -> nix::Result<(Self, Way)> {
        let place = Self::of(directory)?;
        let way = place.way.ok_or(Errno::EOPNOTSUPP)?;
        Ok((place, way))
    }

    fn open(&self) -> nix::Result<OwnedFd> {
        open_below(&self.parent, &self.name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
    }

    /// The directory, if it is there.
    fn open_if_there(&self) -> nix::Result<Option<OwnedFd>> {
        match self.open() {
            Err(Errno::ENOENT) => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// With project quotas, after the number has its limits.
    fn create_with_project(&self, id: QuotaId) -> nix::Result<OwnedFd> {
        mkdirat(&self.parent, self.name.as_c_str(), Mode::S_IRWXU)?;
        let made = self.open()?;
        ioctl::set_project(&made, id.number()).map(|()| made)
    }

    /// As a subvolume, which has its limit from the start.
    fn create_with_qgroup(&self, limits: QuotaLimits) -> nix::Result<OwnedFd> {
        ioctl::create_limited_subvolume(&self.parent, &self.name, limits.bytes)?;
        let made = self.open()?;
        // It is in force and is committed with the subvolume, and cannot be read before (fs/btrfs/qgroup.c, qgroup_dirty).
        subvolume::set_limits(&self.parent, &made, limits).map(|()| made)
    }

    fn create(&self, id: QuotaId, limits: QuotaLimits) -> nix::Result<OwnedFd> {
        match self.way {
            Some(Way::Btrfs) => match qgroup::mode(&self.parent)? {
                qgroup::Mode::Off => Err(Errno::EOPNOTSUPP),
                qgroup::Mode::Full { .. } => self.create_with_qgroup(limits),
                qgroup::Mode::Simple => {
                    qgroup::set_limits(&self.parent, id, limits)?;
                    qgroup::create_subvolume(&self.parent, &self.name, id)?;
                    self.open()
                }
            },
            Some(Way::Xfs | Way::Ext4) => {
                project::set_limits(&self.parent, id, limits)?;
                self.create_with_project(id)
            }
            None => Err(Errno::EOPNOTSUPP),
        }
    }
}

impl Quotas for LinuxQuotas {
    fn enforceable(&self, directory: &Path) -> io::Result<Enforceable> {
        let (file, way) = open(directory)?;
        match way {
            Some(Way::Xfs) => project::enforceable(file, project::XFS),
            Some(Way::Ext4) => project::enforceable(file, project::EXT4),
            Some(Way::Btrfs) => qgroup::enforceable(&file),
            None => Ok(Enforceable::Nothing(
                "only xfs, ext4 and btrfs can limit the size of a directory; use a pool on one of them"
                    .to_owned(),
            )),
        }
        .map_err(at("ask for the quotas of", directory))
    }

    fn switch_on(&self, directory: &Path, qgroups: Qgroups) -> io::Result<()> {
        let doing = "switch quotas on for";
        match open(directory)? {
            (file, Some(Way::Btrfs)) => qgroup::switch_on(&file, qgroups).map_err(at(doing, directory)),
            _ => Err(errno_error(Errno::EOPNOTSUPP, format_args!("{doing} {}", directory.display()))),
        }
    }

    fn recount(&self, directory: &Path) -> io::Result<()> {
        match open(directory)? {
            (file, Some(Way::Btrfs)) => qgroup::recount(&file).map_err(at("count anew for", directory)),
            _ => Ok(()),
        }
    }

    fn quota(&self, directory: &Path, id: QuotaId) -> io::Result<Quota> {
        let ask = || match Place::limited(directory)? {
            (place, Way::Btrfs) => match qgroup::mode(&place.parent)? {
                qgroup::Mode::Full { is_consistent } => match place.open_if_there()? {
                    Some(there) => subvolume::quota(&there, is_consistent),
                    None => Ok(Quota::default()),
                },
                _ => qgroup::quota(&place.parent, id),
            },
            (place, _) => project::quota(&place.parent, id),
        };
        ask().map_err(at("ask for the quota of", directory))
    }

    fn count_written(&self, directory: &Path) -> io::Result<()> {
        let count = || match Place::of(directory)? {
            Place { way: Some(Way::Btrfs), parent, .. } => syncfs(parent),
            _ => Ok(()),
        };
        count().map_err(at("sync the filesystem of", directory))
    }

    fn set_limits(&self, directory: &Path, id: QuotaId, limits: QuotaLimits) -> io::Result<()> {
        let set = || match Place::limited(directory)? {
            (place, Way::Btrfs) => match qgroup::mode(&place.parent)? {
                qgroup::Mode::Full { .. } => match place.open_if_there()? {
                    None if limits == QuotaLimits::default() => Ok(()),
                    None => Err(Errno::ENOENT),
                    Some(there) => subvolume::set_limits(&place.parent, &there, limits),
                },
                qgroup::Mode::Simple => qgroup::set_limits(&place.parent, id, limits),
                qgroup::Mode::Off => Err(Errno::EOPNOTSUPP),
            },
            (place, _) => project::set_limits(&place.parent, id, limits),
        };
        set().map_err(at("set the quota of", directory))
    }

    fn create_directory(
        &self,
        directory: &Path,
        mode: u32,
        id: QuotaId,
        limits: QuotaLimits,
    ) -> io::Result<()> {
        let make = || {
            let made = Place::of(directory)?.create(id, limits)?;
            fchmod(&made, Mode::from_bits_truncate(mode))
        };
        make().map_err(at("make with a quota", directory))
    }

    fn adopt(&self, directory: &Path, id: QuotaId) -> io::Result<()> {
        let adopt = || match Place::limited(directory)? {
            (_, Way::Btrfs) => Err(Errno::EOPNOTSUPP),
            (place, _) => adopt::adopt(&place.parent, &place.name, id),
        };
        adopt().map_err(at("have it count under a number:", directory))
    }

    fn remove_at_once(&self, directory: &Path) -> io::Result<bool> {
        let removing = || at("remove at once", directory);
        let place = match Place::of(directory) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(true),
            found => found.map_err(removing())?,
        };
        if place.way != Some(Way::Btrfs) {
            return Ok(false);
        }
        match ioctl::remove_subvolume(&place.parent, &place.name) {
            Ok(()) | Err(Errno::ENOENT) => Ok(true),
            // Others are in it, it is a plain directory, or something is mounted on it.
            Err(Errno::ENOTEMPTY | Errno::EINVAL | Errno::ENOTDIR | Errno::EBUSY) => Ok(false),
            Err(errno) => Err(removing()(errno)),
        }
    }

    fn counts(&self, directory: &Path, inside: &Path, id: QuotaId) -> io::Result<bool> {
        let (file, _) = open(inside)?;
        let ask = || match Place::limited(directory)? {
            (place, Way::Btrfs) => match qgroup::mode(&place.parent)? {
                qgroup::Mode::Full { .. } => subvolume::counts(&place.open()?, &file),
                _ => qgroup::counts(&file, id),
            },
            _ => ioctl::project(&file).map(|found| found == (id.number(), true)),
        };
        ask().map_err(at("ask for the project of", inside))
    }

    fn subvolume(&self, directory: &Path, sync: bool) -> io::Result<Option<Subvolume>> {
        let look = || {
            let place = Place::of(directory)?;
            match (place.way, place.open_if_there()?) {
                (Some(Way::Btrfs), Some(there)) => subvolume::look(&there, sync),
                _ => Ok(None),
            }
        };
        look().map_err(at("look at the subvolume", directory))
    }

    fn snapshot(&self, original: &Path, directory: &Path, limits: QuotaLimits) -> io::Result<()> {
        let copy = || {
            let (from, to) = (Place::of(original)?, Place::of(directory)?);
            if (from.way, to.way) != (Some(Way::Btrfs), Some(Way::Btrfs)) {
                return Err(Errno::EOPNOTSUPP);
            }
            subvolume::snapshot(from.open()?, &to.parent, &to.name)?;
            // It has those of its original until here.
            subvolume::set_limits(&to.parent, to.open()?, limits)
        };
        copy().map_err(at("make a snapshot at", directory))
    }

    fn give_back(&self, directory: &Path, id: QuotaId) -> io::Result<()> {
        let give = || match Place::limited(directory)? {
            (place, Way::Btrfs) => match qgroup::mode(&place.parent)? {
                // That of a subvolume goes with it.
                qgroup::Mode::Full { .. } => Ok(()),
                _ => qgroup::give_back(&place.parent, id),
            },
            (place, _) => project::set_limits(&place.parent, id, QuotaLimits::default()),
        };
        give().map_err(at("give back the quota of", directory))
    }
}
