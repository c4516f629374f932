//! `hostloop adopt --claim --give-up`: the claim gets back the PersistentVolume that it had, unless its data are in a volume of hostloop.
//! Neither data nor a volume is deleted.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::claim::{Seen, Step, is_again};
use super::failed;
use super::record::Records;
use crate::admin::adopt::{Class, Nodes, Session};
use crate::admin::seen::Name;
use crate::cluster::moves::exchange;
use crate::cluster::moves::objects::{Run, is_outdated};
use crate::model::{Adoption, AdoptionOrder};

impl<N: Nodes> Session<N> {
    /// Looks, and takes the next step back.
    pub(super) async fn step_back(&mut self, name: &Name, records: &Records) -> Result<Step, String> {
        let seen = self.look(name, records).await?;
        let Some(recorded) = &seen.recorded else {
            return Err(format!("no adoption of claim {name} is under way, so that none can be given up"));
        };
        match &seen.volume {
            Some(volume) if self.is_ours(volume) => Err(format!(
                "claim {name} has its volume of hostloop already, and the adoption can only be finished: run the command without --give-up"
            )),
            _ if !self.args.yes => {
                self.screen.say(&format!(
                    "claim {name} would get PersistentVolume {} back, if its data are not in a volume of hostloop",
                    seen.volume_name
                ));
                self.screen.say("nothing was changed; repeat the command with --yes");
                Ok(Step::Done)
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
        let had = recorded.pointer("/spec/persistentVolumeReclaimPolicy");
        let has = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        if had.and_then(Value::as_str) != has {
            let policy = json!({"spec": {"persistentVolumeReclaimPolicy": had}});
            return match self.objects()?.patch_volume(volume, policy, Run::Real).await {
                Ok(_) => Ok(Step::Next),
                Err(error) if is_outdated(&error) => Ok(Step::Wait("its PersistentVolume changes")),
                Err(error) => Err(failed(error)),
            };
        }
        seen.records.remove(&seen.uid()).await?;
        self.screen.say(&format!("claim {name} has what it had before"));
        Ok(Step::Done)
    }

    /// Creates the old PersistentVolume again, if the node says that the data are where it looks for them.
    async fn give_back(&mut self, name: &Name, seen: &Seen, recorded: &Value) -> Result<Step, String> {
        let order = self.order(name, &Class::default(), recorded).await?;
        let look = AdoptionOrder { look: true, ..order };
        let found = self.adopt(&look).await.map_err(|why| {
            format!(
                "{why}. Claim {name} gets nothing back before node {} says where the data are",
                look.node_id
            )
        })?;
        let is_in_place = is_in_place(&found, &look);
        if found.made && !is_in_place {
            return Err(format!("{}: run the command without --give-up", whereabouts(&found, &look)));
        }
        if !is_in_place {
            return Err(format!("{}. Claim {name} gets nothing back before the node sees it there", not_seen(&look)));
        }
        if found.made {
            self.screen.say(&format!(
                "{}; hostloop doctor lists the volume, which holds a copy",
                whereabouts(&found, &look)
            ));
        }
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
