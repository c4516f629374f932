//! What an id in a request stands for.

use std::sync::Arc;

use crate::driver::locks::Guard;
use crate::driver::{Driver, not_found};
use crate::error::{Error, Result};
use crate::model::{GroupSnapshot, Phase, Snapshot, Volume, VolumeId};

impl Driver {
    /// A snapshot that callers may see.
    pub(crate) fn ready_snapshot(&self, snapshot_id: &str) -> Result<Arc<Snapshot>> {
        let missing = || Error::NotFound(format!("snapshot {snapshot_id:?} does not exist"));
        self.expect_certain(snapshot_id)?;
        let snapshot = snapshot_id.parse().ok().and_then(|id| self.store.snapshot(&id));
        snapshot.filter(|snapshot| self.is_visible(snapshot)).ok_or_else(missing)
    }

    /// Whether callers may see a snapshot: a member of a group is there only if the whole group is.
    pub(crate) fn is_visible(&self, snapshot: &Snapshot) -> bool {
        let ready = |group: Arc<GroupSnapshot>| group.phase == Phase::Ready;
        let group = snapshot.group.as_ref();
        snapshot.is_ready()
            && snapshot.pulled_for.is_none()
            && group.is_none_or(|id| self.store.group(id).is_some_and(ready))
    }

    /// The id of a volume that the Controller service knows; `None` for text that is none of its ids.
    pub(crate) fn controller_id(&self, volume_id: &str) -> Option<VolumeId> {
        volume_id.parse::<VolumeId>().ok().filter(|id| !id.is_inline())
    }

    /// The id under which the Node service finds a volume: its own, or the one derived for an inline volume.
    pub(crate) fn node_id_of(&self, volume_id: &str) -> VolumeId {
        self.controller_id(volume_id).unwrap_or_else(|| VolumeId::of_inline(&self.node_key, volume_id))
    }

    /// A volume that callers may see.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it has moved to another node; else NOT_FOUND.
    pub(crate) fn ready_volume(&self, id: &VolumeId, volume_id: &str) -> Result<Arc<Volume>> {
        self.expect_certain(id.as_str())?;
        let there = self.store.get(id).filter(|volume| volume.is_ready());
        there.ok_or_else(|| self.moved(id).unwrap_or_else(|| not_found(volume_id)))
    }

    /// Returns the error that names the present node of a volume that has moved away from this one. Callers look for a record
    /// with this id first: the volume may have come back.
    pub(crate) fn moved(&self, id: &VolumeId) -> Option<Error> {
        let moved = self.store.moved(id).filter(|moved| !moved.deleted)?;
        Some(Error::Moved { id: moved.id.clone(), node_id: moved.node_id.clone() })
    }

    /// Returns what is left of a volume that has moved away from this node. If it was here several times, returns the latest.
    pub(crate) fn retired(&self, was: &VolumeId) -> Option<Arc<Volume>> {
        self.store.get(&self.store.moved(was)?.left)
    }

    /// Returns the record of a volume that may still be mounted on this node, also if the volume has moved away.
    pub(crate) fn known_volume(&self, id: &VolumeId) -> Option<Arc<Volume>> {
        self.store.get(id).or_else(|| self.retired(id))
    }

    /// Takes a volume that callers of the Controller service may see for one operation.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs.
    pub(crate) fn take_volume(&self, volume_id: &str) -> Result<(Guard, Arc<Volume>)> {
        let id = self.controller_id(volume_id).ok_or_else(|| not_found(volume_id))?;
        Ok((self.lock(&id)?, self.ready_volume(&id, volume_id)?))
    }

    /// The same for the Node service, which has inline volumes as well.
    pub(crate) fn take_at_node(&self, volume_id: &str) -> Result<(Guard, Arc<Volume>)> {
        let id = self.node_id_of(volume_id);
        Ok((self.lock(&id)?, self.ready_volume(&id, volume_id)?))
    }
}
