//! The rules of moves, checked after every change of an object (docs/decisions/0022). A promotion may lose what was written after
//! the last pass, and only if an administrator said that the node is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop::model::MoveLimits;
use serde_json::Value;
use tokio::time::Instant;

use super::life::phase;
use super::writer::{Log, Loss};
use super::{nodes, tenants};
use crate::kubernetes::control::node_of;
use crate::kubernetes::{Kubernetes, NAMESPACE, key};

/// How long a controller may take to hear that a node is ready again, and for a request that it has sent before.
const LATE: Duration = Duration::from_secs(60);

/// The longest time for which pods may wait in a phase if the nodes that they need are ready.
const LONGEST: Duration = Duration::from_secs(300);

/// How many first copies a node sends or receives at a time (`queue.rs`).
const FIRST_COPIES: usize = 2;

/// What has been seen of a copy.
#[derive(Default)]
pub(super) struct Seen {
    /// As it was last written, and when that was.
    pub(super) object: Value,
    at: Option<Instant>,
    /// When it last came to each of its phases.
    pub(super) entered: BTreeMap<String, Instant>,
    passes: u64,
    /// How many records were acknowledged when the VolumeReplica was last written.
    then: u64,
    /// How many of them the last pass has brought at least.
    has: u64,
    /// How many of them there were when the first copy began.
    first: Option<u64>,
    /// Whether an administrator has said that the node of the volume is lost, since the copy was last well.
    is_lost: bool,
    /// Whether an administrator has said that the node of the copy is lost.
    pub(super) target_is_lost: bool,
    stale: bool,
    pub(super) was_stale: bool,
    pub(super) reclaimed: bool,
    /// What the volume had when the copy was to take over its id.
    last: Option<Loss>,
    pub(super) phase: String,
}

#[derive(Default)]
pub(super) struct Rules {
    logs: BTreeMap<String, Arc<Mutex<Log>>>,
    /// By the uid of the VolumeReplica; also those that are gone.
    pub(super) copies: BTreeMap<String, Seen>,
    /// When a node last said that it has a generation of a volume; with the highest number, that the volume was deleted.
    pub(super) said: BTreeMap<(String, String, u64), Instant>,
    /// When the API server was last asked what it would say of a change of a PersistentVolume.
    pub(super) trials: BTreeMap<String, Instant>,
    /// Since when each StorageClass is missing.
    missing: BTreeMap<String, Instant>,
    limits: MoveLimits,
    /// Whether the request that is being carried out was sent long ago.
    pub(super) is_late: bool,
    /// Since when each Node is ready without a word that it is lost.
    ready: BTreeMap<String, Instant>,
}

pub(super) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_promoted(replica: &Value) -> bool {
    replica["metadata"]["annotations"]["hostloop.csi.dev/promote"] == "true"
}

impl Rules {
    pub(super) fn new(limits: MoveLimits) -> Rules {
        Rules { limits, ..Rules::default() }
    }

    /// Remembers what the pods of a claim write.
    pub(super) fn knows(&mut self, claim: &str, log: &Arc<Mutex<Log>>) {
        self.logs.insert(claim.to_owned(), Arc::clone(log));
    }

    /// Looks at all changes after this version.
    pub(super) fn look(&mut self, kubernetes: &mut Kubernetes, version: u64) {
        let first = kubernetes.history.partition_point(|change| change.version <= version);
        let mut wrong = Vec::new();
        if tenants::is_harmed(kubernetes) {
            wrong.push("rule 1: the PersistentVolume of another tenant has changed".to_owned());
        }
        for change in &kubernetes.history[first..] {
            match change.key.0.as_str() {
                "nodes" => self.a_node(kubernetes, &change.key.2),
                "storageclasses" if change.kind == "DELETED" => {
                    self.missing.insert(change.key.2.clone(), Instant::now());
                }
                "storageclasses" => drop(self.missing.remove(&change.key.2)),
                "volumereplicas" if change.kind != "DELETED" => {
                    if change.kind == "ADDED" {
                        wrong.extend(self.a_new_copy(kubernetes, &change.object).err());
                    }
                    wrong.extend(self.a_copy(kubernetes, &change.object));
                }
                _ => {}
            }
        }
        kubernetes.wrong.extend(wrong);
    }

    fn a_node(&mut self, kubernetes: &Kubernetes, name: &str) {
        let node = kubernetes.get("nodes", name);
        match node.is_some_and(|node| nodes::is_ready(&node) && !nodes::is_out_of_service(&node)) {
            true => drop(self.ready.entry(name.to_owned()).or_insert_with(Instant::now)),
            false => drop(self.ready.remove(name)),
        }
        let of_it = |replica: &&Value| {
            replica["spec"]["sourceNode"] == *name || replica["spec"]["targetNode"] == *name
        };
        for replica in kubernetes.all("volumereplicas").filter(of_it) {
            self.heed(kubernetes, replica);
        }
    }

    /// Notes whether the node of a volume is said to be lost.
    fn heed(&mut self, kubernetes: &Kubernetes, replica: &Value) {
        let name = text(replica, "/spec/sourceNode");
        let said = kubernetes.get("nodes", name).is_none_or(|node| nodes::is_out_of_service(&node));
        let is_well = self.ready.contains_key(name);
        let begins =
            matches!(phase(replica), None | Some("Pending" | "Copying" | "Following" | "Ready" | "Standby"));
        let target = kubernetes.get("nodes", text(replica, "/spec/targetNode"));
        let seen = self.copies.entry(text(replica, "/metadata/uid").to_owned()).or_default();
        seen.target_is_lost |= phase(replica) == Some("Completing")
            && target.is_none_or(|target| nodes::is_out_of_service(&target));
        if said || is_promoted(replica) {
            seen.is_lost = true;
        } else if is_well && begins {
            seen.is_lost = false;
        }
    }

    /// A VolumeReplica was written.
    fn a_copy(&mut self, kubernetes: &Kubernetes, replica: &Value) -> Option<String> {
        self.heed(kubernetes, replica);
        let (spec, status) = (&replica["spec"], &replica["status"]);
        let log = self.logs.get(text(spec, "/claim/name"))?;
        let mut log = log.lock().unwrap();
        let seen = self.copies.get_mut(text(replica, "/metadata/uid"))?;
        let passes = status["passes"].as_u64().unwrap_or_default();
        if passes == 0 {
            seen.passes = 0;
        }
        if passes > seen.passes {
            // The pass was asked for after the object was read that this one replaces.
            (seen.passes, seen.has) = (passes, seen.then);
        }
        seen.then = log.acknowledged;
        let phase = phase(replica).unwrap_or("Pending");
        let entered = seen.phase != phase;
        let mut wrong = if entered {
            seen.enters(phase, replica, (&self.trials, &self.missing), kubernetes)
        } else {
            None
        };
        (seen.object, seen.at) = (replica.clone(), Some(Instant::now()));
        match phase {
            "Copying" if entered => {
                // If it failed before, what was made then may be the copy.
                seen.first.get_or_insert(log.acknowledged);
                wrong = wrong.or_else(|| crowded(kubernetes, replica).filter(|_| !self.is_late));
            }
            // After a lost status, the copy is the earlier one.
            "Following" if entered && seen.has == 0 => seen.has = seen.first.unwrap_or_default(),
            "Completing" if entered => seen.last = Some(log.all()),
            _ => {}
        }
        let (stale, reclaimed) = (status["stale"] == true, status["reclaimed"] == true);
        if stale && !seen.stale {
            seen.was_stale = true;
            log.loss = Some(Loss { least: seen.has, ..log.all() });
            let node = text(spec, "/sourceNode");
            let ready = self.ready.get(node).is_some_and(|since| since.elapsed() > LATE);
            // The volume was deleted before it had a copy, and its node is asked once more what it has left: nothing is given up.
            let is_deleted = seen.first.is_none() && claim_is_gone(kubernetes, spec);
            if !seen.is_lost && !is_deleted {
                wrong = Some(format!("rule 4: nobody has said that {node} is lost: {replica}"));
            } else if ready && !is_deleted && !is_promoted(replica) {
                wrong = Some(format!("rule 4: {node} is ready, and is given up: {replica}"));
            }
        }
        if seen.stale && !stale {
            // The copy had not all of one cut.
            log.loss = None;
        }
        if reclaimed && !seen.reclaimed {
            log.loss = seen.last.clone();
        }
        (seen.stale, seen.reclaimed) = (stale, reclaimed);
        wrong
    }

    /// Rules 7 and 10: pods wait for nothing but the nodes that they need, and for no first copy.
    pub(super) fn stuck(&self, kubernetes: &Kubernetes, well_since: Instant) -> Option<String> {
        let long = |since: &Instant| since.elapsed() > LONGEST;
        let is_well = |node: &str| self.ready.get(node).is_some_and(long);
        let stuck = |replica: &&Value| {
            let seen = self.copies.get(text(replica, "/metadata/uid"));
            let Some(seen) = seen.filter(|seen| seen.entered.get(&seen.phase).is_some_and(long)) else {
                return false;
            };
            let source = is_well(text(replica, "/spec/sourceNode"));
            match seen.phase.as_str() {
                "Exchanging" | "LastPass" | "Completing" => {
                    source && is_well(text(replica, "/spec/targetNode"))
                }
                "Abandoning" => source && replica["status"]["maybeFenced"] == true,
                _ => false,
            }
        };
        let found = kubernetes.all("volumereplicas").find(stuck).filter(|_| long(&well_since))?;
        Some(format!("rules 7 and 10: pods wait for this: {found}"))
    }

    /// Rule 1: what a copy is of, its controller has found in the claim and its PersistentVolume, which name each other.
    fn a_new_copy(&self, kubernetes: &Kubernetes, replica: &Value) -> Result<(), String> {
        let spec = &replica["spec"];
        let (namespace, name) = (text(spec, "/claim/namespace"), text(spec, "/claim/name"));
        let claim = kubernetes.objects.get(&key("persistentvolumeclaims", namespace, name));
        let volume = kubernetes.get("persistentvolumes", text(spec, "/persistentVolume/name"));
        let (Some(claim), Some(volume)) = (claim, volume) else {
            return if self.is_late { Ok(()) } else { Err(format!("rule 6: it is of nothing: {replica}")) };
        };
        let uid = &spec["claim"]["uid"];
        let is_its = claim["metadata"]["uid"] == *uid
            && volume["spec"]["claimRef"]["uid"] == *uid
            && volume["spec"]["csi"]["volumeHandle"] == spec["volumeId"]
            && namespace == NAMESPACE;
        if !is_its && !self.is_late {
            return Err(format!("rule 1: a copy of what is not the claim's: {replica}"));
        }
        // After the move, the data of a copy are the volume's, and what is left is on the earlier node.
        let on = |replica: &&Value| {
            let is_past =
                matches!(phase(replica), Some("Retiring" | "Left")) && replica["status"]["reclaimed"] != true;
            replica["spec"][if is_past { "sourceNode" } else { "targetNode" }] == spec["targetNode"]
        };
        let (all, there) =
            (kubernetes.all("volumereplicas").count(), kubernetes.all("volumereplicas").filter(on).count());
        match self.is_late || all <= self.limits.all && there <= self.limits.node {
            true => Ok(()),
            false => Err(format!("limits: there are {all} copies, {there} of them on one node: {replica}")),
        }
    }
}

/// Reports whether the claim of a VolumeReplica was deleted. There may be another one of its name.
fn claim_is_gone(kubernetes: &Kubernetes, spec: &Value) -> bool {
    let claim = kubernetes.get("persistentvolumeclaims", text(spec, "/claim/name"));
    claim.is_none_or(|claim| text(&claim, "/metadata/uid") != text(spec, "/claim/uid"))
}

/// Rule 10: a node has room for the last passes beside its first copies.
fn crowded(kubernetes: &Kubernetes, replica: &Value) -> Option<String> {
    let ends = |replica: &Value| {
        ["sourceNode", "targetNode"].map(|end| text(replica, &format!("/spec/{end}")).to_owned())
    };
    let count = |node: &String| {
        let copies = kubernetes.all("volumereplicas").filter(|other| phase(other) == Some("Copying"));
        copies.filter(|other| ends(other).contains(node)).count()
    };
    let node = ends(replica).into_iter().find(|node| count(node) > FIRST_COPIES)?;
    Some(format!("rule 10: {} first copies at {node}: {replica}", count(&node)))
}

/// Returns a claim of the same pods whose volume is not on the node of the copy, and does not go there.
fn left_behind(kubernetes: &Kubernetes, replica: &Value) -> Option<String> {
    let (claim, target) = (text(replica, "/spec/claim/name"), &replica["spec"]["targetNode"]);
    let used = |pod: &Value| -> Vec<String> {
        let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        volumes.iter().map(|used| text(used, "/persistentVolumeClaim/claimName").to_owned()).collect()
    };
    let pods = kubernetes.all("pods").map(used).filter(|claims| claims.iter().any(|used| used == claim));
    pods.flatten().filter(|other| other != claim).find(|other| {
        let is_there = kubernetes.volume_of(other).is_none_or(|(volume, _)| *target == node_of(&volume));
        let goes = |copy: &Value| {
            copy["spec"]["claim"]["name"] == **other
                && copy["spec"]["targetNode"] == *target
                && !matches!(phase(copy), None | Some("Pending" | "Copying" | "Following"))
        };
        !is_there && !kubernetes.all("volumereplicas").any(goes)
    })
}

impl Seen {
    /// It comes to a phase.
    fn enters(
        &mut self,
        phase: &str,
        replica: &Value,
        (trials, missing): (&BTreeMap<String, Instant>, &BTreeMap<String, Instant>),
        kubernetes: &Kubernetes,
    ) -> Option<String> {
        phase.clone_into(&mut self.phase);
        self.entered.insert(phase.to_owned(), Instant::now());
        let volume = text(replica, "/spec/persistentVolume/name");
        // The trial came after the object was read that this one replaces.
        let was_tried = trials.get(volume).zip(self.at).is_some_and(|(tried, at)| *tried >= at);
        // A move within a node changes no PersistentVolume.
        let is_within = replica["spec"]["sourceNode"] == replica["spec"]["targetNode"];
        if phase == "CuttingOver" && !was_tried && !is_within {
            return Some(format!("rule 8: a cutover without a trial: {replica}"));
        }
        if phase == "CuttingOver"
            && let Some(other) = left_behind(kubernetes, replica)
        {
            return Some(format!("rule 9: {other} stays behind: {replica}"));
        }
        let claim =
            kubernetes.get("persistentvolumeclaims", text(replica, "/spec/claim/name")).unwrap_or_default();
        let class = missing.get(text(&claim, "/spec/storageClassName"));
        let is_missing = class.is_some_and(|since| since.elapsed() > Duration::from_secs(10));
        let message = text(replica, "/status/message");
        (phase == "Abandoning" && is_missing && message.contains("nothing asks for a standby copy"))
            .then(|| format!("rule 6: given up without its class: {replica}"))
    }
}
