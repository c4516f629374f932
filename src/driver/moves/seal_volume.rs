//! SealVolume of the protocol between the processes of a cluster.

use crate::backend::presence_of;
use crate::driver::request::check;
use crate::driver::{Driver, settled};
use crate::error::{Error, Result};
use crate::model::Volume;

impl Driver {
    /// Seals a volume because its data move to this node, so that nobody can use it here; or takes that back. Fine where it is
    /// so already.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION while it is in use, and for a copy.
    pub fn seal_volume(&self, volume_id: &str, moved_to: Option<String>) -> Result<()> {
        let (_guard, volume) = self.take_volume(volume_id)?;
        check::is_no_copy(&volume)?;
        if let Some(retired) = &volume.retired {
            return Err(Error::InUse(format!(
                "volume {} is what is left of volume {}, which is on node {:?} now",
                volume.id, retired.was, retired.node_id
            )));
        }
        if volume.moved_to == moved_to {
            return Ok(());
        }
        if moved_to.is_some() && volume.moved_to.is_none() {
            self.expect_unpublished(&volume)?;
            let paths = self.paths(&volume)?;
            self.see_all_devices()?;
            let uses = settled(|| presence_of(&volume.content).uses(self.place(&volume, &paths)))?;
            if uses.any() {
                return Err(Error::InUse(format!("volume {} is in use: {}", volume.id, uses.describe())));
            }
        }
        tracing::info!(volume.id = %volume.id, moved_to, "sealed, or not any more");
        self.store.put(Volume { moved_to, ..(*volume).clone() })?;
        Ok(())
    }
}
