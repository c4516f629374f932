//! ForgetVolume of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::error::Result;
use crate::model::{Moved, Volume, VolumeId};
use crate::store::Durability;

impl Driver {
    /// Forgets that a volume has moved away, because the volume was deleted. Succeeds if nothing is known of it. If something of
    /// the volume is left here, that is forgotten with it: kubelet unmounts it by the id of the volume.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs.
    pub fn forget_volume(&self, id: &VolumeId) -> Result<()> {
        let _guard = self.lock(id)?;
        let Some(moved) = self.store.moved(id) else { return Ok(()) };
        match self.store.get(&moved.left) {
            None => Ok(self.store.delete_moved(id, Durability::Lazy)?),
            Some(_) => Ok(self.store.put_moved(Moved { deleted: true, ..(*moved).clone() })?),
        }
    }

    /// What is left of a volume that has moved away is deleted: nothing is remembered of one that was deleted before.
    pub(in crate::driver) fn forget_with(&self, left: &Volume) -> Result<()> {
        let Some(retired) = &left.retired else { return Ok(()) };
        let is_its = |moved: &Moved| moved.deleted && moved.left == left.id;
        match self.store.moved(&retired.was).is_some_and(|moved| is_its(&moved)) {
            true => Ok(self.store.delete_moved(&retired.was, Durability::Lazy)?),
            false => Ok(()),
        }
    }
}
