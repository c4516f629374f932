//! ReleaseSnapshot of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::error::Result;
use crate::model::{Handover, ReleaseSnapshot, Side, VolumeId};

use super::unfit;

impl Driver {
    /// Deletes a snapshot that another node has as well: the source if it still offers it to that node by that number, and the target if
    /// it has copied it by that number. The caller has just heard from the other node that it has the snapshot whole, and of a source
    /// that it releases nothing by that number. Succeeds if there is none.
    ///
    /// # Errors
    /// ABORTED while it is read, or copied: a copy ends then; FAILED_PRECONDITION if this node's record names another node or number, or if the source keeps the
    /// snapshot.
    pub fn release_snapshot(&self, request: &ReleaseSnapshot) -> Result<()> {
        let ReleaseSnapshot { id, node_id, number } = request;
        // The copy that is being made is of no use any more, and need not be waited for.
        let target = VolumeId::of_taken(&self.node_key, id);
        let _guard = self.lock(id).inspect_err(|_| self.pulls.stop(&target))?;
        let Some(snapshot) = self.store.snapshot(id) else { return Ok(()) };
        let is_meant = |handover: &Handover| {
            handover.side != Side::Withdrawn && handover.node_id == *node_id && handover.number == *number
        };
        if !snapshot.handover.as_ref().is_some_and(is_meant) {
            return Err(unfit(&snapshot, &format!("node {node_id:?} is to have it by offer {number}")));
        }
        self.delete_known_snapshot(&snapshot)?;
        tracing::info!(snapshot.id = %id, node = node_id, "released: the other node has the snapshot");
        Ok(())
    }
}
