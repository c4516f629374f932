//! Holds on mounts: a process that looks at a mount keeps it from being unmounted for a moment.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::world::{Open, Opened, Resolved, World};
use super::{Descriptor, Process};
use hostloop_kernel::{MountEntry, Pinned};

/// How long the kernel's caller waits for the looks of its other threads.
const PASSING_USE: Duration = Duration::from_secs(2);

impl World {
    /// Opens a place for a process, which gets to it by the descriptor.
    pub(super) fn pin(&mut self, generation: u64, place: Resolved) -> u64 {
        let what = Opened::File(place.node);
        let id = self.open(Open { generation: Some(generation), mount: Some(place.mount), what });
        self.pins.insert(id, place);
        id
    }
}

impl Process {
    /// Waits while another thread looks at a mount, or at a copy of it, as the real one does before it says EBUSY.
    pub(super) fn wait_for_looks(&self, mount: impl Fn(&World) -> Option<u64>) {
        let last_try = Instant::now() + PASSING_USE;
        let is_looked_at = || {
            let mut world = self.kernel.lock();
            let Some(number) = mount(&world).filter(|number| world.mounts.contains_key(number)) else {
                return false;
            };
            let mut mounts = world.copies_of(number);
            mounts.push(number);
            world.pins.keys().any(|pin| world.opens[pin].mount.is_some_and(|at| mounts.contains(&at)))
        };
        while is_looked_at() && Instant::now() < last_try {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Opens the root of a mount without a step.
    pub(super) fn pin_mount(&self, mount: &MountEntry) -> std::io::Result<Pinned> {
        let subject = mount.target.display();
        let place = self.look("open", &subject, |world| world.reach(mount))?;
        self.pin(place, &subject, "/.")
    }

    /// Opens what lies below a directory, without a step.
    pub(super) fn pin_below(&self, directory: &Path, below: &Path) -> std::io::Result<Pinned> {
        let whole = directory.join(below);
        let subject = whole.display();
        let place = self.look("open", &subject, |world| world.beneath(directory, below))?;
        let is_directory =
            matches!(self.kernel.lock().inode(place.node).node, super::tree::Node::Directory { .. });
        self.pin(place, &subject, if is_directory { "/." } else { "" })
    }

    fn pin(&self, place: Resolved, subject: &impl Display, end: &str) -> std::io::Result<Pinned> {
        let mut world = self.kernel.lock();
        if !world.alive.contains(&self.generation) {
            return Err(hostloop_kernel::errno_error(Errno::EIO, format!("open {subject}")));
        }
        let id = world.pin(self.generation, place);
        drop(world);
        Ok(self.pinned(id, end))
    }

    /// What a descriptor leads to.
    pub(super) fn pinned(&self, id: u64, end: &str) -> Pinned {
        let hold = Box::new(Descriptor { kernel: self.kernel.clone(), id });
        Pinned::new(PathBuf::from(format!("/proc/self/fd/{id}{end}")), hold)
    }
}
