//! CSI DeleteSnapshot.

use std::sync::Arc;

use super::Driver;
use crate::error::{Error, Result};
use crate::model::{Handover, Phase, Snapshot, SnapshotId};

impl Driver {
    /// Deletes a snapshot; fine if there is none. Volumes that were made from it stay as they are.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a member of a group, which goes with its group only; ABORTED while it is copied; FAILED_PRECONDITION if it has
    /// a directory, and a record neither in the state file nor there, or if it is deleted here and another node may have it as well;
    /// UNAVAILABLE if it has no record, and a pool cannot be used that may have it.
    pub fn delete_snapshot(&self, snapshot_id: &str) -> Result<()> {
        let Ok(id) = snapshot_id.parse::<SnapshotId>() else { return Ok(()) };
        // If it is being copied from another node, a retry finds that ended.
        let _guard = self.lock(&id).inspect_err(|_| self.stop_taking([&id]))?;
        let there = self.store.snapshot(&id);
        let there = there.map_or_else(|| self.snapshot_beside(&id), |snapshot| Ok(Some(snapshot)))?;
        let Some(snapshot) = there else { return self.expect_no_files_of_snapshot(&id) };
        if snapshot.pulled_for.is_some() {
            return Ok(()); // to callers there is none
        }
        if let Some(group) = &snapshot.group {
            if !self.is_visible(&snapshot) {
                return Ok(()); // what is left of a group is removed with it
            }
            return Err(Error::Invalid(format!(
                "snapshot {id} is a member of group {group}: delete the group (DeleteVolumeGroupSnapshot)"
            )));
        }
        self.delete_known_snapshot(&snapshot)?;
        match &snapshot.handover {
            Some(Handover { node_id, .. }) => {
                Err(Error::AlsoOn { id: (&id).into(), node_id: node_id.clone() })
            }
            None => Ok(()),
        }
    }

    /// Deletes a snapshot or a cut whose lock the caller holds. From the record `deleting` on it is gone for callers.
    pub(super) fn delete_known_snapshot(&self, snapshot: &Arc<Snapshot>) -> Result<()> {
        let deleting = match snapshot.phase {
            Phase::Ready => {
                let phase = Phase::Deleting;
                self.store.put_snapshot(Snapshot { phase, ..(**snapshot).clone() })?
            }
            Phase::Creating | Phase::Deleting => Arc::clone(snapshot),
        };
        self.remove_snapshot(&deleting)
    }
}
