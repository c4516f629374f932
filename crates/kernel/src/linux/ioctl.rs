//! The system calls that no crate wraps: the loop driver's (loop(4), linux/loop.h), BLKGETSIZE64, FIEMAP, FIFREEZE and
//! FITHAW, FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR, BTRFS_IOC_SPACE_INFO, BTRFS_IOC_FS_INFO, sync_file_range(2) and leases; those of mounts and of
//! quotas are in files of their own. The only module with `unsafe`.
#![allow(unsafe_code)]

mod mounts;
mod project_quotas;
mod qgroups;

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::super::FileId;

pub(super) use mounts::{ALL_MOUNTS, list_mounts, set_mount_attributes, stat_mount};
pub(super) use project_quotas::{
    OfFilesystem, ProjectQuota, ProjectQuotas, has_quotas_by_device_only, project, project_quota,
    project_quotas, set_project, set_project_limits, set_project_of_file,
};
pub(super) use qgroups::{
    QuotaItem, assign_qgroup, await_rescan, create_limited_subvolume, create_qgroup, create_snapshot,
    create_subvolume, has_subvolumes, limit_qgroup, make_subvolume_writable, remove_qgroup, remove_subvolume,
    rescan_quotas, search_quotas, subvolume_of, switch_on_quotas,
};

/// `struct fiemap` without the extents that follow it.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
}

/// `struct loop_info64`; its texts as words, since only short arrays have a default.
#[repr(C)]
#[derive(Default)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u64; 8],
    crypt_name: [u64; 8],
    encrypt_key: [u64; 4],
    init: [u64; 2],
}

/// `struct loop_config`
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

/// What LOOP_GET_STATUS64 tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoopStatus {
    /// N of /dev/loopN.
    pub(super) number: u32,
    pub(super) backing: FileId,
    /// `st_rdev` of the backing file, 0 unless that is a device.
    pub(super) of_device: u64,
    pub(super) read_only: bool,
    pub(super) autoclear: bool,
    pub(super) direct_io: bool,
}

/// `struct fsxattr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Fsxattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    pad: [u8; 8],
}

/// FS_XFLAG_COWEXTSIZE
const HAS_COW_EXTENT_SIZE: u32 = 0x1_0000;

/// `struct btrfs_ioctl_space_args` with room for as many `struct btrfs_ioctl_space_info` as a filesystem can have:
/// three kinds and a reserve, in each profile.
#[repr(C)]
struct SpaceArgs {
    slots: u64,
    total: u64,
    spaces: [SpaceInfo; SPACES],
}

const SPACES: usize = 64;

/// `struct btrfs_ioctl_fs_info_args`: the fields that are used, and the rest as words.
#[repr(C)]
#[derive(Default)]
struct FsInfo {
    max_id: u64,
    devices: u64,
    fsid: [u8; 16],
    rest: [[u64; 31]; 4],
}

/// `struct btrfs_ioctl_space_info`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SpaceInfo {
    /// `BTRFS_BLOCK_GROUP_*`: kind and profile.
    pub(super) flags: u64,
    /// Bytes of the block groups, one copy.
    pub(super) total: u64,
    /// Bytes in use.
    pub(super) used: u64,
}

/// The ioctls, by the names of linux/loop.h, linux/fs.h and linux/btrfs.h: the one place that says what the kernel makes of
/// an argument.
mod request {
    use std::marker::PhantomData;
    use std::os::fd::{AsFd, AsRawFd};

    use nix::errno::Errno;
    use nix::sys::ioctl::ioctl_num_type as Request;

    use super::{Fiemap, FsInfo, Fsxattr, LoopConfig, LoopInfo64, SpaceArgs};

    const INT: usize = size_of::<libc::c_int>();

    /// An ioctl whose argument is a number, or is not looked at.
    #[derive(Clone, Copy)]
    pub(super) struct ByNumber(Request);

    /// An ioctl whose argument is the address of a `T`.
    pub(super) struct ByAddress<T>(Request, PhantomData<T>);

    impl<T> ByAddress<T> {
        /// One whose argument has the layout of `T`, and no address in it that the kernel writes to.
        pub(super) const fn new(number: Request) -> Self {
            ByAddress(number, PhantomData)
        }
    }

    // Numbered by hand, without direction and size.
    pub(super) const LOOP_CLR_FD: ByNumber = ByNumber(0x4C01);
    pub(super) const LOOP_SET_STATUS64: ByAddress<LoopInfo64> = ByAddress(0x4C04, PhantomData);
    pub(super) const LOOP_GET_STATUS64: ByAddress<LoopInfo64> = ByAddress(0x4C05, PhantomData);
    pub(super) const LOOP_SET_CAPACITY: ByNumber = ByNumber(0x4C07);
    pub(super) const LOOP_SET_DIRECT_IO: ByNumber = ByNumber(0x4C08);
    pub(super) const LOOP_SET_BLOCK_SIZE: ByNumber = ByNumber(0x4C09);
    pub(super) const LOOP_CONFIGURE: ByAddress<LoopConfig> = ByAddress(0x4C0A, PhantomData);
    pub(super) const LOOP_CTL_ADD: ByNumber = ByNumber(0x4C80);
    pub(super) const LOOP_CTL_REMOVE: ByNumber = ByNumber(0x4C81);
    pub(super) const LOOP_CTL_GET_FREE: ByNumber = ByNumber(0x4C82);
    /// Counted without the extents that follow the structure.
    pub(super) const FS_IOC_FIEMAP: Request = nix::request_code_readwrite!(b'f', 11, size_of::<Fiemap>());
    pub(super) const FIFREEZE: ByNumber = ByNumber(nix::request_code_readwrite!(b'X', 119, INT));
    pub(super) const FITHAW: ByNumber = ByNumber(nix::request_code_readwrite!(b'X', 120, INT));
    pub(super) const FS_IOC_FSGETXATTR: ByAddress<Fsxattr> =
        ByAddress(nix::request_code_read!(b'X', 31, size_of::<Fsxattr>()), PhantomData);
    pub(super) const FS_IOC_FSSETXATTR: ByAddress<Fsxattr> =
        ByAddress(nix::request_code_write!(b'X', 32, size_of::<Fsxattr>()), PhantomData);
    /// Counted without the spaces. The kernel writes no more of them than there are slots (fs/btrfs/ioctl.c,
    /// btrfs_ioctl_space_info).
    pub(super) const BTRFS_IOC_SPACE_INFO: ByAddress<SpaceArgs> =
        ByAddress(nix::request_code_readwrite!(0x94, 20, 2 * size_of::<u64>()), PhantomData);
    pub(super) const BTRFS_IOC_FS_INFO: ByAddress<FsInfo> =
        ByAddress(nix::request_code_read!(0x94, 31, size_of::<FsInfo>()), PhantomData);
    /// Counted with a size_t; the kernel writes 64 bits everywhere (block/ioctl.c, put_u64).
    pub(super) const BLKGETSIZE64: ByAddress<u64> =
        ByAddress(nix::request_code_read!(0x12, 114, size_of::<libc::size_t>()), PhantomData);

    impl ByNumber {
        /// One whose argument is a number, or is not looked at.
        pub(super) const fn new(number: Request) -> Self {
            ByNumber(number)
        }

        #[cfg(test)]
        pub(super) fn number(self) -> Request {
            self.0
        }

        /// The ioctl; what it answers.
        pub(super) fn call(self, file: impl AsFd, argument: i32) -> nix::Result<i32> {
            // SAFETY: none of the requests that are made so takes this for an address, and the descriptor is open for the length of
            // the call.
            Errno::result(unsafe {
                libc::ioctl(file.as_fd().as_raw_fd(), self.0, libc::c_long::from(argument))
            })
        }
    }

    impl<T> ByAddress<T> {
        #[cfg(test)]
        pub(super) fn number(&self) -> Request {
            self.0
        }

        /// The ioctl, which reads or fills `argument`.
        pub(super) fn call(&self, file: impl AsFd, argument: &mut T) -> nix::Result<()> {
            // SAFETY: `T` has the layout that the kernel's headers give the argument of this request, is writable and
            // lives through the call; the descriptor is open for its length.
            Errno::result(unsafe {
                libc::ioctl(file.as_fd().as_raw_fd(), self.0, std::ptr::from_mut(argument))
            })
            .map(drop)
        }
    }
}

/// The number of a device that is free, made if need be (LOOP_CTL_GET_FREE). It may be taken a moment later.
pub(super) fn free_device(control: impl AsFd) -> nix::Result<u32> {
    u32::try_from(request::LOOP_CTL_GET_FREE.call(control, 0)?).map_err(|_| Errno::ENODEV)
}

/// Makes a device with this number, or with one that no other has (LOOP_CTL_ADD); gives the number. EEXIST where the
/// number is taken.
pub(super) fn add_device(control: impl AsFd, number: Option<u32>) -> nix::Result<u32> {
    let number = match number {
        Some(number) => i32::try_from(number).map_err(|_| Errno::EINVAL)?,
        None => -1, // lets the kernel choose
    };
    u32::try_from(request::LOOP_CTL_ADD.call(control, number)?).map_err(|_| Errno::ENODEV)
}

/// Removes a device that is attached to nothing and not open; EBUSY otherwise (LOOP_CTL_REMOVE).
pub(super) fn remove_device(control: impl AsFd, number: u32) -> nix::Result<()> {
    let number = i32::try_from(number).map_err(|_| Errno::EINVAL)?;
    request::LOOP_CTL_REMOVE.call(control, number).map(drop)
}

/// Attaches the file to the device, all settings at once (LOOP_CONFIGURE, Linux 5.8).
pub(super) fn configure(
    device: impl AsFd,
    image: impl AsFd,
    block_size: u32,
    read_only: bool,
    autoclear: bool,
    direct_io: bool,
) -> nix::Result<()> {
    let bit = |on: bool, flag: u32| if on { flag } else { 0 };
    let flags = bit(read_only, READ_ONLY) | bit(autoclear, AUTOCLEAR) | bit(direct_io, DIRECT_IO);
    let fd = u32::try_from(image.as_fd().as_raw_fd()).map_err(|_| Errno::EBADF)?;
    // The kernel takes a reference of its own to the file behind `fd`.
    let mut config =
        LoopConfig { fd, block_size, info: LoopInfo64 { flags, ..LoopInfo64::default() }, reserved: [0; 8] };
    request::LOOP_CONFIGURE.call(device, &mut config)
}

/// What the device is attached to; ENXIO if to nothing (LOOP_GET_STATUS64). The kernel fills in the device and
/// inode number with vfs_getattr() and huge_encode_dev() (drivers/block/loop.c, loop_get_status), so they are
/// what stat(2) shows for the image, also on btrfs, where each subvolume has a device number of its own.
pub(super) fn status(device: impl AsFd) -> nix::Result<LoopStatus> {
    let mut info = LoopInfo64::default();
    request::LOOP_GET_STATUS64.call(device, &mut info)?;
    Ok(LoopStatus {
        number: info.number,
        backing: FileId { dev: info.device, ino: info.inode },
        of_device: info.rdevice,
        read_only: info.flags & READ_ONLY != 0,
        autoclear: info.flags & AUTOCLEAR != 0,
        direct_io: info.flags & DIRECT_IO != 0,
    })
}

/// Makes the device stay when its last user closes it (LOOP_SET_STATUS64). All else stays as it is: of the flags, the
/// kernel clears only this one (LOOP_SET_STATUS_CLEARABLE_FLAGS).
pub(super) fn keep(device: impl AsFd) -> nix::Result<()> {
    let mut info = LoopInfo64::default();
    request::LOOP_GET_STATUS64.call(&device, &mut info)?;
    info.flags &= !AUTOCLEAR;
    request::LOOP_SET_STATUS64.call(device, &mut info).map(drop)
}

/// Detaches the device, once its last user has closed it (LOOP_CLR_FD).
pub(super) fn clear(device: impl AsFd) -> nix::Result<()> {
    request::LOOP_CLR_FD.call(device, 0).map(drop)
}

/// Gives the device its image's size (LOOP_SET_CAPACITY).
pub(super) fn set_capacity(device: impl AsFd) -> nix::Result<()> {
    request::LOOP_SET_CAPACITY.call(device, 0).map(drop)
}

/// Turns direct I/O on the image on or off (LOOP_SET_DIRECT_IO); EINVAL where the image cannot.
pub(super) fn set_direct_io(device: impl AsFd, on: bool) -> nix::Result<()> {
    request::LOOP_SET_DIRECT_IO.call(device, i32::from(on)).map(drop)
}

/// Gives the device another logical block size (LOOP_SET_BLOCK_SIZE).
pub(super) fn set_block_size(device: impl AsFd, bytes: u32) -> nix::Result<()> {
    let bytes = i32::try_from(bytes).map_err(|_| Errno::EINVAL)?;
    request::LOOP_SET_BLOCK_SIZE.call(device, bytes).map(drop)
}

/// The device's size in bytes (BLKGETSIZE64).
pub(super) fn device_size(device: impl AsFd) -> nix::Result<u64> {
    let mut size = 0u64;
    request::BLKGETSIZE64.call(device, &mut size)?;
    Ok(size)
}

/// The copy-on-write extent size of a file in bytes, 0 where it has none of its own (FS_IOC_FSGETXATTR).
pub(super) fn cow_extent_size(file: impl AsFd) -> nix::Result<u32> {
    let attributes = fsxattr(file)?;
    Ok(if attributes.flags & HAS_COW_EXTENT_SIZE == 0 { 0 } else { attributes.cow_extent_size })
}

fn fsxattr(file: impl AsFd) -> nix::Result<Fsxattr> {
    let mut attributes = Fsxattr::default();
    request::FS_IOC_FSGETXATTR.call(file, &mut attributes)?;
    Ok(attributes)
}

/// Gives a file a copy-on-write extent size in bytes and leaves its other attributes (FS_IOC_FSSETXATTR).
pub(super) fn set_cow_extent_size(file: impl AsFd, bytes: u32) -> nix::Result<()> {
    let before = fsxattr(file.as_fd())?;
    let flags = before.flags | HAS_COW_EXTENT_SIZE;
    request::FS_IOC_FSSETXATTR.call(file, &mut Fsxattr { flags, cow_extent_size: bytes, ..before })
}

/// What the kinds of block groups of the btrfs that holds this file have, one line for each kind and profile
/// (BTRFS_IOC_SPACE_INFO).
pub(super) fn btrfs_spaces(file: impl AsFd) -> nix::Result<Vec<SpaceInfo>> {
    let mut args = SpaceArgs { slots: SPACES as u64, total: 0, spaces: [SpaceInfo::default(); SPACES] };
    request::BTRFS_IOC_SPACE_INFO.call(file, &mut args)?;
    let count = usize::try_from(args.total).unwrap_or(SPACES);
    Ok(args.spaces.into_iter().take(count).collect())
}

/// Returns the fsid of the btrfs that holds this file, by which sysfs names it (BTRFS_IOC_FS_INFO).
pub(super) fn btrfs_fsid(file: impl AsFd) -> nix::Result<[u8; 16]> {
    let mut info = FsInfo::default();
    request::BTRFS_IOC_FS_INFO.call(file, &mut info)?;
    Ok(info.fsid)
}

/// One extent as FIEMAP tells it, with its `FIEMAP_EXTENT_*` flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawExtent {
    pub(super) logical: u64,
    pub(super) physical: u64,
    pub(super) length: u64,
    pub(super) flags: u32,
}

const FIEMAP_FLAG_SYNC: u32 = 1;

/// Words of 64 bits in `struct fiemap` and in `struct fiemap_extent`.
const HEADER_WORDS: usize = 4;
const EXTENT_WORDS: usize = 7;

/// Up to `max` extents that lie at or after `start`, or around it (FS_IOC_FIEMAP). With `sync` the file's dirty pages
/// are written first.
pub(super) fn extents(file: impl AsFd, start: u64, max: usize, sync: bool) -> nix::Result<Vec<RawExtent>> {
    /// Of a call; 3.5 MiB of them.
    const MOST: usize = 1 << 16;
    let max = max.min(MOST);
    if max == 0 {
        return Ok(Vec::new()); // the kernel would only count them
    }
    let room = u32::try_from(max).map_err(|_| Errno::EINVAL)?;
    let mut words = vec![0u64; HEADER_WORDS + max * EXTENT_WORDS];
    let header = words.as_mut_ptr().cast::<Fiemap>();
    let flags = if sync { FIEMAP_FLAG_SYNC } else { 0 };
    // SAFETY: `words` is aligned for and larger than struct fiemap, with room for as many extents after it as the
    // header says, and lives through the call.
    let mapped = unsafe {
        header.write(Fiemap { start, length: u64::MAX, flags, mapped: 0, room, reserved: 0 });
        Errno::result(libc::ioctl(file.as_fd().as_raw_fd(), request::FS_IOC_FIEMAP, header))?;
        header.read().mapped
    };
    let found =
        words.get(HEADER_WORDS..).unwrap_or_default().chunks_exact(EXTENT_WORDS).take(mapped as usize);
    Ok(found
        .filter_map(|extent| match *extent {
            // The sixth word has the flags in its first four bytes, whatever the byte order.
            [logical, physical, length, _, _, word, _] => {
                let [a, b, c, d, ..] = word.to_ne_bytes();
                Some(RawExtent { logical, physical, length, flags: u32::from_ne_bytes([a, b, c, d]) })
            }
            _ => None,
        })
        .collect())
}

/// Starts to write a range's dirty pages and does not wait for them (sync_file_range(2), SYNC_FILE_RANGE_WRITE). That
/// makes nothing durable.
pub(super) fn start_writing(file: impl AsFd, offset: i64, len: i64) -> nix::Result<()> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the arguments are numbers.
    let result = unsafe { libc::sync_file_range(fd, offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    Errno::result(result).map(drop)
}

/// Limits the arenas that the allocator of glibc has (mallopt(3), M_ARENA_MAX). Does nothing with another C library.
pub(super) fn limit_arenas(most: libc::c_int) {
    #[cfg(target_env = "gnu")]
    // SAFETY: the arguments are numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, most);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = most;
}

/// Whether no other descriptor of this regular file is open, in whatever process or loop device. The kernel gives a lease for
/// writing only then (fcntl(2), F_SETLEASE; fs/locks.c, check_conflicting_open). Who opens the file while there is one
/// waits, or gets EWOULDBLOCK with O_NONBLOCK: it is given back at once.
///
/// # Errors
/// EINVAL where the filesystem has no leases; EACCES for the file of another user without CAP_LEASE.
pub(super) fn is_only_open_here(file: impl AsFd) -> nix::Result<bool> {
    /// asm-generic/fcntl.h; not in every libc.
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_fd().as_raw_fd();
    // What tells the holder that somebody waits is SIGIO otherwise, which ends a process.
    // SAFETY: the arguments of each call are numbers.
    Errno::result(unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) })?;
    match Errno::result(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) }) {
        Ok(_) => Errno::result(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) }).map(|_| true),
        Err(Errno::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Freezes the filesystem that holds this file (FIFREEZE). Returns when everything is on its device; EBUSY where it is
/// frozen already, EOPNOTSUPP where it cannot be.
pub(super) fn freeze(file: impl AsFd) -> nix::Result<()> {
    request::FIFREEZE.call(file, 0).map(drop)
}

/// Thaws the filesystem that holds this file (FITHAW); EINVAL where it is not frozen.
pub(super) fn thaw(file: impl AsFd) -> nix::Result<()> {
    request::FITHAW.call(file, 0).map(drop)
}

#[cfg(test)]
mod tests;
