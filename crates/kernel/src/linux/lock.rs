//! The lock on a data directory.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "implements Files")]

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::Mode;

use super::super::{errno_error, is_full};
use super::at;

/// Holds the lock until it is dropped.
struct Held(#[allow(dead_code, reason = "kept for its Drop, which unlocks")] Flock<File>);

/// Takes the exclusive lock without waiting (flock(2), LOCK_NB) and writes our process id into the file. The
/// descriptor is close-on-exec, so that no tool we start can inherit the lock and outlive us with it.
///
/// # Errors
/// EWOULDBLOCK, naming the holder, where another open description has it.
pub(super) fn lock(path: &Path) -> io::Result<Box<dyn Send + Sync>> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let file = File::from(open(path, flags, Mode::from_bits_truncate(0o600)).map_err(at("open", path))?);
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(held) => {
            match write_pid(&held).map_err(at("write", path)) {
                // The id is only a hint for people: a full disk does not keep anybody from the lock.
                Err(error) if is_full(&error) => tracing::debug!(%error, "the lock does not say whose it is"),
                result => result?,
            }
            Ok(Box::new(Held(held)))
        }
        Err((mut file, Errno::EWOULDBLOCK)) => Err(errno_error(
            Errno::EWOULDBLOCK,
            format_args!("lock {}: held by {}", path.display(), holder(&mut file)),
        )),
        Err((_, errno)) => Err(at("lock", path)(errno)),
    }
}

/// Writes our process id over that of an earlier holder: a block that is there is written to on a full disk as well.
fn write_pid(file: &File) -> io::Result<()> {
    let text = format!("{}\n", std::process::id());
    let written = file.write_all_at(text.as_bytes(), 0);
    // Better no id than a wrong one.
    file.set_len(if written.is_ok() { text.len() as u64 } else { 0 })?;
    written
}

/// The holder for a message: `process 123 (hostloop)`. Its id is of its own pid namespace, so the name may be
/// missing or that of another process; it is a hint for people only.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // A file that cannot be read, or holds no number, only makes the hint less precise.
    let _ = file.take(32).read_to_string(&mut text);
    let Ok(pid) = text.trim().parse::<u32>() else {
        return "another process".to_owned();
    };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}
