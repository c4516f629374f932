//! The PersistentVolume and the claim of an adopted volume. No I/O.

use serde_json::{Map, Value, json};

use crate::admin::seen::Name;
use crate::cluster::moves::exchange::affinity_of;
use crate::model::Adoption;

/// What the objects have beside what the node says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct Wish {
    pub(in crate::admin) claim: Name,
    /// The name of the StorageClass; empty for none.
    pub(in crate::admin) class: String,
    pub(in crate::admin) mount_options: Vec<String>,
    /// `Delete` or `Retain`.
    pub(in crate::admin) policy: String,
}

impl Wish {
    /// Returns the name of the PersistentVolume. It is the same each time.
    pub(in crate::admin) fn volume_name(&self) -> String {
        format!("adopted-{}-{}", self.claim.namespace, self.claim.name)
    }
}

fn mode(adoption: &Adoption) -> &'static str {
    if adoption.block { "Block" } else { "Filesystem" }
}

/// Returns what a PersistentVolume says of the volume.
pub(in crate::admin) fn csi(adoption: &Adoption) -> Value {
    let mut csi = Map::new();
    csi.insert("driver".to_owned(), json!(adoption.driver_name));
    csi.insert("volumeHandle".to_owned(), json!(adoption.volume_id));
    if !adoption.fs_type.is_empty() {
        csi.insert("fsType".to_owned(), json!(adoption.fs_type));
    }
    csi.insert("volumeAttributes".to_owned(), json!(adoption.volume_context));
    Value::Object(csi)
}

/// Returns the PersistentVolume.
pub(in crate::admin) fn volume(adoption: &Adoption, wish: &Wish) -> Value {
    let mut spec = json!({
        "capacity": {"storage": adoption.capacity_bytes.to_string()},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": wish.policy,
        "storageClassName": wish.class,
        "volumeMode": mode(adoption),
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": wish.claim.namespace, "name": wish.claim.name},
        "nodeAffinity": affinity_of(&adoption.node_id),
        "csi": csi(adoption),
    });
    if !wish.mount_options.is_empty()
        && let Some(spec) = spec.as_object_mut()
    {
        spec.insert("mountOptions".to_owned(), json!(wish.mount_options));
    }
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": wish.volume_name(),
            "annotations": {"pv.kubernetes.io/provisioned-by": adoption.driver_name},
        },
        "spec": spec,
    })
}

/// Returns the claim.
pub(in crate::admin) fn claim(adoption: &Adoption, wish: &Wish) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": wish.claim.namespace, "name": wish.claim.name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": adoption.capacity_bytes.to_string()}},
            "storageClassName": wish.class,
            "volumeMode": mode(adoption),
            "volumeName": wish.volume_name(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_a_volume_name_each_other() {
        let claim_name = Name { namespace: "shop".to_owned(), name: "data".to_owned() };
        let wish = Wish {
            claim: claim_name,
            class: "local".to_owned(),
            policy: "Delete".to_owned(),
            ..Wish::default()
        };
        let adoption = Adoption {
            volume_id: "vol-1".to_owned(),
            capacity_bytes: 4096,
            node_id: "node-1".to_owned(),
            fs_type: "xfs".to_owned(),
            ..Adoption::default()
        };
        let (volume, claim) = (volume(&adoption, &wish), claim(&adoption, &wish));
        assert_eq!(claim["spec"]["volumeName"], volume["metadata"]["name"]);
        assert_eq!(volume["spec"]["claimRef"]["name"], claim["metadata"]["name"]);
        assert_eq!(volume["spec"]["csi"]["fsType"], "xfs");
        assert_eq!(volume["spec"]["capacity"]["storage"], "4096");
        assert!(volume["spec"].get("mountOptions").is_none());
        let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        assert_eq!(term["matchExpressions"][0]["values"], json!(["node-1"]));
    }
}
