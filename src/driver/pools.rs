//! The pools: directories whose `volumes/` holds the volumes and whose `snapshots/` holds the snapshots.

use std::path::{Path, PathBuf};

use super::managed_pool;
use super::probe::Probe;
use crate::error::{Error, OsContext, Result};
use crate::model::{PoolName, PoolSettings, Settings};
use crate::os::{FileKind, Os};
use crate::store::Store;

/// One prepared pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// Its directory with every link resolved.
    pub path: PathBuf,
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

/// Every pool, the default one first.
#[derive(Debug, Clone)]
pub struct Pools {
    pools: Vec<Pool>,
    kubelet_dir: Option<PathBuf>,
    _locks: std::sync::Arc<Vec<PoolLock>>,
}

struct PoolLock(#[allow(dead_code, reason = "held for its drop")] Box<dyn Send + Sync>);

impl std::fmt::Debug for PoolLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PoolLock")
    }
}

impl Pools {
    /// Checks and prepares the pools: a managed one is mounted, each is locked, has its `volumes/` and `snapshots/`, and
    /// holds what the state file says.
    ///
    /// # Errors
    /// Where a path is missing or locked by another process, or where a pool that should hold volumes or snapshots
    /// has no directory of them: then its disk is probably not mounted, and going on would write to the disk below.
    pub fn prepare(settings: &Settings, os: &Os, store: &Store) -> Result<Self> {
        let mut locks = Vec::new();
        let mut pools = Vec::new();
        let (volumes, snapshots) = (store.volumes(), store.snapshots());
        make_directory(os, &settings.data_dir, "frozen", false, &PoolName::default())?;
        for pool in &settings.pools {
            let in_use = volumes.iter().any(|volume| *volume.pool() == pool.name)
                || snapshots.iter().any(|snapshot| snapshot.pool == pool.name);
            let opened = managed_pool::open(os, settings, pool, in_use)?;
            let (medium, of_it) =
                opened.map_or((None, Vec::new()), |opened| (Some(opened.medium), opened.locks));
            locks.extend(of_it.into_iter().map(PoolLock));
            let path = os
                .disks
                .canonicalize(&pool.path)
                .doing(|| format!("pool {}: {}", pool.name, pool.path.display()))?;
            if pool.name != PoolName::default() && medium.is_none() {
                let lock = os.disks.lock(&path.join("lock")).doing(|| format!("pool {}", pool.name))?;
                locks.push(PoolLock(lock));
            }
            let holds = volumes.iter().any(|volume| *volume.pool() == pool.name);
            make_directory(os, &path, "volumes", holds, &pool.name)?;
            let holds = snapshots.iter().any(|snapshot| snapshot.pool == pool.name);
            make_directory(os, &path, "snapshots", holds, &pool.name)?;
            let probe = Probe::begin(os, &path)?;
            let PoolSettings { name, reserve, overcommit, .. } = pool.clone();
            let managed = medium.is_some();
            let prepared = Pool { name, path, reserve, overcommit, probe, managed, medium };
            report(os, &prepared, pool.kind.as_str())?;
            pools.push(prepared);
        }
        let kubelet_dir = settings
            .kubelet_dir
            .as_deref()
            .map(|dir| os.disks.canonicalize(dir).doing(|| format!("--kubelet-dir {}", dir.display())));
        Ok(Pools { pools, kubelet_dir: kubelet_dir.transpose()?, _locks: std::sync::Arc::new(locks) })
    }

    /// The pool with this name.
    pub fn get(&self, name: &PoolName) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == *name)
    }

    /// Every pool.
    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter()
    }

    /// Where staging and target paths must lie, if the administrator says so; links resolved.
    pub fn kubelet_dir(&self) -> Option<&PathBuf> {
        self.kubelet_dir.as_ref()
    }

    /// The pool with this name, or an error that names those that exist.
    ///
    /// # Errors
    /// INVALID_ARGUMENT.
    pub fn require(&self, name: &PoolName) -> Result<&Pool> {
        self.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
            Error::Invalid(format!(
                "pool {:?} does not exist, there are: {}",
                name.as_str(),
                names.join(", ")
            ))
        })
    }
}

/// One line for each pool: what it is, and what can be expected of it.
fn report(os: &Os, pool: &Pool, kind: &str) -> Result<()> {
    let mounts = os.mounts.list().doing(|| "read mountinfo".to_owned())?;
    let space = os.disks.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
    // The longest target covers the path; of several at one target the last lies on top.
    let covering = mounts.iter().filter(|mount| pool.path.starts_with(&mount.target));
    let mount = covering.max_by_key(|mount| mount.target.components().count());
    tracing::info!(
        pool = %pool.name, kind, path = %pool.path.display(), fs_type = mount.map_or("unknown", |m| m.fs_type.as_str()),
        bytes = space.total, available = space.available, reflink = pool.probe.describe_reflink(),
        direct_io = pool.probe.describe_direct_io(), "pool"
    );
    Ok(())
}

fn make_directory(os: &Os, pool: &Path, place: &str, in_use: bool, name: &PoolName) -> Result<()> {
    let directory = pool.join(place);
    let preparing = || format!("prepare {}", directory.display());
    match os.disks.stat(&directory).doing(preparing)?.map(|stat| stat.kind) {
        Some(FileKind::Directory) => Ok(()),
        Some(_) => Err(Error::InUse(format!("{} is not a directory", directory.display()))),
        None if in_use => Err(Error::InUse(format!(
            "pool {name} should hold {place}, but {} is missing: is its disk mounted at {}?",
            directory.display(),
            pool.display()
        ))),
        None => {
            os.disks.create_directory(&directory, 0o711).doing(preparing)?;
            os.disks.sync_directory(pool).doing(preparing)
        }
    }
}
