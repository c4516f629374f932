//! Opening the files that the driver is given by name, and what goes with the calls on them.
#![allow(clippy::disallowed_types, reason = "implements the traits of os")]

use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::at;

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
