//! Frozen filesystems.
//!
//! The kernel makes whoever writes to one wait. Here nobody can wait, so writing fails with EAGAIN, an errno that no
//! other call of the fake returns. The limit of a freeze is real time, as for the helper process of the real
//! implementation, and the helper thaws when the driver is killed, unless it is killed too.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::resolve::Last;
use super::tree::{Backing, FsId};
use super::world::{Open, Opened, Resolved, World};
use super::{FakeKernel, Outcome, Process};
use hostloop_kernel::Frozen;

struct Freeze {
    number: u64,
    /// The process whose helper guards it and when that thaws; `None` where nobody does.
    guard: Option<(u64, Instant)>,
    /// The loop device that the superblock is on. It stays even when the filesystem is unmounted.
    device: Option<u32>,
    /// The directory that driver and helper keep open.
    open: Option<u64>,
}

/// What is frozen, and how freezes of this machine go.
#[derive(Default)]
pub(super) struct Freezes {
    now: BTreeMap<FsId, Freeze>,
    count: u64,
    /// The freezes whose limit passed before they were thawed.
    expired: BTreeSet<u64>,
    /// The limit of every new freeze passes at once.
    expire_at_once: bool,
    /// Helpers die with their process.
    container: bool,
    /// How often a filesystem on each device was thawed: a frozen one is not written to before.
    thaws: BTreeMap<u32, u64>,
    /// The kernel does not count writes.
    uncounted: bool,
}

impl Freezes {
    /// A machine that starts again has nothing frozen; how freezes go on it stays.
    pub(super) fn forget(&mut self) {
        *self = Freezes {
            count: self.count,
            expire_at_once: self.expire_at_once,
            container: self.container,
            uncounted: self.uncounted,
            ..Freezes::default()
        };
    }

    pub(super) fn has(&self, fs: FsId) -> bool {
        self.now.contains_key(&fs)
    }

    /// Returns a number that grows when writes to the frozen filesystem on a device become possible.
    pub(super) fn thaws_of(&self, number: u32) -> Option<u64> {
        (!self.uncounted).then(|| self.thaws.get(&number).copied().unwrap_or(0))
    }

    /// Whether a frozen superblock is on the device.
    pub(super) fn hold_device(&self, number: u32) -> bool {
        self.now.values().any(|freeze| freeze.device == Some(number))
    }
}

impl World {
    /// The filesystem that is mounted here.
    fn mounted_at(&self, mount_point: &Path) -> Outcome<Resolved> {
        let place = self.walk(mount_point, Last::Keep)?;
        self.filesystems[place.node.fs].entries(place.node.ino)?;
        let mount = &self.mounts[&place.mount];
        if mount.root == place.node && mount.target == place.path { Ok(place) } else { Err(Errno::EINVAL) }
    }

    /// Freezes for a process; `None` is an administrator. Gives the number of the freeze.
    fn freeze(&mut self, mount_point: &Path, guard: Option<(u64, Duration)>) -> Outcome<u64> {
        let place = self.mounted_at(mount_point)?;
        let fs = place.node.fs;
        match self.filesystems[fs].backing {
            Backing::Memory => return Err(Errno::EOPNOTSUPP),
            Backing::Disk(_) if guard.is_some() => {
                self.hazards
                    .push(format!("{} has the driver's own files and was frozen", place.path.display()));
            }
            _ => {}
        }
        self.sync_filesystem(fs);
        if self.freezes.has(fs) {
            return Err(Errno::EBUSY);
        }
        let open = guard.map(|(generation, _)| {
            let what = Opened::File(place.node);
            self.open(Open { generation: Some(generation), mount: Some(place.mount), what })
        });
        let device = self.mounts[&place.mount].loop_number;
        let expires = self.freezes.expire_at_once;
        self.freezes.count += 1;
        let guard = guard.map(|(generation, limit)| {
            let now = Instant::now();
            let until = if expires {
                now
            } else {
                now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30))
            };
            (generation, until)
        });
        self.freezes.now.insert(fs, Freeze { number: self.freezes.count, guard, device, open });
        Ok(self.freezes.count)
    }

    /// Thaws a filesystem; whether it was frozen.
    fn thaw(&mut self, fs: FsId) -> bool {
        let Some(freeze) = self.freezes.now.remove(&fs) else {
            return false;
        };
        if let Some(open) = freeze.open {
            self.close(open);
        }
        if let Some(device) = freeze.device {
            *self.freezes.thaws.entry(device).or_default() += 1;
            // It goes now, where the filesystem was unmounted meanwhile.
            self.settle(device);
        }
        true
    }

    /// Thaws what a process froze, as its helper does.
    fn thaw_number(&mut self, number: u64) -> Outcome<()> {
        if self.freezes.expired.contains(&number) {
            return Err(Errno::ETIMEDOUT);
        }
        let fs = self.freezes.now.iter().find(|(_, freeze)| freeze.number == number).map(|(fs, _)| *fs);
        // Somebody else has thawed it.
        let fs = fs.ok_or(Errno::EINVAL)?;
        self.thaw(fs);
        Ok(())
    }

    fn thaw_where(&mut self, which: impl Fn(u64, Instant) -> bool) -> Vec<u64> {
        let chosen =
            |freeze: &Freeze| freeze.guard.is_some_and(|(generation, until)| which(generation, until));
        let found: Vec<_> = self
            .freezes
            .now
            .iter()
            .filter(|(_, freeze)| chosen(freeze))
            .map(|(fs, freeze)| (*fs, freeze.number))
            .collect();
        found
            .into_iter()
            .map(|(fs, number)| {
                self.thaw(fs);
                number
            })
            .collect()
    }

    /// Helpers thaw what was frozen for too long.
    pub(super) fn expire_freezes(&mut self) {
        let now = Instant::now();
        let expired = self.thaw_where(|_, until| until <= now);
        self.freezes.expired.extend(expired);
    }

    /// What the helpers of a process do when it is killed: thaw, or die as well.
    pub(super) fn kill_helpers(&mut self, generation: u64) {
        if self.freezes.container {
            for freeze in self.freezes.now.values_mut() {
                freeze.guard = freeze.guard.filter(|(of, _)| *of != generation);
            }
        } else {
            self.thaw_where(|of, _| of == generation);
        }
    }
}

struct FakeFrozen {
    process: Process,
    mount_point: PathBuf,
    number: u64,
    ended: bool,
}

impl FakeFrozen {
    fn release(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let number = self.number;
        self.process.step("thaw", self.mount_point.display(), |world| world.thaw_number(number))
    }
}

impl Frozen for FakeFrozen {
    fn thaw(mut self: Box<Self>) -> io::Result<()> {
        self.release()
    }
}

impl Drop for FakeFrozen {
    fn drop(&mut self) {
        // A process that was killed does nothing more, and its helper has thawed.
        let _ = self.release();
    }
}

impl Process {
    pub(super) fn freeze_mount(&self, mount_point: &Path, limit: Duration) -> io::Result<Box<dyn Frozen>> {
        let guard = Some((self.generation, limit));
        let number = self.step("freeze", mount_point.display(), |world| world.freeze(mount_point, guard))?;
        let (process, mount_point) = (self.clone(), mount_point.to_owned());
        Ok(Box::new(FakeFrozen { process, mount_point, number, ended: false }))
    }

    pub(super) fn thaw_mount(&self, mount_point: &Path) -> io::Result<bool> {
        self.step("thaw", mount_point.display(), |world| {
            let fs = world.mounted_at(mount_point)?.node.fs;
            Ok(world.thaw(fs))
        })
    }
}

impl FakeKernel {
    /// Ends the current process together with its helpers, as the end of its container does: what it has frozen stays
    /// frozen.
    pub fn kill_container(&self) {
        let mut world = self.lock();
        let before = std::mem::replace(&mut world.freezes.container, true);
        let generation = world.generation;
        world.kill(generation);
        world.freezes.container = before;
    }

    /// Whether, from now on, every kill of a process ([`kill_at`](Self::kill_at), [`restart`](Self::restart) and the
    /// others) ends its helpers too, as in [`kill_container`](Self::kill_container).
    pub fn set_container(&self, container: bool) {
        self.lock().freezes.container = container;
    }

    /// The limit of every freeze in force passes now: it thaws, and [`Frozen::thaw`] gives ETIMEDOUT.
    pub fn expire_freezes(&self) {
        let mut world = self.lock();
        let expired = world.thaw_where(|_, _| true);
        world.freezes.expired.extend(expired);
    }

    /// Whether, from now on, the limit of every new freeze passes at once: freezing succeeds, but it does not hold.
    pub fn set_freezes_expire(&self, expire: bool) {
        self.lock().freezes.expire_at_once = expire;
    }

    /// Whether, from now on, the kernel does not count writes to devices (`queue/iostats` is 0).
    pub fn set_writes_uncounted(&self, uncounted: bool) {
        self.lock().freezes.uncounted = uncounted;
    }

    /// Freezes as an administrator does (fsfreeze -f): until somebody thaws it.
    pub fn freeze_foreign(&self, mount_point: impl AsRef<Path>) -> io::Result<()> {
        let mount_point = mount_point.as_ref();
        self.outside("freeze", mount_point, |world| world.freeze(mount_point, None).map(drop))
    }

    /// Thaws as an administrator does (fsfreeze -u); whether it was frozen.
    pub fn thaw_foreign(&self, mount_point: impl AsRef<Path>) -> io::Result<bool> {
        let mount_point = mount_point.as_ref();
        self.outside("thaw", mount_point, |world| {
            let fs = world.mounted_at(mount_point)?.node.fs;
            Ok(world.thaw(fs))
        })
    }

    /// Where frozen filesystems are mounted, in mount order. One that was unmounted since is not among them.
    pub fn frozen(&self) -> Vec<PathBuf> {
        let world = self.lock();
        let frozen = world.mounts.values().filter(|mount| world.freezes.has(mount.root.fs));
        frozen.map(|mount| mount.target.clone()).collect()
    }
}
