//! What the use cases answer if it is neither a volume nor a single number: plain types, encoded by wire.

use std::sync::Arc;

use super::health::Trouble;
use super::{GroupSnapshot, PoolName, Snapshot, Volume};

/// CSI ValidateVolumeCapabilities: whether the volume can be used as asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validation {
    /// Everything that was asked about is supported.
    pub confirmed: bool,
    /// Why not, for people; empty if confirmed.
    pub message: String,
}

/// A volume, and what is known to be wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStatus {
    pub volume: Arc<Volume>,
    /// Nothing for one that is healthy.
    pub troubles: Arc<[Trouble]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHealth {
    /// The volume, as its caller names it.
    pub volume_id: String,
    /// Each pair of severity and reason once; nothing for a volume that is healthy.
    pub troubles: Arc<[Trouble]>,
}

/// CSI ControllerListVolumeHealth: one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthPage {
    /// The volumes on it that are not healthy.
    pub volumes: Vec<VolumeHealth>,
    /// The token of the page after it; `None` on the last one.
    pub next_token: Option<String>,
}

/// CSI ListVolumes: one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage {
    pub volumes: Vec<VolumeStatus>,
    /// The token of the page after it; `None` on the last one.
    pub next_token: Option<String>,
}

/// CSI ListSnapshots: one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPage {
    pub snapshots: Vec<Arc<Snapshot>>,
    /// The token of the page after it; `None` on the last one.
    pub next_token: Option<String>,
}

/// CSI `VolumeGroupSnapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub group: Arc<GroupSnapshot>,
    pub members: Vec<Arc<Snapshot>>,
}

/// CSI GetMetadataAllocated and GetMetadataDelta: one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRanges {
    /// The size of the (target) snapshot's volume in bytes; the same in every message.
    pub capacity_bytes: u64,
    /// Start and end in bytes, ascending, without overlap; the first one ends behind `starting_offset`.
    pub ranges: Vec<std::ops::Range<u64>>,
}

/// What a node has of a volume that a controller looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Found {
    Nothing,
    /// A controller is about to have it made there.
    Reserved,
    /// It is there, or somebody works on it.
    Held,
}

/// A node's answer to whether it has a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Whether the id is in use on this node.
    pub found: Found,
    /// The number of moves of the volume; `None` if the node has no record with this id.
    pub generation: Option<u64>,
    /// The CSI node id of the volume's next node, if the volume has moved away from this one.
    pub moved_to: Option<String>,
    /// The volume was deleted by its id. Known only while the node keeps a cut of it for a copy, or something that it left, and for 30
    /// days if the volume had moved to the node.
    pub deleted: bool,
    /// How often a seal of the volume was taken back, as SealVolume has to name it.
    pub unsealed: u64,
    /// Why the data of the volume cannot be used now; `None` if they can, or if there is no volume.
    pub unusable: Option<String>,
    /// The pool of the volume; `None` if the node has no record with this id.
    pub pool: Option<PoolName>,
    /// The CSI node ids of the nodes that the volume was on before this one adopted it.
    pub adopted_from: Vec<String>,
}

/// How an attempt to reserve a name ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reserved {
    /// With this token the volume can be made.
    Token(String),
    /// The volume is there, or somebody works on it.
    Held,
}

/// CSI GetCapacity, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Left in total.
    pub available: u64,
    /// The largest volume that can be made.
    pub maximum_volume: u64,
    /// The smallest volume that can be made.
    pub minimum_volume: u64,
}

/// CSI ControllerExpandVolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expanded {
    /// The size after the call.
    pub capacity_bytes: u64,
    /// NodeExpandVolume has to follow.
    pub node_expansion_required: bool,
}

/// CSI NodeGetVolumeStats; `None` for a unit of which nothing is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStats {
    /// In bytes.
    pub bytes: Option<StatsRow>,
    /// In inodes.
    pub inodes: Option<StatsRow>,
    /// What is known to be wrong with the volume.
    pub troubles: Arc<[Trouble]>,
}

/// CSI `VolumeUsage`; of a raw device only the total is known, the rest is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatsRow {
    /// How many there are.
    pub total: u64,
    /// How many are in use.
    pub used: u64,
    /// How many are free for the workload.
    pub available: u64,
}
