//! The nodes /dev/loopN. A container's /dev is often a tmpfs with the devices that existed when the container started, so
//! nodes may be missing, and are made.
#![allow(clippy::disallowed_methods, reason = "sysfs and /dev are read for LoopDevices")]

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat, major, mknod};

use super::super::errno_error;
use super::{at, kind_bits, mountinfo};

pub(super) struct Node {
    pub(super) fd: OwnedFd,
    /// `st_rdev`
    pub(super) rdev: u64,
}

/// Where sysfs describes loop device `number`.
pub(super) fn sysfs(number: u32, file: &str) -> PathBuf {
    PathBuf::from(format!("/sys/block/loop{number}/{file}"))
}

/// The device number that sysfs shows; with the module's parameter `max_part` the minor is not N.
fn device_number(number: u32) -> io::Result<u64> {
    let path = sysfs(number, "dev");
    let text = match std::fs::read(&path) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Err(at("open", &path)(Errno::ENXIO)),
        result => result.map_err(at("read", &path))?,
    };
    mountinfo::parse_device(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{} is malformed", path.display())))
}

/// Opens /dev/loop`number`, made first if it is missing.
///
/// # Errors
/// ENXIO where the kernel has no such device; ENOTBLK where something else lies at the path.
pub(super) fn open_node(number: u32, access: OFlag) -> io::Result<Node> {
    let rdev = device_number(number)?;
    let path = PathBuf::from(format!("/dev/loop{number}"));
    let flags = access | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let fd = match open(&path, flags, Mode::empty()) {
        Err(Errno::ENOENT) => {
            make_node(&path, rdev)?;
            open(&path, flags, Mode::empty())
        }
        result => result,
    };
    let fd = fd.map_err(at("open", &path))?;
    let stat = fstat(&fd).map_err(at("stat", &path))?;
    if kind_bits(&stat) != libc::S_IFBLK || stat.st_rdev != rdev {
        let context = format!("open {}: it is not loop device {number}", path.display());
        return Err(errno_error(Errno::ENOTBLK, context));
    }
    Ok(Node { fd, rdev })
}

/// Opens /dev/loop`number` for reading if a loop device lies there, perhaps one with another number: the caller asks
/// the device itself, which is cheaper than asking sysfs.
pub(super) fn open_some_node(number: u32) -> Option<Node> {
    /// Documentation/admin-guide/devices.txt
    const LOOP_MAJOR: u64 = 7;
    let path = format!("/dev/loop{number}");
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let fd = open(path.as_str(), flags, Mode::empty()).ok()?;
    let stat = fstat(&fd).ok()?;
    let is_loop = kind_bits(&stat) == libc::S_IFBLK && major(stat.st_rdev) == LOOP_MAJOR;
    is_loop.then_some(Node { fd, rdev: stat.st_rdev })
}

pub(super) fn make_node(path: &Path, rdev: u64) -> io::Result<()> {
    match mknod(path, SFlag::S_IFBLK, Mode::from_bits_truncate(0o660), rdev) {
        // Somebody else, such as devtmpfs, was faster; what lies there is checked after opening.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(at("mknod", path)(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_errno;

    #[test]
    fn a_missing_device_has_no_node() {
        for found in [open_node(1_000_000, OFlag::O_RDONLY).map(drop), device_number(1_000_000).map(drop)] {
            assert!(is_errno(&found.expect_err("no device"), Errno::ENXIO));
        }
    }
}
