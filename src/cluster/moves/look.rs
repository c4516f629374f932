//! Collects what has to be known of a copy before the next step.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::act::{Failure, Moves, Result};
use super::claims::parameters;
use super::claims::{bytes_of, is_changing, node_of};
use super::decide::{is_lost_node, is_lost_status};
use super::pods::{Goal, claims_of, has_ended, is_promoted, is_same, user, uses};
use super::resources::{ClaimId, Purpose, ReplicaPhase, VolumeMove, VolumeReplica, VolumeReplicaSpec, When};
use super::seen::Seen;
use super::view::{NodeState, View, Wanted};
use crate::model::Standby;

/// On a Node: an administrator says that it is shut down (Kubernetes 1.28, non-graceful node shutdown).
pub(super) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// On a claim whose class lets it ask: whether there is a standby copy, and how old it may become.
const STANDBY: &str = "hostloop.csi.dev/standby";
const STANDBY_INTERVAL: &str = "hostloop.csi.dev/standby-interval";
/// The most by which the clocks of two controllers differ if they are right, in seconds.
const SKEW: i64 = 5;

impl Moves {
    /// Returns what is known of a copy.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub(super) async fn look(&self, replica: &VolumeReplica) -> Result<View> {
        let spec = &replica.spec;
        let status = replica.status.clone().unwrap_or_default();
        let phase = status.phase;
        let claim = self.claim_of(&spec.claim).await?;
        // In the later phases the move is always finished.
        let may_be_given_up = phase <= ReplicaPhase::LastPass;
        let wanted = match may_be_given_up {
            true => self.wanted(replica, claim.as_deref()).await?,
            false => Wanted::Unknown("the volume is on its way".to_owned()),
        };
        let source_node = node_state(self.node(&spec.source_node).await?.as_deref());
        let target = self.node(&spec.target_node).await?;
        let is_status_lost = is_lost_status(phase, status.begun);
        let is_adoption = spec.purpose == Purpose::Adoption;
        let at_target = phase == ReplicaPhase::Completing || is_status_lost && !is_adoption;
        let pods = self.pods_at(replica, if at_target { &spec.target_node } else { &spec.source_node });
        let is_promoted = is_promoted(replica);
        let hindered = match claim.as_deref() {
            Some(_) if is_adoption => self.is_placed_elsewhere(spec).await?,
            Some(claim) if phase <= ReplicaPhase::CuttingOver => {
                self.delayed((replica, claim), (source_node, is_promoted), target.as_deref()).await?
            }
            _ => None,
        };
        let asks = match is_status_lost || is_adoption {
            true => (true, true, true),
            false => asked(phase, is_promoted || status.maybe_fenced, status.reclaimed),
        };
        let is_deleted = claim.as_deref().is_none_or(|claim| claim.metadata.deletion_timestamp.is_some());
        let is_bound = !matches!(wanted, Wanted::Move { .. }) && self.is_bound(replica).await?;
        let (source, copy, target_says) = self.ask_both(spec, phase, asks).await;
        let left = self.ask_what_is_left(spec, &source, is_status_lost).await;
        Ok(View {
            is_deleted: replica.metadata.deletion_timestamp.is_some(),
            is_promoted,
            wanted,
            claim_is_deleted: Some(is_deleted),
            hindered,
            is_awaited: phase == ReplicaPhase::CuttingOver && self.is_awaited(replica).await?,
            is_bound,
            apart: match phase {
                ReplicaPhase::Standby => self.stands_apart(replica).await?,
                _ => None,
            },
            users: pods.iter().map(|pod| user(pod, status.fenced.as_ref())).collect(),
            source_node,
            source,
            left,
            copy,
            target: target_says,
            target_node: node_state(target.as_deref()),
            lost_for: self.status_is_lost(replica, is_status_lost),
            has_another_copy: (is_status_lost || is_adoption) && self.has_another_copy(replica),
            failed: status.first_copy_failed.as_ref().map(|failed| self.since(&failed.0)),
            age: status.last_pass.as_ref().map(|pass| self.since(&pass.asked.0)),
            queue: self.begun.ahead(&self.seen.replicas.state(), replica),
            spec: spec.clone(),
            status,
        })
    }

    /// Returns why the PersistentVolume of an adopted volume does not get its new node: it names a third one.
    async fn is_placed_elsewhere(&self, spec: &VolumeReplicaSpec) -> Result<Option<String>> {
        let volume = self.volume(&spec.persistent_volume.name).await?;
        let node = volume.as_deref().and_then(node_of);
        let node = node.filter(|node| *node != spec.source_node && *node != spec.target_node);
        Ok(node.map(|node| format!("PersistentVolume {} names node {node}", spec.persistent_volume.name)))
    }

    /// Returns for how long this controller has known that the status of a VolumeReplica is lost.
    fn status_is_lost(&self, replica: &VolumeReplica, is_lost: bool) -> Duration {
        let uid = replica.uid().unwrap_or_default();
        match is_lost {
            true => self.status_lost.is_silent(&uid),
            false => {
                self.status_lost.is_heard(&uid);
                Duration::ZERO
            }
        }
    }

    /// Reports whether the volume has another copy, whose status is there.
    fn has_another_copy(&self, replica: &VolumeReplica) -> bool {
        let is_another = |other: &Arc<VolumeReplica>| {
            let begun = other.status.as_ref().is_some_and(|status| status.begun);
            other.uid() != replica.uid() && !is_lost_status(other.phase(), begun)
        };
        self.seen.replicas_of(&replica.spec.claim.uid).iter().any(is_another)
    }

    /// Returns the claim of a copy; `None` if it is gone, whether there is a later one of its name or not.
    pub(super) async fn claim_of(&self, id: &ClaimId) -> Result<Option<Arc<PersistentVolumeClaim>>> {
        let seen = self.seen.claim(&id.namespace, &id.name).filter(|claim| is_same(claim, id));
        if seen.is_some() {
            return Ok(seen);
        }
        let ask = async {
            Ok(self.objects.claim(&id.namespace, &id.name).await?.filter(|claim| is_same(claim, id)))
        };
        self.absent.or_ask("claims", &id.uid, ask).await.map(|claim| claim.map(Arc::new))
    }

    pub(super) async fn volume(&self, name: &str) -> Result<Option<Arc<PersistentVolume>>> {
        match Seen::get(&self.seen.volumes, name) {
            Some(volume) => Ok(Some(volume)),
            None => Ok(self.absent.or_ask("volumes", name, self.objects.volume(name)).await?.map(Arc::new)),
        }
    }

    pub(super) async fn node(&self, name: &str) -> Result<Option<Arc<Node>>> {
        match Seen::get(&self.seen.nodes, name) {
            Some(node) => Ok(Some(node)),
            None => Ok(self.absent.or_ask("nodes", name, self.objects.node(name)).await?.map(Arc::new)),
        }
    }

    /// Returns a StorageClass; `None` if it does not exist.
    pub(super) async fn class(&self, name: &str) -> Result<Option<Arc<StorageClass>>> {
        match Seen::get(&self.seen.classes, name) {
            Some(class) => Ok(Some(class)),
            None if name.is_empty() => Ok(None),
            None => Ok(self.absent.or_ask("classes", name, self.objects.class(name)).await?.map(Arc::new)),
        }
    }

    /// Returns the pods that use the volume of a copy, on the node of the volume.
    pub(super) fn pods_of(&self, replica: &VolumeReplica) -> Vec<Arc<Pod>> {
        self.pods_at(replica, &replica.spec.source_node)
    }

    /// Returns the pods that use a claim, on whatever node, or on none yet.
    pub(super) fn pods_anywhere(&self, claim: &ClaimId) -> Vec<Arc<Pod>> {
        self.seen.pods.state_filter(|pod| {
            pod.namespace().as_deref() == Some(claim.namespace.as_str())
                && !has_ended(pod)
                && claims_of(pod).any(|used| used == claim.name)
        })
    }

    pub(super) fn pods_at(&self, replica: &VolumeReplica, node: &str) -> Vec<Arc<Pod>> {
        let claim = &replica.spec.claim;
        self.seen.pods.state_filter(|pod| uses(pod, &claim.namespace, &claim.name, node))
    }

    /// Returns why the copy exists.
    pub(super) async fn wanted(
        &self,
        replica: &VolumeReplica,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<Wanted> {
        let spec = &replica.spec;
        if let Some(by) = &spec.requested_by {
            if let Some(asked) = self.move_of(&spec.claim.namespace, &by.name, &by.uid).await? {
                let (when, evict_bare_pods) = (asked.spec.when, asked.spec.evict_bare_pods);
                return Ok(match when {
                    When::Unknown => Wanted::Unknown(format!(
                        "this release does not know the value of when in VolumeMove {}; create it again with another value",
                        by.name
                    )),
                    When::PodsLeave | When::Now => Wanted::Move { when, evict_bare_pods },
                });
            }
            if spec.purpose != Purpose::Standby {
                return Ok(Wanted::Nothing(format!("VolumeMove {} was deleted", by.name)));
            }
        }
        match (spec.purpose, claim) {
            (Purpose::Move | Purpose::Adoption | Purpose::Unknown, _) => {
                Ok(Wanted::Unknown("nothing says which VolumeMove asks for it".to_owned()))
            }
            // The claim is gone, which comes first.
            (Purpose::Standby, None) => Ok(Wanted::Unknown("the claim is gone".to_owned())),
            (Purpose::Standby, Some(claim)) => self.standby(claim).await,
        }
    }

    /// Returns whether a claim is to have a standby copy.
    pub(super) async fn standby(&self, claim: &PersistentVolumeClaim) -> Result<Wanted> {
        let name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
        Ok(match self.class(&name).await? {
            None => Wanted::Unknown(format!(
                "StorageClass {name} does not exist, so that nothing says whether the copy is needed; create the class again"
            )),
            Some(class) => standby_of(claim, &class),
        })
    }

    /// Returns a VolumeMove that is there and is not being deleted.
    pub(super) async fn move_of(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<Arc<VolumeMove>>> {
        let is_it = |asked: &Arc<VolumeMove>| asked.uid().as_deref() == Some(uid);
        let asked = match self.seen.a_move(namespace, name).filter(is_it) {
            Some(seen) => Some(seen),
            None => {
                let ask =
                    async { Ok(self.objects.a_move(namespace, name).await?.map(Arc::new).filter(is_it)) };
                self.absent.or_ask::<_, Failure>("moves", uid, ask).await?
            }
        };
        Ok(asked.filter(|asked| asked.metadata.deletion_timestamp.is_none()))
    }

    /// Returns what delays a cutover. `node` is the Node object of the copy's node.
    async fn delayed(
        &self,
        (replica, claim): (&VolumeReplica, &PersistentVolumeClaim),
        (source_node, is_promoted): (NodeState, bool),
        node: Option<&Node>,
    ) -> Result<Option<String>> {
        let spec = &replica.spec;
        let stands_by = spec.purpose == Purpose::Standby;
        // An expansion cannot end while its node is lost, or until the pod that it waits for has the volume.
        let takes_over = is_promoted
            || stands_by && is_lost_node(source_node)
            || replica.phase() == ReplicaPhase::CuttingOver;
        if !takes_over
            && let Some(volume) = self.volume(&volume_of(claim)).await?
            && is_changing(claim, bytes_of(&volume))
        {
            return Ok(Some("the volume is being expanded or modified".to_owned()));
        }
        // Whatever becomes of this volume, its pods find the others on the same node.
        if spec.is_on_one_node() {
            return Ok(None);
        }
        let is_promotion = stands_by && source_node != NodeState::Ready;
        let goal = Goal { target: &spec.target_node, node, is_promotion };
        // Pods that wait for a node count as well: those of a lost node have been deleted by then.
        self.parted(claim, &self.pods_anywhere(&spec.claim), goal).await
    }

    /// Returns how long ago a moment was, by the clock of this controller. A moment in the future comes from a controller whose clock is
    /// ahead. Its age is unknown, and counts as the largest one, so that it delays nothing.
    pub(super) fn since(&self, moment: &Timestamp) -> Duration {
        let since = self.now().0.duration_since(*moment);
        match since.as_secs() < -SKEW {
            true => Duration::MAX,
            false => since.try_into().unwrap_or_default(),
        }
    }
}

pub(super) fn volume_of(claim: &PersistentVolumeClaim) -> String {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default()
}

/// Returns what a StorageClass says about standby copies. Its claims may say it themselves only if it lets them.
pub fn standby_of(claim: &PersistentVolumeClaim, class: &StorageClass) -> Wanted {
    let class = parameters(class);
    let by_claim = class.get(Standby::BY_CLAIM_PARAMETER).is_some_and(|value| value == "true");
    let said = |annotation: &str, parameter: &str| {
        let own = claim.annotations().get(annotation).filter(|_| by_claim);
        own.or_else(|| class.get(parameter)).map(String::as_str)
    };
    let interval = said(STANDBY_INTERVAL, Standby::INTERVAL_PARAMETER);
    match Standby::of(said(STANDBY, Standby::PARAMETER), interval) {
        Ok(Some(Standby { interval })) => Wanted::Standby { interval },
        Ok(None) => Wanted::Nothing("nothing asks for a standby copy any more".to_owned()),
        Err(why) => Wanted::Unknown(why),
    }
}

/// Returns whether the node of the volume is asked about the volume in a phase, and that of the copy about the copy and the volume.
fn asked(phase: ReplicaPhase, is_near: bool, is_taken_back: bool) -> (bool, bool, bool) {
    use ReplicaPhase::{Abandoning, Completing, CuttingOver, LastPass, Left, Retiring};
    let source = matches!(phase, CuttingOver | LastPass | Completing | Retiring | Left | Abandoning)
        || is_near && phase < CuttingOver;
    let copy = matches!(phase, Completing | Abandoning) || phase == Left && is_taken_back;
    let target = matches!(phase, CuttingOver | Completing | Retiring) || phase == Abandoning && is_taken_back;
    (source, copy, target)
}

/// Returns what Kubernetes says of a node.
pub(super) fn node_state(node: Option<&Node>) -> NodeState {
    let Some(node) = node else { return NodeState::Gone };
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    if taints.any(|taint| taint.key == OUT_OF_SERVICE) {
        return NodeState::OutOfService;
    }
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    match conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True") {
        true => NodeState::Ready,
        false => NodeState::NotReady,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn claims_ask_for_copies_if_their_class_lets_them() {
        let wanted = |annotations: Value, parameters: Value| {
            let claim = serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
            let class = json!({"provisioner": "d", "parameters": parameters});
            standby_of(&claim, &serde_json::from_value(class).unwrap())
        };
        let asks = json!({"hostloop.csi.dev/standby": "1", "hostloop.csi.dev/standby-interval": "20s"});
        let standby = |seconds| Wanted::Standby { interval: Duration::from_secs(seconds) };
        assert!(matches!(wanted(asks.clone(), json!({})), Wanted::Nothing(_)));
        assert_eq!(wanted(asks.clone(), json!({"standbyByClaim": "true"})), standby(20));
        assert_eq!(wanted(asks.clone(), json!({"standby": "1"})), standby(60));
        let none = json!({"hostloop.csi.dev/standby": "0"});
        assert_eq!(wanted(none.clone(), json!({"standby": "1"})), standby(60));
        let by_claim = json!({"standby": "1", "standbyByClaim": "true"});
        assert!(matches!(wanted(none, by_claim), Wanted::Nothing(_)));
        assert!(matches!(wanted(json!({}), json!({"standby": "2"})), Wanted::Unknown(_)));
    }

    #[test]
    fn a_node_is_what_kubernetes_says() {
        let state = |node: Value| node_state(Some(&serde_json::from_value(node).unwrap()));
        let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
        assert_eq!(node_state(None), NodeState::Gone);
        assert_eq!(state(json!({"status": ready("True")})), NodeState::Ready);
        assert_eq!(state(json!({"status": ready("Unknown")})), NodeState::NotReady);
        assert_eq!(state(json!({})), NodeState::NotReady);
        let taints = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
        assert_eq!(
            state(json!({"spec": {"taints": taints}, "status": ready("True")})),
            NodeState::OutOfService
        );
    }
}
