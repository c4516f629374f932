//! CSI ControllerUnpublishVolume.

use super::Driver;
use crate::error::Result;
use crate::model::request::ControllerUnpublishVolume;

impl Driver {
    /// Takes back what ControllerPublishVolume allowed, for one node or for all; fine if there is nothing to
    /// take back: an unknown volume or node is as good as unpublished.
    pub fn controller_unpublish_volume(&self, request: ControllerUnpublishVolume) -> Result<()> {
        let Some(id) = self.controller_id(&request.volume_id) else { return Ok(()) };
        let _guard = self.lock(&id)?;
        let Some(volume) = self.known_volume(&id).filter(|volume| volume.is_ready()) else { return Ok(()) };
        let mut unpublished = (*volume).clone();
        unpublished
            .attachments
            .retain(|there| request.node_id.as_ref().is_some_and(|node| *node != there.node_id));
        if unpublished.attachments.len() != volume.attachments.len() {
            self.record(unpublished)?;
        }
        Ok(())
    }
}
