//! What keeps an entry of a tree from being removed although its directory may be written to: the attributes immutable and
//! append-only (chattr(1)), and a btrfs subvolume that was made read-only. A pod that can write to a volume can set them.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::walk::open_below;
use super::{errno, ioctl, kind_bits};

const PROTECTED: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// The inode number of the top of each btrfs subvolume (BTRFS_FIRST_FREE_OBJECTID).
const TOP_OF_SUBVOLUME: u64 = 256;

/// Takes the attributes away from an open file or directory; fine if it has none.
pub(super) fn release(file: impl AsFd) -> nix::Result<()> {
    let flags = ioctl_getflags(&file).map_err(errno)?;
    match flags.intersects(PROTECTED) {
        true => ioctl_setflags(&file, flags.difference(PROTECTED)).map_err(errno),
        false => Ok(()),
    }
}

/// The same for an entry of a directory. It is opened only when it is known to be a regular file or a directory: opening a
/// device has effects. Nothing else can have them.
pub(super) fn release_entry(parent: impl AsFd, name: &CStr) -> nix::Result<()> {
    let reference = open_below(parent, name, OFlag::O_PATH)?;
    if !matches!(kind_bits(&fstat(&reference)?), libc::S_IFREG | libc::S_IFDIR) {
        return Ok(());
    }
    // The file itself, whatever has its name by now (proc_pid_fd(5)).
    let path = format!("/proc/self/fd/{}", reference.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    release(open(path.as_str(), flags, Mode::empty())?)
}

/// Makes the subvolume whose top this directory is writable. Fine if it is none: what follows tells.
pub(super) fn release_subvolume(directory: impl AsFd) -> nix::Result<()> {
    if fstat(&directory)?.st_ino == TOP_OF_SUBVOLUME {
        // On another filesystem the number says nothing, and the call does not exist.
        let _ = ioctl::make_subvolume_writable(directory);
    }
    Ok(())
}
