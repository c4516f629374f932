//! The system calls that no crate wraps: the loop driver's (loop(4), linux/loop.h), BLKGETSIZE64, FICLONE, FIEMAP,
//! FIFREEZE and FITHAW, FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR, BTRFS_IOC_SPACE_INFO, sync_file_range(2),
//! mount_setattr(2), and statx(2) for what no other call tells. The only file with `unsafe`.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::super::FileId;

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

/// `struct loop_info64`
#[repr(C)]
#[derive(Clone, Copy)]
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
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
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

const EMPTY_INFO: LoopInfo64 = LoopInfo64 {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

/// What LOOP_GET_STATUS64 tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoopStatus {
    /// N of /dev/loopN.
    pub(super) number: u32,
    pub(super) backing: FileId,
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

/// What tells the kernel which ioctl is meant, by the names of linux/loop.h, linux/fs.h and linux/btrfs.h.
mod number {
    use nix::sys::ioctl::ioctl_num_type as Number;

    use super::{Fiemap, Fsxattr};

    const INT: usize = size_of::<libc::c_int>();

    // Numbered by hand, without direction and size.
    pub(super) const LOOP_CLR_FD: Number = 0x4C01;
    pub(super) const LOOP_GET_STATUS64: Number = 0x4C05;
    pub(super) const LOOP_SET_CAPACITY: Number = 0x4C07;
    pub(super) const LOOP_SET_DIRECT_IO: Number = 0x4C08;
    pub(super) const LOOP_SET_BLOCK_SIZE: Number = 0x4C09;
    pub(super) const LOOP_CONFIGURE: Number = 0x4C0A;
    pub(super) const LOOP_CTL_ADD: Number = 0x4C80;
    pub(super) const LOOP_CTL_REMOVE: Number = 0x4C81;
    pub(super) const LOOP_CTL_GET_FREE: Number = 0x4C82;
    /// Takes the descriptor itself, and not the address of one.
    pub(super) const FICLONE: Number = nix::request_code_write!(0x94, 9, INT);
    /// Counted without the extents.
    pub(super) const FS_IOC_FIEMAP: Number = nix::request_code_readwrite!(b'f', 11, size_of::<Fiemap>());
    /// The kernel looks at no argument.
    pub(super) const FIFREEZE: Number = nix::request_code_readwrite!(b'X', 119, INT);
    pub(super) const FITHAW: Number = nix::request_code_readwrite!(b'X', 120, INT);
    pub(super) const FS_IOC_FSGETXATTR: Number = nix::request_code_read!(b'X', 31, size_of::<Fsxattr>());
    pub(super) const FS_IOC_FSSETXATTR: Number = nix::request_code_write!(b'X', 32, size_of::<Fsxattr>());
    /// Counted without the spaces.
    pub(super) const BTRFS_IOC_SPACE_INFO: Number =
        nix::request_code_readwrite!(0x94, 20, 2 * size_of::<u64>());
    /// The kernel writes 64 bits everywhere.
    pub(super) const BLKGETSIZE64: Number = nix::request_code_read!(0x12, 114, size_of::<libc::size_t>());
}

mod raw {
    use super::{Fiemap, Fsxattr, LoopConfig, LoopInfo64, SpaceArgs, number};

    nix::ioctl_none_bad!(clr_fd, number::LOOP_CLR_FD);
    nix::ioctl_read_bad!(get_status64, number::LOOP_GET_STATUS64, LoopInfo64);
    nix::ioctl_none_bad!(set_capacity, number::LOOP_SET_CAPACITY);
    nix::ioctl_write_int_bad!(set_direct_io, number::LOOP_SET_DIRECT_IO);
    nix::ioctl_write_int_bad!(set_block_size, number::LOOP_SET_BLOCK_SIZE);
    nix::ioctl_write_ptr_bad!(configure, number::LOOP_CONFIGURE, LoopConfig);
    nix::ioctl_write_int_bad!(ctl_add, number::LOOP_CTL_ADD);
    nix::ioctl_write_int_bad!(ctl_remove, number::LOOP_CTL_REMOVE);
    nix::ioctl_none_bad!(ctl_get_free, number::LOOP_CTL_GET_FREE);
    nix::ioctl_write_int_bad!(ficlone, number::FICLONE);
    nix::ioctl_readwrite_bad!(fiemap, number::FS_IOC_FIEMAP, Fiemap);
    nix::ioctl_write_int_bad!(fifreeze, number::FIFREEZE);
    nix::ioctl_write_int_bad!(fithaw, number::FITHAW);
    nix::ioctl_read_bad!(fsgetxattr, number::FS_IOC_FSGETXATTR, Fsxattr);
    nix::ioctl_write_ptr_bad!(fssetxattr, number::FS_IOC_FSSETXATTR, Fsxattr);
    nix::ioctl_readwrite_bad!(space_info, number::BTRFS_IOC_SPACE_INFO, SpaceArgs);
    nix::ioctl_read_bad!(blkgetsize64, number::BLKGETSIZE64, u64);
}

/// The number of a device that is free, made if need be (LOOP_CTL_GET_FREE). It may be taken a moment later.
pub(super) fn free_device(control: impl AsFd) -> nix::Result<u32> {
    // SAFETY: the ioctl takes no argument, and the descriptor is open for the length of the call.
    let number = unsafe { raw::ctl_get_free(control.as_fd().as_raw_fd()) }?;
    u32::try_from(number).map_err(|_| Errno::ENODEV)
}

/// Makes a device with this number, or with one that no other has (LOOP_CTL_ADD); gives the number. EEXIST where the
/// number is taken.
pub(super) fn add_device(control: impl AsFd, number: Option<u32>) -> nix::Result<u32> {
    let number = match number {
        Some(number) => i32::try_from(number).map_err(|_| Errno::EINVAL)?,
        None => -1, // lets the kernel choose
    };
    // SAFETY: the argument is a number.
    let number = unsafe { raw::ctl_add(control.as_fd().as_raw_fd(), number) }?;
    u32::try_from(number).map_err(|_| Errno::ENODEV)
}

/// Removes a device that is attached to nothing and not open; EBUSY otherwise (LOOP_CTL_REMOVE).
pub(super) fn remove_device(control: impl AsFd, number: u32) -> nix::Result<()> {
    let number = i32::try_from(number).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the argument is a number.
    unsafe { raw::ctl_remove(control.as_fd().as_raw_fd(), number) }.map(drop)
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
    let config = LoopConfig { fd, block_size, info: LoopInfo64 { flags, ..EMPTY_INFO }, reserved: [0; 8] };
    // SAFETY: `config` has the layout of struct loop_config and lives through the call, which only reads it; the
    // kernel takes a reference of its own to the file behind `fd`.
    unsafe { raw::configure(device.as_fd().as_raw_fd(), &config) }.map(drop)
}

/// What the device is attached to; ENXIO if to nothing (LOOP_GET_STATUS64). The kernel fills in the device and
/// inode number with vfs_getattr() and huge_encode_dev() (drivers/block/loop.c, loop_get_status), so they are
/// what stat(2) shows for the image, also on btrfs, where each subvolume has a device number of its own.
pub(super) fn status(device: impl AsFd) -> nix::Result<LoopStatus> {
    let mut info = EMPTY_INFO;
    // SAFETY: `info` has the layout of struct loop_info64, is writable and lives through the call.
    unsafe { raw::get_status64(device.as_fd().as_raw_fd(), &mut info) }?;
    Ok(LoopStatus {
        number: info.number,
        backing: FileId { dev: info.device, ino: info.inode },
        read_only: info.flags & READ_ONLY != 0,
        autoclear: info.flags & AUTOCLEAR != 0,
        direct_io: info.flags & DIRECT_IO != 0,
    })
}

/// Detaches the device, once its last user has closed it (LOOP_CLR_FD).
pub(super) fn clear(device: impl AsFd) -> nix::Result<()> {
    // SAFETY: the ioctl takes no argument, and the descriptor is open for the length of the call.
    unsafe { raw::clr_fd(device.as_fd().as_raw_fd()) }.map(drop)
}

/// Gives the device its image's size (LOOP_SET_CAPACITY).
pub(super) fn set_capacity(device: impl AsFd) -> nix::Result<()> {
    // SAFETY: the ioctl takes no argument, and the descriptor is open for the length of the call.
    unsafe { raw::set_capacity(device.as_fd().as_raw_fd()) }.map(drop)
}

/// Turns direct I/O on the image on or off (LOOP_SET_DIRECT_IO); EINVAL where the image cannot.
pub(super) fn set_direct_io(device: impl AsFd, on: bool) -> nix::Result<()> {
    // SAFETY: the argument is a number.
    unsafe { raw::set_direct_io(device.as_fd().as_raw_fd(), i32::from(on)) }.map(drop)
}

/// Gives the device another logical block size (LOOP_SET_BLOCK_SIZE).
pub(super) fn set_block_size(device: impl AsFd, bytes: u32) -> nix::Result<()> {
    let bytes = i32::try_from(bytes).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the argument is a number.
    unsafe { raw::set_block_size(device.as_fd().as_raw_fd(), bytes) }.map(drop)
}

/// The device's size in bytes (BLKGETSIZE64).
pub(super) fn device_size(device: impl AsFd) -> nix::Result<u64> {
    let mut size = 0u64;
    // SAFETY: the kernel writes exactly 64 bits (block/ioctl.c, put_u64) into `size`, which lives through the call.
    unsafe { raw::blkgetsize64(device.as_fd().as_raw_fd(), &raw mut size) }?;
    Ok(size)
}

/// Lets `to` share the blocks of `from` (FICLONE).
pub(super) fn clone_file(to: impl AsFd, from: impl AsFd) -> nix::Result<()> {
    // SAFETY: the argument is a number; both descriptors are open for the length of the call.
    unsafe { raw::ficlone(to.as_fd().as_raw_fd(), from.as_fd().as_raw_fd()) }.map(drop)
}

/// The copy-on-write extent size of a file in bytes, 0 where it has none of its own (FS_IOC_FSGETXATTR).
pub(super) fn cow_extent_size(file: impl AsFd) -> nix::Result<u32> {
    let attributes = fsxattr(file)?;
    Ok(if attributes.flags & HAS_COW_EXTENT_SIZE == 0 { 0 } else { attributes.cow_extent_size })
}

fn fsxattr(file: impl AsFd) -> nix::Result<Fsxattr> {
    let mut attributes = Fsxattr::default();
    // SAFETY: `attributes` has the layout of struct fsxattr, is writable and lives through the call.
    unsafe { raw::fsgetxattr(file.as_fd().as_raw_fd(), &mut attributes) }?;
    Ok(attributes)
}

/// Gives a file a copy-on-write extent size in bytes and leaves its other attributes (FS_IOC_FSSETXATTR).
pub(super) fn set_cow_extent_size(file: impl AsFd, bytes: u32) -> nix::Result<()> {
    let before = fsxattr(file.as_fd())?;
    let flags = before.flags | HAS_COW_EXTENT_SIZE;
    let attributes = Fsxattr { flags, cow_extent_size: bytes, ..before };
    // SAFETY: `attributes` has the layout of struct fsxattr and lives through the call, which only reads it.
    unsafe { raw::fssetxattr(file.as_fd().as_raw_fd(), &attributes) }.map(drop)
}

/// What the kinds of block groups of the btrfs that holds this file have, one line for each kind and profile
/// (BTRFS_IOC_SPACE_INFO).
pub(super) fn btrfs_spaces(file: impl AsFd) -> nix::Result<Vec<SpaceInfo>> {
    let mut args = SpaceArgs { slots: SPACES as u64, total: 0, spaces: [SpaceInfo::default(); SPACES] };
    // SAFETY: `args` has the layout of struct btrfs_ioctl_space_args with `slots` infos after it, of which the kernel
    // writes no more (fs/btrfs/ioctl.c, btrfs_ioctl_space_info), is writable and lives through the call.
    unsafe { raw::space_info(file.as_fd().as_raw_fd(), &mut args) }?;
    let count = usize::try_from(args.total).unwrap_or(SPACES);
    Ok(args.spaces.into_iter().take(count).collect())
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
        raw::fiemap(file.as_fd().as_raw_fd(), header)?;
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

/// Freezes the filesystem that holds this file (FIFREEZE). Returns when everything is on its device; EBUSY where it is
/// frozen already, EOPNOTSUPP where it cannot be.
pub(super) fn freeze(file: impl AsFd) -> nix::Result<()> {
    // SAFETY: the argument is a number, and the descriptor is open for the length of the call.
    unsafe { raw::fifreeze(file.as_fd().as_raw_fd(), 0) }.map(drop)
}

/// Thaws the filesystem that holds this file (FITHAW); EINVAL where it is not frozen.
pub(super) fn thaw(file: impl AsFd) -> nix::Result<()> {
    // SAFETY: the argument is a number, and the descriptor is open for the length of the call.
    unsafe { raw::fithaw(file.as_fd().as_raw_fd(), 0) }.map(drop)
}

/// `struct mount_attr` (linux/mount.h).
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Changes the `MOUNT_ATTR_*` of the mount whose root is open (mount_setattr(2), Linux 5.12; ENOSYS before).
pub(super) fn set_mount_attributes(root: impl AsFd, set: u64, clear: u64) -> nix::Result<()> {
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

/// `struct statx` as words of 32 bits, 256 bytes in all (linux/stat.h). libc's own struct lacks the last field for some
/// targets.
#[repr(C, align(8))]
struct Statx([u32; 64]);

/// Where its fields lie. Those of the attributes have 64 bits.
const STX_MASK: usize = 0;
const STX_ATTRIBUTES: usize = 0x08;
const STX_ATTRIBUTES_MASK: usize = 0x38;
const STX_DIO_OFFSET_ALIGN: usize = 0x9c;

const STATX_DIOALIGN: u32 = 0x2000;
const STATX_ATTR_MOUNT_ROOT: u64 = 0x2000;

impl Statx {
    /// statx(2) of an open file.
    fn of(file: impl AsFd, wanted: u32) -> nix::Result<Statx> {
        let mut statx = Statx([0; 64]);
        // SAFETY: the path is an empty C string, which AT_EMPTY_PATH makes mean the descriptor; `statx` has the size
        // and alignment of struct statx and lives through the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_statx,
                file.as_fd().as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                wanted,
                &raw mut statx,
            )
        };
        Errno::result(result)?;
        Ok(statx)
    }

    fn word(&self, offset: usize) -> u32 {
        self.0.get(offset / 4).copied().unwrap_or_default()
    }

    fn long(&self, offset: usize) -> u64 {
        let (first, second) = (u64::from(self.word(offset)), u64::from(self.word(offset + 4)));
        if cfg!(target_endian = "little") { second << 32 | first } else { first << 32 | second }
    }
}

/// The alignment of direct I/O on a file, 0 where it is not possible, `None` where kernel or filesystem do not
/// tell (statx(2), STATX_DIOALIGN, Linux 6.1).
pub(super) fn direct_io_alignment(file: impl AsFd) -> nix::Result<Option<u32>> {
    let statx = Statx::of(file, STATX_DIOALIGN)?;
    Ok((statx.word(STX_MASK) & STATX_DIOALIGN != 0).then(|| statx.word(STX_DIO_OFFSET_ALIGN)))
}

/// Whether an open directory is the root of a mount (statx(2), STATX_ATTR_MOUNT_ROOT); EOPNOTSUPP where the kernel
/// does not tell (before Linux 5.8).
pub(super) fn is_mount_root(directory: impl AsFd) -> nix::Result<bool> {
    let statx = Statx::of(directory, 0)?;
    if statx.long(STX_ATTRIBUTES_MASK) & STATX_ATTR_MOUNT_ROOT == 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(statx.long(STX_ATTRIBUTES) & STATX_ATTR_MOUNT_ROOT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C that says that a structure and its fields lie where ours do.
    macro_rules! layout {
        ($ours:ty = $theirs:literal { $($field:ident = $name:literal),* $(,)? }) => {{
            let mut lines = format!("SAME(sizeof({}), {});\n", $theirs, size_of::<$ours>());
            $(lines += &format!(
                "SAME(offsetof({}, {}), {});\n", $theirs, $name, std::mem::offset_of!($ours, $field)
            );)*
            lines
        }};
    }

    /// C that says that these constants are ours.
    macro_rules! numbers {
        ($($ours:expr => $theirs:literal),* $(,)?) => {
            [$(format!("SAME({}, {}ULL);\n", $theirs, u64::from($ours))),*].concat()
        };
    }

    /// What a compiler says of this C, below the kernel's headers.
    #[allow(clippy::disallowed_types, reason = "a test, which starts the compiler that the build needs, too")]
    fn compiled(lines: &str) -> Result<(), String> {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let source = format!(
            "#include <stddef.h>\n#include <linux/loop.h>\n#include <linux/fs.h>\n#include <linux/fiemap.h>\n\
             #include <linux/btrfs.h>\n#include <linux/mount.h>\n#include <linux/stat.h>\n\
             #define SAME(theirs, ours) _Static_assert((theirs) == (ours), #theirs)\n{lines}"
        );
        let mut command = Command::new("cc");
        command.args(["-xc", "-fsyntax-only", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut compiler = command.spawn().expect("cc");
        compiler.stdin.take().expect("stdin").write_all(source.as_bytes()).expect("write");
        let output = compiler.wait_with_output().expect("cc");
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    #[test]
    fn structures_are_those_of_the_kernels_headers() {
        let told = compiled("SAME(sizeof(struct fiemap), 1);\n").expect_err("it is larger");
        assert!(told.contains("sizeof(struct fiemap)"), "{told}");
        let structures = [
            layout!(LoopInfo64 = "struct loop_info64" {
                device = "lo_device", inode = "lo_inode", rdevice = "lo_rdevice", offset = "lo_offset",
                size_limit = "lo_sizelimit", number = "lo_number", flags = "lo_flags",
                file_name = "lo_file_name", init = "lo_init",
            }),
            layout!(LoopConfig = "struct loop_config" {
                fd = "fd", block_size = "block_size", info = "info", reserved = "__reserved",
            }),
            layout!(Fiemap = "struct fiemap" {
                start = "fm_start", length = "fm_length", flags = "fm_flags", mapped = "fm_mapped_extents",
                room = "fm_extent_count", reserved = "fm_reserved",
            }),
            format!("SAME(sizeof(struct fiemap_extent), {});\n", EXTENT_WORDS * 8),
            numbers!(
                0_u64 => "offsetof(struct fiemap_extent, fe_logical)",
                8_u64 => "offsetof(struct fiemap_extent, fe_physical)",
                16_u64 => "offsetof(struct fiemap_extent, fe_length)",
                40_u64 => "offsetof(struct fiemap_extent, fe_flags)",
            ),
            format!("SAME(sizeof(struct fiemap), {});\n", HEADER_WORDS * 8),
            layout!(Fsxattr = "struct fsxattr" {
                flags = "fsx_xflags", extent_size = "fsx_extsize", extents = "fsx_nextents", project = "fsx_projid",
                cow_extent_size = "fsx_cowextsize",
            }),
            layout!(SpaceInfo = "struct btrfs_ioctl_space_info" {
                flags = "flags", total = "total_bytes", used = "used_bytes",
            }),
            format!(
                "SAME(offsetof(struct btrfs_ioctl_space_args, spaces), {});\n",
                std::mem::offset_of!(SpaceArgs, spaces)
            ),
            layout!(MountAttr = "struct mount_attr" {
                set = "attr_set", clear = "attr_clr", propagation = "propagation", userns = "userns_fd",
            }),
            format!("SAME(sizeof(struct statx), {});\n", size_of::<Statx>()),
            numbers!(
                STX_MASK as u64 => "offsetof(struct statx, stx_mask)",
                STX_ATTRIBUTES as u64 => "offsetof(struct statx, stx_attributes)",
                STX_ATTRIBUTES_MASK as u64 => "offsetof(struct statx, stx_attributes_mask)",
                STX_DIO_OFFSET_ALIGN as u64 => "offsetof(struct statx, stx_dio_offset_align)",
            ),
        ];
        compiled(&structures.concat()).expect("the kernel's headers");
    }

    #[test]
    fn numbers_and_flags_are_those_of_the_kernels_headers() {
        let lines = numbers!(
            number::LOOP_CLR_FD => "LOOP_CLR_FD",
            number::LOOP_GET_STATUS64 => "LOOP_GET_STATUS64",
            number::LOOP_SET_CAPACITY => "LOOP_SET_CAPACITY",
            number::LOOP_SET_DIRECT_IO => "LOOP_SET_DIRECT_IO",
            number::LOOP_SET_BLOCK_SIZE => "LOOP_SET_BLOCK_SIZE",
            number::LOOP_CONFIGURE => "LOOP_CONFIGURE",
            number::LOOP_CTL_ADD => "LOOP_CTL_ADD",
            number::LOOP_CTL_REMOVE => "LOOP_CTL_REMOVE",
            number::LOOP_CTL_GET_FREE => "LOOP_CTL_GET_FREE",
            number::FICLONE => "FICLONE",
            number::FS_IOC_FIEMAP => "FS_IOC_FIEMAP",
            number::FIFREEZE => "FIFREEZE",
            number::FITHAW => "FITHAW",
            number::FS_IOC_FSGETXATTR => "FS_IOC_FSGETXATTR",
            number::FS_IOC_FSSETXATTR => "FS_IOC_FSSETXATTR",
            number::BTRFS_IOC_SPACE_INFO => "BTRFS_IOC_SPACE_INFO",
            number::BLKGETSIZE64 => "BLKGETSIZE64",
            READ_ONLY => "LO_FLAGS_READ_ONLY",
            AUTOCLEAR => "LO_FLAGS_AUTOCLEAR",
            DIRECT_IO => "LO_FLAGS_DIRECT_IO",
            HAS_COW_EXTENT_SIZE => "FS_XFLAG_COWEXTSIZE",
            FIEMAP_FLAG_SYNC => "FIEMAP_FLAG_SYNC",
            STATX_DIOALIGN => "STATX_DIOALIGN",
            STATX_ATTR_MOUNT_ROOT => "STATX_ATTR_MOUNT_ROOT",
        );
        compiled(&lines).expect("the kernel's headers");
    }

    #[test]
    #[allow(clippy::disallowed_types, reason = "a test, which opens what it looks at")]
    fn a_mount_root_is_told_from_a_directory() {
        let root = |path: &str| is_mount_root(std::fs::File::open(path).expect("open")).expect("statx");
        assert!(root("/proc") && !root("/proc/self"));
    }
}
