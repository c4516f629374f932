//! The first half of a move: from the wish on the claim to the PersistentVolume of the copy. Looks, has `decide.rs` say
//! what comes next, and does that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::api::{self, Cluster};
use super::copies::{Copies, CopyError, NewCopy, Round, most_bytes};
use super::decide::{Step, decide, is_near};
use super::figures::Figures;
use super::objects::{access, copy_name};
use super::status::{FINALIZER, MOVE_STATUS, Phase, Status, moment, now};
use super::view::{View, standby, status, wanted};
use crate::model::{NodeKey, VolumeId};

/// After something that may pass.
pub(super) const LATER: Duration = Duration::from_secs(2);
/// Between two looks at the reasons of a refusal.
pub(super) const REFUSED: Duration = Duration::from_secs(30);
/// A node that has not answered for so long, and of which an administrator says that it is lost, is lost. The driver on it may
/// only have been restarted.
const UNANSWERED: Duration = Duration::from_secs(30);
/// Parameters with this are Kubernetes' own: csi-provisioner does not pass them on either.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";

/// Moves the volumes of one driver. Holds nothing that is not on the objects.
#[derive(Clone)]
pub struct Mover {
    pub(super) cluster: Cluster,
    pub(super) copies: Arc<dyn Copies>,
    pub(super) driver: String,
    pub(super) figures: Arc<Figures>,
    pub(super) patience: Duration,
}

/// When to look at a claim or a PersistentVolume again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When it changes.
    Finished,
    After(Duration),
}

/// At once.
pub(super) const NOW: Next = Next::After(Duration::ZERO);

/// Why a step failed. The next look tells what is left to do.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] kube::Error),
    #[error("{0}")]
    Copies(#[from] CopyError),
    /// An object cannot be what it is.
    #[error("{0}")]
    Object(&'static str),
}

impl Failure {
    /// Whether it is enough to look again.
    pub(super) fn is_outdated(&self) -> bool {
        matches!(self, Failure::Kubernetes(error) if api::is_outdated(error))
    }
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

impl Mover {
    /// A mover of this driver's volumes.
    pub fn new(client: kube::Client, copies: Arc<dyn Copies>, driver: &str, figures: Arc<Figures>) -> Self {
        Mover {
            cluster: Cluster::new(client, driver),
            copies,
            driver: driver.to_owned(),
            figures,
            patience: UNANSWERED,
        }
    }

    /// The same, but the node of a volume that is promoted is given up when it has not answered for so long.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Mover { patience, ..self }
    }

    /// A mover of this driver's volumes with the service account of this pod, or a kubeconfig.
    ///
    /// # Errors
    /// Where there is neither.
    pub async fn connect(
        copies: Arc<dyn Copies>,
        driver: &str,
        figures: Arc<Figures>,
    ) -> std::result::Result<Self, String> {
        let client = kube::Client::try_default().await;
        let client = client.map_err(|error| format!("cannot reach the API server: {error}"))?;
        Ok(Mover::new(client, copies, driver, figures))
    }

    /// Does what comes next for a claim.
    ///
    /// # Errors
    /// [`Failure`], after which the step is to be repeated.
    pub async fn step_claim(&self, namespace: &str, name: &str) -> Result<Next> {
        let Some(claim) = self.cluster.claim(namespace, name).await? else { return Ok(Next::Finished) };
        let phase = status(&claim).map(|status| status.phase);
        match phase {
            None | Some(Phase::Done) => self.figures.is_over(namespace, name),
            Some(phase) => self.figures.is_in(namespace, name, phase),
        }
        let held = claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        let class = self.class(&claim).await?;
        let standby = standby(&claim, &class.as_ref().map(parameters).unwrap_or_default());
        let stands_by = !matches!(standby, Ok(None));
        if wanted(&claim).is_none() && !held && phase != Some(Phase::Refused) && !stands_by {
            return Ok(Next::Finished);
        }
        let view = self.look(claim, phase, (class, standby)).await?;
        match view.status().filter(|status| status.phase == Phase::Standby) {
            Some(status) => self.tell_age(&view, &status),
            None => self.figures.stands_by(namespace, name, None),
        }
        self.act(&view, decide(&view)).await
    }

    async fn act(&self, view: &View, step: Step) -> Result<Next> {
        let status = view.status();
        match (step, &status) {
            (Step::Nothing, _) => Ok(Next::Finished),
            (Step::Wait(time, why), Some(status)) => {
                self.note(view, status, &why).await?;
                Ok(Next::After(time))
            }
            (Step::Refuse(why), _) => self.refuse(view, &why).await,
            (Step::Forget, _) => self.write(view, None, json!({})).await,
            (Step::Begin(targets), _) => self.begin(view, targets).await,
            (Step::Copy, Some(status)) => self.copy(view, status).await,
            (Step::Round, Some(status)) => self.round(view, status).await,
            (Step::Enter(phase, why), Some(status)) => self.enter(view, status.in_phase(phase, why)).await,
            (Step::Retain, Some(status)) => self.retain(view, status).await,
            (Step::DeleteClaim, Some(_)) => {
                self.cluster.delete_claim(&view.claim).await?;
                Ok(NOW)
            }
            (Step::Evict(pods), Some(status)) => self.evict(view, status, &pods).await,
            (Step::Complete, Some(status)) => self.complete(view, status).await,
            (Step::MakeVolume, Some(status)) => self.make_volume(view, status).await,
            (Step::Undo, Some(status)) => self.undo(view, status).await,
            (Step::Return, Some(status)) => self.give_back(view, status).await,
            (Step::Unmark, _) => self.write(view, None, self.without_finalizer(view)).await,
            (_, None) => Ok(Next::Finished),
        }
    }

    /// Writes the status, or takes it away, with another change.
    pub(super) async fn write(&self, view: &View, status: Option<&Status>, change: Value) -> Result<Next> {
        let text = status.map(serde_json::to_string).transpose();
        let text = text.map_err(|_| Failure::Object("a status cannot be written"))?;
        let change = api::and(change, json!({"metadata": {"annotations": {MOVE_STATUS: text}}}));
        self.cluster.patch_claim(&view.claim, change).await?;
        Ok(NOW)
    }

    /// Writes a message, unless it is there.
    pub(super) async fn note(&self, view: &View, status: &Status, message: &str) -> Result<()> {
        if status.message != message {
            self.write(view, Some(&status.in_phase(status.phase, message)), json!({})).await?;
        }
        Ok(())
    }

    async fn refuse(&self, view: &View, why: &str) -> Result<Next> {
        let same =
            view.status().is_some_and(|status| status.phase == Phase::Refused && status.message == why);
        if !same {
            self.write(view, Some(&Status::new(Phase::Refused, why)), json!({})).await?;
            let (reason, text) = match view.wanted_elsewhere() {
                None if view.wants_standby().is_some() => {
                    ("StandbyRefused", format!("There is no standby copy: {why}"))
                }
                _ => ("MoveRefused", format!("The volume is not moved: {why}")),
            };
            self.cluster.say(&view.claim, reason, true, &text).await;
            self.figures.ended(Phase::Refused);
        }
        Ok(Next::After(REFUSED))
    }

    pub(super) async fn enter(&self, view: &View, mut status: Status) -> Result<Next> {
        match status.phase {
            Phase::Switching => status.switching_since = Some(now()),
            Phase::Standby => status.standby = true,
            Phase::CatchingUp => status.standby = false,
            _ => {}
        }
        self.write(view, Some(&status), json!({})).await?;
        let Status { phase, message, target, .. } = &status;
        tracing::info!(
            claim = view.claim.name_any(),
            namespace = view.claim.namespace(),
            phase = phase.as_str(),
            target,
            message,
            "a volume moves"
        );
        let (reason, warning) = match phase {
            Phase::Switching if status.standby => ("StandbyPromoted", true),
            Phase::Switching => ("MoveSwitching", false),
            Phase::Cancelling | Phase::Returning => ("MoveGivenUp", true),
            _ => return Ok(NOW),
        };
        let text = format!("The move to node {target}: {message}");
        self.cluster.say(&view.claim, reason, warning, &text).await;
        Ok(NOW)
    }

    async fn begin(&self, view: &View, targets: Vec<String>) -> Result<Next> {
        let (Some(volume), Some(source)) = (&view.volume, view.source()) else {
            return Err(Failure::Object("a volume without a node was to be moved"));
        };
        let mut status = Status::new(Phase::Copying, "the first copy is being made");
        status.source = source;
        status.name = copy_name(&volume.name_any(), &view.claim);
        status.bytes = view.bytes();
        status.abandoned = abandoned(view);
        if let Some((source, copy)) =
            view.volume.as_ref().and_then(super::objects::handle).zip(status.abandoned.last())
            && let Err(why) = self.copies.release(source, copy).await
        {
            tracing::debug!(source, copy, %why, "the cuts for a lost copy are still there");
        }
        let Some(target) = self.roomiest(view, &status, targets).await? else {
            return self.refuse(view, "no other node has room for it").await;
        };
        status.copy = VolumeId::of_name(&NodeKey::of(&target), &status.name).to_string();
        status.target = target;
        let mut finalizers = view.claim.finalizers().to_vec();
        if !view.is_held() {
            finalizers.push(FINALIZER.to_owned());
        }
        self.write(view, Some(&status), json!({"metadata": {"finalizers": finalizers}})).await?;
        let (reason, text) = match view.wanted_elsewhere() {
            Some(_) => ("MoveStarted", format!("The volume is copied to node {}", status.target)),
            None => ("StandbyStarted", format!("A standby copy is made on node {}", status.target)),
        };
        self.cluster.say(&view.claim, reason, false, &text).await;
        Ok(NOW)
    }

    /// The node with the most room; where only one is left, that says itself whether it has enough.
    async fn roomiest(&self, view: &View, status: &Status, targets: Vec<String>) -> Result<Option<String>> {
        if let [only] = targets.as_slice() {
            return Ok(Some(only.clone()));
        }
        let mut best: Option<(u64, String)> = None;
        for target in targets {
            let copy = self.new_copy(view, &Status { target: target.clone(), ..status.clone() }).await?;
            let room = self.copies.room(&copy).await.unwrap_or(0);
            if room >= status.bytes && best.as_ref().is_none_or(|(most, _)| room > *most) {
                best = Some((room, target));
            }
        }
        Ok(best.map(|(_, target)| target))
    }

    async fn new_copy(&self, view: &View, status: &Status) -> Result<NewCopy> {
        let volume = view.volume.as_ref().ok_or(Failure::Object("the claim's PersistentVolume is gone"))?;
        let attributes = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
        let mutable_parameters = match attributes {
            Some(name) if !name.is_empty() => self.cluster.attributes(&name).await?,
            _ => BTreeMap::new(),
        };
        Ok(NewCopy {
            name: status.name.clone(),
            source: super::objects::handle(volume).unwrap_or_default().to_owned(),
            target: status.target.clone(),
            bytes: status.bytes,
            access: access(volume),
            parameters: self.parameters(view).await?,
            mutable_parameters,
        })
    }

    async fn parameters(&self, view: &View) -> Result<BTreeMap<String, String>> {
        let class = self.class(&view.claim).await?;
        Ok(class.as_ref().map(parameters).unwrap_or_default())
    }

    async fn copy(&self, view: &View, status: &Status) -> Result<Next> {
        let copy = self.new_copy(view, status).await?;
        let made = self.copies.create(&copy).await;
        if self.is_over(view, status).await? {
            // Another process leads by now, and was quicker to give the move up than this one to make the copy.
            self.copies.delete(&status.copy, &copy.source).await?;
            return Ok(NOW);
        }
        match made {
            Ok(()) => {
                let next = status.in_phase(Phase::CatchingUp, "what has changed meanwhile is being copied");
                self.enter(view, next).await
            }
            Err(error) => self.hindered(view, status, error).await,
        }
    }

    /// Whether nobody will ever use this copy. No other attempt has its name, so it can be deleted.
    async fn is_over(&self, view: &View, status: &Status) -> Result<bool> {
        let (namespace, name) = (view.claim.namespace().unwrap_or_default(), view.claim.name_any());
        let claim = self.cluster.claim(&namespace, &name).await?;
        let wanted = |now: Status| {
            now.name == status.name
                && !matches!(now.phase, Phase::Cancelling | Phase::Returning | Phase::Refused)
        };
        if claim.as_ref().and_then(super::view::status).is_some_and(wanted) {
            return Ok(false);
        }
        Ok(self.cluster.volume(&status.name).await?.is_none())
    }

    async fn round(&self, view: &View, status: &Status) -> Result<Next> {
        let (began, asked) = (Instant::now(), now());
        let updated = match self.copies.update(&self.a_round(view, status).await?).await {
            Ok(updated) => updated,
            Err(error) => return self.hindered(view, status, error).await,
        };
        self.figures.round(updated.sent_bytes, updated.changed_bytes);
        let mut next = counted(status, &updated, asked);
        if status.phase == Phase::Standby {
            return self.stood_by(view, next).await;
        }
        let near = status.phase == Phase::Ready || is_near(status, updated.sent_bytes, began.elapsed());
        if near && view.wanted_elsewhere().is_none() {
            return self.enter(view, next.in_phase(Phase::Standby, "the copy stands by")).await;
        }
        if near && status.phase != Phase::Ready {
            next.phase = Phase::Ready;
            next.message = "the copy is nearly up to date".to_owned();
            let text = format!(
                "The copy on node {} is nearly up to date: it is used once the pods have left",
                next.target
            );
            self.write(view, Some(&next), json!({})).await?;
            self.cluster.say(&view.claim, "MoveReady", false, &text).await;
            return Ok(NOW);
        }
        self.write(view, Some(&next), json!({})).await
    }

    pub(super) async fn a_round(&self, view: &View, status: &Status) -> Result<Round> {
        let volume = view.volume.as_ref().ok_or(Failure::Object("the claim's PersistentVolume is gone"))?;
        let source = super::objects::handle(volume).unwrap_or_default().to_owned();
        let whole = view.wants_standby().is_some() || status.standby;
        let (copy, parameters) = (status.copy.clone(), self.parameters(view).await?);
        Ok(Round { copy, source, parameters, whole, most_bytes: most_bytes(view.bytes()) })
    }
}

/// The copies that wait for their nodes, with the one that this attempt replaces.
fn abandoned(view: &View) -> Vec<String> {
    let Some(status) = view.status() else { return Vec::new() };
    let ended = matches!(status.phase, Phase::Refused | Phase::Done);
    let mut abandoned = status.abandoned;
    if !ended && !status.copy.is_empty() && !abandoned.contains(&status.copy) {
        abandoned.push(status.copy);
    }
    abandoned
}

/// The status after a round that was `asked` for at that time.
pub(super) fn counted(status: &Status, updated: &super::copies::Updated, asked: String) -> Status {
    Status {
        rounds: status.rounds.saturating_add(1),
        sent_bytes: status.sent_bytes.saturating_add(updated.sent_bytes),
        changed_bytes: status.changed_bytes.saturating_add(updated.changed_bytes),
        last_sent_bytes: updated.sent_bytes,
        last_cut: moment(updated.cut_ns),
        last_asked: Some(asked),
        ..status.clone()
    }
}

/// What the driver gets of the parameters of a class.
pub(in crate::cluster) fn parameters(class: &StorageClass) -> BTreeMap<String, String> {
    let given = class.parameters.iter().flatten().filter(|(key, _)| !key.starts_with(OF_KUBERNETES));
    given.map(|(key, value)| (key.clone(), value.clone())).collect()
}
