//! The pools: directories whose `volumes/` holds the volumes and whose `snapshots/` holds the snapshots.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::pool_marker::Marker;
use super::probe::Probe;
use super::pulse::{self, Pulse};
use super::{directories, managed_pool, reserve};
use crate::error::{Error, OsContext, Result};
use crate::model::{PoolName, PoolSettings, Settings};
use crate::os::{FileId, FileKind, Os, errno_of, holder};
use crate::store::Store;

/// One prepared pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// Its directory with every link resolved.
    pub path: PathBuf,
    /// What that directory is to the kernel.
    pub id: FileId,
    /// What volumes leave free.
    pub reserve: crate::model::Reserve,
    /// Bytes promised for each byte there is.
    pub overcommit: f64,
    /// What its filesystem can do.
    pub probe: Probe,
    /// Whether the filesystem is hostloop's own, so that nobody else can take its space.
    pub managed: bool,
    /// The image or device of a managed pool, links resolved.
    pub medium: Option<PathBuf>,
    /// Whether it is a pool of directory volumes, and of nothing else.
    pub directories: bool,
    _locks: PoolLocks,
}

impl Pool {
    /// The logical block size in bytes for a new volume's loop device: 512, or more where direct I/O on the
    /// pool's disk needs it (loop silently falls back to buffered I/O on a device of smaller blocks).
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the disk is too full to find it out.
    pub fn block_size(&self, os: &Os, direct_io: bool) -> Result<u32> {
        let alignment = match direct_io {
            true => self.probe.direct_io_alignment(os, &self.path)?,
            false => None,
        };
        let usable = alignment.filter(|alignment| *alignment <= 4096 && alignment.is_power_of_two());
        Ok(usable.unwrap_or(512).max(512))
    }

    /// Whether copies can share blocks with what they were made from.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the disk is too full to find it out.
    pub fn reflink(&self, os: &Os) -> Result<bool> {
        self.probe.reflink(os, &self.path)
    }
}

/// What keeps a pool for this process, released when it is dropped.
#[derive(Clone)]
struct PoolLocks(#[allow(dead_code, reason = "held for its drop")] Arc<Vec<Box<dyn Send + Sync>>>);

impl std::fmt::Debug for PoolLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PoolLocks")
    }
}

/// One configured pool.
struct Slot {
    settings: PoolSettings,
    state: Mutex<State>,
    /// Whether its disk answers.
    pulse: Pulse,
    /// Taken by the one who tries to open it.
    opening: Mutex<Attempt>,
    /// Volumes and snapshots in it wait for recovery.
    unrecovered: AtomicBool,
    /// The directory that it must be: that of the state file, which is open.
    only: Option<FileId>,
}

enum State {
    /// It can be used.
    Open(Arc<Pool>),
    /// It cannot: why, and where it was, or would be.
    Closed { why: String, path: PathBuf },
}

/// The last time that a pool was tried to be opened.
#[derive(Default)]
struct Attempt(Option<(Instant, Duration)>);

impl Attempt {
    /// One that ends now. To wait for somebody else costs nothing, and may be over at the next moment.
    fn ended<T>(started: Instant, opened: &Result<T>) -> Self {
        let waited = matches!(opened, Err(Error::Unavailable(_)));
        Attempt(Some((started, if waited { Duration::ZERO } else { started.elapsed() })))
    }

    /// A try that is dear, such as the check of a whole filesystem, is repeated in proportion to its cost.
    fn is_due(&self) -> bool {
        self.0.is_none_or(|(at, cost)| at.elapsed() >= cost * 20)
    }
}

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
        pulse::note(name);
        let slot = self.slot(name);
        let missing =
            || Error::InUse(format!("pool {name} is not configured; start with --pool {name}=PATH"));
        self.look(slot.ok_or_else(missing)?).map_err(|why| Error::Unavailable(unavailable(name, &why)))
    }

    /// The pool with this name, for something new.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that does not exist, with the names of those that do; RESOURCE_EXHAUSTED for one that
    /// cannot be used, so that another node is chosen.
    pub fn require(&self, name: &PoolName) -> Result<Arc<Pool>> {
        pulse::note(name);
        let missing = || {
            let names: Vec<&str> = self.slots.iter().map(|slot| slot.settings.name.as_str()).collect();
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
        self.slots.iter().map(|slot| (slot.settings.name.clone(), state(slot))).collect()
    }

    /// The reason in health of a pool that cannot be used: it was closed, or its disk does not answer.
    pub(super) fn trouble(&self, name: &PoolName) -> &'static str {
        let closed = |slot: &Slot| matches!(&*slot.state(), State::Closed { .. });
        if self.slot(name).is_some_and(closed) { "PoolUnavailable" } else { "PoolUnreadable" }
    }

    /// Asks the disks of these pools whether they answer, and waits for that: why not, for each that does not.
    pub(super) fn silent(&self, names: &[PoolName]) -> Vec<(PoolName, String)> {
        let slots: Vec<&Slot> = names.iter().filter_map(|name| self.slot(name)).collect();
        let open = |slot: &&Slot| match &*slot.state() {
            State::Open(pool) => Some(Arc::clone(pool)),
            State::Closed { .. } => None,
        };
        let asked = slots.iter().filter_map(|slot| Some((slot, open(slot)?)));
        let asked: Vec<_> = asked.inspect(|(slot, pool)| slot.pulse.ask(&self.os, &pool.path)).collect();
        let silent = asked.into_iter().filter_map(|(slot, _)| Some((slot, slot.pulse.wait().err()?)));
        silent.map(|(slot, why)| (slot.settings.name.clone(), why)).collect()
    }

    /// Why one of these pools has a silent disk. Asks them without waiting for the answer.
    pub(super) fn is_silent(&self, names: &[PoolName]) -> Option<(PoolName, String)> {
        let slots: Vec<&Slot> = names.iter().filter_map(|name| self.slot(name)).collect();
        for slot in &slots {
            if let State::Open(pool) = &*slot.state() {
                slot.pulse.ask(&self.os, &pool.path);
            }
        }
        slots.iter().find_map(|slot| Some((slot.settings.name.clone(), slot.pulse.silence()?)))
    }

    /// Where a pool's files are, or would be if it could be used: enough to ask the kernel who uses them.
    ///
    /// # Errors
    /// FAILED_PRECONDITION for a pool that is not configured.
    pub fn place(&self, name: &PoolName) -> Result<PathBuf> {
        pulse::note(name);
        let missing =
            || Error::InUse(format!("pool {name} is not configured; start with --pool {name}=PATH"));
        Ok(match &*self.slot(name).ok_or_else(missing)?.state() {
            State::Open(pool) => pool.path.clone(),
            State::Closed { path, .. } => path.clone(),
        })
    }

    /// Name and places of each pool over which nothing may be mounted: its directory, its image or device.
    pub fn places(&self) -> Vec<(PoolName, PathBuf, Option<PathBuf>)> {
        let places = |slot: &Slot| match &*slot.state() {
            State::Open(pool) => (pool.path.clone(), pool.medium.clone()),
            State::Closed { path, .. } => (path.clone(), slot.settings.kind.medium().cloned()),
        };
        let all = self.slots.iter().map(|slot| (slot, places(slot)));
        all.map(|(slot, (path, medium))| (slot.settings.name.clone(), path, medium)).collect()
    }

    /// Where staging and target paths must lie, if the administrator says so; links resolved.
    pub fn kubelet_dir(&self) -> Option<&PathBuf> {
        self.kubelet_dir.as_ref()
    }

    /// Every pool, the default one first.
    pub fn names(&self) -> Vec<PoolName> {
        self.slots.iter().map(|slot| slot.settings.name.clone()).collect()
    }

    /// Tries to open a pool that cannot be used. Whether it can be used now, and what is in it has not been recovered.
    /// Returns at once where another thread tries. May take long: a managed pool is checked.
    pub(super) fn reopen(&self, name: &PoolName, store: &Store) -> bool {
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
                Err(error) => slot.close(error.to_string()),
            }
        }
        self.look(slot).is_ok() && slot.unrecovered.load(Ordering::Acquire)
    }

    /// What is in the pool has been recovered.
    pub(super) fn recovered(&self, name: &PoolName) {
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
        self.slots.iter().find(|slot| slot.settings.name == *name)
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

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, why: String) {
        let mut state = self.state();
        let path = match &*state {
            State::Open(pool) => pool.path.clone(),
            State::Closed { why: before, .. } if *before == why => return,
            State::Closed { path, .. } => path.clone(),
        };
        self.unrecovered.store(true, Ordering::Release);
        *state = State::closed(&self.settings.name, why, path);
    }
}

impl State {
    fn closed(name: &PoolName, why: String, path: PathBuf) -> State {
        tracing::error!(
            pool = %name, path = %path.display(),
            "the pool is not available, nor are its volumes; other pools are served, and this one is tried again: {why}"
        );
        State::Closed { why, path }
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
    let open = |slot: &Slot| match &*slot.state() {
        State::Open(pool) => Some(Arc::clone(pool)),
        State::Closed { .. } => None,
    };
    slots.iter().filter_map(open).collect()
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

/// Checks and prepares one pool.
fn open(settings: &Settings, os: &Os, store: &Store, pool: &PoolSettings) -> Result<Pool> {
    let (volumes, snapshots) = (store.volumes(), store.snapshots());
    let of_volumes = volumes.iter().any(|volume| *volume.pool() == pool.name);
    let of_snapshots = snapshots.iter().any(|snapshot| snapshot.pool == pool.name);
    let opened = managed_pool::open(os, settings, pool, of_volumes || of_snapshots)?;
    let (medium, mut locks) = opened.map_or((None, Vec::new()), |opened| (Some(opened.medium), opened.locks));
    let looking = || format!("pool {}: {}", pool.name, pool.path.display());
    let path = match os.files.canonicalize(&pool.path) {
        Err(error) if matches!(errno_of(&error), Some(Errno::ENOENT | Errno::ENOTDIR)) => {
            let path = pool.path.display();
            return Err(Error::InUse(format!("{path} is not there: is its disk mounted?")));
        }
        path => path.doing(looking)?,
    };
    let found = os.files.stat(&path).doing(looking)?;
    let Some(found) = found.filter(|found| found.kind == FileKind::Directory) else {
        return Err(Error::InUse(format!("{} is not a directory", path.display())));
    };
    let plain = pool.name != PoolName::default() && medium.is_none();
    let marker = plain.then(|| Marker::new(os, settings, store, pool, &path));
    if let Some(marker) = &marker {
        marker.check()?; // before anything is written
        locks.push(os.files.lock(&path.join("lock")).doing(|| format!("pool {}", pool.name))?);
    }
    make_directory(os, &path, "volumes", of_volumes, &pool.name)?;
    make_directory(os, &path, "snapshots", of_snapshots, &pool.name)?;
    if let Some(marker) = &marker {
        marker.write()?;
    }
    let probe = Probe::begin(os, &path)?;
    let reserve = reserve::settle(os, settings, pool, &path)?;
    let PoolSettings { name, overcommit, directories, .. } = pool.clone();
    let managed = medium.is_some();
    let (id, _locks) = (found.id, PoolLocks(Arc::new(locks)));
    let prepared = Pool { name, path, id, reserve, overcommit, probe, managed, medium, directories, _locks };
    report(os, &prepared, pool.kind.as_str())?;
    Ok(prepared)
}

/// No two pools are one directory.
fn alone(slots: &[Slot], pool: &Pool) -> Result<()> {
    let same = |slot: &&Slot| match &*slot.state() {
        State::Open(other) => other.id == pool.id && other.name != pool.name,
        State::Closed { .. } => false,
    };
    match slots.iter().find(same) {
        Some(other) => {
            let (path, other) = (pool.path.display(), &other.settings.name);
            Err(Error::InUse(format!("{path} is the directory of pool {other} already")))
        }
        None => Ok(()),
    }
}

/// One line for each pool: what it is, and what can be expected of it.
fn report(os: &Os, pool: &Pool, kind: &str) -> Result<()> {
    let mounts = os.mounts.list().doing(|| "read mountinfo".to_owned())?;
    let space = os.files.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
    let mount = holder(&mounts, &pool.path);
    tracing::info!(
        pool = %pool.name, kind, path = %pool.path.display(), fs_type = mount.map_or("unknown", |m| m.fs_type.as_str()),
        bytes = space.total, available = space.available, reserve = pool.reserve.bytes(space.total),
        reflink = pool.probe.describe_reflink(), direct_io = pool.probe.describe_direct_io(), "pool"
    );
    Ok(())
}

fn make_directory(os: &Os, pool: &Path, place: &str, in_use: bool, name: &PoolName) -> Result<()> {
    let directory = pool.join(place);
    let preparing = || format!("prepare {}", directory.display());
    match os.files.stat(&directory).doing(preparing)?.map(|stat| stat.kind) {
        Some(FileKind::Directory) => Ok(()),
        Some(_) => Err(Error::InUse(format!("{} is not a directory", directory.display()))),
        None if in_use => Err(Error::InUse(format!(
            "pool {name} should hold {place}, but {} is missing: is its disk mounted at {}?",
            directory.display(),
            pool.display()
        ))),
        None => {
            os.files.create_directory(&directory, 0o711).doing(preparing)?;
            os.files.sync_directory(pool).doing(preparing)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dear_try_is_not_repeated_soon() {
        assert!(Attempt::default().is_due(), "the first");
        let ago = |age: u64, cost: u64| {
            let at = Instant::now().checked_sub(Duration::from_secs(age)).unwrap();
            Attempt(Some((at, Duration::from_secs(cost))))
        };
        assert!(ago(0, 0).is_due() && ago(61, 3).is_due() && ago(60, 3).is_due());
        assert!(!ago(0, 1).is_due() && !ago(50, 3).is_due());
        let started = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        assert!(Attempt::ended::<()>(started, &Err(Error::Unavailable(String::new()))).is_due());
        assert!(!Attempt::ended::<()>(started, &Err(Error::InUse(String::new()))).is_due());
        assert!(!Attempt::ended(started, &Ok(())).is_due());
    }
}
