//! The disk under the store: that of the fake kernel, whose steps can fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;

use super::{DIR, file};
use crate::kernel::{FileStat, Files};
use hostloop_fake_kernel::{FakeKernel, Kill, Loss};

/// What happens at a step. How much of it is done nevertheless is a [`Kill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails, the next one works.
    Once(Errno),
    /// It is the last of its process.
    Dead,
}

/// What befalls the calls that sync a log.
#[derive(Default)]
struct Syncs {
    milliseconds: AtomicU64,
    panics: AtomicBool,
}

/// A machine with a directory for the store. Clones are the same.
#[derive(Clone)]
pub struct Disk {
    kernel: FakeKernel,
    syncs: Arc<Syncs>,
}

impl Disk {
    /// An empty directory.
    pub fn new() -> Self {
        let (kernel, syncs) = (FakeKernel::new(), Arc::new(Syncs::default()));
        kernel.create_directories(DIR);
        let on_sync = Arc::clone(&syncs);
        kernel.set_pace(move |name, _| {
            if name == "sync" {
                std::thread::sleep(Duration::from_millis(on_sync.milliseconds.load(Ordering::Relaxed)));
                assert!(!on_sync.panics.swap(false, Ordering::Relaxed), "the sync panics");
            }
        });
        Disk { kernel, syncs }
    }

    /// A directory with a state file, durable.
    pub fn holding(bytes: &[u8]) -> Self {
        let disk = Disk::new();
        disk.write(bytes);
        disk
    }

    /// The files as the current process sees them.
    pub fn files(&self) -> Arc<dyn Files> {
        self.kernel.os().files
    }

    /// The state file.
    pub fn read(&self) -> Vec<u8> {
        self.kernel.read_file(file()).unwrap()
    }

    /// Replaces the state file, durably.
    pub fn write(&self, bytes: &[u8]) {
        self.write_to(&file(), bytes);
    }

    /// Replaces a file, durably.
    pub fn write_to(&self, path: &Path, bytes: &[u8]) {
        self.kernel.write_file(path, bytes).and_then(|()| self.kernel.sync(DIR)).unwrap();
    }

    fn stat(&self) -> FileStat {
        self.files().stat(&file()).unwrap().unwrap()
    }

    /// The names in the store's directory.
    pub fn names(&self) -> Vec<PathBuf> {
        let names = self.files().list(Path::new(DIR)).unwrap();
        names.into_iter().map(|name| Path::new(DIR).join(name)).collect()
    }

    /// The names of the steps from the `from`-th on, which is 0 for the first.
    pub fn steps_since(&self, from: usize) -> Vec<&'static str> {
        self.kernel.steps().into_iter().skip(from).map(|step| step.name).collect()
    }

    /// Steps so far.
    pub fn steps(&self) -> usize {
        self.kernel.steps().len()
    }

    /// How often a log was synced.
    pub fn syncs(&self) -> usize {
        self.steps_since(0).iter().filter(|name| **name == "sync").count()
    }

    /// Plans a fault for the step that comes after `skip` further ones, instead of what was planned; its number.
    pub fn fail(&self, skip: usize, fault: Fault, done: Kill) -> usize {
        let at = self.steps() + skip;
        self.kernel.clear_plans();
        match fault {
            Fault::Once(errno) => self.kernel.fail_having_done_at(skip + 1, errno, done),
            Fault::Dead => self.kernel.kill_at(skip + 1, done),
        }
        at
    }

    /// The next `count` steps after `skip` further ones fail and do nothing, beside what is planned.
    pub fn fail_also(&self, skip: usize, count: usize) {
        (0..count).for_each(|n| self.kernel.fail_at(skip + n + 1, Errno::EIO));
    }

    /// Nothing fails any more, in a new process if the former one has died.
    pub fn heal(&self) {
        self.kernel.clear_plans();
        if self.kernel.is_dead() {
            self.kernel.restart();
        }
    }

    /// Nothing of what was not synced is left.
    pub fn power_cut(&self) {
        self.power_cut_losing(Loss::All);
    }

    /// Some of what was not synced is left.
    pub fn power_cut_losing(&self, loss: Loss) {
        self.kernel.power_cut_losing(loss);
    }

    /// The disk has so many bytes left, or as many as are wished for.
    pub fn set_room(&self, bytes: Option<u64>) {
        const SIZE: u64 = 100 << 30;
        self.kernel.set_space(SIZE, bytes.unwrap_or(SIZE));
    }

    /// What the state file owns behind its end.
    pub fn reserved(&self) -> u64 {
        let stat = self.stat();
        stat.allocated.saturating_sub(stat.size)
    }

    /// How long a sync takes.
    pub fn set_sync_time(&self, time: Duration) {
        self.syncs.milliseconds.store(time.as_millis().try_into().unwrap(), Ordering::Relaxed);
    }

    /// The next sync panics.
    pub fn panic_at_sync(&self) {
        self.syncs.panics.store(true, Ordering::Relaxed);
    }
}
