//! Requests that are checked and answered, and change nothing.

use super::*;
use crate::control::pod;

const DRY: &str = "?dryRun=All";

/// Checks that a request has this answer and leaves everything as it is. Returns the object of the answer.
fn checked(kubernetes: &mut Kubernetes, method: &Method, path: &str, body: &Value, wanted: u16) -> Value {
    let before = (kubernetes.version, kubernetes.objects.clone(), kubernetes.history.len());
    let (code, answer) = call(kubernetes, method, path, body);
    assert_eq!(code, wanted, "{method} {path}: {answer}");
    let after = (kubernetes.version, kubernetes.objects.clone(), kubernetes.history.len());
    assert_eq!(before, after, "{method} {path}");
    answer
}

#[test]
fn a_dry_creation_creates_nothing() {
    let mut kubernetes = bound();
    let made = checked(
        &mut kubernetes,
        &Method::POST,
        &format!("{VOLUMES}{DRY}"),
        &volume("pvc-2", "n1", None),
        201,
    );
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    assert_eq!(made["metadata"]["resourceVersion"], Value::Null);
    checked(&mut kubernetes, &Method::POST, &format!("{VOLUMES}{DRY}"), &volume("pvc-1", "n1", None), 409);
    kubernetes.admission = Some(std::sync::Arc::new(|_, _, _| Some("no".to_owned())));
    checked(&mut kubernetes, &Method::POST, &format!("{VOLUMES}{DRY}"), &volume("pvc-2", "n1", None), 403);
}

#[test]
fn a_dry_write_changes_nothing() {
    let mut kubernetes = bound();
    let path = format!("{VOLUMES}/pvc-1?fieldManager=m&dryRun=All");
    let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let mut volume = kubernetes.get("persistentvolumes", "pvc-1").unwrap();
    let patched = checked(&mut kubernetes, &Method::PATCH, &path, &retain, 200);
    assert_eq!(patched["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(patched["metadata"]["resourceVersion"], volume["metadata"]["resourceVersion"]);
    volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    checked(&mut kubernetes, &Method::PUT, &path, &volume, 200);
    volume["metadata"]["resourceVersion"] = json!("0");
    checked(&mut kubernetes, &Method::PUT, &path, &volume, 409);
    checked(&mut kubernetes, &Method::PATCH, &path, &json!({"spec": {"csi": null}}), 422);
}

#[test]
fn a_dry_deletion_deletes_nothing() {
    let mut kubernetes = bound();
    let of = format!("{CLAIMS}/data");
    checked(&mut kubernetes, &Method::DELETE, &format!("{of}{DRY}"), &Value::Null, 200);
    checked(&mut kubernetes, &Method::DELETE, &of, &json!({"dryRun": ["All"]}), 200);
    let other = json!({"dryRun": ["All"], "preconditions": {"uid": "other"}});
    checked(&mut kubernetes, &Method::DELETE, &of, &other, 409);
    checked(&mut kubernetes, &Method::DELETE, &format!("{CLAIMS}/other{DRY}"), &Value::Null, 404);
}

#[test]
fn a_dry_eviction_asks_the_budget() {
    let mut kubernetes = Kubernetes { budget: 1, watched: true, ..Kubernetes::default() };
    kubernetes.create(key("pods", "default", "db-0"), pod("db-0", "data", "StatefulSet"));
    let path = "/api/v1/namespaces/default/pods/db-0/eviction";
    let eviction = json!({"metadata": {"name": "db-0"}, "deleteOptions": {"dryRun": ["All"]}});
    checked(&mut kubernetes, &Method::POST, path, &eviction, 201);
    checked(&mut kubernetes, &Method::POST, &format!("{path}{DRY}"), &json!({}), 201);
    kubernetes.budget = 0;
    checked(&mut kubernetes, &Method::POST, path, &eviction, 201);
    kubernetes.change("pods", "db-0", |pod| pod["status"]["phase"] = json!("Running"));
    checked(&mut kubernetes, &Method::POST, path, &eviction, 429);
    kubernetes.budget = 1;
    let other = json!({"deleteOptions": {"preconditions": {"uid": "other"}}});
    checked(&mut kubernetes, &Method::POST, path, &other, 409);
    done(&mut kubernetes, &Method::POST, path, &json!({"deleteOptions": {}}));
    let pod = kubernetes.get("pods", "db-0").unwrap();
    assert!(!pod["metadata"]["deletionTimestamp"].is_null());
}
