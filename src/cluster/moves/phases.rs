//! The phases of VolumeMoves and VolumeReplicas.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The phases of a VolumeMove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum MovePhase {
    /// Nothing has been done; the message says why, and what to do.
    Refused,
    /// The first copy waits or is being made.
    Copying,
    /// The copy is nearly up to date: the volume changes its node when its pods have left.
    Ready,
    /// The volume changes its node; no pod can use it.
    CuttingOver,
    /// The volume is on the other node.
    Done,
    /// The move has been given up, and the copy is being deleted.
    GivingUp,
    /// A later release has written it.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The phases of a VolumeReplica, in the order of a move.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ReplicaPhase {
    /// Other first copies are made before this one.
    #[default]
    Pending,
    /// The first copy is being made.
    Copying,
    /// Passes bring what has changed meanwhile.
    Following,
    /// The copy is nearly up to date.
    Ready,
    /// The copy stands by: passes bring it up to date again and again.
    Standby,
    /// The volume is fenced, and its pods leave.
    CuttingOver,
    /// The PersistentVolume gets the other node, so that new pods go there and wait.
    Exchanging,
    /// The last pass makes the copy identical to the volume. The last phase from which a move can be given up.
    LastPass,
    /// The copy takes over the id of the volume.
    Completing,
    /// The volume is on the other node; what the earlier node has is being retired and deleted.
    Retiring,
    /// The earlier node has data that nothing but the deletion of this object deletes.
    Left,
    /// The copy is not needed, and is being deleted.
    Abandoning,
    /// The copy is not needed, and its node is gone. It is deleted if the node comes back.
    Stranded,
    /// A later release has written it. Nothing is done, and nothing is written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl ReplicaPhase {
    /// Reports whether the copy is still to become the volume, or to be deleted. After that, the volume is where the copy was made,
    /// and can have another copy.
    pub const fn is_of_a_copy(self) -> bool {
        !matches!(self, ReplicaPhase::Retiring | ReplicaPhase::Left | ReplicaPhase::Stranded)
    }

    /// Reports whether no pod can start with the volume: it is fenced, and the copy has not taken over yet.
    pub const fn is_of_a_cutover(self) -> bool {
        use ReplicaPhase::{Completing, CuttingOver, Exchanging, LastPass};
        matches!(self, CuttingOver | Exchanging | LastPass | Completing)
    }

    /// Every phase that this release knows, in the order of a move.
    pub const ALL: [ReplicaPhase; 13] = [
        ReplicaPhase::Pending,
        ReplicaPhase::Copying,
        ReplicaPhase::Following,
        ReplicaPhase::Ready,
        ReplicaPhase::Standby,
        ReplicaPhase::CuttingOver,
        ReplicaPhase::Exchanging,
        ReplicaPhase::LastPass,
        ReplicaPhase::Completing,
        ReplicaPhase::Retiring,
        ReplicaPhase::Left,
        ReplicaPhase::Abandoning,
        ReplicaPhase::Stranded,
    ];

    /// Returns its name, as the API server has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ReplicaPhase::Pending => "Pending",
            ReplicaPhase::Copying => "Copying",
            ReplicaPhase::Following => "Following",
            ReplicaPhase::Ready => "Ready",
            ReplicaPhase::Standby => "Standby",
            ReplicaPhase::CuttingOver => "CuttingOver",
            ReplicaPhase::Exchanging => "Exchanging",
            ReplicaPhase::LastPass => "LastPass",
            ReplicaPhase::Completing => "Completing",
            ReplicaPhase::Retiring => "Retiring",
            ReplicaPhase::Left => "Left",
            ReplicaPhase::Abandoning => "Abandoning",
            ReplicaPhase::Stranded => "Stranded",
            ReplicaPhase::Unknown => "Unknown",
        }
    }
}
