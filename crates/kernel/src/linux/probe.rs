//! What a directory's filesystem can do, found out with files that have no name.
#![allow(clippy::disallowed_types, reason = "implements Images")]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::sys::statvfs;
use nix::unistd::{UnlinkatFlags, ftruncate, unlinkat};

use super::copy::clone_file;
use super::{at, statx};

/// An empty file for a question that filesystems answer for regular files only. It has no name (O_TMPFILE) where
/// the filesystem can do that, and none left otherwise.
fn nameless_file(directory: &Path) -> io::Result<OwnedFd> {
    let mode = Mode::from_bits_truncate(0o600);
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
    match open(directory, flags | OFlag::O_TMPFILE, mode) {
        Err(Errno::EOPNOTSUPP | Errno::EISDIR) => {
            let path = directory.join(format!(".hostloop-probe-{}", std::process::id()));
            let flags = flags | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW;
            let file = open(&path, flags, mode).map_err(at("create", &path))?;
            unlinkat(AT_FDCWD, &path, UnlinkatFlags::NoRemoveDir).map_err(at("unlink", &path))?;
            Ok(file)
        }
        result => result.map_err(at("open", directory)),
    }
}

/// What [`Images::direct_io_alignment`](super::super::Images::direct_io_alignment) asks statx(2).
pub(super) fn direct_io_alignment(directory: &Path) -> io::Result<Option<u32>> {
    let file = nameless_file(directory)?;
    match statx::direct_io_alignment(&file).map_err(at("statx", directory))? {
        Some(0) => return Ok(None),
        Some(alignment) => return Ok(Some(alignment)),
        None => {}
    }
    // Kernels before 6.1, and filesystems that do not tell: try to open it so (EINVAL where it cannot be), and
    // take the filesystem's block, which is aligned enough everywhere.
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    match openat(AT_FDCWD, own.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_DIRECT, Mode::empty()) {
        Err(Errno::EINVAL) => return Ok(None),
        result => drop(result.map_err(at("open", directory))?),
    }
    let block = statvfs::fstatvfs(&file).map_err(at("statvfs", directory))?.block_size();
    Ok(u32::try_from(block).ok().filter(|block| block.is_power_of_two()))
}

/// What [`Images::largest_file`](super::super::Images::largest_file) finds out by ftruncate(2), which says EFBIG.
pub(super) fn largest_file(directory: &Path) -> io::Result<u64> {
    let file = nameless_file(directory)?;
    let fits = |bytes: i64| match ftruncate(&file, bytes) {
        Ok(()) => Ok(true),
        Err(Errno::EFBIG | Errno::EINVAL) => Ok(false),
        Err(errno) => Err(at("truncate a file in", directory)(errno)),
    };
    if fits(i64::MAX)? {
        return Ok(i64::MAX as u64);
    }
    let (mut least, mut most) = (0, i64::MAX);
    while most - least > 1 {
        let middle = least + (most - least) / 2;
        match fits(middle)? {
            true => least = middle,
            false => most = middle,
        }
    }
    Ok(least.unsigned_abs())
}

/// Whether two files of this directory's filesystem can share blocks (ioctl_ficlone(2)). Leaves nothing there.
///
/// # Errors
/// Where no file can be made, or the kernel fails in another way than "not supported".
pub fn reflink_works(directory: &Path) -> io::Result<bool> {
    let (from, to) = (File::from(nameless_file(directory)?), nameless_file(directory)?);
    let clone = || match clone_file(&to, &from) {
        Ok(()) => Ok(true),
        Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EINVAL | Errno::EXDEV) => Ok(false),
        Err(errno) => Err(at("clone a file in", directory)(errno)),
    };
    // Whoever cannot says so of empty files as well, which need no block.
    if !clone()? {
        return Ok(false);
    }
    from.write_all_at(&[1; 4096], 0).map_err(at("write in", directory))?;
    clone()
}
