//! A cluster in memory with claims, each used by a pod of a StatefulSet, and a controller that moves their volumes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop_fake_kubernetes::server::{answer, status};
use hostloop_fake_kubernetes::{Kubernetes, NAMESPACE, control, key};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::DRIVER;
use crate::cluster::moves::act::Moves;
use crate::cluster::moves::seen::Seen;
use crate::cluster::moves::tests::api::Server;
use crate::cluster::moves::tests::nodes::{FakeNodes, Held};
use crate::model::{NodeKey, VolumeId};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// Returns the code with which a call of a user is refused, by its method and path.
type Rule = Box<dyn Fn(&str) -> Option<u16> + Send>;

#[derive(Clone)]
pub(super) struct World {
    pub(super) server: Server,
    pub(super) nodes: FakeNodes,
    rule: Arc<Mutex<Rule>>,
    count: usize,
    /// The number of moments in which the controller records a request and does nothing for it.
    slow: usize,
}

/// A claim and its pod.
fn pair(number: usize) -> (String, String) {
    let claim = if number == 0 { "data".to_owned() } else { format!("data-{number}") };
    (claim, format!("db-{number}"))
}

fn id(number: usize) -> String {
    VolumeId::of_name(&NodeKey::of("node-1"), &format!("pvc-{number}")).to_string()
}

impl World {
    /// Returns a cluster with this number of claims, whose volumes and pods are on node-1.
    pub(super) fn of(count: usize, parameters: Value) -> World {
        let mut kubernetes = Kubernetes::default();
        kubernetes.budget = 100;
        let nodes = FakeNodes::default();
        for node in NODES {
            let labels = json!({"topology.hostloop.csi.dev/node": node});
            let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
            let object = json!({"metadata": {"name": node, "labels": labels}, "spec": {}, "status": ready});
            kubernetes.create(key("nodes", "", node), object);
            nodes.lock().nodes.insert(node.to_owned(), Default::default());
        }
        kubernetes.create(key("namespaces", "", NAMESPACE), json!({"metadata": {"name": NAMESPACE}}));
        let class = json!({"metadata": {"name": "local"}, "provisioner": DRIVER, "parameters": parameters});
        kubernetes.create(key("storageclasses", "", "local"), class);
        for number in 0..count {
            add_claim(&mut kubernetes, number);
            nodes
                .lock()
                .nodes
                .get_mut("node-1")
                .unwrap()
                .insert(id(number), Held { pool: "default".to_owned(), ..Held::default() });
        }
        let server = Server::new(kubernetes);
        let world = World { server, nodes, rule: Arc::new(Mutex::new(Box::new(|_| None))), count, slow: 0 };
        world.tick();
        world.tick();
        assert_eq!(world.nodes_of_pods(), vec!["node-1"; count]);
        world
    }

    /// Returns a cluster with one claim.
    pub(super) fn new() -> World {
        World::of(1, json!({}))
    }

    /// Makes the controller wait for this number of moments after it has recorded a request.
    pub(super) fn slowly(mut self, moments: usize) -> World {
        self.slow = moments;
        self
    }

    /// Refuses calls of users.
    pub(super) fn refuse(&self, rule: impl Fn(&str) -> Option<u16> + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    /// Returns the same cluster for a user to whom everything is answered.
    pub(super) fn without_rule(&self) -> World {
        World { rule: Arc::new(Mutex::new(Box::new(|_| None))), ..self.clone() }
    }

    /// Returns a client of a user.
    pub(super) fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
                let refused = (*world.rule.lock().unwrap())(&format!("{} {path}", parts.method));
                let (code, text) = match refused {
                    // So the API server answers if it knows no such kind.
                    Some(404) => (404, "404 page not found\n".to_owned()),
                    Some(code) => (code, status(code, "you may not do this").1.to_string()),
                    None => {
                        let (code, answer) =
                            world.server.with(|k| answer(k, &parts.method, path, query, &body));
                        (code, answer.to_string())
                    }
                };
                let body = Body::from(text.into_bytes());
                Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// Does what Kubernetes and the kubelets do in a moment.
    fn tick(&self) {
        self.server.with(|kubernetes| {
            kubernetes.offer();
            for (claim, pod) in (0..self.count).map(pair) {
                kubernetes.bind(&claim);
                kubernetes.protect(&claim);
                kubernetes.stateful_set(&pod, &claim);
                kubernetes.schedule(&pod, &claim, None);
            }
            kubernetes.protect_volumes();
        });
        (0..self.count).for_each(|number| self.kubelet(number));
    }

    fn kubelet(&self, number: usize) {
        let name = pair(number).1;
        let Some(pod) = self.server.with(|k| k.get("pods", &name)) else { return };
        let Some(node) = pod["spec"]["nodeName"].as_str() else { return };
        let is_deleted = !pod["metadata"]["deletionTimestamp"].is_null();
        let mut cluster = self.nodes.lock();
        if cluster.silent.contains(node) {
            // Kubernetes removes the pods of a node that is out of service.
            if is_deleted {
                self.server.with(|k| k.remove(&key("pods", NAMESPACE, &name)));
            }
            return;
        }
        let volume = cluster.nodes.get_mut(node).and_then(|held| held.get_mut(&id(number)));
        if let Some(volume) = volume.filter(|volume| is_deleted || !volume.sealed) {
            volume.in_use = !is_deleted;
            self.server.with(|k| match is_deleted {
                true => k.remove(&key("pods", NAMESPACE, &name)),
                false => k.change("pods", &name, |pod| pod["status"] = json!({"phase": "Running"})),
            });
        } else if is_deleted {
            self.server.with(|k| k.remove(&key("pods", NAMESPACE, &name)));
        }
    }

    /// Runs Kubernetes without a controller that moves volumes.
    pub(super) async fn run_kubernetes(&self) {
        loop {
            sleep(Duration::from_millis(200)).await;
            self.tick();
        }
    }

    /// Runs Kubernetes and a controller.
    pub(super) async fn run(mut self) {
        let spec = json!({"holderIdentity": "controller-1", "renewTime": k8s_openapi::jiff::Timestamp::now().to_string()});
        let lease =
            json!({"metadata": {"name": "hostloop.csi.dev-mover", "namespace": "hostloop"}, "spec": spec});
        let of_driver = key("leases", "hostloop", "hostloop.csi.dev-mover");
        self.server.with(|k| k.create(of_driver, lease));
        let (seen, mut writers) = Seen::new();
        let nodes = Arc::new(self.nodes.clone());
        let moves = Moves::new(DRIVER, self.server.client(), seen.clone(), nodes);
        loop {
            sleep(Duration::from_millis(200)).await;
            self.tick();
            self.server.show(&mut writers);
            for claim in seen.claims.state() {
                moves.send_strays_away(&claim).await.unwrap();
                moves.stand_by(&claim).await.unwrap();
            }
            for asked in seen.moves.state() {
                moves.attend(&asked).await.unwrap();
            }
            let replicas = seen.replicas.state();
            if !replicas.is_empty() && self.slow > 0 {
                self.slow -= 1;
                continue;
            }
            for replica in replicas {
                moves.follow(&replica).await.unwrap();
            }
        }
    }

    /// Returns the nodes of the pods that run.
    pub(super) fn nodes_of_pods(&self) -> Vec<String> {
        self.server.with(|k| {
            let running = k.all("pods").filter(|pod| pod["status"]["phase"] == "Running");
            running.map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned()).collect()
        })
    }

    /// Returns how many volumes and copies the nodes have.
    pub(super) fn volumes(&self) -> usize {
        self.nodes.lock().nodes.values().map(|held| held.len()).sum()
    }

    pub(super) fn cordon(&self, node: &str) {
        self.server.with(|k| k.change("nodes", node, |node| node["spec"]["unschedulable"] = json!(true)));
    }

    pub(super) fn delete_pod(&self, name: &str) {
        self.server.with(|k| k.mark_deleted(&key("pods", NAMESPACE, name)));
    }

    /// Returns the specs of the VolumeMoves by their names.
    pub(super) fn moves(&self) -> Vec<(String, Value)> {
        let name = |asked: &Value| asked["metadata"]["name"].as_str().unwrap().to_owned();
        self.server.with(|k| k.all("volumemoves").map(|asked| (name(asked), asked["spec"].clone())).collect())
    }

    pub(super) fn create_move(&self, name: &str, spec: Value) {
        let object = json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
        self.server.with(|k| k.create(key("volumemoves", NAMESPACE, name), object));
    }

    /// The node is lost with everything that runs there. Kubernetes has deleted the pods by force.
    pub(super) fn lose(&self, node: &str) {
        let mut cluster = self.nodes.lock();
        cluster.silent.insert(node.to_owned());
        cluster.nodes.get_mut(node).unwrap().values_mut().for_each(|volume| volume.in_use = false);
        self.server.with(|k| {
            k.change("nodes", node, |node| node["status"]["conditions"][0]["status"] = json!("Unknown"));
            (0..self.count).for_each(|number| k.remove(&key("pods", NAMESPACE, &pair(number).1)));
        });
    }

    pub(super) fn is_fine(&self) {
        assert_eq!(self.nodes.lock().wrong, Vec::<String>::new());
        assert_eq!(self.server.with(|k| k.wrong.clone()), Vec::<String>::new());
    }
}

fn add_claim(kubernetes: &mut Kubernetes, number: usize) {
    let (claim, volume) = (pair(number).0, format!("pvc-{number}"));
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": volume,
        "resources": {"requests": {"storage": "1Gi"}}});
    let object = json!({"metadata": {"name": claim, "namespace": NAMESPACE}, "spec": spec});
    let made = kubernetes.create(key("persistentvolumeclaims", NAMESPACE, &claim), object);
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": ["node-1"]}]}]}});
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
        "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem", "nodeAffinity": affinity,
        "csi": {"driver": DRIVER, "volumeHandle": id(number), "fsType": "xfs"},
        "claimRef": {"namespace": NAMESPACE, "name": claim, "uid": made["metadata"]["uid"]}});
    let annotations = json!({"pv.kubernetes.io/provisioned-by": DRIVER});
    let object = json!({"metadata": {"name": volume, "annotations": annotations}, "spec": spec});
    kubernetes.create(key("persistentvolumes", "", &volume), object);
    assert_eq!(control::node_of(&kubernetes.get("persistentvolumes", &volume).unwrap()), "node-1");
}
