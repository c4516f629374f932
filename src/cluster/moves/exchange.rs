//! The exchange: a PersistentVolume gets another node. Its name, its claim and its volume id stay.
//!
//! If the API server lets `nodeAffinity` change (KEP-5381), that is one patch. Otherwise the object is deleted and created
//! again. The claim is Lost meanwhile, and Bound again as soon as the controller of PersistentVolumes finds one of that name
//! with its uid. Between the two, nothing but the VolumeReplica has the object: it is recorded there first.

mod recorded;

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

pub(crate) use self::recorded::{affinity_of, as_recorded, foreign, made_again};
use self::recorded::{
    is_as_recorded, is_changed_back, policy, policy_to_restore, retain, typed, with_policy_of,
};
use super::objects::{Objects, Run, is_outdated};
use super::resources::VolumeReplicaSpec;

/// On a claim: for which copy and node it was changed, how often before while it was Lost, and when, so that the controller of
/// PersistentVolumes looks at it. It stays: a controller that has lost the Lease may write it late.
const TOUCHED: &str = "hostloop.csi.dev/touched";
/// After the first change of a claim that stays Lost, it is changed again. The time until the next change doubles each time.
const TOUCH_AGAIN: Duration = Duration::from_millis(250);
/// The longest time between two changes of a claim that stays Lost. The controller of PersistentVolumes looks at it as often by itself.
const TOUCH_MOST: Duration = Duration::from_secs(15);

/// What an exchange has come to.
#[derive(Debug, PartialEq)]
pub enum Progress {
    /// The claim is bound to the volume on the other node, or the claim is gone.
    Done,
    /// The PersistentVolume is about to be deleted: the caller writes it into the VolumeReplica first.
    Record(Value),
    /// A step has been done, and the next one comes at once.
    Next,
    /// The claim was changed, so that the controller of PersistentVolumes looks at it.
    Touched,
    /// The controller of PersistentVolumes has not bound the claim yet. The claim is changed again after this time.
    Unbound(Duration),
    /// Nothing can be done until an administrator has done what this says.
    Blocked(String),
}

/// Why an exchange cannot be made. Nothing has been changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// One exchange: the volume of a VolumeReplica gets the node of the copy.
pub struct Exchange<'a> {
    objects: &'a Objects,
    spec: &'a VolumeReplicaSpec,
    /// The node that the PersistentVolume gets.
    node: &'a str,
}

impl<'a> Exchange<'a> {
    /// An exchange to the node of the copy.
    pub fn new(objects: &'a Objects, spec: &'a VolumeReplicaSpec) -> Self {
        Self::to(objects, spec, &spec.target_node)
    }

    /// An exchange to either of the two nodes.
    pub fn to(objects: &'a Objects, spec: &'a VolumeReplicaSpec, node: &'a str) -> Self {
        Exchange { objects, spec, node }
    }

    /// Checks whether the exchange can be made, and asks the API server to check each of its requests. Nothing is changed.
    ///
    /// # Errors
    /// The outer one if the API server does not answer, the inner one if it cannot be made.
    pub async fn check(&self) -> Result<Result<(), Refused>, kube::Error> {
        let name = &self.spec.persistent_volume.name;
        let Some(whole) = self.objects.whole_volume(name).await? else {
            return refuse(format!("PersistentVolume {name} does not exist"));
        };
        let volume = typed(&whole)?;
        if !self.is_ours(&volume) {
            return refuse(self.is_another());
        }
        if volume.metadata.deletion_timestamp.is_some() {
            return refuse(format!("PersistentVolume {name} is being deleted"));
        }
        let foreign = foreign(&volume);
        if !foreign.is_empty() {
            return refuse(format!(
                "PersistentVolume {name} is held by {}, and has to be deleted and created again; remove {} first",
                foreign.join(", "),
                if foreign.len() == 1 { "that finalizer" } else { "those finalizers" }
            ));
        }
        match self.objects.patch_volume(&volume, self.moved(), Run::Dry).await {
            Ok(changed) if self.has_moved(&changed) => return Ok(Ok(())),
            Ok(_) => return refuse(is_changed_back(&volume)),
            Err(error) if is_immutable(&error) => {}
            Err(error) => return refusal(error),
        }
        match self.try_replacement(&volume, &whole).await {
            Ok(true) => Ok(Ok(())),
            Ok(false) => refuse(is_changed_back(&volume)),
            Err(error) => refusal(error),
        }
    }

    /// Reports whether the PersistentVolume may have its node already, or be without one: it is being exchanged, or is gone while its
    /// claim is there.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn may_be_made(&self) -> Result<bool, kube::Error> {
        match self.objects.volume(&self.spec.persistent_volume.name).await? {
            Some(volume) => {
                let deleted = volume.metadata.deletion_timestamp.is_some();
                Ok(self.is_ours(&volume) && (deleted || self.has_moved(&volume)))
            }
            None => Ok(self.claim().await?.is_some()),
        }
    }

    /// Asks the API server to check each request that replaces the PersistentVolume. Reports whether each has its effect.
    async fn try_replacement(&self, volume: &PersistentVolume, whole: &Value) -> Result<bool, kube::Error> {
        let retained = self.objects.patch_volume(volume, retain(), Run::Dry).await?;
        let left = json!({"metadata": {"finalizers": foreign(volume)}});
        let released = self.objects.patch_volume(volume, left, Run::Dry).await?;
        self.objects.delete_volume(volume, Run::Dry).await?;
        let mut trial = made_again(whole, self.node);
        // The name is taken; what admission says of another one, it says of this one.
        if let Some(name) = trial.pointer_mut("/metadata/name") {
            *name = json!(format!("{}-check", volume.name_any()));
        }
        let created = self.objects.create_volume(&trial, Run::Dry).await?;
        let is_released = volume.finalizers().is_empty() || released.finalizers() != volume.finalizers();
        Ok(policy(&retained) == Some("Retain") && is_released && self.has_moved(&created))
    }

    /// Does the next step. `recorded` is the PersistentVolume that the VolumeReplica has. Every step looks again, and may be the
    /// last one of a process.
    ///
    /// # Errors
    /// If the API server does not answer, or an object changed meanwhile: the step is to be repeated.
    pub async fn step(&self, recorded: Option<&Value>) -> Result<Progress, kube::Error> {
        let name = &self.spec.persistent_volume.name;
        let Some(whole) = self.objects.whole_volume(name).await? else {
            return match recorded {
                Some(recorded) => self.create(recorded).await,
                // Its user deleted both.
                None if self.claim().await?.is_none() => Ok(Progress::Done),
                None => Ok(Progress::Blocked(format!(
                    "PersistentVolume {name} does not exist, and nothing has recorded it; create it again with volumeHandle {}, \
                     the uid of its claim, and node {}",
                    self.spec.volume_id, self.node
                ))),
            };
        };
        let volume = typed(&whole)?;
        if !self.is_ours(&volume) {
            return Ok(Progress::Blocked(self.is_another()));
        }
        let deleted = volume.metadata.deletion_timestamp.is_some();
        if !deleted && self.has_moved(&volume) {
            // An exchange the other way was given up before the deletion.
            if let Some(recorded) = recorded
                && let Some(policy) = policy_to_restore(&volume, recorded)
            {
                let restored = json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
                let changed = self.objects.patch_volume(&volume, restored, Run::Real).await?;
                if policy_to_restore(&changed, recorded).is_none() {
                    return Ok(Progress::Next);
                }
                // Pods do not wait for a policy of the cluster that keeps every volume.
                tracing::warn!(
                    volume = name,
                    policy,
                    "the reclaim policy is not restored: {}",
                    is_changed_back(&volume)
                );
            }
            return self.bind(recorded.is_some()).await;
        }
        if !deleted && recorded.is_none() {
            return match self.objects.patch_volume(&volume, self.moved(), Run::Real).await {
                Ok(changed) if self.has_moved(&changed) => Ok(Progress::Next),
                Ok(_) => Ok(Progress::Blocked(is_changed_back(&volume))),
                Err(error) if is_immutable(&error) => Ok(Progress::Record(as_recorded(&whole))),
                Err(error) => Err(error),
            };
        }
        // Another client deletes it, and its contents are needed. It may also have changed since, such as by an expansion.
        match recorded {
            Some(recorded) if is_as_recorded(&whole, recorded) => self.take_away(&volume, deleted).await,
            Some(recorded) => Ok(Progress::Record(with_policy_of(recorded, as_recorded(&whole)))),
            None => Ok(Progress::Record(as_recorded(&whole))),
        }
    }

    /// Deletes the PersistentVolume. csi-provisioner must not take that for the deletion of the volume.
    async fn take_away(&self, volume: &PersistentVolume, deleted: bool) -> Result<Progress, kube::Error> {
        if policy(volume) != Some("Retain") {
            let changed = self.objects.patch_volume(volume, retain(), Run::Real).await?;
            return Ok(match policy(&changed) {
                Some("Retain") => Progress::Next,
                _ => Progress::Blocked(is_changed_back(volume)),
            });
        }
        if !deleted {
            self.objects.delete_volume(volume, Run::Real).await?;
            return Ok(Progress::Next);
        }
        let foreign = foreign(volume);
        if foreign.len() < volume.finalizers().len() {
            let left = json!({"metadata": {"finalizers": foreign}});
            let changed = self.objects.patch_volume(volume, left, Run::Real).await?;
            return Ok(match changed.finalizers() == volume.finalizers() {
                true => Progress::Blocked(is_changed_back(volume)),
                false => Progress::Next,
            });
        }
        Ok(Progress::Blocked(format!(
            "PersistentVolume {} is to be created again with its other node, and is held by {}; remove that",
            volume.name_any(),
            foreign.join(", ")
        )))
    }

    async fn create(&self, recorded: &Value) -> Result<Progress, kube::Error> {
        if typed(recorded).is_err() {
            return Ok(Progress::Blocked(format!(
                "what status.recorded has is no PersistentVolume; create {} again with volumeHandle {} and node {}",
                self.spec.persistent_volume.name, self.spec.volume_id, self.node
            )));
        }
        match self.objects.create_volume(&made_again(recorded, self.node), Run::Real).await {
            Ok(created) if self.has_moved(&created) => Ok(Progress::Next),
            // The next look would delete it, and create it again.
            Ok(created) => Ok(Progress::Blocked(is_changed_back(&created))),
            // An earlier request made it; the next look tells.
            Err(error) if is_outdated(&error) => Ok(Progress::Next),
            Err(error) => Err(error),
        }
    }

    /// Has the claim bound to the volume. The controller of PersistentVolumes looks at a Lost claim again if that changes, or up
    /// to 15 seconds later.
    async fn bind(&self, replaced: bool) -> Result<Progress, kube::Error> {
        let Some(claim) = self.claim().await? else {
            // It was deleted meanwhile: what becomes of its volume, Kubernetes decides by the policy.
            return Ok(Progress::Done);
        };
        let this = format!("{} {} ", self.spec.copy_name, self.node);
        let touched = claim.annotations().get(TOUCHED).and_then(|touched| touched.strip_prefix(&this));
        // After a replacement, a claim that is still Bound may become Lost: the controller has not looked at it yet.
        let is_lost = phase(&claim) == Some("Lost");
        if !is_lost && (touched.is_some() || !replaced) {
            return Ok(Progress::Done);
        }
        let (now, earlier) = (Timestamp::now(), touched.and_then(Touched::parse));
        if let Some(left) = earlier.as_ref().and_then(|earlier| earlier.left(now)) {
            return Ok(Progress::Unbound(left));
        }
        let count = earlier.map_or(0, |earlier| earlier.count.saturating_add(1));
        let touched = if is_lost { format!("{this}{count} {now}") } else { format!("{this}bound {now}") };
        self.objects.patch_claim(&claim, json!({"metadata": {"annotations": {TOUCHED: touched}}})).await?;
        Ok(Progress::Touched)
    }

    async fn claim(&self) -> Result<Option<PersistentVolumeClaim>, kube::Error> {
        let id = &self.spec.claim;
        let claim = self.objects.claim(&id.namespace, &id.name).await?;
        Ok(claim.filter(|claim| claim.uid().as_deref() == Some(id.uid.as_str())))
    }

    /// Reports whether this is the PersistentVolume of the volume and of its claim; an administrator may have created it.
    fn is_ours(&self, volume: &PersistentVolume) -> bool {
        let Some(spec) = &volume.spec else { return false };
        let (id, driver) = (&self.spec.volume_id, &self.spec.driver);
        let claim = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_ref());
        spec.csi.as_ref().is_some_and(|csi| csi.driver == *driver && csi.volume_handle == *id)
            && claim == Some(&self.spec.claim.uid)
    }

    fn is_another(&self) -> String {
        let VolumeReplicaSpec { persistent_volume, volume_id, claim, .. } = self.spec;
        format!(
            "PersistentVolume {} is not that of volume {volume_id} and claim {}/{}",
            persistent_volume.name, claim.namespace, claim.name
        )
    }

    fn has_moved(&self, volume: &PersistentVolume) -> bool {
        let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
        affinity == Some(&affinity_of(self.node))
    }

    fn moved(&self) -> Value {
        json!({"spec": {"nodeAffinity": affinity_of(self.node)}})
    }
}

/// A change of a Lost claim for this exchange.
struct Touched {
    /// The number of changes before.
    count: u32,
    at: Timestamp,
}

impl Touched {
    fn parse(text: &str) -> Option<Self> {
        let (count, at) = text.split_once(' ')?;
        Some(Touched { count: count.parse().ok()?, at: at.parse().ok()? })
    }

    /// Returns the time until the next change; `None` if it is due. A time in the future is of a clock that is ahead.
    fn left(&self, now: Timestamp) -> Option<Duration> {
        let wait = TOUCH_AGAIN.saturating_mul(1 << self.count.min(10)).min(TOUCH_MOST);
        let since = Duration::try_from(now.duration_since(self.at)).unwrap_or(wait);
        wait.checked_sub(since).filter(|left| !left.is_zero())
    }
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

/// Reports whether the API server refuses a change of the affinity as invalid: its field is immutable there.
fn is_immutable(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422)
}

fn refuse(why: String) -> Result<Result<(), Refused>, kube::Error> {
    Ok(Err(Refused(why)))
}

/// Returns what the API server refuses as a refusal, and anything else as an error.
fn refusal(error: kube::Error) -> Result<Result<(), Refused>, kube::Error> {
    match error {
        kube::Error::Api(status) if [400, 403, 422].contains(&status.code) => {
            refuse(format!("the PersistentVolume cannot get another node: {}", status.message))
        }
        error => Err(error),
    }
}
