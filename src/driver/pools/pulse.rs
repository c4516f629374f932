//! Whether the disks of the pools answer. A disk that hangs blocks whoever asks it, without an end and without an error,
//! although the kernel still answers from memory. So a thread of its own reads one block past that memory. As long as it
//! waits, the pool's disk is silent: new calls are refused at once, those that wait there are answered, and health says
//! why. When the disk answers, all of that ends by itself.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::kernel::{FileKind, Os, errno_of, holder};
use crate::model::PoolName;

/// How long a disk may take for one block: disks that spin up, or have much to write, take seconds.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The question to one pool's disk. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Pulse(Arc<Question>);

#[derive(Default)]
struct Question {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// Since when the thread waits for the disk.
    waits_since: Option<Instant>,
    /// What the disk said last, if that was an error.
    error: Option<String>,
}

impl Question {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn silence(&self) -> Option<String> {
        let waits = self.waits_since?.elapsed();
        (waits >= PATIENCE).then(|| format!("its disk has not answered for {} s", waits.as_secs()))
    }
}

impl Pulse {
    /// Asks the disk that holds `path`, in a thread of its own; does nothing while that waits for an earlier question.
    pub(crate) fn ask(&self, os: &Os, path: &Path) {
        let mut state = self.0.lock();
        if state.waits_since.is_some() {
            return;
        }
        let (question, os, path) = (Arc::clone(&self.0), os.clone(), path.to_owned());
        let work = move || {
            let answer = read_from_disk(&os, &path);
            let mut state = question.lock();
            state.error = answer.err().map(|error| format!("its disk does not answer: {error}"));
            state.waits_since = None;
            question.answered.notify_all();
        };
        match std::thread::Builder::new().name("pulse".to_owned()).spawn(work) {
            Ok(_) => state.waits_since = Some(Instant::now()),
            Err(error) => tracing::warn!(%error, "a disk cannot be asked whether it answers"),
        }
    }

    /// Waits for the answer, no longer than [`PATIENCE`] after the question.
    ///
    /// # Errors
    /// Why the disk is of no use: it is silent, or says so.
    pub(crate) fn wait(&self) -> Result<(), String> {
        let mut state = self.0.lock();
        while let Some(since) = state.waits_since {
            let Some(left) = PATIENCE.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) else {
                break;
            };
            state = self.0.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.silence().or_else(|| state.error.clone()).map_or(Ok(()), Err)
    }

    /// As if the disk had been asked then, and had not answered yet; `None` as if it had.
    #[cfg(test)]
    pub(super) fn pretend_to_wait(&self, since: Option<Instant>) {
        self.0.lock().waits_since = since;
    }

    /// Why the disk is silent, where it is asked and has been for longer than [`PATIENCE`].
    pub(crate) fn silence(&self) -> Option<String> {
        self.0.lock().silence()
    }
}

/// Reads from the disk below a path. Filesystems without a block device are asked for their space: those of a server ask
/// it.
fn read_from_disk(os: &Os, path: &Path) -> io::Result<()> {
    let device = match os.files.stat(path)? {
        Some(stat) if stat.kind == FileKind::BlockDevice => Some(path.to_owned()),
        _ => device_below(os, path)?,
    };
    let unknown =
        [Errno::ENOENT, Errno::ENXIO, Errno::EACCES, Errno::EPERM, Errno::EINVAL, Errno::EOPNOTSUPP];
    match device.map(|device| os.files.read_through(&device)) {
        Some(Err(error)) if !errno_of(&error).is_some_and(|errno| unknown.contains(&errno)) => Err(error),
        Some(Ok(())) => Ok(()),
        // There is no node for it here, or the path is not a device's.
        _ => os.files.space(path).map(drop),
    }
}

fn device_below(os: &Os, path: &Path) -> io::Result<Option<PathBuf>> {
    let mounts = os.mounts.list()?;
    let source = holder(&mounts, path).map(|mount| PathBuf::from(&mount.source));
    Ok(source.filter(|source| source.starts_with("/dev")))
}

/// At which pools a call is at work: those that it has asked for so far.
#[derive(Debug, Clone, Default)]
pub struct Site(Arc<Mutex<BTreeSet<PoolName>>>);

thread_local! {
    /// Of the call that this thread works for.
    static HERE: RefCell<Option<Site>> = const { RefCell::new(None) };
}

impl Site {
    /// Works as this call: the pools that `work` asks for, in this thread, are noted.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                HERE.set(None);
            }
        }
        HERE.set(Some(self.clone()));
        let _leave = Leave;
        work()
    }

    pub(crate) fn pools(&self) -> Vec<PoolName> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// The call that this thread works for asks for a pool.
pub(crate) fn note(name: &PoolName) {
    HERE.with_borrow(|site| {
        if let Some(Site(pools)) = site {
            pools.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloop_fake_kernel::FakeKernel;

    #[test]
    fn a_disk_that_answers_is_not_silent() {
        let kernel = FakeKernel::new();
        let pulse = Pulse::default();
        pulse.ask(&kernel.spawn(), Path::new("/"));
        assert_eq!(pulse.wait(), Ok(()));
        assert_eq!(pulse.silence(), None);
    }

    #[test]
    fn the_state_of_a_disk_is_kept_until_it_changes() {
        let kernel = FakeKernel::new();
        let pulse = Pulse::default();
        kernel.fail_every("statvfs", Errno::EIO);
        pulse.ask(&kernel.spawn(), Path::new("/"));
        assert!(pulse.wait().is_err_and(|why| why.contains("does not answer")));
        assert_eq!(pulse.silence(), None, "an error is an answer");
        kernel.heal();
        pulse.ask(&kernel.spawn(), Path::new("/"));
        assert_eq!(pulse.wait(), Ok(()));
    }

    #[test]
    fn a_device_is_asked_itself() {
        let kernel = FakeKernel::new();
        kernel.write_file("/disk", &[0; 8192]).unwrap();
        let device = kernel.attach_foreign("/disk", false).unwrap().path();
        kernel.watch_looks(true);
        let pulse = Pulse::default();
        pulse.ask(&kernel.spawn(), &device);
        assert_eq!(pulse.wait(), Ok(()));
        let read = kernel.looks().into_iter().filter(|look| look.name == "read_through");
        assert_eq!(read.map(|look| look.subject).collect::<Vec<_>>(), [device.display().to_string()]);
        kernel.fail_every("statvfs", Errno::EIO);
        pulse.ask(&kernel.spawn(), &device);
        assert_eq!(pulse.wait(), Ok(()), "nothing else is asked");
        kernel.heal();
        kernel.fail_every("read_through", Errno::EIO);
        pulse.ask(&kernel.spawn(), &device);
        assert!(pulse.wait().is_err_and(|why| why.contains("does not answer")));
        assert_eq!(pulse.silence(), None, "an error is an answer");
        // A container may have no node for it: then its filesystem is asked.
        for errno in [Errno::ENOENT, Errno::ENXIO, Errno::EACCES, Errno::EPERM] {
            kernel.fail_every("read_through", errno);
            pulse.ask(&kernel.spawn(), &device);
            assert_eq!(pulse.wait(), Ok(()), "{errno}");
        }
    }

    #[test]
    fn a_call_notes_the_pools_that_it_asks_for() {
        let (site, other) = (Site::default(), Site::default());
        let name: PoolName = "fast".parse().expect("a name");
        note(&name);
        site.run(|| note(&name));
        note(&PoolName::default());
        assert_eq!((site.pools(), other.pools()), (vec![name], Vec::new()));
    }
}
