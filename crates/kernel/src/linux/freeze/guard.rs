//! The helper process beside a frozen filesystem. It has one thread and no state except its two descriptors, and nothing
//! between its freeze and its thaw can fail in a way that skips the thaw.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::SigSet;

use super::super::super::with_context;
use super::super::ioctl;
use super::{tell, thaw_surely};

/// Freezes the filesystem of the directory that is this process's standard output when its standard input, a socket,
/// says so, and thaws it when that says anything more, when it ends, and when `limit` has passed. What happens is told
/// over the socket.
///
/// # Errors
/// Where standard input is not a socket, or where the thaw fails and there is nobody to tell it to.
pub fn guard(limit: Duration) -> io::Result<()> {
    // What asks the driver to end, also all processes of a container or a terminal, must not end this one before.
    SigSet::all().thread_block()?;
    // Its name where the kernel shows one, and no core file: neither matters enough to do without the freeze.
    let _ = prctl::set_name(c"hostloop-freeze");
    let _ = prctl::set_dumpable(false);
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let directory = io::stdout().as_fd().try_clone_to_owned()?;
    match tell(&control, Ok(())).and_then(|()| (&control).read(&mut [0])) {
        Ok(1..) => hold(&control, &directory, limit),
        // The driver does without the freeze, or is gone.
        Ok(0) => Ok(()),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => Ok(()),
        Err(e) => Err(with_context(e, "standard input (only the driver starts this)")),
    }
}

/// From the freeze to the thaw.
fn hold(control: &UnixStream, directory: &OwnedFd, limit: Duration) -> io::Result<()> {
    // Writers wait from here on, however long the freeze itself takes.
    let since = Instant::now();
    if let Err(errno) = ioctl::freeze(directory) {
        // Where nobody hears of it, nothing is left to do either.
        let _ = tell(control, Err(errno));
        return Ok(());
    }
    let in_time = tell(control, Ok(())).is_err() || waits(control, limit.saturating_sub(since.elapsed()));
    let thawed = thaw_surely(directory);
    let told = tell(control, thawed.and(if in_time { Ok(()) } else { Err(Errno::ETIMEDOUT) }));
    match thawed {
        // The driver is gone, and all is well.
        Ok(()) => Ok(()),
        Err(errno) => told.map_err(|_| with_context(errno.into(), "thaw")),
    }
}

/// Waits for anything from the driver, its end included; whether that came within the time.
fn waits(mut control: &UnixStream, time: Duration) -> bool {
    // A time of zero is an error.
    if control.set_read_timeout(Some(time)).is_err() {
        return false;
    }
    loop {
        match control.read(&mut [0]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
            Ok(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_ends_with_the_driver_or_the_time() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        assert!(!waits(&theirs, Duration::ZERO) && !waits(&theirs, Duration::from_millis(5)));
        tell(&ours, Err(Errno::EBUSY)).expect("tell");
        assert!(waits(&theirs, Duration::from_secs(60)));
        drop(ours);
        assert!(waits(&theirs, Duration::from_secs(60)) && waits(&theirs, Duration::from_secs(60)));
    }

    /// On a directory of a filesystem that cannot be frozen, so that nothing is when this goes wrong.
    #[test]
    fn an_error_of_the_freeze_is_told() {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let flags = nix::fcntl::OFlag::O_RDONLY;
        let directory = nix::fcntl::open("/proc", flags, nix::sys::stat::Mode::empty()).expect("open");
        hold(&theirs, &directory, Duration::from_secs(60)).expect("tell");
        let mut errno = [0; 4];
        ours.read_exact(&mut errno).expect("an answer");
        let errno = Errno::from_raw(i32::from_ne_bytes(errno));
        assert!(matches!(errno, Errno::EOPNOTSUPP | Errno::EPERM), "{errno}");
    }
}
