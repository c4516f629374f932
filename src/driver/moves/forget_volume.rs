//! ForgetVolume of the protocol between the processes of a cluster.

use std::time::Duration;

use crate::driver::Driver;
use crate::error::Result;
use crate::model::{Moved, Timestamp, Volume, VolumeId};
use crate::store::Durability;

/// How long a node remembers the deletion of a volume that had moved to it.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

impl Driver {
    /// Forgets that a volume has moved away, because the volume was deleted. Succeeds if nothing is known of it. If something of the
    /// volume is left here, that is forgotten with it: kubelet unmounts it by the id of the volume. The node on which the volume was
    /// deleted remembers that, since controllers ask for it.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs.
    pub fn forget_volume(&self, id: &VolumeId) -> Result<()> {
        let _guard = self.lock(id)?;
        let Some(moved) = self.store.moved(id) else { return Ok(()) };
        match self.store.get(&moved.left) {
            None => Ok(self.store.delete_moved(id, Durability::Lazy)?),
            Some(_) => Ok(self.store.put_moved(Moved { deleted: true, ..(*moved).clone() })?),
        }
    }

    /// Remembers the deletion of a volume that has moved to this node, so that the data that the volume left on another node are
    /// deleted as well. That node may be away now. A disk that was replaced remembers nothing. If that cannot be written, what was left is kept.
    pub(in crate::driver) fn remember_deletion(&self, volume: &Volume) {
        if volume.generation == 0 || volume.retired.is_some() {
            return;
        }
        let now = Timestamp::now();
        self.forget_earlier(now);
        let written = self.store.put_moved(Moved {
            id: volume.id.clone(),
            left: volume.id.clone(),
            // The record of the volume does not end this one.
            by: volume.generation.saturating_add(1),
            node_id: self.node_id().to_owned(),
            deleted: true,
            deleted_here: Some(now),
        });
        if let Err(error) = written {
            tracing::warn!(volume.id = %volume.id, %error, "what the volume has left on another node is kept");
        }
    }

    /// Forgets the deletions and releases that were remembered for long enough.
    pub(in crate::driver) fn forget_earlier(&self, now: Timestamp) {
        for id in self.store.deleted_before(now.before(REMEMBERED)) {
            if let Err(error) = self.store.delete_moved(&id, Durability::Lazy) {
                tracing::warn!(%id, %error, "the record of its deletion cannot be removed");
            }
        }
    }

    /// What is left of a volume that has moved away is deleted: nothing is remembered of one that was deleted before.
    pub(in crate::driver) fn forget_with(&self, left: &Volume) -> Result<()> {
        let Some(retired) = &left.retired else { return Ok(()) };
        let is_its = |moved: &Moved| moved.deleted && moved.left == left.id;
        match self.store.moved(&retired.was).is_some_and(|moved| is_its(&moved)) {
            true => Ok(self.store.delete_moved(&retired.was, Durability::Lazy)?),
            false => Ok(()),
        }
    }
}
