//! The finalizers of PersistentVolumes.

use super::*;
use crate::control::VOLUME_PROTECTION;

fn finalizers(kubernetes: &Kubernetes) -> Option<Value> {
    kubernetes.get("persistentvolumes", "pvc-1").map(|volume| volume["metadata"]["finalizers"].clone())
}

fn delete(kubernetes: &mut Kubernetes) {
    done(kubernetes, &Method::DELETE, &format!("{VOLUMES}/pvc-1"), &Value::Null);
}

#[test]
fn a_new_volume_is_protected_once() {
    let mut kubernetes = Kubernetes::default();
    let mut wanted = volume("pvc-1", "n1", None);
    wanted["metadata"]["finalizers"] = json!(["other", VOLUME_PROTECTION]);
    done(&mut kubernetes, &Method::POST, VOLUMES, &wanted);
    assert_eq!(finalizers(&kubernetes), Some(json!(["other", VOLUME_PROTECTION])));
    done(&mut kubernetes, &Method::POST, VOLUMES, &volume("pvc-2", "n1", None));
    let second = kubernetes.get("persistentvolumes", "pvc-2").unwrap();
    assert_eq!(second["metadata"]["finalizers"], json!([VOLUME_PROTECTION]));
}

#[test]
fn a_bound_volume_is_held_while_it_is_deleted() {
    let mut kubernetes = bound();
    delete(&mut kubernetes);
    (0..20).for_each(|_| tick(&mut kubernetes));
    assert_eq!(finalizers(&kubernetes), Some(json!([VOLUME_PROTECTION])));
    assert_eq!(phases(&kubernetes), ("Bound".to_owned(), "Bound".to_owned()));
    // With its claim, it is Bound no longer.
    done(&mut kubernetes, &Method::DELETE, &format!("{CLAIMS}/data"), &Value::Null);
    (0..3).for_each(|_| tick(&mut kubernetes));
    assert_eq!(finalizers(&kubernetes), None);
}

#[test]
fn a_volume_that_is_not_bound_goes_at_a_tick() {
    let mut kubernetes = Kubernetes::default();
    done(&mut kubernetes, &Method::POST, VOLUMES, &volume("pvc-1", "n1", None));
    delete(&mut kubernetes);
    assert_eq!(finalizers(&kubernetes), Some(json!([VOLUME_PROTECTION])));
    kubernetes.protect_volumes();
    assert_eq!(finalizers(&kubernetes), None);
}

#[test]
fn a_protection_that_is_removed_too_early_is_back() {
    let mut kubernetes = bound();
    let none = json!({"metadata": {"finalizers": []}});
    done(&mut kubernetes, &Method::PATCH, &format!("{VOLUMES}/pvc-1"), &none);
    tick(&mut kubernetes);
    assert_eq!(finalizers(&kubernetes), Some(json!([VOLUME_PROTECTION])));
    delete(&mut kubernetes);
    done(&mut kubernetes, &Method::PATCH, &format!("{VOLUMES}/pvc-1"), &none);
    assert_eq!(finalizers(&kubernetes), None);
}
