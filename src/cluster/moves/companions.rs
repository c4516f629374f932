//! The claims that pods use together with the one that is to move (rule 9).

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;

use super::act::{Moves, Result};
use super::claims::{bytes_of, is_changing};
use super::fits::reaches;
use super::look::volume_of;
use super::pods::{Companion, Goal, claims_of, is_promoted, left_behind, other_claims, user};
use super::resources::{Purpose, ReplicaPhase, VolumeReplica, When};
use super::view::Wanted;

impl Moves {
    /// Returns why a claim of the same pods stays when those pods leave: a pod that uses only that claim keeps it at its node.
    async fn kept_by_others(
        &self,
        companion: &Companion<'_>,
        claim: &PersistentVolumeClaim,
        target: &str,
    ) -> Result<Option<String>> {
        let is_waiting = |replica: &&&VolumeReplica| {
            replica.spec.target_node == target && replica.phase() < ReplicaPhase::CuttingOver
        };
        let Some(replica) = companion.replicas.iter().find(is_waiting) else { return Ok(None) };
        let spec = &replica.spec;
        let pods = self.pods_at(replica, &spec.source_node);
        let stays = |pod: &&Arc<Pod>| {
            let other = user(pod, None);
            !other.is_leaving && !other.never_ran && claims_of(pod).all(|used| used != claim.name_any())
        };
        let Some(pod) = pods.iter().find(stays) else { return Ok(None) };
        let asked = match &spec.requested_by {
            Some(by) => self.move_of(&spec.claim.namespace, &by.name, &by.uid).await?,
            None => None,
        };
        let has_ended = replica.status.as_ref().map_or("", |status| &status.evictions_ended);
        let is_evicted = asked.is_some_and(|asked| {
            asked.spec.when == When::Now
                && asked.uid().as_deref() != Some(has_ended)
                && (user(pod, None).has_controller || asked.spec.evict_bare_pods)
        });
        let why = || {
            format!(
                "the same pods use claim {}, which pod {} keeps at its node",
                companion.name,
                pod.name_any()
            )
        };
        Ok((!is_evicted).then(why))
    }

    /// Reports whether a claim of the same pods is at the node of the copy, or about to be there.
    pub(super) async fn is_awaited(&self, replica: &VolumeReplica) -> Result<bool> {
        // The pods of a volume that stays on its node do as well.
        if replica.spec.is_on_one_node() {
            return Ok(false);
        }
        let target = &replica.spec.target_node;
        let is_going = |other: &VolumeReplica| {
            let phases = ReplicaPhase::Exchanging..=ReplicaPhase::Completing;
            other.spec.target_node == *target && phases.contains(&other.phase())
        };
        for (claim, replicas) in self.companions(replica) {
            if self.is_there(replica, &claim).await? || replicas.iter().any(|other| is_going(other)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reports whether a claim of the same pods is at the node of the copy, or will be there whatever becomes of this copy. As long as
    /// pods may use the volume, only a claim counts that is on its way: the other ones may have been there for years.
    pub(super) async fn is_bound(&self, replica: &VolumeReplica) -> Result<bool> {
        use ReplicaPhase::{Completing, CuttingOver, Exchanging, Following, LastPass, Ready};
        let is_fenced = (CuttingOver..=LastPass).contains(&replica.phase());
        let is_near = is_fenced || matches!(replica.phase(), Following | Ready);
        if !is_near || replica.spec.is_on_one_node() {
            return Ok(false);
        }
        for (claim, replicas) in self.companions(replica) {
            let goes_there = |other: &&Arc<VolumeReplica>| other.spec.target_node == replica.spec.target_node;
            let is_bound = match replicas.iter().find(goes_there) {
                Some(other) if other.phase() == Completing => true,
                Some(other) if matches!(other.phase(), Exchanging | LastPass) => {
                    self.is_going_on(other, &claim).await?
                }
                Some(_) => false,
                None if !is_fenced && !self.has_just_moved(&claim, &replica.spec.target_node) => false,
                None => self.is_there(replica, &claim).await?,
            };
            if is_bound {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reports whether a move of a claim to a node has nothing left to do but with what the earlier node has.
    fn has_just_moved(&self, claim: &PersistentVolumeClaim, node: &str) -> bool {
        let uid = claim.uid().unwrap_or_default();
        let has_moved = |replica: &VolumeReplica| {
            replica.spec.claim.uid == uid
                && replica.spec.target_node == node
                && replica.phase() == ReplicaPhase::Retiring
        };
        !self.seen.replicas.state_filter(has_moved).is_empty()
    }

    /// Reports whether nothing gives up the cutover of a claim.
    async fn is_going_on(&self, replica: &VolumeReplica, claim: &PersistentVolumeClaim) -> Result<bool> {
        let is_lost = replica.status.as_ref().is_some_and(|status| status.lost || status.stale);
        let is_kept = match self.wanted(replica, Some(claim)).await? {
            Wanted::Move { .. } | Wanted::Unknown(_) => true,
            Wanted::Standby { .. } => is_lost || is_promoted(replica),
            Wanted::Nothing(_) => false,
        };
        let is_deleted = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_some();
        Ok(is_kept && !is_deleted(&replica.metadata) && !is_deleted(&claim.metadata))
    }

    /// Reports whether the volume of a claim can be used at the node of a copy, and not at that of its volume.
    async fn is_there(&self, replica: &VolumeReplica, claim: &PersistentVolumeClaim) -> Result<bool> {
        let spec = &replica.spec;
        let nodes = (self.node(&spec.source_node).await?, self.node(&spec.target_node).await?);
        let volume = self.volume_of_claim(claim).await?;
        Ok(match (volume, nodes) {
            (Some(volume), (Some(source), Some(target))) => {
                reaches(&volume, &target) && !reaches(&volume, &source)
            }
            _ => false,
        })
    }

    /// Returns the other claims of the pods that use a volume, each with its copies.
    fn companions(
        &self,
        replica: &VolumeReplica,
    ) -> Vec<(Arc<PersistentVolumeClaim>, Vec<Arc<VolumeReplica>>)> {
        let id = &replica.spec.claim;
        let pods = self.pods_anywhere(id);
        let names = other_claims(pods.iter().map(AsRef::as_ref), &id.name).into_iter();
        let claims = names.filter_map(|name| self.seen.claim(&id.namespace, &name));
        let with_copies = |claim: Arc<PersistentVolumeClaim>| {
            let replicas = self.seen.replicas_of(&claim.uid().unwrap_or_default());
            (claim, replicas)
        };
        claims.map(with_copies).collect()
    }

    /// Asks for everything that could be refused to the claims that follow this one, as a dry run. Returns what is refused. Once the
    /// first one is fenced, their pods are down until the last one has moved.
    pub(super) async fn try_companions(&self, replica: &VolumeReplica) -> Result<Option<String>> {
        if replica.spec.is_on_one_node() {
            return Ok(None);
        }
        for (claim, replicas) in self.companions(replica) {
            let follows = |other: &&Arc<VolumeReplica>| {
                other.spec.driver == self.driver
                    && other.spec.target_node == replica.spec.target_node
                    && other.phase() < ReplicaPhase::CuttingOver
            };
            let Some(other) = replicas.iter().find(follows) else { continue };
            let wanted = self.wanted(other, Some(&claim)).await?;
            let volume = self.volume_of_claim(&claim).await?;
            let is_changing = volume.is_some_and(|volume| is_changing(&claim, bytes_of(&volume)));
            let why = match is_changing && matches!(wanted, Wanted::Move { .. }) {
                true => Some("the volume is being expanded or modified".to_owned()),
                false => self.try_cutover(other, &wanted).await?,
            };
            if let Some(why) = why {
                return Ok(Some(format!("the same pods use claim {}: {why}", claim.name_any())));
            }
        }
        Ok(None)
    }

    /// Returns why a standby copy is of no use: another claim of the same pods has an older copy on another node, and the pods could
    /// follow neither. The copies may be older than the first pod that uses both claims. A copy that could not be made on that node is
    /// kept, and so is one whose pods have never run: a user who only creates a pod decides nothing about a copy.
    pub(super) async fn stands_apart(&self, replica: &VolumeReplica) -> Result<Option<String>> {
        let spec = &replica.spec;
        let age = |replica: &VolumeReplica| (replica.creation_timestamp(), replica.name_any());
        let is_apart = |other: &VolumeReplica| {
            other.spec.purpose == Purpose::Standby
                && other.phase() == ReplicaPhase::Standby
                && other.spec.source_node == spec.source_node
                && other.spec.target_node != spec.target_node
                && age(other) < age(replica)
        };
        let mut pods = self.pods_of(replica);
        pods.retain(|pod| !user(pod, None).never_ran);
        let mut names = other_claims(pods.iter().map(AsRef::as_ref), &spec.claim.name).into_iter();
        let apart = names.find_map(|name| {
            let claim = self.seen.claim(&spec.claim.namespace, &name)?;
            let replicas = self.seen.replicas_of(&claim.uid().unwrap_or_default());
            let other = replicas.iter().find(|other| is_apart(other))?;
            Some((name, other.spec.target_node.clone()))
        });
        let (Some((name, node)), Some(claim)) = (apart, self.claim_of(&spec.claim).await?) else {
            return Ok(None);
        };
        let why = || format!("the same pods use claim {name}, whose standby copy is on node {node}");
        Ok(self.can_stand_by_at(&claim, &node).await?.then(why))
    }

    pub(super) async fn volume_of_claim(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<Option<Arc<PersistentVolume>>> {
        match volume_of(claim) {
            name if name.is_empty() => Ok(None),
            name => self.volume(&name).await,
        }
    }

    /// Returns which other claim of the same pods delays a cutover.
    pub(super) async fn parted(
        &self,
        claim: &PersistentVolumeClaim,
        pods: &[Arc<Pod>],
        goal: Goal<'_>,
    ) -> Result<Option<String>> {
        let namespace = claim.namespace().unwrap_or_default();
        for name in other_claims(pods.iter().map(AsRef::as_ref), &claim.name_any()) {
            let Some(other) = self.seen.claim(&namespace, &name) else {
                return Ok(Some(format!("the same pods use claim {name}, which is not known")));
            };
            let volume = self.volume_of_claim(&other).await?;
            let replicas = self.seen.replicas_of(&other.uid().unwrap_or_default());
            let replicas = replicas.iter().map(AsRef::as_ref).collect();
            let companion = Companion { name: &name, volume: volume.as_deref(), replicas };
            if let Some(why) = left_behind(&companion, goal) {
                return Ok(Some(why));
            }
            if let Some(why) = self.kept_by_others(&companion, claim, goal.target).await? {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }
}
