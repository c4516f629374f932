//! Does what comes next for a VolumeReplica. Everything that a later step needs is in its status before the step.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::begin::{Created, Limits};
use super::decide::{LONG, PRESSING, Step, decide};
use super::nodes::{NodeError, Nodes};
use super::objects::{Objects, is_outdated};
use super::resources::{ReplicaPhase, VolumeReplica, VolumeReplicaStatus};
use super::seen::Seen;
use super::silence::Silence;

/// After something that a retry may get past.
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// Between two looks at what a node is doing.
pub(super) const RUNNING: Duration = Duration::from_secs(1);
/// After an object has changed that was looked at.
const OUTDATED: Duration = Duration::from_millis(100);
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
    pub(super) async fn write(
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
    pub(super) async fn wait(&self, replica: &VolumeReplica, time: Duration, why: &str) -> Result<Next> {
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
    pub(super) async fn hindered(&self, replica: &VolumeReplica, error: NodeError) -> Result<Next> {
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
}
