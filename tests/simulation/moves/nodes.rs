//! What Kubernetes does with Node objects and with the pods of nodes that are away: kubelet's reports, the controller of node
//! lifecycles with its evictions, and the garbage collector of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Moves, objects};
use crate::harness::Cluster;
use crate::kubernetes::control::node_of;
use crate::kubernetes::{Key, Kubernetes, NAMESPACE, key};

/// On a Node: an administrator says that it is shut down.
pub(super) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// After so long without a report, a node is not ready any longer (node-monitor-grace-period).
const GRACE: Duration = Duration::from_secs(40);
/// After so long more, its pods are deleted (tolerationSeconds of node.kubernetes.io/unreachable).
const TOLERATED: Duration = Duration::from_secs(300);

/// Since when each node has not reported.
pub(super) type Away = BTreeMap<String, Instant>;

pub(super) fn is_ready(node: &Value) -> bool {
    node["status"]["conditions"][0]["status"] == "True"
}

pub(super) fn is_out_of_service(node: &Value) -> bool {
    node["spec"]["taints"]
        .as_array()
        .is_some_and(|all| all.iter().any(|taint| taint["key"] == OUT_OF_SERVICE))
}

/// A look at all nodes.
pub(super) fn look(moves: &Moves, cluster: &Cluster, away: &mut Away) {
    for (number, machine) in cluster.machines.iter().enumerate() {
        let name = &machine.id;
        if machine.is_off() || moves.is_cut_off(number) || cluster.net.is_frozen(name) {
            away.entry(name.clone()).or_insert_with(Instant::now);
        } else {
            away.remove(name);
        }
        let since = away.get(name).map(|since| since.elapsed());
        moves.with(|kubernetes| {
            report(kubernetes, name, since);
            collect(kubernetes, name, since);
        });
    }
}

impl Moves {
    /// Nothing waits for a node that may never come back.
    pub(super) fn goes_on(&self) {
        let Some(healed) = *self.healed.lock().unwrap() else { return };
        self.with(|kubernetes| {
            let stuck = self.rules.lock().unwrap().stuck(kubernetes, healed);
            kubernetes.wrong.extend(stuck);
        });
    }

    /// No volume is used on two nodes at once.
    pub(super) fn is_served_once(&self, cluster: &Cluster) {
        let pods: Vec<String> =
            self.known.lock().unwrap().iter().map(|known| format!("/pods/{}-uid-", known.pod)).collect();
        let mounts = cluster.machines.iter().map(|machine| (&machine.id, machine.kernel.mounts()));
        let mut places: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
        for (node, mounts) in mounts {
            let is_used = |pod: &&String| {
                mounts.iter().any(|mount| mount.target.to_string_lossy().contains(pod.as_str()))
            };
            for pod in pods.iter().filter(is_used) {
                places.entry(pod).or_default().insert(node);
            }
        }
        for (pod, nodes) in places.iter().filter(|(_, nodes)| nodes.len() > 1) {
            self.with(|kubernetes| kubernetes.wrong.push(format!("{pod} has its volume on {nodes:?}")));
        }
    }
}

/// kubelet reports, or the controller notices that it does not.
fn report(kubernetes: &mut Kubernetes, name: &str, away: Option<Duration>) {
    let Some(node) = kubernetes.get("nodes", name) else {
        // It registers itself when it starts.
        if away.is_none() {
            objects::node(kubernetes, name);
        }
        return;
    };
    let status = match away {
        None => "True",
        Some(time) if time >= GRACE => "Unknown",
        Some(_) => return,
    };
    if node["status"] != objects::condition(status) {
        crate::log(|| format!("node {name} is ready: {status}"));
        kubernetes.change("nodes", name, |node| node["status"] = objects::condition(status));
    }
}

/// Deletes the pods of a node that is lost or away for long.
fn collect(kubernetes: &mut Kubernetes, name: &str, away: Option<Duration>) {
    let node = kubernetes.get("nodes", name);
    let on_it = |pod: &&Value| pod["spec"]["nodeName"] == *name;
    let pods: Vec<Key> = kubernetes
        .all("pods")
        .filter(on_it)
        .map(|pod| key("pods", NAMESPACE, pod["metadata"]["name"].as_str().unwrap()))
        .collect();
    let is_lost = |node: &Value| is_out_of_service(node) && !is_ready(node);
    for pod in pods {
        match &node {
            None => kubernetes.remove(&pod),
            Some(node) if is_lost(node) => kubernetes.remove(&pod),
            Some(node) if is_out_of_service(node) => kubernetes.mark_deleted(&pod),
            Some(_) if away.is_some_and(|time| time >= GRACE + TOLERATED) => kubernetes.mark_deleted(&pod),
            Some(_) => {}
        }
    }
}

/// The node of the volume of a claim, if the scheduler puts no pods of this claim and of the other one there.
pub(super) fn avoided(kubernetes: &Kubernetes, claim: &str, other: Option<&str>) -> Option<String> {
    let (volume, _) = kubernetes.volume_of(claim)?;
    let name = node_of(&volume).to_owned();
    let is_there = |other| kubernetes.volume_of(other).is_some_and(|(volume, _)| node_of(&volume) == name);
    if !other.is_none_or(is_there) {
        return Some(name);
    }
    let takes_pods = |node: Value| is_ready(&node) && !is_out_of_service(&node);
    (!kubernetes.get("nodes", &name).is_some_and(takes_pods)).then_some(name)
}

/// An administrator says that a node is shut down, or takes that back.
pub(super) fn taint(kubernetes: &mut Kubernetes, name: &str, lost: bool) {
    if kubernetes.get("nodes", name).is_some() {
        let taints = if lost { json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]) } else { json!([]) };
        kubernetes.change("nodes", name, |node| node["spec"]["taints"] = taints);
    }
}
