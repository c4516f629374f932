//! A stateful fake kernel: files with what a power cut would leave of them, mounts, loop devices and filesystems, all in
//! memory and without root. The driver runs on it unchanged, and a test can make every step fail
//! ([`FakeKernel::fail_at`]) or be the last of its process ([`FakeKernel::kill_at`]).
//!
//! Where the kernel has a choice, the fake takes the worst one for the driver: nothing is durable that was not synced,
//! and the entry of a new file needs a sync of its directory. Where a part may be durable, a seed chooses that part
//! ([`FakeKernel::power_cut_losing`]).
//!
//! A write to a frozen filesystem, which would wait on a real machine, fails here with EAGAIN.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support only: a broken invariant of the fake must stop the test"
)]

mod afterwards;
mod apart;
mod blocks;
mod chance;
mod content;
mod copies;
mod copy_tree;
mod device_io;
mod durable;
mod files;
mod filesystems;
mod freeze;
mod images;
mod logs;
mod looks;
mod loops;
mod losses;
mod machine;
mod mountable;
mod mounts;
pub mod part;
mod pod;
mod power;
mod propagation;
mod quota_admin;
mod quotas;
mod resolve;
mod seam;
mod space;
mod subvolumes;
mod superblock;
#[cfg(test)]
mod tests;
mod tree;
mod tree_stream;
mod trees;
mod world;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nix::errno::Errno;

use self::world::World;
use hostloop_kernel::Os;

pub use self::losses::Loss;
pub use self::pod::PodHandle;
pub use self::seam::{Kill, Step};

/// What the kernel answers, before it gets its context.
type Outcome<T> = Result<T, Errno>;

/// What comes before each call of a process: its name, and what it is made on.
type Pace = Box<dyn Fn(&'static str, &str) + Send + Sync>;

/// The fake machine. Clones are the same machine.
#[derive(Clone)]
pub struct FakeKernel {
    world: Arc<Mutex<World>>,
    pace: Arc<OnceLock<Pace>>,
}

/// One process of the driver: the traits of [`hostloop_kernel`] as it sees them.
#[derive(Clone)]
struct Process {
    kernel: FakeKernel,
    generation: u64,
    /// The attachments of loop devices that it knows of, see [`loops`].
    seen: Arc<Mutex<Option<BTreeSet<u64>>>>,
    /// The numbers of loop devices that were there when it attached its first one.
    other_loops: OnceLock<BTreeSet<u32>>,
}

/// An open descriptor of some process; closing it is not a step.
struct Descriptor {
    kernel: FakeKernel,
    id: u64,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.kernel.lock().close(self.id);
    }
}

impl Default for FakeKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeKernel {
    /// A machine that has just started: `/` is ext4 on /dev/vda1 with /var/lib, /tmp, /dev and /run; its disk
    /// has 100 GiB.
    pub fn new() -> Self {
        FakeKernel { world: Arc::new(Mutex::new(World::new())), pace: Arc::default() }
    }

    /// The machine as the current process of the driver sees it; of no use any more once that was killed.
    pub fn os(&self) -> Os {
        let generation = self.lock().generation;
        self.process(generation)
    }

    /// Ends every process of the driver, if any still lives, and gives the machine as a new one sees it:
    /// what was done is still there, descriptors and locks are not. Plans are cleared, but for faults that last.
    pub fn restart(&self) -> Os {
        let generation = self.lock().restart();
        self.process(generation)
    }

    /// Cuts the power and starts the machine again: mounts and loop devices are gone, and the disk holds only
    /// what was made durable. Gives the machine as a new process sees it. Plans are cleared.
    pub fn power_cut(&self) -> Os {
        self.power_cut_losing(Loss::All)
    }

    /// The same where a part of what was not synced has come to the disk nevertheless.
    pub fn power_cut_losing(&self, loss: Loss) -> Os {
        let generation = self.lock().power_cut(loss);
        self.process(generation)
    }

    /// An orderly restart of the machine: everything is on disk, mounts and loop devices are gone.
    pub fn reboot(&self) -> Os {
        let generation = self.lock().reboot();
        self.process(generation)
    }

    /// A further process beside the current one, as when two drivers share a data directory.
    pub fn spawn(&self) -> Os {
        let generation = self.lock().spawn();
        self.process(generation)
    }

    /// Kills the current process at once: its calls fail with EIO from here on and change nothing.
    pub fn kill(&self) {
        let mut world = self.lock();
        let generation = world.generation;
        world.kill(generation);
    }

    /// Whether the current process was killed.
    pub fn is_dead(&self) -> bool {
        let world = self.lock();
        !world.alive.contains(&world.generation)
    }

    fn process(&self, generation: u64) -> Os {
        let process = Arc::new(Process {
            kernel: self.clone(),
            generation,
            seen: Arc::default(),
            other_loops: OnceLock::new(),
        });
        Os {
            files: process.clone(),
            images: process.clone(),
            trees: process.clone(),
            mounts: process.clone(),
            loops: process.clone(),
            quotas: process.clone(),
            filesystems: process,
        }
    }

    /// A test that panics with the world locked leaves it to the others as it is. Time passes in between.
    fn lock(&self) -> MutexGuard<'_, World> {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.expire_freezes();
        world
    }
}
