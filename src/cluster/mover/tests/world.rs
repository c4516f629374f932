//! A cluster of three nodes in memory: its objects, its volumes, and the controllers of Kubernetes that a move meets. A
//! StatefulSet with one pod writes a number into its volume at every tick; whatever volume it gets must have the last one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::server::Shared;

/// Kind, namespace, name.
pub(crate) type Key = (String, String, String);

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Volume {
    pub(crate) node: String,
    /// The last number that was written.
    pub(crate) data: u64,
    /// A copy that is not complete is of this volume.
    pub(crate) copy_of: Option<String>,
    pub(crate) sealed: bool,
    pub(crate) staged: bool,
    /// The pod that has staged it.
    pub(crate) pod: String,
}

/// What happens to one call of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// It is not done, or is done and the answer is lost; the process goes on, or ends there.
    Fail { done: bool, ends: bool },
}

/// A claim is not bound where the controller of PersistentVolumes has just changed the volume: it tries again with its next look
/// at everything, up to 15 seconds later.
const RESYNC: u32 = 150;

/// The namespace of all claims and pods.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Namespace {
    #[default]
    There,
    /// What is in it is being deleted, and nothing can be made in it.
    Terminating,
    Gone,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) objects: BTreeMap<Key, Value>,
    pub(crate) volumes: BTreeMap<String, Volume>,
    pub(crate) events: Vec<String>,
    version: u64,
    /// The number of the call that something happens to.
    pub(crate) fault: Option<(usize, Fault)>,
    pub(crate) calls: Vec<String>,
    /// Processes that have ended: no call of theirs does anything.
    pub(crate) dead: bool,
    /// How many pods may be evicted.
    pub(crate) budget: u32,
    /// The last number that each pod wrote.
    written: BTreeMap<String, u64>,
    /// Claims beside the first one, each with its pod.
    more: u32,
    /// What must never be.
    pub(crate) wrong: Vec<String>,
    /// The seed of random delays; 0 for none.
    pub(crate) seed: u64,
    /// Whether the pod belongs to nobody.
    pub(crate) bare: bool,
    /// First copies that are still on their way: tries left.
    pub(crate) slow: u32,
    /// What the target says to a first copy.
    pub(crate) full: bool,
    /// Copies for which nothing is kept at their sources any more.
    pub(crate) released: Vec<String>,
    /// A call of the nodes that fails so many times.
    pub(crate) failing: Option<(String, u32)>,
    /// The node that does not answer.
    pub(crate) down: Option<String>,
    /// The class has parameters beside that of the backend.
    pub(crate) also_in_class: bool,
    /// Whether the claim's namespace is being deleted, or is gone.
    pub(crate) namespace: Namespace,
    /// Claims that Kubernetes has tried to bind too early, and the ticks until it tries again.
    too_early: BTreeMap<String, u32>,
    /// Claims whose volumes were bound to them: the version of the claim, and the ticks until Kubernetes looks at it again if it
    /// does not change.
    half_bound: BTreeMap<String, (Value, u32)>,
    /// Whether Kubernetes binds in two steps.
    halves: bool,
    /// How old a cut is when it is told, in seconds: so much is another round due.
    pub(crate) age: u64,
}

pub(crate) enum Place {
    Fine,
    FailsBefore,
    FailsAfter,
}

impl Place {
    /// Where a call stands: waits as long as the seed says, and tells whether it fails.
    pub(crate) async fn wait(world: &Shared, who: usize, name: &str) -> Place {
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

/// A claim and its pod.
fn pair(number: u32) -> (String, String) {
    let claim = if number == 0 { "data".to_owned() } else { format!("data-{number}") };
    (claim, format!("db-{number}"))
}

fn claim_of(object: &Value) -> Option<&str> {
    object["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str()
}

impl World {
    /// A claim on node-1, used by a pod that runs there.
    pub(crate) fn new(annotations: Value) -> Self {
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
        world.claim("data", annotations, None);
        world.volume("data", 1);
        world.tick();
        world.tick();
        assert_eq!(world.running().as_deref(), Some("node-1"));
        world.halves = true;
        world
    }

    /// The same with so many claims, each of its own pod.
    pub(crate) fn of_many(count: u32) -> Self {
        let mut world = World::new(json!({}));
        world.halves = false;
        for number in 1..count {
            let (claim, _) = pair(number);
            world.claim(&claim, json!({}), None);
            world.volume(&claim, number + 1);
        }
        world.more = count - 1;
        world.tick();
        world.tick();
        world.halves = true;
        world.budget = count;
        world
    }

    /// A volume on node-1 that is reserved for a claim.
    fn volume(&mut self, claim: &str, number: u32) {
        let (name, handle) = (format!("pvc-{number}"), format!("vol-{number}"));
        self.volumes.insert(handle.clone(), Volume { node: "node-1".to_owned(), ..Volume::default() });
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": ["node-1"]}]}]}});
        self.create(
            key("persistentvolumes", "", &name),
            json!({"metadata": {"name": name,
                "annotations": {"pv.kubernetes.io/provisioned-by": "hostloop.csi.dev"},
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
                "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                    "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem", "nodeAffinity": affinity,
                    "csi": {"driver": "hostloop.csi.dev", "volumeHandle": handle, "fsType": "xfs",
                        "volumeAttributes": {"backend": "loop", "pool": "default"}},
                    "claimRef": {"namespace": "default", "name": claim}}}),
        );
    }

    fn claim(&mut self, name: &str, annotations: Value, volume: Option<&str>) {
        self.create(
            key("persistentvolumeclaims", "default", name),
            json!({"metadata": {"name": name, "namespace": "default", "annotations": annotations, "labels": {"app": "db"}},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": volume,
                    "resources": {"requests": {"storage": "1Gi"}}}}),
        );
    }

    /// The node burns down, and an administrator says so. What its pod wrote after the last round is lost.
    pub(crate) fn lose(&mut self, node: &str, said: bool) {
        self.down = Some(node.to_owned());
        if said {
            let taints = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
            self.change("nodes", node, |node| node["spec"]["taints"] = taints);
        }
        let copy = self.volumes.values().find(|volume| volume.copy_of.is_some() && volume.node != node);
        if let Some(data) = copy.map(|copy| copy.data).filter(|_| self.running().as_deref() == Some(node)) {
            self.written.insert("db-0".to_owned(), data);
        }
        // Kubernetes deletes its pods by force; without the word somebody has to.
        if self.running().as_deref() == Some(node) {
            self.objects.remove(&key("pods", "default", "db-0"));
        }
    }

    /// The last number that the pod is known to have written.
    pub(crate) fn wrote(&mut self, data: u64) {
        self.written.insert("db-0".to_owned(), data);
    }

    /// It was only asleep: kubelet learns that its pods were deleted.
    pub(crate) fn find_again(&mut self, node: &str) {
        self.down = None;
        self.change("nodes", node, |node| node["spec"]["taints"] = json!(null));
        self.volumes
            .values_mut()
            .filter(|volume| volume.node == node)
            .for_each(|volume| volume.staged = false);
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

    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |(key, _)| key.0 == kind).map(|(_, object)| object)
    }

    pub(crate) fn create(&mut self, key: Key, mut object: Value) -> Value {
        object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        if key.0 == "persistentvolumeclaims" {
            let volume = object["spec"]["volumeName"].as_str();
            if volume.is_some_and(|name| !self.is_available(name)) {
                self.too_early.insert(key.2.clone(), RESYNC);
            }
        }
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
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Value {
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

    pub(crate) fn mark_deleted(&mut self, key: &Key) {
        let Some(mut object) = self.objects.get(key).cloned() else { return };
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            self.put(key.clone(), object);
        }
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let namespace = if kind == "persistentvolumes" || kind == "nodes" { "" } else { "default" };
        self.objects.get(&key(kind, namespace, name)).cloned()
    }

    pub(crate) fn change(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let namespace = if kind == "persistentvolumes" || kind == "nodes" { "" } else { "default" };
        let key = key(kind, namespace, name);
        let mut object = self.objects.get(&key).cloned().expect("an object");
        change(&mut object);
        self.put(key, object);
    }

    /// The node of the pod that runs.
    pub(crate) fn running(&self) -> Option<String> {
        let pod = self.get("pods", "db-0")?;
        (pod["status"]["phase"] == "Running").then(|| pod["spec"]["nodeName"].as_str().unwrap().to_owned())
    }

    pub(crate) fn delete_pod(&mut self) {
        self.mark_deleted(&key("pods", "default", "db-0"));
    }

    /// What the controllers of Kubernetes, the scheduler, kubelet and the pod do in a moment.
    pub(crate) fn tick(&mut self) {
        let pairs: Vec<(String, String)> = (0..=self.more).map(pair).collect();
        pairs.iter().for_each(|(claim, pod)| self.kubelet(pod, claim));
        self.offer();
        pairs.iter().for_each(|(claim, _)| self.bind(claim));
        pairs.iter().for_each(|(claim, _)| self.protect(claim));
        self.release();
        if self.namespace == Namespace::Terminating && !self.objects.keys().any(|key| key.1 == "default") {
            self.namespace = Namespace::Gone;
        }
        pairs.iter().for_each(|(claim, pod)| self.stateful_set(pod, claim));
        pairs.iter().for_each(|(claim, pod)| self.schedule(pod, claim));
    }

    /// Somebody deletes the namespace with all that is in it.
    pub(crate) fn delete_namespace(&mut self) {
        self.namespace = Namespace::Terminating;
        let inside: Vec<Key> = self.objects.keys().filter(|key| key.1 == "default").cloned().collect();
        inside.iter().for_each(|key| self.mark_deleted(key));
    }

    fn is_available(&self, volume: &str) -> bool {
        self.get("persistentvolumes", volume).is_some_and(|volume| volume["status"]["phase"] == "Available")
    }

    /// The controller of PersistentVolumes looks at those that are reserved.
    fn offer(&mut self) {
        let reserved = |volume: &&Value| {
            volume["spec"]["claimRef"]["uid"].is_null() && volume["status"]["phase"] != "Available"
        };
        let reserved: Vec<String> = self
            .all("persistentvolumes")
            .filter(reserved)
            .map(|volume| volume["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        for name in reserved {
            self.change("persistentvolumes", &name, |volume| {
                volume["status"] = json!({"phase": "Available"})
            });
        }
    }

    fn volume_of(&self, claim: &str) -> Option<(Value, String)> {
        let claim = self.get("persistentvolumeclaims", claim)?;
        let volume = self.get("persistentvolumes", claim["spec"]["volumeName"].as_str()?)?;
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str()?.to_owned();
        let usable = claim["status"]["phase"] == "Bound" && claim["metadata"]["deletionTimestamp"].is_null();
        usable.then_some((volume, handle))
    }

    fn kubelet(&mut self, name: &str, claim: &str) {
        let Some(pod) = self.get("pods", name) else { return };
        let key = key("pods", "default", name);
        let of_pod = |volume: &&mut Volume| volume.staged && volume.pod == name;
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            self.volumes.values_mut().filter(of_pod).for_each(|volume| volume.staged = false);
            self.objects.remove(&key);
            return;
        }
        if pod["status"]["phase"] == "Running" {
            let written = self.written.entry(name.to_owned()).or_default();
            *written += 1;
            self.volumes.values_mut().filter(of_pod).for_each(|volume| volume.data = *written);
            return;
        }
        let Some(node) = pod["spec"]["nodeName"].as_str() else { return };
        if self.down.as_deref() == Some(node) {
            return;
        }
        let Some((_, handle)) = self.volume_of(claim) else { return };
        let written = self.written.get(name).copied().unwrap_or(0);
        let Some(volume) = self.volumes.get_mut(&handle) else {
            self.wrong.push(format!("the pod got {handle}, which is gone"));
            return;
        };
        if volume.copy_of.is_some() || volume.sealed || volume.node != node {
            return;
        }
        if volume.data != written {
            self.wrong
                .push(format!("the pod found {} in {handle} after it had written {}", volume.data, written));
        }
        volume.staged = true;
        name.clone_into(&mut volume.pod);
        self.change("pods", name, |pod| pod["status"] = json!({"phase": "Running"}));
    }

    fn bind(&mut self, name: &str) {
        let Some(claim) = self.get("persistentvolumeclaims", name) else { return };
        match claim["status"]["phase"].as_str() {
            Some("Bound") => return self.lost(&claim),
            Some("Lost") => return,
            _ => {}
        }
        if let Some(left) = self.too_early.get_mut(name).filter(|left| **left > 0) {
            *left -= 1;
            return;
        }
        let named = claim["spec"]["volumeName"].as_str().map(str::to_owned);
        let uid = claim["metadata"]["uid"].clone();
        let fits = |volume: &&Value| {
            let reserved = &volume["spec"]["claimRef"];
            reserved["name"] == name
                && (reserved["uid"].is_null() || reserved["uid"] == uid)
                && named.as_ref().is_none_or(|name| volume["metadata"]["name"] == *name)
        };
        let found = self
            .all("persistentvolumes")
            .find(fits)
            .map(|v| v["metadata"]["name"].as_str().unwrap().to_owned());
        let Some(found) = found else {
            if named.is_none() {
                self.wrong.push("a claim without a volume got an empty one".to_owned());
            }
            return;
        };
        self.change("persistentvolumes", &found, |volume| {
            volume["spec"]["claimRef"]["uid"] = uid;
            volume["status"] = json!({"phase": "Bound"});
        });
        if self.halves {
            let version = claim["metadata"]["resourceVersion"].clone();
            let (before, left) =
                self.half_bound.entry(name.to_owned()).or_insert_with(|| (version.clone(), RESYNC));
            if *before == version && *left > 0 {
                *left -= 1;
                return;
            }
            self.half_bound.remove(name);
        }
        self.change("persistentvolumeclaims", name, |claim| {
            claim["spec"]["volumeName"] = json!(found);
            claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
            claim["status"] = json!({"phase": "Bound"});
        });
    }

    /// A claim that is bound, and whose volume does not name it, is *Lost* for ever.
    fn lost(&mut self, claim: &Value) {
        let volume =
            claim["spec"]["volumeName"].as_str().and_then(|name| self.get("persistentvolumes", name));
        if volume.is_none_or(|volume| volume["spec"]["claimRef"]["uid"] != claim["metadata"]["uid"]) {
            let name = claim["metadata"]["name"].as_str().unwrap();
            self.change("persistentvolumeclaims", name, |claim| claim["status"]["phase"] = json!("Lost"));
        }
    }

    fn protect(&mut self, name: &str) {
        let Some(claim) = self.get("persistentvolumeclaims", name) else { return };
        let used =
            self.all("pods").any(|pod| claim_of(pod) == Some(name) && !pod["spec"]["nodeName"].is_null());
        let protected = claim["metadata"]["finalizers"].to_string().contains("pvc-protection");
        if !claim["metadata"]["deletionTimestamp"].is_null() && !used && protected {
            self.change("persistentvolumeclaims", name, |claim| {
                let all = claim["metadata"]["finalizers"].as_array_mut().unwrap();
                all.retain(|finalizer| finalizer != "kubernetes.io/pvc-protection");
            });
        }
    }

    /// The volume of a claim that is gone is released; csi-provisioner deletes it if it may.
    fn release(&mut self) {
        let claims: Vec<Value> =
            self.all("persistentvolumeclaims").map(|claim| claim["metadata"]["uid"].clone()).collect();
        let loose: Vec<Value> = self
            .all("persistentvolumes")
            .filter(|volume| {
                let uid = &volume["spec"]["claimRef"]["uid"];
                !uid.is_null() && !claims.contains(uid)
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

    fn stateful_set(&mut self, name: &str, claim: &str) {
        if self.bare || self.namespace != Namespace::There || self.get("pods", name).is_some() {
            return;
        }
        match self.get("persistentvolumeclaims", claim) {
            Some(claim) if !claim["metadata"]["deletionTimestamp"].is_null() => return,
            Some(_) => {}
            None => self.claim(claim, json!({}), None),
        }
        self.create(
            key("pods", "default", name),
            json!({"metadata": {"name": name, "namespace": "default", "ownerReferences":
                    [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u", "controller": true}]},
                "spec": {"containers": [], "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": claim}}]},
                "status": {"phase": "Pending"}}),
        );
    }

    fn schedule(&mut self, name: &str, claim: &str) {
        let Some(pod) = self.get("pods", name) else { return };
        let Some((volume, _)) = self.volume_of(claim) else { return };
        let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        let node = terms[0]["matchExpressions"][0]["values"][0].as_str().unwrap().to_owned();
        let away = self.down.as_ref() == Some(&node);
        let cordoned =
            self.get("nodes", &node).is_some_and(|node| node["spec"]["unschedulable"] == true) || away;
        if pod["spec"]["nodeName"].is_null() && !cordoned {
            self.change("pods", name, |pod| pod["spec"]["nodeName"] = json!(node));
        }
    }

    pub(crate) fn shared(self) -> Shared {
        Arc::new(std::sync::Mutex::new(self))
    }
}

pub(crate) fn key(kind: &str, namespace: &str, name: &str) -> Key {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}
