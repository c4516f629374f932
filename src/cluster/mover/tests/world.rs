//! A cluster of three nodes in memory: Kubernetes (crates/fake-kubernetes) and the volumes of the nodes. A StatefulSet with one
//! pod writes a number into its volume at every tick; whatever volume it gets must have the last one.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::status::MOVE_STATUS;
use super::kubernetes::Kubernetes;
pub(crate) use super::kubernetes::control::Wants;
pub(crate) use super::kubernetes::{Namespace, key};
use super::server::Shared;

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

#[derive(Default)]
pub(crate) struct World {
    kubernetes: Kubernetes,
    pub(crate) volumes: BTreeMap<String, Volume>,
    /// The number of the call that something happens to.
    pub(crate) fault: Option<(usize, Fault)>,
    pub(crate) calls: Vec<String>,
    /// Processes that have ended: no call of theirs does anything.
    pub(crate) dead: bool,
    /// The delay of each answer of the API server.
    pub(crate) late: Duration,
    /// The last number that each pod wrote.
    written: BTreeMap<String, u64>,
    /// Claims beside the first one, each with its pod.
    more: u32,
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
    /// How old a round is as soon as it is told, in seconds: so much is another one due.
    pub(crate) age: i64,
    /// How far the clocks of nodes are behind that of the controller, in seconds.
    pub(crate) behind: i64,
}

impl Deref for World {
    type Target = Kubernetes;

    fn deref(&self) -> &Kubernetes {
        &self.kubernetes
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Kubernetes {
        &mut self.kubernetes
    }
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

impl World {
    /// A claim on node-1, used by a pod that runs there.
    pub(crate) fn new(annotations: Value) -> Self {
        let mut world = World::default();
        (world.budget, world.resync) = (1, 150);
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
            self.remove(&key("pods", "default", "db-0"));
        }
    }

    /// The last round was asked for so long ago.
    pub(crate) fn age_round(&mut self) {
        if self.age == 0 {
            return;
        }
        let asked =
            k8s_openapi::jiff::Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(self.age);
        self.change("persistentvolumeclaims", "data", |claim| {
            let written = &mut claim["metadata"]["annotations"][MOVE_STATUS];
            let mut status: Value = serde_json::from_str(written.as_str().unwrap()).unwrap();
            status["lastAsked"] = json!(asked.to_string());
            *written = json!(status.to_string());
        });
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
        self.protect_volumes();
        self.release();
        self.end_namespace();
        pairs.iter().for_each(|(claim, pod)| self.set(pod, claim));
        pairs.iter().for_each(|(claim, pod)| self.scheduler(pod, claim));
    }

    fn kubelet(&mut self, name: &str, claim: &str) {
        let Some(pod) = self.get("pods", name) else { return };
        let key = key("pods", "default", name);
        let of_pod = |volume: &&mut Volume| volume.staged && volume.pod == name;
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            self.volumes.values_mut().filter(of_pod).for_each(|volume| volume.staged = false);
            self.remove(&key);
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
            self.kubernetes.wrong.push(format!("the pod got {handle}, which is gone"));
            return;
        };
        if volume.copy_of.is_some() || volume.sealed || volume.node != node {
            return;
        }
        if volume.data != written {
            self.kubernetes
                .wrong
                .push(format!("the pod found {} in {handle} after it had written {}", volume.data, written));
        }
        volume.staged = true;
        name.clone_into(&mut volume.pod);
        self.change("pods", name, |pod| pod["status"] = json!({"phase": "Running"}));
    }

    /// csi-provisioner deletes the volumes that it may.
    fn release(&mut self) {
        for volume in self.reclaimable() {
            let (name, handle) = (&volume["metadata"]["name"], &volume["spec"]["csi"]["volumeHandle"]);
            let handle = handle.as_str().unwrap();
            if self.volumes.get(handle).is_some_and(|volume| volume.staged) {
                self.wrong.push(format!("{handle} was to be deleted while a pod used it"));
            }
            self.volumes.remove(handle);
            self.remove(&key("persistentvolumes", "", name.as_str().unwrap()));
        }
    }

    fn set(&mut self, pod: &str, claim: &str) {
        if self.bare || self.namespace != Namespace::There {
            return;
        }
        if self.stateful_set(pod, claim) == Wants::Claim {
            self.claim(claim, json!({}), None);
            self.stateful_set(pod, claim);
        }
    }

    fn scheduler(&mut self, pod: &str, claim: &str) {
        let away = self.down.clone();
        self.schedule(pod, claim, away.as_deref());
    }

    pub(crate) fn shared(self) -> Shared {
        Arc::new(std::sync::Mutex::new(self))
    }
}
