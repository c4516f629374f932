//! Freezing a filesystem so that no death can leave it frozen.
//!
//! FIFREEZE has no owner: if the process that froze dies, every writer waits for good. So a helper process ([`guard()`])
//! makes the freeze. It thaws when this process hangs up, which a death also does, and when the limit has passed. In turn,
//! a thread of this process watches the helper and thaws if the helper dies or falls silent. Each holds the directory
//! open, so that the filesystem cannot be unmounted while it is frozen.
//!
//! The helper gets its end of a socket as standard input and the directory as standard output. It speaks in errnos
//! ([`tell`]): when it is ready, when it has frozen, and when it has thawed. One byte tells it to freeze; anything after
//! that, the end included, tells it to thaw.

mod guard;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::syncfs;

use super::super::{Frozen, errno_error, errno_of};
use super::{at, exec, ioctl, statx};

pub use guard::guard;

/// How long the helper may take to start, and to answer after its time: it does so within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often, and after which pause, a thaw is tried that fails: its filesystem stays frozen.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// See [`Mounts::freeze`](super::super::Mounts::freeze).
pub(super) fn freeze(helper: &Path, mount_point: &Path, limit: Duration) -> io::Result<Box<dyn Frozen>> {
    freeze_by(helper, mount_point, limit).map_err(at("freeze", mount_point))
}

fn freeze_by(helper: &Path, mount_point: &Path, limit: Duration) -> io::Result<Box<dyn Frozen>> {
    let directory = open_root(mount_point)?;
    let mut guarded = Guarded::start(helper, directory, limit)?;
    // Written back while writers still go on and the helper starts, so that they wait for little in the freeze.
    syncfs(&guarded.directory)?;
    guarded.answer(PATIENCE)?;
    let control = guarded.control.try_clone()?;
    let (sender, receiver) = sync_channel(1);
    let watcher =
        thread::Builder::new().name("freeze".to_owned()).spawn(move || guarded.watch(limit, &sender))?;
    let mut held = Held { control, watcher: Some(watcher), mount_point: mount_point.to_owned() };
    match receiver.recv_timeout(limit) {
        Ok(Ok(())) => Ok(Box::new(held)),
        Ok(Err(error)) => {
            // The watcher has corrected what there was to corrected, and its result is this error.
            let _ = held.release();
            Err(error)
        }
        Err(_) => {
            // The kernel cannot be stopped in the middle of a freeze: it thaws when that is done, without us.
            held.hang_up();
            held.watcher = None;
            Err(Errno::ETIMEDOUT.into())
        }
    }
}

/// See [`Mounts::thaw`](super::super::Mounts::thaw).
pub(super) fn thaw(mount_point: &Path) -> io::Result<bool> {
    let directory = open_root(mount_point).map_err(at("thaw", mount_point))?;
    match thaw_surely(&directory) {
        Ok(()) => Ok(true),
        Err(Errno::EINVAL) => Ok(false),
        Err(errno) => Err(at("thaw", mount_point)(errno)),
    }
}

/// Opens a mount point, not following a link. Anywhere else the ioctl would reach the filesystem around it, such as
/// the one that the state file is on.
fn open_root(mount_point: &Path) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = open(mount_point, flags, Mode::empty())?;
    if statx::is_mount_root(&directory)? { Ok(directory) } else { Err(Errno::EINVAL) }
}

/// FITHAW, repeated where it fails: after an I/O error the filesystem is as frozen as before. EINVAL where it is not
/// frozen.
fn thaw_surely(directory: &OwnedFd) -> nix::Result<()> {
    let mut result = ioctl::thaw(directory);
    for _ in 1..TRIES {
        if matches!(result, Ok(()) | Err(Errno::EINVAL)) {
            break;
        }
        thread::sleep(PAUSE);
        result = ioctl::thaw(directory);
    }
    result
}

/// Tells the other side how something ended.
fn tell(mut control: &UnixStream, result: nix::Result<()>) -> io::Result<()> {
    let errno = result.err().map_or(0, |errno| errno as i32);
    control.write_all(&errno.to_ne_bytes())
}

/// The helper, and what is needed to do without it.
struct Guarded {
    /// Our end of its socket.
    control: UnixStream,
    directory: OwnedFd,
    /// `None` once it was waited for.
    helper: Option<Child>,
    /// It was told to freeze, and has not said that it did not, or that it has thawed.
    perhaps_frozen: bool,
}

impl Guarded {
    fn start(program: &Path, directory: OwnedFd, limit: Duration) -> io::Result<Self> {
        let (control, its_end) = UnixStream::pair()?;
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).to_string();
        let arguments = ["freeze-guard", "--limit-ms", &limit];
        let helper = exec::start(program, &arguments, its_end.into(), directory.try_clone()?)
            .map_err(at("start", program))?;
        Ok(Guarded { control, directory, helper: Some(helper), perhaps_frozen: false })
    }

    /// What the helper says next: an errno, or EOWNERDEAD where it is gone or silent.
    fn answer(&mut self, within: Duration) -> nix::Result<()> {
        let mut errno = [0; 4];
        let read =
            self.control.set_read_timeout(Some(within)).and_then(|()| self.control.read_exact(&mut errno));
        match (read, i32::from_ne_bytes(errno)) {
            (Err(_), _) => Err(Errno::EOWNERDEAD),
            (Ok(()), 0) => Ok(()),
            (Ok(()), errno) => Err(Errno::from_raw(errno)),
        }
    }

    /// Has the helper freeze, says how that went, and stays until it has thawed.
    fn watch(mut self, limit: Duration, frozen: &SyncSender<io::Result<()>>) -> io::Result<()> {
        // Where nobody hears of the freeze any more, the helper has been told to thaw.
        let within = limit.saturating_add(PATIENCE);
        self.perhaps_frozen = true;
        let asked = self.control.write_all(b"f").map_err(|_| Errno::EOWNERDEAD);
        let done = asked.and_then(|()| self.answer(within));
        if done != Err(Errno::EOWNERDEAD) {
            self.perhaps_frozen = done.is_ok();
        }
        if let Err(errno) = done {
            let _ = frozen.send(self.put_right(errno));
            return Ok(());
        }
        let _ = frozen.send(Ok(()));
        match self.answer(within) {
            Ok(()) => {
                self.perhaps_frozen = false;
                self.collect();
                Ok(())
            }
            // It has thawed, or somebody else has.
            Err(errno @ (Errno::ETIMEDOUT | Errno::EINVAL)) => {
                self.perhaps_frozen = false;
                self.put_right(errno)
            }
            Err(errno) => self.put_right(errno),
        }
    }

    /// After an error: the helper is no more, and the filesystem is thawed. Gives the error, or the worse one that
    /// it could not be thawed.
    ///
    /// A helper that was killed in the middle of the freeze did not say whether somebody else had frozen before it.
    /// To thaw then is the smaller evil: the other way, writers may wait forever.
    fn put_right(&mut self, errno: Errno) -> io::Result<()> {
        self.collect();
        if std::mem::take(&mut self.perhaps_frozen)
            && let Err(worse) = thaw_surely(&self.directory)
            && worse != Errno::EINVAL
        {
            return Err(errno_error(worse, "it stays frozen"));
        }
        Err(errno.into())
    }

    /// Ends the helper and waits for it. One that was stopped could otherwise thaw a later freeze.
    fn collect(&mut self) {
        if let Some(mut helper) = self.helper.take() {
            // It may have ended by itself; either way only the wait matters, which fails for no child of ours.
            let _ = helper.kill();
            let _ = helper.wait();
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.helper.is_some() || self.perhaps_frozen {
            let _ = self.put_right(Errno::ECANCELED);
        }
    }
}

/// A freeze in force.
struct Held {
    control: UnixStream,
    /// `None` once it has ended.
    watcher: Option<JoinHandle<io::Result<()>>>,
    mount_point: PathBuf,
}

impl Held {
    /// Has the helper thaw.
    fn hang_up(&self) {
        // It fails where the helper is gone, which the watcher knows.
        let _ = self.control.shutdown(Shutdown::Write);
    }

    fn release(&mut self) -> io::Result<()> {
        let Some(watcher) = self.watcher.take() else {
            return Ok(());
        };
        self.hang_up();
        // A watcher that panicked has put everything right on its way out, but nobody knows since when.
        let ended = watcher.join().unwrap_or_else(|_| Err(Errno::EOWNERDEAD.into()));
        ended.map_err(at("thaw", &self.mount_point))
    }
}

impl Frozen for Held {
    fn thaw(mut self: Box<Self>) -> io::Result<()> {
        self.release()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, errno = ?errno_of(&error), "a freeze did not end as it should");
        }
    }
}
