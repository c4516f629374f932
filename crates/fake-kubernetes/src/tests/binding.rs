//! Which claim gets which volume, and what becomes of it when the volume is exchanged.

use super::*;
use crate::control::{node_of, pod};

fn uid(kubernetes: &Kubernetes) -> Value {
    kubernetes.get("persistentvolumeclaims", "data").unwrap()["metadata"]["uid"].clone()
}

/// Deletes the volume "pvc-1" with its finalizers. The controllers see that.
fn take_away(kubernetes: &mut Kubernetes) {
    let of = format!("{VOLUMES}/pvc-1");
    done(kubernetes, &Method::DELETE, &of, &Value::Null);
    done(kubernetes, &Method::PATCH, &of, &json!({"metadata": {"finalizers": null}}));
    tick(kubernetes);
    assert_eq!(phases(kubernetes), ("Lost".to_owned(), String::new()));
}

/// Creates the volume "pvc-1" again on another node, with the uid of the claim.
fn bring_back(kubernetes: &mut Kubernetes) {
    let uid = uid(kubernetes);
    done(kubernetes, &Method::POST, VOLUMES, &volume("pvc-1", "n2", Some(&uid)));
}

/// Returns how many ticks pass before the claim is bound.
fn ticks(kubernetes: &mut Kubernetes) -> u32 {
    let passed = (0..20).find(|_| {
        let is_bound = phases(kubernetes).0 == "Bound";
        if !is_bound {
            tick(kubernetes);
        }
        is_bound
    });
    passed.expect("it is bound in the end")
}

#[test]
fn a_lost_claim_is_bound_at_the_resync() {
    let mut kubernetes = bound();
    let before = uid(&kubernetes);
    take_away(&mut kubernetes);
    bring_back(&mut kubernetes);
    assert_eq!(ticks(&mut kubernetes), kubernetes.resync + 1);
    assert_eq!(phases(&kubernetes), ("Bound".to_owned(), "Bound".to_owned()));
    assert_eq!(uid(&kubernetes), before);
}

#[test]
fn a_lost_claim_that_is_touched_is_bound_at_once() {
    let mut kubernetes = bound();
    take_away(&mut kubernetes);
    tick(&mut kubernetes);
    bring_back(&mut kubernetes);
    let touch = json!({"metadata": {"annotations": {"touched": "1"}}});
    done(&mut kubernetes, &Method::PATCH, &format!("{CLAIMS}/data"), &touch);
    assert_eq!(ticks(&mut kubernetes), 1);
}

#[test]
fn a_touch_before_the_volume_is_there_is_in_vain() {
    let mut kubernetes = bound();
    take_away(&mut kubernetes);
    let touch = json!({"metadata": {"annotations": {"touched": "1"}}});
    done(&mut kubernetes, &Method::PATCH, &format!("{CLAIMS}/data"), &touch);
    tick(&mut kubernetes);
    tick(&mut kubernetes);
    bring_back(&mut kubernetes);
    // The same annotation again changes nothing.
    done(&mut kubernetes, &Method::PATCH, &format!("{CLAIMS}/data"), &touch);
    assert!(ticks(&mut kubernetes) > 1);
}

#[test]
fn a_claim_stays_bound_while_its_volume_is_held() {
    let mut kubernetes = bound();
    done(&mut kubernetes, &Method::DELETE, &format!("{VOLUMES}/pvc-1"), &Value::Null);
    (0..20).for_each(|_| tick(&mut kubernetes));
    assert_eq!(phases(&kubernetes).0, "Bound");
}

#[test]
fn a_claim_is_lost_if_its_volume_has_no_uid() {
    for other in [None, Some(json!("other"))] {
        let mut kubernetes = bound();
        take_away(&mut kubernetes);
        done(&mut kubernetes, &Method::POST, VOLUMES, &volume("pvc-1", "n2", other.as_ref()));
        (0..20).for_each(|_| tick(&mut kubernetes));
        assert_eq!(phases(&kubernetes).0, "Lost", "{other:?}");
    }
}

#[test]
fn a_lost_claim_takes_its_size_from_its_volume() {
    let mut kubernetes = bound();
    take_away(&mut kubernetes);
    let status =
        |kubernetes: &Kubernetes| kubernetes.get("persistentvolumeclaims", "data").unwrap()["status"].take();
    assert_eq!(status(&kubernetes), json!({"phase": "Lost"}));
    let mut volume = volume("pvc-1", "n2", Some(&uid(&kubernetes)));
    volume["spec"]["capacity"]["storage"] = json!("2Gi");
    volume["spec"]["volumeAttributesClassName"] = json!("fast");
    done(&mut kubernetes, &Method::POST, VOLUMES, &volume);
    ticks(&mut kubernetes);
    // Only the resizer would write the current VolumeAttributesClass of a claim that was bound before.
    let bound = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}});
    assert_eq!(status(&kubernetes), bound);
}

#[test]
fn a_pod_of_a_lost_claim_is_not_scheduled() {
    let mut kubernetes = bound();
    kubernetes.create(key("pods", "default", "db-0"), pod("db-0", "data", "StatefulSet"));
    let node = |kubernetes: &mut Kubernetes| {
        kubernetes.schedule("db-0", "data", None);
        kubernetes.get("pods", "db-0").unwrap()["spec"]["nodeName"].take()
    };
    take_away(&mut kubernetes);
    assert_eq!(node(&mut kubernetes), Value::Null);
    bring_back(&mut kubernetes);
    assert_eq!(node(&mut kubernetes), Value::Null);
    ticks(&mut kubernetes);
    assert_eq!(node(&mut kubernetes), "n2");
}

/// Returns the phase of a new claim beside a new volume, both changed.
fn phase_of(change: impl Fn(&mut Value, &mut Value)) -> String {
    let mut kubernetes = Kubernetes::default();
    let (mut claim, mut volume) = (claim(), volume("pvc-1", "n1", None));
    change(&mut claim["spec"], &mut volume["spec"]);
    done(&mut kubernetes, &Method::POST, VOLUMES, &volume);
    kubernetes.offer();
    done(&mut kubernetes, &Method::POST, CLAIMS, &claim);
    tick(&mut kubernetes);
    phases(&kubernetes).0
}

/// What a claim and a volume can differ in, apart from the class.
fn differences() -> Vec<(&'static str, Value)> {
    vec![
        ("resources", json!({"requests": {"storage": "1025Mi"}})),
        ("volumeMode", json!("Block")),
        ("accessModes", json!(["ReadWriteOnce", "ReadWriteOncePod"])),
        ("volumeAttributesClassName", json!("fast")),
    ]
}

#[test]
fn a_reserved_volume_has_to_fit() {
    assert_eq!(phase_of(|_, _| {}), "Bound");
    for (field, value) in differences() {
        assert_eq!(phase_of(|claim, _| claim[field] = value.clone()), "Pending", "{field}");
    }
    assert_eq!(phase_of(|claim, _| claim["resources"]["requests"]["storage"] = json!("512M")), "Bound");
    // Kubernetes does not compare the class here.
    assert_eq!(phase_of(|claim, _| claim["storageClassName"] = json!("other")), "Bound");
    assert_eq!(phase_of(|_, volume| volume["claimRef"]["namespace"] = json!("other")), "Pending");
}

#[test]
fn a_free_volume_that_a_claim_names_has_to_fit() {
    let names = |claim: &mut Value, volume: &mut Value| {
        claim["volumeName"] = json!("pvc-1");
        volume["claimRef"] = Value::Null;
    };
    assert_eq!(phase_of(names), "Bound");
    let class = ("storageClassName", json!("other"));
    for (field, value) in differences().into_iter().chain([class]) {
        let differs = |claim: &mut Value, volume: &mut Value| {
            names(claim, volume);
            claim[field] = value.clone();
        };
        assert_eq!(phase_of(differs), "Pending", "{field}");
    }
}

#[test]
fn two_that_name_each_other_are_not_compared() {
    for (field, value) in differences() {
        let name = |claim: &mut Value, _: &mut Value| {
            claim["volumeName"] = json!("pvc-1");
            claim[field] = value.clone();
        };
        assert_eq!(phase_of(name), "Bound", "{field}");
    }
}

#[test]
fn a_claim_gets_the_smallest_free_volume() {
    for (mode, wanted) in [("Immediate", "pvc-2"), ("WaitForFirstConsumer", "")] {
        let mut kubernetes = Kubernetes::default();
        let class = json!({"metadata": {"name": "local"}, "volumeBindingMode": mode});
        kubernetes.create(key("storageclasses", "", "local"), class);
        for (name, size) in [("pvc-1", "3Gi"), ("pvc-2", "2Gi"), ("pvc-3", "1Mi")] {
            let mut free = volume(name, "n1", None);
            free["spec"]["claimRef"] = Value::Null;
            free["spec"]["capacity"]["storage"] = json!(size);
            done(&mut kubernetes, &Method::POST, VOLUMES, &free);
        }
        done(&mut kubernetes, &Method::POST, CLAIMS, &claim());
        tick(&mut kubernetes);
        let claim = kubernetes.get("persistentvolumeclaims", "data").unwrap();
        assert_eq!(claim["spec"]["volumeName"].as_str().unwrap_or_default(), wanted, "{mode}");
        assert_eq!(kubernetes.wrong.is_empty(), mode == "Immediate", "{:?}", kubernetes.wrong);
    }
}

/// A volume with the uid of a claim that has another volume: one that was made for the claim is deleted.
#[test]
fn a_second_volume_of_a_claim_is_not_bound() {
    for (policy, wanted) in [("Delete", "Released"), ("Retain", "Available")] {
        let mut kubernetes = bound();
        let mut second = volume("pvc-2", "n2", Some(&uid(&kubernetes)));
        second["spec"]["persistentVolumeReclaimPolicy"] = json!(policy);
        done(&mut kubernetes, &Method::POST, VOLUMES, &second);
        tick(&mut kubernetes);
        assert_eq!(phase(&kubernetes, "persistentvolumes", "pvc-2"), wanted);
        let second = kubernetes.get("persistentvolumes", "pvc-2").unwrap();
        assert_eq!(second["spec"]["claimRef"]["uid"].is_null(), policy == "Retain");
        let deleted = kubernetes.reclaimable();
        let deleted: Vec<&str> = deleted.iter().map(node_of).collect();
        assert_eq!(deleted, if policy == "Delete" { vec!["n2"] } else { vec![] });
    }
}

#[test]
fn a_volume_is_deleted_once_its_claim_is_gone() {
    let mut kubernetes = bound();
    tick(&mut kubernetes);
    assert!(kubernetes.reclaimable().is_empty());
    done(&mut kubernetes, &Method::DELETE, &format!("{CLAIMS}/data"), &Value::Null);
    (0..2).for_each(|_| tick(&mut kubernetes));
    assert_eq!(phases(&kubernetes), (String::new(), "Released".to_owned()));
    assert_eq!(kubernetes.reclaimable().len(), 1);
    kubernetes.change("persistentvolumes", "pvc-1", |volume| volume["metadata"]["annotations"] = Value::Null);
    assert!(kubernetes.reclaimable().is_empty(), "csi-provisioner did not make it");
}
