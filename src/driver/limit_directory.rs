//! An enforced size for a directory volume that was made without one: `enforcement=required` in a VolumeAttributesClass.

use std::sync::Arc;

use super::Driver;
use super::capacity::Want;
use super::pools::{directories, enforce};
use crate::backend::{VolumePaths, expect_within};
use crate::error::{Error, OsContext, Result};
use crate::kernel::Enforceable;
use crate::model::{Provisioning, Volume, VolumeParameters};

impl Driver {
    /// Gives a directory the enforced size that these parameters want, if it has none yet; pods may use it meanwhile.
    ///
    /// The order: all of the tree counts under a number that nobody has and nothing limits. If it fits, the record says that
    /// it is limited, and then it is. So what a crash leaves counts under a number that means nothing, and a retry chooses
    /// another one; or it has a record, by which the next start sets the limit.
    ///
    /// # Errors
    /// INVALID_ARGUMENT to take a limit away, and in a pool of directories without an enforced size; RESOURCE_EXHAUSTED where
    /// the pool cannot enforce it, or has no room to promise it; OUT_OF_RANGE for more data than the volume has room for;
    /// FAILED_PRECONDITION on btrfs. Nothing is limited then.
    pub(super) fn limit_directory(&self, volume: &Arc<Volume>, parameters: VolumeParameters) -> Result<()> {
        let paths = self.paths(volume)?;
        match (volume.parameters.is_limited_directory(), parameters.is_limited_directory()) {
            (false, false) => return Ok(()),
            (true, false) => {
                return Err(Error::Invalid(format!(
                    "the size of volume {} is promised and enforced, and enforcement=none would take that away; restore a snapshot of it in a pool for directories without an enforced size",
                    volume.id
                )));
            }
            // A call before was perhaps cut off.
            (true, true) => return paths.bytes().recover(self.place(volume, &paths)).map(drop),
            (false, true) => {}
        }
        let pool = self.pool_of(volume)?;
        directories::admit(&self.store, &pool, &parameters)?;
        enforce::expect_possible(&self.os, &pool, &parameters)?;
        let asking = || format!("ask for the quotas of {}", pool.path.display());
        if self.os.quotas.enforceable(&pool.path).doing(asking)? != Enforceable::BytesAndInodes {
            return Err(Error::InUse(format!(
                "volume {} is a plain directory of btrfs, which limits only what is made as a subvolume: restore a snapshot of it with a class with enforcement: required",
                volume.id
            )));
        }
        let wanted = Volume { parameters, ..(**volume).clone() };
        let chosen = self.choose_quota(&pool, &wanted)?;
        let wanted = Volume { quota: chosen.as_ref().map(enforce::Chosen::id), ..wanted };
        let limited = VolumePaths::of_volume(&pool.path, &wanted);
        let Some(quota) = wanted.quota else { return Ok(()) };
        let counting = || format!("count what is in {}", limited.directory.display());
        self.os.quotas.adopt(&limited.directory, quota).doing(counting)?;
        let place = self.place(&wanted, &limited);
        expect_within(place)?;
        let taken = self.os.quotas.quota(&limited.directory, quota).doing(counting)?.bytes;
        let missing = wanted.capacity_bytes.saturating_sub(taken);
        let mut reservation = self.reserve(&pool, Want::Volume(true, Provisioning::Thin, missing), 0)?;
        let recorded = self.record(wanted.clone())?;
        reservation.recorded();
        self.measure_again(&pool.name);
        limited.bytes().recover(self.place(&recorded, &limited)).map(drop)
    }
}
