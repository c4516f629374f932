//! The steps from the moment in which pods may leave to the end of a move.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;

use super::act::{Moves, Next, RETRY, RUNNING, Result};
use super::admit::keeps_pods_out;
use super::claims::bytes_of;
use super::decide::{BEHIND, LONG, PRESSING, is_lost, is_well};
use super::exchange::{Exchange, Progress};
use super::look::node_state;
use super::nodes::NodeError;
use super::objects::{Run, reason};
use super::resources::{
    ClaimId, FINALIZER, Purpose, ReplicaPhase, VolumeReplica, VolumeReplicaSpec, VolumeReplicaStatus, When,
};
use super::view::{NodeState, User, View, Wanted};
use crate::model::{NodeKey, VolumeId};

/// The longest time between two checks of a cutover that is refused.
pub(super) const SELDOM: Duration = Duration::from_secs(5 * 60);

/// An eviction that the API server refused.
struct Refused {
    pod: String,
    /// The HTTP status.
    code: u16,
    why: String,
    /// The number of pods that were evicted before.
    evicted: usize,
}

/// Returns how long a copy may wait for its cutover before it needs a pass. A copy that stands by has to stay up to date; one that is only
/// made for a move is brought up to date when it moves.
fn until_behind(view: &View) -> Duration {
    match (view.spec.purpose, view.age) {
        (Purpose::Standby, Some(age)) => BEHIND.saturating_sub(age).max(RETRY),
        _ => SELDOM,
    }
}

impl Moves {
    /// Asks for everything that can be refused as a dry run. After that, the volume is fenced.
    pub(super) async fn check(&self, replica: &VolumeReplica, view: &View) -> Result<Next> {
        let uid = replica.uid().unwrap_or_default();
        let pause = self.returns.pause(&uid);
        // A copy of a lost volume takes over without a last pass.
        if !pause.is_zero() && !view.is_promoted && !is_lost(view) {
            let why = "the last pass of the cutover before had no room; the next cutover waits for up to five minutes";
            return self.wait(replica, pause.min(until_behind(view)), why).await;
        }
        let refused = match self.try_cutover(replica, &view.wanted).await? {
            Some(why) => Some(why),
            None => self.try_companions(replica).await?,
        };
        if let Some(why) = refused {
            // Check less often if the refusal lasts: each check takes up to six requests.
            let time = self.refused.is_silent(&uid).clamp(RETRY, SELDOM);
            return self.wait(replica, time.min(until_behind(view)), &why).await;
        }
        self.refused.is_heard(&uid);
        // The taint may be taken away before the node has been silent for long enough.
        let change = |status: &mut VolumeReplicaStatus| status.lost = is_lost(view);
        let why = format!("the volume goes to {}", replica.spec.destination());
        self.enter_with(replica, ReplicaPhase::CuttingOver, &why, change).await
    }

    /// Asks for everything that can be refused as a dry run. Returns what is refused.
    pub(super) async fn try_cutover(
        &self,
        replica: &VolumeReplica,
        wanted: &Wanted,
    ) -> Result<Option<String>> {
        // Pods that leave by themselves come back to their node when it is uncordoned.
        let may_wait =
            replica.spec.is_on_one_node() && !matches!(wanted, Wanted::Move { when: When::Now, .. });
        if matches!(wanted, Wanted::Move { .. })
            && !may_wait
            && let Some(why) = self.keeps_pods_out(&replica.spec).await?
        {
            return Ok(Some(why));
        }
        if matches!(wanted, Wanted::Move { when: When::Now, .. }) {
            let pods = self.pods_of(replica);
            let staying = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
            let staying: Vec<String> = staying.map(|pod| pod.name_any()).collect();
            if let Some(refused) = self.ask_to_leave(replica, &staying, Run::Dry).await? {
                return Ok(Some(refused.why));
            }
        }
        if replica.spec.is_on_one_node() {
            return Ok(None);
        }
        let exchange = Exchange::new(&self.objects, &replica.spec).check().await?;
        Ok(exchange.err().map(|refused| refused.to_string()))
    }

    /// Returns why the pods of a volume could not follow it: its new node may have been cordoned since the copy was made.
    pub(super) async fn keeps_pods_out(&self, spec: &VolumeReplicaSpec) -> Result<Option<String>> {
        let Some(node) = self.node(&spec.target_node).await? else {
            return Ok(Some(format!("node {} does not exist any more", spec.target_node)));
        };
        // Pods that come back to their node fit there.
        let pods = if spec.is_on_one_node() { Vec::new() } else { self.pods_anywhere(&spec.claim) };
        Ok(keeps_pods_out(&node, &pods))
    }

    /// Evicts pods. The check asked for each pod alone, but a budget can allow the first eviction and refuse the second. The
    /// successor of the first pod then waits for the volume, and the second pod waits for that successor. In that case the volume
    /// goes back to its pods, and the controller evicts no more of them.
    pub(super) async fn evict(&self, replica: &VolumeReplica, view: &View, pods: &[String]) -> Result<Next> {
        let Some(refused) = self.ask_to_leave(replica, pods, Run::Real).await? else {
            return Ok(Next::After(PRESSING));
        };
        let ran = |user: &&User| user.name == refused.pod && !user.never_ran;
        let has_gone = refused.evicted > 0 || view.users.iter().any(|user| user.is_leaving || user.is_late);
        let is_for_good =
            matches!(refused.code, 403 | 429) && view.users.iter().any(|user| ran(&user)) && has_gone;
        let asked = view.spec.requested_by.as_ref();
        match asked.filter(|_| is_for_good && is_well(view) && !view.is_awaited) {
            Some(asked) => {
                let change = |status: &mut VolumeReplicaStatus| status.evictions_ended.clone_from(&asked.uid);
                self.enter_with(replica, ReplicaPhase::Ready, &refused.why, change).await
            }
            None => self.wait(replica, RUNNING, &refused.why).await,
        }
    }

    /// Evicts pods of the volume. Returns which of them may not be evicted, and why.
    async fn ask_to_leave(
        &self,
        replica: &VolumeReplica,
        names: &[String],
        run: Run,
    ) -> Result<Option<Refused>> {
        let mut evicted = 0;
        for pod in self.pods_of(replica).iter().filter(|pod| names.contains(&pod.name_any())) {
            match self.objects.evict(pod, run).await {
                Ok(()) => evicted += 1,
                // A budget refuses with 429; with two budgets for one pod it is 500, and a webhook says 403.
                Err(kube::Error::Api(answer)) if answer.code != 409 => {
                    let name = pod.name_any();
                    tracing::info!(pod = name, message = answer.message, "the pod may not be evicted");
                    let why = format!("pod {name} may not be evicted yet: {}", reason(&answer));
                    return Ok(Some(Refused { pod: name, code: answer.code, why, evicted }));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Sets the node of the copy in the PersistentVolume.
    pub(super) async fn exchange(&self, replica: &VolumeReplica) -> Result<Next> {
        match self.exchange_to(replica, &replica.spec.target_node).await? {
            Some(next) => Ok(next),
            None if replica.spec.purpose == Purpose::Adoption => {
                let change =
                    |status: &mut VolumeReplicaStatus| (status.recorded, status.stale) = (None, true);
                let why = format!("the PersistentVolume names node {}", replica.spec.target_node);
                self.enter_with(replica, ReplicaPhase::Retiring, &why, change).await
            }
            None => {
                // What administrators change from here on is not in it.
                let change = |status: &mut VolumeReplicaStatus| status.recorded = None;
                let why = "no pod uses the volume; the last pass is made";
                self.enter_with(replica, ReplicaPhase::LastPass, why, change).await
            }
        }
    }

    /// Sets the node of the volume in the PersistentVolume again.
    pub(super) async fn exchange_back(&self, replica: &VolumeReplica) -> Result<Next> {
        match self.exchange_to(replica, &replica.spec.source_node).await? {
            Some(next) => Ok(next),
            None => {
                self.write(replica, |status| {
                    (status.exchanged, status.recorded) = (false, None);
                })
                .await
            }
        }
    }

    /// Does the next step of an exchange. Returns `None` if nothing is left to do.
    async fn exchange_to(&self, replica: &VolumeReplica, node: &str) -> Result<Option<Next>> {
        if replica.spec.is_on_one_node() {
            return Ok(None);
        }
        let recorded = replica.status.as_ref().and_then(|status| status.recorded.as_ref());
        Ok(Some(match Exchange::to(&self.objects, &replica.spec, node).step(recorded).await? {
            Progress::Done => return Ok(None),
            Progress::Record(volume) => self.write(replica, |status| status.recorded = Some(volume)).await?,
            Progress::Next => Next::After(Duration::ZERO),
            Progress::Touched => Next::After(PRESSING),
            Progress::Unbound(left) => {
                let ClaimId { namespace, name, .. } = &replica.spec.claim;
                let why =
                    format!("waiting until kube-controller-manager binds claim {namespace}/{name} again");
                self.wait(replica, left.clamp(PRESSING, RETRY), &why).await?
            }
            Progress::Blocked(why) => self.wait(replica, RUNNING, &why).await?,
        }))
    }

    /// The copy, or what was left of the volume, is gone: so are the cuts that the node of the volume kept for it.
    pub(super) async fn released(&self, replica: &VolumeReplica) -> Result<Next> {
        match self.nodes.release(&replica.spec).await {
            Ok(()) => self.finish(replica).await,
            // An administrator does not wait for a node. It removes the cuts by itself after a day.
            Err(_) if replica.metadata.deletion_timestamp.is_some() => self.finish(replica).await,
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// Nothing of the copy is left to take care of.
    pub(super) async fn finish(&self, replica: &VolumeReplica) -> Result<Next> {
        self.end_request(replica).await?;
        self.objects.remove_replica(replica).await?;
        Ok(Next::Gone)
    }

    /// Has what the node of the copy has of an earlier generation retired: a VolumeReplica of its own does that, and then says what
    /// is left, as after a promotion. That one was deleted before the node came back, or the node has an earlier state file.
    pub(super) async fn retire_earlier(&self, replica: &VolumeReplica) -> Result<Next> {
        let spec = &replica.spec;
        let node = &spec.target_node;
        let name = format!("{}-earlier", spec.copy_name);
        if self.seen.replicas.find(|seen| seen.name_any() == name).is_none() {
            let earlier = VolumeReplicaSpec {
                generation: spec.generation.saturating_sub(1),
                source_node: node.clone(),
                copy_id: VolumeId::of_name(&NodeKey::of(&spec.source_node), &name).to_string(),
                target_node: spec.source_node.clone(),
                source_pool: None,
                target_pool: None,
                target_class: None,
                copy_name: name.clone(),
                purpose: Purpose::Move,
                keep_source: false,
                requested_by: None,
                ..spec.clone()
            };
            let mut earlier = VolumeReplica::new(&name, earlier);
            earlier.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
            if self.objects.create_replica(&earlier).await?.is_some() {
                let text = format!(
                    "Node {node} has an earlier generation of the volume; VolumeReplica {name} says what becomes of it"
                );
                self.events.warn(&spec.claim, "EarlierData", &text).await;
            }
        }
        let why = format!(
            "node {node} has an earlier generation of the volume; VolumeReplica {name} takes the id away from it first"
        );
        self.wait(replica, RETRY, &why).await
    }

    /// Keeps other pods away from the volume. Pods that have it go on.
    pub(super) async fn fence(&self, replica: &VolumeReplica) -> Result<Next> {
        match self.nodes.fence(&replica.spec).await {
            Ok(()) | Err(NodeError::InUse(_)) => {
                self.write(replica, |status| status.fenced = Some(self.now())).await
            }
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// The node of the volume is lost: the copy takes over as it is. A watch may have been silent for a while, so the Node is asked for.
    pub(super) async fn give_up_source(&self, replica: &VolumeReplica, view: &View) -> Result<Next> {
        let spec = &replica.spec;
        let (lost, target) = (&spec.source_node, &spec.target_node);
        let node = self.objects.node(lost).await?;
        if !view.is_promoted && node_state(node.as_ref()) == NodeState::Ready {
            return self.wait(replica, RETRY, &format!("node {lost} is Ready again")).await;
        }
        let text = match spec.is_on_one_node() {
            true => format!(
                "The disk of {} is lost: the volume goes on with its copy in {}",
                spec.origin(),
                spec.destination()
            ),
            false => format!("Node {lost} is lost: the volume goes on with its copy on node {target}"),
        };
        self.events.warn(&spec.claim, "StandbyPromoted", &text).await;
        tracing::warn!(volume.id = spec.volume_id, node = lost, "the node is lost: its copy takes over");
        self.write(replica, |status| status.stale = true).await
    }

    /// Makes the copy the volume.
    pub(super) async fn complete(&self, replica: &VolumeReplica) -> Result<Next> {
        let stale = replica.status.as_ref().is_some_and(|status| status.stale);
        let volume = self.volume(&replica.spec.persistent_volume.name).await?;
        let least_bytes = volume.as_deref().map_or(0, bytes_of);
        match self.nodes.complete(&replica.spec, stale, least_bytes).await {
            Ok(()) => {
                if let Some(volume) = volume {
                    self.record_class(replica, &volume).await?;
                    if let Err(error) = self.modify(replica, &volume).await? {
                        return self.hindered(replica, error).await;
                    }
                }
                let why = match replica.spec.is_on_one_node() {
                    true => format!("the volume is in {}", replica.spec.destination()),
                    false => format!("the volume is on {}", replica.spec.destination()),
                };
                self.enter(replica, ReplicaPhase::Retiring, &why).await
            }
            // A pass was under way when the node of the volume was lost. The copy is no volume yet.
            Err(NodeError::InUse(why)) if stale => {
                self.write(replica, |status| {
                    (status.phase, status.stale) = (ReplicaPhase::LastPass, false);
                    why.clone_into(&mut status.message);
                })
                .await?;
                Ok(Next::After(LONG))
            }
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// Applies the VolumeAttributesClass of the volume, which may have changed after the copy was made. A node that refuses does not
    /// delay the move.
    ///
    /// # Errors
    /// The inner one if the node may do it later.
    async fn modify(
        &self,
        replica: &VolumeReplica,
        volume: &PersistentVolume,
    ) -> Result<std::result::Result<(), NodeError>> {
        let Ok(parameters) = self.attributes(volume).await? else { return Ok(Ok(())) };
        if parameters.is_empty() {
            return Ok(Ok(()));
        }
        match self.nodes.modify(&replica.spec, &parameters).await {
            Err(error @ (NodeError::Running(_) | NodeError::Silent(_))) => Ok(Err(error)),
            Err(error) => {
                let node = &replica.spec.target_node;
                let text = format!(
                    "Node {node} cannot give the volume what its VolumeAttributesClass says: {error}"
                );
                self.events.warn(&replica.spec.claim, "AttributesNotApplied", &text).await;
                Ok(Ok(()))
            }
            Ok(()) => Ok(Ok(())),
        }
    }

    /// Takes the id away from what the earlier node has.
    pub(super) async fn retire(&self, replica: &VolumeReplica) -> Result<Next> {
        match self.nodes.retire(&replica.spec).await {
            Ok(left) => self.write(replica, |status| status.left_id = Some(left)).await,
            // Its disk was replaced: nothing is left.
            Err(NodeError::NotFound(_)) => self.finish(replica).await,
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// Deletes what the earlier node has left.
    pub(super) async fn delete_left(&self, replica: &VolumeReplica) -> Result<Next> {
        let left = replica.status.as_ref().and_then(|status| status.left_id.clone()).unwrap_or_default();
        match self.nodes.delete_left(&replica.spec, &left).await {
            Ok(()) | Err(NodeError::NotFound(_)) => self.released(replica).await,
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// The volume has been taken back, and pods can use it at its node again.
    pub(super) async fn reclaimed(&self, replica: &VolumeReplica) -> Result<Next> {
        let spec = &replica.spec;
        let (lost, source) = (&spec.target_node, &spec.source_node);
        let text = format!("Node {lost} is lost: the volume stays on node {source}");
        self.events.warn(&spec.claim, "VolumeReclaimed", &text).await;
        self.write(replica, |status| {
            (status.reclaimed, status.exact) = (true, false);
            (status.fenced, status.maybe_fenced) = (None, false);
        })
        .await
    }

    /// Takes the id away from what the node of the copy has, after the volume has been taken back.
    pub(super) async fn retire_copy(&self, replica: &VolumeReplica) -> Result<Next> {
        let left = match self.nodes.retire_copy(&replica.spec).await {
            Ok(left) => left,
            // The copy has never taken over the id.
            Err(NodeError::NotFound(_)) => return self.released(replica).await,
            Err(error) => return self.hindered(replica, error).await,
        };
        let is_its = |other: &VolumeReplica| {
            // Its status may be lost as well.
            let left_id = other.status.as_ref().and_then(|status| status.left_id.clone());
            other.uid() != replica.uid() && left_id.or_else(|| other.spec.left_id()).as_ref() == Some(&left)
        };
        // Another move has brought the volume back. This is what that move has left.
        if self.seen.replicas.find(is_its).is_some() {
            return self.released(replica).await;
        }
        match self.nodes.release(&replica.spec).await {
            Ok(()) => self.write(replica, |status| status.left_id = Some(left)).await,
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// Deletes what the node of the copy has left.
    pub(super) async fn delete_left_copy(&self, replica: &VolumeReplica) -> Result<Next> {
        let left = replica.status.as_ref().and_then(|status| status.left_id.clone()).unwrap_or_default();
        match self.nodes.delete_left_copy(&replica.spec, &left).await {
            Ok(()) | Err(NodeError::NotFound(_)) => self.released(replica).await,
            Err(error) => self.hindered(replica, error).await,
        }
    }
}
