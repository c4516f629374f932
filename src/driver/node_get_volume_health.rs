//! CSI NodeGetVolumeHealth.

use std::path::{Path, PathBuf};

use super::Driver;
use crate::backend::{presence_of, resolve};
use crate::error::{Error, Result};
use crate::model::answer::VolumeHealth;
use crate::model::health::{Severity, Trouble};
use crate::model::request::NodeGetVolumeHealth;

impl Driver {
    /// What is wrong with a volume now, also where it is wanted and is not: at the paths that the caller names. Takes no
    /// lock: it must not disturb or wait.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown volume.
    pub fn node_get_volume_health(&self, request: NodeGetVolumeHealth) -> Result<VolumeHealth> {
        let NodeGetVolumeHealth { volume_id, publish_path, staging_path } = request;
        let id = self.node_id_of(&volume_id);
        let (volume, _, mut troubles) = self.troubles_now(&id, &volume_id)?;
        // Where its files are gone, nothing of it can be anywhere.
        if troubles.iter().all(|trouble| trouble.severity == Severity::Degraded) {
            let paths = self.paths_of_use(&volume)?;
            let presence = presence_of(&volume.content);
            let uses = presence.uses(self.place(&volume, &paths))?;
            let lacks = |path: &Option<PathBuf>, is_there: &dyn Fn(&Path) -> bool| match path {
                Some(path) => Ok::<_, Error>(!self.resolved(path)?.is_some_and(|path| is_there(&path))),
                None => Ok(false),
            };
            let seen = |path: &Path| uses.top_at(&self.os, path).is_ok_and(|top| top.is_some());
            let staged = |path: &Path| presence.is_staged(&uses, path) && (volume.is_block() || seen(path));
            if lacks(&staging_path, &staged)? {
                let message =
                    "the volume is not at its staging path: nothing of it is mounted or attached there";
                troubles.push(Trouble::inaccessible("NotStaged", message.to_owned()));
            }
            if lacks(&publish_path, &seen)? {
                let message = "the volume is not at the pod's path: what is there is something else";
                troubles.push(Trouble::inaccessible("NotPublished", message.to_owned()));
            }
        }
        Ok(VolumeHealth { volume_id, troubles: troubles.into() })
    }

    /// A path with the links of its parents resolved; `None` where nothing of ours can be.
    fn resolved(&self, path: &Path) -> Result<Option<PathBuf>> {
        match resolve(&self.os, path) {
            Ok(target) => Ok(Some(target.path().to_owned())),
            Err(Error::NotFound(_) | Error::Invalid(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
