//! OpenSource of the protocol between nodes, for a snapshot that moves.

use std::sync::Arc;

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::pull::SourceDescription;
use crate::model::{Handover, MovingSnapshot, Side, Snapshot, SnapshotId, Timestamp};

impl Driver {
    /// Offers a snapshot to the node that is to get it, and returns what it is. From here on that node may have it as well, so the offer is
    /// durable before anything is sent. A repeated call finds the offer.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION for a member of a group, and if it moves to or from
    /// another node.
    pub(in crate::driver) fn offer_snapshot(
        &self,
        id: &SnapshotId,
        node_id: &str,
    ) -> Result<SourceDescription> {
        if node_id == self.node_id() {
            return Err(Error::Invalid(format!("snapshot {id} is on node {node_id:?}; name another node")));
        }
        {
            // Others may read it.
            let _guard = self.share(id)?;
            let snapshot = self.ready_snapshot(id.as_str())?;
            if let Some(number) = expect_free(&snapshot, node_id)? {
                return self.describe_moving(&snapshot, number);
            }
        }
        let _guard = self.lock(id)?;
        let snapshot = self.ready_snapshot(id.as_str())?;
        if let Some(number) = expect_free(&snapshot, node_id)? {
            return self.describe_moving(&snapshot, number);
        }
        let number = Timestamp::now().as_nanos().max(1);
        let description = self.describe_moving(&snapshot, number)?;
        let handover = Handover { side: Side::Offered, node_id: node_id.to_owned(), number };
        self.store.put_snapshot(Snapshot { handover: Some(handover), ..(*snapshot).clone() })?;
        tracing::info!(snapshot.id = %id, node = node_id, "the snapshot moves to another node");
        Ok(description)
    }

    fn describe_moving(&self, snapshot: &Arc<Snapshot>, number: u64) -> Result<SourceDescription> {
        let moving = MovingSnapshot {
            name: snapshot.name.clone(),
            source: snapshot.source.clone(),
            object: snapshot.object.clone(),
            pool: snapshot.pool.clone(),
            number,
        };
        Ok(SourceDescription { moving: Some(moving), ..self.describe_source(snapshot)? })
    }
}

/// Makes sure that a snapshot can move to this node. Returns the number of the offer, if there is one.
///
/// # Errors
/// FAILED_PRECONDITION.
fn expect_free(snapshot: &Snapshot, to: &str) -> Result<Option<u64>> {
    Driver::expect_movable(snapshot)?;
    let Some(Handover { side, node_id, number }) = &snapshot.handover else { return Ok(None) };
    let id = &snapshot.id;
    match side {
        Side::Offered if node_id == to => Ok(Some(*number)),
        Side::Offered => Err(Error::InUse(format!("snapshot {id} moves to node {node_id:?}"))),
        Side::Withdrawn => Err(Error::InUse(format!(
            "snapshot {id} was to move to node {node_id:?}, which may still have a copy of it"
        ))),
        Side::Taken => {
            Err(Error::InUse(format!("snapshot {id} comes from node {node_id:?}, which may still have it")))
        }
    }
}
