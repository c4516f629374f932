//! SealVolume of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::driver::request::check;
use crate::error::{Error, Result};
use crate::model::Volume;

impl Driver {
    /// Seals a volume because its data move to another node, so that it cannot be staged or published here; or takes the seal
    /// back. `generation` is the number of moves of the volume. Succeeds if that has been done and nothing uses the volume.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION for a copy and for another generation; the same
    /// while the volume is in use. It is sealed nevertheless: its pods go on, and no other pod gets it.
    pub fn seal_volume(&self, volume_id: &str, generation: u64, moved_to: Option<String>) -> Result<()> {
        let (_guard, volume) = self.take_volume(volume_id)?;
        check::is_no_copy(&volume)?;
        if let Some(retired) = &volume.retired {
            return Err(Error::InUse(format!(
                "volume {} is what is left of volume {}, which is on node {:?} now",
                volume.id, retired.was, retired.node_id
            )));
        }
        check::has_generation(&volume, generation, &self.settings.node_id)?;
        let volume = match volume.moved_to == moved_to {
            true => volume,
            false => {
                tracing::info!(volume.id = %volume.id, moved_to, "fence changed");
                self.store.put(Volume { moved_to, ..(*volume).clone() })?
            }
        };
        match volume.moved_to.is_some() {
            true => self.expect_unpublished(&volume).and_then(|()| self.expect_unused(&volume)),
            false => Ok(()),
        }
    }
}
