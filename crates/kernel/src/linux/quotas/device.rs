//! The block device that a filesystem is on, which quotactl(2) takes in place of a file.
#![allow(clippy::disallowed_methods, reason = "sysfs is read for Quotas")]

use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{fstat, major, minor};

use super::super::kind_bits;
use super::super::node::make_node;

/// Where the device lies, or is made to lie, as devtmpfs does: a container's /dev may lack it.
///
/// # Errors
/// ENODEV for a filesystem that is not on a block device of its own; ENOTBLK where something else lies there.
pub(super) fn path(file: &impl AsFd) -> nix::Result<CString> {
    let device = fstat(file.as_fd())?.st_dev;
    let path = Path::new("/dev").join(name(device)?);
    let looked_at = match nix::sys::stat::lstat(&path) {
        Err(Errno::ENOENT) => {
            make_node(&path, device)
                .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
            nix::sys::stat::lstat(&path)
        }
        looked_at => looked_at,
    }?;
    if kind_bits(&looked_at) != libc::S_IFBLK || looked_at.st_rdev != device {
        return Err(Errno::ENOTBLK);
    }
    CString::new(path.into_os_string().into_encoded_bytes()).map_err(|_| Errno::ENODEV)
}

/// DEVNAME of its uevent (Documentation/ABI/stable/sysfs-block; lib/kobject_uevent.c): its path below /dev.
fn name(device: u64) -> nix::Result<PathBuf> {
    let uevent = format!("/sys/dev/block/{}:{}/uevent", major(device), minor(device));
    let text = std::fs::read_to_string(uevent).map_err(|_| Errno::ENODEV)?;
    named(&text).ok_or(Errno::ENODEV)
}

fn named(uevent: &str) -> Option<PathBuf> {
    let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    // The kernel's names have no way up; a text that has is not one of them.
    let is_below = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    (is_below && !name.is_empty()).then(|| PathBuf::from(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_names_a_device_below_dev() {
        assert_eq!(named("MAJOR=7\nMINOR=3\nDEVNAME=loop3\nDEVTYPE=disk\n"), Some("loop3".into()));
        assert_eq!(named("DEVNAME=mapper/a-b"), Some("mapper/a-b".into()));
        for other in ["MAJOR=7\n", "DEVNAME=\n", "DEVNAME=../etc/passwd\n", "DEVNAME=/etc/passwd\n"] {
            assert_eq!(named(other), None, "{other}");
        }
    }

    #[test]
    fn a_filesystem_without_a_device_has_none() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(path(&proc), Err(Errno::ENODEV));
    }
}
