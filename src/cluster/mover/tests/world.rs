//! A cluster of three nodes in memory: its objects, its volumes, and the controllers of Kubernetes that a move meets. A
//! StatefulSet with one pod writes a number into its volume at every tick; whatever volume it gets must have the last one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::server::Shared;

/// Kind, namespace, name.
pub(super) type Key = (String, String, String);

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Volume {
    pub(super) node: String,
    /// The last number that was written.
    pub(super) data: u64,
    /// A copy that is not complete is of this volume.
    pub(super) copy_of: Option<String>,
    pub(super) sealed: bool,
    pub(super) staged: bool,
}

/// What happens to one call of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    /// It is not done, or is done and the answer is lost; the process goes on, or ends there.
    Fail { done: bool, ends: bool },
}

#[derive(Default)]
pub(super) struct World {
    pub(super) objects: BTreeMap<Key, Value>,
    pub(super) volumes: BTreeMap<String, Volume>,
    pub(super) events: Vec<String>,
    version: u64,
    /// The number of the call that something happens to.
    pub(super) fault: Option<(usize, Fault)>,
    pub(super) calls: Vec<String>,
    /// Processes that have ended: no call of theirs does anything.
    pub(super) dead: bool,
    /// How many pods may be evicted.
    pub(super) budget: u32,
    /// The last number that the pod wrote.
    pub(super) written: u64,
    /// What must never be.
    pub(super) wrong: Vec<String>,
    /// The seed of random delays; 0 for none.
    pub(super) seed: u64,
    /// Whether the pod belongs to nobody.
    pub(super) bare: bool,
    /// First copies that are still on their way: tries left.
    pub(super) slow: u32,
    /// What the target says to a first copy.
    pub(super) full: bool,
}

pub(super) enum Place {
    Fine,
    FailsBefore,
    FailsAfter,
}

impl Place {
    /// Where a call stands: waits as long as the seed says, and tells whether it fails.
    pub(super) async fn wait(world: &Shared, who: usize, name: &str) -> Place {
        let delay = world.lock().unwrap().delay();
        for _ in 0..delay {
            tokio::task::yield_now().await;
        }
        let mut world = world.lock().unwrap();
        if world.dead {
            return Place::FailsBefore;
        }
        let number = world.calls.len();
        world.calls.push(format!("{who}: {name}"));
        match world.fault {
            Some((at, Fault::Fail { done, ends })) if at == number => {
                world.dead = ends;
                if done { Place::FailsAfter } else { Place::FailsBefore }
            }
            _ => Place::Fine,
        }
    }
}

fn claim_of(object: &Value) -> Option<&str> {
    object["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str()
}

impl World {
    /// A claim on node-1, used by a pod that runs there.
    pub(super) fn new(annotations: Value) -> Self {
        let mut world = World { budget: 1, ..World::default() };
        for node in ["node-1", "node-2", "node-3"] {
            let labels = json!({"topology.hostloop.csi.dev/node": node});
            world.create(
                key("nodes", "", node),
                json!({"metadata": {"name": node, "labels": labels}, "spec": {}}),
            );
        }
        world.create(
            key("storageclasses", "", "local"),
            json!({"metadata": {"name": "local"}, "provisioner": "hostloop.csi.dev",
                "parameters": {"backend": "loop", "csi.storage.k8s.io/fstype": "xfs"}}),
        );
        world.claim(annotations, None);
        world.volumes.insert("vol-1".to_owned(), Volume { node: "node-1".to_owned(), ..Volume::default() });
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": ["node-1"]}]}]}});
        world.create(
            key("persistentvolumes", "", "pvc-1"),
            json!({"metadata": {"name": "pvc-1",
                "annotations": {"pv.kubernetes.io/provisioned-by": "hostloop.csi.dev"},
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
                "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                    "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem", "nodeAffinity": affinity,
                    "csi": {"driver": "hostloop.csi.dev", "volumeHandle": "vol-1", "fsType": "xfs",
                        "volumeAttributes": {"backend": "loop", "pool": "default"}},
                    "claimRef": {"namespace": "default", "name": "data"}}}),
        );
        world.tick();
        world.tick();
        assert_eq!(world.running().as_deref(), Some("node-1"));
        world
    }

    fn claim(&mut self, annotations: Value, volume: Option<&str>) {
        self.create(
            key("persistentvolumeclaims", "default", "data"),
            json!({"metadata": {"name": "data", "namespace": "default", "annotations": annotations, "labels": {"app": "db"}},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": volume,
                    "resources": {"requests": {"storage": "1Gi"}}}}),
        );
    }

    fn delay(&mut self) -> u64 {
        if self.seed == 0 {
            return 0;
        }
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (self.seed >> 33) % 16 {
            0 => 60,
            1..4 => 7,
            few => few % 3,
        }
    }

    pub(super) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |(key, _)| key.0 == kind).map(|(_, object)| object)
    }

    pub(super) fn create(&mut self, key: Key, mut object: Value) -> Value {
        object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        let finalizers = &mut object["metadata"]["finalizers"];
        let mut all = finalizers.as_array().cloned().unwrap_or_default();
        if key.0 == "persistentvolumeclaims" {
            all.push(json!("kubernetes.io/pvc-protection"));
        }
        *finalizers = json!(all);
        object["kind"] = json!(match key.0.as_str() {
            "persistentvolumeclaims" => "PersistentVolumeClaim",
            "persistentvolumes" => "PersistentVolume",
            "pods" => "Pod",
            "nodes" => "Node",
            "leases" => "Lease",
            _ => "StorageClass",
        });
        self.put(key, object)
    }

    /// Stores a version of an object. One that is deleted and held by nobody is gone.
    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        let deleted = !object["metadata"]["deletionTimestamp"].is_null();
        match deleted && !held && key.0 != "pods" {
            true => drop(self.objects.remove(&key)),
            false => drop(self.objects.insert(key, object.clone())),
        }
        object
    }

    pub(super) fn mark_deleted(&mut self, key: &Key) {
        let Some(mut object) = self.objects.get(key).cloned() else { return };
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            self.put(key.clone(), object);
        }
    }

    pub(super) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let namespace = if kind == "persistentvolumes" || kind == "nodes" { "" } else { "default" };
        self.objects.get(&key(kind, namespace, name)).cloned()
    }

    pub(super) fn change(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let namespace = if kind == "persistentvolumes" || kind == "nodes" { "" } else { "default" };
        let key = key(kind, namespace, name);
        let mut object = self.objects.get(&key).cloned().expect("an object");
        change(&mut object);
        self.put(key, object);
    }

    /// The node of the pod that runs.
    pub(super) fn running(&self) -> Option<String> {
        let pod = self.get("pods", "db-0")?;
        (pod["status"]["phase"] == "Running").then(|| pod["spec"]["nodeName"].as_str().unwrap().to_owned())
    }

    pub(super) fn delete_pod(&mut self) {
        self.mark_deleted(&key("pods", "default", "db-0"));
    }

    /// What the controllers of Kubernetes, the scheduler, kubelet and the pod do in a moment.
    pub(super) fn tick(&mut self) {
        self.kubelet();
        self.bind();
        self.protect();
        self.release();
        self.stateful_set();
        self.schedule();
    }

    fn volume_of(&self, claim: &str) -> Option<(Value, String)> {
        let claim = self.get("persistentvolumeclaims", claim)?;
        let volume = self.get("persistentvolumes", claim["spec"]["volumeName"].as_str()?)?;
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str()?.to_owned();
        let usable = claim["status"]["phase"] == "Bound" && claim["metadata"]["deletionTimestamp"].is_null();
        usable.then_some((volume, handle))
    }

    fn kubelet(&mut self) {
        let Some(pod) = self.get("pods", "db-0") else { return };
        let key = key("pods", "default", "db-0");
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            self.volumes.values_mut().for_each(|volume| volume.staged = false);
            self.objects.remove(&key);
            return;
        }
        if pod["status"]["phase"] == "Running" {
            self.written += 1;
            let written = self.written;
            self.volumes.values_mut().filter(|volume| volume.staged).for_each(|volume| volume.data = written);
            return;
        }
        let Some(node) = pod["spec"]["nodeName"].as_str() else { return };
        let Some((_, handle)) = self.volume_of("data") else { return };
        let Some(volume) = self.volumes.get_mut(&handle) else {
            self.wrong.push(format!("the pod got {handle}, which is gone"));
            return;
        };
        if volume.copy_of.is_some() || volume.sealed || volume.node != node {
            return;
        }
        if volume.data != self.written {
            self.wrong.push(format!(
                "the pod found {} in {handle} after it had written {}",
                volume.data, self.written
            ));
        }
        volume.staged = true;
        self.change("pods", "db-0", |pod| pod["status"] = json!({"phase": "Running"}));
    }

    fn bind(&mut self) {
        let Some(claim) = self.get("persistentvolumeclaims", "data") else { return };
        if claim["status"]["phase"] == "Bound" {
            return;
        }
        let named = claim["spec"]["volumeName"].as_str().map(str::to_owned);
        let uid = claim["metadata"]["uid"].clone();
        let fits = |volume: &&Value| {
            let reserved = &volume["spec"]["claimRef"];
            reserved["name"] == "data"
                && (reserved["uid"].is_null() || reserved["uid"] == uid)
                && named.as_ref().is_none_or(|name| volume["metadata"]["name"] == *name)
        };
        let found = self
            .all("persistentvolumes")
            .find(fits)
            .map(|v| v["metadata"]["name"].as_str().unwrap().to_owned());
        let Some(name) = found else {
            if named.is_none() {
                self.wrong.push("a claim without a volume got an empty one".to_owned());
            }
            return;
        };
        self.change("persistentvolumes", &name, |volume| {
            volume["spec"]["claimRef"]["uid"] = uid;
            volume["status"] = json!({"phase": "Bound"});
        });
        self.change("persistentvolumeclaims", "data", |claim| {
            claim["spec"]["volumeName"] = json!(name);
            claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
            claim["status"] = json!({"phase": "Bound"});
        });
    }

    fn protect(&mut self) {
        let Some(claim) = self.get("persistentvolumeclaims", "data") else { return };
        let used =
            self.all("pods").any(|pod| claim_of(pod) == Some("data") && !pod["spec"]["nodeName"].is_null());
        let protected = claim["metadata"]["finalizers"].to_string().contains("pvc-protection");
        if !claim["metadata"]["deletionTimestamp"].is_null() && !used && protected {
            self.change("persistentvolumeclaims", "data", |claim| {
                let all = claim["metadata"]["finalizers"].as_array_mut().unwrap();
                all.retain(|finalizer| finalizer != "kubernetes.io/pvc-protection");
            });
        }
    }

    /// The volume of a claim that is gone is released; csi-provisioner deletes it if it may.
    fn release(&mut self) {
        let claim = self.get("persistentvolumeclaims", "data").map(|claim| claim["metadata"]["uid"].clone());
        let loose: Vec<Value> = self
            .all("persistentvolumes")
            .filter(|volume| {
                let uid = &volume["spec"]["claimRef"]["uid"];
                !uid.is_null() && Some(uid) != claim.as_ref()
            })
            .cloned()
            .collect();
        for volume in
            loose.iter().filter(|volume| volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete")
        {
            let (name, handle) = (&volume["metadata"]["name"], &volume["spec"]["csi"]["volumeHandle"]);
            let handle = handle.as_str().unwrap();
            if self.volumes.get(handle).is_some_and(|volume| volume.staged) {
                self.wrong.push(format!("{handle} was to be deleted while a pod used it"));
            }
            self.volumes.remove(handle);
            self.objects.remove(&key("persistentvolumes", "", name.as_str().unwrap()));
        }
    }

    fn stateful_set(&mut self) {
        if self.bare || self.get("pods", "db-0").is_some() {
            return;
        }
        match self.get("persistentvolumeclaims", "data") {
            Some(claim) if !claim["metadata"]["deletionTimestamp"].is_null() => return,
            Some(_) => {}
            None => self.claim(json!({}), None),
        }
        self.create(
            key("pods", "default", "db-0"),
            json!({"metadata": {"name": "db-0", "namespace": "default", "ownerReferences":
                    [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u", "controller": true}]},
                "spec": {"containers": [], "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
                "status": {"phase": "Pending"}}),
        );
    }

    fn schedule(&mut self) {
        let Some(pod) = self.get("pods", "db-0") else { return };
        let Some((volume, _)) = self.volume_of("data") else { return };
        let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        let node = terms[0]["matchExpressions"][0]["values"][0].as_str().unwrap().to_owned();
        let cordoned = self.get("nodes", &node).is_some_and(|node| node["spec"]["unschedulable"] == true);
        if pod["spec"]["nodeName"].is_null() && !cordoned {
            self.change("pods", "db-0", |pod| pod["spec"]["nodeName"] = json!(node));
        }
    }

    pub(super) fn shared(self) -> Shared {
        Arc::new(std::sync::Mutex::new(self))
    }
}

pub(super) fn key(kind: &str, namespace: &str, name: &str) -> Key {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}
