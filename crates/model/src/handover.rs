//! A snapshot that moves from one node to another: for a time both have it (docs/decisions/0027).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::pull::Way;
use super::{GroupSnapshot, GroupSnapshotId, InvalidId, PoolName, SnapshotId, SnapshotObject, VolumeId};

/// What one of two nodes records while a snapshot moves from one to the other. Each deletion is done on both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handover {
    pub side: Side,
    /// The CSI node id of the other node.
    pub node_id: String,
    /// The number of the offer. Each offer has another one, so that an order that comes late is refused.
    pub number: u64,
}

/// Which of the two nodes records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Side {
    /// The source: the other node may copy the snapshot from here.
    Offered,
    /// The source, which keeps the snapshot: what the other node has is to be deleted.
    Withdrawn,
    /// The target: it has copied the snapshot from the other node, or is doing so.
    Taken,
}

/// What moves: a snapshot, or a group with all of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MovingId {
    Snapshot(SnapshotId),
    Group(GroupSnapshotId),
}

impl MovingId {
    /// Returns its CSI id.
    pub fn as_str(&self) -> &str {
        match self {
            MovingId::Snapshot(id) => id.as_str(),
            MovingId::Group(id) => id.as_str(),
        }
    }
}

impl fmt::Display for MovingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MovingId::Snapshot(id) => write!(f, "snapshot {id}"),
            MovingId::Group(id) => write!(f, "group snapshot {id}"),
        }
    }
}

impl FromStr for MovingId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        match text.parse() {
            Ok(id) => Ok(MovingId::Snapshot(id)),
            Err(_) => text.parse().map(MovingId::Group),
        }
    }
}

/// What the record of a snapshot has beside its data, as its node tells the node that it moves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovingSnapshot {
    /// Its CSI name.
    pub name: String,
    /// The volume that it is of, which may be gone.
    pub source: VolumeId,
    /// The VolumeSnapshot that it was made for.
    pub object: Option<SnapshotObject>,
    /// The pool that it is in.
    pub pool: PoolName,
    /// The group that it is a member of, which moves with it.
    pub group: Option<GroupSnapshot>,
    /// The number of the offer.
    pub number: u64,
}

/// The order to copy a snapshot of another node, or a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeSnapshot {
    pub id: MovingId,
    /// The CSI node id of the node that has it.
    pub node_id: String,
    /// The snapshot, or the members of the group, each with the way to it.
    pub ways: Vec<(SnapshotId, Way)>,
}

/// The order to delete a snapshot, because the other node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseSnapshot {
    pub id: MovingId,
    /// The CSI node id of the node that has it.
    pub node_id: String,
    /// The number of the offer.
    pub number: u64,
}

/// The order to keep a snapshot that another node may have as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepSnapshot {
    pub id: MovingId,
    /// The CSI node id of the other node.
    pub node_id: String,
    /// The number of the offer.
    pub number: u64,
    /// The other node does not have it. Otherwise the offer is taken back.
    pub alone: bool,
}

/// What a node knows of a snapshot or a group snapshot that a controller looks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundSnapshot {
    /// The node has a record of it.
    pub found: bool,
    /// It is being copied from another node, and cannot be used here yet.
    pub incomplete: bool,
    pub handover: Option<Handover>,
    /// The CSI node id of the node that this one has released it to, as long as it remembers that.
    pub moved_to: Option<String>,
}
