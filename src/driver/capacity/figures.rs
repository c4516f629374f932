//! The pools in numbers.

use super::{Driver, Pool};
use crate::driver::pools::enforce;
use crate::error::{OsContext, Result};
use crate::model::{PoolName, Provisioning};
use crate::store::Totals;

/// A pool at one moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolFigures {
    /// The size of its filesystem.
    pub size: u64,
    /// What is in use on that, whoever uses it.
    pub used: u64,
    /// What can still be written to it, the reserve included.
    pub free: u64,
    /// What volumes leave free.
    pub reserve: u64,
    /// What it can give to volumes and snapshots, with what they have taken already.
    pub usable: u64,
    /// What has been promised to thin volumes, thick volumes and snapshots.
    pub promised: Totals,
    /// The largest volume for which there is room: a thin one, or a directory.
    pub room: u64,
    /// What it would need more to keep its promises; 0 as long as nobody else takes its filesystem's space.
    pub lacking: u64,
    /// What is left of deleted directories with an enforced size: it counts as promised until it is gone.
    pub removing: u64,
    /// Bytes of thin volumes that may be promised for each byte there is.
    pub overcommit: f64,
    /// Whether its filesystem can limit the bytes of a directory.
    pub limits_bytes: bool,
    /// And how many files are in it.
    pub limits_inodes: bool,
}

impl Driver {
    /// Measures every pool, in the order of the configuration. It looks at the disks, and where they do not answer it
    /// does not come back; what is dear of it is kept as it is for GetCapacity.
    pub fn measure_pools(&self) -> Vec<(PoolName, Result<PoolFigures>)> {
        let measure = |name: &PoolName| self.measure_pool(&*self.pools.get(name)?);
        self.pools.names().into_iter().map(|name| (name.clone(), measure(&name))).collect()
    }

    /// Measures one pool, as [`Driver::measure_pools`] does.
    pub(crate) fn measure_pool(&self, pool: &Pool) -> Result<PoolFigures> {
        let measured = self.measured(pool)?;
        let space = self.os.files.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
        let budget = self.budget(pool, &self.capacity.state.lock(), measured)?;
        let (limits_bytes, limits_inodes) = enforce::can_limit(&self.os, pool)?;
        let removed = self.store.volumes().into_iter();
        let removed = removed.filter(|v| v.is_removed() && *v.pool() == pool.name && v.quota.is_some());
        let removing = self.in_directories(pool, &removed.collect::<Vec<_>>())?;
        Ok(PoolFigures {
            size: space.total,
            used: space.used,
            free: space.left(),
            reserve: pool.reserve.bytes(space.total),
            usable: budget.bytes() as u64,
            promised: budget.promised,
            room: budget.room(!pool.directories, Provisioning::Thin),
            lacking: budget.lacking(),
            removing,
            overcommit: pool.overcommit,
            limits_bytes,
            limits_inodes,
        })
    }
}
