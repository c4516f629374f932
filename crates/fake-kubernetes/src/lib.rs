//! Kubernetes in memory, as far as a move of a volume meets it: objects with versions and finalizers (this file), the API
//! server that gives them out (`server.rs`, `writes.rs`), and what the control plane does with them (`binding.rs`,
//! `control.rs`). The unit tests of the mover and the simulated cluster share it.

mod binding;
pub mod control;
pub mod server;
#[cfg(test)]
mod tests;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

/// Kind, namespace, name.
pub type Key = (String, String, String);

pub fn key(kind: &str, namespace: &str, name: &str) -> Key {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

/// The namespace of all claims and pods.
pub const NAMESPACE: &str = "default";

/// What has become of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Namespace {
    #[default]
    There,
    /// What is in it is being deleted, and nothing can be made in it.
    Terminating,
    Gone,
}

/// An object that was made, changed or deleted.
#[derive(Debug, Clone)]
pub struct Change {
    pub version: u64,
    pub key: Key,
    pub kind: &'static str,
    pub object: Value,
}

/// What a request does to an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    Create,
    Update,
}

/// Returns the message with which a request is refused, if it is. It gets the object as it would be stored.
pub type Admission = Arc<dyn Fn(Operation, &Key, &Value) -> Option<String> + Send + Sync>;

/// Changes an object before it is stored, as a mutating webhook or policy does.
pub type Mutation = Arc<dyn Fn(Operation, &Key, &mut Value) + Send + Sync>;

/// The objects, and what the control plane knows beside them.
#[derive(Clone, Default)]
pub struct Kubernetes {
    pub objects: BTreeMap<Key, Value>,
    pub version: u64,
    /// What watches are told; empty where nobody watches.
    pub history: Vec<Change>,
    /// Whether anybody watches.
    pub watched: bool,
    /// Reason and note of each event, in the order in which they were written.
    pub events: Vec<String>,
    /// The number of objects in the longest answer to a list.
    pub longest_list: usize,
    /// How many pods may be evicted.
    pub budget: u32,
    /// How many pods may be away at the same time; any number if it is `None`.
    pub max_unavailable: Option<usize>,
    pub namespace: Namespace,
    /// What must never be.
    pub wrong: Vec<String>,
    /// Whether claims are bound in two steps.
    pub halves: bool,
    /// So many looks at a claim are in the time between two looks at everything (15 seconds). A claim is not bound where the
    /// controller of PersistentVolumes has just changed the volume: it tries again with the next of those.
    pub resync: u32,
    /// Claims that were tried to be bound too early, and the ticks until they are tried again.
    too_early: BTreeMap<String, u32>,
    /// Claims that the controller has looked at: the version that it saw, and the ticks until it looks again if that does not
    /// change.
    waiting: BTreeMap<String, (Value, u32)>,
    /// Whether nodeAffinity of a PersistentVolume may change (KEP-5381, the gate MutablePVNodeAffinity).
    pub mutable_node_affinity: bool,
    /// Refuses what is created or updated through the API server, as a webhook or a ResourceQuota does. It is not asked about
    /// subresources, which rules of webhooks name apart.
    pub admission: Option<Admission>,
    /// A webhook refuses to have these pods evicted.
    pub never_evicted: Vec<String>,
    /// Changes what is created or updated through the API server, before admission. It is not asked about subresources either.
    pub mutation: Option<Mutation>,
}

fn of_kind(kind: &str, name: &str) -> Key {
    let everywhere =
        matches!(kind, "persistentvolumes" | "namespaces" | "nodes" | "storageclasses" | "volumereplicas");
    key(kind, if everywhere { "" } else { NAMESPACE }, name)
}

impl Kubernetes {
    pub fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |(key, _)| key.0 == kind).map(|(_, object)| object)
    }

    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects.get(&of_kind(kind, name)).cloned()
    }

    pub fn create(&mut self, key: Key, mut object: Value) -> Value {
        object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
        object["metadata"]["creationTimestamp"] = json!(now.to_string());
        if key.0 == "persistentvolumeclaims" {
            self.is_made(&key.2, &object);
        }
        if key.0 == "persistentvolumes" {
            control::add_finalizer(&mut object, control::VOLUME_PROTECTION);
        }
        if key.0 == "persistentvolumeclaims" {
            control::add_finalizer(&mut object, control::PROTECTION);
        }
        if writes::is_custom(&key.0) {
            object["apiVersion"] = json!(writes::API_VERSION);
            object["metadata"]["generation"] = json!(1);
        }
        object["kind"] = json!(match key.0.as_str() {
            "persistentvolumeclaims" => "PersistentVolumeClaim",
            "persistentvolumes" => "PersistentVolume",
            "pods" => "Pod",
            "nodes" => "Node",
            "namespaces" => "Namespace",
            "leases" => "Lease",
            "statefulsets" => "StatefulSet",
            "events" => "Event",
            "configmaps" => "ConfigMap",
            "volumemoves" => "VolumeMove",
            "volumereplicas" => "VolumeReplica",
            _ => "StorageClass",
        });
        self.put(key, object)
    }

    /// Stores a version of an object. One that is deleted and held by nobody is gone.
    pub fn put(&mut self, key: Key, mut object: Value) -> Value {
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
    pub fn remove(&mut self, key: &Key) {
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

    pub fn mark_deleted(&mut self, key: &Key) {
        let Some(mut object) = self.objects.get(key).cloned() else { return };
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            // Deletion is a change that controllers have to observe, like one of the spec.
            if let Some(generation) = object["metadata"]["generation"].as_u64() {
                object["metadata"]["generation"] = json!(generation + 1);
            }
            self.put(key.clone(), object);
        }
    }

    /// Changes an object. As on the API server, a change that changes nothing makes no new version.
    pub fn change(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let key = of_kind(kind, name);
        let before = self.objects.get(&key).expect("an object");
        let mut object = before.clone();
        change(&mut object);
        if object != *before {
            self.put(key, object);
        }
    }
}
