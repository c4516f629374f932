//! What is known of a copy before the next step. No I/O. Nothing here is believed because the owner of a claim has written it.

use std::time::Duration;

use super::resources::{VolumeReplicaSpec, VolumeReplicaStatus, When};

/// Why a copy exists, as far as that is known.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// A VolumeMove asks for it.
    Move { when: When, evict_bare_pods: bool },
    /// The StorageClass, or the claim if its class allows that, asks for a copy that is at most this old.
    Standby { interval: Duration },
    /// Nothing asks for it, and why.
    Nothing(String),
    /// It is not known, and why: an object is missing or cannot be read.
    Unknown(String),
}

/// What Kubernetes says of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    Ready,
    /// It has not reported for a while.
    NotReady,
    /// An administrator says that it is shut down (the taint node.kubernetes.io/out-of-service).
    OutOfService,
    /// Its Node object was deleted, as clouds do when a machine is gone.
    Gone,
}

/// What a node has just answered about the volume.
#[derive(Debug, Clone, PartialEq)]
pub enum Says {
    /// It has the volume, and this generation of it.
    Has(u64),
    /// It has a record of the volume, and cannot use its data: why, and for how long by now.
    Unusable(String, Duration),
    /// The volume was deleted there, by its id.
    Deleted,
    /// It does not have the volume. Its disk may have been replaced.
    Nothing,
    /// It answers, and not this.
    Error(String),
    /// No connection to it can be made, for so long by now.
    Silent(Duration),
    /// It was not asked: this phase does not need it.
    NotAsked,
}

/// A pod that uses the claim on one of the two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub is_leaving: bool,
    /// No container of it has ever run.
    pub never_ran: bool,
    /// It was created after the fence, so that its node does not give it the volume.
    pub is_late: bool,
    /// A controller creates it again.
    pub has_controller: bool,
}

/// What is known of a copy and of what surrounds it.
#[derive(Debug, Clone)]
pub struct View {
    pub spec: VolumeReplicaSpec,
    pub status: VolumeReplicaStatus,
    /// An administrator deletes the VolumeReplica.
    pub is_deleted: bool,
    /// An administrator has said that the copy is to take the volume's place.
    pub is_promoted: bool,
    pub wanted: Wanted,
    /// The claim is being deleted, or is gone; `None` if that is not known.
    pub claim_is_deleted: Option<bool>,
    /// What delays a cutover: an expansion, or a claim of the same pods that is not ready (rule 9). In `CuttingOver`, only the latter.
    pub hindered: Option<String>,
    /// A claim of the same pods is at the other node, or about to be there (rule 9).
    pub is_awaited: bool,
    /// The same, and that claim does not come back to the node of the volume: cancelling this move would part the two (rule 9).
    pub is_bound: bool,
    /// In `Standby`, why the copy is of no use on its node: another claim of the same pods has its copy on another node (rule 9).
    pub apart: Option<String>,
    /// In `Completing` and without a status, the pods on the node of the copy, on which the volume may be already.
    pub users: Vec<User>,
    pub source_node: NodeState,
    pub source: Says,
    pub target: Says,
    /// What the node of the copy has just answered about the copy.
    pub copy: Says,
    pub target_node: NodeState,
    /// If the status was lost: what the node of the volume has just answered about what this move has left there. It is asked only if it
    /// has a later generation, as when the volume has come back, or if it is to retire an earlier one.
    pub left: Says,
    /// If the status was lost: for how long this controller has known that.
    pub lost_for: Duration,
    /// The volume has another copy, whose status is there.
    pub has_another_copy: bool,
    /// How long ago the first copy failed, if it did.
    pub failed: Option<Duration>,
    /// How old the data of the copy are. What is in the future, by the clock of this controller, is as old as can be.
    pub age: Option<Duration>,
    /// How many first copies come before this one.
    pub queue: usize,
}

impl View {
    /// Reports whether the controller evicts no more pods for the VolumeMove that asks for the copy.
    pub fn has_ended_evictions(&self) -> bool {
        let asked = self.spec.requested_by.as_ref();
        asked.is_some_and(|by| by.uid == self.status.evictions_ended)
    }

    /// Reports whether the Node object of the copy's node was deleted.
    pub fn target_is_gone(&self) -> bool {
        self.target_node == NodeState::Gone
    }
}
