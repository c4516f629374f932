//! The second half of a move: a PersistentVolume has the record of a claim that is to be made for it. It is the same
//! whether that is the copy or, after a return, the volume that the claim had.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::act::{Failure, Mover, NOW, Next, Result};
use super::api::and;
use super::copies::CopyError;
use super::decide::policy_was;
use super::objects::{claim, handle, reserved_for};
use super::status::{
    BIND, FENCE, MOVE_RECORD, MOVE_STATUS, MOVE_TO, MOVED_TO, MOVING, POLICY_WAS, Phase, Record, Status, now,
    seconds_since,
};
use super::view::{is_protected, wanted};

/// Between two looks while no pod can run.
const PRESSING: Duration = Duration::from_millis(100);
/// While pods run that have the claim which is to be given back.
const CALM: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(5);
/// What is bound at once is bound by then.
const TOUCHED: Duration = Duration::from_millis(500);
/// The uid of no object (RFC 9562, section 5.9).
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// What comes next for a PersistentVolume with a record.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// The claim that it replaces is not gone yet, it cannot be bound yet, or the new claim is not bound yet.
    Wait,
    /// It still belongs to the claim that was: reserves it for the one that comes.
    Reserve,
    MakeClaim,
    /// The volume is bound to the claim, and the claim not to it yet.
    Touch,
    /// The claim of the name has another volume: nobody but an administrator knows what is right.
    Blocked(String),
    /// The claim is bound, or was: what is left of the move goes.
    Finish,
}

/// What comes next, of what is seen. `there` is the claim that has the name now.
pub(super) fn decide(
    volume: &PersistentVolume,
    record: &Record,
    there: Option<&PersistentVolumeClaim>,
) -> Step {
    let bound_to = reserved_for(volume);
    if there.is_some_and(|claim| claim.uid().as_ref() == Some(&record.uid)) {
        return Step::Wait;
    }
    if bound_to.as_ref() == Some(&record.uid) {
        return Step::Reserve;
    }
    let Some(claim) = there else {
        // A claim that was bound and is gone was deleted by its user.
        return match bound_to.is_some() {
            true => Step::Finish,
            false if is_available(volume) => Step::MakeClaim,
            false => Step::Wait,
        };
    };
    let named =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    match named {
        Some(name) if name != volume.name_any() => Step::Blocked(name.to_owned()),
        Some(_) if phase == Some("Bound") && bound_to == claim.uid() => Step::Finish,
        _ if bound_to.is_some() && bound_to == claim.uid() => Step::Touch,
        Some(_) | None => Step::Wait,
    }
}

/// Whether pods may use a claim that is being deleted.
fn has_pods(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_some() && is_protected(claim)
}

/// Whether the controller of PersistentVolumes has seen that it is reserved, and is done with it (docs/decisions/0018).
fn is_available(volume: &PersistentVolume) -> bool {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
}

impl Mover {
    /// Does what comes next for a PersistentVolume.
    ///
    /// # Errors
    /// [`Failure`], after which the step is to be repeated.
    pub async fn step_volume(&self, name: &str) -> Result<Next> {
        let Some(volume) = self.cluster.volume(name).await? else { return Ok(Next::Finished) };
        let Some(text) = volume.annotations().get(MOVE_RECORD) else { return self.step_old(&volume).await };
        let record: Record = serde_json::from_str(text)
            .map_err(|_| Failure::Object("the record of a move on a PersistentVolume cannot be read"))?;
        let there = self.cluster.claim(&record.namespace, &record.name).await?;
        self.figures.is_in(&record.namespace, &record.name, record.status.phase);
        match decide(&volume, &record, there.as_ref()) {
            Step::Wait => Ok(Next::After(match there.as_ref().is_some_and(has_pods) {
                true => CALM,
                false => PRESSING,
            })),
            Step::Reserve => {
                self.reserve(&volume).await?;
                Ok(NOW)
            }
            Step::MakeClaim => {
                if !self.cluster.create_claim(&claim(&record, name)).await? {
                    tracing::warn!(
                        namespace = record.namespace,
                        claim = record.name,
                        volume = name,
                        "the namespace was deleted during the move; the volume is released as that of a deleted claim"
                    );
                    return self.give_to_nobody(&volume).await;
                }
                tracing::info!(
                    namespace = record.namespace,
                    claim = record.name,
                    volume = name,
                    "made again"
                );
                Ok(NOW)
            }
            Step::Touch => {
                self.touch(there.as_ref()).await?;
                Ok(Next::After(TOUCHED))
            }
            Step::Blocked(other) => {
                let why = format!(
                    "this claim has the volume {other}, not {name}, which has what the claim {} had before the move; delete \
                     the claim, or PersistentVolume {name} if its data are not wanted",
                    record.name
                );
                tracing::error!(namespace = record.namespace, claim = record.name, "{why}");
                if let Some(there) = &there {
                    self.cluster.say(there, "MoveBlocked", true, &why).await;
                }
                self.figures.failed();
                Ok(Next::After(LATER))
            }
            Step::Finish => self.finish(&volume, &record, there.as_ref()).await,
        }
    }

    /// Changes the claim, so that Kubernetes looks at it. To bind the two, its controller writes to both; where it has written to the
    /// volume in two places at once, it looks at the claim again only when that changes, or up to 15 seconds later.
    async fn touch(&self, claim: Option<&PersistentVolumeClaim>) -> Result<()> {
        let Some(claim) = claim else { return Ok(()) };
        let change = json!({"metadata": {"annotations": {BIND: now()}}});
        Ok(self.cluster.patch_claim(claim, change).await?)
    }

    /// Reserves the volume for a claim that was, so that it is *Released*, and no claim in a later namespace of that name gets it.
    async fn give_to_nobody(&self, volume: &PersistentVolume) -> Result<Next> {
        let change = json!({"spec": {"claimRef": {"uid": NOBODY}}});
        self.cluster.patch_volume(volume, change).await?;
        Ok(NOW)
    }

    /// A PersistentVolume whose reclaim policy a move has changed. If that move is over, by whomever, it gets it back.
    async fn step_old(&self, volume: &PersistentVolume) -> Result<Next> {
        if let Some(copy) = volume.annotations().get(FENCE) {
            return self.fence(volume, copy).await;
        }
        let reserved = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
        let (Some(namespace), Some(name)) = (&reserved.namespace, &reserved.name) else {
            return Ok(Next::Finished);
        };
        if policy_was(volume).is_none() {
            return Ok(Next::Finished);
        }
        let claim = self.cluster.claim(namespace, name).await?;
        let moves = |phase: Phase| {
            !matches!(phase, Phase::Refused | Phase::Done | Phase::Copying | Phase::CatchingUp)
        };
        let over = match claim.filter(|claim| claim.uid() == reserved.uid) {
            Some(claim) => !super::view::status(&claim).is_some_and(|status| moves(status.phase)),
            // The record of the new PersistentVolume says what becomes of the old one.
            None => !self.cluster.is_recorded(&volume.name_any()).await?,
        };
        if over {
            self.restore(volume).await?;
            return Ok(Next::Finished);
        }
        Ok(Next::After(LATER))
    }

    async fn finish(
        &self,
        volume: &PersistentVolume,
        record: &Record,
        there: Option<&PersistentVolumeClaim>,
    ) -> Result<Next> {
        let returned = handle(volume) == Some(record.old_handle.as_str());
        if let Some(there) = there
            && let Some(change) = told(there, record, &done(record, returned))
        {
            // Not before the claim is bound: the scheduler would look at its pod too early, and then wait.
            self.cluster.nudge(&record.namespace, &record.name).await;
            self.cluster.patch_claim(there, change).await?;
            return Ok(NOW);
        }
        let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        if policy != Some(record.reclaim_policy.as_str()) {
            let change = json!({"spec": {"persistentVolumeReclaimPolicy": record.reclaim_policy}});
            self.cluster.patch_volume(volume, change).await?;
            return Ok(NOW);
        }
        match returned {
            // A mover that was about to seal it when it was given back may have done so since.
            true => {
                self.open(&record.old_handle).await?;
                self.cluster.nudge(&record.namespace, &record.name).await;
            }
            false => self.leave(record).await?,
        }
        let change = json!({"metadata": {"annotations": {MOVE_RECORD: null, POLICY_WAS: null}, "labels": {MOVING: null}}});
        self.cluster.patch_volume(volume, change).await?;
        self.told_all(record, there, returned).await;
        Ok(Next::Finished)
    }

    /// The old volume goes, or stays as the claim asked for.
    async fn leave(&self, record: &Record) -> Result<()> {
        let Some(old) = self.cluster.volume(&record.old_volume).await? else { return Ok(()) };
        let spec = old.spec.as_ref();
        let of_claim = spec.and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.uid.as_deref());
        if handle(&old) != Some(record.old_handle.as_str()) || of_claim != Some(record.uid.as_str()) {
            tracing::warn!(volume = record.old_volume, "the old volume has another use by now, and stays");
            return Ok(());
        }
        if record.status.stale {
            // It may have what the copy lacks.
            let (moved_to, copy) = (record.status.name.as_str(), record.status.copy.as_str());
            let change =
                json!({"metadata": {"annotations": {MOVED_TO: moved_to, FENCE: copy, POLICY_WAS: null}}});
            return Ok(self.cluster.patch_volume(&old, change).await?);
        }
        if record.keep_source {
            self.open(&record.old_handle).await?;
            let moved_to = record.status.name.as_str();
            let change = json!({"metadata": {"annotations": {MOVED_TO: moved_to, POLICY_WAS: null}, "labels": {MOVING: null}}});
            return Ok(self.cluster.patch_volume(&old, change).await?);
        }
        let change = json!({"metadata": {"annotations": {POLICY_WAS: null}, "labels": {MOVING: null}},
            "spec": {"persistentVolumeReclaimPolicy": "Delete"}});
        Ok(self.cluster.patch_volume(&old, change).await?)
    }

    /// Lets pods use the volume. One that is gone needs no more.
    async fn open(&self, volume: &str) -> Result<()> {
        match self.copies.seal(volume, None).await {
            Ok(()) | Err(CopyError::NotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn told_all(&self, record: &Record, there: Option<&PersistentVolumeClaim>, returned: bool) {
        let Record { namespace, name, status, .. } = record;
        let seconds = status.switching_since.as_deref().and_then(seconds_since).unwrap_or(0);
        tracing::info!(
            namespace,
            claim = name,
            target = status.target,
            returned,
            seconds,
            "the move is over"
        );
        self.figures.is_over(namespace, name);
        self.figures.ended(if returned { Phase::Returning } else { Phase::Done });
        let Some(there) = there else { return };
        let (reason, text) = match returned {
            true => ("MoveGivenUp", format!("The claim has the volume on node {} again", status.source)),
            false if status.stale => (
                "Promoted",
                format!(
                    "The volume is on node {} as it was at {}. What was written after that is in PersistentVolume {} of node {}, \
                     if that is ever back",
                    status.target,
                    status.last_cut.as_deref().unwrap_or("the first copy"),
                    record.old_volume,
                    status.source
                ),
            ),
            false => (
                "Moved",
                format!(
                    "The volume is on node {}. The claim was without a volume for {seconds} s",
                    status.target
                ),
            ),
        };
        self.cluster.say(there, reason, returned || status.stale, &text).await;
    }
}

/// The last status.
fn done(record: &Record, returned: bool) -> Status {
    match returned {
        true => Status::new(Phase::Refused, record.status.message.as_str()),
        false => {
            record.status.in_phase(Phase::Done, format!("the volume is on node {}", record.status.target))
        }
    }
}

/// What the claim does not say yet: how the move ended.
fn told(there: &PersistentVolumeClaim, record: &Record, done: &Status) -> Option<Value> {
    let written = super::view::status(there);
    if done.phase == Phase::Refused && wanted(there).is_none() {
        // Nobody asks for it any more: the claim's own step would take away what is told of it.
        let of_this = written.is_some_and(|status| status.name == record.status.name);
        let gone = json!({"metadata": {"annotations": {BIND: null, MOVE_STATUS: null}}});
        return (of_this || there.annotations().contains_key(BIND)).then_some(gone);
    }
    let ours = |status: &Status| {
        status.phase == done.phase && status.name == done.name && status.message == done.message
    };
    if written.as_ref().is_some_and(ours) {
        return None;
    }
    // Its user has asked for another move meanwhile.
    if written.as_ref().is_some_and(|status| status.name != record.status.name && !status.name.is_empty()) {
        return None;
    }
    let told =
        json!({"metadata": {"annotations": {BIND: null, MOVE_STATUS: serde_json::to_string(done).ok()?}}});
    let arrived = there.annotations().get(MOVE_TO) == Some(&record.status.target);
    Some(if arrived { and(told, json!({"metadata": {"annotations": {MOVE_TO: null}}})) } else { told })
}
