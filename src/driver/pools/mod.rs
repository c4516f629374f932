//! The pools: directories whose `volumes/` holds the volumes and whose `snapshots/` holds the snapshots.

pub(super) mod directories;
pub(super) mod enforce;
mod managed;
mod marker;
mod pool;
mod probe;
pub(crate) mod pulse;
mod reserve;
mod slot;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::error::{Error, OsContext, Result};
use crate::kernel::Os;
use crate::model::{PoolName, PoolSettings, Settings};
use crate::store::Store;
pub use pool::Pool;
use pool::{make_directory, open};
use pulse::Pulse;
use slot::{Attempt, Slot, State};

/// Every pool, the default one first. One that is missing or broken costs what is in it only: it is tried again.
pub struct Pools {
    os: Os,
    settings: Settings,
    slots: Vec<Slot>,
    kubelet_dir: Option<PathBuf>,
}

impl Pools {
    /// Checks and prepares the pools: a managed one is mounted, each is locked, has its `volumes/` and `snapshots/`, and
    /// holds what the state file says. Any but the default one is left closed where that is not so, and said.
    ///
    /// # Errors
    /// Where the default pool cannot be used, since its disk has the state file.
    pub fn prepare(settings: &Settings, os: &Os, store: &Store) -> Result<Self> {
        make_directory(os, &settings.data_dir, "frozen", false, &PoolName::default())?;
        let mut slots: Vec<Slot> = Vec::new();
        for pool in &settings.pools {
            let pulse = Pulse::default();
            let answers = answers(&pulse, os, pool);
            let started = Instant::now();
            let opened = answers.and_then(|()| {
                let opened = open(settings, os, store, pool)?;
                alone(&slots, &opened)?;
                Ok(opened)
            });
            let attempt = Attempt::ended(started, &opened);
            let of_state = |opened: &Pool| (pool.name == PoolName::default()).then_some(opened.id);
            let only = opened.as_ref().ok().and_then(of_state);
            let state = match opened {
                Ok(opened) => State::Open(Arc::new(opened)),
                Err(error) if pool.name == PoolName::default() => return Err(error),
                Err(error) => State::closed(&pool.name, error.to_string(), path_of(os, &pool.path)),
            };
            slots.push(Slot {
                settings: pool.clone(),
                state: Mutex::new(state),
                pulse,
                opening: Mutex::new(attempt),
                unrecovered: AtomicBool::new(true),
                only,
            });
        }
        let pools = opened(&slots);
        directories::apart(os, &pools)?;
        directories::report(store, &pools);
        let kubelet_dir = settings
            .kubelet_dir
            .as_deref()
            .map(|dir| os.files.canonicalize(dir).doing(|| format!("--kubelet-dir {}", dir.display())))
            .transpose()?;
        Ok(Pools { os: os.clone(), settings: settings.clone(), slots, kubelet_dir })
    }

    /// The pool with this name, if it is configured and can be used now.
    ///
    /// # Errors
    /// FAILED_PRECONDITION for one that is not configured, UNAVAILABLE with the reason for one that cannot be used.
    pub fn get(&self, name: &PoolName) -> Result<Arc<Pool>> {
        self.look(self.configured(name)?).map_err(|why| Error::Unavailable(unavailable(name, &why)))
    }

    /// The pool with this name, for something new.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that does not exist, with the names of those that do; RESOURCE_EXHAUSTED for one that
    /// cannot be used, so that another node is chosen.
    pub fn require(&self, name: &PoolName) -> Result<Arc<Pool>> {
        pulse::note(name);
        let missing = || {
            let names: Vec<&str> = self.slots.iter().map(|slot| slot.name().as_str()).collect();
            Error::Invalid(format!(
                "pool {:?} does not exist; the pools are: {}",
                name.as_str(),
                names.join(", ")
            ))
        };
        let slot = self.slot(name).ok_or_else(missing)?;
        self.look(slot).map_err(|why| Error::Exhausted(unavailable(name, &why)))
    }

    /// Every pool that can be used now.
    pub fn open(&self) -> Vec<Arc<Pool>> {
        self.slots.iter().filter_map(|slot| self.look(slot).ok()).collect()
    }

    /// Every pool with why it cannot be used, if so. Touches no disk.
    pub fn states(&self) -> Vec<(PoolName, Option<String>)> {
        let state = |slot: &Slot| match &*slot.state() {
            State::Open(_) => slot.pulse.silence(),
            State::Closed { why, .. } => Some(why.clone()),
        };
        self.slots.iter().map(|slot| (slot.name().clone(), state(slot))).collect()
    }

    /// The reason in health of a pool that cannot be used: it was closed, or its disk does not answer.
    pub(crate) fn trouble(&self, name: &PoolName) -> &'static str {
        if self.slot(name).is_some_and(|slot| slot.pool().is_none()) {
            "PoolUnavailable"
        } else {
            "PoolUnreadable"
        }
    }

    /// Asks the disks of these pools whether they answer, and waits for that: why not, for each that does not.
    pub(crate) fn silent(&self, names: &[PoolName]) -> Vec<(PoolName, String)> {
        let asked: Vec<&Slot> = self.asked(names).filter(|slot| slot.pool().is_some()).collect();
        let silent = asked.into_iter().filter_map(|slot| Some((slot, slot.pulse.wait().err()?)));
        silent.map(|(slot, why)| (slot.name().clone(), why)).collect()
    }

    /// Why one of these pools has a silent disk. Asks them without waiting for the answer.
    pub(crate) fn is_silent(&self, names: &[PoolName]) -> Option<(PoolName, String)> {
        let asked: Vec<&Slot> = self.asked(names).collect();
        asked.iter().find_map(|slot| Some((slot.name().clone(), slot.pulse.silence()?)))
    }

    /// Where a pool's files are, or would be if it could be used: enough to ask the kernel who uses them.
    ///
    /// # Errors
    /// FAILED_PRECONDITION for a pool that is not configured.
    pub fn place(&self, name: &PoolName) -> Result<PathBuf> {
        Ok(self.configured(name)?.path())
    }

    /// Name and places of each pool over which nothing may be mounted: its directory, its image or device.
    pub fn places(&self) -> Vec<(PoolName, PathBuf, Option<PathBuf>)> {
        let places = |slot: &Slot| match &*slot.state() {
            State::Open(pool) => (pool.path.clone(), pool.medium.clone()),
            State::Closed { path, .. } => (path.clone(), slot.settings.kind.medium().cloned()),
        };
        let all = self.slots.iter().map(|slot| (slot, places(slot)));
        all.map(|(slot, (path, medium))| (slot.name().clone(), path, medium)).collect()
    }

    /// Where staging and target paths must lie, if the administrator says so; links resolved.
    pub fn kubelet_dir(&self) -> Option<&PathBuf> {
        self.kubelet_dir.as_ref()
    }

    /// Every pool, the default one first.
    pub fn names(&self) -> Vec<PoolName> {
        self.slots.iter().map(|slot| slot.name().clone()).collect()
    }

    /// Tries to open a pool that cannot be used. Whether it can be used now, and what is in it has not been recovered.
    /// Returns at once where another thread tries. May take long: a managed pool is checked.
    pub(crate) fn reopen(&self, name: &PoolName, store: &Store) -> bool {
        let Some(slot) = self.slot(name) else { return false };
        let Ok(mut attempt) = slot.opening.try_lock() else { return false };
        let usable = self.look(slot).is_ok();
        if !usable && attempt.is_due() {
            // A question that waits is not asked again: it costs nothing.
            let answers = answers(&slot.pulse, &self.os, &slot.settings);
            let started = Instant::now();
            let opened = answers.and_then(|()| self.is_of_state(slot)).and_then(|()| {
                let pool = open(&self.settings, &self.os, store, &slot.settings)?;
                alone(&self.slots, &pool)?;
                let mut all = opened(&self.slots);
                all.push(Arc::new(pool.clone()));
                directories::apart(&self.os, &all).map(|()| pool)
            });
            *attempt = Attempt::ended(started, &opened);
            match opened {
                Ok(opened) => {
                    tracing::info!(pool = %name, path = %opened.path.display(), "the pool is available again");
                    *slot.state() = State::Open(Arc::new(opened));
                }
                // The disk of an open pool is silent: nothing in the pool has changed, and nothing waits for recovery.
                Err(_) if slot.pool().is_some() && slot.pulse.silence().is_some() => {}
                Err(error) => slot.close(error.to_string()),
            }
        }
        self.look(slot).is_ok() && slot.unrecovered.load(Ordering::Acquire)
    }

    /// What is in the pool has been recovered.
    pub(crate) fn recovered(&self, name: &PoolName) {
        if let Some(slot) = self.slot(name) {
            slot.unrecovered.store(false, Ordering::Release);
        }
    }

    /// The default pool is never taken for another directory than the one whose state file is in use.
    fn is_of_state(&self, slot: &Slot) -> Result<()> {
        let Some(only) = slot.only else { return Ok(()) };
        let path = path_of(&self.os, &slot.settings.path);
        let found = self.os.files.stat(&path).doing(|| format!("look at {}", path.display()))?;
        match found {
            Some(found) if found.id == only => Ok(()),
            _ => Err(Error::InUse(format!(
                "{} is not the directory that the driver was started on: is its disk mounted? If it was mounted again, restart the driver",
                path.display()
            ))),
        }
    }

    fn slot(&self, name: &PoolName) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.name() == name)
    }

    fn configured(&self, name: &PoolName) -> Result<&Slot> {
        pulse::note(name);
        let missing =
            || Error::InUse(format!("pool {name} is not configured; start with --pool {name}=PATH"));
        self.slot(name).ok_or_else(missing)
    }

    /// The slots of these pools. As each is taken the disk of an open one is asked whether it answers.
    fn asked<'a>(&'a self, names: &'a [PoolName]) -> impl Iterator<Item = &'a Slot> {
        let slots = names.iter().filter_map(|name| self.slot(name));
        slots.inspect(|slot| slot.pool().into_iter().for_each(|pool| slot.pulse.ask(&self.os, &pool.path)))
    }

    /// The pool, if its directory is still the one that was opened: where its disk is unmounted, what is below must
    /// not be taken for it.
    fn look(&self, slot: &Slot) -> Result<Arc<Pool>, String> {
        let pool = match &*slot.state() {
            State::Open(pool) => Arc::clone(pool),
            State::Closed { why, .. } => return Err(why.clone()),
        };
        if let Some(why) = slot.pulse.silence() {
            return Err(why);
        }
        let path = pool.path.display();
        match self.os.files.stat(&pool.path) {
            Ok(Some(stat)) if stat.id == pool.id => Ok(pool),
            Ok(_) => {
                let why = format!("{path} is not what it was when the pool was opened: is its disk mounted?");
                slot.close(why.clone());
                Err(why)
            }
            Err(error) => Err(format!("its disk does not answer: {error}")),
        }
    }
}

/// Makes sure that the disk of a pool that is to be opened answers, so that one that hangs keeps nobody. On the disk of
/// the default pool is the state file, which was read before.
fn answers(pulse: &Pulse, os: &Os, pool: &PoolSettings) -> Result<()> {
    if pool.name == PoolName::default() {
        return Ok(());
    }
    pulse.ask(os, pool.kind.medium().unwrap_or(&pool.path));
    let silent = pulse.wait().err().filter(|_| pulse.silence().is_some());
    silent.map_or(Ok(()), |why| Err(Error::Unavailable(why)))
}

/// The pools that could be used when they were looked at last.
fn opened(slots: &[Slot]) -> Vec<Arc<Pool>> {
    slots.iter().filter_map(Slot::pool).collect()
}

/// Says that a pool cannot be used.
fn unavailable(name: &PoolName, why: &str) -> String {
    let why = why.strip_prefix(&format!("pool {name}: ")).unwrap_or(why);
    format!("pool {name} is not available: {why}")
}

/// The path with links resolved, as far as it is there.
fn path_of(os: &Os, path: &Path) -> PathBuf {
    os.files.canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// No two pools are one directory.
fn alone(slots: &[Slot], pool: &Pool) -> Result<()> {
    match opened(slots).iter().find(|other| other.id == pool.id && other.name != pool.name) {
        Some(other) => {
            let (path, other) = (pool.path.display(), &other.name);
            Err(Error::InUse(format!("{path} is the directory of pool {other} already")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
