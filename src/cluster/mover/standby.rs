//! Copies that stand by: rounds again and again, what hinders them, and what becomes of copies and volumes whose nodes were lost.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::json;

use super::act::{Mover, NOW, Next, Result};
use super::copies::CopyError;
use super::objects::handle;
use super::status::{FENCE, MOVING, Status};
use super::view::View;

/// Between two tries of what a node has not done.
const LATER: Duration = Duration::from_secs(10);
/// A copy whose data are older than so many intervals is late.
const LATE: i64 = 3;

impl Mover {
    /// After a round of a copy that stands by.
    pub(super) async fn stood_by(&self, view: &View, mut status: Status) -> Result<Next> {
        // The cut was made after this was read, and the copy has grown with it.
        status.bytes = status.bytes.max(view.bytes());
        status.message = "the copy stands by".to_owned();
        if let Some(copy) = status.abandoned.first() {
            let source = view.volume.as_ref().and_then(handle).unwrap_or_default();
            if self.copies.delete(copy, source).await.is_ok() {
                tracing::info!(copy, "the node of an earlier copy is back; the copy is deleted");
                status.abandoned.remove(0);
            }
        }
        self.write(view, Some(&status), json!({})).await?;
        self.tell_age(view, &status);
        Ok(NOW)
    }

    /// A round of a copy that stands by was hindered.
    pub(super) async fn is_late(&self, view: &View, status: &Status, error: &CopyError) -> Result<Next> {
        self.figures.failed();
        self.tell_age(view, status);
        self.note(view, status, &error.to_string()).await?;
        let interval = view.wants_standby().map_or(0, |standby| standby.interval.as_secs());
        let limit = i64::try_from(interval).unwrap_or(i64::MAX).saturating_mul(LATE);
        if status.age().is_some_and(|age| age > limit) {
            let cut = status.last_cut.as_deref().unwrap_or_default();
            let text = format!("The standby copy on node {} is of {cut}: {error}", status.target);
            self.cluster.say(&view.claim, "StandbyLate", true, &text).await;
        }
        Ok(Next::After(LATER))
    }

    /// What is scraped says how old the copy is.
    pub(super) fn tell_age(&self, view: &View, status: &Status) {
        let (namespace, name) = (view.claim.namespace().unwrap_or_default(), view.claim.name_any());
        let interval = view.wants_standby().map(|standby| standby.interval);
        self.figures.stands_by(&namespace, &name, status.last_round().zip(interval));
    }

    /// The node of a volume was lost, and its copy has taken its place: when the node is back, nobody uses the volume there.
    pub(super) async fn fence(&self, volume: &PersistentVolume, copy: &str) -> Result<Next> {
        let source = handle(volume).unwrap_or_default();
        let sealed = match self.copies.seal(source, Some(copy)).await {
            Ok(()) => self.copies.release(source, copy).await,
            Err(error) => Err(error),
        };
        match sealed {
            Ok(()) | Err(CopyError::NotFound(_)) => {
                let change = json!({"metadata": {"annotations": {FENCE: null}, "labels": {MOVING: null}}});
                self.cluster.patch_volume(volume, change).await?;
                tracing::info!(volume = volume.name_any(), "the volume of a node that was lost is sealed");
                Ok(Next::Finished)
            }
            Err(error) => {
                tracing::debug!(volume = volume.name_any(), %error, "to be sealed when its node is back");
                Ok(Next::After(LATER))
            }
        }
    }
}
