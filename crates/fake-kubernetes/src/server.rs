//! The API server: versions and their conflicts, finalizers, deletion, eviction, watches.

use http::Method;
use serde_json::{Value, json};

use super::{Key, Kubernetes, NAMESPACE, Namespace};

/// The label of PersistentVolumes that a move has changed.
const MOVING: &str = "hostloop.csi.dev/moving";

/// An answer that is an error.
pub fn status(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code}),
    )
}

/// What the server says to whoever makes something in a namespace that is on its way out, or is not there.
fn without_namespace(kubernetes: &Kubernetes, namespace: &str) -> Option<(u16, Value)> {
    let (mut answer, details) = match kubernetes.namespace {
        Namespace::Terminating => (
            status(403, "Forbidden"),
            json!({"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}),
        ),
        Namespace::Gone => (status(404, "NotFound"), json!({"kind": "namespaces", "name": namespace})),
        Namespace::There => return None,
    };
    answer.1["details"] = details;
    Some(answer)
}

/// The kind, namespace, name and subresource in a path.
pub fn parse(path: &str) -> (Key, String) {
    let mut parts = path.trim_start_matches('/').split('/');
    // api/v1 or apis/GROUP/VERSION.
    let skipped = if parts.next() == Some("api") { 1 } else { 2 };
    let rest: Vec<&str> = parts.skip(skipped).collect();
    let part = |n: usize| rest.get(n).copied().unwrap_or_default().to_owned();
    match part(0) == "namespaces" {
        true => ((part(2), part(1), part(3)), part(4)),
        false => ((part(0), String::new(), part(1)), part(2)),
    }
}

/// RFC 7396.
fn merge(target: &mut Value, change: &Value) {
    let Value::Object(fields) = change else {
        *target = change.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(key)),
            value => merge(&mut target[key], value),
        }
    }
}

/// Whether a list or a watch asks for the objects that a move has changed.
fn asks_for_moving(query: &str) -> bool {
    query.contains("labelSelector=hostloop.csi.dev%2Fmoving%3Dtrue")
}

fn list(kubernetes: &Kubernetes, key: &Key, query: &str) -> (u16, Value) {
    let on_node = query.split('&').find_map(|part| part.strip_prefix("fieldSelector=spec.nodeName%3D"));
    let moving = asks_for_moving(query);
    let asked = |object: &&Value| {
        (key.1.is_empty() || object["metadata"]["namespace"] == *key.1)
            && (!moving || object["metadata"]["labels"][MOVING] == "true")
            && on_node.is_none_or(|node| object["spec"]["nodeName"].as_str().unwrap_or_default() == node)
    };
    let items: Vec<&Value> = kubernetes.all(&key.0).filter(asked).collect();
    let version = kubernetes.version.to_string();
    (
        200,
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}),
    )
}

/// What a watch of one kind is told of what happened after a version: a line for each change.
pub fn changes(kubernetes: &Kubernetes, kind: &str, query: &str, since: u64) -> Vec<u8> {
    let moving = asks_for_moving(query);
    let mut lines = Vec::new();
    let first = kubernetes.history.partition_point(|change| change.version <= since);
    for change in kubernetes.history.iter().skip(first).filter(|change| change.key.0 == kind) {
        // What has lost the label is gone for whoever watches those with it.
        let hidden = moving && change.object["metadata"]["labels"][MOVING] != "true";
        let kind = if hidden { "DELETED" } else { change.kind };
        let line = json!({"type": kind, "object": change.object});
        lines.extend(line.to_string().into_bytes());
        lines.push(b'\n');
    }
    lines
}

/// Stores an event that has what events.k8s.io insists on (ValidateEventCreate in pkg/apis/core/validation of Kubernetes).
fn event(kubernetes: &mut Kubernetes, key: Key, body: &Value) -> (u16, Value) {
    let text = |field: &str| body[field].as_str().filter(|text| !text.is_empty());
    let wanted = ["action", "reason", "reportingController", "reportingInstance", "eventTime"];
    let note = text("note").filter(|note| note.len() <= 1024);
    let is_whole = wanted.into_iter().all(|field| text(field).is_some());
    let Some(note) = note.filter(|_| is_whole && body["regarding"]["namespace"] == *key.1) else {
        return status(422, "Invalid");
    };
    kubernetes.events.push(format!("{} {note}", body["reason"].as_str().unwrap()));
    let name = body["metadata"]["name"].as_str().unwrap().to_owned();
    (201, kubernetes.create((key.0, key.1, name), body.clone()))
}

/// Does what a request asks for. A watch is told that it is too old, so that whoever watches lists again.
pub fn answer(
    kubernetes: &mut Kubernetes,
    method: &Method,
    path: &str,
    query: &str,
    body: &Value,
) -> (u16, Value) {
    let (key, subresource) = parse(path);
    let there = kubernetes.objects.get(&key).cloned();
    match (method, there) {
        (&Method::GET, _) if query.contains("watch=true") => {
            (200, json!({"type": "ERROR", "object": status(410, "Expired").1}))
        }
        (&Method::GET, _) if key.2.is_empty() => list(kubernetes, &key, query),
        (&Method::GET, Some(object)) => (200, object),
        (&Method::POST, None) if key.0 == "events" => event(kubernetes, key, body),
        // Only the series of an event may change.
        (&Method::PATCH, Some(event)) if key.0 == "events" && body["note"] != event["note"] => {
            status(422, "Invalid")
        }
        (&Method::POST, None) if key.2.is_empty() => {
            if let Some(answer) = without_namespace(kubernetes, &key.1).filter(|_| key.1 == NAMESPACE) {
                return answer;
            }
            let name = body["metadata"]["name"].as_str().unwrap().to_owned();
            let key = (key.0, key.1, name);
            if kubernetes.objects.contains_key(&key) {
                return status(409, "AlreadyExists");
            }
            (201, kubernetes.create(key, body.clone()))
        }
        (&Method::POST, Some(_)) if subresource == "eviction" => {
            if kubernetes.budget == 0 {
                return status(429, "TooManyRequests");
            }
            kubernetes.mark_deleted(&key);
            (201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
        (&Method::PUT, Some(object)) => {
            if body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                return status(409, "Conflict");
            }
            (200, kubernetes.put(key, body.clone()))
        }
        (&Method::PATCH, Some(mut object)) => {
            let wanted = &body["metadata"]["resourceVersion"];
            if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
                return status(409, "Conflict");
            }
            merge(&mut object, body);
            (200, kubernetes.put(key, object))
        }
        (&Method::DELETE, Some(object)) => {
            for field in ["uid", "resourceVersion"] {
                let wanted = &body["preconditions"][field];
                if !wanted.is_null() && *wanted != object["metadata"][field] {
                    return status(409, "Conflict");
                }
            }
            kubernetes.mark_deleted(&key);
            (200, object)
        }
        _ => status(404, "NotFound"),
    }
}
