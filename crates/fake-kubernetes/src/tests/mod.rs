//! The API server and the controllers, as requests and ticks meet them.

mod admission;
mod binding;
mod custom;
mod dry_run;
mod protection;
mod volumes;

use http::Method;
use serde_json::{Value, json};

use super::server::answer;
use super::{Kubernetes, key};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const MOVES: &str = "/apis/hostloop.csi.dev/v1alpha1/namespaces/default/volumemoves";
const REPLICAS: &str = "/apis/hostloop.csi.dev/v1alpha1/volumereplicas";

/// Returns the code and the object of an answer.
fn call(kubernetes: &mut Kubernetes, method: &Method, path: &str, body: &Value) -> (u16, Value) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    answer(kubernetes, method, path, query, body)
}

/// Returns the object of an answer that has to be a success.
fn done(kubernetes: &mut Kubernetes, method: &Method, path: &str, body: &Value) -> Value {
    let (code, object) = call(kubernetes, method, path, body);
    assert!((200..300).contains(&code), "{method} {path}: {code} {object}");
    object
}

/// Returns the code of an answer.
fn code(kubernetes: &mut Kubernetes, method: &Method, path: &str, body: &Value) -> u16 {
    call(kubernetes, method, path, body).0
}

/// Returns a PersistentVolume that is reserved for the claim "data", by its uid if there is one.
fn volume(name: &str, node: &str, uid: Option<&Value>) -> Value {
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": [node]}]}]}});
    let mut volume = json!({"metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": "hostloop.csi.dev"}},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem", "nodeAffinity": affinity,
            "csi": {"driver": "hostloop.csi.dev", "volumeHandle": format!("vol-{node}")},
            "claimRef": {"namespace": "default", "name": "data"}}});
    if let Some(uid) = uid {
        volume["spec"]["claimRef"]["uid"] = uid.clone();
    }
    volume
}

/// Returns the claim "data", as its user makes it.
fn claim() -> Value {
    json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
        "resources": {"requests": {"storage": "1Gi"}}}})
}

/// Does what the controllers of volumes and claims do in a moment.
fn tick(kubernetes: &mut Kubernetes) {
    kubernetes.offer();
    kubernetes.bind("data");
    kubernetes.protect("data");
    kubernetes.protect_volumes();
}

/// Returns a cluster in which the claim "data" is bound to the volume "pvc-1".
fn bound() -> Kubernetes {
    let mut kubernetes = Kubernetes { resync: 5, ..Kubernetes::default() };
    done(&mut kubernetes, &Method::POST, CLAIMS, &claim());
    done(&mut kubernetes, &Method::POST, VOLUMES, &volume("pvc-1", "n1", None));
    tick(&mut kubernetes);
    assert_eq!(phases(&kubernetes), ("Bound".to_owned(), "Bound".to_owned()));
    kubernetes
}

fn phase(kubernetes: &Kubernetes, kind: &str, name: &str) -> String {
    let object = kubernetes.get(kind, name).unwrap_or_default();
    object["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

/// Returns the phases of the claim "data" and the volume "pvc-1".
fn phases(kubernetes: &Kubernetes) -> (String, String) {
    (phase(kubernetes, "persistentvolumeclaims", "data"), phase(kubernetes, "persistentvolumes", "pvc-1"))
}
