//! ForgetVolume of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::error::Result;
use crate::model::VolumeId;
use crate::store::Durability;

impl Driver {
    /// Forgets that a volume has moved away, because the volume was deleted. Succeeds if nothing is known of it. As long as
    /// something of the volume is left here, nothing is forgotten: kubelet unmounts it by the id of the volume.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs.
    pub fn forget_volume(&self, id: &VolumeId) -> Result<()> {
        let _guard = self.lock(id)?;
        match self.store.moved(id) {
            Some(moved) if self.store.get(&moved.left).is_none() => {
                Ok(self.store.delete_moved(id, Durability::Lazy)?)
            }
            _ => Ok(()),
        }
    }
}
