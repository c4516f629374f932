//! What people ask for, VolumeMoves and standby copies, becomes VolumeReplicas.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;

use super::act::{Moves, Result};
use super::admit::of_pods;
use super::begin::Request;
use super::look::volume_of;
use super::progress::progress;
use super::resources::{
    ClaimId, MovePhase, ObjectId, Purpose, ReplicaPhase, Target, VolumeMove, VolumeMoveStatus, VolumeReplica,
};
use super::view::Wanted;

/// Between two looks at why a copy is not made.
const REFUSED: Duration = Duration::from_secs(30);
/// Between two looks at a request whose copy tells everything that changes.
const CALM: Duration = Duration::from_secs(60);

/// What a VolumeMove has come to.
enum Begun {
    /// There is a copy.
    Copy,
    /// The volume is already in the requested place.
    Nothing(String),
}

impl Moves {
    /// Does what comes next for a VolumeMove. Returns when to look again; `None` if it is over.
    ///
    /// # Errors
    /// [`super::act::Failure`]: a retry looks again.
    pub async fn attend(&self, asked: &VolumeMove) -> Result<Option<Duration>> {
        if asked.metadata.deletion_timestamp.is_some() || is_over(asked) {
            return Ok(None);
        }
        let uid = asked.uid().unwrap_or_default();
        let by_it =
            |replica: &VolumeReplica| replica.spec.requested_by.as_ref().is_some_and(|by| by.uid == uid);
        if let Some(replica) = self.seen.replicas.find(by_it) {
            self.report(asked, self.reported(asked, &replica)).await?;
            return Ok(Some(CALM));
        }
        let namespace = asked.namespace().unwrap_or_default();
        let claim = self.seen.claim(&namespace, &asked.spec.claim_name);
        if let Some(driver) = self.driver_of(claim.as_deref()).await?.filter(|driver| *driver != self.driver)
        {
            return self.attend_elsewhere(asked, &driver).await;
        }
        // A watch may lag behind: the copy of a request that is over is gone as well.
        let fresh = self.objects.a_move(&namespace, &asked.name_any()).await?;
        let Some(fresh) = fresh.filter(|fresh| fresh.uid() == asked.uid() && !is_over(fresh)) else {
            return Ok(None);
        };
        match self.begin_move(&fresh).await? {
            Ok(Begun::Copy) => Ok(Some(CALM)),
            Ok(Begun::Nothing(why)) => {
                let status = fresh.status.clone().unwrap_or_default();
                let (phase, now) = (Some(MovePhase::Done), Some(self.now()));
                let done = VolumeMoveStatus { phase, message: why, completion_time: now, ..status };
                self.report(&fresh, done).await?;
                Ok(None)
            }
            Err(why) => {
                let status = fresh.status.clone().unwrap_or_default();
                let refused = VolumeMoveStatus { phase: Some(MovePhase::Refused), message: why, ..status };
                if let Some(claim) = self.seen.claim(&namespace, &fresh.spec.claim_name) {
                    let claim = ClaimId {
                        namespace: namespace.clone(),
                        name: claim.name_any(),
                        uid: claim.uid().unwrap_or_default(),
                    };
                    let text = format!("The volume is not moved: {}", refused.message);
                    self.events.warn(&claim, "MoveRefused", &text).await;
                }
                self.report(&fresh, refused).await?;
                Ok(Some(REFUSED))
            }
        }
    }

    /// Makes the standby copy of a claim that is to have one and has none. Returns when to look again; `None` if it changes.
    ///
    /// # Errors
    /// [`super::act::Failure`]: a retry looks again.
    pub async fn stand_by(&self, claim: &PersistentVolumeClaim) -> Result<Option<Duration>> {
        if claim.metadata.deletion_timestamp.is_some()
            || !matches!(self.standby(claim).await?, Wanted::Standby { .. })
            // A claim that is not bound yet is looked at again when it is.
            || self.driver_of(Some(claim)).await?.as_ref() != Some(&self.driver)
        {
            return Ok(None);
        }
        let uid = claim.uid().unwrap_or_default();
        if !self.seen.replicas_of(&uid).is_empty() {
            return Ok(None);
        }
        let (namespace, name) = (claim.namespace(), claim.name_any());
        let moves_it = |asked: &VolumeMove| {
            asked.namespace() == namespace && asked.spec.claim_name == name && !is_over(asked)
        };
        if self.seen.moves.find(moves_it).is_some() {
            // One copy at a time. After the move, the volume gets a standby copy again.
            return Ok(Some(REFUSED));
        }
        let (target, purpose) = (Target::default(), Purpose::Standby);
        let (keep_source, evict_bare_pods, requested_by) = (false, false, None);
        let request = Request { claim, purpose, target, keep_source, evict_bare_pods, requested_by };
        match self.begin(&request).await? {
            Ok(()) => Ok(None),
            Err(why) => {
                tracing::info!(
                    claim = claim.name_any(),
                    namespace = claim.namespace(),
                    why,
                    "there is no standby copy"
                );
                let claim = ClaimId { namespace: namespace.unwrap_or_default(), name, uid };
                self.events.warn(&claim, "StandbyRefused", &format!("There is no standby copy: {why}")).await;
                Ok(Some(REFUSED))
            }
        }
    }

    /// Returns the driver of the volume of a claim; `None` if the claim has no volume of a CSI driver.
    async fn driver_of(&self, claim: Option<&PersistentVolumeClaim>) -> Result<Option<String>> {
        let name = claim.map(volume_of).unwrap_or_default();
        let volume = if name.is_empty() { None } else { self.volume(&name).await? };
        Ok(volume.and_then(|volume| Some(volume.spec.as_ref()?.csi.as_ref()?.driver.clone())))
    }

    /// Leaves a VolumeMove to the controller of another driver, which may be another installation of this one. If none looks at it, its
    /// status says so; such a controller may still move the volume later.
    async fn attend_elsewhere(&self, asked: &VolumeMove, driver: &str) -> Result<Option<Duration>> {
        if asked.status.as_ref().is_some_and(|status| status.phase.is_some()) {
            return Ok(None);
        }
        let created = asked.metadata.creation_timestamp.as_ref();
        let age = created.map_or(Duration::MAX, |created| self.since(&created.0));
        if age < REFUSED {
            return Ok(Some(REFUSED - age));
        }
        let message = format!(
            "its volume is one of driver {driver}, of which no controller has looked at this VolumeMove; this controller moves \
             volumes of {}",
            self.driver
        );
        let refused = VolumeMoveStatus { phase: Some(MovePhase::Refused), message, ..Default::default() };
        self.report(asked, refused).await.map(|()| None)
    }

    async fn begin_move(&self, asked: &VolumeMove) -> Result<std::result::Result<Begun, String>> {
        let (namespace, name) = (asked.namespace().unwrap_or_default(), &asked.spec.claim_name);
        let claim = match self.seen.claim(&namespace, name) {
            Some(claim) => Some(claim),
            None => self.objects.claim(&namespace, name).await?.map(Arc::new),
        };
        let Some(claim) = claim else {
            return Ok(Err(format!("claim {name} does not exist in namespace {namespace}")));
        };
        let by = ObjectId { name: asked.name_any(), uid: asked.uid().unwrap_or_default() };
        let others = self.seen.replicas_of(&claim.uid().unwrap_or_default());
        if let Some(standby) = others.first() {
            return Ok(self.lend(standby, asked, by).await?.map(|()| Begun::Copy));
        }
        let request = Request {
            claim: &claim,
            purpose: Purpose::Move,
            target: asked.spec.target.clone(),
            keep_source: asked.spec.keep_source,
            evict_bare_pods: asked.spec.evict_bare_pods,
            requested_by: Some(by),
        };
        if let Some(why) = self.is_in_pool(&request).await? {
            return Ok(Ok(Begun::Nothing(why)));
        }
        Ok(self.begin(&request).await?.map(|()| Begun::Copy))
    }

    /// Has a move use the standby copy that is there.
    async fn lend(
        &self,
        standby: &VolumeReplica,
        asked: &VolumeMove,
        by: ObjectId,
    ) -> Result<std::result::Result<(), String>> {
        let spec = &standby.spec;
        let lent_to = match &spec.requested_by {
            Some(by) => self.move_of(&spec.claim.namespace, &by.name, &by.uid).await?,
            None => None,
        };
        let is_free = spec.purpose == Purpose::Standby
            && lent_to.is_none()
            && standby.phase() < ReplicaPhase::CuttingOver
            && standby.metadata.deletion_timestamp.is_none();
        let Target { node, pool, storage_class } = &asked.spec.target;
        let fits = storage_class.is_none()
            && node.as_ref().is_none_or(|node| *node == spec.target_node)
            && pool.as_ref().is_none_or(|pool| Some(pool) == spec.target_pool.as_ref());
        if !is_free {
            return Ok(Err(format!(
                "the volume is being copied to node {} already; wait until that has ended",
                spec.target_node
            )));
        }
        if !fits {
            return Ok(Err(format!(
                "its standby copy is on node {}; move the volume there, or delete VolumeReplica {} first",
                spec.target_node,
                standby.name_any()
            )));
        }
        if let Some(why) = of_pods(&self.pods_anywhere(&spec.claim), asked.spec.evict_bare_pods) {
            return Ok(Err(why));
        }
        if let Some(why) = self.keeps_pods_out(spec).await? {
            return Ok(Err(why));
        }
        let mut lent = standby.clone();
        (lent.spec.requested_by, lent.spec.keep_source) = (Some(by), asked.spec.keep_source);
        self.objects.change_replica(standby, &lent).await?;
        Ok(Ok(()))
    }

    /// Writes the status of a VolumeMove, if it differs.
    async fn report(&self, asked: &VolumeMove, status: VolumeMoveStatus) -> Result<()> {
        if asked.status.as_ref() != Some(&status) {
            let changed = VolumeMove { status: Some(status), ..asked.clone() };
            self.objects.change_move_status(asked, &changed).await?;
        }
        Ok(())
    }

    /// Writes into the VolumeMove of a copy what has come of it. It comes before the VolumeReplica goes: a VolumeMove without
    /// a copy that is not over begins.
    pub(super) async fn end_request(&self, replica: &VolumeReplica) -> Result<()> {
        let Some(by) = &replica.spec.requested_by else { return Ok(()) };
        let asked = self.objects.a_move(&replica.spec.claim.namespace, &by.name).await?;
        let Some(asked) = asked.filter(|asked| asked.uid().as_ref() == Some(&by.uid)) else { return Ok(()) };
        let status = self.reported(&asked, replica);
        // What was given up may be begun again, if the VolumeMove is still there.
        if status.phase == Some(MovePhase::Done) {
            self.report(&asked, status).await?;
        }
        Ok(())
    }

    /// Returns what the status of a VolumeMove says about its copy.
    fn reported(&self, asked: &VolumeMove, replica: &VolumeReplica) -> VolumeMoveStatus {
        let status = replica.status.clone().unwrap_or_default();
        let phase = match status.phase {
            ReplicaPhase::Pending | ReplicaPhase::Copying | ReplicaPhase::Following => MovePhase::Copying,
            ReplicaPhase::Ready | ReplicaPhase::Standby => MovePhase::Ready,
            ReplicaPhase::CuttingOver
            | ReplicaPhase::Exchanging
            | ReplicaPhase::LastPass
            | ReplicaPhase::Completing => MovePhase::CuttingOver,
            // The volume has gone back to its node.
            ReplicaPhase::Left if status.reclaimed => MovePhase::GivingUp,
            ReplicaPhase::Retiring | ReplicaPhase::Left => MovePhase::Done,
            ReplicaPhase::Abandoning | ReplicaPhase::Stranded => MovePhase::GivingUp,
            ReplicaPhase::Unknown => MovePhase::Unknown,
        };
        let before = asked.status.clone().unwrap_or_default();
        // A move may wait for days. Each of its passes is in the status of the VolumeReplica, which is one request less.
        let waits_on =
            phase == MovePhase::Ready && before.phase == Some(phase) && before.message == status.message;
        let progress = match waits_on {
            true => before.progress,
            false => progress(status.passes, status.sent_bytes, &status.message),
        };
        VolumeMoveStatus {
            phase: Some(phase),
            progress,
            message: status.message,
            replica: Some(replica.name_any()),
            source_node: Some(replica.spec.source_node.clone()),
            target_node: Some(replica.spec.target_node.clone()),
            source_pool: replica.spec.source_pool.clone(),
            target_pool: replica.spec.target_pool.clone().filter(|_| replica.spec.is_on_one_node()),
            unavailable_milliseconds: status.unavailable_milliseconds,
            completion_time: before
                .completion_time
                .or_else(|| (phase == MovePhase::Done).then(|| self.now())),
        }
    }
}

pub(super) fn is_over(asked: &VolumeMove) -> bool {
    asked.status.as_ref().is_some_and(|status| status.phase == Some(MovePhase::Done))
}
