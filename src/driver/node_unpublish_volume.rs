//! CSI NodeUnpublishVolume.

use std::path::Path;

use super::Driver;
use crate::backend::{self, Uses, hidden, presence_of};
use crate::error::{Error, OsContext, Result};
use crate::kernel::MountEntry;
use crate::model::Volume;
use crate::model::request::NodeUnpublishVolume;

impl Driver {
    /// Unmounts a volume from a target path and removes the file or directory that was made for it, never
    /// anything that is in it. An inline ephemeral volume is deleted. Fine if it is not there. A volume that has lost its record is taken
    /// away as well, so that its pod can end.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if something else is at the target, also for a volume that this node does not know.
    pub fn node_unpublish_volume(&self, request: NodeUnpublishVolume) -> Result<()> {
        let id = self.node_id_of(&request.volume_id);
        let _guard = self.lock_to_leave(&id)?;
        let recorded = self.known_volume(&id);
        // What is left of a volume that has moved away is deleted only if nothing uses it.
        if recorded.is_none() && self.store.moved(&id).is_some() {
            return self.leave_target(None, &request.target_path);
        }
        let found =
            recorded.clone().map_or_else(|| self.unrecorded_volume(&id), |volume| Ok(Some(volume)))?;
        let Some(volume) = found else {
            if !self.inline.was_inline(&id, &request.volume_id) {
                self.expect_unknown(&id, &request.volume_id, &request.target_path)?;
            }
            return self.leave_target(None, &request.target_path);
        };
        self.leave_target(Some(&volume), &request.target_path)?;
        let paths = self.paths_of_use(&volume)?;
        presence_of(&volume.content).after_unpublish(self.place(&volume, &paths))?;
        // Only the record says that the data are to go with the pod.
        if volume.id.is_inline() && recorded.is_some() {
            self.delete(&volume)?;
            self.inline.remember(&volume.id);
        }
        Ok(())
    }

    /// Unmounts the volume from the target, as often as it is mounted there, and removes the empty target.
    fn leave_target(&self, volume: Option<&Volume>, target: &Path) -> Result<()> {
        let uses = match volume {
            Some(volume) => {
                let paths = self.paths_of_use(volume)?;
                presence_of(&volume.content).uses(self.place(volume, &paths))?
            }
            None => Uses::default(),
        };
        let target = match self.mount_target(target) {
            Ok(target) if target.exists() => target,
            Ok(_) | Err(Error::NotFound(_)) => {
                return match uses.at(target).next() {
                    Some(mount) => Err(hidden(&self.os, &mount.target)),
                    None => Ok(()),
                };
            }
            Err(error) => return Err(error),
        };
        let path = target.path();
        let is_there = |mount: &MountEntry| mount.target == path;
        let there = self.os.mounts.matching(&is_there).doing(|| "look for mounts".to_owned())?;
        if let Some(other) = there.iter().find(|mount| uses.at(path).all(|ours| ours.id != mount.id)) {
            let (path, source) = (path.display(), &other.source);
            return Err(Error::InUse(format!(
                "{path} has a mount that is not the volume's ({} from {source}): unmount that first",
                other.fs_type
            )));
        }
        match volume {
            Some(volume) => {
                let paths = self.paths_of_use(volume)?;
                presence_of(&volume.content).take_away(self.place(volume, &paths), path, &uses)?;
            }
            None => backend::take_away(&self.os, path, &uses)?,
        }
        self.bound.forget(path);
        backend::remove_target(&self.os, path)
    }
}
