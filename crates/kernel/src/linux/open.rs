//! Opening the files that the driver is given by name, and what goes with the calls on them.
#![allow(clippy::disallowed_types, reason = "implements the traits of os")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, fstat};

use super::super::Pinned;
use super::{at, kind_bits};

/// Opens what lies below a directory, without following a link there.
///
/// # Errors
/// ELOOP for a link, EXDEV for a path that leads out of the directory.
pub(super) fn open_beneath(directory: &Path, below: &Path) -> io::Result<Pinned> {
    let whole = directory.join(below);
    let opening = || at("open", &whole);
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let root = open(directory, flags | OFlag::O_DIRECTORY, Mode::empty()).map_err(at("open", directory))?;
    let resolve =
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_NOFOLLOW).resolve(resolve);
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let found = uninterrupted(|| openat2(&root, below, how)).map_err(opening())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let path = match kind_bits(&fstat(&found).map_err(opening())?) {
        // With O_PATH and O_NOFOLLOW a link at the end is opened itself.
        libc::S_IFLNK => return Err(opening()(Errno::ELOOP)),
        // With the dot the last component is not a link, which others refuse to follow.
        libc::S_IFDIR => path.join("."),
        _ => path,
    };
    Ok(Pinned::new(path, Box::new(found)))
}

/// Opens an existing file. Where it is going to be changed a link is not followed: the driver makes none, so one
/// that is there is somebody's trick.
pub(super) fn open_file(path: &Path, flags: OFlag) -> io::Result<File> {
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    Ok(File::from(open(path, flags, Mode::empty()).map_err(at("open", path))?))
}

/// Opens an existing file to change it.
pub(super) fn open_to_change(path: &Path) -> io::Result<File> {
    open_file(path, OFlag::O_RDWR | OFlag::O_NOFOLLOW)
}

/// A size or offset as the system calls take it.
pub(super) fn offset(value: u64) -> Result<i64, Errno> {
    i64::try_from(value).map_err(|_| Errno::EFBIG)
}

/// Calls again what a signal interrupted.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}
