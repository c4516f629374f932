//! What has to come while a node is off (rule 7).

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::life::{Claim, phase};
use super::outage::CUTOVER;
use crate::kubernetes::Kubernetes;

/// The longest time for which an administrator waits until pods go on without a node.
const LATEST: Duration = Duration::from_secs(900);

impl Claim {
    /// The pod of a volume whose node is lost runs with the copy (rule 7).
    pub(super) async fn goes_on_without_volume(&self, name: &str) {
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
    pub(super) async fn goes_on_without_copy(&self, name: &str) {
        let is_in = |replica: &Value, phases: &[&str]| {
            replica["spec"]["targetNode"] == *name
                && phase(replica).is_some_and(|phase| phases.contains(&phase))
        };
        let moves = |kubernetes: &mut Kubernetes| {
            let all = self.replicas(kubernetes);
            // The node of the copy may be that of the volume, without which no pod gets it.
            all.iter().any(|replica| {
                is_in(replica, &CUTOVER) && replica["spec"]["sourceNode"] != replica["spec"]["targetNode"]
            })
        };
        if !self.moves.with(moves) {
            return;
        }
        self.moves.with(|kubernetes| self.cancel(kubernetes));
        let fenced = |kubernetes: &mut Kubernetes| {
            let claim = kubernetes.get("persistentvolumeclaims", &self.claim)?;
            let phases = [CUTOVER.as_slice(), &["Abandoning"]].concat();
            let mut all = self.replicas(kubernetes).into_iter();
            let is_fenced =
                |replica: &Value| is_in(replica, &phases) && replica["status"]["maybeFenced"] == true;
            all.find(is_fenced).filter(|_| claim["metadata"]["deletionTimestamp"].is_null())
        };
        let began = Instant::now();
        while let Some(replica) = self.moves.with(fenced) {
            // Until all is well, something else may be in the way.
            let healed = self.moves.healed.lock().unwrap().map(|healed| healed.max(began));
            if healed.is_some_and(|healed| healed.elapsed() >= LATEST) {
                let wrong = format!("rule 7: giving up waits for the node of the copy: {replica}");
                return self.moves.with(|kubernetes| kubernetes.wrong.push(wrong));
            }
            self.moves.pause(500, 2000).await;
        }
    }

    /// Whether the volume is on this node, and has a copy that stands by on another one.
    pub(super) fn is_guarded_on(&self, kubernetes: &Kubernetes, node: &str) -> bool {
        let stands_by = |replica: &Value| {
            phase(replica) == Some("Standby")
                && replica["spec"]["sourceNode"] == *node
                && replica["metadata"]["annotations"]["hostloop.csi.dev/promote"].is_null()
        };
        // A claim that has no copy keeps the pod where it is.
        self.companion.is_none() && self.replicas(kubernetes).iter().any(stands_by)
    }
}
