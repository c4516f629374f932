//! RetireVolume of the protocol between the processes of a cluster.

use std::sync::Arc;

use crate::driver::Driver;
use crate::driver::request::check;
use crate::error::{Error, Result};
use crate::model::{Retired, Volume, VolumeId};

impl Driver {
    /// Retires a volume that its copy on another node has replaced: the data on this node get another id, by which an
    /// administrator can look at them, copy them and delete them. Succeeds if that has been done. If the node was lost when
    /// the copy was promoted, a pod may still use the volume here. Its writes are lost.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION for a copy, and if this node's volume has
    /// the generation of that copy or a later one.
    pub fn retire_volume(&self, id: &VolumeId, retired: Retired) -> Result<Arc<Volume>> {
        let _guard = self.lock(id)?;
        let Some(volume) = self.store.get(id).filter(|volume| volume.is_ready()) else {
            return match self.retired(id) {
                Some(volume) if volume.retired.as_ref().is_some_and(|was| was.by >= retired.by) => Ok(volume),
                _ => self.ready_volume(id, id.as_str()),
            };
        };
        check::is_no_copy(&volume)?;
        if volume.generation >= retired.by {
            return Err(Error::InUse(format!(
                "node {:?} has generation {} of volume {id}, which no copy of generation {} has replaced",
                self.node_id(),
                volume.generation,
                retired.by
            )));
        }
        let left = Volume {
            id: VolumeId::of_retired(&self.node_key, id, retired.by),
            directory: Some(volume.directory().clone()),
            moved_to: Some(retired.node_id.clone()),
            retired: Some(retired),
            ..(*volume).clone()
        };
        let left = self.store.rename(id, left)?;
        self.usage.forget(id);
        self.health.forget(id);
        tracing::info!(volume.id = %id, left = %left.id, node = left.moved_to, "retired: another node has the volume");
        Ok(left)
    }
}
