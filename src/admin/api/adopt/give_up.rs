//! `hostloop adopt --claim --give-up`: the claim gets back the PersistentVolume that it had, unless its data are in a volume of hostloop.
//! Neither data nor a volume is deleted.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::claim::{Seen, Step, is_again};
use super::failed;
use super::record::{GIVING_UP, Records};
use crate::admin::adopt::{Class, Nodes, Session};
use crate::admin::seen::Name;
use crate::cluster::moves::exchange;
use crate::cluster::moves::objects::{Run, is_outdated};
use crate::model::{Adoption, AdoptionOrder};

/// More than the time in which a request for a volume comes to its node or fails: this command waits 10 s for an answer, and a controller 60 s.
const LONGEST_REQUEST: Duration = Duration::from_secs(75);

impl<N: Nodes> Session<N> {
    /// Looks, and takes the next step back.
    pub(super) async fn step_back(&mut self, name: &Name, records: &Records) -> Result<Step, String> {
        let seen = self.look(name, records).await?;
        let Some(recorded) = &seen.recorded else {
            return Err(format!("no adoption of claim {name} is under way, so that none can be given up"));
        };
        match &seen.volume {
            Some(volume) if self.is_ours(volume) => {
                if seen.is_given_up && self.args.yes {
                    records.give_up(&seen.uid(), false).await?;
                }
                Err(format!(
                    "claim {name} has its volume of hostloop already, and the adoption can only be finished: run the command without --give-up"
                ))
            }
            _ if !self.args.yes => {
                self.screen.say(&format!(
                    "claim {name} would get PersistentVolume {} back, if its data are not in a volume of hostloop",
                    seen.volume_name
                ));
                self.screen.say("nothing was changed; repeat the command with --yes");
                Ok(Step::Done)
            }
            _ if !seen.is_given_up => {
                records.give_up(&seen.uid(), true).await?;
                Ok(Step::Next)
            }
            Some(volume) if is_again(recorded, volume) => self.end(name, &seen, false).await,
            Some(volume) if volume.metadata.deletion_timestamp.is_none() => {
                self.keep(name, &seen, (recorded, volume)).await
            }
            Some(volume) => self.take_away(recorded, volume).await,
            None => self.give_back(name, &seen, recorded).await,
        }
    }

    /// Restores the reclaim policy of the PersistentVolume, which was not deleted yet.
    async fn keep(
        &mut self,
        name: &Name,
        seen: &Seen,
        (recorded, volume): (&Value, &PersistentVolume),
    ) -> Result<Step, String> {
        if recorded.pointer("/metadata/uid").and_then(Value::as_str) != volume.uid().as_deref() {
            return Err(format!(
                "PersistentVolume {} was replaced by another one meanwhile",
                seen.volume_name
            ));
        }
        // Another command that has read the PersistentVolume before this change must not delete it after the record is gone.
        if !volume.annotations().contains_key(GIVING_UP) {
            let change = json!({"metadata": {"annotations": {GIVING_UP: "true"}}});
            return self.change(volume, change).await;
        }
        let had = recorded.pointer("/spec/persistentVolumeReclaimPolicy");
        let has = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        if had.and_then(Value::as_str) != has {
            return self.change(volume, json!({"spec": {"persistentVolumeReclaimPolicy": had}})).await;
        }
        let change = json!({"metadata": {"annotations": {GIVING_UP: null}}});
        let changed = self.change(volume, change).await?;
        if !matches!(changed, Step::Next) {
            return Ok(changed);
        }
        seen.end().await?;
        self.screen.say(&format!("claim {name} has what it had before"));
        Ok(Step::Done)
    }

    /// Changes the PersistentVolume, if it is unchanged since it was read.
    async fn change(&mut self, volume: &PersistentVolume, change: Value) -> Result<Step, String> {
        match self.objects()?.patch_volume(volume, change, Run::Real).await {
            Ok(_) => Ok(Step::Next),
            Err(error) if is_outdated(&error) => Ok(Step::Wait("its PersistentVolume changes")),
            Err(error) => Err(failed(error)),
        }
    }

    /// Has other commands stop asking the node for the volume of this claim, and waits until no request of theirs is on its way.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn stop_others(&mut self, name: &Name, seen: &Seen) -> Result<(), String> {
        seen.records.give_up(&seen.uid(), true).await?;
        self.screen.say(&format!(
            "claim {name}: waiting for {} s, in which requests of other commands end",
            LONGEST_REQUEST.as_secs()
        ));
        sleep(LONGEST_REQUEST).await;
        Ok(())
    }

    /// Creates the old PersistentVolume again, if the node says that the data are where it looks for them.
    async fn give_back(&mut self, name: &Name, seen: &Seen, recorded: &Value) -> Result<Step, String> {
        let order = self.order(name, &Class::default(), recorded).await?;
        let look = AdoptionOrder { look: true, ..order };
        self.stop_others(name, seen).await?;
        let found = self.adopt(&look).await.map_err(|why| {
            format!(
                "{why}. Claim {name} gets nothing back before node {} says where the data are",
                look.node_id
            )
        })?;
        let is_in_place = is_in_place(&found, &look);
        if found.made && !is_in_place {
            // The adoption can only be finished.
            seen.records.give_up(&seen.uid(), false).await?;
            return Err(format!("{}: run the command without --give-up", whereabouts(&found, &look)));
        }
        if !is_in_place {
            return Err(format!(
                "{}. Claim {name} gets nothing back before the node sees it there",
                not_seen(&look)
            ));
        }
        if found.made {
            self.screen.say(&format!(
                "{}; hostloop doctor lists the volume, which holds a copy",
                whereabouts(&found, &look)
            ));
        }
        seen.records.expect_given_up(&seen.uid()).await?;
        self.create(seen, &as_before(recorded)).await
    }
}

/// Says that a node has made no volume, and does not see the source either.
pub(super) fn not_seen(order: &AdoptionOrder) -> String {
    let (node, path) = (&order.node_id, &order.path);
    format!(
        "node {node} has made no volume of {path}, and does not see that it is there: look whether its disk is mounted, and whether the \
         directory of --adopt-from still has it"
    )
}

/// Reports whether the node sees the source in its place.
pub(super) fn is_in_place(found: &Adoption, order: &AdoptionOrder) -> bool {
    found.left.as_deref() == Some(order.path.as_str())
}

/// Says what is where when a volume was made.
pub(super) fn whereabouts(found: &Adoption, order: &AdoptionOrder) -> String {
    let (id, node, path) = (&found.volume_id, &order.node_id, &order.path);
    match &found.left {
        Some(left) if left == path => {
            format!("volume {id} of node {node} has a copy of {path}, which is in its place")
        }
        Some(left) => {
            format!("volume {id} of node {node} has the data of {path}, which was renamed to {left}")
        }
        None => format!("volume {id} of node {node} has the data of {path}"),
    }
}

/// Returns the recorded PersistentVolume, to be created again.
pub(super) fn as_before(recorded: &Value) -> Value {
    let mut volume = exchange::made_again(recorded, "");
    if let (Some(spec), Some(affinity)) =
        (volume.pointer_mut("/spec").and_then(Value::as_object_mut), recorded.pointer("/spec/nodeAffinity"))
    {
        spec.insert("nodeAffinity".to_owned(), affinity.clone());
    }
    volume
}
