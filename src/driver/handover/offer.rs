//! OpenSource of the protocol between nodes, for a snapshot that moves.

use std::sync::Arc;

use super::Recorded;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::pull::SourceDescription;
use crate::model::{
    GroupSnapshot, GroupSnapshotId, Handover, MovingSnapshot, Side, Snapshot, SnapshotId, Timestamp,
};

impl Driver {
    /// Offers a snapshot to the node that is to get it, with its group if it is a member of one, and returns what it is. From here on that
    /// node may have it as well, so the offer is durable before anything is sent. A repeated call, also for another member, finds the offer.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION if it moves to or from another node.
    pub(in crate::driver) fn offer_snapshot(
        &self,
        id: &SnapshotId,
        node_id: &str,
        group: Option<&GroupSnapshotId>,
    ) -> Result<SourceDescription> {
        if node_id == self.node_id() {
            return Err(Error::Invalid(format!("snapshot {id} is on node {node_id:?}; name another node")));
        }
        {
            // Others may read it.
            let _guard = self.share(id)?;
            let (snapshot, moves) = self.movable(id, group)?;
            if let Some(number) = expect_free(&moves, node_id)? {
                return self.describe_moving(&snapshot, number);
            }
        }
        let (_, moves) = self.movable(id, group)?;
        let _guard = match &moves {
            Recorded::Snapshot(snapshot) => self.lock(&snapshot.id)?,
            Recorded::Group(group) => self.lock(&group.id)?,
        };
        let (snapshot, moves) = self.movable(id, group)?;
        if let Some(number) = expect_free(&moves, node_id)? {
            return self.describe_moving(&snapshot, number);
        }
        let number = Timestamp::now().as_nanos().max(1);
        let description = self.describe_moving(&snapshot, number)?;
        let handover = Handover { side: Side::Offered, node_id: node_id.to_owned(), number };
        self.record_handover(&moves, Some(handover))?;
        tracing::info!(snapshot.id = %id, node = node_id, "{} moves to another node", moves.id());
        Ok(description)
    }

    /// Returns a snapshot, and what moves with it.
    ///
    /// # Errors
    /// NOT_FOUND; FAILED_PRECONDITION if it is a member of another group.
    fn movable(&self, id: &SnapshotId, group: Option<&GroupSnapshotId>) -> Result<(Arc<Snapshot>, Recorded)> {
        let snapshot = self.ready_snapshot(id.as_str())?;
        if let Some(of) = snapshot.group.as_ref().filter(|of| group != Some(of)) {
            return Err(Error::InUse(format!(
                "snapshot {id} is a member of group {of}, which moves as a whole"
            )));
        }
        let group = snapshot.group.as_ref().and_then(|group| self.store.group(group));
        let moves = group.map_or_else(|| Recorded::Snapshot(Arc::clone(&snapshot)), Recorded::Group);
        Ok((snapshot, moves))
    }

    fn describe_moving(&self, snapshot: &Arc<Snapshot>, number: u64) -> Result<SourceDescription> {
        let group = snapshot.group.as_ref().and_then(|group| self.store.group(group));
        let moving = MovingSnapshot {
            name: snapshot.name.clone(),
            source: snapshot.source.clone(),
            object: snapshot.object.clone(),
            pool: snapshot.pool.clone(),
            group: group.map(|group| GroupSnapshot { handover: None, ..(*group).clone() }),
            number,
        };
        Ok(SourceDescription { moving: Some(moving), ..self.describe_source(snapshot)? })
    }
}

/// Makes sure that this can move to this node. Returns the number of the offer, if there is one.
///
/// # Errors
/// FAILED_PRECONDITION.
fn expect_free(moves: &Recorded, to: &str) -> Result<Option<u64>> {
    let Some(Handover { side, node_id, number }) = moves.handover() else { return Ok(None) };
    let id = moves.id();
    match side {
        Side::Offered if node_id == to => Ok(Some(*number)),
        Side::Offered => Err(Error::InUse(format!("{id} moves to node {node_id:?}"))),
        Side::Withdrawn => Err(Error::InUse(format!(
            "{id} was to move to node {node_id:?}, which may still have a copy of it"
        ))),
        Side::Taken => {
            Err(Error::InUse(format!("{id} comes from node {node_id:?}, which may still have it")))
        }
    }
}
