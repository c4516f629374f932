//! CSI ControllerGetVolume.

use std::sync::Arc;

use super::{Driver, not_found};
use crate::error::Result;
use crate::model::Volume;

impl Driver {
    /// Finds a volume.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub fn controller_get_volume(&self, volume_id: &str) -> Result<Arc<Volume>> {
        let id = self.controller_id(volume_id).ok_or_else(|| not_found(volume_id))?;
        self.ready_volume(&id, volume_id)
    }
}
