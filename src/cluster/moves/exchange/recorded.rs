//! The PersistentVolume that is recorded between its deletion and its creation. It keeps the fields of later releases of Kubernetes.
//! No I/O.

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, VolumeNodeAffinity,
};
use kube::ResourceExt as _;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::model::Settings;

/// Holds a PersistentVolume as long as it is bound (Kubernetes, the storage protection controller).
const PROTECTION: &str = "kubernetes.io/pv-protection";
/// Holds a PersistentVolume until csi-provisioner has deleted its volume.
const PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Holds a PersistentVolume as long as it is attached (csi-attacher); the name of the driver follows, with dashes.
const ATTACHER: &str = "external-attacher/";
/// Where a recorded PersistentVolume has its reclaim policy.
const POLICY: &str = "/spec/persistentVolumeReclaimPolicy";

/// What the API server writes into the metadata of an object that is created.
const OF_THE_SERVER: [&str; 6] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// Returns the reclaim policy that the volume had before an exchange, if the exchange changed it and was given up before
/// the deletion. If the object was created again, an administrator has changed its policy since.
pub(super) fn policy_to_restore(volume: &PersistentVolume, recorded: &Value) -> Option<String> {
    let is_same = recorded.pointer("/metadata/uid")?.as_str() == volume.uid().as_deref();
    let before = recorded.pointer(POLICY)?.as_str()?;
    (is_same && policy(volume) == Some("Retain") && before != "Retain").then(|| before.to_owned())
}

/// Reports whether a record has what is to be created again. The exchange itself changes the reclaim policy and the finalizers.
pub(super) fn is_as_recorded(whole: &Value, recorded: &Value) -> bool {
    let mut now = as_recorded(whole);
    set_policy(&mut now, recorded.pointer(POLICY));
    ["/spec", "/metadata/uid", "/metadata/labels", "/metadata/annotations"]
        .iter()
        .all(|part| now.pointer(part) == recorded.pointer(part))
}

/// Keeps the reclaim policy of an earlier record of the same object: by now, the exchange may have changed it.
pub(super) fn with_policy_of(earlier: &Value, mut recorded: Value) -> Value {
    if earlier.pointer("/metadata/uid") == recorded.pointer("/metadata/uid") {
        set_policy(&mut recorded, earlier.pointer(POLICY));
    }
    recorded
}

fn set_policy(recorded: &mut Value, policy: Option<&Value>) {
    if let (Some(place), Some(policy)) = (recorded.pointer_mut(POLICY), policy) {
        place.clone_from(policy);
    }
}

pub(super) fn policy(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.persistent_volume_reclaim_policy.as_deref()
}

pub(super) fn retain() -> Value {
    json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
}

pub(super) fn is_changed_back(volume: &PersistentVolume) -> String {
    format!(
        "a policy or a webhook of the cluster takes back each change of PersistentVolume {}",
        volume.name_any()
    )
}

/// Returns the PersistentVolume as the VolumeReplica has it, with the fields that this release does not know.
pub(crate) fn as_recorded(whole: &Value) -> Value {
    let mut recorded = whole.clone();
    remove(&mut recorded, "/metadata", &["managedFields"]);
    remove(&mut recorded, "", &["status"]);
    recorded
}

/// Returns the PersistentVolume as it is to be created with a node.
pub(crate) fn made_again(recorded: &Value, node: &str) -> Value {
    let mut volume = as_recorded(recorded);
    remove(&mut volume, "/metadata", &OF_THE_SERVER);
    remove(&mut volume, "/spec/claimRef", &["resourceVersion"]);
    // Kubernetes and csi-attacher set theirs again.
    if let Some(Value::Array(finalizers)) = volume.pointer_mut("/metadata/finalizers") {
        finalizers.retain(|finalizer| finalizer == PROVISIONER);
    }
    if let Some(Value::Object(spec)) = volume.pointer_mut("/spec") {
        spec.insert("nodeAffinity".to_owned(), json!(affinity_of(node)));
    }
    volume
}

fn remove(of: &mut Value, place: &str, fields: &[&str]) {
    if let Some(Value::Object(object)) = of.pointer_mut(place) {
        object.retain(|field, _| !fields.contains(&field.as_str()));
    }
}

/// Returns what this release knows of a PersistentVolume.
///
/// # Errors
/// If it is none.
pub(super) fn typed(whole: &Value) -> Result<PersistentVolume, kube::Error> {
    PersistentVolume::deserialize(whole).map_err(kube::Error::SerdeError)
}

/// Returns the finalizers of others than Kubernetes and its sidecars.
pub(crate) fn foreign(volume: &PersistentVolume) -> Vec<&str> {
    let known =
        |finalizer: &str| [PROTECTION, PROVISIONER].contains(&finalizer) || finalizer.starts_with(ATTACHER);
    volume.finalizers().iter().map(String::as_str).filter(|finalizer| !known(finalizer)).collect()
}

/// Returns the affinity that csi-provisioner gives to a volume of this node.
pub(crate) fn affinity_of(node: &str) -> VolumeNodeAffinity {
    let on_node = NodeSelectorRequirement {
        key: Settings::TOPOLOGY_KEY.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![on_node]), match_fields: None };
    VolumeNodeAffinity { required: Some(NodeSelector { node_selector_terms: vec![term] }) }
}
