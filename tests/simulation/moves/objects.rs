//! The objects that are there before a move: nodes, classes, and claims with their volumes.

use hostloop::model::Settings;
use serde_json::{Value, json};

use crate::kubernetes::{Kubernetes, NAMESPACE, key};
use crate::life::Volume;
use crate::pki::DRIVER;
use crate::requests::{Kind, Spec};

/// The StorageClass of volumes of a kind.
fn class(kind: Kind) -> &'static str {
    kind.name()
}

/// Nodes, StorageClasses and the namespace.
pub(super) fn cluster(kubernetes: &mut Kubernetes, nodes: usize) {
    kubernetes.create(key("namespaces", "", NAMESPACE), json!({"metadata": {"name": NAMESPACE}}));
    for node in 0..nodes {
        let name = format!("n{node}");
        let metadata = json!({"name": name, "labels": {Settings::TOPOLOGY_KEY: name}});
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        kubernetes
            .create(key("nodes", "", &name), json!({"metadata": metadata, "spec": {}, "status": ready}));
    }
    for kind in [Kind::Block, Kind::Directory] {
        let parameters = json!(Spec::new(kind).parameters());
        kubernetes.create(
            key("storageclasses", "", class(kind)),
            json!({"metadata": {"name": class(kind)}, "provisioner": DRIVER, "parameters": parameters}),
        );
    }
}

fn mode(spec: &Spec) -> &'static str {
    if spec.kind == Kind::Block { "Block" } else { "Filesystem" }
}

/// A claim as its user or a StatefulSet makes it.
pub(super) fn claim(name: &str, spec: &Spec, volume: Option<&str>) -> Value {
    json!({"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "db"}, "annotations": {}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class(spec.kind), "volumeName": volume,
            "volumeMode": mode(spec), "resources": {"requests": {"storage": spec.bytes.to_string()}}}})
}

/// The PersistentVolume that csi-provisioner makes for a volume of a claim.
pub(super) fn volume(name: &str, claim: &str, node: &str, volume: &Volume) -> Value {
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": Settings::TOPOLOGY_KEY, "operator": "In", "values": [node]}]}]}});
    let spec = &volume.spec;
    json!({"metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
        "spec": {"capacity": {"storage": spec.bytes.to_string()}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": class(spec.kind), "persistentVolumeReclaimPolicy": "Delete", "volumeMode": mode(spec),
            "nodeAffinity": affinity, "csi": {"driver": DRIVER, "volumeHandle": volume.id, "volumeAttributes": {}},
            "claimRef": {"namespace": NAMESPACE, "name": claim}}})
}

/// A StatefulSet whose only claim is `data-SET-0`.
pub(super) fn set(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"selector": {}, "serviceName": name, "template": {},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}})
}
