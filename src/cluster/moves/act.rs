//! Does what comes next for a VolumeReplica. Everything that a later step needs is in its status before the step.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::absent::Absent;
use super::begin::Created;
use super::cutover::SELDOM;
use super::deadline::limited;
use super::decide::{LONG, PRESSING, Step, decide, is_lost_status};
use super::events::Events;
use super::exchange::Exchange;
use super::figures::Figures;
use super::nodes::{NodeError, Nodes};
use super::objects::{Objects, is_outdated, reason};
use super::queue::Begun;
use super::resources::{Purpose, ReplicaPhase, VolumeReplica, VolumeReplicaStatus};
use super::returns::Returns;
use super::seen::Seen;
use super::silence::Silence;
use super::strays::Evictions;
use super::view::{Says, View};
use crate::model::MoveLimits;

/// After something that a retry may get past.
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// Between two looks at what a node is doing.
pub(super) const RUNNING: Duration = Duration::from_secs(1);
/// After the creation of a VolumeReplica, its first status may still come.
const JUST: Duration = Duration::from_secs(2);
/// After an object has changed that was looked at.
const OUTDATED: Duration = Duration::from_millis(100);
/// Steps that are done at once, one after the other. Other copies of the same task wait meanwhile.
const AT_ONCE: usize = 16;

/// Moves the volumes of one driver, and keeps standby copies of them. Holds nothing that is not in the objects or at the nodes.
#[derive(Clone)]
pub struct Moves {
    pub(super) driver: String,
    pub(super) objects: Objects,
    pub(super) events: Events,
    pub(super) seen: Seen,
    pub(super) nodes: Arc<dyn Nodes>,
    pub(super) silence: Silence,
    /// For how long nodes cannot use the data of volumes, each as `NODE/ID`.
    pub(super) unusable: Silence,
    /// For how long this process has known that the status of a VolumeReplica is lost, by its uid.
    pub(super) status_lost: Silence,
    /// For how long the check of a cutover has been refused, by the uid of the VolumeReplica.
    pub(super) refused: Silence,
    pub(super) returns: Returns,
    pub(super) absent: Absent,
    pub(super) evictions: Evictions,
    pub(super) limits: MoveLimits,
    pub(super) begun: Begun,
    pub(super) created: Arc<tokio::sync::Mutex<Created>>,
    pub(super) figures: Arc<Figures>,
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
        let client = limited(client);
        Moves {
            driver: driver.to_owned(),
            events: Events::new(client.clone(), driver),
            objects: Objects::new(client),
            seen,
            nodes,
            silence: Silence::default(),
            unusable: Silence::default(),
            status_lost: Silence::default(),
            refused: Silence::with_gap(2 * SELDOM),
            returns: Returns::default(),
            absent: Absent::default(),
            evictions: Evictions::default(),
            limits: MoveLimits::default(),
            begun: Begun::default(),
            created: Arc::default(),
            figures: Arc::default(),
            clock: Arc::new(Timestamp::now),
        }
    }

    #[must_use]
    pub fn with_limits(self, limits: MoveLimits) -> Moves {
        Moves { limits, ..self }
    }

    #[must_use]
    pub fn with_figures(self, figures: Arc<Figures>) -> Moves {
        Moves { figures, ..self }
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
                Err(Failure::Kubernetes(error)) => {
                    // Otherwise only the log says what pods wait for.
                    if let kube::Error::Api(answer) = &error {
                        let why = format!("Kubernetes has not done the next step: {}", reason(answer));
                        drop(self.wait(&replica, RETRY, &why).await);
                    }
                    return Err(error.into());
                }
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
        if self.has_just_begun(replica) {
            return Ok(Next::After(RUNNING));
        }
        let (view, step) = self.next_step(replica).await?;
        if !matches!(step, Step::Enter(ReplicaPhase::Copying, _)) {
            self.begun.forget(replica);
        }
        let spec = &view.spec;
        match step {
            Step::Wait(time, why) => self.wait(replica, time, &why).await,
            Step::Enter(ReplicaPhase::Copying, why) => self.begin_first_copy(replica, &why).await,
            Step::Enter(phase, why) => self.begin_phase(replica, phase, &why).await,
            Step::Create => self.create(replica).await,
            Step::RetireSource(why) => {
                // The later generation may lack some of its data.
                self.write(replica, |status| {
                    (status.phase, status.stale) = (ReplicaPhase::Retiring, true);
                    status.message = why;
                })
                .await
            }
            Step::Recover(phase) => self.recover(replica, &view, phase).await,
            Step::Pass => self.pass(replica).await,
            Step::Check => self.check(replica, &view).await,
            Step::RetireEarlier => self.retire_earlier(replica).await,
            Step::Fence => self.fence(replica).await,
            Step::Evict(pods) => self.evict(replica, &view, &pods).await,
            Step::LastPass => self.last_pass(replica, &view).await,
            Step::GiveUpSource => self.give_up_source(replica, &view).await,
            Step::Complete => self.complete(replica).await,
            Step::Exchange => self.exchange(replica).await,
            Step::ExchangeBack => self.exchange_back(replica).await,
            Step::Retire => self.retire(replica).await,
            Step::DeleteLeft => self.delete_left(replica).await,
            Step::Unfence => match self.nodes.unfence(spec).await {
                Ok(()) => {
                    self.write(replica, |status| (status.fenced, status.maybe_fenced) = (None, false)).await
                }
                Err(error) => self.hindered(replica, error).await,
            },
            Step::DeleteCopy => match self.nodes.delete_copy(spec).await {
                Ok(()) => self.released(replica).await,
                Err(error) => self.hindered(replica, error).await,
            },
            Step::Reclaim => match self.nodes.reclaim(spec).await {
                Ok(()) => self.reclaimed(replica).await,
                Err(error) => self.hindered(replica, error).await,
            },
            Step::RetireCopy => self.retire_copy(replica).await,
            Step::DeleteLeftCopy => self.delete_left_copy(replica).await,
            Step::Release => self.released(replica).await,
            Step::Finish => self.finish(replica).await,
            Step::Leave => Ok(Next::After(LONG)),
        }
    }

    /// Enters a phase. An adoption has no check of its own before the exchange, so the exchange is asked for as a dry run (rule 8).
    async fn begin_phase(&self, replica: &VolumeReplica, phase: ReplicaPhase, why: &str) -> Result<Next> {
        if (replica.spec.purpose, phase) == (Purpose::Adoption, ReplicaPhase::Exchanging)
            && let Err(refused) = Exchange::new(&self.objects, &replica.spec).check().await?
        {
            return self.wait(replica, LONG, &refused.to_string()).await;
        }
        self.enter(replica, phase, why).await
    }

    /// Returns what is known of a copy, and what comes next.
    async fn next_step(&self, replica: &VolumeReplica) -> Result<(View, Step)> {
        let looking = Moves { absent: self.absent.for_one_look(), ..self.clone() };
        let view = looking.look(replica).await?;
        let step = decide(&view);
        if !looking.absent.was_used() || step.is_harmless() {
            return Ok((view, step));
        }
        let view = self.look(replica).await?;
        let step = decide(&view);
        Ok((view, step))
    }

    /// Reports whether a VolumeReplica has no status because it was created just now: its controller is about to write one.
    fn has_just_begun(&self, replica: &VolumeReplica) -> bool {
        let begun = replica.status.as_ref().is_some_and(|status| status.begun);
        let created = replica.metadata.creation_timestamp.as_ref();
        is_lost_status(replica.phase(), begun) && created.is_some_and(|at| self.since(&at.0) < JUST)
    }

    /// Writes a status again that was lost. The volume may be fenced, and the PersistentVolume says whether it was exchanged.
    async fn recover(&self, replica: &VolumeReplica, view: &View, phase: ReplicaPhase) -> Result<Next> {
        let exchanged = Exchange::new(&self.objects, &replica.spec).may_be_made().await?;
        tracing::warn!(
            volume.id = replica.spec.volume_id,
            ?phase,
            exchanged,
            "the status of a VolumeReplica was lost"
        );
        let (is_taken_back, is_left) = (phase == ReplicaPhase::Abandoning, phase == ReplicaPhase::Left);
        let is_later = matches!(view.source, Says::Has(has) if has > replica.spec.generation);
        let message = match is_left {
            true => format!(
                "node {} keeps its data; delete the VolumeReplica to delete them",
                replica.spec.source_node
            ),
            false => "the status was lost, and the volume goes back to its node first".to_owned(),
        };
        let next = self.write(replica, |status| {
            (status.phase, status.begun) = (phase, true);
            // A volume is taken back after the exchange was. What there is since then is of another move.
            status.exchanged = exchanged && !is_later && !is_left;
            status.maybe_completed = is_taken_back;
            status.reclaimed = is_later && is_taken_back;
            status.maybe_fenced = !is_later && !is_left;
            status.maybe_copied = view.copy != Says::Nothing;
            status.left_id = replica.spec.left_id().filter(|_| is_left);
            status.message = message;
        });
        match next.await? {
            Next::Now(kept) if !kept.status.as_ref().is_some_and(|status| status.begun) => {
                let why = "the CustomResourceDefinition of VolumeReplica is of an earlier release; apply that of this release";
                self.wait(&kept, LONG, why).await
            }
            next => Ok(next),
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
        Ok(Next::Now(Box::new(self.objects.change_status(replica, &changed).await?)))
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
        self.enter_with(replica, phase, why, |_| {}).await
    }

    /// The same with a further change of the status.
    pub(super) async fn enter_with(
        &self,
        replica: &VolumeReplica,
        phase: ReplicaPhase,
        why: &str,
        change: impl FnOnce(&mut VolumeReplicaStatus),
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
        let next = self
            .write(replica, |status| {
                change(status);
                status.phase = phase;
                // Before the first request: a later controller has to know that there may have been one.
                status.maybe_fenced |= phase == ReplicaPhase::CuttingOver;
                status.exchanged |= phase == ReplicaPhase::Exchanging;
                status.maybe_completed |= phase == ReplicaPhase::Completing;
                why.clone_into(&mut status.message);
                if phase < ReplicaPhase::CuttingOver {
                    (status.fenced, status.lost) = (None, false);
                    // They belong to a cutover that was given up, not to the next one.
                    (status.exact, status.stale) = (false, false);
                }
                if phase == ReplicaPhase::Retiring {
                    status.unavailable_milliseconds = status.fenced.as_ref().map(|fenced| {
                        self.now().0.as_millisecond().saturating_sub(fenced.0.as_millisecond())
                    });
                }
            })
            .await?;
        self.figures.entered(phase);
        let (from, to) = (spec.origin(), spec.destination());
        match phase {
            ReplicaPhase::CuttingOver => {
                let text = format!("The volume changes from {from} to {to}");
                self.events.tell(&spec.claim, "MoveCuttingOver", &text).await;
            }
            ReplicaPhase::Retiring => {
                let text = match spec.is_on_one_node() {
                    true => format!("The volume is in {to}"),
                    false => format!("The volume is on {to}; a ClaimLost before this is part of the move"),
                };
                self.events.tell(&spec.claim, "Moved", &text).await;
            }
            ReplicaPhase::Abandoning => {
                let text = match spec.is_on_one_node() {
                    true => format!("The copy in {to} is given up: {why}"),
                    false => format!("The copy on {to} is given up: {why}"),
                };
                self.events.warn(&spec.claim, "CopyGivenUp", &text).await;
            }
            _ => {}
        }
        Ok(next)
    }

    /// Writes why a node has not done something, and waits before the next try.
    pub(super) async fn hindered(&self, replica: &VolumeReplica, error: NodeError) -> Result<Next> {
        let phase = replica.phase();
        let is_pressing = (ReplicaPhase::CuttingOver..=ReplicaPhase::Completing).contains(&phase);
        let time = match error {
            NodeError::Running(_) if is_pressing => PRESSING,
            NodeError::InUse(_) | NodeError::Silent(_) | NodeError::Failed(_) if is_pressing => RUNNING,
            // Each answer to a running copy has another percentage, which goes into two statuses.
            NodeError::Running(_) | NodeError::InUse(_) | NodeError::Silent(_) | NodeError::Failed(_) => {
                RETRY
            }
            NodeError::NotFound(_) | NodeError::NoRoom(_) | NodeError::Refused(_) => LONG,
        };
        self.wait(replica, time, &error.to_string()).await
    }
}
