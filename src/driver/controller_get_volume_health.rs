//! CSI ControllerGetVolumeHealth.

use super::{Driver, not_found};
use crate::error::Result;
use crate::model::answer::VolumeHealth;

impl Driver {
    /// What is wrong with a volume now.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED where it is changed all the time.
    pub fn controller_get_volume_health(&self, volume_id: &str) -> Result<VolumeHealth> {
        let id = self.controller_id(volume_id).ok_or_else(|| not_found(volume_id))?;
        let (_, _, troubles) = self.troubles_now(&id, volume_id)?;
        Ok(VolumeHealth { volume_id: volume_id.to_owned(), troubles: troubles.into() })
    }
}
