//! A sysfs of this process's own, for use when that of its container is read-only.
//!
//! sysfs has one superblock for each network namespace, and the flags of its first mount apply to all its mounts: a
//! container runtime mounts it read-only for the first container of a pod, and kind remounts that of its nodes. So
//! neither a privileged container nor a bind mount of the node's /sys can write there. A new network namespace has a new
//! superblock. It is mounted nowhere, and ends with the thread that made it (fsopen(2), fsmount(2),
//! network_namespaces(7)).
#![allow(clippy::disallowed_types, reason = "sysfs is written for LoopDevices")]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;

use nix::fcntl::{OFlag, openat};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Writes a value to a file of sysfs, named by its path below /sys.
///
/// # Errors
/// EPERM where the process has no CAP_SYS_ADMIN, ENOSYS before Linux 5.2, EAGAIN where no thread can be started; those
/// of opening and writing the file.
pub(super) fn write(below_sys: &str, value: &str) -> io::Result<()> {
    std::thread::scope(|scope| {
        // The namespace is the thread's, and nothing else may ever run in it.
        let thread = std::thread::Builder::new().name("sysfs".to_owned());
        let writes = thread.spawn_scoped(scope, || write_in_new_namespace(below_sys, value))?;
        writes.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes to sysfs has ended")))
    })
}

fn write_in_new_namespace(below_sys: &str, value: &str) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let harmless = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let sysfs = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, harmless)?;
    let file = openat(&sysfs, below_sys, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    File::from(file).write_all(value.as_bytes())
}
