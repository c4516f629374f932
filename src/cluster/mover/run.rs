//! Finds the claims and PersistentVolumes that a move has to do with, and works on each in a task of its own, as long as
//! this process leads.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::act::{Mover, Next};
use super::lease::Election;
use super::status::{FINALIZER, MOVE_STATUS, MOVE_TO, MOVING, STANDBY};
use super::view::is_lost;
use crate::model::Standby;
use crate::shutdown::Shutdown;

type Claims = BoxStream<'static, watcher::Result<Event<PersistentVolumeClaim>>>;

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
    /// Lease. Returns when shutdown is requested, after it has released the Lease.
    pub async fn run(self, namespace: &str, identity: String, shutdown: Shutdown) {
        let mut election = Election::new(self.cluster.client(), namespace, &self.driver, identity);
        let mut end = std::pin::pin!(shutdown.requested());
        loop {
            tokio::select! {
                () = election.win() => {}
                () = &mut end => return,
            }
            tracing::info!("this controller moves volumes now");
            let ends = tokio::select! {
                () = election.lose() => false,
                () = &mut end => true,
                never = self.work() => match never {},
            };
            self.figures.none_is_under_way();
            if ends {
                return election.release().await;
            }
            tracing::warn!("this controller moves no volumes any more: its Lease was not renewed in time");
        }
    }

    async fn work(&self) -> Infallible {
        let changed = watcher::Config::default().labels(&format!("{MOVING}=true"));
        let mut claims = self.claims();
        let classes = Api::<StorageClass>::all(self.cluster.client());
        let mut classes = watcher(classes, watcher::Config::default()).default_backoff().boxed();
        // Those with a parameter that makes copies stand by.
        let mut standby = HashSet::new();
        let nodes = Api::<Node>::all(self.cluster.client());
        let mut nodes = watcher(nodes, watcher::Config::default()).default_backoff().boxed();
        let mut lost = HashSet::new();
        let volumes = Api::<PartialObjectMeta<PersistentVolume>>::all(self.cluster.client());
        let mut volumes = watcher(volumes, changed).default_backoff().boxed();
        let mut tasks = Tasks::default();
        loop {
            tokio::select! {
                Some(event) = claims.next() => match event {
                    Ok(event) => {
                        if let Some(claim) = touched(event).filter(|claim| concerns(claim, &standby)) {
                            tasks.begin(self, object(&claim), asked(&claim));
                        }
                    }
                    Err(error) => tracing::warn!(%error, "the claims are not told"),
                },
                Some(event) = volumes.next() => match event {
                    Ok(event) => {
                        if let Some(volume) = touched(event) {
                            tasks.begin(self, Object::Volume(volume.name_any()), 0);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "the PersistentVolumes are not told"),
                },
                Some(event) = classes.next() => match event {
                    Ok(event) => {
                        let class = touched(event).filter(|class| class.provisioner == self.driver);
                        let keeps = |class: &StorageClass| {
                            class.parameters.iter().flatten().any(|(key, _)| key == Standby::PARAMETER)
                        };
                        if class.as_ref().is_some_and(keeps) && standby.insert(class.unwrap_or_default().name_any()) {
                            // Claims of it were passed over.
                            claims = self.claims();
                        }
                    }
                    Err(error) => tracing::warn!(%error, "the StorageClasses are not told"),
                },
                Some(event) = nodes.next() => match event {
                    Ok(event) => {
                        if let Some(node) = touched(event) {
                            let changed = match is_lost(Some(&node)) {
                                true => lost.insert(node.name_any()),
                                false => lost.remove(&node.name_any()),
                            };
                            if changed {
                                tasks.wake_all();
                            }
                        }
                    }
                    Err(error) => tracing::warn!(%error, "the Nodes are not told"),
                },
                Some(object) = tasks.ended() => tasks.over(self, object),
            }
        }
    }

    /// All claims, and then their changes.
    fn claims(&self) -> Claims {
        let claims = Api::<PersistentVolumeClaim>::all(self.cluster.client());
        watcher(claims, watcher::Config::default()).default_backoff().boxed()
    }

    /// Works on one object until there is nothing to do; looks at once when it is woken.
    async fn follow(self, object: Object, wake: Arc<Notify>) -> Object {
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
            let _ = tokio::time::timeout(wait, wake.notified()).await;
        }
    }
}

/// The tasks, at most one for each object.
#[derive(Default)]
struct Tasks {
    running: JoinSet<Object>,
    objects: HashMap<Object, Task>,
}

struct Task {
    /// Whether the object has changed since it began.
    changed: bool,
    /// What the object's owners ask for, as far as it was looked at.
    asked: u64,
    wake: Arc<Notify>,
}

impl Tasks {
    /// `asked` is what the object's owners ask for: if that changes, the task looks at once. What the mover itself has written
    /// does not wake it.
    fn begin(&mut self, mover: &Mover, object: Object, asked: u64) {
        if let Some(task) = self.objects.get_mut(&object) {
            task.changed = true;
            if std::mem::replace(&mut task.asked, asked) != asked {
                task.wake.notify_one();
            }
            return;
        }
        let wake = Arc::new(Notify::new());
        self.objects.insert(object.clone(), Task { changed: false, asked, wake: Arc::clone(&wake) });
        self.running.spawn(mover.clone().follow(object, wake));
    }

    fn wake_all(&self) {
        self.objects.values().for_each(|task| task.wake.notify_one());
    }

    /// The object whose task has ended: nobody knows which one where a bug has stopped it.
    async fn ended(&mut self) -> Option<Option<Object>> {
        Some(self.running.join_next().await?.ok())
    }

    fn over(&mut self, mover: &Mover, ended: Option<Object>) {
        match ended {
            Some(object) => {
                if let Some(task) = self.objects.remove(&object).filter(|task| task.changed) {
                    self.begin(mover, object, task.asked);
                }
            }
            None => {
                tracing::error!("a bug stopped the move of a volume; all are looked at again");
                self.running.abort_all();
                let objects: Vec<(Object, Task)> = self.objects.drain().collect();
                self.running = JoinSet::new();
                objects.into_iter().for_each(|(object, task)| self.begin(mover, object, task.asked));
            }
        }
    }
}

/// The object that there is after an event.
fn touched<K>(event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => Some(object),
        Event::Delete(_) | Event::Init | Event::InitDone => None,
    }
}

/// Whether there may be something to do for the claim. `standby` has the StorageClasses with copies that stand by.
fn concerns(claim: &PersistentVolumeClaim, standby: &HashSet<String>) -> bool {
    let says = |annotation| claim.annotations().contains_key(annotation);
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    says(MOVE_TO)
        || says(MOVE_STATUS)
        || says(STANDBY)
        || class.is_some_and(|class| standby.contains(class))
        || claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// What people ask for with a claim, in short.
fn asked(claim: &PersistentVolumeClaim) -> u64 {
    let mut hasher = DefaultHasher::new();
    claim.metadata.deletion_timestamp.is_some().hash(&mut hasher);
    let asked = claim.annotations().iter().filter(|(key, _)| *key != MOVE_STATUS);
    asked.for_each(|annotation| annotation.hash(&mut hasher));
    hasher.finish()
}

fn object(claim: &PersistentVolumeClaim) -> Object {
    Object::Claim { namespace: claim.namespace().unwrap_or_default(), name: claim.name_any() }
}
