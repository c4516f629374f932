//! What a move needs of the nodes. Each call names its node, the volume and its generation, and can be repeated.

use std::collections::BTreeMap;

use super::copies::{NewCopy, Updated};
use super::resources::{Purpose, VolumeReplicaSpec};
use crate::model::{NodeKey, VolumeId};

/// Why a node did not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// No connection to this very node can be made. It may be lost, or cut off.
    #[error("{0}")]
    Silent(String),
    /// It is being done, or may be: the answer did not come in time (ABORTED, DEADLINE_EXCEEDED).
    #[error("{0}")]
    Running(String),
    /// The node does not have it (NOT_FOUND).
    #[error("{0}")]
    NotFound(String),
    /// The node has no room (RESOURCE_EXHAUSTED).
    #[error("{0}")]
    NoRoom(String),
    /// Something uses the volume, or it is not in the state for it (FAILED_PRECONDITION).
    #[error("{0}")]
    InUse(String),
    /// It will never be done like this (INVALID_ARGUMENT, OUT_OF_RANGE, ALREADY_EXISTS, UNIMPLEMENTED).
    #[error("{0}")]
    Refused(String),
    /// Anything else that the node answers: a retry may succeed.
    #[error("{0}")]
    Failed(String),
}

/// The result of a call to a node.
pub type Result<T> = std::result::Result<T, NodeError>;

/// What a node knows of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It has the volume, which has moved so often.
    Has(u64),
    /// It has a record of the volume, and cannot use its data: why.
    Unusable(String),
    /// The volume was deleted there, by its id.
    Deleted,
    /// It does not have the volume, which may have moved away, or its disk may have been replaced.
    Nothing,
}

/// What a pass asks for, beside the copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassRequest {
    /// Those of the StorageClass: `freeze` and `freezeTimeout` say how the volume is cut.
    pub parameters: BTreeMap<String, String>,
    /// The copy is to be one cut whole even if the node of the volume is lost meanwhile.
    pub whole: bool,
    /// The largest size that the node of the volume may report, in bytes.
    pub most_bytes: u64,
    /// The volume is fenced, and pods wait for this pass.
    pub last: bool,
}

/// The nodes. A VolumeReplica says which volume and which copy each call is about.
#[tonic::async_trait]
pub trait Nodes: Send + Sync {
    /// Returns the CSI node ids of the nodes with the driver; `None` until they are known.
    fn members(&self) -> Option<Vec<String>>;

    /// Returns how many bytes a copy of this kind may have on its node.
    ///
    /// # Errors
    /// [`NodeError`], as of all calls.
    async fn room(&self, copy: &NewCopy) -> Result<u64>;

    /// Returns what this node knows of the volume `volume_id`.
    ///
    /// # Errors
    /// [`NodeError::Running`] while something is done with the id and there is no record yet, as while a copy is being made.
    async fn find(&self, node: &str, volume_id: &str) -> Result<Presence>;

    /// Returns the name of the pool that has the volume; `None` if the node does not say that.
    async fn pool(&self, node: &str, volume_id: &str) -> Result<Option<String>>;

    /// Returns the generation of a volume, and the nodes that it was on before this node adopted it; `None` if the node does not have it.
    async fn adopted(&self, node: &str, volume_id: &str) -> Result<Option<(u64, Vec<String>)>>;

    /// Makes the copy. It holds what the volume held at some moment since. No pod can use it until it is completed.
    ///
    /// # Errors
    /// [`NodeError::Running`] while the data come over.
    async fn create(&self, copy: &NewCopy) -> Result<()>;

    /// Brings the copy up to date.
    ///
    /// # Errors
    /// [`NodeError::Running`] while a pass runs; [`NodeError::NotFound`] if the copy, the volume or the cut that both have is
    /// gone.
    async fn update(&self, replica: &VolumeReplicaSpec, pass: &PassRequest) -> Result<Updated>;

    /// Makes the copy the volume: it takes over its id. With `stale`, also if the volume may have later data. A copy that has less
    /// than `least_bytes` grows.
    ///
    /// # Errors
    /// [`NodeError::InUse`] if the copy has not all of one cut, or lacks something.
    async fn complete(&self, replica: &VolumeReplicaSpec, stale: bool, least_bytes: u64) -> Result<()>;

    /// Applies the parameters of the VolumeAttributesClass to the volume at the node of the copy.
    async fn modify(&self, replica: &VolumeReplicaSpec, parameters: &BTreeMap<String, String>) -> Result<()>;

    /// Keeps other pods away from the volume at its node. Pods that have it go on.
    ///
    /// # Errors
    /// [`NodeError::InUse`] while a pod has it: other pods are kept away nevertheless.
    async fn fence(&self, replica: &VolumeReplicaSpec) -> Result<()>;

    /// Lets pods use the volume again.
    async fn unfence(&self, replica: &VolumeReplicaSpec) -> Result<()>;

    /// Takes the id away from what the earlier node has, after the copy has taken it over. Returns the id of what is left.
    ///
    /// # Errors
    /// [`NodeError::InUse`] if the node has the generation of the copy or a later one.
    async fn retire(&self, replica: &VolumeReplicaSpec) -> Result<String>;

    /// Sets the generation of the volume at its node to [`VolumeReplicaSpec::reclaimed_generation`], and unfences it.
    ///
    /// # Errors
    /// [`NodeError::InUse`] if the node has another generation.
    async fn reclaim(&self, replica: &VolumeReplicaSpec) -> Result<()>;

    /// Takes the id away from what the node of the copy has, after the volume has been reclaimed. Returns the id of what is left.
    ///
    /// # Errors
    /// [`NodeError::NotFound`] if the copy has never taken over the id.
    async fn retire_copy(&self, replica: &VolumeReplicaSpec) -> Result<String>;

    /// Removes the cuts that the node of the volume keeps for the copy.
    async fn release(&self, replica: &VolumeReplicaSpec) -> Result<()>;

    /// Deletes the copy, which is not complete.
    async fn delete_copy(&self, replica: &VolumeReplicaSpec) -> Result<()>;

    /// Deletes what [`Nodes::retire`] has left at the earlier node.
    async fn delete_left(&self, replica: &VolumeReplicaSpec, left_id: &str) -> Result<()>;

    /// Deletes what [`Nodes::retire_copy`] has left at the node of the copy.
    async fn delete_left_copy(&self, replica: &VolumeReplicaSpec, left_id: &str) -> Result<()>;
}

impl VolumeReplicaSpec {
    /// Returns the generation of the volume after this move.
    pub fn next_generation(&self) -> u64 {
        self.generation.saturating_add(1)
    }

    /// Returns the generation of the volume after it has been reclaimed: higher than any that its copy can have.
    pub fn reclaimed_generation(&self) -> u64 {
        self.generation.saturating_add(2)
    }

    /// Reports whether it is for what a node has of an earlier generation, of which there is no copy.
    pub fn is_of_an_earlier_generation(&self) -> bool {
        self.purpose == Purpose::Move && self.requested_by.is_none()
    }

    /// Returns the id of what [`Nodes::retire`] leaves at the earlier node; `None` if the spec does not have the id of a volume.
    pub fn left_id(&self) -> Option<String> {
        let id = self.volume_id.parse().ok()?;
        Some(VolumeId::of_retired(&NodeKey::of(&self.source_node), &id, self.next_generation()).to_string())
    }
}
