//! Directories whose size their filesystem enforces: whether a pool can, and the number under which each counts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::driver::locks::guarded::Guarded;
use crate::driver::{Driver, Pool};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Enforceable, Os, Qgroups};
use crate::model::{BackendKind, Enforcement, PoolName, QuotaId, Volume, VolumeParameters};

/// How many numbers are tried. More than one is taken only where drivers share a filesystem, or somebody else uses those of
/// the driver.
const TRIES: usize = 1000;

/// The parameters of a new volume, with what they leave to the pool: the size of a directory is enforced, unless the
/// administrator has made the pool for directories without an enforced size.
pub(crate) fn settle(pool: &Pool, parameters: VolumeParameters) -> VolumeParameters {
    let enforcement = match (parameters.backend, parameters.enforcement) {
        (BackendKind::Directory, None) if pool.directories => Some(Enforcement::None),
        (BackendKind::Directory, None) => Some(Enforcement::Required),
        (_, given) => given,
    };
    VolumeParameters { enforcement, ..parameters }
}

/// Makes sure that the pool's filesystem can enforce what the parameters require. It is asked each time: it may have been
/// mounted anew.
///
/// # Errors
/// RESOURCE_EXHAUSTED, since the same pool of another node may be able to; with what to do.
pub(crate) fn expect_possible(os: &Os, pool: &Pool, parameters: &VolumeParameters) -> Result<()> {
    if !parameters.is_limited_directory() {
        return Ok(());
    }
    let (name, path) = (pool.name.as_str(), pool.path.display());
    let asking = || format!("ask for the quotas of {}", pool.path.display());
    match os.quotas.enforceable(&pool.path).doing(asking)? {
        Enforceable::BytesAndInodes => Ok(()),
        Enforceable::Bytes(_) if parameters.inodes.is_some() => Err(Error::Exhausted(format!(
            "the filesystem of pool {name:?} at {path} limits bytes and not inodes; leave the parameter inodes out, or use a pool on xfs or ext4"
        ))),
        Enforceable::Bytes(Qgroups::Inconsistent) => {
            os.quotas.recount(&pool.path).doing(asking)?;
            Err(Error::Unavailable(format!(
                "btrfs counts the qgroups of pool {name:?} at {path} anew, and limits nothing until it has; try again when it has ended (btrfs quota rescan --status)"
            )))
        }
        Enforceable::Bytes(Qgroups::Full | Qgroups::Simple) => Ok(()),
        // The first one has them switched on.
        Enforceable::Off(_) if pool.managed => Ok(()),
        Enforceable::Off(why) | Enforceable::Nothing(why) => Err(Error::Exhausted(format!(
            "pool {name:?} cannot enforce the size of a directory (enforcement=required) at {path}: {why}. Or use backend=loop, or a pool that is for directories without an enforced size ({})",
            super::directories::flag(&pool.name)
        ))),
    }
}

/// Switches full qgroups on in a managed btrfs pool, before the first directory with an enforced size is made in it: what has
/// only images does not pay for their counting. It takes as long as everything that is there is counted. What an
/// administrator has switched on stays.
pub(crate) fn switch_on(os: &Os, pool: &Pool, parameters: &VolumeParameters) -> Result<()> {
    let asking = || format!("ask for the quotas of {}", pool.path.display());
    if !pool.managed || !parameters.is_limited_directory() {
        return Ok(());
    }
    if !matches!(os.quotas.enforceable(&pool.path).doing(asking)?, Enforceable::Off(_)) {
        return Ok(());
    }
    let started = Instant::now();
    let switching = || format!("switch qgroups on in pool {:?}", pool.name.as_str());
    os.quotas.switch_on(&pool.path, Qgroups::Full).doing(switching)?;
    tracing::info!(pool = %pool.name, ms = started.elapsed().as_millis() as u64, "switched qgroups of btrfs on, for directories with an enforced size");
    Ok(())
}

/// What the start and NodeGetInfo say of a pool: what its filesystem can limit.
pub(crate) fn describe(os: &Os, pool: &Pool) -> String {
    match os.quotas.enforceable(&pool.path) {
        Ok(Enforceable::BytesAndInodes) => "bytes and inodes".to_owned(),
        Ok(Enforceable::Bytes(Qgroups::Full)) => "bytes (qgroups)".to_owned(),
        Ok(Enforceable::Bytes(Qgroups::Inconsistent)) => {
            "bytes (qgroups), when btrfs has counted them anew".to_owned()
        }
        Ok(Enforceable::Bytes(Qgroups::Simple)) => "bytes (simple quotas)".to_owned(),
        Ok(Enforceable::Off(_)) if pool.managed => {
            "bytes (qgroups), which the first directory with an enforced size has switched on".to_owned()
        }
        Ok(Enforceable::Off(why) | Enforceable::Nothing(why)) => format!("nothing: {why}"),
        Err(error) => format!("unknown: {error}"),
    }
}

/// Whether the size of a directory can be limited in a pool, and its number of files.
pub(crate) fn can_limit(os: &Os, pool: &Pool) -> Result<(bool, bool)> {
    let asking = || format!("ask for the quotas of {}", pool.path.display());
    Ok(match os.quotas.enforceable(&pool.path).doing(asking)? {
        Enforceable::BytesAndInodes => (true, true),
        Enforceable::Bytes(Qgroups::Full | Qgroups::Simple) => (true, false),
        // The first such directory switches them on.
        Enforceable::Off(_) => (pool.managed, false),
        Enforceable::Bytes(Qgroups::Inconsistent) | Enforceable::Nothing(_) => (false, false),
    })
}

/// Numbers that were chosen, and are not in the store yet.
#[derive(Default)]
pub(crate) struct Given(Arc<Guarded<Taken>>);

type Taken = BTreeSet<(PoolName, QuotaId)>;

/// A number that nobody else is given as long as the value lives.
pub(crate) struct Chosen {
    given: Arc<Guarded<Taken>>,
    key: (PoolName, QuotaId),
}

impl Chosen {
    pub(crate) fn id(&self) -> QuotaId {
        self.key.1
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.given.lock().remove(&self.key);
    }
}

impl Driver {
    /// Logs what each pool that can be used now can limit, which NodeGetInfo has no field for.
    pub fn tell_limits(&self) {
        for pool in self.pools.open() {
            tracing::info!(pool = %pool.name, limits = describe(&self.os, &pool), "what the pool can limit");
        }
    }

    /// Chooses the number of a new volume that needs one: one that no record has, and under which nothing counts.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where none is free.
    pub(crate) fn choose_quota(&self, pool: &Pool, volume: &Volume) -> Result<Option<Chosen>> {
        if !volume.parameters.is_limited_directory() {
            return Ok(None);
        }
        let volumes = self.store.volumes().into_iter();
        let recorded: BTreeSet<QuotaId> =
            volumes.filter(|other| *other.pool() == pool.name).filter_map(|other| other.quota).collect();
        let (ids, directory) = (self.settings.quota_ids, self.paths(volume)?.directory);
        for id in ids.candidates(&volume.id).take(TRIES).filter(|id| !recorded.contains(id)) {
            let key = (pool.name.clone(), id);
            if !self.quota_ids.0.lock().insert(key.clone()) {
                continue;
            }
            let chosen = Chosen { given: Arc::clone(&self.quota_ids.0), key };
            let asking = || format!("ask for the quota {id} of {}", pool.path.display());
            if self.os.quotas.quota(&directory, id).doing(asking)?.is_free() {
                return Ok(Some(chosen));
            }
        }
        Err(Error::Exhausted(format!(
            "pool {:?} has no free number for a quota: of {ids} (--quota-ids), {} were tried, and all are in use; widen the range or choose another one",
            pool.name.as_str(),
            ids.candidates(&volume.id).take(TRIES).count()
        )))
    }
}
