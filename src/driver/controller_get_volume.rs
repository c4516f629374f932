//! CSI ControllerGetVolume.

use std::sync::Arc;

use super::{Driver, not_found};
use crate::error::{Busy, Error, Result};
use crate::model::Volume;
use crate::model::answer::VolumeStatus;

impl Driver {
    /// Finds a volume.
    ///
    /// # Errors
    /// NOT_FOUND. ABORTED while the volume is being created or deleted, so that no caller concludes from NOT_FOUND that a
    /// volume does not exist that is about to.
    pub fn controller_get_volume(&self, volume_id: &str) -> Result<VolumeStatus> {
        let id = self.controller_id(volume_id).ok_or_else(|| not_found(volume_id))?;
        // Before the lookup: a volume that is created in between is found by it.
        let taken = self.locks.is_taken(&(&id).into());
        match self.ready_volume(&id, volume_id) {
            Err(Error::NotFound(_)) if taken => Err(Busy::on(&id).into()),
            found => Ok(self.status(found?)),
        }
    }

    /// A volume with what is known of its health.
    pub(super) fn status(&self, volume: Arc<Volume>) -> VolumeStatus {
        VolumeStatus { troubles: self.known_troubles(&volume.id), volume }
    }
}
