//! A cluster in memory with a StatefulSet of one pod, whose claim has a volume on a node, and a controller that moves volumes.

use std::collections::HashMap;
use std::time::Duration;

use hostloop_fake_kubernetes::{Kubernetes, NAMESPACE, control, key};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::api::Server;
use super::nodes::{FakeNodes, Held};
use crate::cluster::moves::act::Moves;
use crate::cluster::moves::figures::Figures;
use crate::cluster::moves::resources::{MovePhase, ReplicaPhase, VolumeMove, VolumeReplica};
use crate::cluster::moves::run::is_same_but_text;
use crate::cluster::moves::seen::{Seen, Writers};
use crate::model::MoveLimits;
use std::sync::Arc;

const DRIVER: &str = "hostloop.csi.dev";
const CLAIM: &str = "data-db-0";
const POD: &str = "db-0";

/// A controller, with what its watches have shown.
struct Controller {
    moves: Moves,
    writers: Writers,
    /// By the names of VolumeReplicas, what was last seen of them, and when they are looked at again if nothing changes.
    due: HashMap<String, (VolumeReplica, Instant)>,
}

pub(super) struct World {
    began: Instant,
    pub(super) server: Server,
    pub(super) nodes: FakeNodes,
    controller: Controller,
    /// The id of the volume.
    pub(super) id: String,
    /// What the pod has written last.
    pub(super) written: u64,
    /// How many ticks in a row the pod did not run.
    pub(super) down: usize,
    /// What failed in the last tick.
    pub(super) failures: Vec<String>,
    /// What the pod may miss of that when it starts, since its node was lost.
    pub(super) may_be_lost: u64,
}

impl World {
    pub(super) fn new(mutable: bool, parameters: Value) -> World {
        let mut kubernetes = Kubernetes::default();
        (kubernetes.budget, kubernetes.mutable_node_affinity) = (1, mutable);
        for node in ["n1", "n2", "n3"] {
            let labels = json!({"topology.hostloop.csi.dev/node": node});
            let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
            let object = json!({"metadata": {"name": node, "labels": labels}, "spec": {}, "status": ready});
            kubernetes.create(key("nodes", "", node), object);
        }
        kubernetes.create(key("namespaces", "", NAMESPACE), json!({"metadata": {"name": NAMESPACE}}));
        let class = json!({"metadata": {"name": "local"}, "provisioner": DRIVER, "parameters": parameters});
        kubernetes.create(key("storageclasses", "", "local"), class);
        let claim = json!({"metadata": {"name": CLAIM, "namespace": NAMESPACE}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": "local", "volumeName": "pvc-1", "resources": {"requests": {"storage": "1Gi"}}}});
        let claim = kubernetes.create(key("persistentvolumeclaims", NAMESPACE, CLAIM), claim);
        let id = crate::model::VolumeId::of_name(&crate::model::NodeKey::of("n1"), "pvc-1").to_string();
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": ["n1"]}]}]}});
        let volume = json!({"metadata": {"name": "pvc-1",
                "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem", "nodeAffinity": affinity,
                "csi": {"driver": DRIVER, "volumeHandle": id, "fsType": "xfs"},
                "claimRef": {"namespace": NAMESPACE, "name": CLAIM, "uid": claim["metadata"]["uid"]}}});
        kubernetes.create(key("persistentvolumes", "", "pvc-1"), volume);
        let server = Server::new(kubernetes);
        let nodes = FakeNodes::default();
        for node in ["n1", "n2", "n3"] {
            nodes.lock().nodes.insert(node.to_owned(), Default::default());
        }
        nodes.lock().nodes.get_mut("n1").unwrap().insert(id.clone(), Held::default());
        let began = Instant::now();
        let controller = Controller::new(&server, &nodes, began);
        World {
            began,
            server,
            nodes,
            controller,
            id,
            written: 0,
            down: 0,
            failures: Vec::new(),
            may_be_lost: 0,
        }
    }

    /// Another process leads.
    pub(super) fn restart(&mut self) {
        self.controller = Controller::new(&self.server, &self.nodes, self.began);
    }

    pub(super) fn moves(&self) -> &Moves {
        &self.controller.moves
    }

    pub(super) fn seen(&self) -> Seen {
        self.controller.moves.seen.clone()
    }

    pub(super) fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.controller.moves.figures)
    }

    pub(super) fn limit(&mut self, limits: MoveLimits) {
        self.controller.moves.limits = limits;
    }

    /// Another claim of this namespace has moved from the second node to the first one, which left data of 2 GiB.
    pub(super) fn add_left(&self, name: &str, namespace: &str) {
        let claim = json!({"namespace": namespace, "name": name, "uid": name});
        let spec = json!({"driver": DRIVER, "volumeId": name, "generation": 0, "persistentVolume": {"name": name, "uid": "u"},
            "claim": claim, "sourceNode": "n2", "targetNode": "n1", "copyName": name, "copyId": name, "purpose": "Move"});
        let pass = json!({"asked": "2026-01-01T00:00:00Z", "sentBytes": 0, "sizeBytes": 2_u64 << 30});
        let object =
            json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Left", "lastPass": pass}});
        self.server.with(|k| k.create(key("volumereplicas", "", name), object));
    }

    /// A user asks for a move.
    pub(super) fn ask(&self, spec: Value) {
        let mut spec = spec;
        spec["claimName"] = json!(CLAIM);
        let object = json!({"metadata": {"name": "m", "namespace": NAMESPACE}, "spec": spec});
        self.server.with(|k| k.create(key("volumemoves", NAMESPACE, "m"), object));
    }

    /// A second of everything. The controller looks at every object.
    pub(super) async fn tick(&mut self) {
        self.controller.due.clear();
        self.patient_tick().await;
    }

    /// A second of everything. The controller looks at the VolumeReplicas that it wants to look at, and at those that have changed.
    pub(super) async fn patient_tick(&mut self) {
        self.control_plane();
        self.kubelet();
        self.server.show(&mut self.controller.writers);
        self.failures = self.controller.act().await;
        tokio::time::advance(Duration::from_secs(1)).await;
    }

    pub(super) async fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.tick().await;
        }
    }

    fn control_plane(&self) {
        self.server.with(|kubernetes| {
            kubernetes.offer();
            kubernetes.bind(CLAIM);
            kubernetes.protect(CLAIM);
            kubernetes.protect_volumes();
            kubernetes.stateful_set(POD, CLAIM);
            kubernetes.schedule(POD, CLAIM, None);
            // The garbage collector of pods.
            let node = kubernetes
                .get("pods", POD)
                .and_then(|pod| Some(pod["spec"]["nodeName"].as_str()?.to_owned()));
            if node.is_some_and(|node| kubernetes.get("nodes", &node).is_none()) {
                kubernetes.remove(&key("pods", NAMESPACE, POD));
            }
            // csi-provisioner would delete the volume of this one.
            assert_eq!(kubernetes.reclaimable(), Vec::<Value>::new());
        });
    }

    /// The kubelets of all nodes: pods end, start and write.
    fn kubelet(&mut self) {
        self.down += 1;
        let Some(pod) = self.server.with(|k| k.get("pods", POD)) else { return };
        let Some(node) = pod["spec"]["nodeName"].as_str() else { return };
        if self.nodes.lock().silent.contains(node) {
            // Kubernetes deletes the pods of a lost node by force.
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.server.with(|k| k.remove(&key("pods", NAMESPACE, POD)));
            }
            return;
        }
        let mut cluster = self.nodes.lock();
        let is_broken = cluster.broken.contains(node);
        let volume = cluster.nodes.get_mut(node).and_then(|held| held.get_mut(&self.id));
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            if let Some(volume) = volume {
                volume.in_use = false;
            }
            drop(cluster);
            return self.server.with(|k| k.remove(&key("pods", NAMESPACE, POD)));
        }
        let Some(volume) = volume.filter(|volume| volume.in_use || !volume.sealed) else { return };
        if is_broken {
            volume.in_use = false;
            return;
        }
        if !volume.in_use {
            let missing = self.written - volume.data;
            assert!(missing <= self.may_be_lost, "the pod misses {missing} of its {} writes", self.written);
            (self.may_be_lost, self.written, volume.in_use) = (0, volume.data, true);
        }
        volume.data += 1;
        (self.written, self.down) = (volume.data, 0);
        drop(cluster);
        let running =
            json!({"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]});
        self.server.with(|k| k.change("pods", POD, |pod| pod["status"] = running));
    }

    /// A node is switched off, with everything that runs there.
    pub(super) fn lose(&mut self, node: &str) {
        let mut cluster = self.nodes.lock();
        cluster.silent.insert(node.to_owned());
        cluster.nodes.get_mut(node).unwrap().values_mut().for_each(|volume| volume.in_use = false);
        self.may_be_lost = u64::MAX;
    }

    /// An administrator says that a node, which is not ready, is shut down.
    pub(super) fn taint(&self, node: &str) {
        let taints = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
        let off = json!({"conditions": [{"type": "Ready", "status": "Unknown"}]});
        self.server.with(|k| {
            k.change("nodes", node, |node| (node["spec"]["taints"], node["status"]) = (taints, off));
        });
    }

    /// Kubernetes deletes the pods of a node by force, and the Node object.
    pub(super) fn remove_node(&self, node: &str) {
        self.server.with(|k| {
            k.remove(&key("nodes", "", node));
            k.remove(&key("pods", NAMESPACE, POD));
        });
    }

    pub(super) fn add_node(&self, node: &str) {
        let labels = json!({"topology.hostloop.csi.dev/node": node});
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let object = json!({"metadata": {"name": node, "labels": labels}, "spec": {}, "status": ready});
        self.server.with(|k| k.create(key("nodes", "", node), object));
        self.nodes.lock().silent.remove(node);
    }

    /// An administrator drains the node: its pod is evicted.
    pub(super) fn drain(&self) {
        self.server.with(|k| k.mark_deleted(&key("pods", NAMESPACE, POD)));
    }

    pub(super) fn replica(&self) -> Option<VolumeReplica> {
        let all = self.server.with(|k| k.all("volumereplicas").cloned().collect::<Vec<_>>());
        let all: Vec<VolumeReplica> =
            all.into_iter().map(|replica| serde_json::from_value(replica).unwrap()).collect();
        all.iter().find(|replica| replica.phase().is_of_a_copy()).or(all.first()).cloned()
    }

    /// The phase of the copy, and its message.
    pub(super) fn phase(&self) -> Option<(ReplicaPhase, String)> {
        let status = self.replica()?.status.unwrap_or_default();
        Some((status.phase, status.message))
    }

    /// The phase of what the move from the first node has left, and its message.
    pub(super) fn left(&self) -> (ReplicaPhase, String) {
        let replica = self.server.with(|k| k.get("volumereplicas", "pvc-1-0")).expect("a VolumeReplica");
        let replica: VolumeReplica = serde_json::from_value(replica).unwrap();
        (replica.phase(), replica.status.unwrap_or_default().message)
    }

    /// The phase of the VolumeMove, and its message.
    pub(super) fn asked(&self) -> (Option<MovePhase>, String) {
        let asked = self.server.with(|k| k.get("volumemoves", "m")).expect("a VolumeMove");
        let asked: VolumeMove = serde_json::from_value(asked).unwrap();
        let status = asked.status.unwrap_or_default();
        (status.phase, status.message)
    }

    /// The node of the PersistentVolume.
    pub(super) fn place(&self) -> String {
        let volume = self.server.with(|k| k.get("persistentvolumes", "pvc-1")).expect("a volume");
        control::node_of(&volume).to_owned()
    }

    /// What is on each node.
    pub(super) fn holds(&self, node: &str) -> Vec<Held> {
        self.nodes.lock().nodes[node].values().cloned().collect()
    }

    #[track_caller]
    pub(super) fn is_fine(&self, which: &str) {
        let cluster = self.nodes.lock();
        assert!(cluster.wrong.is_empty(), "{which}: {:?}", cluster.wrong);
        let wrong = self.server.with(|k| k.wrong.clone());
        assert!(wrong.is_empty(), "{which}: {wrong:?}");
    }

    /// Asserts that no rule was broken, and that the pod runs on this node with the volume.
    #[track_caller]
    pub(super) fn runs_on(&self, node: &str, which: &str) {
        self.is_fine(which);
        assert_eq!((self.place().as_str(), self.down), (node, 0), "{which}: {:?}", self.phase());
    }

    /// Asserts that the volume and its pod are on this node, and that nothing is left of a move.
    #[track_caller]
    pub(super) fn is_settled(&self, node: &str, which: &str) {
        self.is_fine(which);
        let phase = self.phase();
        assert_eq!((self.place(), phase), (node.to_owned(), None), "{which} {:?}", self.failures);
        let cluster = self.nodes.lock();
        for (name, held) in &cluster.nodes {
            let ids: Vec<&String> = held.keys().collect();
            let wanted: Vec<&String> = if name == node { vec![&self.id] } else { Vec::new() };
            assert_eq!(ids, wanted, "{which}: {name}");
        }
        assert!(cluster.cuts.is_empty(), "{which}: {:?}", cluster.cuts);
        let volume = self.server.with(|k| k.get("persistentvolumes", "pvc-1")).expect("a volume");
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete", "{which}");
        let held = &cluster.nodes[node][&self.id];
        assert!(!held.sealed && held.in_use && self.down == 0, "{which}: {held:?}, down {}", self.down);
    }
}

impl Controller {
    fn new(server: &Server, nodes: &FakeNodes, began: Instant) -> Controller {
        let (seen, writers) = Seen::new();
        let mut moves = Moves::new(DRIVER, server.client(), seen, Arc::new(nodes.clone()));
        moves.clock = Arc::new(move || Timestamp::UNIX_EPOCH + began.elapsed());
        Controller { moves, writers, due: HashMap::new() }
    }

    /// Looks at objects once. Returns what failed, and is tried again.
    async fn act(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        let seen = &self.moves.seen;
        for claim in seen.claims.state() {
            failures.extend(self.moves.send_strays_away(&claim).await.err());
            failures.extend(self.moves.stand_by(&claim).await.err());
        }
        for asked in seen.moves.state() {
            failures.extend(self.moves.attend(&asked).await.err());
        }
        for replica in seen.replicas.state() {
            let name = replica.name_any();
            let is_due = |(before, due): &(VolumeReplica, Instant)| {
                *due <= Instant::now() || !is_same_but_text(before, replica.as_ref())
            };
            if !self.due.get(&name).is_none_or(is_due) {
                continue;
            }
            let next = self.moves.follow(&replica).await;
            if let Ok(Some(again)) = &next {
                self.due.insert(name, (replica.as_ref().clone(), Instant::now() + *again));
            }
            failures.extend(next.err());
        }
        failures.iter().map(ToString::to_string).collect()
    }
}
