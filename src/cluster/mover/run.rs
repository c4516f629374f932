//! Finds the claims and PersistentVolumes that a move has to do with, and works on each in a task of its own, as long as
//! this process leads.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::task::JoinSet;

use super::act::{Mover, Next};
use super::lease::Election;
use super::status::{FINALIZER, MOVE_STATUS, MOVE_TO, MOVING};
use crate::shutdown::Shutdown;

/// After a step that failed; doubled by each further one, up to the second.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// After something has changed that was looked at.
const OUTDATED: Duration = Duration::from_millis(100);

/// What a task works on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Object {
    Claim { namespace: String, name: String },
    Volume(String),
}

impl Mover {
    /// Moves volumes whenever this process leads: `identity` is its name among the candidates, and `namespace` has their
    /// Lease. Lets another one lead when the end is asked for.
    pub async fn run(self, namespace: &str, identity: String, shutdown: Shutdown) -> Infallible {
        let mut election = Election::new(self.cluster.client(), namespace, &self.driver, identity);
        let mut end = std::pin::pin!(shutdown.requested());
        loop {
            tokio::select! {
                () = election.win() => {}
                () = &mut end => break,
            }
            tracing::info!("this controller moves volumes now");
            let ends = tokio::select! {
                () = election.lose() => false,
                () = &mut end => true,
                never = self.work() => match never {},
            };
            self.figures.none_is_under_way();
            if ends {
                election.release().await;
                break;
            }
            tracing::warn!("this controller moves no volumes any more: its Lease was not renewed in time");
        }
        pending().await
    }

    async fn work(&self) -> Infallible {
        let changed = watcher::Config::default().labels(&format!("{MOVING}=true"));
        let claims = Api::<PartialObjectMeta<PersistentVolumeClaim>>::all(self.cluster.client());
        let mut claims = watcher(claims, watcher::Config::default()).default_backoff().boxed();
        let volumes = Api::<PartialObjectMeta<PersistentVolume>>::all(self.cluster.client());
        let mut volumes = watcher(volumes, changed).default_backoff().boxed();
        let mut tasks = Tasks::default();
        loop {
            tokio::select! {
                Some(event) = claims.next() => match event {
                    Ok(event) => {
                        if let Some(object) = touched(event).filter(concerns).map(claim) {
                            tasks.begin(self, object);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "the claims are not told"),
                },
                Some(event) = volumes.next() => match event {
                    Ok(event) => {
                        if let Some(volume) = touched(event) {
                            tasks.begin(self, Object::Volume(volume.name_any()));
                        }
                    }
                    Err(error) => tracing::warn!(%error, "the PersistentVolumes are not told"),
                },
                Some(object) = tasks.ended() => tasks.over(self, object),
            }
        }
    }

    /// Works on one object until there is nothing to do.
    async fn follow(self, object: Object) -> Object {
        let mut pause = FIRST;
        loop {
            let done = match &object {
                Object::Claim { namespace, name } => self.step_claim(namespace, name).await,
                Object::Volume(name) => self.step_volume(name).await,
            };
            let wait = match done {
                Ok(Next::Finished) => return object,
                Ok(Next::After(wait)) => {
                    pause = FIRST;
                    wait
                }
                Err(error) if error.is_outdated() => OUTDATED,
                Err(error) => {
                    tracing::warn!(?object, %error, "a step of a move is tried again");
                    self.figures.failed();
                    let wait = pause;
                    pause = pause.saturating_mul(2).min(LONGEST);
                    wait
                }
            };
            tokio::time::sleep(wait).await;
        }
    }
}

/// The tasks, at most one for each object.
#[derive(Default)]
struct Tasks {
    running: JoinSet<Object>,
    /// Whether the object has changed since its task began.
    objects: HashMap<Object, bool>,
}

impl Tasks {
    fn begin(&mut self, mover: &Mover, object: Object) {
        if let Some(changed) = self.objects.get_mut(&object) {
            *changed = true;
            return;
        }
        self.objects.insert(object.clone(), false);
        self.running.spawn(mover.clone().follow(object));
    }

    /// The object whose task has ended: nobody knows which one where a bug has stopped it.
    async fn ended(&mut self) -> Option<Option<Object>> {
        Some(self.running.join_next().await?.ok())
    }

    fn over(&mut self, mover: &Mover, ended: Option<Object>) {
        match ended {
            Some(object) => {
                if self.objects.remove(&object) == Some(true) {
                    self.begin(mover, object);
                }
            }
            None => {
                tracing::error!("a bug stopped the move of a volume; all are looked at again");
                self.running.abort_all();
                let objects: HashSet<Object> = self.objects.drain().map(|(object, _)| object).collect();
                self.running = JoinSet::new();
                objects.into_iter().for_each(|object| self.begin(mover, object));
            }
        }
    }
}

/// The object that there is after an event.
fn touched<K>(event: Event<PartialObjectMeta<K>>) -> Option<PartialObjectMeta<K>> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => Some(object),
        Event::Delete(_) | Event::Init | Event::InitDone => None,
    }
}

fn concerns(claim: &PartialObjectMeta<PersistentVolumeClaim>) -> bool {
    let says = |annotation| claim.annotations().contains_key(annotation);
    says(MOVE_TO) || says(MOVE_STATUS) || claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

fn claim(claim: PartialObjectMeta<PersistentVolumeClaim>) -> Object {
    Object::Claim { namespace: claim.namespace().unwrap_or_default(), name: claim.name_any() }
}
