//! The claims that pods use together with the one that is to move (rule 9).

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;

use super::act::{Moves, Result};
use super::fits::reaches;
use super::look::volume_of;
use super::pods::{Companion, Goal, claims_of, left_behind, other_claims, user};
use super::resources::{Purpose, ReplicaPhase, VolumeReplica, When};

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
        let spec = &replica.spec;
        let pods = self.pods_anywhere(&spec.claim);
        let nodes = (self.node(&spec.source_node).await?, self.node(&spec.target_node).await?);
        let is_going = |other: &VolumeReplica| {
            let phases = ReplicaPhase::Exchanging..=ReplicaPhase::Completing;
            other.spec.target_node == spec.target_node && phases.contains(&other.phase())
        };
        let is_there = |volume: &PersistentVolume| match &nodes {
            (Some(source), Some(target)) => reaches(volume, target) && !reaches(volume, source),
            _ => false,
        };
        for name in other_claims(pods.iter().map(AsRef::as_ref), &spec.claim.name) {
            let Some(claim) = self.seen.claim(&spec.claim.namespace, &name) else { continue };
            let volume = self.volume_of_claim(&claim).await?;
            let replicas = self.seen.replicas_of(&claim.uid().unwrap_or_default());
            if volume.is_some_and(|volume| is_there(&volume)) || replicas.iter().any(|other| is_going(other))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns why a standby copy is of no use: another claim of the same pods has an older copy on another node, and the pods could
    /// follow neither. The copies may be older than the first pod that uses both claims.
    pub(super) fn stands_apart(&self, replica: &VolumeReplica) -> Option<String> {
        let spec = &replica.spec;
        let age = |replica: &VolumeReplica| (replica.creation_timestamp(), replica.name_any());
        let is_apart = |other: &VolumeReplica| {
            other.spec.purpose == Purpose::Standby
                && other.phase() == ReplicaPhase::Standby
                && other.spec.source_node == spec.source_node
                && other.spec.target_node != spec.target_node
                && age(other) < age(replica)
        };
        let pods = self.pods_anywhere(&spec.claim);
        let mut names = other_claims(pods.iter().map(AsRef::as_ref), &spec.claim.name).into_iter();
        names.find_map(|name| {
            let claim = self.seen.claim(&spec.claim.namespace, &name)?;
            let replicas = self.seen.replicas_of(&claim.uid().unwrap_or_default());
            let other = replicas.iter().find(|other| is_apart(other))?;
            let node = &other.spec.target_node;
            Some(format!("the same pods use claim {name}, whose standby copy is on node {node}"))
        })
    }

    async fn volume_of_claim(&self, claim: &PersistentVolumeClaim) -> Result<Option<Arc<PersistentVolume>>> {
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
