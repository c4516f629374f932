//! What a file has in addition to its bytes: owner, mode, times, extended attributes, flags.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, UtimensatFlags, fchmodat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchownat};
use rustix::fs::{
    IFlags, XattrFlags, getxattr, ioctl_getflags, ioctl_setflags, listxattr, removexattr, setxattr,
};

use super::super::{errno, kind_bits};
use super::path_of;
use super::report::{Fault, call};
use hostloop_model::tree;

/// The flags of ioctl_iflags(2) that are copied. Not those that would keep a copy from being removed (immutable,
/// append-only), nor those that are the filesystem's own business. Compression is an extended attribute on btrfs.
const FLAGS: IFlags = IFlags::NODUMP
    .union(IFlags::NOATIME)
    .union(IFlags::SYNC)
    .union(IFlags::DIRSYNC)
    .union(IFlags::TOPDIR)
    .union(IFlags::NOCOW);

const ACLS: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];

/// Most attributes are shorter than this, and the kernel allocates as much as it is offered.
const SMALL: usize = 1024;

/// XATTR_LIST_MAX and XATTR_SIZE_MAX (xattr(7)).
const LARGE: usize = 65536;

/// What is read of a file and set on its copy.
pub(super) struct Attributes {
    /// `st_mode`, with the type.
    mode: libc::mode_t,
    uid: libc::uid_t,
    gid: libc::gid_t,
    atime: TimeSpec,
    mtime: TimeSpec,
    extended: Vec<(CString, Vec<u8>)>,
    /// Of a regular file or a directory, where the filesystem has them.
    flags: Option<IFlags>,
}

/// Attributes that must not be copied: a signature over the inode, which means nothing on another one, and what xfs
/// shows of how it keeps ACLs.
const SKIPPED: [&CStr; 3] = [c"security.evm", c"trusted.SGI_ACL_FILE", c"trusted.SGI_ACL_DEFAULT"];

/// Whether an attribute is copied (xattr(7)). The other ones of `system.` are made up by filesystems.
fn is_copied(name: &CStr) -> bool {
    let prefixes: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];
    let belongs = prefixes.iter().any(|prefix| name.to_bytes().starts_with(prefix));
    (belongs || ACLS.contains(&name)) && !SKIPPED.contains(&name)
}

/// Returns whether an attribute of a directory can be set before the directory is filled. New files
/// inherit ACLs, labels and the properties of btrfs (acl(5), selinux(8), btrfs(5)), but not these.
fn is_early(name: &CStr) -> bool {
    [b"user.".as_slice(), b"trusted."].iter().any(|prefix| name.to_bytes().starts_with(prefix))
}

/// Calls with a small buffer and, where that is too small, with the largest that the kernel fills.
fn read_with(read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> nix::Result<Vec<u8>> {
    let mut buffer = vec![0; SMALL];
    let mut result = read(&mut buffer);
    if result == Err(rustix::io::Errno::RANGE) {
        buffer.resize(LARGE, 0);
        result = read(&mut buffer);
    }
    buffer.truncate(result.map_err(errno)?);
    Ok(buffer)
}

fn extended(path: &str) -> nix::Result<Vec<(CString, Vec<u8>)>> {
    let names = match read_with(|buffer| listxattr(path, buffer)) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        names => names?,
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
        if !is_copied(&name) {
            continue;
        }
        match read_with(|buffer| getxattr(path, name.as_c_str(), buffer)) {
            Ok(value) => found.push((name, value)),
            Err(Errno::ENODATA) => {} // it was removed meanwhile
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}

/// Removes the ACLs that a new directory got from its parent.
pub(super) fn remove_acls(directory: &OwnedFd) -> nix::Result<()> {
    let path = path_of(directory);
    for acl in ACLS {
        match removexattr(path.as_str(), acl).map_err(errno) {
            Ok(()) | Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl Attributes {
    /// Reads what `stat`, the one of `file`, does not tell. `file` may be a bare reference (O_PATH) but for a
    /// directory or a regular file.
    pub(super) fn read(file: &OwnedFd, stat: &FileStat) -> Result<Self, Fault> {
        let extended = extended(&path_of(file)).map_err(call("read the extended attributes of"))?;
        let has_flags = matches!(kind_bits(stat), libc::S_IFREG | libc::S_IFDIR);
        let flags = if has_flags { ioctl_getflags(file).ok() } else { None };
        Ok(Attributes {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            atime: TimeSpec::new(stat.st_atime, stat.st_atime_nsec),
            mtime: TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec),
            extended,
            flags,
        })
    }

    /// Those that another machine has read of an entry with these bits for its type (`S_IFMT`). Names that are never
    /// copied are left out.
    ///
    /// # Errors
    /// EINVAL for what no machine reads.
    pub(super) fn of(kind: libc::mode_t, sent: tree::Attributes) -> nix::Result<Self> {
        let mut extended = Vec::new();
        for (name, value) in sent.extended {
            let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
            if is_copied(&name) {
                extended.push((name, value));
            }
        }
        let time = |time: tree::FileTime| TimeSpec::new(time.seconds, time.nanos.into());
        Ok(Attributes {
            mode: kind | sent.mode & 0o7777,
            uid: sent.uid,
            gid: sent.gid,
            atime: time(sent.atime),
            mtime: time(sent.mtime),
            extended,
            flags: sent.flags.map(IFlags::from_bits_retain),
        })
    }

    /// Whether all are the same but for the time of the last access.
    pub(super) fn are_as(&self, other: &Attributes) -> bool {
        let sorted = |attributes: &Attributes| {
            let mut extended = attributes.extended.clone();
            extended.sort_unstable();
            extended
        };
        let flags = |attributes: &Attributes| attributes.flags.map(|flags| flags.intersection(FLAGS));
        (self.mode, self.uid, self.gid, self.mtime) == (other.mode, other.uid, other.gid, other.mtime)
            && flags(self) == flags(other)
            && sorted(self) == sorted(other)
    }

    /// Gives a file that is otherwise as it should be the time of the last access.
    pub(super) fn apply_access_time(&self, target: &OwnedFd) -> Result<(), Fault> {
        let path = path_of(target);
        utimensat(AT_FDCWD, path.as_str(), &self.atime, &self.mtime, UtimensatFlags::FollowSymlink)
            .map_err(call("set the times of"))
    }

    /// For another machine.
    pub(super) fn to_send(&self) -> tree::Attributes {
        let time = |time: &TimeSpec| tree::FileTime {
            seconds: time.tv_sec(),
            nanos: u32::try_from(time.tv_nsec()).unwrap_or_default(),
        };
        let pair = |(name, value): &(CString, Vec<u8>)| (name.to_bytes().to_vec(), value.clone());
        tree::Attributes {
            mode: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            atime: time(&self.atime),
            mtime: time(&self.mtime),
            extended: self.extended.iter().map(pair).collect(),
            flags: self.flags.map(|flags| flags.bits()),
        }
    }

    /// Removes the extended attributes that were read of a file, so that it can get others.
    pub(super) fn remove_extended(&self, target: &OwnedFd) -> Result<(), Fault> {
        let path = path_of(target);
        self.extended.iter().try_for_each(|(name, _)| {
            let removed = removexattr(path.as_str(), name.as_c_str()).map_err(errno);
            expect_removed(name, removed).map_err(call("remove the extended attributes of"))
        })
    }

    /// Gives a new regular file the flag that can be set only as long as it is empty: a file of btrfs whose blocks
    /// are overwritten in place. Blocks can be shared only among files that agree in it.
    pub(super) fn prepare(&self, target: &OwnedFd) {
        self.set_flags(target, IFlags::NOCOW);
    }

    /// Where the filesystem of the copy has no such flag, the copy has none: they are hints, not data.
    fn set_flags(&self, target: &OwnedFd, mask: IFlags) {
        if let Some(flags) = self.flags
            && let Ok(now) = ioctl_getflags(target)
        {
            let wanted = now.difference(mask).union(flags.intersection(mask));
            if wanted != now {
                let _ = ioctl_setflags(target, wanted);
            }
        }
    }

    /// Sets the extended attributes that new files in a directory do not inherit, and frees their
    /// memory. Returns the bytes of the remaining ones, names and values together: these wait until
    /// the directory is filled.
    pub(super) fn apply_early(&mut self, target: &OwnedFd) -> Result<usize, Fault> {
        let path = path_of(target);
        let (early, late) =
            std::mem::take(&mut self.extended).into_iter().partition(|(name, _)| is_early(name));
        self.extended = late;
        let early: Vec<(CString, Vec<u8>)> = early;
        for (name, value) in &early {
            set_extended(&path, name, value).map_err(call("set the extended attributes of the copy of"))?;
        }
        Ok(self.extended.iter().map(|(name, value)| name.to_bytes().len() + value.len()).sum())
    }

    /// Sets everything. The order matters: a change of the owner takes the setuid bits and capabilities away, an
    /// access ACL changes the mode, and times are changed by all of it.
    pub(super) fn apply(&self, target: &OwnedFd) -> Result<(), Fault> {
        let path = path_of(target);
        let (owner, group) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        fchownat(target, c"", Some(owner), Some(group), AtFlags::AT_EMPTY_PATH)
            .map_err(call("set the owner of the copy of"))?;
        for (name, value) in &self.extended {
            set_extended(&path, name, value).map_err(call("set the extended attributes of the copy of"))?;
        }
        if self.mode & libc::S_IFMT != libc::S_IFLNK {
            // A link has no mode of its own.
            let mode = Mode::from_bits_truncate(self.mode);
            fchmodat(AT_FDCWD, path.as_str(), mode, FchmodatFlags::FollowSymlink)
                .map_err(call("set the mode of the copy of"))?;
        }
        self.set_flags(target, FLAGS);
        utimensat(AT_FDCWD, path.as_str(), &self.atime, &self.mtime, UtimensatFlags::FollowSymlink)
            .map_err(call("set the times of the copy of"))
    }
}

/// Returns the error of removexattr(2) if the file keeps an attribute that it must not have. SELinux never allows removing a label (EACCES),
/// only replacing it.
fn expect_removed(name: &CStr, removed: nix::Result<()>) -> nix::Result<()> {
    match removed {
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        Err(Errno::EACCES) if name == c"security.selinux" => Ok(()),
        removed => removed,
    }
}

fn set_extended(path: &str, name: &CStr, value: &[u8]) -> nix::Result<()> {
    match setxattr(path, name, value, XattrFlags::empty()).map_err(errno) {
        // A filesystem that is mounted with a label for all its files (mount(8), context=) shows it on each and lets
        // none be set.
        Err(Errno::EOPNOTSUPP) if name == c"security.selinux" => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_stays_is_no_error() {
        for (name, error, expected) in [
            (c"security.selinux", Errno::EACCES, Ok(())),
            (c"security.selinux", Errno::EIO, Err(Errno::EIO)),
            (c"user.a", Errno::EACCES, Err(Errno::EACCES)),
            (c"user.a", Errno::ENODATA, Ok(())),
        ] {
            assert_eq!(expect_removed(name, Err(error)), expected, "{name:?} {error}");
        }
    }
}
