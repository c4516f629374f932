//! An administrator loses a node: it is switched off, or cut off while its pods run on. It comes back with its disks or with empty
//! ones, and meanwhile they say that it is lost, or do not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::MutexGuard;
use tokio::time::{Instant, sleep};

use super::life::{Claim, phase};
use super::objects::Standby;
use super::scenes::Scene;
use super::{Moves, nodes};
use crate::calls::Failure;
use crate::harness::{CONTROLLERS, DATA_DIR, DIRECTORIES_DIR};
use crate::kubernetes::control::node_of;
use crate::kubernetes::{Kubernetes, NAMESPACE, key};
use crate::machine::Listed;

/// The longest time for which a node is away, in milliseconds.
const LONGEST: u64 = 250_000;

/// Asks for a standby copy, on a claim.
const ASKED: &str = "hostloop.csi.dev/standby";

/// The phases in which the volume is about to change its node.
pub(super) const CUTOVER: [&str; 3] = ["CuttingOver", "Exchanging", "LastPass"];

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
    /// Whether the claim asks for no standby copy meanwhile.
    unasked: bool,
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
    /// Loses the node of the volume, or that of its copy, for a while; if asked for, when the volume is about to change its node.
    ///
    /// # Errors
    /// If something is wrong meanwhile.
    pub(super) async fn lose_a_node(&self, in_cutover: bool) -> Result<(), Failure> {
        let _one = match in_cutover {
            true => self.lock_in_cutover().await,
            false => {
                let one = self.moves.losing.lock().await;
                self.moves.pause(1, 20_000).await;
                one
            }
        };
        let Some(node) = self.node_to_lose(in_cutover) else { return Ok(()) };
        self.moves.outages.lock().unwrap().under_way += 1;
        match self.moves.below(5) {
            0 if self.scene == Scene::Any => self.cut_off(node).await,
            _ => self.switch_off(node, in_cutover).await,
        }
        let mut outages = self.moves.outages.lock().unwrap();
        (outages.under_way, outages.ended) = (outages.under_way - 1, Some(Instant::now()));
        drop(outages);
        self.check(Instant::now() + Duration::from_secs(1), "the node is back")
    }

    /// Waits until the cutover begins and no other node is being lost. Gives up after five minutes: the move may be refused.
    async fn lock_in_cutover(&self) -> MutexGuard<'_, ()> {
        let latest = Instant::now() + Duration::from_secs(300);
        let is = |kubernetes: &mut Kubernetes| {
            let all = self.replicas(kubernetes);
            all.iter().any(|replica| phase(replica).is_some_and(|phase| CUTOVER.contains(&phase)))
        };
        loop {
            while !self.moves.with(is) && Instant::now() < latest {
                self.moves.pause(10, 300).await;
            }
            let one = self.moves.losing.lock().await;
            // It may be over by now.
            if self.moves.with(is) || Instant::now() >= latest {
                return one;
            }
        }
    }

    /// Mostly the node of the volume.
    fn node_to_lose(&self, in_cutover: bool) -> Option<usize> {
        let of_volume = self.moves.below(if in_cutover { 2 } else { 5 }) > 0;
        let of_volume = self.scene.loses_volume().unwrap_or(of_volume);
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

    async fn switch_off(&self, node: usize, in_cutover: bool) {
        let machine = &self.cluster.machines[node];
        while machine.busy.swap(true, Ordering::Relaxed) {
            self.moves.pause(500, 2000).await;
        }
        let words =
            [Word::Nothing, Word::Taint, Word::Taint, Word::Deletion, Word::Deletion, Word::Promotion];
        let is_silent =
            in_cutover && self.moves.below(2) == 0 || matches!(self.scene, Scene::Lent | Scene::Cancelled);
        let empty = self.scene == Scene::Any
            && self.moves.below(2) == 0
            && self.moves.with(|kubernetes| is_spare(kubernetes, &machine.id));
        // A copy that nothing asks for takes no place, so the data have to be on the disks.
        let is_unasked = self.moves.below(2) == 0 || self.scene == Scene::Unasked;
        let unasked = self.order.standby == Standby::Claim && !empty && is_unasked;
        let guarded = self.moves.with(|kubernetes| self.is_guarded_on(kubernetes, &machine.id));
        let outage = Outage {
            node,
            word: if is_silent { Word::Nothing } else { words[self.moves.below(words.len())] },
            empty,
            listed: [Listed::Here, Listed::WithoutAddress, Listed::Nowhere][self.moves.below(3)],
            waits: self.moves.below(2) == 0,
            guarded: guarded && !unasked,
            unasked,
        };
        crate::log(|| format!("{} is switched off: {outage:?}", machine.id));
        machine.off.store(true, Ordering::Relaxed);
        self.cluster.kill_node(node, true);
        if outage.unasked {
            self.ask_for_a_copy(false);
        }
        self.say(&outage).await;
        if outage.unasked && self.moves.below(2) == 0 {
            self.ask_for_a_copy(true);
        }
        self.is_back(&outage).await;
        if outage.unasked {
            self.ask_for_a_copy(true);
        }
        machine.busy.store(false, Ordering::Relaxed);
    }

    /// The user of the claim asks for a standby copy, or for none.
    fn ask_for_a_copy(&self, asks: bool) {
        crate::log(|| format!("{} asks for a standby copy: {asks}", self.claim));
        self.moves.with(|kubernetes| {
            if kubernetes.get("persistentvolumeclaims", &self.claim).is_none() {
                return;
            }
            kubernetes.change("persistentvolumeclaims", &self.claim, |claim| {
                let annotations = claim["metadata"]["annotations"].as_object_mut().unwrap();
                match asks {
                    true => drop(annotations.insert(ASKED.to_owned(), json!("1"))),
                    false => drop(annotations.remove(ASKED)),
                }
            });
        });
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
        match self.scene {
            Scene::Any | Scene::Unasked => {}
            // Until Kubernetes calls the node not ready, and longer than a promotion would wait.
            Scene::Lent => return self.moves.pause(100_000, LONGEST).await,
            Scene::Cancelled => return self.goes_on_without_copy(name).await,
        }
        match (outage.waits && outage.word != Word::Nothing, outage.guarded) {
            (false, _) => self.moves.pause(1000, LONGEST).await,
            (true, false) => self.moves.pause(1000, 3 * LONGEST).await,
            (true, true) => return self.goes_on_without_volume(name).await,
        }
        self.goes_on_without_copy(name).await;
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
