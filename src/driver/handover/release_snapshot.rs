//! ReleaseSnapshot of the protocol between the processes of a cluster.

use super::{Recorded, unfit};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::{Handover, Moved, MovingId, ReleaseSnapshot, Side, SnapshotId, Timestamp, VolumeId};
use crate::store::Durability;

impl Driver {
    /// Deletes a snapshot or a group that another node has as well: the source if it still offers it to that node by that number, and the
    /// target if it has copied it by that number. The caller has just heard from the other node that it has it whole, and of a source
    /// that it releases nothing by that number. Succeeds if there is none.
    ///
    /// # Errors
    /// ABORTED while it is read, or copied: a copy ends then; FAILED_PRECONDITION if this node's record names another node or number, or if
    /// the source keeps it.
    pub fn release_snapshot(&self, request: &ReleaseSnapshot) -> Result<()> {
        let ReleaseSnapshot { id, node_id, number } = request;
        // A copy in progress is useless by now: it is stopped, not waited for.
        let _guard = self.lock_moving(id, []).inspect_err(|_| self.stop_taking(&self.parts_of(id)))?;
        self.expect_known(id)?;
        let Some(recorded) = self.recorded(id) else { return Ok(()) };
        let is_meant = |handover: &Handover| {
            handover.side != Side::Withdrawn && handover.node_id == *node_id && handover.number == *number
        };
        if !recorded.handover().is_some_and(is_meant) {
            return Err(unfit(&recorded, &format!("node {node_id:?} is to have it by offer {number}")));
        }
        if recorded.handover().is_some_and(|handover| handover.side == Side::Offered) {
            self.remember_released(id, node_id)?;
        }
        match &recorded {
            Recorded::Snapshot(snapshot) => self.delete_known_snapshot(snapshot)?,
            Recorded::Group(group) => self.remove_group(group)?,
        }
        tracing::info!(id = id.as_str(), node = node_id, "released: the other node has it");
        Ok(())
    }

    /// Remembers for a while that this is on another node, so that no repeated CreateSnapshot makes another one with its id here, and so that
    /// controllers know its node if that node does not answer.
    fn remember_released(&self, id: &MovingId, node_id: &str) -> Result<()> {
        let now = Timestamp::now();
        self.forget_earlier(now);
        for id in self.released_ids(id, &self.parts_of(id)) {
            let deleted_here = Some(now);
            let (left, node_id) = (id.clone(), node_id.to_owned());
            self.store.put_moved(Moved { id, left, by: 0, node_id, deleted: false, deleted_here })?;
        }
        Ok(())
    }

    /// Forgets that this was on another node: it has come back. If that fails, the record of the snapshot itself counts.
    pub(super) fn forget_release(&self, id: &MovingId) {
        for id in self.released_ids(id, &self.parts_of(id)) {
            if self.store.released_to(&id).is_some()
                && let Err(error) = self.store.delete_moved(&id, Durability::Lazy)
            {
                tracing::warn!(%id, %error, "the record of an earlier move of a snapshot cannot be removed");
            }
        }
    }

    /// Returns the node that this was released to, as long as this node remembers that.
    pub(in crate::driver) fn released_to(&self, id: &MovingId) -> Option<String> {
        self.released_ids(id, &[]).iter().find_map(|id| self.store.released_to(id))
    }

    /// Returns the ids that stand for the snapshots of a move, and for the group, once they are released.
    fn released_ids(&self, id: &MovingId, members: &[SnapshotId]) -> Vec<VolumeId> {
        let own = match id {
            MovingId::Snapshot(id) => return vec![VolumeId::of_taken(&self.node_key, id)],
            MovingId::Group(id) => VolumeId::of_released_group(&self.node_key, id),
        };
        let members = members.iter().map(|id| VolumeId::of_taken(&self.node_key, id));
        members.chain([own]).collect()
    }

    /// Makes sure that a snapshot of this id was not released to another node a while ago.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    pub(in crate::driver) fn expect_not_released(&self, id: &SnapshotId) -> Result<()> {
        let released = VolumeId::of_taken(&self.node_key, id);
        if self.store.is_deleted(&released) {
            self.forget_earlier(Timestamp::now());
        }
        match self.store.is_deleted(&released) {
            false => Ok(()),
            true => Err(Error::InUse(format!(
                "snapshot {id} has moved to another node, or was deleted there: choose another name"
            ))),
        }
    }

    /// Returns the snapshot itself, or the members that this node records of a group.
    fn parts_of(&self, id: &MovingId) -> Vec<SnapshotId> {
        match id {
            MovingId::Snapshot(id) => vec![id.clone()],
            MovingId::Group(id) => {
                self.store.group(id).map_or_else(Vec::new, |group| group.snapshots.clone())
            }
        }
    }
}
