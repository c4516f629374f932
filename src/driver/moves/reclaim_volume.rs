//! ReclaimVolume of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::driver::request::check;
use crate::error::{Error, Result};
use crate::model::{Volume, VolumeId};

impl Driver {
    /// Takes a volume back from a node that is lost, on which its copy may have taken over the id. The volume gets `generation`,
    /// which is two higher than that of the move and one higher than that of the copy, and its fence ends. Succeeds if that has
    /// been done.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION for a copy, for another generation, and if the
    /// volume is not fenced.
    pub fn reclaim_volume(&self, id: &VolumeId, generation: u64) -> Result<()> {
        let (_guard, volume) = self.take_volume(id.as_str())?;
        check::is_no_copy(&volume)?;
        // A later move may have fenced it since: that fence stays.
        if volume.generation == generation {
            return Ok(());
        }
        check::has_generation(&volume, generation.saturating_sub(2), &self.settings.node_id)?;
        let Some(lost) = &volume.moved_to else {
            return Err(Error::InUse(format!("volume {id} is not fenced, so that no copy has replaced it")));
        };
        tracing::info!(volume.id = %id, generation, node = lost, "reclaimed from a node that is lost");
        self.record(Volume { generation, moved_to: None, ..(*volume).clone() })?;
        Ok(())
    }
}
