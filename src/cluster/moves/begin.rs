//! Creates the VolumeReplica of a copy: finds out whether the copy may be made, and chooses its node.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;

use super::act::{Moves, Result};
use super::admit::{Case, candidates, refusal};
use super::claims::{bytes_of, node_of};
use super::look::volume_of;
use super::nodes::Presence;
use super::pods::{Companion, claims_of, has_ended, is_same, other_claims};
use super::request::is_over;
use super::resources::{
    ClaimId, FINALIZER, ObjectId, Purpose, ReplicaPhase, Target, VolumeReplica, VolumeReplicaSpec,
};
use super::seen::Seen;
use crate::model::{NodeKey, VolumeId};

/// VolumeReplicas that were created, and that watches may not have shown yet.
pub type Created = Vec<Arc<VolumeReplica>>;

/// A copy that is asked for.
pub(super) struct Request<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub purpose: Purpose,
    pub target: Target,
    pub keep_source: bool,
    pub evict_bare_pods: bool,
    pub requested_by: Option<ObjectId>,
}

/// A claim that pods use together with the one that is asked for.
struct Other {
    name: String,
    volume: Option<Arc<PersistentVolume>>,
    replicas: Vec<Arc<VolumeReplica>>,
}

impl Moves {
    /// Creates the VolumeReplica of a copy, or tells why not.
    pub(super) async fn begin(&self, request: &Request<'_>) -> Result<std::result::Result<(), String>> {
        let claim = request.claim;
        let volume = self.volume_of_claim(claim).await?;
        let stays = request.stays_on_node(volume.as_deref());
        if let Some(why) = request.lacks_pool(stays) {
            return Ok(Err(why));
        }
        if let Some(spec) = self.adoption(request, volume.as_deref()).await? {
            return self.create_replica(spec, &mut *self.created.lock().await).await;
        }
        let targets = match self.admit(request, volume.as_deref(), &self.unseen().await?).await? {
            Ok(targets) => targets,
            Err(why) => return Ok(Err(why)),
        };
        let Some((volume, source)) = volume.and_then(|volume| node_of(&volume).map(|node| (volume, node)))
        else {
            return Ok(Err("the claim has no volume on a node".to_owned()));
        };
        let volume_id = handle(&volume);
        // Before the lock: a node that answers late delays no other copy.
        let generation = match self.generation_at(&source, &volume_id).await {
            Ok(generation) => generation,
            Err(why) => return Ok(Err(why)),
        };
        let source_pool = match self.source_pool(request, &source, &volume_id, stays).await {
            Ok(pool) => pool,
            Err(why) => return Ok(Err(why)),
        };
        let copy_name = format!("{}-{}", volume.name_any(), uuid::Uuid::new_v4().simple());
        let rooms = self.rooms(request, &volume, &copy_name, &targets).await?;
        // One after the other, so that claims of one pod do not choose two nodes, and that no limit is passed.
        let mut created = self.created.lock().await;
        self.forget_seen(&mut created).await?;
        let targets = match self.admit(request, Some(&volume), &created).await? {
            Ok(targets) => targets,
            Err(why) => return Ok(Err(why)),
        };
        let target = match self.roomiest(&volume, targets, &rooms, &created) {
            Ok(target) => target,
            Err(why) => return Ok(Err(why)),
        };
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let spec = VolumeReplicaSpec {
            driver: self.driver.clone(),
            volume_id,
            generation,
            persistent_volume: ObjectId { name: volume.name_any(), uid: volume.uid().unwrap_or_default() },
            claim: ClaimId { namespace, name, uid: claim.uid().unwrap_or_default() },
            source_node: source,
            copy_id: VolumeId::of_name(&NodeKey::of(&target), &copy_name).to_string(),
            target_node: target,
            source_pool,
            target_pool: request.target.pool.clone(),
            target_class: request.target.storage_class.clone(),
            copy_name,
            purpose: request.purpose,
            keep_source: request.keep_source,
            requested_by: request.requested_by.clone(),
        };
        self.create_replica(spec, &mut created).await
    }

    /// Returns the generation of a volume at its node, or why no copy can be made of it.
    async fn generation_at(&self, node: &str, volume_id: &str) -> std::result::Result<u64, String> {
        match self.nodes.find(node, volume_id).await {
            Ok(Presence::Has(generation)) => Ok(generation),
            Ok(Presence::Unusable(why)) => Err(format!("node {node}: {why}")),
            Ok(Presence::Deleted | Presence::Nothing) => {
                Err(format!("node {node} does not have volume {volume_id}"))
            }
            Err(error) => Err(format!("node {node}: {error}")),
        }
    }

    /// Reports whether a standby copy of a claim could be made on this node.
    pub(super) async fn can_stand_by_at(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<bool> {
        let (target, purpose) = (Target::default(), Purpose::Standby);
        let (keep_source, evict_bare_pods, requested_by) = (false, false, None);
        let request = Request { claim, purpose, target, keep_source, evict_bare_pods, requested_by };
        let Some(volume) = self.volume(&volume_of(claim)).await? else { return Ok(false) };
        let created = self.unseen().await?;
        let Ok(mut targets) = self.admit(&request, Some(&volume), &created).await? else { return Ok(false) };
        targets.retain(|target| target == node);
        let rooms = self.rooms(&request, &volume, &volume.name_any(), &targets).await?;
        Ok(self.roomiest(&volume, targets, &rooms, &created).is_ok())
    }

    /// Returns the VolumeReplicas that were created, and that watches have not shown yet.
    async fn unseen(&self) -> Result<Created> {
        let mut created = self.created.lock().await;
        self.forget_seen(&mut created).await?;
        Ok(created.clone())
    }

    /// Forgets the VolumeReplicas that watches have shown, also those that have gone since.
    async fn forget_seen(&self, created: &mut Created) -> Result<()> {
        let mut unseen = Created::new();
        for replica in created.iter() {
            let is_seen = self.seen.replicas.find(|seen| seen.uid() == replica.uid()).is_some();
            if !is_seen
                && self
                    .objects
                    .replica(&replica.name_any())
                    .await?
                    .is_some_and(|is| is.uid() == replica.uid())
            {
                unseen.push(Arc::clone(replica));
            }
        }
        *created = unseen;
        Ok(())
    }

    /// Creates a VolumeReplica, or tells why not.
    async fn create_replica(
        &self,
        spec: VolumeReplicaSpec,
        created: &mut Created,
    ) -> Result<std::result::Result<(), String>> {
        // The watch may not show yet that the claim was deleted while the nodes were asked (rule 6).
        let claim = self.objects.claim(&spec.claim.namespace, &spec.claim.name).await?;
        let is_there = |claim: &PersistentVolumeClaim| {
            is_same(claim, &spec.claim) && claim.metadata.deletion_timestamp.is_none()
        };
        if !claim.as_ref().is_some_and(is_there) {
            return Ok(Err("the claim is being deleted".to_owned()));
        }
        // One for each place where the volume has been: of two controllers, or two requests, the first one creates it.
        let mut replica = VolumeReplica::new(&self.replica_name(&spec), spec);
        replica.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let (name, claim) = (replica.name_any(), replica.spec.claim.uid.clone());
        if let Some(replica) = self.objects.create_replica(&replica).await? {
            tracing::info!(
                replica = replica.name_any(), target = replica.spec.target_node, purpose = ?replica.spec.purpose,
                "a volume gets a copy"
            );
            let (reason, what) = match replica.spec.purpose {
                Purpose::Move => ("MoveStarted", "The volume is copied to node"),
                Purpose::Standby | Purpose::Unknown => ("StandbyStarted", "A standby copy is made on node"),
                Purpose::Adoption => ("AdoptionStarted", "The volume has been adopted by node"),
            };
            let text = match replica.spec.is_on_one_node() {
                true => format!("The volume is copied to {}", replica.spec.destination()),
                false => format!("{what} {}", replica.spec.target_node),
            };
            self.events.tell(&replica.spec.claim, reason, &text).await;
            created.push(Arc::new(replica.clone()));
            // A VolumeReplica without a status may have lost it.
            let mut begun = replica.clone();
            begun.status.get_or_insert_default().begun = true;
            self.objects.change_status(&replica, &begun).await?;
            return Ok(Ok(()));
        }
        let other = self.objects.replica(&name).await?;
        Ok(match other.is_none_or(|other| other.spec.claim.uid == claim) {
            true => Ok(()),
            false => Err(format!(
                "VolumeReplica {name} exists already, and is of an earlier claim; it has to go first"
            )),
        })
    }

    /// Returns the name of the VolumeReplica of a copy: the first that no copy has that is gone with its node.
    fn replica_name(&self, spec: &VolumeReplicaSpec) -> String {
        let VolumeReplicaSpec { persistent_volume: volume, generation, .. } = spec;
        let is_stranded = |replica: &VolumeReplica| replica.phase() == ReplicaPhase::Stranded;
        let stranded = self.seen.replicas.state_filter(is_stranded);
        let mut name = format!("{}-{generation}", volume.name);
        let mut count = 0;
        while stranded.iter().any(|replica| replica.name_any() == name) {
            count += 1;
            name = format!("{}-{generation}-{count}", volume.name);
        }
        name
    }

    /// Returns the other claims that these pods use with their volumes and copies, or which claim does not exist.
    async fn others(
        &self,
        pods: &[Arc<Pod>],
        (namespace, claim): (&str, &str),
        created: &[Arc<VolumeReplica>],
    ) -> Result<std::result::Result<Vec<Other>, String>> {
        let mut others = Vec::new();
        for name in other_claims(pods.iter().map(AsRef::as_ref), claim) {
            let Some(claim) = self.seen.claim(namespace, &name) else {
                return Ok(Err(format!("the same pods use claim {name}, which does not exist")));
            };
            let volume = match claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()) {
                Some(name) if !name.is_empty() => self.volume(&name).await?,
                _ => None,
            };
            let uid = claim.uid().unwrap_or_default();
            let mut replicas = self.seen.replicas_of(&uid);
            replicas.extend(created.iter().filter(|replica| replica.spec.claim.uid == uid).cloned());
            others.push(Other { name, volume, replicas });
        }
        Ok(Ok(others))
    }

    /// Returns the nodes that can have the copy, or why none can.
    async fn admit(
        &self,
        request: &Request<'_>,
        volume: Option<&PersistentVolume>,
        created: &[Arc<VolumeReplica>],
    ) -> Result<std::result::Result<Vec<String>, String>> {
        let claim = request.claim;
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let class_name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
        let class = self.class(&class_name.unwrap_or_default()).await?;
        if let Some(why) = self.unfit_class(request, volume).await? {
            return Ok(Err(why));
        }
        let target_class = match &request.target.storage_class {
            Some(name) => self.class(name).await?,
            None => None,
        };
        let pods = self.seen.pods.state_filter(|pod| {
            pod.namespace().as_ref() == Some(&namespace)
                && !has_ended(pod)
                && claims_of(pod).any(|used| used == name)
        });
        let others = match self.others(&pods, (&namespace, &name), created).await? {
            Ok(others) => others,
            Err(why) => return Ok(Err(why)),
        };
        let companions: Vec<Companion<'_>> = others
            .iter()
            .map(|Other { name, volume, replicas }| Companion {
                name,
                volume: volume.as_deref(),
                replicas: replicas.iter().map(AsRef::as_ref).collect(),
            })
            .collect();
        let asked_for = self
            .seen
            .moves
            .state_filter(|asked| asked.namespace().as_ref() == Some(&namespace) && !is_over(asked));
        let asked_for: Vec<String> = asked_for.iter().map(|asked| asked.spec.claim_name.clone()).collect();
        let (mut nodes, members) = (self.seen.nodes.state(), self.nodes.members());
        // Of nodes with the same room, the first by name is chosen.
        nodes.sort_by_key(|node| node.name_any());
        let case = Case {
            driver: &self.driver,
            claim,
            volume,
            class: class.as_deref(),
            target_class: target_class.as_deref(),
            pods: &pods,
            companions: &companions,
            asked_for: &asked_for,
            nodes: &nodes,
            members: members.as_deref(),
            target: request.target.node.as_deref(),
            purpose: request.purpose,
            evict_bare_pods: request.evict_bare_pods,
        };
        Ok(match refusal(&case).or_else(|| self.beyond_limits(&namespace, created)) {
            Some(why) => Err(why),
            None => candidates(&case),
        })
    }

    /// Returns the copies of this driver that there are, also those that watches have not shown yet.
    pub(super) fn all_replicas(&self, created: &[Arc<VolumeReplica>]) -> Vec<Arc<VolumeReplica>> {
        let mut all = self.seen.replicas.state_filter(|replica| replica.spec.driver == self.driver);
        all.extend(created.iter().cloned());
        all
    }

    /// Returns which limit one more copy would pass.
    fn beyond_limits(&self, namespace: &str, created: &[Arc<VolumeReplica>]) -> Option<String> {
        let all = self.all_replicas(created);
        let of_namespace = all.iter().filter(|replica| replica.spec.claim.namespace == namespace).count();
        let limits = self.limits;
        if all.len() >= limits.all {
            return Some(format!("there are {} copies, and --move-limits allows {}", all.len(), limits.all));
        }
        (of_namespace >= limits.namespace).then(|| {
            format!(
                "namespace {namespace} has {of_namespace} copies, and --move-limits allows {}",
                limits.namespace
            )
        })
    }

    /// Returns the size of the volume of a copy in bytes.
    pub(super) fn size_of(&self, replica: &VolumeReplica) -> u64 {
        let volume = Seen::get(&self.seen.volumes, &replica.spec.persistent_volume.name);
        let now = volume.as_deref().map_or(0, bytes_of);
        // A PersistentVolume that is being exchanged does not exist.
        let pass = replica.status.as_ref().and_then(|status| status.last_pass.as_ref());
        now.max(pass.map_or(0, |pass| pass.size_bytes))
    }
}

/// Returns the CSI volume id of a PersistentVolume.
pub(super) fn handle(volume: &PersistentVolume) -> String {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.map(|csi| csi.volume_handle.clone()).unwrap_or_default()
}
