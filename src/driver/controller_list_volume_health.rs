//! CSI ControllerListVolumeHealth.

use std::sync::Arc;

use super::{Driver, request::token};
use crate::error::Result;
use crate::model::answer::{HealthPage, VolumeHealth};
use crate::model::request::ListVolumes;
use crate::model::{Volume, VolumeId};

impl Driver {
    /// Lists the volumes that are not as they should be. The first page examines them; the tokens are those of
    /// ListVolumes.
    ///
    /// # Errors
    /// ABORTED for a token that this driver did not give out.
    pub fn controller_list_volume_health(&self, request: ListVolumes) -> Result<HealthPage> {
        let after = request.starting_token.as_deref().map(token::parse::<VolumeId>).transpose()?;
        if after.is_none() {
            self.examine_volumes();
        }
        let listed = |volume: &Volume| {
            volume.is_ready() && !volume.id.is_inline() && !self.known_troubles(&volume.id).is_empty()
        };
        let (volumes, more) = self.store.page(after.as_ref(), Some(request.max_entries), listed);
        let next_token = volumes.last().filter(|_| more).map(|last| token::make(last.id.as_str()));
        let health = |volume: &Arc<Volume>| VolumeHealth {
            volume_id: volume.id.to_string(),
            troubles: self.known_troubles(&volume.id),
        };
        Ok(HealthPage { volumes: volumes.iter().map(health).collect(), next_token })
    }
}
