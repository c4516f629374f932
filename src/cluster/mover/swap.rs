//! From the moment the pods may leave: the last round, the PersistentVolume of the copy, and the ways back.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::act::{Failure, LATER, Mover, NOW, Next, REFUSED, Result, counted};
use super::copies::CopyError;
use super::decide::{PRESSING, is_retained, policy_was, sent_away};
use super::objects::{handle, record, reserved_for, volume};
use super::status::{FINALIZER, MOVE_RECORD, MOVING, POLICY_WAS, Phase, Status, now};
use super::view::View;

impl Mover {
    pub(super) async fn evict(&self, view: &View, status: &Status, names: &[String]) -> Result<Next> {
        for pod in view.pods.iter().filter(|pod| names.contains(&pod.name_any())) {
            match self.cluster.evict(pod).await {
                Ok(()) => tracing::info!(pod = pod.name_any(), claim = view.claim.name_any(), "evicted"),
                Err(kube::Error::Api(answer)) if answer.code == 429 => {
                    let why = format!("pod {} may not be evicted yet: {}", pod.name_any(), answer.message);
                    self.note(view, status, &why).await?;
                    return Ok(Next::After(LATER));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Next::After(Duration::from_millis(250)))
    }

    /// No pod uses the claim, and none can. The last round makes the copy the same to the byte; only when that is written
    /// down does it become a volume.
    pub(super) async fn complete(&self, view: &View, status: &Status) -> Result<Next> {
        if status.exact || status.stale {
            let old = view.volume.as_ref().ok_or(Failure::Object("the claim's PersistentVolume is gone"))?;
            let source = handle(old).unwrap_or_default();
            let mut completed = self.copies.complete(&status.copy, source, status.stale).await;
            if completed.is_ok() && status.bytes < view.bytes() {
                // It grew after its last round.
                completed = self.copies.expand(&status.copy, view.bytes()).await;
            }
            return match completed {
                Ok(()) => {
                    let next = status.in_phase(Phase::Rebinding, "the claim is made again for the copy");
                    self.enter(view, next).await
                }
                // There is nothing else of its data.
                Err(error) if status.stale => {
                    self.figures.failed();
                    self.note(view, status, &error.to_string()).await?;
                    Ok(Next::After(LATER))
                }
                Err(error) => self.hindered(view, status, error).await,
            };
        }
        let round = self.a_round(view, status).await?;
        match self.copies.seal(&round.source, Some(&status.copy)).await {
            // It has answered: the next silence begins anew.
            Ok(()) if status.silent_since.is_some() => {
                let next = Status { silent_since: None, ..status.clone() };
                return self.write(view, Some(&next), json!({})).await;
            }
            Ok(()) => {}
            Err(CopyError::Unavailable(why) | CopyError::Silent(why)) if status.standby => {
                return self.unanswered(view, status, &why).await;
            }
            Err(error) => return self.hindered(view, status, error).await,
        }
        // What was sealed answers: it has the last data, and nothing but them will do.
        let asked = now();
        let updated = match self.copies.update(&round).await {
            Ok(updated) => updated,
            Err(error) => return self.hindered(view, status, error).await,
        };
        self.figures.round(updated.sent_bytes, updated.changed_bytes);
        if updated.source_in_use {
            self.note(view, status, "the volume is still in use on its node").await?;
            return Ok(Next::After(LATER));
        }
        let next = Status { exact: true, silent_since: None, ..counted(status, &updated, asked) };
        self.write(view, Some(&next), json!({})).await
    }

    /// Makes what holds the record, and then lets the claim go.
    pub(super) async fn make_volume(&self, view: &View, status: &Status) -> Result<Next> {
        if !is_retained(view, status) {
            return self.retain(view, status).await;
        }
        if self.cluster.volume(&status.name).await?.is_none() {
            let old = view.volume.as_ref().ok_or(Failure::Object("the claim's PersistentVolume is gone"))?;
            let made = record(&view.claim, old, status).and_then(|record| volume(old, &record));
            let made =
                made.ok_or(Failure::Object("the claim or its PersistentVolume lacks what every one has"))?;
            self.cluster.create_volume(&made).await?;
        }
        self.cluster.patch_claim(&view.claim, self.without_finalizer(view)).await?;
        Ok(Next::Finished)
    }

    pub(super) fn without_finalizer(&self, view: &View) -> Value {
        let finalizers = view.claim.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER);
        json!({"metadata": {"finalizers": finalizers.collect::<Vec<_>>()}})
    }

    /// Everything is as before, but for a status that says why.
    pub(super) async fn undo(&self, view: &View, status: &Status) -> Result<Next> {
        let source = view.volume.as_ref().and_then(handle).unwrap_or_default();
        for copy in status.abandoned.iter().chain([&status.copy]) {
            if let Err(error) = self.copies.delete(copy, source).await {
                self.note(view, status, &error.to_string()).await?;
                return Ok(Next::After(LATER));
            }
        }
        if let Some(volume) = view.volume.as_ref().filter(|volume| policy_was(volume).is_some()) {
            self.restore(volume).await?;
            return Ok(NOW);
        }
        self.figures.ended(Phase::Cancelling);
        let asked_for = view.wanted().is_some() || !matches!(view.standby, Ok(None));
        let refused = asked_for.then(|| Status::new(Phase::Refused, status.message.as_str()));
        self.write(view, refused.as_ref(), self.without_finalizer(view)).await?;
        Ok(if refused.is_some() { Next::After(REFUSED) } else { Next::Finished })
    }

    pub(super) async fn retain(&self, view: &View, status: &Status) -> Result<Next> {
        let volume = view.volume.as_ref().ok_or(Failure::Object("the claim's PersistentVolume is gone"))?;
        let now = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let was = policy_was(volume).map_or(now, |(_, policy)| Some(policy)).unwrap_or("Delete");
        let was = format!("{}/{was}", status.name);
        let change = json!({"metadata": {"annotations": {POLICY_WAS: was}, "labels": {MOVING: "true"}},
            "spec": {"persistentVolumeReclaimPolicy": "Retain"}});
        self.cluster.patch_volume(volume, change).await?;
        Ok(NOW)
    }

    /// Keeps a PersistentVolume for the next claim of the name that its claim has.
    pub(super) async fn reserve(&self, volume: &PersistentVolume) -> Result<()> {
        let change = json!({"spec": {"claimRef": {"uid": null, "resourceVersion": null}}});
        Ok(self.cluster.patch_volume(volume, change).await?)
    }

    /// Gives a PersistentVolume the reclaim policy back that it had.
    pub(super) async fn restore(&self, volume: &PersistentVolume) -> Result<()> {
        let Some((_, policy)) = policy_was(volume) else { return Ok(()) };
        let change = json!({"metadata": {"annotations": {POLICY_WAS: null}, "labels": {MOVING: null}},
            "spec": {"persistentVolumeReclaimPolicy": policy}});
        Ok(self.cluster.patch_volume(volume, change).await?)
    }

    /// The claim is to be made again for the volume that it had.
    pub(super) async fn give_back(&self, view: &View, status: &Status) -> Result<Next> {
        let old = view.volume.as_ref().ok_or(Failure::Object("the claim's PersistentVolume is gone"))?;
        let source = handle(old).unwrap_or_default();
        let undone = match self.copies.seal(source, None).await {
            Ok(()) => self.copies.delete(&status.copy, source).await,
            Err(error) => Err(error),
        };
        if let Err(error) = undone {
            self.note(view, status, &error.to_string()).await?;
            return Ok(Next::After(LATER));
        }
        if !view.is_being_deleted() {
            // It was given up before the claim was deleted.
            return self.enter(view, status.in_phase(Phase::Cancelling, status.message.clone())).await;
        }
        if !is_retained(view, status) {
            return self.retain(view, status).await;
        }
        if !old.annotations().contains_key(MOVE_RECORD) {
            let record = record(&view.claim, old, status);
            let record = record.ok_or(Failure::Object("the claim lacks what every one has"))?;
            let text =
                serde_json::to_string(&record).map_err(|_| Failure::Object("a record cannot be written"))?;
            let change =
                json!({"metadata": {"annotations": {MOVE_RECORD: text}, "labels": {MOVING: "true"}}});
            self.cluster.patch_volume(old, change).await?;
            return Ok(NOW);
        }
        if view.is_protected() {
            let stuck = sent_away(view, false);
            if !stuck.is_empty() {
                return self.evict(view, status, &stuck).await;
            }
            self.note(view, status, &waits_to_return(view)).await?;
            return Ok(Next::After(PRESSING));
        }
        // Before the claim goes: whoever makes one of its name, be it a StatefulSet that is quicker, gets this volume.
        match reserved_for(old) {
            None => {}
            Some(uid) if view.claim.uid().as_ref() == Some(&uid) => {
                self.reserve(old).await?;
                return Ok(NOW);
            }
            // The claim was read before it was replaced, and its volume after that: another process was quicker.
            Some(_) => return Ok(Next::After(LATER)),
        }
        self.cluster.patch_claim(&view.claim, self.without_finalizer(view)).await?;
        Ok(Next::Finished)
    }
}

fn waits_to_return(view: &View) -> String {
    let holding: Vec<String> = view.users().map(|pod| pod.name_any()).collect();
    match holding.as_slice() {
        [] => "no pod uses the claim any more; Kubernetes has not noticed it yet".to_owned(),
        [one] => format!("the claim is made again for its volume as soon as pod {one} has left"),
        some => {
            format!("the claim is made again for its volume as soon as pods {} have left", some.join(", "))
        }
    }
}
