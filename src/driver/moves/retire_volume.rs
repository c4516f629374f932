//! RetireVolume of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::driver::request::check;
use crate::error::{Error, Result};
use crate::model::{Moved, Retired, Volume, VolumeId};

impl Driver {
    /// Retires a volume that its copy on another node, or in another pool of this node, has replaced: the data on this node get another id, by which an
    /// administrator can look at them, copy them and delete them. Returns that id, also if that has been done, and never the id of what
    /// another move has left. If the node was lost when the copy was promoted, a pod may still use the volume here. Its writes are lost.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION for a copy, and if this node's volume has
    /// the generation of that copy or a later one.
    pub fn retire_volume(&self, id: &VolumeId, retired: Retired) -> Result<VolumeId> {
        let _guard = self.lock(id)?;
        let (left, by) = (VolumeId::of_retired(&self.node_key, id, retired.by), retired.by);
        let Some(volume) = self.store.get(id).filter(|volume| volume.is_ready()) else {
            return match self.store.moved(id) {
                Some(moved) if moved.by == by => Ok(left),
                // The volume came back and has moved on. What it has left then is not of this move.
                Some(moved) if moved.by > by => {
                    self.ready_volume(&left, left.as_str()).map(|left| left.id.clone())
                }
                // It moved within this node, and was deleted since.
                _ if self.has_left(&left, id, by) => Ok(left),
                _ => self.ready_volume(id, id.as_str()).map(|volume| volume.id.clone()),
            };
        };
        check::is_no_copy(&volume)?;
        // Its copy was in another pool of this node: only CompleteCopy retires it, since nothing else says that the copy has its data.
        if retired.node_id == self.node_id() {
            return match volume.generation >= by {
                true => Ok(left),
                false => Err(Error::InUse(format!(
                    "node {:?} has generation {} of volume {id}, whose copy has not taken over the id",
                    self.node_id(),
                    volume.generation
                ))),
            };
        }
        if volume.generation >= by {
            return Err(Error::InUse(format!(
                "node {:?} has generation {} of volume {id}, which no copy of generation {} has replaced",
                self.node_id(),
                volume.generation,
                by
            )));
        }
        self.retire(&volume, retired)
    }

    /// Reports whether this is what that move of the volume has left here.
    fn has_left(&self, left: &VolumeId, was: &VolumeId, by: u64) -> bool {
        let left = self.store.get(left).and_then(|left| left.retired.clone());
        left.is_some_and(|retired| retired.was == *was && retired.by == by)
    }

    /// Takes the id away from what this node has of a volume. The caller holds its lock.
    ///
    /// # Errors
    /// The kernel's; the volume is unchanged, and the record of its new place may exist.
    pub(super) fn retire(&self, volume: &Volume, retired: Retired) -> Result<VolumeId> {
        let (id, by) = (&volume.id, retired.by);
        let left = VolumeId::of_retired(&self.node_key, id, by);
        // Written first, so that the id is never free. A volume with this id takes precedence over the record.
        let node_id = retired.node_id.clone();
        self.store.put_moved(Moved {
            id: id.clone(),
            left: left.clone(),
            by,
            node_id,
            deleted: false,
            deleted_here: None,
        })?;
        let left = Volume {
            id: left,
            directory: Some(volume.directory().clone()),
            moved_to: Some(retired.node_id.clone()),
            retired: Some(retired),
            ..volume.clone()
        };
        let left = self.record_as(id, left)?;
        self.usage.forget(id);
        self.health.forget(id);
        tracing::info!(volume.id = %id, left = %left.id, node = left.moved_to, "retired: its copy is the volume");
        Ok(left.id.clone())
    }
}
