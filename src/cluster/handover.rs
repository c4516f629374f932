//! Asks a controller to move a snapshot to another node (`hostloop evacuate --with-snapshots`).

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;

use super::details::{Source, why};
use crate::wire::peer;

/// How long the answer to one request is waited for. The nodes go on without it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which snapshot is to move, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOrder {
    /// Its CSI id.
    pub id: String,
    /// The CSI node id of the node that has it.
    pub node_id: String,
    /// The CSI node id of the node that gets it.
    pub target_node_id: String,
}

/// Why a snapshot has not moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotMoved {
    /// A node works on it: the same request again says how far that is.
    Working(String),
    /// A repeated request may be answered otherwise.
    Later(String),
    /// The node that was to get it has no room.
    Full(String),
    /// It failed, or something has to be changed first.
    Refused(String),
}

impl Source {
    /// Has a snapshot moved. The nodes go on if there is no answer in time. Succeeds if the snapshot has moved there.
    ///
    /// # Errors
    /// Why it has not.
    pub async fn move_snapshot(&self, order: &SnapshotOrder) -> Result<(), NotMoved> {
        let SnapshotOrder { id, node_id, target_node_id } = order.clone();
        let request = peer::MoveSnapshotRequest { snapshot_id: id, node_id, target_node_id };
        let mut client = self.client();
        let answer = timeout(PATIENCE, client.move_snapshot(request)).await;
        let answer = answer.map_err(|_| NotMoved::Working("the nodes work on it".to_owned()))?;
        answer.map(drop).map_err(|status| match status.code() {
            Code::Aborted | Code::DeadlineExceeded => NotMoved::Working(why(&status)),
            Code::Unavailable => NotMoved::Later(why(&status)),
            Code::ResourceExhausted => NotMoved::Full(why(&status)),
            _ => NotMoved::Refused(why(&status)),
        })
    }
}
