//! `hostloop adopt --claim`: the PersistentVolume of another driver is replaced by one of hostloop that has its name. The claim stays,
//! with its uid, and is Lost meanwhile, so that no pod with it can start.
//!
//! Before anything else, the whole PersistentVolume is written down in the namespace of the driver (`record.rs`), where the tenants of
//! the claim cannot change it, and its data are kept whatever happens to the object (reclaim policy Retain). What is to be done next
//! follows from the objects alone, so that the command can end at any step. If the node refuses, it is asked whether a volume was made:
//! only if not, the old PersistentVolume is created again.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::failed;
use super::foreign::{self, Foreign, is_of_provisioner};
use super::record::{IS_GIVEN_UP, Records};
use crate::admin::adopt::{Class, Nodes, Session, name_claim};
use crate::admin::seen::Name;
use crate::cluster::moves::claims;
use crate::cluster::moves::exchange;
use crate::cluster::moves::objects::{Objects, Run, is_outdated};
use crate::model::AdoptionOrder;

/// On a claim that is being adopted: it is changed so that the controller of PersistentVolumes looks at the claim. It decides nothing.
pub(in crate::admin) const TOUCHED: &str = "hostloop.csi.dev/adopting-touched";
/// Time between two looks at what Kubernetes does.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How many looks in a row may find that nothing has changed.
const LOOKS: u32 = 240;

/// What was seen of the claim.
pub(super) struct Seen {
    claim: PersistentVolumeClaim,
    /// The name of its PersistentVolume.
    pub(super) volume_name: String,
    pub(super) volume: Option<PersistentVolume>,
    /// As above, with fields that this release does not know.
    whole: Option<Value>,
    /// The PersistentVolume when the adoption began.
    pub(super) recorded: Option<Value>,
    /// The uid of the record with that.
    own: String,
    /// The adoption is being given up.
    pub(super) is_given_up: bool,
    pub(super) records: Records,
}

impl Seen {
    pub(super) fn uid(&self) -> String {
        self.claim.uid().unwrap_or_default()
    }

    /// Removes the record that was seen.
    pub(super) async fn end(&self) -> Result<(), String> {
        self.records.remove(&self.uid(), &self.own).await
    }
}

/// What a step has come to.
pub(super) enum Step {
    Done,
    /// The next one comes at once.
    Next,
    /// Kubernetes has to do something.
    Wait(&'static str),
}

impl<N: Nodes> Session<N> {
    pub(in crate::admin) async fn adopt_claim(&mut self, name: Name) -> Result<(), String> {
        let class = if self.args.give_up { Class::default() } else { self.class().await? };
        let records = self.records().await?;
        let (mut waits, mut said, mut has_begun) = (0, "", false);
        loop {
            let step = match self.args.give_up {
                true => self.step_back(&name, &records).await,
                false => self.step(&name, &class, &records, &mut has_begun).await,
            };
            match step? {
                Step::Done => return Ok(()),
                Step::Next => waits = 0,
                Step::Wait(what) => {
                    if what != said {
                        self.screen.say(&format!("claim {name}: {what}"));
                        said = what;
                    }
                    waits += 1;
                    if waits > LOOKS {
                        return Err(format!("claim {name}: {what} takes too long; run the command again"));
                    }
                    sleep(LOOK_AGAIN).await;
                }
            }
        }
    }

    pub(super) fn objects(&self) -> Result<Objects, String> {
        let cluster = self.cluster.as_ref().ok_or("--claim needs a kubeconfig")?;
        Ok(cluster.adoption())
    }

    pub(super) async fn look(&mut self, name: &Name, records: &Records) -> Result<Seen, String> {
        let objects = self.objects()?;
        let claim = objects.claim(&name.namespace, &name.name).await.map_err(failed)?;
        let claim = claim.ok_or_else(|| format!("there is no claim {name}"))?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("claim {name} is being deleted"));
        }
        let volume_name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        if volume_name.is_empty() {
            return Err(format!("claim {name} has no volume yet"));
        }
        // In this order: a command that gives an adoption up writes that into the record, and changes the PersistentVolume after that. So if
        // this is the PersistentVolume from after the change, the record says it. If it is an earlier one, no change of it is accepted.
        let whole = objects.whole_volume(&volume_name).await.map_err(failed)?;
        let record = records.read(&claim.uid().unwrap_or_default()).await?;
        let (own, is_given_up) =
            record.as_ref().map(|record| (record.uid.clone(), record.is_given_up)).unwrap_or_default();
        let recorded = record.map(|record| self.go_on_with(name, record)).transpose()?;
        let is_of_claim = |recorded: &Value| {
            let text = |path| recorded.pointer(path).and_then(Value::as_str);
            text("/metadata/name") == Some(volume_name.as_str())
                && text("/spec/claimRef/uid") == claim.uid().as_deref()
        };
        if recorded.as_ref().is_some_and(|recorded| !is_of_claim(recorded)) {
            return Err(format!("what was recorded of claim {name} is of another claim"));
        }
        let volume = whole.as_ref().map(PersistentVolume::deserialize).transpose();
        let volume = volume.map_err(|error| format!("PersistentVolume {volume_name}: {error}"))?;
        let records = records.clone();
        Ok(Seen { claim, volume_name, volume, whole, recorded, own, is_given_up, records })
    }

    /// Whether a PersistentVolume is one of hostloop.
    pub(super) fn is_ours(&self, volume: &PersistentVolume) -> bool {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.is_some_and(|csi| csi.driver == self.args.source.driver_name)
    }

    /// Looks, and does the next step. `has_begun` says whether this command has seen the adoption under way.
    async fn step(
        &mut self,
        name: &Name,
        class: &Class,
        records: &Records,
        has_begun: &mut bool,
    ) -> Result<Step, String> {
        let seen = self.look(name, records).await?;
        if seen.recorded.is_some() && !self.args.yes {
            let begun = "an adoption of this claim has begun; repeat the command with --yes";
            self.screen.say(&format!("claim {name}: {begun}"));
            return Ok(Step::Done);
        }
        match (&seen.recorded, &seen.volume) {
            (None, Some(volume)) if self.is_ours(volume) => {
                let driver = &self.args.source.driver_name;
                self.screen.say(&format!("claim {name} has a volume of {driver}"));
                Ok(Step::Done)
            }
            (None, Some(_)) if *has_begun => {
                Err(format!("claim {name} has what it had before: another command has given the adoption up"))
            }
            (None, Some(volume)) => {
                let step = self.begin(name, class, &seen, volume).await?;
                *has_begun = matches!(step, Step::Next);
                Ok(step)
            }
            (None, None) => Err(format!(
                "PersistentVolume {} of claim {name} does not exist, and nothing has recorded it",
                seen.volume_name
            )),
            (Some(recorded), Some(volume)) if self.is_ours(volume) || is_again(recorded, volume) => {
                self.end(name, &seen, self.is_ours(volume)).await
            }
            (Some(_), _) if seen.is_given_up => Err(format!("claim {name}: {IS_GIVEN_UP}")),
            (Some(recorded), volume) => {
                *has_begun = true;
                match volume {
                    Some(volume) => self.take_away(recorded, volume).await,
                    None => self.make(name, class, &seen, recorded).await,
                }
            }
        }
    }

    /// Makes sure that the claim can be adopted, and writes down what it has.
    async fn begin(
        &mut self,
        name: &Name,
        class: &Class,
        seen: &Seen,
        volume: &PersistentVolume,
    ) -> Result<Step, String> {
        let spec = volume.spec.clone().unwrap_or_default();
        let uid = spec.claim_ref.as_ref().and_then(|claim| claim.uid.clone());
        if uid.is_none() || uid != seen.claim.uid() || volume.metadata.deletion_timestamp.is_some() {
            return Err(format!("PersistentVolume {} is not bound to claim {name}", seen.volume_name));
        }
        let held = exchange::foreign(volume);
        let held: Vec<&str> = held.into_iter().filter(|held| !is_of_provisioner(held)).collect();
        if !held.is_empty() {
            return Err(format!(
                "PersistentVolume {} is held by {}, and has to be deleted and created again; remove that first",
                seen.volume_name,
                held.join(", ")
            ));
        }
        if spec
            .access_modes
            .iter()
            .flatten()
            .any(|mode| !["ReadWriteOnce", "ReadWriteOncePod"].contains(&mode.as_str()))
            && class.parameters.get("sharedOnNode").map(String::as_str) != Some("true")
        {
            return Err(format!(
                "claim {name} is for several nodes or pods; use a class with sharedOnNode: \"true\", with which pods of one node share it"
            ));
        }
        self.expect_no_pods(name).await?;
        let whole = seen.whole.clone().unwrap_or_default();
        let order = self.order(name, class, &whole).await?;
        self.expect_sole(&seen.volume_name, &order).await?;
        let adoption = self.adopt(&AdoptionOrder { dry_run: true, ..order.clone() }).await?;
        self.tell(&order, &adoption);
        if !self.args.yes {
            self.screen.say("nothing was changed; repeat the command with --yes");
            return Ok(Step::Done);
        }
        let root = self.args.source_root.as_deref();
        seen.records.write(&seen.uid(), &exchange::as_recorded(&whole), root).await?;
        Ok(Step::Next)
    }

    pub(super) async fn expect_no_pods(&mut self, name: &Name) -> Result<(), String> {
        let cluster = self.cluster.as_ref().ok_or("--claim needs a kubeconfig")?;
        let pods = cluster.users(Some(&name.namespace)).await.map_err(failed)?;
        let users: Vec<&str> = pods
            .iter()
            .filter(|pod| pod.claims.contains(&name.name))
            .map(|pod| pod.name.name.as_str())
            .collect();
        match users.as_slice() {
            [] => Ok(()),
            users => {
                Err(format!("claim {name} is used by {}; scale what makes them to 0 first", users.join(", ")))
            }
        }
    }

    /// Returns what to ask the node for.
    pub(super) async fn order(
        &mut self,
        name: &Name,
        class: &Class,
        whole: &Value,
    ) -> Result<AdoptionOrder, String> {
        let volume = PersistentVolume::deserialize(whole).map_err(|error| error.to_string())?;
        let Foreign { path, is_directory, block, node } =
            foreign::read(&volume, self.args.source_root.as_deref())?;
        let cluster = self.cluster.as_ref().ok_or("--claim needs a kubeconfig")?;
        let node_id = cluster.node_named(node, &volume.name_any()).await?;
        let access = claims::access(&volume);
        let mut parameters = class.parameters.clone();
        name_claim(&mut parameters, name, &volume.name_any());
        let fs_type = if is_directory || block { String::new() } else { access.fs_type };
        let size_bytes = self.args.size.unwrap_or_else(|| claims::bytes_of(&volume));
        let (mount_flags, remove_source) = (access.mount_options, self.args.remove_source);
        Ok(AdoptionOrder {
            node_id,
            path,
            is_directory,
            parameters,
            block,
            fs_type,
            mount_flags,
            size_bytes,
            remove_source,
            dry_run: false,
            look: false,
        })
    }

    /// Deletes the old PersistentVolume. Its driver must not take that for the deletion of the data.
    pub(super) async fn take_away(
        &mut self,
        recorded: &Value,
        volume: &PersistentVolume,
    ) -> Result<Step, String> {
        let objects = self.objects()?;
        if recorded.pointer("/metadata/uid").and_then(Value::as_str) != volume.uid().as_deref() {
            return Err(format!(
                "PersistentVolume {} was replaced by another one meanwhile",
                volume.name_any()
            ));
        }
        let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let done = if policy != Some("Retain") {
            let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
            let changed = objects.patch_volume(volume, retain, Run::Real).await.map(|changed| {
                changed.spec.and_then(|spec| spec.persistent_volume_reclaim_policy).as_deref()
                    == Some("Retain")
            });
            match changed {
                Ok(true) => Ok(()),
                Ok(false) => {
                    return Err(format!(
                        "a policy or a webhook of the cluster takes back each change of PersistentVolume {}",
                        volume.name_any()
                    ));
                }
                Err(error) => Err(error),
            }
        } else if volume.metadata.deletion_timestamp.is_none() {
            objects.delete_volume(volume, Run::Real).await
        } else {
            let left: Vec<&str> =
                exchange::foreign(volume).into_iter().filter(|held| !is_of_provisioner(held)).collect();
            if !left.is_empty() {
                return Err(format!(
                    "PersistentVolume {} is held by {}; remove that",
                    volume.name_any(),
                    left.join(", ")
                ));
            }
            objects.patch_volume(volume, json!({"metadata": {"finalizers": []}}), Run::Real).await.map(drop)
        };
        match done {
            Ok(()) => Ok(Step::Next),
            Err(error) if is_outdated(&error) => Ok(Step::Wait("its PersistentVolume changes")),
            Err(error) => Err(failed(error)),
        }
    }

    /// Waits until the claim is bound, and removes the record.
    pub(super) async fn end(&mut self, name: &Name, seen: &Seen, is_ours: bool) -> Result<Step, String> {
        let objects = self.objects()?;
        let phase = seen.claim.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Bound") {
            let count = seen
                .claim
                .annotations()
                .get(TOUCHED)
                .and_then(|count| count.parse::<u32>().ok())
                .unwrap_or(0);
            let change = json!({"metadata": {"annotations": {TOUCHED: (count.wrapping_add(1)).to_string()}}});
            return match objects.patch_claim(&seen.claim, change).await {
                Err(error) if !is_outdated(&error) => Err(failed(error)),
                _ => Ok(Step::Wait("Kubernetes binds it")),
            };
        }
        if seen.claim.annotations().contains_key(TOUCHED) {
            let change = json!({"metadata": {"annotations": {TOUCHED: null}}});
            match objects.patch_claim(&seen.claim, change).await {
                Err(error) if is_outdated(&error) => return Ok(Step::Next),
                patched => patched.map_err(failed)?,
            }
        }
        seen.end().await?;
        match (is_ours, self.args.give_up) {
            (true, _) => {
                self.screen.say(&format!("claim {name} is adopted"));
                Ok(Step::Done)
            }
            (false, true) => {
                self.screen.say(&format!("claim {name} has what it had before"));
                Ok(Step::Done)
            }
            (false, false) => Err(format!("claim {name} has what it had before")),
        }
    }
}

/// Whether it is the old PersistentVolume, created again.
pub(super) fn is_again(recorded: &Value, volume: &PersistentVolume) -> bool {
    recorded.pointer("/metadata/uid").and_then(Value::as_str) != volume.uid().as_deref()
        && recorded.pointer("/spec/claimRef/uid").and_then(Value::as_str)
            == volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref())
}
