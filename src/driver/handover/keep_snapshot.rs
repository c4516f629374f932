//! KeepSnapshot of the protocol between the processes of a cluster.

use super::unfit;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::{Handover, KeepSnapshot, MovingId, Side};

impl Driver {
    /// Takes the offer of a snapshot or a group back, after which this node releases nothing by it; or, if the other node does not have it,
    /// forgets that node, which succeeds if there is no snapshot, or no offer.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs; FAILED_PRECONDITION if this node's record names another node or number, or if the
    /// offer has not been taken back before. To take it back, also if there is no such offer, and UNAVAILABLE if the data here are not
    /// whole: what the other node has may be the only one.
    pub fn keep_snapshot(&self, request: &KeepSnapshot) -> Result<()> {
        let KeepSnapshot { id, node_id, number, alone } = request;
        // Others may read it, so that a copy that is being made can be given up.
        let _guard = match id {
            MovingId::Snapshot(id) => self.share(id)?,
            MovingId::Group(id) => self.lock(id)?,
        };
        self.expect_known(id)?;
        let missing = || {
            let why = format!(
                "{id} is not offered to node {node_id:?} here by offer {number}; nothing was changed"
            );
            if *alone { Ok(()) } else { Err(Error::InUse(why)) }
        };
        let Some(recorded) = self.recorded(id).filter(|recorded| recorded.is_ready()) else {
            return missing();
        };
        let Some(handover) = recorded.handover() else { return missing() };
        let is_meant = handover.node_id == *node_id && handover.number == *number;
        let kept = match (handover.side, alone) {
            _ if !is_meant => None,
            (Side::Offered | Side::Withdrawn, false) => {
                Some(Some(Handover { side: Side::Withdrawn, ..handover.clone() }))
            }
            (Side::Withdrawn | Side::Taken, true) => Some(None),
            (Side::Offered, true) | (Side::Taken, false) => None,
        };
        if !alone {
            self.expect_whole(&recorded)?;
        }
        let wanted = || format!("it is to be kept, whatever node {node_id:?} has by offer {number}");
        let kept = kept.ok_or_else(|| unfit(&recorded, &wanted()))?;
        match kept.as_ref() == recorded.handover() {
            true => Ok(()),
            false => self.record_handover(&recorded, kept),
        }
    }
}
