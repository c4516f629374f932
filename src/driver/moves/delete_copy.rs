//! DeleteCopy of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::copy_of::DeleteCopy;
use crate::model::{Phase, Volume, VolumeSource};

impl Driver {
    /// Deletes a copy that is not complete, or what is left of a volume that has moved away: never a volume. Succeeds if it does
    /// not exist. If an update of the copy is running, this call ends it, and a retry finds the copy's lock free.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs; FAILED_PRECONDITION for anything else than a copy of this source and of this
    /// generation, and while it is mounted or attached.
    pub fn delete_copy(&self, request: &DeleteCopy) -> Result<()> {
        let id = &request.volume_id;
        let _guard = self.lock(id).inspect_err(|_| self.pulls.stop(id))?;
        let Some(volume) = self.store.get(id) else { return Ok(()) };
        expect_deletable(&volume, request)?;
        self.pulls.forget(id);
        self.delete(&volume)
    }
}

/// # Errors
/// FAILED_PRECONDITION.
fn expect_deletable(volume: &Volume, request: &DeleteCopy) -> Result<()> {
    let DeleteCopy { volume_id, source, generation } = request;
    let is_of_source = volume.source.as_ref() == Some(&VolumeSource::Volume(source.clone()));
    let is_copy = volume.copy_of.as_ref().is_some_and(|copy| copy.cut.generation == *generation);
    let is_left =
        volume.retired.as_ref().is_some_and(|retired| retired.was == *source && retired.by == *generation);
    // What an earlier call has begun to delete was a copy then.
    match is_copy && is_of_source || is_left || volume.phase == Phase::Deleting {
        true => Ok(()),
        false => Err(Error::InUse(format!(
            "volume {volume_id} is neither a copy of generation {generation} of volume {source} nor left of it; nothing was \
             deleted"
        ))),
    }
}
