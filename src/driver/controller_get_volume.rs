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
    /// NOT_FOUND; ABORTED while it is being made or deleted: a controller that asks every node whether it has made a
    /// volume must not hear "no" of one that is about to.
    pub fn controller_get_volume(&self, volume_id: &str) -> Result<VolumeStatus> {
        let id = self.controller_id(volume_id).ok_or_else(|| not_found(volume_id))?;
        // First: a volume that is finished in between is there. Controllers of 0.1.0 know no reservation, and come here
        // with their order as to a volume that is being made.
        let taken = self.reservations.is_reserved(&id) || self.locks.is_taken(&(&id).into());
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
