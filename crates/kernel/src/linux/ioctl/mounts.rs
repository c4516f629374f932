//! The calls for mounts: mount_setattr(2), listmount(2) and statmount(2).

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use rustix::mount::MountAttrFlags;

/// `struct mount_attr` (linux/mount.h).
#[repr(C)]
pub(super) struct MountAttr {
    pub(super) set: u64,
    pub(super) clear: u64,
    pub(super) propagation: u64,
    pub(super) userns: u64,
}

/// Changes the `MOUNT_ATTR_*` of the mount whose root is open (mount_setattr(2), Linux 5.12; ENOSYS before).
pub(in super::super) fn set_mount_attributes(
    root: impl AsFd,
    set: MountAttrFlags,
    clear: MountAttrFlags,
) -> nix::Result<()> {
    let (set, clear) = (u64::from(set.bits()), u64::from(clear.bits()));
    let attributes = MountAttr { set, clear, propagation: 0, userns: 0 };
    // SAFETY: the path is an empty C string, which AT_EMPTY_PATH makes mean the descriptor; `attributes` has the layout
    // of struct mount_attr, is as long as the last argument says, and lives through the call, which only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            root.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    Errno::result(result).map(drop)
}

/// `struct mnt_id_req` in its first version (linux/mount.h).
#[repr(C)]
struct MountRequest {
    size: u32,
    spare: u32,
    id: u64,
    parameter: u64,
}

/// The same on every architecture (include/uapi/asm-generic/unistd.h); not in every libc.
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;

fn mount_request(id: u64, parameter: u64) -> MountRequest {
    MountRequest { size: size_of::<MountRequest>() as u32, spare: 0, id, parameter }
}

/// For [`list_mounts`]: those of the whole namespace (LSMT_ROOT).
pub(in super::super) const ALL_MOUNTS: u64 = u64::MAX;

/// Fills `ids` with the unique ids of mounts below the one with the id `below`, those that come behind `after`; how many
/// there are (listmount(2), Linux 6.8; ENOSYS before).
pub(in super::super) fn list_mounts(below: u64, after: u64, ids: &mut [u64]) -> nix::Result<usize> {
    let request = mount_request(below, after);
    // SAFETY: `request` has the layout and the size that it says and is only read; the kernel writes no more ids than
    // `ids` is said to have room for. Both live through the call.
    let count = unsafe {
        libc::syscall(SYS_LISTMOUNT, &raw const request, ids.as_mut_ptr(), ids.len(), 0 as libc::c_ulong)
    };
    Errno::result(count).map(|count| usize::try_from(count).unwrap_or(0))
}

/// Fills `buffer` with a `struct statmount` of the mount with this unique id: what of `wanted` the kernel tells
/// (statmount(2), Linux 6.8).
///
/// # Errors
/// EOVERFLOW where it needs more room; ENOENT where the mount has gone; ENOSYS.
pub(in super::super) fn stat_mount(id: u64, wanted: u64, buffer: &mut [u8]) -> nix::Result<()> {
    let request = mount_request(id, wanted);
    // SAFETY: as above; the kernel writes no more bytes than `buffer` is said to have.
    let result = unsafe {
        libc::syscall(
            SYS_STATMOUNT,
            &raw const request,
            buffer.as_mut_ptr(),
            buffer.len(),
            0 as libc::c_ulong,
        )
    };
    Errno::result(result).map(drop)
}
