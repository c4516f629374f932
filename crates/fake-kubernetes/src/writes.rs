//! What a write may change. A write of the main resource ignores the status, and a write of the status everything else; some
//! fields never change. It follows the registry of the API server and ValidatePersistentVolumeUpdate of Kubernetes.

use serde_json::{Value, json};

use super::control::is_deleted;
use super::server::{refusal, status};
use super::{Key, Kubernetes, Operation};

/// The custom resources of the driver: `volumemoves`, which are in a namespace, and `volumereplicas`, which are not.
pub(super) const API_VERSION: &str = "hostloop.csi.dev/v1alpha1";

/// Fields of `metadata` that only the server changes.
const OF_THE_SERVER: [&str; 6] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

pub(super) fn is_custom(kind: &str) -> bool {
    matches!(kind, "volumemoves" | "volumereplicas")
}

/// Returns whether `status` of a kind is written apart from the rest.
fn has_status(kind: &str) -> bool {
    is_custom(kind)
        || matches!(kind, "persistentvolumes" | "persistentvolumeclaims" | "pods" | "nodes" | "statefulsets")
}

/// Returns whether the server knows the path of a kind. Other kinds than those of the driver are not checked.
pub(super) fn is_served(path: &str, key: &Key, subresource: &str) -> bool {
    let is_in_namespace = !key.1.is_empty();
    // All namespaces can be listed together, and nothing else done.
    let is_in_scope = is_in_namespace == (key.0 == "volumemoves") || (!is_in_namespace && key.2.is_empty());
    !is_custom(&key.0)
        || (path.starts_with(&format!("/apis/{API_VERSION}/"))
            && is_in_scope
            && matches!(subresource, "" | "status"))
}

/// Writes a field of an object, or removes it if there is no value.
pub(super) fn set(object: &mut Value, field: &str, value: &Value) {
    match (value, object.as_object_mut()) {
        (Value::Null, Some(fields)) => drop(fields.remove(field)),
        (Value::Null, None) => {}
        (value, _) => object[field] = value.clone(),
    }
}

fn mutate(kubernetes: &Kubernetes, operation: Operation, key: &Key, object: &mut Value) {
    if let Some(mutation) = &kubernetes.mutation {
        mutation(operation, key, object);
    }
}

/// Returns the answer of the admission hook, if it refuses the object.
fn admit(
    kubernetes: &Kubernetes,
    operation: Operation,
    key: &Key,
    object: &Value,
) -> Result<(), (u16, Value)> {
    let refused = kubernetes.admission.as_ref().and_then(|admission| admission(operation, key, object));
    refused.map_or(Ok(()), |message| Err(refusal(403, "Forbidden", &message)))
}

/// Creates an object. Its status is that of a new one, whatever the request says.
pub(super) fn create(kubernetes: &mut Kubernetes, key: Key, mut object: Value) -> (u16, Value) {
    let metadata = &object["metadata"];
    if metadata["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
        let message = "resourceVersion of an object that is created must be empty";
        return refusal(500, "InternalError", message);
    }
    let Some(name) = metadata["name"].as_str().map(str::to_owned) else { return status(422, "Invalid") };
    if key.0 == "volumemoves" && key.1.is_empty() {
        return status(405, "MethodNotAllowed");
    }
    let key = (key.0, key.1, name);
    for field in OF_THE_SERVER {
        set(&mut object["metadata"], field, &Value::Null);
    }
    if !key.1.is_empty() {
        object["metadata"]["namespace"] = json!(key.1);
    }
    let new = match key.0.as_str() {
        "persistentvolumes" | "persistentvolumeclaims" | "pods" => json!({"phase": "Pending"}),
        _ => Value::Null,
    };
    if has_status(&key.0) {
        set(&mut object, "status", &new);
    }
    mutate(kubernetes, Operation::Create, &key, &mut object);
    if let Err(answer) = admit(kubernetes, Operation::Create, &key, &object) {
        return answer;
    }
    match kubernetes.objects.contains_key(&key) {
        true => status(409, "AlreadyExists"),
        false => (201, kubernetes.create(key, object)),
    }
}

/// Checks which fields of a PersistentVolume change that may not.
fn check_volume(old: &Value, new: &Value, mutable_node_affinity: bool) -> Result<(), (u16, Value)> {
    let differs = |field: &str| old["spec"][field] != new["spec"][field];
    let affinity = "nodeAffinity";
    let is_pinned = !mutable_node_affinity && !old["spec"][affinity].is_null();
    let changed = ["csi", "volumeMode"].into_iter().find(|field| differs(field));
    match changed.or_else(|| (is_pinned && differs(affinity)).then_some(affinity)) {
        Some(field) => Err(refusal(422, "Invalid", &format!("spec.{field} cannot change once it is set"))),
        None => Ok(()),
    }
}

/// Checks that an object that is being deleted gets no new finalizer.
fn check_finalizers(old: &Value, new: &Value) -> Result<(), (u16, Value)> {
    let all = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = all(old);
    match is_deleted(old) && all(new).iter().any(|finalizer| !before.contains(finalizer)) {
        true => Err(refusal(422, "Invalid", "an object that is being deleted gets no new finalizers")),
        false => Ok(()),
    }
}

/// Checks the version and the uid that a request insists on.
fn check_version(kind: &str, old: &Value, new: &Value) -> Result<(), (u16, Value)> {
    let is_other = |field: &str| {
        let wanted = &new["metadata"][field];
        !wanted.is_null() && *wanted != old["metadata"][field]
    };
    if new["metadata"]["resourceVersion"].is_null() && (is_custom(kind) || kind == "leases") {
        return Err(refusal(422, "Invalid", "metadata.resourceVersion is needed for an update"));
    }
    match is_other("resourceVersion") || is_other("uid") {
        true => Err(status(409, "Conflict")),
        false => Ok(()),
    }
}

/// Returns the object with what a request may change of it.
fn changed(kind: &str, subresource: &str, old: &Value, wanted: Value) -> Value {
    if subresource == "status" {
        let mut object = old.clone();
        set(&mut object, "status", &wanted["status"]);
        return object;
    }
    let mut object = wanted;
    for field in OF_THE_SERVER {
        set(&mut object["metadata"], field, &old["metadata"][field]);
    }
    for field in ["apiVersion", "kind"] {
        set(&mut object, field, &old[field]);
    }
    if has_status(kind) {
        set(&mut object, "status", &old["status"]);
    }
    let rest = |object: &Value| {
        let mut rest = object.clone();
        ["metadata", "status"].into_iter().for_each(|field| set(&mut rest, field, &Value::Null));
        rest
    };
    let generation = old["metadata"]["generation"].as_u64();
    if let Some(generation) = generation.filter(|_| rest(old) != rest(&object)) {
        object["metadata"]["generation"] = json!(generation + 1);
    }
    object
}

/// Stores what a request changes of an object or of its status. If that is nothing, there is no new version.
pub(super) fn update(
    kubernetes: &mut Kubernetes,
    key: Key,
    subresource: &str,
    old: &Value,
    wanted: Value,
) -> (u16, Value) {
    let is_known = subresource.is_empty() || (subresource == "status" && has_status(&key.0));
    if !is_known {
        return status(404, "NotFound");
    }
    let check = |object: &Value| {
        check_finalizers(old, object)?;
        if key.0 == "persistentvolumes" {
            check_volume(old, object, kubernetes.mutable_node_affinity)?;
        }
        match subresource.is_empty() {
            true => admit(kubernetes, Operation::Update, &key, object),
            false => Ok(()),
        }
    };
    if let Err(answer) = check_version(&key.0, old, &wanted) {
        return answer;
    }
    let mut object = changed(&key.0, subresource, old, wanted);
    if subresource.is_empty() {
        mutate(kubernetes, Operation::Update, &key, &mut object);
    }
    match check(&object) {
        Err(answer) => answer,
        Ok(()) if object == *old => (200, object),
        Ok(()) => (200, kubernetes.put(key, object)),
    }
}
