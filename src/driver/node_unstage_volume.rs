//! CSI NodeUnstageVolume.

use super::Driver;
use crate::backend::{hidden, presence_of};
use crate::error::{Error, Result};
use crate::model::request::NodeUnstageVolume;

impl Driver {
    /// Unmounts a volume from its staging path and detaches it; fine if it is not there. A volume that has lost its record is taken down
    /// as well, so that its pod can end.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while it is published somewhere, and for a volume that this node does not know if something is at the
    /// path.
    pub fn node_unstage_volume(&self, request: NodeUnstageVolume) -> Result<()> {
        let id = self.node_id_of(&request.volume_id);
        let _guard = self.lock_to_leave(&id)?;
        let volume = match self.known_volume(&id) {
            Some(volume) => volume,
            // What is left of a volume that has moved away is deleted only if nothing uses it.
            None if self.store.moved(&id).is_some() => return Ok(()),
            None => match self.unrecorded_volume(&id)? {
                Some(volume) => volume,
                None => return self.expect_unknown(&id, &request.volume_id, &request.staging_path),
            },
        };
        let volume = self.forget_staged_before(&volume, &request.staging_path)?;
        let paths = self.paths_of_use(&volume)?;
        let (place, presence) = (self.place(&volume, &paths), presence_of(&volume.content));
        let uses = presence.uses(place)?;
        let target = match self.mount_target(&request.staging_path) {
            // Nothing can be staged at a path that is not there, unless the way to it is hidden.
            Err(Error::NotFound(_)) if !volume.is_block() || !uses.any() => {
                return match uses.at(&request.staging_path).next() {
                    Some(mount) => Err(hidden(&self.os, &mount.target)),
                    None => Ok(()),
                };
            }
            // After a reboot, or a second call.
            Err(_) if !uses.any() => return Ok(()),
            target => target?,
        };
        if !volume.is_block() && uses.at(target.path()).next().is_none() {
            // What cannot be told to be the volume's is not said to be gone either.
            self.nothing_else_at(&target)?;
        }
        if !presence.is_staged(&uses, target.path()) {
            return Ok(()); // spec.md, NodeUnstageVolume: it is not staged at this path, wherever else it is
        }
        if let Some(path) = uses.elsewhere(&self.os, Some(target.path()), target.path())? {
            let path = path.display();
            return Err(Error::InUse(format!(
                "volume {} is still mounted at {path}; unpublish it first",
                volume.id
            )));
        }
        presence.unstage(place, &target, &uses)?;
        self.bound.forget(target.path());
        Ok(())
    }
}
