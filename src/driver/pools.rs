//! The pools: directories whose `volumes/` holds the volumes.

use std::path::{Path, PathBuf};

use crate::error::{Error, OsContext, Result};
use crate::model::{PoolName, Settings};
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
    /// The alignment that direct I/O needs, if the pool's filesystem can do it.
    pub direct_io_alignment: Option<u32>,
}

impl Pool {
    /// The logical block size in bytes for a new volume's loop device: 512, or more where direct I/O on the
    /// pool's disk needs it (loop silently falls back to buffered I/O on a device of smaller blocks).
    pub fn block_size(&self, direct_io: bool) -> u32 {
        match self.direct_io_alignment {
            Some(alignment) if direct_io && alignment <= 4096 && alignment.is_power_of_two() => {
                alignment.max(512)
            }
            _ => 512,
        }
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
    /// Checks and prepares the pools: each is locked, has its `volumes/`, and holds what the state file says.
    ///
    /// # Errors
    /// Where a path is missing or locked by another process, or where a pool that should hold volumes has no
    /// `volumes/`: then its disk is probably not mounted, and going on would write to the disk below.
    pub fn prepare(settings: &Settings, os: &Os, store: &Store) -> Result<Self> {
        let mut locks = Vec::new();
        let mut pools = Vec::new();
        let volumes = store.volumes();
        for pool in &settings.pools {
            let path = os
                .disks
                .canonicalize(&pool.path)
                .doing(|| format!("pool {}: {}", pool.name, pool.path.display()))?;
            if pool.name != PoolName::default() {
                let lock = os.disks.lock(&path.join("lock")).doing(|| format!("pool {}", pool.name))?;
                locks.push(PoolLock(lock));
            }
            let in_use = volumes.iter().any(|volume| *volume.pool() == pool.name);
            make_volumes_directory(os, &path, in_use, &pool.name)?;
            let direct_io_alignment = os
                .disks
                .direct_io_alignment(&path)
                .doing(|| format!("probe direct I/O in {}", path.display()))?;
            let (name, reserve, overcommit) = (pool.name.clone(), pool.reserve, pool.overcommit);
            pools.push(Pool { name, path, reserve, overcommit, direct_io_alignment });
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

fn make_volumes_directory(os: &Os, pool: &Path, in_use: bool, name: &PoolName) -> Result<()> {
    let directory = pool.join("volumes");
    let preparing = || format!("prepare {}", directory.display());
    match os.disks.stat(&directory).doing(preparing)?.map(|stat| stat.kind) {
        Some(FileKind::Directory) => Ok(()),
        Some(_) => Err(Error::InUse(format!("{} is not a directory", directory.display()))),
        None if in_use => Err(Error::InUse(format!(
            "pool {name} should hold volumes, but {} is missing: is its disk mounted at {}?",
            directory.display(),
            pool.display()
        ))),
        None => {
            os.disks.create_directory(&directory, 0o711).doing(preparing)?;
            os.disks.sync_directory(pool).doing(preparing)
        }
    }
}
