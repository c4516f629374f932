//! Making trees with everything in them.

use std::ffi::{CStr, OsStr};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, fallocate};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmodat, mknod, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchownat, linkat};
use rustix::fs::{IFlags, XattrFlags, ioctl_getflags, ioctl_setflags, lsetxattr};

/// A POSIX ACL as the kernel takes it: version 2; tag, permissions and id of each entry.
pub fn acl(mask: u16) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries =
        [(1, 7, NONE), (2, 6, 1234), (4, 5, NONE), (8, 4, 4321), (0x10, mask, NONE), (0x20, 1, NONE)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(permissions));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

pub fn set_extended(path: &Path, name: &CStr, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty()).unwrap_or_else(|e| panic!("{name:?} of {path:?}: {e}"));
}

pub fn set_owner(path: &Path, owner: u32, group: u32) {
    let (owner, group) = (Uid::from_raw(owner), Gid::from_raw(group));
    fchownat(AT_FDCWD, path, Some(owner), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW).expect("chown");
}

pub fn set_mode(path: &Path, mode: u32) {
    fchmodat(AT_FDCWD, path, Mode::from_bits_truncate(mode), FchmodatFlags::FollowSymlink).expect("chmod");
}

/// Sets both times, in seconds and nanoseconds.
pub fn set_times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) {
    let time = |(seconds, nanoseconds)| TimeSpec::new(seconds, nanoseconds);
    utimensat(AT_FDCWD, path, &time(atime), &time(mtime), UtimensatFlags::NoFollowSymlink)
        .expect("utimensat");
}

/// Adds a flag; whether the filesystem has it.
pub fn add_flag(path: &Path, flag: IFlags) -> bool {
    let file = File::open(path).expect("open");
    let now = ioctl_getflags(&file).expect("FS_IOC_GETFLAGS");
    ioctl_setflags(&file, now | flag).is_ok()
}

pub fn remove_flag(path: &Path, flag: IFlags) {
    let file = File::open(path).expect("open");
    let now = ioctl_getflags(&file).expect("FS_IOC_GETFLAGS");
    ioctl_setflags(&file, now - flag).expect("FS_IOC_SETFLAGS");
}

pub fn node(path: &Path, kind: SFlag, rdev: u64) {
    mknod(path, kind, Mode::from_bits_truncate(0o640), rdev).expect("mknod");
}

/// A file with runs of data.
pub fn sparse(path: &Path, size: u64, runs: &[(u64, usize)]) {
    let file = OpenOptions::new().write(true).create_new(true).open(path).expect("create");
    file.set_len(size).expect("set_len");
    for (number, (offset, len)) in runs.iter().enumerate() {
        file.write_all_at(&vec![number as u8 + 1; *len], *offset).expect("write");
    }
}

pub fn hard_link(from: &Path, to: &Path) {
    linkat(AT_FDCWD, from, AT_FDCWD, to, AtFlags::empty()).expect("link");
}

/// A tree with one of everything.
pub fn everything(root: &Path) {
    std::fs::create_dir(root).expect("mkdir");
    let at = |name: &str| root.join(name);
    for directory in ["sub", "sub/deeper", "empty"] {
        std::fs::create_dir(at(directory)).expect("mkdir");
    }
    files(root);
    let nodes = [
        ("fifo", SFlag::S_IFIFO, 0),
        ("socket", SFlag::S_IFSOCK, 0),
        ("null", SFlag::S_IFCHR, libc::makedev(1, 3)),
        ("disk", SFlag::S_IFBLK, libc::makedev(7, 999)),
    ];
    for (name, kind, rdev) in nodes {
        node(&at(name), kind, rdev);
        set_owner(&at(name), 11, 12);
        set_mode(&at(name), 0o626);
        set_extended(&at(name), c"trusted.of", name.as_bytes());
    }
    symlink("/nothing/is here", at("link")).expect("symlink");
    symlink("..", at("sub/up")).expect("symlink");
    set_owner(&at("link"), 7, 8);
    set_extended(&at("link"), c"trusted.of", b"a link");
    for name in ["plain", "fifo", "link", "sub/deeper/bottom"] {
        let other = name.replace('/', "-");
        hard_link(&at(name), &at("sub").join(format!("again {other}")));
        hard_link(&at(name), &at(&format!("again {other}")));
    }
    attributes(root);
}

fn files(root: &Path) {
    let at = |name: &str| root.join(name);
    for name in ["plain", "none", "setuid", "capable", "flags", "sub/deeper/bottom", "appended"] {
        std::fs::write(at(name), name).expect("write");
    }
    std::fs::write(at("nothing"), "").expect("write");
    let odd: [&[u8]; 6] = [b"\xff\xfe\n", b" ", b"-rf", b"...", "\u{e9}".as_bytes(), &[b'n'; 255]];
    for odd in odd.map(OsStr::from_bytes) {
        std::fs::write(root.join(odd), odd.as_bytes()).expect("write");
        std::fs::create_dir(at("sub").join(odd)).expect("mkdir");
    }
    sparse(&at("sparse"), 64 << 20, &[(0, 5000), (1 << 20, 1), (40 << 20, 3 << 20)]);
    sparse(&at("hole"), 128 << 20, &[]);
    sparse(&at("large"), 0, &[(0, (20 << 20) + 17)]);
    sparse(&at("preallocated"), 0, &[(0, 100)]);
    let file = OpenOptions::new().write(true).open(at("preallocated")).expect("open");
    fallocate(&file, FallocateFlags::empty(), 0, 4 << 20).expect("fallocate");
    // The flag can be set as long as the file is empty.
    std::fs::write(at("in place"), "").expect("write");
    add_flag(&at("in place"), IFlags::NOCOW);
    std::fs::write(at("in place"), vec![3; 200_000]).expect("write");
}

fn attributes(root: &Path) {
    let at = |name: &str| root.join(name);
    set_owner(&at("setuid"), 1001, 1002);
    set_mode(&at("setuid"), 0o6755);
    // struct vfs_cap_data: revision 2, effective; CAP_NET_BIND_SERVICE.
    let capability = [0x0200_0001u32, 1 << 10, 0, 0, 0].map(u32::to_le_bytes).concat();
    set_owner(&at("capable"), 1003, 0);
    set_extended(&at("capable"), c"security.capability", &capability);
    set_extended(&at("plain"), c"user.empty", b"");
    set_extended(&at("plain"), c"user.short", b"\0\xff");
    set_extended(&at("plain"), c"user.long", &[b'l'; 3000]);
    set_extended(&at("plain"), c"trusted.secret", b"of root");
    set_extended(&at("empty"), c"user.on", b"a directory");
    set_extended(&at("none"), c"system.posix_acl_access", &acl(6));
    set_mode(&at("none"), 0);
    set_owner(&at("sub"), 21, 22);
    set_extended(&at("sub"), c"system.posix_acl_access", &acl(7));
    set_extended(&at("sub"), c"system.posix_acl_default", &acl(4));
    set_mode(&at("empty"), 0o3777);
    set_mode(&at("sub/deeper"), 0o1700);
    assert!(add_flag(&at("flags"), IFlags::NODUMP | IFlags::SYNC));
    assert!(add_flag(&at("empty"), IFlags::NODUMP | IFlags::NOATIME));
    set_owner(root, 31, 32);
    set_mode(root, 0o2771);
    let timed = "plain link fifo null large hole sub/deeper/bottom sub/deeper empty sub flags";
    for (n, name) in (1..).zip(timed.split(' ').chain([""])) {
        let (atime, mtime) = (1_000_000_000 + n, 1_500_000_000 - n);
        set_times(&at(name), (atime, 123_456_789), (mtime, 987_654_321 + n));
    }
}
