//! The two kinds of objects that a move has to do with (docs/decisions/0022). A VolumeMove is a request: to create one is
//! to ask for a move. A VolumeReplica says that a copy of a volume exists; only the controller writes it, and
//! nothing else decides what becomes of the copy.

#![expect(clippy::duplicated_attributes, reason = "each printcolumn has a type_ and a json_path")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::phases::{MovePhase, ReplicaPhase};

/// Holds an object of either kind until what it stands for has ended.
pub const FINALIZER: &str = "hostloop.csi.dev/copy";

/// VolumeMove asks for a volume to be moved to another node or another pool. Deleting it cancels the move as long as that is possible.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "hostloop.csi.dev",
    version = "v1alpha1",
    kind = "VolumeMove",
    doc = "VolumeMove asks for a volume to be moved to another node or another pool. Delete it to cancel the move as long as that is possible.",
    plural = "volumemoves",
    shortname = "vmove",
    namespaced,
    status = "VolumeMoveStatus",
    derive = "PartialEq",
    validation = Rule::new("self.spec == oldSelf.spec").message("a VolumeMove cannot be changed: delete it and create another one"),
    printcolumn(name = "Claim", type_ = "string", json_path = ".spec.claimName"),
    printcolumn(name = "From", type_ = "string", json_path = ".status.sourceNode"),
    printcolumn(name = "To", type_ = "string", json_path = ".status.targetNode"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Progress", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "From Pool", type_ = "string", json_path = ".status.sourcePool", priority = 1),
    printcolumn(name = "To Pool", type_ = "string", json_path = ".status.targetPool", priority = 1),
    printcolumn(
        name = "Unavailable ms",
        type_ = "integer",
        json_path = ".status.unavailableMilliseconds",
        priority = 1
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMoveSpec {
    /// The PersistentVolumeClaim, in the namespace of this object, whose volume is to be moved.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Where the volume is to be. If it is empty, the controller chooses the node with the most room.
    #[serde(default)]
    pub target: Target,
    /// When the volume changes its node.
    #[serde(default)]
    pub when: When,
    /// Keep the data on the earlier node. The VolumeReplica names them; delete it to delete them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_source: bool,
    /// Evict pods that no controller creates again as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evict_bare_pods: bool,
}

/// Where a volume is to be. What is not set, the controller chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The name of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node: Option<String>,
    /// The name of the pool on the node. If it is not set, the StorageClass decides. With the node that has the volume, the volume moves
    /// to this pool of that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub pool: Option<String>,
    /// The name of a StorageClass whose parameters the volume gets. If it is not set, that of the claim. The claim keeps its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class: Option<String>,
}

/// When a volume changes its node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum When {
    /// As soon as no pod uses it, for example while the node is drained.
    #[default]
    PodsLeave,
    /// As soon as the copy is nearly up to date. The pods are evicted, if their PodDisruptionBudgets allow that.
    Now,
    /// What a later release can be asked for.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// How far a move is. It is for people; nothing is decided by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMoveStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MovePhase>,
    /// What is waited for, or what is wrong and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How much of the first copy has been made, in percent; later the number of passes and what they sent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub progress: String,
    /// The name of the VolumeReplica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node: Option<String>,
    /// The pools, if the volume moves to another pool of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_pool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_pool: Option<String>,
    /// For how long no pod could use the volume, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_milliseconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "moment")]
    pub completion_time: Option<Time>,
}

/// VolumeReplica says that a copy of a volume exists on another node. Only the controller writes it. Delete it to have the
/// copy deleted, even if the node of the volume does not say that it has the data.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "hostloop.csi.dev",
    version = "v1alpha1",
    kind = "VolumeReplica",
    doc = "VolumeReplica says that a copy of a volume exists on another node. Only the controller writes it. Delete it to have the copy deleted.",
    plural = "volumereplicas",
    shortname = "vreplica",
    status = "VolumeReplicaStatus",
    derive = "PartialEq",
    printcolumn(name = "Claim", type_ = "string", json_path = ".spec.claim.name"),
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.claim.namespace"),
    printcolumn(name = "From", type_ = "string", json_path = ".spec.sourceNode"),
    printcolumn(name = "To", type_ = "string", json_path = ".spec.targetNode"),
    printcolumn(name = "Purpose", type_ = "string", json_path = ".spec.purpose"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Last Pass", type_ = "date", json_path = ".status.lastPass.asked"),
    printcolumn(name = "Passes", type_ = "integer", json_path = ".status.passes"),
    printcolumn(name = "From Pool", type_ = "string", json_path = ".spec.sourcePool", priority = 1),
    printcolumn(name = "To Pool", type_ = "string", json_path = ".spec.targetPool", priority = 1),
    printcolumn(name = "Sent Bytes", type_ = "integer", json_path = ".status.sentBytes", priority = 1),
    printcolumn(
        name = "Unavailable ms",
        type_ = "integer",
        json_path = ".status.unavailableMilliseconds",
        priority = 1
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeReplicaSpec {
    /// The name of the driver that has the volume.
    pub driver: String,
    /// The CSI id of the volume.
    pub volume_id: String,
    /// How often the volume had moved when the copy was made. Nothing is done to a volume of another generation.
    pub generation: u64,
    /// The PersistentVolume of the volume.
    pub persistent_volume: ObjectId,
    /// The claim that the PersistentVolume was bound to.
    pub claim: ClaimId,
    /// The node that has the volume.
    pub source_node: String,
    /// The node that has the copy.
    pub target_node: String,
    /// The pool that has the volume, if the copy is in another pool of the same node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_pool: Option<String>,
    /// The pool of the copy; the StorageClass decides if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_pool: Option<String>,
    /// The StorageClass whose parameters the copy gets; that of the claim if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_class: Option<String>,
    /// The CSI name of the copy. No other copy has ever had it.
    pub copy_name: String,
    /// The CSI id of the copy until it takes over the id of the volume.
    pub copy_id: String,
    pub purpose: Purpose,
    /// What the earlier node has is kept after the move, as the VolumeMove asked when the copy was made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_source: bool,
    /// The VolumeMove that asks for the copy, or to which the standby copy is lent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<ObjectId>,
}

/// One object, and not a later one of its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectId {
    pub name: String,
    pub uid: String,
}

/// One claim, and not a later one of its name, which has another uid. That holds for a later namespace of the same name as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimId {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What a copy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Purpose {
    /// The volume moves to the node of the copy.
    Move,
    /// The copy takes the volume's place if its node is lost.
    Standby,
    /// There is no copy: the target node has adopted the volume, with the disk of the source node or as that node under another name.
    Adoption,
    /// A later release has written it. Nothing is done, and nothing is written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// How far a copy is. It holds all that the controller knows: another one goes on from here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeReplicaStatus {
    #[serde(default)]
    pub phase: ReplicaPhase,
    /// What is waited for, or what is wrong and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The controller has written this status. Without it, an administrator or a restored backup may have removed the status, and
    /// the nodes are asked what they have of the volume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
    /// The status was removed, and there may be a copy already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maybe_copied: bool,
    /// The last pass that brought the copy up to date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_pass: Option<Pass>,
    /// The number of passes, and what they sent in bytes.
    #[serde(default)]
    pub passes: u64,
    #[serde(default)]
    pub sent_bytes: u64,
    /// The copy is identical to the volume, which is fenced and not in use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// The copy takes the volume's place although the volume may have later data: its node is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// The cutover began because the node of the volume was lost, by the word of Kubernetes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// The controller evicts no more pods for the VolumeMove with this uid. One pod left, and the next eviction was refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub evictions_ended: String,
    /// When the first copy failed for the last time. Other first copies come before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "moment")]
    pub first_copy_failed: Option<Time>,
    /// The volume may be fenced already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maybe_fenced: bool,
    /// The copy may have taken over the id of the volume already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maybe_completed: bool,
    /// The volume was taken back, with a generation two higher, because the node of the copy was lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reclaimed: bool,
    /// Since when no pod could use the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "moment")]
    pub fenced: Option<Time>,
    /// The PersistentVolume may name the node of the copy already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exchanged: bool,
    /// The PersistentVolume before its deletion, to be created again with the other node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub recorded: Option<serde_json::Value>,
    /// For how long no pod could use the volume, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_milliseconds: Option<i64>,
    /// The CSI id of what is left of the volume on the earlier node, or on the node of the copy if the volume was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_id: Option<String>,
}

/// A pass that brought a copy up to date.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pass {
    /// When the controller asked for it, by the controller's clock.
    #[schemars(schema_with = "moment")]
    pub asked: Time,
    /// When the volume was cut, by the clock of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "moment")]
    pub cut: Option<Time>,
    /// What it sent in bytes.
    pub sent_bytes: u64,
    /// The size of the volume in bytes.
    pub size_bytes: u64,
}

impl VolumeReplicaSpec {
    /// Reports whether the copy is in another pool of the node that has the volume.
    pub fn is_on_one_node(&self) -> bool {
        self.source_node == self.target_node
    }

    /// Returns where the volume goes, for people.
    pub fn destination(&self) -> String {
        match (&self.target_pool, self.is_on_one_node()) {
            (Some(pool), true) => format!("pool {pool} of node {}", self.target_node),
            _ => format!("node {}", self.target_node),
        }
    }

    /// Returns where the volume comes from, for people.
    pub fn origin(&self) -> String {
        match &self.source_pool {
            Some(pool) => format!("pool {pool} of node {}", self.source_node),
            None => format!("node {}", self.source_node),
        }
    }
}

impl VolumeReplica {
    /// Returns the phase. An object that was just created has no status.
    pub fn phase(&self) -> ReplicaPhase {
        self.status.as_ref().map(|status| status.phase).unwrap_or_default()
    }

    /// Returns the node that has data beside the volume: the copy, or what the volume has left when it moved.
    pub fn node_of_data(&self) -> &str {
        let is_reclaimed = self.status.as_ref().is_some_and(|status| status.reclaimed);
        match self.phase() {
            ReplicaPhase::Retiring | ReplicaPhase::Left if !is_reclaimed => &self.spec.source_node,
            _ => &self.spec.target_node,
        }
    }
}

/// The schema of a [`Time`]: with a schema of its own, k8s-openapi would make one of each type of Kubernetes.
fn moment(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string", "format": "date-time"})
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true})
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use kube::{CustomResourceExt as _, Resource as _};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_kinds_have_status_subresources() {
        for crd in [VolumeMove::crd(), VolumeReplica::crd()] {
            let [version] = crd.spec.versions.as_slice() else { panic!("{crd:?}") };
            assert!(version.subresources.as_ref().is_some_and(|both| both.status.is_some()), "{crd:?}");
            assert!(version.served && version.storage);
        }
        assert_eq!(VolumeMove::plural(&()), "volumemoves");
        assert_eq!(VolumeReplica::crd().spec.scope, "Cluster");
    }

    #[test]
    fn phases_are_named_as_in_the_object() {
        for phase in ReplicaPhase::ALL {
            assert_eq!(json!(phase), phase.as_str());
        }
        assert!(ReplicaPhase::ALL.is_sorted());
    }

    /// With the directory `HOSTLOOP_CRDS`, writes the types there instead, for scripts/update-crds.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "files of the chart are no volume's files")]
    fn the_files_of_the_chart_are_these_types() {
        let files = [
            (include_str!("../../../deploy/helm/hostloop/files/crds/volumemoves.yaml"), VolumeMove::crd()),
            (
                include_str!("../../../deploy/helm/hostloop/files/crds/volumereplicas.yaml"),
                VolumeReplica::crd(),
            ),
        ];
        for (file, crd) in files {
            let name = &crd.spec.names.plural;
            if let Some(out) = std::env::var_os("HOSTLOOP_CRDS") {
                let path = std::path::Path::new(&out).join(format!("{name}.json"));
                std::fs::write(path, serde_json::to_vec(&crd).unwrap()).unwrap();
                continue;
            }
            let file: CustomResourceDefinition = serde_saphyr::from_str(file).unwrap();
            assert!(file.spec == crd.spec, "{name} is another: run scripts/update-crds");
        }
    }

    #[test]
    fn a_move_asks_for_little_and_cannot_change() {
        let asked: VolumeMove = serde_json::from_value(json!({"apiVersion": "hostloop.csi.dev/v1alpha1",
            "kind": "VolumeMove", "metadata": {"name": "m"}, "spec": {"claimName": "data"}}))
        .unwrap();
        assert_eq!((asked.spec.when, asked.spec.target), (When::PodsLeave, Target::default()));
        let crd = serde_json::to_value(VolumeMove::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert_eq!(schema["x-kubernetes-validations"][0]["rule"], "self.spec == oldSelf.spec", "{schema:#}");
        assert_eq!(schema["properties"]["spec"]["required"], json!(["claimName"]));
    }

    #[test]
    fn a_recorded_volume_keeps_fields_of_later_releases() {
        let crd = serde_json::to_value(VolumeReplica::crd()).unwrap();
        let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        assert_eq!(
            status["properties"]["recorded"]["x-kubernetes-preserve-unknown-fields"], true,
            "{status:#}"
        );
        let text = json!({"phase": "Exchanging", "recorded": {"spec": {"later": [1]}}});
        let status: VolumeReplicaStatus = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&status).unwrap()["recorded"], text["recorded"]);
    }
}
