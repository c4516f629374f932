//! The custom resources of the driver.

use super::*;

fn a_move() -> Value {
    json!({"metadata": {"name": "m"}, "spec": {"claim": "data", "target": "n2"}, "status": {"phase": "Done"}})
}

#[test]
fn a_new_move_has_no_status() {
    let mut kubernetes = Kubernetes::default();
    let made = done(&mut kubernetes, &Method::POST, MOVES, &a_move());
    assert_eq!(
        (&made["apiVersion"], &made["kind"]),
        (&json!("hostloop.csi.dev/v1alpha1"), &json!("VolumeMove"))
    );
    assert_eq!(
        (&made["metadata"]["namespace"], &made["metadata"]["generation"]),
        (&json!("default"), &json!(1))
    );
    assert_eq!(made["status"], Value::Null);
    assert_eq!(kubernetes.get("volumemoves", "m"), Some(made));
    assert_eq!(code(&mut kubernetes, &Method::POST, MOVES, &a_move()), 409);
}

#[test]
fn paths_of_other_groups_and_scopes_are_unknown() {
    let mut kubernetes = Kubernetes::default();
    let replica = json!({"metadata": {"name": "r"}, "spec": {}});
    assert_eq!(done(&mut kubernetes, &Method::POST, REPLICAS, &replica)["kind"], "VolumeReplica");
    assert_eq!(kubernetes.get("volumereplicas", "r").unwrap()["metadata"]["namespace"], Value::Null);
    let get = |kubernetes: &mut Kubernetes, path: &str| code(kubernetes, &Method::GET, path, &Value::Null);
    assert_eq!(get(&mut kubernetes, "/apis/hostloop.csi.dev/v1alpha1/volumereplicas/r"), 200);
    assert_eq!(get(&mut kubernetes, "/apis/hostloop.csi.dev/v1/volumereplicas/r"), 404);
    assert_eq!(get(&mut kubernetes, "/apis/other/v1alpha1/volumereplicas/r"), 404);
    assert_eq!(
        get(&mut kubernetes, "/apis/hostloop.csi.dev/v1alpha1/namespaces/default/volumereplicas/r"),
        404
    );
    let everywhere = "/apis/hostloop.csi.dev/v1alpha1/volumemoves";
    assert_eq!(get(&mut kubernetes, everywhere), 200);
    assert_eq!(code(&mut kubernetes, &Method::POST, everywhere, &a_move()), 405);
}

#[test]
fn a_write_of_a_move_keeps_its_status() {
    let mut kubernetes = Kubernetes::default();
    let made = done(&mut kubernetes, &Method::POST, MOVES, &a_move());
    let (of, status) = (format!("{MOVES}/m"), format!("{MOVES}/m/status"));
    done(&mut kubernetes, &Method::PATCH, &status, &json!({"status": {"phase": "Copying"}}));
    let patch = json!({"spec": {"target": "n3"}, "status": {"phase": "Done"}});
    let mut patched = done(&mut kubernetes, &Method::PATCH, &of, &patch);
    assert_eq!((&patched["spec"]["target"], &patched["status"]["phase"]), (&json!("n3"), &json!("Copying")));
    assert_eq!(patched["metadata"]["generation"], 2);
    assert_eq!(patched["metadata"]["uid"], made["metadata"]["uid"]);
    patched["status"] = Value::Null;
    patched["metadata"]["labels"] = json!({"a": "b"});
    let put = done(&mut kubernetes, &Method::PUT, &of, &patched);
    assert_eq!((&put["status"]["phase"], &put["metadata"]["generation"]), (&json!("Copying"), &json!(2)));
}

#[test]
fn a_write_of_a_status_changes_only_that() {
    let mut kubernetes = Kubernetes::default();
    let made = done(&mut kubernetes, &Method::POST, MOVES, &a_move());
    let status = format!("{MOVES}/m/status");
    let change = json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["f"]}, "spec": {"target": "n3"},
        "status": {"phase": "Copying"}});
    let patched = done(&mut kubernetes, &Method::PATCH, &status, &change);
    let mut wanted = made.clone();
    wanted["status"] = json!({"phase": "Copying"});
    wanted["metadata"]["resourceVersion"] = patched["metadata"]["resourceVersion"].clone();
    assert_eq!(patched, wanted);
    assert_ne!(patched["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let mut put = change;
    put["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    assert_eq!(code(&mut kubernetes, &Method::PUT, &status, &put), 409, "it is an old version");
    put["metadata"]["resourceVersion"] = patched["metadata"]["resourceVersion"].clone();
    put["status"] = json!({"phase": "Ready"});
    wanted["status"] = json!({"phase": "Ready"});
    let put = done(&mut kubernetes, &Method::PUT, &status, &put);
    wanted["metadata"]["resourceVersion"] = put["metadata"]["resourceVersion"].clone();
    assert_eq!(put, wanted);
}

#[test]
fn a_write_needs_the_newest_version() {
    let mut kubernetes = Kubernetes::default();
    let mut made = done(&mut kubernetes, &Method::POST, MOVES, &a_move());
    let of = format!("{MOVES}/m");
    done(&mut kubernetes, &Method::PATCH, &of, &json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!(code(&mut kubernetes, &Method::PUT, &of, &made), 409);
    assert_eq!(code(&mut kubernetes, &Method::PATCH, &of, &made), 409);
    made["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(code(&mut kubernetes, &Method::PUT, &of, &made), 422);
    let other = json!({"metadata": {"uid": "other"}});
    assert_eq!(code(&mut kubernetes, &Method::PATCH, &of, &other), 409);
    assert_eq!(
        code(
            &mut kubernetes,
            &Method::POST,
            MOVES,
            &json!({"metadata": {"name": "n", "resourceVersion": "1"}})
        ),
        500
    );
}

#[test]
fn a_change_of_nothing_makes_no_version() {
    let mut kubernetes = Kubernetes { watched: true, ..Kubernetes::default() };
    let made = done(&mut kubernetes, &Method::POST, MOVES, &a_move());
    let same = json!({"spec": {"target": "n2"}});
    assert_eq!(done(&mut kubernetes, &Method::PATCH, &format!("{MOVES}/m"), &same), made);
    assert_eq!(kubernetes.history.len(), 1);
}

#[test]
fn a_finalizer_holds_a_move() {
    let mut kubernetes = Kubernetes::default();
    let of = format!("{MOVES}/m");
    done(&mut kubernetes, &Method::POST, MOVES, &a_move());
    done(&mut kubernetes, &Method::PATCH, &of, &json!({"metadata": {"finalizers": ["a"]}}));
    done(&mut kubernetes, &Method::DELETE, &of, &Value::Null);
    let held = kubernetes.get("volumemoves", "m").unwrap();
    assert_eq!(held["metadata"]["generation"], 2, "the deletion counts");
    let more = json!({"metadata": {"finalizers": ["a", "b"]}});
    assert_eq!(code(&mut kubernetes, &Method::PATCH, &of, &more), 422);
    let revived = json!({"metadata": {"deletionTimestamp": null}});
    done(&mut kubernetes, &Method::PATCH, &of, &revived);
    assert!(!kubernetes.get("volumemoves", "m").unwrap()["metadata"]["deletionTimestamp"].is_null());
    done(&mut kubernetes, &Method::PATCH, &of, &json!({"metadata": {"finalizers": null}}));
    assert_eq!(kubernetes.get("volumemoves", "m"), None);
}
