//! What a process asks of its host in addition to the traits.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The flag of open(2) for I/O past the page cache, as `OpenOptionsExt::custom_flags` takes it.
pub const O_DIRECT: i32 = libc::O_DIRECT;

/// The host name, if there is one in UTF-8.
pub fn host_name() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?.into_string().ok()?;
    if name.is_empty() { None } else { Some(name) }
}

/// Lets go of a file's pages that are clean, so that the next read comes from the disk.
///
/// # Errors
/// ESPIPE for a pipe, which has no pages.
pub fn drop_cache(file: impl AsFd) -> io::Result<()> {
    Ok(posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
}

/// Asks a process to end (SIGTERM).
///
/// # Errors
/// ESRCH where there is no such process, EPERM where it is another user's.
pub fn terminate(process: u32) -> io::Result<()> {
    let id = i32::try_from(process).map_err(|_| Errno::ESRCH)?;
    Ok(kill(Pid::from_raw(id), Signal::SIGTERM)?)
}
