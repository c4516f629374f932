//! Kubernetes in memory, as far as a move of a volume meets it: objects with versions and finalizers (this file), the API
//! server that gives them out (`server.rs`), and what the control plane does with them (`control.rs`). The unit tests of
//! the mover and the simulated cluster share it.

pub(crate) mod control;
pub(crate) mod server;

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Kind, namespace, name.
pub(crate) type Key = (String, String, String);

pub(crate) fn key(kind: &str, namespace: &str, name: &str) -> Key {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

/// The namespace of all claims and pods.
pub(crate) const NAMESPACE: &str = "default";

/// What has become of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Namespace {
    #[default]
    There,
    /// What is in it is being deleted, and nothing can be made in it.
    Terminating,
    Gone,
}

/// An object that was made, changed or deleted.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) key: Key,
    pub(crate) kind: &'static str,
    pub(crate) object: Value,
}

/// The objects, and what the control plane knows beside them.
#[derive(Default)]
pub(crate) struct Kubernetes {
    pub(crate) objects: BTreeMap<Key, Value>,
    pub(crate) version: u64,
    /// What watches are told; empty where nobody watches.
    pub(crate) history: Vec<Change>,
    /// Whether anybody watches.
    pub(crate) watched: bool,
    /// Reason and note of each event, in the order in which they were written.
    pub(crate) events: Vec<String>,
    /// How many pods may be evicted.
    pub(crate) budget: u32,
    pub(crate) namespace: Namespace,
    /// What must never be.
    pub(crate) wrong: Vec<String>,
    /// Whether claims are bound in two steps.
    pub(crate) halves: bool,
    /// So many looks at a claim are in the time between two looks at everything (15 seconds). A claim is not bound where the
    /// controller of PersistentVolumes has just changed the volume: it tries again with the next of those.
    pub(crate) resync: u32,
    /// Claims that were tried to be bound too early, and the ticks until they are tried again.
    too_early: BTreeMap<String, u32>,
    /// Claims whose volumes were bound to them: the version of the claim, and the ticks until it is looked at again if it
    /// does not change.
    half_bound: BTreeMap<String, (Value, u32)>,
}

fn of_kind(kind: &str, name: &str) -> Key {
    let everywhere = matches!(kind, "persistentvolumes" | "nodes" | "storageclasses");
    key(kind, if everywhere { "" } else { NAMESPACE }, name)
}

impl Kubernetes {
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |(key, _)| key.0 == kind).map(|(_, object)| object)
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects.get(&of_kind(kind, name)).cloned()
    }

    pub(crate) fn create(&mut self, key: Key, mut object: Value) -> Value {
        object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        if key.0 == "persistentvolumeclaims" {
            self.is_made(&key.2, &object);
        }
        let finalizers = &mut object["metadata"]["finalizers"];
        let mut all = finalizers.as_array().cloned().unwrap_or_default();
        if key.0 == "persistentvolumeclaims" {
            all.push(json!(control::PROTECTION));
        }
        *finalizers = json!(all);
        object["kind"] = json!(match key.0.as_str() {
            "persistentvolumeclaims" => "PersistentVolumeClaim",
            "persistentvolumes" => "PersistentVolume",
            "pods" => "Pod",
            "nodes" => "Node",
            "leases" => "Lease",
            "statefulsets" => "StatefulSet",
            "events" => "Event",
            _ => "StorageClass",
        });
        self.put(key, object)
    }

    /// Stores a version of an object. One that is deleted and held by nobody is gone.
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        let deleted = !object["metadata"]["deletionTimestamp"].is_null();
        let kind = match (deleted && !held && key.0 != "pods", self.objects.contains_key(&key)) {
            (true, _) => "DELETED",
            (false, true) => "MODIFIED",
            (false, false) => "ADDED",
        };
        match kind {
            "DELETED" => drop(self.objects.remove(&key)),
            _ => drop(self.objects.insert(key.clone(), object.clone())),
        }
        self.tell(key, kind, &object);
        object
    }

    /// Takes an object away, whoever holds it.
    pub(crate) fn remove(&mut self, key: &Key) {
        let Some(mut object) = self.objects.remove(key) else { return };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.tell(key.clone(), "DELETED", &object);
    }

    fn tell(&mut self, key: Key, kind: &'static str, object: &Value) {
        if self.watched {
            self.history.push(Change { version: self.version, key, kind, object: object.clone() });
        }
    }

    pub(crate) fn mark_deleted(&mut self, key: &Key) {
        let Some(mut object) = self.objects.get(key).cloned() else { return };
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            self.put(key.clone(), object);
        }
    }

    pub(crate) fn change(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let key = of_kind(kind, name);
        let mut object = self.objects.get(&key).cloned().expect("an object");
        change(&mut object);
        self.put(key, object);
    }
}
