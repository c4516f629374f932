//! The steps that make a copy and bring it up to date.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::act::{Moves, Next, RETRY, Result};
use super::claims::{access_with, bytes_of, class_of, is_converted, metadata, parameters};
use super::copies::{NewCopy, Updated};
use super::decide::{CALM, LONG, PRESSING, is_well};
use super::nodes::{NodeError, PassRequest, Presence};
use super::queue::comes_after;
use super::resources::{Pass, Purpose, ReplicaPhase, VolumeReplica, VolumeReplicaStatus};
use super::view::View;
use crate::model::most_bytes;

/// A pass that sends less is followed by no other one before the cutover.
const SMALL: u64 = 32 << 20;
/// The same for a pass that takes less time.
const QUICK: Duration = Duration::from_secs(3);

impl Moves {
    /// Lets the first copy begin, unless others have begun since the look. If the status is not written, the next look forgets that it has
    /// begun, or begins it again.
    pub(super) async fn begin_first_copy(&self, replica: &VolumeReplica, why: &str) -> Result<Next> {
        let queue = self.begun.begin(&self.seen.replicas.state(), replica);
        if queue > 0 {
            return self.wait(replica, CALM, &comes_after(queue)).await;
        }
        self.enter(replica, ReplicaPhase::Copying, why).await
    }

    pub(super) async fn create(&self, replica: &VolumeReplica) -> Result<Next> {
        let copy = match self.new_copy(replica).await? {
            Ok(copy) => copy,
            Err(why) => return self.failed_first(replica, &why).await,
        };
        match self.nodes.create(&copy).await {
            Ok(()) => {
                let why = "passes bring what has changed meanwhile";
                self.enter(replica, ReplicaPhase::Following, why).await
            }
            Err(error @ NodeError::Running(_)) => self.hindered(replica, error).await,
            Err(error) => self.failed_first(replica, &error.to_string()).await,
        }
    }

    /// Puts the copy back into the queue, because the first copy failed. Until the next try, it does not count among the first copies that
    /// a node makes at a time.
    async fn failed_first(&self, replica: &VolumeReplica, why: &str) -> Result<Next> {
        self.write(replica, |status| {
            (status.phase, status.first_copy_failed) = (ReplicaPhase::Pending, Some(self.now()));
            why.clone_into(&mut status.message);
        })
        .await?;
        Ok(Next::After(LONG))
    }

    /// Returns the PersistentVolume of a copy's volume, and the class whose parameters the copy gets; or what is missing.
    async fn described(
        &self,
        replica: &VolumeReplica,
    ) -> Result<std::result::Result<(Arc<PersistentVolume>, Arc<StorageClass>), String>> {
        let name = &replica.spec.persistent_volume.name;
        let Some(volume) = self.volume(name).await? else {
            return Ok(Err(format!("PersistentVolume {name} does not exist; create it again")));
        };
        let class = replica.spec.target_class.clone().unwrap_or_else(|| class_of(&volume));
        let Some(found) = self.class(&class).await? else {
            return Ok(Err(format!(
                "StorageClass {class} does not exist; create it again, since the copy is made with its parameters"
            )));
        };
        Ok(Ok((volume, found)))
    }

    async fn new_copy(&self, replica: &VolumeReplica) -> Result<std::result::Result<NewCopy, String>> {
        let spec = &replica.spec;
        let (volume, class) = match self.described(replica).await? {
            Ok(described) => described,
            Err(why) => return Ok(Err(why)),
        };
        let mut parameters = parameters(&class);
        if let Some(pool) = &spec.target_pool {
            parameters.insert("pool".to_owned(), pool.clone());
        }
        parameters.extend(metadata(&volume));
        let mutable_parameters = match self.attributes(&volume).await? {
            Ok(parameters) => parameters,
            Err(why) => return Ok(Err(why)),
        };
        Ok(Ok(NewCopy {
            name: spec.copy_name.clone(),
            source: spec.volume_id.clone(),
            source_node: spec.source_node.clone(),
            generation: spec.generation,
            target: spec.target_node.clone(),
            bytes: bytes_of(&volume),
            convert: is_converted(&volume, &class.name_any()),
            access: access_with(&volume, &class),
            parameters,
            mutable_parameters,
        }))
    }

    /// Returns the parameters of the VolumeAttributesClass of a volume; or that the class is missing.
    pub(super) async fn attributes(
        &self,
        volume: &PersistentVolume,
    ) -> Result<std::result::Result<BTreeMap<String, String>, String>> {
        let name = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Ok(BTreeMap::new())) };
        let parameters = self.objects.attributes(&name).await?;
        Ok(parameters.ok_or_else(|| format!("VolumeAttributesClass {name} does not exist; create it again")))
    }

    /// Returns what a pass asks for, and the size of the volume; or what is missing.
    async fn pass_request(
        &self,
        replica: &VolumeReplica,
    ) -> Result<std::result::Result<(PassRequest, u64), String>> {
        Ok(self.described(replica).await?.map(|(volume, class)| {
            let (bytes, parameters) = (bytes_of(&volume), parameters(&class));
            // A pass in place that ends early leaves a mixture of two cuts, which cannot be promoted.
            let whole = replica.spec.purpose == Purpose::Standby;
            (PassRequest { parameters, whole, most_bytes: most_bytes(bytes), last: false }, bytes)
        }))
    }

    pub(super) async fn pass(&self, replica: &VolumeReplica) -> Result<Next> {
        let (request, bytes) = match self.pass_request(replica).await? {
            Ok(request) => request,
            Err(why) => return self.wait(replica, LONG, &why).await,
        };
        let (began, asked) = (Instant::now(), self.now());
        let updated = match self.nodes.update(&replica.spec, &request).await {
            Ok(updated) => updated,
            Err(NodeError::NotFound(why)) => return self.lost_copy(replica, &why).await,
            Err(error) => return self.hindered(replica, error).await,
        };
        self.figures.passed(&updated);
        self.write(replica, |status| {
            let before = status.last_pass.as_ref().map(|pass| pass.sent_bytes);
            let is_near = updated.sent_bytes < SMALL
                || began.elapsed() < QUICK
                || before.is_some_and(|before| updated.sent_bytes >= before);
            passed(status, &updated, asked, bytes);
            if status.phase == ReplicaPhase::Following && is_near {
                status.phase = ReplicaPhase::Ready;
                "the copy is nearly up to date".clone_into(&mut status.message);
            }
        })
        .await
    }

    /// The copy, its volume, or the cut that both have, is gone. If the volume is there, another copy is made.
    async fn lost_copy(&self, replica: &VolumeReplica, why: &str) -> Result<Next> {
        let spec = &replica.spec;
        match self.nodes.find(&spec.source_node, &spec.volume_id).await {
            Ok(Presence::Has(generation)) if generation == spec.generation => {
                self.enter(replica, ReplicaPhase::Abandoning, why).await
            }
            _ => self.wait(replica, LONG, why).await,
        }
    }

    /// Makes the copy identical to the volume. No pod uses it.
    pub(super) async fn last_pass(&self, replica: &VolumeReplica, view: &View) -> Result<Next> {
        // A repeated fence answers whether kubelet has unmounted the volume.
        if let Err(error) = self.nodes.fence(&replica.spec).await {
            return match error {
                NodeError::InUse(why) => self.wait(replica, PRESSING, &why).await,
                error => self.hindered(replica, error).await,
            };
        }
        let (request, bytes) = match self.pass_request(replica).await? {
            Ok(request) => request,
            Err(why) => return self.wait(replica, RETRY, &why).await,
        };
        let (asked, request) = (self.now(), PassRequest { last: true, ..request });
        match self.nodes.update(&replica.spec, &request).await {
            Ok(updated) if updated.source_in_use => {
                self.wait(replica, PRESSING, "the volume was in use during the last pass").await
            }
            Ok(updated) => {
                self.figures.passed(&updated);
                self.write(replica, |status| {
                    passed(status, &updated, asked, bytes);
                    status.exact = true;
                })
                .await
            }
            Err(NodeError::NotFound(why)) => self.lost_copy(replica, &why).await,
            // Pods would wait until an administrator has made room, or until the volume has less than the copy may take: a directory can
            // take more than the files took in an image. A pass has to succeed before the next cutover.
            Err(NodeError::NoRoom(why) | NodeError::Refused(why))
                if is_well(view) && !view.is_promoted && !self.is_awaited(replica).await? =>
            {
                self.returns.add(&replica.uid().unwrap_or_default());
                let why = format!("the volume goes back to its pods until a pass succeeds: {why}");
                self.enter(replica, ReplicaPhase::Following, &why).await
            }
            Err(error) => self.hindered(replica, error).await,
        }
    }
}

/// Writes down a pass.
fn passed(status: &mut VolumeReplicaStatus, updated: &Updated, asked: Time, size_bytes: u64) {
    let cut = i64::try_from(updated.cut_ns / 1_000_000).ok();
    let cut = cut.and_then(|cut| Timestamp::from_millisecond(cut).ok());
    let sent_bytes = updated.sent_bytes;
    status.last_pass = Some(Pass { asked, cut: cut.map(Time), sent_bytes, size_bytes });
    status.passes = status.passes.saturating_add(1);
    status.sent_bytes = status.sent_bytes.saturating_add(sent_bytes);
}
