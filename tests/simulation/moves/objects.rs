//! The objects that are there before a move: nodes, classes, and claims with their volumes.

use hostloop::model::Settings;
use serde_json::{Value, json};

use crate::kubernetes::{Kubernetes, NAMESPACE, key};
use crate::life::Volume;
use crate::pki::DRIVER;
use crate::requests::{Kind, Spec};

/// Who asks for a standby copy of a volume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Standby {
    Nobody,
    /// The StorageClass.
    Class,
    /// The claim, whose StorageClass lets it.
    Claim,
    /// The claim, whose StorageClass does not let it.
    InVain,
}

/// What a claim asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) spec: Spec,
    pub(super) standby: Standby,
}

impl Order {
    fn class(&self) -> String {
        class(self.spec.kind, self.standby)
    }

    /// Whether the volume gets a standby copy.
    pub(super) fn stands_by(&self) -> bool {
        matches!(self.standby, Standby::Class | Standby::Claim)
    }
}

/// The StorageClass of volumes of a kind.
fn class(kind: Kind, standby: Standby) -> String {
    let suffix = match standby {
        Standby::Nobody | Standby::InVain => "",
        Standby::Class => "-standby",
        Standby::Claim => "-by-claim",
    };
    format!("{}{suffix}", kind.name())
}

/// The parameters of that StorageClass.
fn parameters(kind: Kind, standby: Standby, interval: &str) -> Value {
    let mut parameters = json!(Spec::new(kind).parameters());
    match standby {
        Standby::Nobody | Standby::InVain => {}
        Standby::Class => {
            parameters["standby"] = json!("1");
            parameters["standbyInterval"] = json!(interval);
        }
        Standby::Claim => parameters["standbyByClaim"] = json!("true"),
    }
    parameters
}

/// Creates the StorageClasses whose volumes have standby copies of at most this age.
pub(super) fn standby_classes(kubernetes: &mut Kubernetes, interval: &str) {
    for standby in [Standby::Class, Standby::Claim] {
        let name = class(Kind::Block, standby);
        let parameters = parameters(Kind::Block, standby, interval);
        kubernetes.create(
            key("storageclasses", "", &name),
            json!({"metadata": {"name": name}, "provisioner": DRIVER, "parameters": parameters}),
        );
    }
}

/// Nodes, StorageClasses and the namespace.
pub(super) fn cluster(kubernetes: &mut Kubernetes, nodes: usize) {
    kubernetes.create(key("namespaces", "", NAMESPACE), json!({"metadata": {"name": NAMESPACE}}));
    for number in 0..nodes {
        node(kubernetes, &format!("n{number}"));
    }
    for kind in [Kind::Block, Kind::Directory] {
        let (name, parameters) = (class(kind, Standby::Nobody), parameters(kind, Standby::Nobody, ""));
        kubernetes.create(
            key("storageclasses", "", &name),
            json!({"metadata": {"name": name}, "provisioner": DRIVER, "parameters": parameters}),
        );
    }
}

/// A Node as kubelet creates it.
pub(super) fn node(kubernetes: &mut Kubernetes, name: &str) {
    let metadata = json!({"name": name, "labels": {Settings::TOPOLOGY_KEY: name}});
    kubernetes.create(
        key("nodes", "", name),
        json!({"metadata": metadata, "spec": {}, "status": condition("True")}),
    );
}

/// The status of a Node.
pub(super) fn condition(ready: &str) -> Value {
    json!({"conditions": [{"type": "Ready", "status": ready}]})
}

fn mode(spec: &Spec) -> &'static str {
    if spec.kind == Kind::Block { "Block" } else { "Filesystem" }
}

/// A claim as its user or a StatefulSet makes it.
pub(super) fn claim(name: &str, order: &Order, volume: Option<&str>) -> Value {
    let spec = &order.spec;
    let annotations = match order.standby {
        Standby::Nobody | Standby::Class => json!({}),
        Standby::Claim | Standby::InVain => {
            json!({"hostloop.csi.dev/standby": "1", "hostloop.csi.dev/standby-interval": "20s"})
        }
    };
    json!({"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "db"}, "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": order.class(), "volumeName": volume,
            "volumeMode": mode(spec), "resources": {"requests": {"storage": spec.bytes.to_string()}}}})
}

/// The PersistentVolume that csi-provisioner makes for a volume of a claim.
pub(super) fn volume(name: &str, claim: &str, node: &str, volume: &Volume, order: &Order) -> Value {
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": Settings::TOPOLOGY_KEY, "operator": "In", "values": [node]}]}]}});
    let spec = &order.spec;
    json!({"metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
        "spec": {"capacity": {"storage": spec.bytes.to_string()}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": order.class(), "persistentVolumeReclaimPolicy": "Delete", "volumeMode": mode(spec),
            "nodeAffinity": affinity, "csi": {"driver": DRIVER, "volumeHandle": volume.id, "volumeAttributes": {}},
            "claimRef": {"namespace": NAMESPACE, "name": claim}}})
}

/// A StatefulSet whose only claim is `data-SET-0`.
pub(super) fn set(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"selector": {}, "serviceName": name, "template": {},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}})
}
