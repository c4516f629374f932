//! The API server: versions and their conflicts, finalizers, deletion, eviction, watches.

use http::Method;
use serde_json::{Value, json};

use super::control::is_deleted;
use super::{Key, Kubernetes, NAMESPACE, Namespace, writes};

/// The label of PersistentVolumes that a move has changed.
const MOVING: &str = "hostloop.csi.dev/moving";

/// An answer that is an error.
pub fn status(code: u16, reason: &str) -> (u16, Value) {
    refusal(code, reason, reason)
}

/// Returns an answer that is an error with a message of its own.
pub(super) fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code}),
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
    match part(0) == "namespaces" && !part(2).is_empty() {
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

/// Returns the page of a list that a request asks for: the objects, and the token of the next page. A token is the number of the objects before
/// it. The list of the real API server does not change between its pages; this one can.
fn page<'a>(items: Vec<&'a Value>, query: &str) -> (Vec<&'a Value>, Option<String>) {
    let number = |name: &str| {
        let of_name = |part: &str| part.strip_prefix(name)?.strip_prefix('=')?.parse::<usize>().ok();
        query.split('&').find_map(of_name)
    };
    let (from, limit) = (number("continue").unwrap_or(0), number("limit").filter(|limit| *limit > 0));
    let all = items.len();
    let page: Vec<&Value> = items.into_iter().skip(from).take(limit.unwrap_or(all)).collect();
    let end = from.saturating_add(page.len());
    (page, (end < all).then(|| end.to_string()))
}

fn list(kubernetes: &mut Kubernetes, key: &Key, query: &str) -> (u16, Value) {
    let on_node = query.split('&').find_map(|part| part.strip_prefix("fieldSelector=spec.nodeName%3D"));
    let moving = asks_for_moving(query);
    let asked = |object: &&Value| {
        (key.1.is_empty() || object["metadata"]["namespace"] == *key.1)
            && (!moving || object["metadata"]["labels"][MOVING] == "true")
            && on_node.is_none_or(|node| object["spec"]["nodeName"].as_str().unwrap_or_default() == node)
    };
    let (items, next) = page(kubernetes.all(&key.0).filter(asked).collect(), query);
    let metadata =
        json!({"resourceVersion": kubernetes.version.to_string(), "continue": next.unwrap_or_default()});
    let (count, answer) =
        (items.len(), json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}));
    kubernetes.longest_list = kubernetes.longest_list.max(count);
    (200, answer)
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

/// Returns whether a request asks for the answer only: in its query, or in the options of a deletion or an eviction.
fn is_dry_run(query: &str, body: &Value) -> bool {
    let all = json!(["All"]);
    query.split('&').any(|part| part == "dryRun=All")
        || body["dryRun"] == all
        || body["deleteOptions"]["dryRun"] == all
}

/// Does what a request asks for. A watch is told that it is too old, so that whoever watches lists again.
pub fn answer(
    kubernetes: &mut Kubernetes,
    method: &Method,
    path: &str,
    query: &str,
    body: &Value,
) -> (u16, Value) {
    if method == Method::GET || !is_dry_run(query, body) {
        return carry_out(kubernetes, method, path, query, body);
    }
    // The history can be long, and no request reads it.
    let history = std::mem::take(&mut kubernetes.history);
    let mut copy = kubernetes.clone();
    kubernetes.history = history;
    let (code, mut answer) = carry_out(&mut copy, method, path, query, body);
    if let Some(metadata) = answer.get_mut("metadata").and_then(Value::as_object_mut) {
        // There is no new version.
        match kubernetes.objects.get(&parse(path).0) {
            Some(stored) => drop(
                metadata.insert("resourceVersion".to_owned(), stored["metadata"]["resourceVersion"].clone()),
            ),
            None => drop(metadata.remove("resourceVersion")),
        }
    }
    (code, answer)
}

/// Returns the answer to a deletion that insists on another object or version than the stored one.
fn check_preconditions(options: &Value, object: &Value) -> Result<(), (u16, Value)> {
    for field in ["uid", "resourceVersion"] {
        let wanted = &options["preconditions"][field];
        if !wanted.is_null() && *wanted != object["metadata"][field] {
            return Err(status(409, "Conflict"));
        }
    }
    Ok(())
}

fn evict(kubernetes: &mut Kubernetes, key: &Key, pod: &Value, body: &Value) -> (u16, Value) {
    if kubernetes.never_evicted.contains(&key.2) {
        return status(403, "Forbidden");
    }
    // A budget counts pods that work: one that does not, or is being deleted, is evicted without it.
    let works = !matches!(pod["status"]["phase"].as_str(), Some("Pending" | "Succeeded" | "Failed"));
    let is_away = |pod: &&Value| is_deleted(pod) || pod["status"]["phase"] != "Running";
    let away = kubernetes.all("pods").filter(is_away).count();
    let is_at_limit = kubernetes.budget == 0 || kubernetes.max_unavailable.is_some_and(|most| away >= most);
    if is_at_limit && works && !is_deleted(pod) {
        return status(429, "TooManyRequests");
    }
    if let Err(answer) = check_preconditions(&body["deleteOptions"], pod) {
        return answer;
    }
    kubernetes.mark_deleted(key);
    (201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
}

fn carry_out(
    kubernetes: &mut Kubernetes,
    method: &Method,
    path: &str,
    query: &str,
    body: &Value,
) -> (u16, Value) {
    let (key, subresource) = parse(path);
    if !writes::is_served(path, &key, &subresource) {
        return status(404, "NotFound");
    }
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
            match without_namespace(kubernetes, &key.1).filter(|_| key.1 == NAMESPACE) {
                Some(answer) => answer,
                None => writes::create(kubernetes, key, body.clone()),
            }
        }
        (&Method::POST, Some(pod)) if subresource == "eviction" => evict(kubernetes, &key, &pod, body),
        (&Method::PUT, Some(object)) => writes::update(kubernetes, key, &subresource, &object, body.clone()),
        (&Method::PATCH, Some(object)) => {
            let mut wanted = object.clone();
            merge(&mut wanted, body);
            writes::update(kubernetes, key, &subresource, &object, wanted)
        }
        (&Method::DELETE, Some(object)) => match check_preconditions(body, &object) {
            Err(answer) => answer,
            Ok(()) => {
                kubernetes.mark_deleted(&key);
                (200, object)
            }
        },
        _ => status(404, "NotFound"),
    }
}
