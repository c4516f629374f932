//! An API server in memory, as far as a move sees it: versions and their conflicts, finalizers, deletion, eviction.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::world::{Key, Namespace, Place, World};
use crate::cluster::mover::status::MOVING;

pub(crate) type Shared = Arc<Mutex<World>>;

fn status(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code}),
    )
}

/// What the server says to whoever makes something in a namespace that is on its way out, or is not there.
fn without_namespace(world: &World, namespace: &str) -> Option<(u16, Value)> {
    let (mut answer, details) = match world.namespace {
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
fn parse(path: &str) -> (Key, String) {
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

fn list(world: &World, key: &Key, query: &str) -> (u16, Value) {
    let on_node = query.split('&').find_map(|part| part.strip_prefix("fieldSelector=spec.nodeName%3D"));
    let moving = query.contains("labelSelector=hostloop.csi.dev%2Fmoving%3Dtrue");
    let asked = |object: &&Value| {
        (key.1.is_empty() || object["metadata"]["namespace"] == *key.1)
            && (!moving || object["metadata"]["labels"][MOVING] == "true")
            && on_node.is_none_or(|node| object["spec"]["nodeName"].as_str().unwrap_or_default() == node)
    };
    let items: Vec<&Value> = world.all(&key.0).filter(asked).collect();
    (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

fn answer(world: &mut World, method: &Method, path: &str, query: &str, body: &Value) -> (u16, Value) {
    let (key, subresource) = parse(path);
    let there = world.objects.get(&key).cloned();
    match (method, there) {
        // Whoever watches is sent back to list: a watch that is too old.
        (&Method::GET, _) if query.contains("watch=true") => {
            (200, json!({"type": "ERROR", "object": status(410, "Expired").1}))
        }
        (&Method::GET, _) if key.2.is_empty() => list(world, &key, query),
        (&Method::GET, Some(object)) => (200, object),
        (&Method::POST, None) if key.2.is_empty() => {
            if let Some(answer) = without_namespace(world, &key.1).filter(|_| key.1 == "default") {
                return answer;
            }
            let name = body["metadata"]["name"].as_str().unwrap().to_owned();
            let key = (key.0, key.1, name);
            if world.objects.contains_key(&key) {
                return status(409, "AlreadyExists");
            }
            (201, world.create(key, body.clone()))
        }
        (&Method::POST, Some(_)) if subresource == "eviction" => {
            if world.budget == 0 {
                return status(429, "TooManyRequests");
            }
            world.mark_deleted(&key);
            (201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
        (&Method::PUT, Some(object)) => {
            if body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                return status(409, "Conflict");
            }
            (200, world.put(key, body.clone()))
        }
        (&Method::PATCH, Some(mut object)) => {
            let wanted = &body["metadata"]["resourceVersion"];
            if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
                return status(409, "Conflict");
            }
            merge(&mut object, body);
            (200, world.put(key, object))
        }
        (&Method::DELETE, Some(object)) => {
            for field in ["uid", "resourceVersion"] {
                let wanted = &body["preconditions"][field];
                if !wanted.is_null() && *wanted != object["metadata"][field] {
                    return status(409, "Conflict");
                }
            }
            world.mark_deleted(&key);
            (200, object)
        }
        _ => status(404, "NotFound"),
    }
}

/// A client of this server. Process `who` makes its calls.
pub(crate) fn client(world: &Shared, who: usize) -> Client {
    let world = Arc::clone(world);
    let service = tower::service_fn(move |request: Request<Body>| {
        let world = Arc::clone(&world);
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let (path, query) =
                (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
            // Events are no step of a move.
            let quiet = path.ends_with("/events");
            let (code, answer) = if quiet {
                let mut world = world.lock().unwrap();
                let text =
                    format!("{} {}", body["reason"].as_str().unwrap(), body["message"].as_str().unwrap());
                world.events.push(text);
                (201, body)
            } else {
                let name = format!("{} {path}", parts.method);
                let place = Place::wait(&world, who, &name).await;
                let mut world = world.lock().unwrap();
                match place {
                    Place::Fine => answer(&mut world, &parts.method, &path, &query, &body),
                    Place::FailsBefore => status(500, "InternalError"),
                    Place::FailsAfter => {
                        answer(&mut world, &parts.method, &path, &query, &body);
                        status(500, "InternalError")
                    }
                }
            };
            let text = serde_json::to_vec(&answer).unwrap();
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(text)).unwrap())
        }
    });
    Client::new(service, "default")
}
