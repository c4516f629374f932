//! An administrator loses a node: it is switched off, or cut off while its pods run on. It comes back with its disks or with empty
//! ones, and meanwhile they say that it is lost, or do not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::life::{Claim, phase};
use super::{Moves, nodes};
use crate::calls::Failure;
use crate::harness::{CONTROLLERS, DATA_DIR, DIRECTORIES_DIR};
use crate::kubernetes::control::node_of;
use crate::kubernetes::{Kubernetes, NAMESPACE, key};
use crate::machine::Listed;

/// The longest time for which a node is away, in milliseconds.
const LONGEST: u64 = 250_000;

/// The longest time for which an administrator waits until pods go on without a node.
const LATEST: Duration = Duration::from_secs(900);

/// The outages of all nodes.
#[derive(Default)]
pub(super) struct Outages {
    under_way: usize,
    ended: Option<Instant>,
    /// Nodes whose pods run, and whose kubelet and driver no controller reaches.
    cut_off: BTreeSet<usize>,
}

impl Outages {
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// When the last one has ended; now if one is under way.
    pub(super) fn ended(&self) -> Option<Instant> {
        if self.under_way > 0 { Some(Instant::now()) } else { self.ended }
    }
}

/// What an administrator says of a node that is off.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Word {
    Nothing,
    Taint,
    Deletion,
    /// The copy of this claim takes over.
    Promotion,
}

#[derive(Debug)]
struct Outage {
    node: usize,
    word: Word,
    /// Its disks are replaced meanwhile.
    empty: bool,
    listed: Listed,
    /// Whether it stays off until the pod of the claim runs elsewhere.
    waits: bool,
    /// Whether the volume of the claim exists, and has a standby copy.
    guarded: bool,
}

impl Moves {
    pub(super) fn is_cut_off(&self, node: usize) -> bool {
        self.outages.lock().unwrap().cut_off.contains(&node)
    }
}

/// Returns whether the claims can do without what is on the disks of a node.
fn is_spare(kubernetes: &Kubernetes, node: &str) -> bool {
    let stands_by = |replica: &Value| {
        replica["spec"]["purpose"] == "Standby"
            && phase(replica) == Some("Standby")
            && !replica["status"]["lastPass"].is_null()
    };
    let is_guarded = |volume: &Value| {
        let of_it = |replica: &&Value| {
            replica["spec"]["persistentVolume"]["name"] == volume["metadata"]["name"]
                && replica["spec"]["sourceNode"] == *node
        };
        kubernetes.all("volumereplicas").filter(of_it).any(stands_by)
    };
    let mut volumes = kubernetes.all("persistentvolumes").filter(|volume| node_of(volume) == node);
    let mut replicas = kubernetes.all("volumereplicas");
    volumes.all(is_guarded)
        && replicas.all(|replica| {
            let (spec, status) = (&replica["spec"], &replica["status"]);
            let is_copy = status["maybeCompleted"] != true
                && matches!(
                    phase(replica),
                    None | Some("Pending" | "Copying" | "Following" | "Ready" | "Standby")
                );
            let was_there = matches!(phase(replica), Some("Retiring" | "Left"));
            (spec["targetNode"] != *node || is_copy)
                && (spec["sourceNode"] != *node || stands_by(replica) || was_there)
        })
}

impl Claim {
    /// Loses the node of the volume, or that of its copy, for a while.
    ///
    /// # Errors
    /// If something is wrong meanwhile.
    pub(super) async fn lose_a_node(&self) -> Result<(), Failure> {
        let _one = self.moves.losing.lock().await;
        self.moves.pause(1, 20_000).await;
        let Some(node) = self.node_to_lose() else { return Ok(()) };
        self.moves.outages.lock().unwrap().under_way += 1;
        match self.moves.below(5) {
            0 => self.cut_off(node).await,
            _ => self.switch_off(node).await,
        }
        let mut outages = self.moves.outages.lock().unwrap();
        (outages.under_way, outages.ended) = (outages.under_way - 1, Some(Instant::now()));
        drop(outages);
        self.check(Instant::now() + Duration::from_secs(1), "the node is back")
    }

    /// Mostly the node of the volume.
    fn node_to_lose(&self) -> Option<usize> {
        let of_volume = self.moves.below(5) > 0;
        let name = self.moves.with(|kubernetes| {
            let name = match of_volume {
                true => node_of(&kubernetes.volume_of(&self.claim)?.0).to_owned(),
                false => self.replicas(kubernetes).first()?["spec"]["targetNode"].as_str()?.to_owned(),
            };
            Some(name)
        })?;
        self.cluster.machines.iter().position(|machine| machine.id == name)
    }

    /// No controller reaches the node, whose pods run on. No administrator says that it is lost.
    async fn cut_off(&self, node: usize) {
        let (net, id) = (&self.cluster.net, &self.cluster.machines[node].id);
        let time = Duration::from_millis(self.moves.between(20_000, LONGEST));
        crate::log(|| format!("{id} is cut off for {time:?}"));
        let part = |parted: bool| {
            for controller in 0..CONTROLLERS {
                net.part(id, &format!("c{controller}"), parted);
            }
        };
        self.moves.outages.lock().unwrap().cut_off.insert(node);
        part(true);
        sleep(time).await;
        part(false);
        self.moves.outages.lock().unwrap().cut_off.remove(&node);
    }

    async fn switch_off(&self, node: usize) {
        let machine = &self.cluster.machines[node];
        while machine.busy.swap(true, Ordering::Relaxed) {
            self.moves.pause(500, 2000).await;
        }
        let words =
            [Word::Nothing, Word::Taint, Word::Taint, Word::Deletion, Word::Deletion, Word::Promotion];
        let outage = Outage {
            node,
            word: words[self.moves.below(words.len())],
            empty: self.moves.below(2) == 0
                && self.moves.with(|kubernetes| is_spare(kubernetes, &machine.id)),
            listed: [Listed::Here, Listed::WithoutAddress, Listed::Nowhere][self.moves.below(3)],
            waits: self.moves.below(2) == 0,
            guarded: self.moves.with(|kubernetes| self.is_guarded_on(kubernetes, &machine.id)),
        };
        crate::log(|| format!("{} is switched off: {outage:?}", machine.id));
        machine.off.store(true, Ordering::Relaxed);
        self.cluster.kill_node(node, true);
        self.say(&outage).await;
        self.is_back(&outage).await;
        machine.busy.store(false, Ordering::Relaxed);
    }

    /// What the administrator says while the node is off.
    async fn say(&self, outage: &Outage) {
        let name = &self.cluster.machines[outage.node].id;
        self.moves.pause(1, 30_000).await;
        match outage.word {
            Word::Nothing => {}
            Word::Taint => self.moves.with(|kubernetes| nodes::taint(kubernetes, name, true)),
            Word::Deletion => self.moves.with(|kubernetes| kubernetes.remove(&key("nodes", "", name))),
            Word::Promotion => {
                let is_ready = |kubernetes: &mut Kubernetes| {
                    kubernetes.get("nodes", name).is_some_and(|node| nodes::is_ready(&node))
                };
                while self.moves.with(is_ready) {
                    self.moves.pause(500, 2000).await;
                }
                self.moves.with(|kubernetes| self.promote(kubernetes, name));
            }
        }
        // A Node that is deleted takes the pod of the driver with it.
        if outage.word != Word::Nothing {
            self.list(outage.node, outage.listed);
        }
        match (outage.waits && outage.word != Word::Nothing, outage.guarded) {
            (false, _) => self.moves.pause(1000, LONGEST).await,
            (true, false) => self.moves.pause(1000, 3 * LONGEST).await,
            (true, true) => return self.goes_on_without_volume(name).await,
        }
        self.goes_on_without_copy(name).await;
    }

    /// The pod of a volume whose node is lost runs with the copy (rule 7).
    async fn goes_on_without_volume(&self, name: &str) {
        let (began, healed) = (Instant::now(), self.moves.healed.lock().unwrap().is_some());
        let latest = began + LATEST;
        let runs = |kubernetes: &mut Kubernetes| {
            let pod = kubernetes.get("pods", &self.pod).unwrap_or_default();
            pod["status"]["phase"] == "Running" && pod["spec"]["nodeName"] != *name
        };
        while !self.moves.with(runs) && Instant::now() < latest {
            self.moves.pause(500, 2000).await;
        }
        let is_cordoned = |node: &Value| node["spec"]["unschedulable"] == true;
        let cordoned = self.moves.with(|kubernetes| kubernetes.all("nodes").any(is_cordoned));
        if healed && !cordoned && Instant::now() >= latest {
            let copies = self.moves.with(|kubernetes| self.replicas(kubernetes));
            let wrong = format!("rule 7: {} waits for its lost node: {copies:?}", self.claim);
            self.moves.with(|kubernetes| kubernetes.wrong.push(wrong));
        }
    }

    /// An administrator cancels a move to a node that is off. Giving it up does not wait for that node (rule 7).
    async fn goes_on_without_copy(&self, name: &str) {
        let is_in = |replica: &Value, phases: &[&str]| {
            replica["spec"]["targetNode"] == *name
                && phase(replica).is_some_and(|phase| phases.contains(&phase))
        };
        let moves = |kubernetes: &mut Kubernetes| {
            let all = self.replicas(kubernetes);
            all.iter().any(|replica| is_in(replica, &["CuttingOver", "Exchanging", "LastPass"]))
        };
        if !self.moves.with(moves) {
            return;
        }
        let healed = self.moves.healed.lock().unwrap().is_some();
        self.moves.with(|kubernetes| self.cancel(kubernetes));
        let fenced = |kubernetes: &mut Kubernetes| {
            let claim = kubernetes.get("persistentvolumeclaims", &self.claim)?;
            let phases = ["CuttingOver", "Exchanging", "LastPass", "Abandoning"];
            let mut all = self.replicas(kubernetes).into_iter();
            let is_fenced =
                |replica: &Value| is_in(replica, &phases) && replica["status"]["maybeFenced"] == true;
            all.find(is_fenced).filter(|_| claim["metadata"]["deletionTimestamp"].is_null())
        };
        let latest = Instant::now() + LATEST;
        while let Some(replica) = self.moves.with(fenced) {
            if Instant::now() >= latest {
                let wrong = format!("rule 7: giving up waits for the node of the copy: {replica}");
                return self.moves.with(|kubernetes| {
                    if healed {
                        kubernetes.wrong.push(wrong)
                    }
                });
            }
            self.moves.pause(500, 2000).await;
        }
    }

    /// Whether the volume is on this node, and has a copy that stands by on another one.
    fn is_guarded_on(&self, kubernetes: &Kubernetes, node: &str) -> bool {
        let stands_by = |replica: &Value| {
            phase(replica) == Some("Standby")
                && replica["spec"]["sourceNode"] == *node
                && replica["metadata"]["annotations"]["hostloop.csi.dev/promote"].is_null()
        };
        // A claim that has no copy keeps the pod where it is.
        self.companion.is_none() && self.replicas(kubernetes).iter().any(stands_by)
    }

    /// The copies of this claim take over. The pod on the node is deleted by force.
    fn promote(&self, kubernetes: &mut Kubernetes, node: &str) {
        if kubernetes.get("pods", &self.pod).is_some_and(|pod| pod["spec"]["nodeName"] == *node) {
            kubernetes.remove(&key("pods", NAMESPACE, &self.pod));
        }
        for replica in self.replicas(kubernetes) {
            promote(kubernetes, &replica);
        }
    }

    fn list(&self, node: usize, listed: Listed) {
        *self.cluster.machines[node].listed.lock().unwrap() = listed;
        for controller in 0..CONTROLLERS {
            let (late, cluster) =
                (Duration::from_millis(self.moves.between(0, 15_000)), Arc::clone(&self.cluster));
            tokio::spawn(async move {
                sleep(late).await;
                cluster.tell(controller);
            });
        }
    }

    /// The node is switched on.
    async fn is_back(&self, outage: &Outage) {
        let machine = &self.cluster.machines[outage.node];
        crate::log(|| format!("{} is switched on, empty: {}", machine.id, outage.empty));
        if outage.empty {
            // The administrator gives up what was on the disks, or the driver would not start (docs/configuration.md).
            for anchor in
                machine.kernel.tree("/var/lib").iter().filter(|file| file.ends_with(".hostloop-anchor"))
            {
                machine.kernel.remove_file(anchor).expect("an anchor");
            }
            machine.kernel.replace_disk(DATA_DIR);
            machine.kernel.replace_disk(DIRECTORIES_DIR);
        }
        machine.off.store(false, Ordering::Relaxed);
        self.cluster.start_node(outage.node, self.moves.below(3) == 0).await;
        self.list(outage.node, Listed::Here);
        if outage.empty {
            self.go_on_without(&machine.id).await;
        }
        self.moves.pause(1, 60_000).await;
        self.moves.with(|kubernetes| nodes::taint(kubernetes, &machine.id, false));
    }

    /// The volumes of a node whose disks are empty go on with their copies.
    async fn go_on_without(&self, node: &str) {
        self.moves.pause(1, 30_000).await;
        let latest = Instant::now() + Duration::from_secs(600);
        // One in a phase of a later release, or without a status, is needed when that is over.
        let is_needed = |replica: &Value| {
            let after = ["Completing", "Retiring", "Left", "Abandoning", "Stranded"];
            replica["spec"]["sourceNode"] == *node
                && !phase(replica).is_some_and(|phase| after.contains(&phase))
        };
        while Instant::now() < latest {
            let all = self.moves.with(|kubernetes| {
                let all: Vec<Value> =
                    kubernetes.all("volumereplicas").filter(|replica| is_needed(replica)).cloned().collect();
                all.iter().for_each(|replica| promote(kubernetes, replica));
                let pods: Vec<Value> =
                    kubernetes.all("pods").filter(|pod| pod["spec"]["nodeName"] == *node).cloned().collect();
                let ran = pods.iter().filter(|pod| pod["status"]["phase"] == "Running");
                ran.for_each(|pod| {
                    kubernetes.mark_deleted(&key(
                        "pods",
                        NAMESPACE,
                        pod["metadata"]["name"].as_str().unwrap(),
                    ));
                });
                all.len()
            });
            if all == 0 {
                return;
            }
            self.moves.pause(1000, 5000).await;
        }
    }
}

fn promote(kubernetes: &mut Kubernetes, replica: &Value) {
    let name = replica["metadata"]["name"].as_str().unwrap();
    let asked = json!("true");
    if replica["metadata"]["annotations"]["hostloop.csi.dev/promote"] != asked {
        crate::log(|| format!("VolumeReplica {name} is to be promoted"));
        kubernetes.change("volumereplicas", name, |replica| {
            replica["metadata"]["annotations"]["hostloop.csi.dev/promote"] = asked;
        });
    }
}
