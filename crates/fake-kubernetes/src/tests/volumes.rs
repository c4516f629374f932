//! What may change of a PersistentVolume.

use super::*;

fn patch(kubernetes: &mut Kubernetes, spec: &Value) -> (u16, Value) {
    call(kubernetes, &Method::PATCH, &format!("{VOLUMES}/pvc-1"), &json!({"spec": spec}))
}

#[test]
fn the_source_of_a_volume_is_immutable() {
    let mut kubernetes = bound();
    for csi in [
        json!({"volumeHandle": "other"}),
        json!({"driver": "other"}),
        json!({"volumeAttributes": {"a": "b"}}),
    ] {
        let (code, answer) = patch(&mut kubernetes, &json!({"csi": csi}));
        assert_eq!((code, &answer["reason"]), (422, &json!("Invalid")));
        assert!(answer["message"].as_str().unwrap().contains("spec.csi"), "{answer}");
    }
    assert_eq!(patch(&mut kubernetes, &json!({"csi": null})).0, 422);
    assert_eq!(patch(&mut kubernetes, &json!({"volumeMode": "Block"})).0, 422);
    assert_eq!(patch(&mut kubernetes, &json!({"persistentVolumeReclaimPolicy": "Retain"})).0, 200);
    let mut volume = kubernetes.get("persistentvolumes", "pvc-1").unwrap();
    volume["spec"]["csi"]["volumeHandle"] = json!("other");
    assert_eq!(code(&mut kubernetes, &Method::PUT, &format!("{VOLUMES}/pvc-1"), &volume), 422);
}

#[test]
fn a_node_affinity_is_mutable_with_its_gate() {
    let mut kubernetes = bound();
    let affinity = json!({"nodeAffinity": volume("pvc-1", "n2", None)["spec"]["nodeAffinity"]});
    assert_eq!(patch(&mut kubernetes, &affinity).0, 422);
    assert_eq!(patch(&mut kubernetes, &json!({"nodeAffinity": null})).0, 422);
    kubernetes.mutable_node_affinity = true;
    assert_eq!(patch(&mut kubernetes, &affinity).0, 200);
    let volume = kubernetes.get("persistentvolumes", "pvc-1").unwrap();
    assert_eq!(crate::control::node_of(&volume), "n2");
    assert_eq!(patch(&mut kubernetes, &json!({"csi": {"volumeHandle": "other"}})).0, 422);
}

#[test]
fn a_node_affinity_that_is_missing_can_be_set() {
    let mut kubernetes = Kubernetes::default();
    let mut volume = volume("pvc-1", "n1", None);
    let affinity = volume["spec"]["nodeAffinity"].take();
    volume["spec"].as_object_mut().unwrap().remove("nodeAffinity");
    done(&mut kubernetes, &Method::POST, VOLUMES, &volume);
    assert_eq!(patch(&mut kubernetes, &json!({"nodeAffinity": affinity})).0, 200);
}

#[test]
fn a_new_volume_has_no_phase_of_its_own() {
    let mut kubernetes = Kubernetes::default();
    let mut volume = volume("pvc-1", "n1", None);
    volume["status"] = json!({"phase": "Bound"});
    volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let made = done(&mut kubernetes, &Method::POST, VOLUMES, &volume);
    assert_eq!(made["status"], json!({"phase": "Pending"}));
    assert_eq!(made["metadata"]["deletionTimestamp"], Value::Null);
}
