//! Does what comes next for a VolumeReplica. Everything that a later step needs is in its status before the step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::decide::{LONG, PRESSING, Step, decide};
use super::exchange::{Exchange, Progress};
use super::nodes::{NodeError, Nodes, PassRequest, Presence};
use super::objects::{Objects, Run, is_outdated};
use super::request::{Created, Limits};
use super::resources::{Pass, Purpose, ReplicaPhase, VolumeReplica, VolumeReplicaStatus, When};
use super::seen::Seen;
use super::silence::Silence;
use super::view::{View, Wanted};
use crate::cluster::mover::act::parameters;
use crate::cluster::mover::copies::{NewCopy, Updated, most_bytes};
use crate::cluster::mover::objects::access;
use crate::cluster::mover::view::bytes_of;

/// After something that a retry may get past.
const RETRY: Duration = Duration::from_secs(5);
/// Between two looks at what a node is doing.
const RUNNING: Duration = Duration::from_secs(1);
/// After an object has changed that was looked at.
const OUTDATED: Duration = Duration::from_millis(100);
/// A pass that sends less is followed by no other one before the cutover.
const SMALL: u64 = 32 << 20;
/// The same for a pass that takes less time.
const QUICK: Duration = Duration::from_secs(3);
/// Steps that are done at once, one after the other. Other copies of the same task wait meanwhile.
const AT_ONCE: usize = 16;

/// Moves the volumes of one driver, and keeps standby copies of them. Holds nothing that is not in the objects or at the nodes.
#[derive(Clone)]
pub struct Moves {
    pub(super) driver: String,
    pub(super) objects: Objects,
    pub(super) seen: Seen,
    pub(super) nodes: Arc<dyn Nodes>,
    pub(super) silence: Silence,
    pub(super) limits: Limits,
    pub(super) created: Arc<tokio::sync::Mutex<Created>>,
    /// The time of day.
    pub(super) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// Why a step failed. A retry looks again.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] kube::Error),
}

pub type Result<T> = std::result::Result<T, Failure>;

/// When to look again.
#[derive(Debug)]
pub enum Next {
    /// At once; this is the object as it is now.
    Now(Box<VolumeReplica>),
    After(Duration),
    /// The VolumeReplica is gone.
    Gone,
}

impl Moves {
    pub fn new(driver: &str, client: kube::Client, seen: Seen, nodes: Arc<dyn Nodes>) -> Moves {
        Moves {
            driver: driver.to_owned(),
            objects: Objects::new(client),
            seen,
            nodes,
            silence: Silence::default(),
            limits: Limits::default(),
            created: Arc::default(),
            clock: Arc::new(Timestamp::now),
        }
    }

    pub(super) fn now(&self) -> Time {
        Time((self.clock)())
    }

    /// Does everything for a copy that can be done now. Returns when to look again; `None` if it is gone.
    ///
    /// # Errors
    /// [`Failure`]: a retry looks again.
    pub async fn follow(&self, replica: &VolumeReplica) -> Result<Option<Duration>> {
        let mut replica = Box::new(replica.clone());
        for _ in 0..AT_ONCE {
            match self.step(&replica).await {
                Ok(Next::Now(next)) => replica = next,
                Ok(Next::After(time)) => return Ok(Some(time)),
                Ok(Next::Gone) => return Ok(None),
                Err(Failure::Kubernetes(error)) if is_outdated(&error) => return Ok(Some(OUTDATED)),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Duration::ZERO))
    }

    /// Does the next step for a copy.
    ///
    /// # Errors
    /// [`Failure`]: a retry looks again.
    pub async fn step(&self, replica: &VolumeReplica) -> Result<Next> {
        if replica.spec.driver != self.driver {
            return Ok(Next::After(LONG));
        }
        let view = self.look(replica).await?;
        let (spec, status) = (&view.spec, &view.status);
        match decide(&view) {
            Step::Wait(time, why) => self.wait(replica, time, &why).await,
            Step::Enter(phase, why) => self.enter(replica, phase, &why).await,
            Step::Create => self.create(replica).await,
            Step::Pass => self.pass(replica).await,
            Step::Check => self.check(replica, &view).await,
            Step::Fence => match self.nodes.fence(spec).await {
                // A pod has it, and no other pod gets it.
                Ok(()) | Err(NodeError::InUse(_)) => {
                    self.write(replica, |status| status.fenced = Some(self.now())).await
                }
                Err(error) => self.hindered(replica, error).await,
            },
            Step::Evict(pods) => self.evict(replica, &pods).await,
            Step::LastPass => self.last_pass(replica).await,
            Step::GiveUpSource => {
                tracing::warn!(
                    volume.id = spec.volume_id,
                    node = spec.source_node,
                    "the node is lost: its standby copy takes over"
                );
                self.write(replica, |status| status.stale = true).await
            }
            Step::Complete => match self.nodes.complete(spec, status.stale).await {
                Ok(()) => {
                    let why = "the PersistentVolume gets its new node";
                    self.enter(replica, ReplicaPhase::Exchanging, why).await
                }
                Err(error) => self.hindered(replica, error).await,
            },
            Step::Exchange => self.exchange(replica).await,
            Step::Retire => match self.nodes.retire(spec).await {
                Ok(left) => self.write(replica, |status| status.left_id = Some(left)).await,
                // Its disk was replaced: nothing is left.
                Err(NodeError::NotFound(_)) => self.finish(replica).await,
                Err(error) => self.hindered(replica, error).await,
            },
            Step::DeleteLeft => {
                let left = status.left_id.clone().unwrap_or_default();
                match self.nodes.delete_left(spec, &left).await {
                    Ok(()) | Err(NodeError::NotFound(_)) => self.released(replica).await,
                    Err(error) => self.hindered(replica, error).await,
                }
            }
            Step::Unfence => match self.nodes.unfence(spec).await {
                Ok(()) => self.write(replica, |status| status.fenced = None).await,
                Err(error) => self.hindered(replica, error).await,
            },
            Step::DeleteCopy => match self.nodes.delete_copy(spec).await {
                Ok(()) => self.released(replica).await,
                Err(error) => self.hindered(replica, error).await,
            },
            Step::Finish => self.finish(replica).await,
        }
    }

    /// Changes the status, if the change makes a difference.
    async fn write(
        &self,
        replica: &VolumeReplica,
        change: impl FnOnce(&mut VolumeReplicaStatus),
    ) -> Result<Next> {
        let mut changed = replica.clone();
        change(changed.status.get_or_insert_default());
        if changed.status == replica.status {
            return Ok(Next::Now(Box::new(changed)));
        }
        Ok(Next::Now(Box::new(self.objects.put_status(&changed).await?)))
    }

    /// Writes what is waited for, unless it is there.
    async fn wait(&self, replica: &VolumeReplica, time: Duration, why: &str) -> Result<Next> {
        self.write(replica, |status| why.clone_into(&mut status.message)).await?;
        Ok(Next::After(time))
    }

    pub(super) async fn enter(
        &self,
        replica: &VolumeReplica,
        phase: ReplicaPhase,
        why: &str,
    ) -> Result<Next> {
        let spec = &replica.spec;
        tracing::info!(
            volume.id = spec.volume_id,
            claim = spec.claim.name,
            namespace = spec.claim.namespace,
            source = spec.source_node,
            target = spec.target_node,
            ?phase,
            why,
            "a volume's copy"
        );
        self.write(replica, |status| {
            status.phase = phase;
            why.clone_into(&mut status.message);
            if phase == ReplicaPhase::Retiring {
                status.unavailable_milliseconds = status
                    .fenced
                    .as_ref()
                    .map(|fenced| self.now().0.as_millisecond().saturating_sub(fenced.0.as_millisecond()));
            }
        })
        .await
    }

    /// Writes why a node has not done something, and waits before the next try.
    async fn hindered(&self, replica: &VolumeReplica, error: NodeError) -> Result<Next> {
        let phase = replica.status.as_ref().map(|status| status.phase).unwrap_or_default();
        let is_pressing = (ReplicaPhase::CuttingOver..=ReplicaPhase::Exchanging).contains(&phase);
        let time = match error {
            NodeError::Running(_) if is_pressing => PRESSING,
            NodeError::Running(_) => RUNNING,
            NodeError::InUse(_) | NodeError::Silent(_) | NodeError::Failed(_) if is_pressing => RUNNING,
            NodeError::InUse(_) | NodeError::Silent(_) | NodeError::Failed(_) => RETRY,
            NodeError::NotFound(_) | NodeError::NoRoom(_) | NodeError::Refused(_) => LONG,
        };
        self.wait(replica, time, &error.to_string()).await
    }

    async fn create(&self, replica: &VolumeReplica) -> Result<Next> {
        let copy = match self.new_copy(replica).await? {
            Ok(copy) => copy,
            Err(why) => return self.wait(replica, LONG, &why).await,
        };
        match self.nodes.create(&copy).await {
            Ok(()) => {
                let why = "passes bring what has changed meanwhile";
                self.enter(replica, ReplicaPhase::Following, why).await
            }
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// Returns the PersistentVolume of a copy's volume, and the parameters of its class; or what is missing.
    async fn described(
        &self,
        replica: &VolumeReplica,
    ) -> Result<std::result::Result<(Arc<PersistentVolume>, BTreeMap<String, String>), String>> {
        let name = &replica.spec.persistent_volume.name;
        let Some(volume) = self.volume(name).await? else {
            return Ok(Err(format!("PersistentVolume {name} does not exist; create it again")));
        };
        let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
        let Some(found) = self.class(&class).await? else {
            return Ok(Err(format!(
                "StorageClass {class} does not exist; create it again, since the copy is made with its parameters"
            )));
        };
        Ok(Ok((volume, parameters(&found))))
    }

    async fn new_copy(&self, replica: &VolumeReplica) -> Result<std::result::Result<NewCopy, String>> {
        let spec = &replica.spec;
        let (volume, mut parameters) = match self.described(replica).await? {
            Ok(described) => described,
            Err(why) => return Ok(Err(why)),
        };
        if let Some(pool) = &spec.target_pool {
            parameters.insert("pool".to_owned(), pool.clone());
        }
        let attributes = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
        let mutable_parameters = match attributes.filter(|name| !name.is_empty()) {
            None => BTreeMap::new(),
            Some(name) => match self.objects.attributes(&name).await? {
                Some(parameters) => parameters,
                None => {
                    return Ok(Err(format!("VolumeAttributesClass {name} does not exist; create it again")));
                }
            },
        };
        Ok(Ok(NewCopy {
            name: spec.copy_name.clone(),
            source: spec.volume_id.clone(),
            target: spec.target_node.clone(),
            bytes: bytes_of(&volume),
            access: access(&volume),
            parameters,
            mutable_parameters,
        }))
    }

    /// Returns what a pass asks for, and the size of the volume; or what is missing.
    async fn pass_request(
        &self,
        replica: &VolumeReplica,
    ) -> Result<std::result::Result<(PassRequest, u64), String>> {
        Ok(self.described(replica).await?.map(|(volume, parameters)| {
            let bytes = bytes_of(&volume);
            // In place, a pass that its source does not end would leave a copy of two cuts by halves.
            let whole = replica.spec.purpose == Purpose::Standby;
            (PassRequest { parameters, whole, most_bytes: most_bytes(bytes) }, bytes)
        }))
    }

    async fn pass(&self, replica: &VolumeReplica) -> Result<Next> {
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

    /// Asks for everything that can be refused as a dry run. After that, the volume is fenced.
    async fn check(&self, replica: &VolumeReplica, view: &View) -> Result<Next> {
        if let Err(refused) = Exchange::new(&self.objects, &replica.spec).check().await? {
            return self.wait(replica, RETRY, &refused.to_string()).await;
        }
        if matches!(view.wanted, Wanted::Move { when: When::Now, .. }) {
            let staying = view.users.iter().filter(|user| !user.is_leaving).map(|user| user.name.clone());
            let staying: Vec<String> = staying.collect();
            if let Some(why) = self.ask_to_leave(replica, &staying, Run::Dry).await? {
                return self.wait(replica, RETRY, &why).await;
            }
        }
        self.enter(replica, ReplicaPhase::CuttingOver, "the volume changes its node").await
    }

    async fn evict(&self, replica: &VolumeReplica, pods: &[String]) -> Result<Next> {
        match self.ask_to_leave(replica, pods, Run::Real).await? {
            Some(why) => self.wait(replica, RUNNING, &why).await,
            None => Ok(Next::After(PRESSING)),
        }
    }

    /// Evicts pods of the volume. Returns why one of them may not be evicted.
    async fn ask_to_leave(
        &self,
        replica: &VolumeReplica,
        names: &[String],
        run: Run,
    ) -> Result<Option<String>> {
        for pod in self.pods_of(replica).iter().filter(|pod| names.contains(&pod.name_any())) {
            match self.objects.evict(pod, run).await {
                Ok(()) => {}
                Err(kube::Error::Api(answer)) if answer.code == 429 => {
                    let name = pod.name_any();
                    return Ok(Some(format!("pod {name} may not be evicted yet: {}", answer.message)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Makes the copy identical to the volume. No pod uses it.
    async fn last_pass(&self, replica: &VolumeReplica) -> Result<Next> {
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
        let asked = self.now();
        match self.nodes.update(&replica.spec, &request).await {
            Ok(updated) if updated.source_in_use => {
                self.wait(replica, PRESSING, "the volume was in use during the last pass").await
            }
            Ok(updated) => {
                self.write(replica, |status| {
                    passed(status, &updated, asked, bytes);
                    status.exact = true;
                })
                .await
            }
            Err(NodeError::NotFound(why)) => self.lost_copy(replica, &why).await,
            Err(error) => self.hindered(replica, error).await,
        }
    }

    async fn exchange(&self, replica: &VolumeReplica) -> Result<Next> {
        let recorded = replica.status.as_ref().and_then(|status| status.recorded.as_ref());
        match Exchange::new(&self.objects, &replica.spec).step(recorded).await? {
            Progress::Done => {
                let why = format!("the volume is on node {}", replica.spec.target_node);
                self.enter(replica, ReplicaPhase::Retiring, &why).await
            }
            Progress::Record(volume) => self.write(replica, |status| status.recorded = Some(volume)).await,
            Progress::Next => Ok(Next::After(Duration::ZERO)),
            Progress::Unbound => Ok(Next::After(PRESSING)),
            Progress::Blocked(why) => self.wait(replica, RUNNING, &why).await,
        }
    }

    /// The copy, or what was left of the volume, is gone: so are the cuts that the node of the volume kept for it.
    async fn released(&self, replica: &VolumeReplica) -> Result<Next> {
        match self.nodes.release(&replica.spec).await {
            Ok(()) => self.finish(replica).await,
            // An administrator does not wait for a node. It removes the cuts by itself after a day.
            Err(_) if replica.metadata.deletion_timestamp.is_some() => self.finish(replica).await,
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// Nothing of the copy is left to take care of.
    async fn finish(&self, replica: &VolumeReplica) -> Result<Next> {
        self.end_request(replica).await?;
        self.objects.remove_replica(replica).await?;
        Ok(Next::Gone)
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
