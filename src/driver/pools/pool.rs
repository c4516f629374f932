//! One pool: what is known of it, and how it is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use super::marker::Marker;
use super::probe::Probe;
use super::{enforce, managed, reserve};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{FileId, FileKind, Os, errno_of, holder};
use crate::model::{PoolName, PoolSettings, Reserve, Settings, format_bytes};
use crate::store::Store;

#[derive(Debug, Clone)]
pub struct Pool {
    pub name: PoolName,
    /// Its directory with every link resolved.
    pub path: PathBuf,
    /// What that directory is to the kernel.
    pub id: FileId,
    /// What volumes leave free.
    pub reserve: Reserve,
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

    /// Returns the most bytes that one file can have: an image, and so a volume. On a disk that is too full to find it
    /// out there is no room for a larger one.
    pub fn largest_file(&self, os: &Os) -> u64 {
        self.probe.largest_file(os, &self.path).unwrap_or(u64::MAX)
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

/// Checks and prepares one pool.
pub(super) fn open(settings: &Settings, os: &Os, store: &Store, pool: &PoolSettings) -> Result<Pool> {
    let (volumes, snapshots) = (store.volumes(), store.snapshots());
    let of_volumes = volumes.iter().any(|volume| *volume.pool() == pool.name);
    let of_snapshots = snapshots.iter().any(|snapshot| snapshot.pool == pool.name);
    let opened = managed::open(os, settings, pool, of_volumes || of_snapshots)?;
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
    let mounts = os.mounts.list().doing(|| "read mountinfo".to_owned())?;
    let fs_type = holder(&mounts, &path).map_or("unknown", |mount| mount.fs_type.as_str());
    let prepared = Pool { name, path, id, reserve, overcommit, probe, managed, medium, directories, _locks };
    report(os, &prepared, pool.kind.as_str(), fs_type)?;
    Ok(prepared)
}

/// One line for each pool: what it is, and what can be expected of it.
fn report(os: &Os, pool: &Pool, kind: &str, fs_type: &str) -> Result<()> {
    let space = os.files.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
    tracing::info!(
        pool = %pool.name, kind, path = %pool.path.display(), fs_type,
        size = %format_bytes(space.total), available = %format_bytes(space.available),
        reserve = %format_bytes(pool.reserve.bytes(space.total)),
        reflink = pool.probe.describe_reflink(), direct_io = pool.probe.describe_direct_io(), limits = enforce::describe(os, pool), "pool"
    );
    Ok(())
}

pub(super) fn make_directory(os: &Os, pool: &Path, place: &str, in_use: bool, name: &PoolName) -> Result<()> {
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
