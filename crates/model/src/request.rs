//! The RPCs' requests as plain types: what decoding makes of a CSI message, and what the use cases take. Everything here
//! has been checked for syntax; whether it fits the volume is for the use case to decide.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::pull::Way;
use super::{
    Capability, Claim, Consistency, Modification, SizeRange, SnapshotObject, TopologyRequirement,
    VolumeParameters,
};

/// Most entries of one page of a list: with their usual sizes a third of the 4 MiB that a client takes.
pub const MOST_ENTRIES: usize = 2000;
/// Most volumes of one group: all of its snapshots are in one answer of at most 4 MiB, whatever the lengths of their ids.
pub const MOST_MEMBERS: usize = 4000;

/// `volume_context` as a caller sends it back.
pub type Context = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateVolume {
    /// The CSI name: any text; never part of a path.
    pub name: String,
    pub size: SizeRange,
    /// At least one; all of one access type, and of one filesystem where they name one.
    pub capabilities: Vec<Capability>,
    pub parameters: VolumeParameters,
    /// What to copy; `None` for an empty volume.
    pub source: Option<Source>,
    /// How a source in use is copied.
    pub consistency: Consistency,
    /// Where the volume must be accessible from.
    pub topology: Option<TopologyRequirement>,
    /// The way to a source on another node, if a controller says so: no part of the CSI message.
    pub way: Option<Way>,
    /// With what its controller has reserved the name; the volume is made only if that still holds. A controller that
    /// had no other node to ask has none.
    pub reservation: Option<String>,
    /// It becomes a copy that is brought up to date with its source, and that nobody uses until that has ended
    /// (docs/decisions/0019): no part of the CSI message.
    pub as_copy: bool,
    /// That copy gets the backend and the filesystem that are asked for, whatever the source has.
    pub convert: bool,
    /// How often the source of a copy has moved; `None` if the controller does not say so.
    pub generation: Option<u64>,
    /// The claim that it is for, if the caller says so.
    pub claim: Option<Claim>,
}

/// What decides on which node a CreateVolume is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// As in [`CreateVolume`].
    pub name: String,
    /// What to copy; `None` for an empty volume.
    pub source: Option<Source>,
    pub class: PlacementClass,
    /// Where the volume must be accessible from.
    pub topology: Option<TopologyRequirement>,
}

/// What a StorageClass says of where a volume may be: no property of the volume, and the controller's affair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementClass {
    /// `crossNodeCopy`: whether a copy may be made from a source on another node.
    pub cross_node_copy: bool,
}

/// CSI `VolumeContentSource`: any text, since what is not an id of ours is just not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Snapshot(String),
    Volume(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerModifyVolume {
    pub volume_id: String,
    /// What to change; an `Err` is a key or value that no volume has, and says what to change.
    pub modification: Result<Modification, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSnapshot {
    /// The CSI name: any text; never part of a path.
    pub name: String,
    pub source_volume_id: String,
    /// How a source in use is copied.
    pub consistency: Consistency,
    /// Where the snapshot must be accessible from.
    pub topology: Option<TopologyRequirement>,
    /// The VolumeSnapshot that it is for, if the caller says so.
    pub object: Option<SnapshotObject>,
}

/// CSI ListSnapshots; all filters count together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListSnapshots {
    /// At most so many entries, never more than [`MOST_ENTRIES`].
    pub max_entries: usize,
    /// The token of the page before.
    pub starting_token: Option<String>,
    /// Only snapshots of this volume.
    pub source_volume_id: Option<String>,
    /// Only this snapshot.
    pub snapshot_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateVolumeGroupSnapshot {
    /// The CSI name: any text; never part of a path.
    pub name: String,
    /// The volumes, at least one; the same one twice counts once.
    pub source_volume_ids: Vec<String>,
    /// How sources in use are copied.
    pub consistency: Consistency,
}

/// CSI DeleteVolumeGroupSnapshot and GetVolumeGroupSnapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeGroupSnapshot {
    pub group_snapshot_id: String,
    /// Its members as the caller knows them; not checked where empty.
    pub snapshot_ids: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetMetadataAllocated {
    pub snapshot_id: String,
    /// In bytes, as sent: a negative one is OUT_OF_RANGE.
    pub starting_offset: i64,
    /// At most so many ranges in a message; `None` for the driver's choice.
    pub max_results: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetMetadataDelta {
    /// The snapshot from which the changes count.
    pub base_snapshot_id: String,
    /// The later snapshot, whose data are to be read.
    pub target_snapshot_id: String,
    /// In bytes, as sent: a negative one is OUT_OF_RANGE.
    pub starting_offset: i64,
    /// At most so many ranges in a message; `None` for the driver's choice.
    pub max_results: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerPublishVolume {
    pub volume_id: String,
    /// The node that is to use it.
    pub node_id: String,
    pub capability: Capability,
    /// Only for reading.
    pub read_only: bool,
    /// Sent back by the caller.
    pub context: Context,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerUnpublishVolume {
    pub volume_id: String,
    /// The node; `None` for every node.
    pub node_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidateVolumeCapabilities {
    pub volume_id: String,
    /// The capabilities asked about; an `Err` is one that no volume of this driver has, and says why.
    pub capabilities: Vec<Result<Capability, String>>,
    /// Sent back by the caller; checked against the volume where not empty.
    pub context: Context,
    /// The parameters asked about, typed; an `Err` is one that this driver does not have. `None` if none were sent.
    pub parameters: Option<Result<VolumeParameters, String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListVolumes {
    /// At most so many entries, never more than [`MOST_ENTRIES`].
    pub max_entries: usize,
    /// The token of the page before.
    pub starting_token: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetCapacity {
    /// The capabilities that the capacity must serve; an `Err` is one that no volume of this driver can have.
    pub capabilities: Vec<Result<Capability, String>>,
    pub parameters: VolumeParameters,
    /// Only the capacity at this place, which is the one requisite term; `None` for no restriction.
    pub topology: Option<TopologyRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerExpandVolume {
    pub volume_id: String,
    pub size: SizeRange,
    /// How the volume is used, if the caller says.
    pub capability: Option<Capability>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStageVolume {
    pub volume_id: String,
    /// Absolute, without `.` and `..`.
    pub staging_path: PathBuf,
    pub capability: Capability,
    /// Sent back by the caller.
    pub context: Context,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUnstageVolume {
    pub volume_id: String,
    /// Absolute, without `.` and `..`.
    pub staging_path: PathBuf,
}

/// What an inline ephemeral volume asks for in its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlineVolume {
    /// From the attribute `size`.
    pub size: SizeRange,
    /// From the other attributes.
    pub parameters: VolumeParameters,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePublishVolume {
    /// The volume; for an inline one the caller's choice.
    pub volume_id: String,
    /// Where it was staged; `None` if the caller sent none.
    pub staging_path: Option<PathBuf>,
    /// Absolute, without `.` and `..`.
    pub target_path: PathBuf,
    pub capability: Capability,
    /// Nothing may be written through this target.
    pub read_only: bool,
    /// Sent back by the caller.
    pub context: Context,
    /// Set for an inline ephemeral volume (`csi.storage.k8s.io/ephemeral: "true"`).
    pub inline: Option<InlineVolume>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUnpublishVolume {
    pub volume_id: String,
    /// Absolute, without `.` and `..`.
    pub target_path: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGetVolumeStats {
    pub volume_id: String,
    /// Where it is published or staged; any text, since a path that is none must be NOT_FOUND.
    pub volume_path: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGetVolumeHealth {
    pub volume_id: String,
    /// Where it is published, or should be.
    pub publish_path: Option<PathBuf>,
    /// Where it is staged, or should be.
    pub staging_path: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeExpandVolume {
    pub volume_id: String,
    /// Where it is published or staged; any text.
    pub volume_path: PathBuf,
    /// The wanted size; all zero to grow to what the volume has.
    pub size: SizeRange,
    /// How the volume is used, if the caller says.
    pub capability: Option<Capability>,
}
