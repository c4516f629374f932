//! Which objects are looked at after a change of another one.

use hostloop_fake_kubernetes::{Kubernetes, key};
use serde_json::{Value, json};

use super::*;
use crate::cluster::moves::tests::api::Server;

/// Two claims of one name in two namespaces, each with a copy.
fn queues() -> (Queues, Waiting) {
    let mut kubernetes = Kubernetes::default();
    for (namespace, [source, target]) in [("default", ["n1", "n2"]), ("other", ["n3", "n4"])] {
        let claim = json!({"metadata": {"name": "data", "namespace": namespace, "uid": namespace},
            "spec": {"storageClassName": namespace, "volumeName": namespace}});
        kubernetes.put(key("persistentvolumeclaims", namespace, "data"), claim);
        let id = json!({"namespace": namespace, "name": "data", "uid": namespace});
        let spec = json!({"driver": "d", "volumeId": "v", "generation": 0, "persistentVolume": {"name": "p", "uid": "u"},
            "claim": id, "sourceNode": source, "targetNode": target, "copyName": "c", "copyId": "i", "purpose": "Move",
            "requestedBy": {"name": format!("move-{namespace}"), "uid": format!("uid-{namespace}")}});
        kubernetes.put(
            key("volumereplicas", "", namespace),
            json!({"metadata": {"name": namespace}, "spec": spec}),
        );
    }
    let (seen, mut writers) = Seen::new();
    Server::new(kubernetes).show(&mut writers);
    Queues::new(seen)
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// What is looked at after `change`: VolumeReplicas, VolumeMoves and claims, each as `NAMESPACE/NAME`.
fn woken(change: impl FnOnce(&Queues)) -> [Vec<String>; 3] {
    let (queues, mut waiting) = queues();
    change(&queues);
    fn all<K: kube::runtime::reflector::Lookup>(of: &mut UnboundedReceiver<ObjectRef<K>>) -> Vec<String> {
        let name = |it: ObjectRef<K>| format!("{}/{}", it.namespace.unwrap_or_default(), it.name);
        let mut all: Vec<String> = std::iter::from_fn(|| of.try_recv().ok()).map(name).collect();
        all.sort();
        all
    }
    [all(&mut waiting.replicas), all(&mut waiting.moves), all(&mut waiting.claims)]
}

fn replicas<const N: usize>(names: [&str; N]) -> [Vec<String>; 3] {
    [names.iter().map(|name| format!("/{name}")).collect(), Vec::new(), Vec::new()]
}

#[test]
fn a_pod_wakes_the_copies_of_its_claims() {
    let pod = |namespace: &str, claims: &[&str]| {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        let metadata = json!({"name": "p", "namespace": namespace});
        let spec = json!({"nodeName": "n1", "containers": [], "volumes": volumes});
        let pod: Pod = object(json!({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}));
        woken(|queues| queues.a_pod_changed(&pod))
    };
    assert_eq!(pod("default", &["log", "data"]), replicas(["default"]));
    assert_eq!(pod("other", &["data"]), replicas(["other"]));
    for (namespace, claims) in [("default", &[][..]), ("default", &["log"]), ("third", &["data"])] {
        assert_eq!(pod(namespace, claims), replicas([]), "{namespace} {claims:?}");
    }
}

#[test]
fn a_node_wakes_the_copies_from_and_to_it() {
    for (node, woke) in [("n1", "default"), ("n2", "default"), ("n3", "other"), ("n4", "other")] {
        let node: Node = object(json!({"metadata": {"name": node}}));
        assert_eq!(woken(|queues| queues.a_node_changed(&node)), replicas([woke]), "{node:?}");
    }
    let node: Node = object(json!({"metadata": {"name": "n5"}}));
    assert_eq!(woken(|queues| queues.a_node_changed(&node)), replicas([]));
}

#[test]
fn a_claim_and_its_class_wake_its_copy() {
    let of_default = [vec!["/default".to_owned()], Vec::new(), vec!["default/data".to_owned()]];
    let claim: PersistentVolumeClaim =
        object(json!({"metadata": {"name": "data", "namespace": "default", "uid": "default"}}));
    assert_eq!(woken(|queues| queues.a_claim_changed(&claim)), of_default);
    let class: StorageClass = object(json!({"metadata": {"name": "default"}, "provisioner": "d"}));
    assert_eq!(woken(|queues| queues.a_class_changed(&class)), of_default);
}

#[test]
fn a_copy_and_its_request_wake_each_other() {
    let (queues, _waiting) = queues();
    let replica = queues.seen.replicas.find(|replica| replica.name_any() == "other").unwrap();
    let all = ["/other", "other/move-other", "other/data"].map(|name| vec![name.to_owned()]);
    assert_eq!(woken(|queues| queues.a_replica_changed(None, &replica)), all);
    let asked: VolumeMove = object(json!({"apiVersion": "hostloop.csi.dev/v1alpha1", "kind": "VolumeMove",
        "metadata": {"name": "move-other", "namespace": "other", "uid": "uid-other"}, "spec": {"claimName": "data"}}));
    let [copy, request, _] = all;
    assert_eq!(woken(|queues| queues.a_move_changed(None, &asked)), [copy, request, Vec::new()]);
}

/// Otherwise the controller would ask a node that reports its progress as fast as the node answers.
#[test]
fn a_message_wakes_the_request_of_a_copy_only() {
    let (queues, _waiting) = queues();
    let replica = queues.seen.replicas.find(|replica| replica.name_any() == "other").unwrap();
    let change = |status: Value, labels: Value| {
        let mut changed = serde_json::to_value(replica.as_ref()).unwrap();
        (changed["status"], changed["metadata"]["labels"]) = (status, labels);
        changed["metadata"]["resourceVersion"] = json!("2");
        object::<VolumeReplica>(changed)
    };
    let copying = |message: &str| json!({"phase": "Copying", "message": message});
    let before = change(copying("1%"), json!({}));
    let woken_by = |after: VolumeReplica| woken(|queues| queues.a_replica_changed(Some(&before), &after));
    assert_eq!(
        woken_by(change(copying("2%"), json!({}))),
        [Vec::new(), vec!["other/move-other".to_owned()], Vec::new()]
    );
    for after in [
        change(json!({"phase": "Ready", "message": "1%"}), json!({})),
        change(Value::Null, json!({})),
        change(copying("1%"), json!({"a": "b"})),
    ] {
        assert_eq!(woken_by(after)[0], ["/other"]);
    }
    let asked = |progress: &str, phase: &str| -> VolumeMove {
        object(json!({"apiVersion": "hostloop.csi.dev/v1alpha1", "kind": "VolumeMove",
            "metadata": {"name": "move-other", "namespace": "other", "uid": "uid-other", "resourceVersion": progress},
            "spec": {"claimName": "data"}, "status": {"phase": phase, "progress": progress, "message": progress}}))
    };
    let before = asked("1%", "Copying");
    let woken_by = |after: VolumeMove| woken(|queues| queues.a_move_changed(Some(&before), &after));
    assert_eq!(woken_by(asked("2%", "Copying")), [const { Vec::<String>::new() }; 3]);
    assert_eq!(woken_by(asked("1%", "Ready"))[0], ["/other"]);
}
