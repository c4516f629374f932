//! Claims on block devices. O_EXCL on a block device needs no O_CREAT, and fails with EBUSY if there is another claim: a
//! mount, a tool that works on it, an open with O_EXCL (open(2)).
//!
//! A child has a copy of every descriptor from fork(2) until execve(2) closes it, which happens after vfork(2) has
//! returned. So a claim that was released while another thread started a program would live on for a moment, and whoever
//! comes next would be refused: mount(2), a tool, another claim. Therefore a thread with a table of descriptors of its
//! own, which nobody forks, holds the claims.

use std::collections::HashMap;
use std::fs::DirEntry;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::unistd::close;

use super::at;

/// How often a claim is tried, and the pause between. A short one of another process ends by itself: its children, lvm,
/// mdadm.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// What the thread is asked for. It answers when it is done.
enum Request {
    Claim(PathBuf, SyncSender<io::Result<RawFd>>),
    GiveUp(RawFd, SyncSender<()>),
}

/// Started with the first claim, and there for as long as the process.
static HOLDER: Mutex<Option<SyncSender<Request>>> = Mutex::new(None);

/// A claim on a block device. When it is dropped, the device is free.
#[derive(Debug)]
pub(super) struct Claim(RawFd);

impl Claim {
    /// # Errors
    /// Those of open(2); EBUSY where another has the device.
    pub(super) fn new(device: &Path) -> io::Result<Self> {
        let mut tries = 1;
        loop {
            let (answer, answered) = sync_channel(1);
            ask(Request::Claim(device.to_owned(), answer))?;
            match answered.recv().map_err(io::Error::other)? {
                Err(error) if tries < TRIES && super::super::is_errno(&error, Errno::EBUSY) => {
                    std::thread::sleep(PAUSE);
                }
                claimed => return claimed.map(Claim),
            }
            tries += 1;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let (answer, answered) = sync_channel(1);
        if ask(Request::GiveUp(self.0, answer)).is_ok() {
            let _ = answered.recv();
        }
    }
}

fn ask(request: Request) -> io::Result<()> {
    let mut holder = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    let sender = match &*holder {
        Some(sender) => sender,
        None => holder.insert(start()?),
    };
    sender.send(request).map_err(|_| io::Error::other("the thread that holds claims on devices has ended"))
}

fn start() -> io::Result<SyncSender<Request>> {
    let (sender, requests) = sync_channel(16);
    let (ready, is_ready) = sync_channel(1);
    let run = move || {
        let alone = be_alone();
        let go_on = alone.is_ok();
        let _ = ready.send(alone);
        if go_on {
            serve(&requests);
        }
    };
    std::thread::Builder::new().name("claims".to_owned()).spawn(run)?;
    is_ready.recv().map_err(io::Error::other)??;
    Ok(sender)
}

/// Gives this thread a table of descriptors of its own, with nothing in it but those of standard input and output.
#[allow(clippy::disallowed_methods, reason = "the kernel's word on this thread, not a file")]
fn be_alone() -> io::Result<()> {
    unshare(CloneFlags::CLONE_FILES)?;
    let path = Path::new("/proc/thread-self/fd");
    let number =
        |entry: io::Result<DirEntry>| entry.map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    let all = std::fs::read_dir(path).and_then(|entries| entries.map(number).collect::<io::Result<Vec<_>>>());
    for copy in all.map_err(at("list", path))?.into_iter().flatten().filter(|fd| *fd > 2) {
        // That of the list itself is closed by now: EBADF.
        let _ = close(copy);
    }
    Ok(())
}

fn serve(requests: &Receiver<Request>) {
    let flags = OFlag::O_RDONLY | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let mut held: HashMap<RawFd, OwnedFd> = HashMap::new();
    while let Ok(request) = requests.recv() {
        match request {
            Request::Claim(device, answer) => {
                let claimed =
                    open(&device, flags, Mode::empty()).map_err(at("claim", &device)).map(|claim| {
                        let fd = claim.as_raw_fd();
                        held.insert(fd, claim);
                        fd
                    });
                let _ = answer.send(claimed);
            }
            Request::GiveUp(fd, answer) => {
                drop(held.remove(&fd));
                let _ = answer.send(());
            }
        }
    }
}
