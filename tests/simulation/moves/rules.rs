//! The rules of moves, checked after every change of an object (docs/decisions/0022). A promotion may lose what was written after
//! the last pass, and only if somebody who may say so said that the node is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::life::phase;
use super::nodes;
use super::writer::{Log, Loss};
use crate::kubernetes::Kubernetes;

/// How long a controller may take to hear that a node is ready again, and for a request that it has sent before.
const LATE: Duration = Duration::from_secs(60);

/// What has been seen of a copy.
#[derive(Default)]
struct Seen {
    passes: u64,
    /// How many records were acknowledged when the VolumeReplica was last written.
    then: u64,
    /// How many of them the last pass has brought at least.
    has: u64,
    /// How many of them there were when the first copy began.
    first: u64,
    /// Whether somebody has said that the node of the volume is lost, since the copy was last well.
    is_lost: bool,
    stale: bool,
    reclaimed: bool,
    /// What the volume had when the copy was to take over its id.
    last: Option<Loss>,
    phase: String,
}

#[derive(Default)]
pub(super) struct Rules {
    logs: BTreeMap<String, Arc<Mutex<Log>>>,
    copies: BTreeMap<String, Seen>,
    /// Since when each Node is ready without a word that it is lost.
    ready: BTreeMap<String, Instant>,
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_promoted(replica: &Value) -> bool {
    replica["metadata"]["annotations"]["hostloop.csi.dev/promote"] == "true"
}

impl Rules {
    /// Remembers what the pods of a claim write.
    pub(super) fn knows(&mut self, claim: &str, log: &Arc<Mutex<Log>>) {
        self.logs.insert(claim.to_owned(), Arc::clone(log));
    }

    /// Looks at all changes after this version.
    pub(super) fn look(&mut self, kubernetes: &mut Kubernetes, version: u64) {
        let first = kubernetes.history.partition_point(|change| change.version <= version);
        let mut wrong = Vec::new();
        for change in &kubernetes.history[first..] {
            match change.key.0.as_str() {
                "nodes" => self.a_node(kubernetes, &change.key.2),
                "volumereplicas" if change.kind != "DELETED" => {
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
        let of_it = |replica: &&Value| replica["spec"]["sourceNode"] == *name;
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
        let seen = self.copies.entry(text(replica, "/metadata/uid").to_owned()).or_default();
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
        if passes > seen.passes {
            // The pass was asked for after the object was read that this one replaces.
            (seen.passes, seen.has) = (passes, seen.then);
        }
        seen.then = log.acknowledged;
        let phase = phase(replica).unwrap_or("Pending");
        let entered = seen.phase != phase;
        phase.clone_into(&mut seen.phase);
        match phase {
            "Copying" if entered => seen.first = log.acknowledged,
            "Following" if entered && seen.passes == 0 => seen.has = seen.first,
            "Completing" if entered => seen.last = Some(log.all()),
            _ => {}
        }
        let (stale, reclaimed) = (status["stale"] == true, status["reclaimed"] == true);
        let mut wrong = None;
        if stale && !seen.stale {
            log.loss = Some(Loss { least: seen.has, ..log.all() });
            let node = text(spec, "/sourceNode");
            let ready = self.ready.get(node).is_some_and(|since| since.elapsed() > LATE);
            if !seen.is_lost {
                wrong = Some(format!("rule 4: nobody has said that {node} is lost: {replica}"));
            } else if ready && !is_promoted(replica) {
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
}
