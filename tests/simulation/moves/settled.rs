//! What has to be true of a claim some time after all is well.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::PATIENCE;
use super::life::{Claim, phase};
use crate::calls::Failure;
use crate::kubernetes::Kubernetes;
use crate::kubernetes::control::{PROTECTION, node_of};

impl Claim {
    /// The VolumeReplicas of the claim.
    pub(super) fn replicas(&self, kubernetes: &Kubernetes) -> Vec<Value> {
        let is_its = |replica: &&Value| {
            let claim = &replica["spec"]["claim"]["name"];
            *claim == *self.claim || self.companion.as_ref().is_some_and(|companion| *claim == **companion)
        };
        kubernetes.all("volumereplicas").filter(is_its).cloned().collect()
    }

    /// Whether a copy is one that stands by, or is about to.
    fn stays(&self, replica: &Value) -> bool {
        let begins =
            matches!(phase(replica), None | Some("Pending" | "Copying" | "Following" | "Ready" | "Standby"));
        self.order.stands_by() && replica["spec"]["purpose"] == "Standby" && begins
    }

    pub(super) fn runs(&self, kubernetes: &Kubernetes) -> Result<(), String> {
        let pod = kubernetes.get("pods", &self.pod).ok_or("there is no pod")?;
        match pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null() {
            true => Ok(()),
            false => Err(format!("the pod is {pod}")),
        }
    }

    /// Whether the claim has one volume, and nothing is left of a move.
    pub(super) fn is_settled(&self, kubernetes: &Kubernetes) -> Result<(), String> {
        let claim = kubernetes.get("persistentvolumeclaims", &self.claim).ok_or("there is no claim")?;
        let of_claim = |volume: &&Value| volume["spec"]["claimRef"]["name"] == *self.claim;
        let volumes: Vec<&Value> = kubernetes.all("persistentvolumes").filter(of_claim).collect();
        if let Some(companion) = &self.companion {
            let node = kubernetes.volume_of(companion).map(|(volume, _)| node_of(&volume).to_owned());
            if node.as_deref() != volumes.first().map(|volume| node_of(volume)) {
                return Err(format!("rule 9: {companion} is on {node:?}, {} on {volumes:?}", self.claim));
            }
        }
        let [volume] = volumes.as_slice() else { return Err(format!("it has {} volumes", volumes.len())) };
        let replicas = self.replicas(kubernetes);
        if replicas.iter().any(|replica| !self.stays(replica)) {
            return Err(format!("it has the copies {replicas:?}"));
        }
        if volume["spec"]["persistentVolumeReclaimPolicy"] != "Delete"
            || claim["metadata"]["finalizers"] != json!([PROTECTION])
            || claim["status"]["phase"] != "Bound"
            || !claim["metadata"]["deletionTimestamp"].is_null()
            || volume["spec"]["claimRef"]["uid"] != claim["metadata"]["uid"]
        {
            return Err(format!("it is {claim}, its volume {volume}"));
        }
        Ok(())
    }

    /// Checks that no wait has lasted too long, and that no rule is broken.
    pub(super) fn check(&self, limit: Instant, what: &str) -> Result<(), Failure> {
        let (wrong, claim) = self.moves.with(|kubernetes| {
            (kubernetes.wrong.clone(), kubernetes.get("persistentvolumeclaims", &self.claim))
        });
        if !wrong.is_empty() {
            return Err(wrong.join("; "));
        }
        let settled = || self.moves.with(|kubernetes| self.is_settled(kubernetes));
        match Instant::now() < limit {
            true => Ok(()),
            false => {
                let copies = self.moves.with(|kubernetes| self.replicas(kubernetes));
                let name = &self.claim;
                Err(format!("{name}: it never comes that {what}: {:?}, {claim:?}, {copies:?}", settled()))
            }
        }
    }

    pub(super) async fn until(
        &self,
        what: &str,
        is: impl Fn(&Kubernetes) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            match self.moves.with(|kubernetes| is(kubernetes)) {
                Ok(()) => return Ok(()),
                Err(why) => {
                    self.check(began.max(self.moves.well_since()) + PATIENCE, &format!("{what} ({why})"))?
                }
            }
            self.moves.pause(200, 800).await;
        }
    }
}
