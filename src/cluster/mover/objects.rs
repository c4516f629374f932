//! The objects that a move makes. No I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt as _;

use super::copies::Access;
use super::decide::policy_was;
use super::status::{
    KEEP_SOURCE, MOVE_RECORD, MOVE_STATUS, MOVED_TO, MOVING, POLICY_WAS, Record, Status, lasting,
};
use crate::model::Settings;

/// What stands between the name of a PersistentVolume and what makes that of a copy unique.
const MOVED: &str = "-moved-";

/// The name of a copy of this volume, and of its PersistentVolume: one that no other attempt has.
pub(super) fn copy_name(volume: &str, claim: &PersistentVolumeClaim) -> String {
    let first = volume.split_once(MOVED).map_or(volume, |(first, _)| first);
    let version = claim.resource_version().unwrap_or_default();
    let attempt = crc32fast::hash(format!("{}/{version}", claim.uid().unwrap_or_default()).as_bytes());
    format!("{first}{MOVED}{attempt:08x}")
}

/// The uid of the claim that a PersistentVolume is bound to; `None` for one that waits for a claim by its name.
pub(super) fn reserved_for(volume: &PersistentVolume) -> Option<String> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    claim.uid.clone().filter(|uid| !uid.is_empty())
}

/// How pods see the volume.
pub(in crate::cluster) fn access(volume: &PersistentVolume) -> Access {
    let spec = volume.spec.clone().unwrap_or_default();
    Access {
        block: spec.volume_mode.as_deref() == Some("Block"),
        fs_type: spec.csi.and_then(|csi| csi.fs_type).unwrap_or_default(),
        mount_options: spec.mount_options.unwrap_or_default(),
        modes: spec.access_modes.unwrap_or_default(),
    }
}

/// The record of a claim that is to be made again.
pub(super) fn record(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    status: &Status,
) -> Option<Record> {
    let keep = claim.annotations().get(KEEP_SOURCE).is_some_and(|value| value == "true");
    // Nobody may set a finalizer for the owner in somebody else's name, and what asks for one needs the right to.
    let owner = |owner: &OwnerReference| OwnerReference { block_owner_deletion: None, ..owner.clone() };
    Some(Record {
        namespace: claim.namespace()?,
        name: claim.name_any(),
        uid: claim.uid()?,
        labels: claim.labels().clone(),
        annotations: lasting(claim.annotations()),
        owners: claim.owner_references().iter().map(owner).collect(),
        spec: claim.spec.clone()?,
        old_volume: volume.name_any(),
        old_handle: handle(volume)?.to_owned(),
        keep_source: keep,
        reclaim_policy: policy_was(volume)?.1.to_owned(),
        status: status.clone(),
    })
}

/// The CSI volume id.
pub(super) fn handle(volume: &PersistentVolume) -> Option<&str> {
    Some(volume.spec.as_ref()?.csi.as_ref()?.volume_handle.as_str())
}

/// The PersistentVolume of a copy. It is reserved for the claim by name: whoever makes that claim gets it.
pub(super) fn volume(old: &PersistentVolume, record: &Record) -> Option<PersistentVolume> {
    let spec = old.spec.clone()?;
    let mut csi = spec.csi.clone()?;
    csi.volume_handle.clone_from(&record.status.copy);
    let mut annotations: BTreeMap<String, String> = old.annotations().clone();
    for gone in ["pv.kubernetes.io/bound-by-controller", MOVED_TO, MOVE_RECORD, POLICY_WAS] {
        annotations.remove(gone);
    }
    annotations.insert(MOVE_RECORD.to_owned(), serde_json::to_string(record).ok()?);
    let mut labels = old.labels().clone();
    labels.insert(MOVING.to_owned(), "true".to_owned());
    let on_target = NodeSelectorRequirement {
        key: Settings::TOPOLOGY_KEY.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![record.status.target.clone()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![on_target]), match_fields: None };
    Some(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(record.status.name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            // csi-provisioner deletes the volume before the object only where its finalizer is there.
            finalizers: old.metadata.finalizers.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            csi: Some(csi),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: Some(record.namespace.clone()),
                name: Some(record.name.clone()),
                ..ObjectReference::default()
            }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            persistent_volume_reclaim_policy: Some("Retain".to_owned()),
            ..spec
        }),
        status: None,
    })
}

/// The claim of a record, for this PersistentVolume.
pub(super) fn claim(record: &Record, volume: &str) -> PersistentVolumeClaim {
    let mut annotations = record.annotations.clone();
    if let Ok(status) = serde_json::to_string(&record.status) {
        annotations.insert(MOVE_STATUS.to_owned(), status);
    }
    let mut spec = record.spec.clone();
    spec.volume_name = Some(volume.to_owned());
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(record.name.clone()),
            namespace: Some(record.namespace.clone()),
            labels: Some(record.labels.clone()),
            annotations: Some(annotations),
            owner_references: Some(record.owners.clone()).filter(|owners| !owners.is_empty()),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}
