//! KeepSnapshot of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::error::Result;
use crate::model::{Handover, KeepSnapshot, Side, Snapshot};

use super::unfit;

impl Driver {
    /// Takes the offer of a snapshot back, after which this node releases nothing by it; or, if the other node does not have it, forgets
    /// that node. Succeeds if there is no snapshot, or no offer.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs; FAILED_PRECONDITION if this node's record names another node or number, or if the
    /// offer has not been taken back before.
    pub fn keep_snapshot(&self, request: &KeepSnapshot) -> Result<()> {
        let KeepSnapshot { id, node_id, number, alone } = request;
        let _guard = self.lock(id)?;
        let Some(snapshot) = self.store.snapshot(id).filter(|snapshot| snapshot.is_ready()) else {
            return Ok(());
        };
        let Some(handover) = &snapshot.handover else { return Ok(()) };
        let is_meant = handover.node_id == *node_id && handover.number == *number;
        let kept = match (handover.side, alone) {
            _ if !is_meant => None,
            (Side::Offered | Side::Withdrawn, false) => {
                Some(Some(Handover { side: Side::Withdrawn, ..handover.clone() }))
            }
            (Side::Withdrawn | Side::Taken, true) => Some(None),
            (Side::Offered, true) | (Side::Taken, false) => None,
        };
        let wanted =
            || format!("the snapshot is to be kept, whatever node {node_id:?} has by offer {number}");
        let handover = kept.ok_or_else(|| unfit(&snapshot, &wanted()))?;
        if handover != snapshot.handover {
            self.store.put_snapshot(Snapshot { handover, ..(*snapshot).clone() })?;
        }
        Ok(())
    }
}
