//! Directory volumes without an enforced size: whoever writes to one can fill its filesystem. So new ones are made only if
//! nobody was promised anything that they could use up. A directory whose size its filesystem enforces is promised that, as a
//! loop volume is (see `enforce`), and is none of those that are meant here.
//!
//! - A pool is for them (`directories=true`, or `--directories` for the default one), or for loop volumes, directories
//!   with an enforced size, and their snapshots: never for both.
//! - What counts is the filesystem, not the directory: a pool of directories and a pool with promises on the same
//!   filesystem would break each other's promises. A managed pool is a filesystem of its own, allocated to the last byte,
//!   so either kind can be in one on the disk of the other.
//! - What other flags left of the other kind in a pool keeps working: it is staged, published,
//!   copied elsewhere and deleted. As long as a pool of directories has promises left, it gets no new directory.

use std::path::Path;
use std::sync::Arc;

use crate::driver::Pool;
use crate::error::{Error, OsContext, Result};
use crate::kernel::{MountEntry, Os, holder};
use crate::model::{BackendKind, PoolName, VolumeParameters};
use crate::store::Store;

/// How many volumes and snapshots a pool has that have an enforced size, or none.
fn count(store: &Store, pool: &PoolName, sized: bool) -> (usize, usize) {
    let volumes = store.volumes().into_iter();
    let snapshots = store.snapshots().into_iter();
    (
        volumes.filter(|volume| volume.pool() == pool && volume.parameters.is_sized() == sized).count(),
        snapshots
            .filter(|snapshot| snapshot.pool == *pool && snapshot.content.backend().has_image() == sized)
            .count(),
    )
}

/// Where the flag is that makes a pool one of directories.
pub(super) fn flag(pool: &PoolName) -> String {
    match pool.as_str() {
        PoolName::DEFAULT => "--directories".to_owned(),
        name => format!("directories=true in --pool {name}"),
    }
}

/// Whether a new volume with these parameters, or a new promise to one, can be in the pool.
///
/// # Errors
/// INVALID_ARGUMENT where the pool is for the others; RESOURCE_EXHAUSTED where it still has promises of before.
pub(crate) fn admit(store: &Store, pool: &Pool, parameters: &VolumeParameters) -> Result<()> {
    let name = pool.name.as_str();
    match (pool.directories, parameters.is_sized()) {
        (false, true) => Ok(()),
        (false, false) => Err(Error::Invalid(format!(
            "pool {name:?} is not for directory volumes without an enforced size (enforcement=none): they could use up what \
             its other volumes were promised; use enforcement=required or backend=loop, or a pool that the administrator \
             has made for them ({}, or a further --pool with directories=true)",
            flag(&pool.name)
        ))),
        (true, true) => Err(Error::Invalid(format!(
            "pool {name:?} is for directory volumes without an enforced size ({}), so nothing can be promised beside them; choose another pool",
            flag(&pool.name)
        ))),
        (true, false) => match count(store, &pool.name, true) {
            (0, 0) => Ok(()),
            (volumes, snapshots) => Err(Error::Exhausted(format!(
                "pool {name:?} still holds volumes whose space directory volumes could use (loop volumes and directories with an enforced size: {volumes}, snapshots of loop volumes: {snapshots}): copy them to another pool and delete them first"
            ))),
        },
    }
}

/// Whether the pool can keep a new snapshot of one of its volumes. That of a directory is a copy that cannot grow, and
/// takes only what nobody was promised.
///
/// # Errors
/// FAILED_PRECONDITION.
pub(crate) fn admit_snapshot(pool: &Pool, backend: BackendKind) -> Result<()> {
    match pool.directories && backend.has_image() {
        true => Err(Error::InUse(format!(
            "pool {:?} is for directory volumes ({}), which could use up the space that a snapshot of a loop volume is \
             promised: clone the volume into another pool",
            pool.name.as_str(),
            flag(&pool.name)
        ))),
        false => Ok(()),
    }
}

/// Refuses a pool of directories on the filesystem of a pool with promises.
///
/// # Errors
/// FAILED_PRECONDITION that names both, and what to do.
pub(crate) fn apart(os: &Os, pools: &[Arc<Pool>]) -> Result<()> {
    let mounts = os.mounts.list().doing(|| "read mountinfo".to_owned())?;
    for directories in pools.iter().filter(|pool| pool.directories) {
        for other in pools.iter().filter(|pool| !pool.directories) {
            if same_filesystem(os, &mounts, &directories.path, &other.path)? {
                return Err(Error::InUse(format!(
                    "pool {} is for directory volumes ({}), which have no enforced size, and {} is on the same filesystem \
                     as pool {} ({}), where they could use up what other volumes were promised: make one of the two a \
                     pool of its own filesystem (--pool NAME=FILE,kind=image,size=SIZE, which is allocated at once), put \
                     it on another disk, or make both pools of directory volumes",
                    directories.name,
                    flag(&directories.name),
                    directories.path.display(),
                    other.name,
                    other.path.display()
                )));
            }
        }
    }
    Ok(())
}

/// Whether two directories are on one filesystem. On btrfs stat(2) gives each subvolume a device number of its own, and
/// mountinfo gives that of the superblock.
fn same_filesystem(os: &Os, mounts: &[MountEntry], one: &Path, other: &Path) -> Result<bool> {
    let device = |path: &Path| {
        let stat = os.files.stat(path).doing(|| format!("look at {}", path.display()))?;
        Ok::<_, Error>(stat.map(|stat| stat.id.dev))
    };
    let superblock = |path: &Path| holder(mounts, path).map(|mount| mount.dev);
    let same = |one: Option<u64>, other: Option<u64>| one.is_some() && one == other;
    Ok(same(device(one)?, device(other)?) || same(superblock(one), superblock(other)))
}

/// Warns of what is in a pool that is not for it.
pub(crate) fn report(store: &Store, pools: &[Arc<Pool>]) {
    for pool in pools {
        let (what, advice) = match pool.directories {
            true => (
                "loop volumes in a pool of directory volumes: they keep working; the pool gets no new directory volumes until they are gone, and its present ones could use up what they were promised",
                "copy them to another pool",
            ),
            false => (
                "directory volumes in a pool that is not for them: they keep working, but they have no enforced size and \
                 could use up what other volumes were promised; no new ones are made",
                "copy them to a pool of their own (--pool with directories=true); if the pool has nothing else, make it one (--directories for the pool \"default\")",
            ),
        };
        let (volumes, snapshots) = count(store, &pool.name, pool.directories);
        if volumes > 0 {
            tracing::warn!(pool = %pool.name, volumes, snapshots, advice, "{what}");
        }
    }
}
