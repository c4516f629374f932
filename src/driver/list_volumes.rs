//! CSI ListVolumes.

use super::{Driver, request::token};
use crate::error::Result;
use crate::model::answer::ListPage;
use crate::model::request::ListVolumes;
use crate::model::{Volume, VolumeId};

impl Driver {
    /// Lists the volumes that CreateVolume made. A token names the last volume of its page, so volumes may
    /// come and go between pages and none that stays is missed or seen twice.
    ///
    /// # Errors
    /// ABORTED for a token that this driver did not give out.
    pub fn list_volumes(&self, request: ListVolumes) -> Result<ListPage> {
        let after = request.starting_token.as_deref().map(token::parse::<VolumeId>).transpose()?;
        let listed = |volume: &Volume| volume.is_ready() && !volume.id.is_inline();
        let (volumes, more) = self.store.page(after.as_ref(), Some(request.max_entries), listed);
        let next_token = volumes.last().filter(|_| more).map(|last| token::make(last.id.as_str()));
        let volumes = volumes.into_iter().map(|volume| self.status(volume)).collect();
        Ok(ListPage { volumes, next_token })
    }
}
