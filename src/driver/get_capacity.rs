//! CSI GetCapacity.

use super::pools::{directories, enforce};
use super::{Driver, Pool};
use crate::backend::{content_for, minimum_bytes, unsupported};
use crate::error::{Error, Result};
use crate::model::answer::Capacity;
use crate::model::request::GetCapacity;
use crate::model::{BackendKind, Capability, GRANULARITY, VolumeParameters};

impl Driver {
    /// Says what is left in the pool that the parameters name. What cannot be made here has no capacity.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown pool.
    pub fn get_capacity(&self, request: GetCapacity) -> Result<Capacity> {
        let nothing = Capacity { available: 0, maximum_volume: 0, minimum_volume: 0 };
        // A pool that cannot be used has no room, as CreateVolume says.
        let pool = match self.pools.require(&request.parameters.pool) {
            Err(Error::Exhausted(_)) => return Ok(nothing),
            pool => pool?,
        };
        if request.topology.is_some_and(|topology| !topology.allows(&self.settings.node_id)) {
            return Ok(nothing);
        }
        let capabilities: Result<Vec<Capability>, String> = request.capabilities.into_iter().collect();
        let Ok(capabilities) = capabilities else { return Ok(nothing) };
        let Ok(content) = content_for(&request.parameters, &capabilities) else { return Ok(nothing) };
        if capabilities.iter().any(|c| unsupported(&content, &request.parameters, c).is_some()) {
            return Ok(nothing);
        }
        let parameters = enforce::settle(&pool, request.parameters);
        if directories::admit(&self.store, &pool, &parameters).is_err() {
            return Ok(nothing);
        }
        match enforce::expect_possible(&self.os, &pool, &parameters) {
            // The answer has no field for it, and no event says why no node is chosen.
            Err(Error::Exhausted(why)) => {
                tracing::info!(pool = %pool.name, why, "no capacity for volumes of this class");
                return Ok(nothing);
            }
            possible => possible?,
        }
        let available = self.room(&pool, parameters.is_sized(), parameters.provisioning)?;
        let minimum_volume = minimum_bytes(&content, &parameters).next_multiple_of(GRANULARITY);
        let maximum_volume = match available.min(self.largest(&pool, &parameters)) / GRANULARITY * GRANULARITY
        {
            // What is left is too little for any volume of this kind.
            left if left < minimum_volume => 0,
            left => left,
        };
        Ok(Capacity { available, maximum_volume, minimum_volume })
    }

    /// Returns the most bytes that a volume can have in a pool, whatever room there is.
    pub(super) fn largest(&self, pool: &Pool, parameters: &VolumeParameters) -> u64 {
        match parameters.backend {
            BackendKind::Loop => self.settings.max_volume_bytes.min(pool.largest_file(&self.os)),
            BackendKind::Directory => self.settings.max_volume_bytes,
        }
    }
}
