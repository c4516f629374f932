//! CSI NodeUnstageVolume.

use super::{Driver, not_found};
use crate::backend::backend_of;
use crate::error::{Error, Result};
use crate::model::request::NodeUnstageVolume;

impl Driver {
    /// Unmounts a volume from its staging path and detaches it; fine if it is not there.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown volume; FAILED_PRECONDITION while it is published somewhere.
    pub fn node_unstage_volume(&self, request: NodeUnstageVolume) -> Result<()> {
        let id = self.node_id_of(&request.volume_id);
        let _guard = self.lock(&id)?;
        let volume = self.store.get(&id).ok_or_else(|| not_found(&request.volume_id))?;
        let paths = self.paths_of_use(&volume)?;
        let (place, backend) = (self.place(&volume, &paths), backend_of(&volume.content));
        let uses = backend.uses(place)?;
        if !uses.any() {
            return Ok(()); // after a reboot, or a second call: the path may be gone as well
        }
        let target = match self.mount_target(&request.staging_path) {
            // Nothing can be staged at a path that is not there.
            Err(Error::NotFound(_)) if !volume.is_block() => return Ok(()),
            target => target?,
        };
        if !backend.is_staged(&uses, target.path()) {
            return Ok(()); // spec.md, NodeUnstageVolume: it is not staged at this path, wherever else it is
        }
        if let Some(path) = uses.elsewhere(&[target.path()]) {
            let path = path.display();
            return Err(Error::InUse(format!(
                "volume {} is still mounted at {path}, unpublish it first",
                volume.id
            )));
        }
        backend.unstage(place, &target, &uses)
    }
}
