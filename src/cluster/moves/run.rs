//! Watches what a move has to do with, and works on each object whenever something changes, as long as this process leads.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::controller::Action;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{Config, WatchStreamExt as _, applier};
use kube::{Api, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// A way to the API server.
pub use kube::Client;

use super::act::{Failure, Moves};
use super::deadline::limited;
use super::figures::Figures;
use super::lease::Election;
use super::nodes::Nodes;
use super::pods::claims_of;
use super::resources::{VolumeMove, VolumeReplica};
use super::seen::{Seen, Writers, trim, trim_pod};
use super::strays::waits_on;
use crate::cluster::peers::api_client;
use crate::model::MoveLimits;
use crate::shutdown::Shutdown;

/// After a step that failed.
const FAILED: Duration = Duration::from_secs(5);

/// A process that may lead: one of several moves volumes at a time.
pub struct Candidate {
    pub client: Client,
    pub driver: String,
    pub nodes: Arc<dyn Nodes>,
    pub figures: Arc<Figures>,
    pub limits: MoveLimits,
}

impl Candidate {
    /// Returns a client with the service account of this pod, or with a kubeconfig.
    ///
    /// # Errors
    /// If there is neither.
    pub async fn connect() -> Result<Client, String> {
        let client = api_client().await;
        client.map_err(|error| format!("cannot reach the API server: {error}"))
    }

    /// Moves volumes whenever this process leads. `identity` is its name among the candidates, and `namespace` has their Lease.
    /// Returns when shutdown is requested, after it has released the Lease.
    pub async fn run(self, namespace: &str, identity: String, shutdown: Shutdown) {
        let mut election = Election::new(self.client.clone(), namespace, &self.driver, identity);
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
                never = self.lead() => match never {},
            };
            self.figures.leads(None);
            if ends {
                return election.release().await;
            }
            tracing::warn!("this controller moves no volumes any more: its Lease was not renewed in time");
        }
    }

    /// Watches and works until the future is dropped.
    async fn lead(&self) -> Infallible {
        // Nothing that an earlier lead has seen or heard counts.
        let (seen, writers) = Seen::new();
        let nodes = Arc::clone(&self.nodes);
        let moves = Moves::new(&self.driver, self.client.clone(), seen.clone(), nodes)
            .with_limits(self.limits)
            .with_figures(Arc::clone(&self.figures));
        let (queues, waiting) = Queues::new(seen.clone());
        let work = async {
            // A look before the first lists would miss what is there.
            if seen.are_complete().await {
                self.figures.leads(Some((&self.driver, seen.clone())));
                tracing::info!("the volumes and their copies are known");
                work(Arc::new(moves), waiting, &seen).await;
            }
            pending().await
        };
        let (_, never): (Infallible, Infallible) =
            join(watch(&limited(self.client.clone()), writers, Arc::new(queues)), work).await;
        never
    }
}

impl Seen {
    /// Waits until everything that there is was shown once. `false` if the watches have ended.
    async fn are_complete(&self) -> bool {
        self.replicas.wait_until_ready().await.is_ok()
            && self.moves.wait_until_ready().await.is_ok()
            && self.claims.wait_until_ready().await.is_ok()
            && self.volumes.wait_until_ready().await.is_ok()
            && self.pods.wait_until_ready().await.is_ok()
            && self.nodes.wait_until_ready().await.is_ok()
            && self.classes.wait_until_ready().await.is_ok()
    }
}

/// What is to be looked at.
struct Queues {
    seen: Seen,
    replicas: UnboundedSender<ObjectRef<VolumeReplica>>,
    moves: UnboundedSender<ObjectRef<VolumeMove>>,
    claims: UnboundedSender<ObjectRef<PersistentVolumeClaim>>,
}

/// The other ends of [`Queues`].
struct Waiting {
    replicas: UnboundedReceiver<ObjectRef<VolumeReplica>>,
    moves: UnboundedReceiver<ObjectRef<VolumeMove>>,
    claims: UnboundedReceiver<ObjectRef<PersistentVolumeClaim>>,
}

impl Queues {
    fn new(seen: Seen) -> (Queues, Waiting) {
        let (replicas, of_replicas) = unbounded_channel();
        let (moves, of_moves) = unbounded_channel();
        let (claims, of_claims) = unbounded_channel();
        let queues = Queues { seen, replicas, moves, claims };
        (queues, Waiting { replicas: of_replicas, moves: of_moves, claims: of_claims })
    }

    // A queue without a reader belongs to a process that has lost the Lease.
    fn replica(&self, replica: &VolumeReplica) {
        let _ = self.replicas.send(ObjectRef::from_obj(replica));
    }

    fn replicas_with(&self, wanted: impl Fn(&VolumeReplica) -> bool) {
        self.seen.replicas.state_filter(wanted).iter().for_each(|replica| self.replica(replica));
    }

    /// Passes a change of the message alone to the VolumeMove only, because this controller has written it. Otherwise the controller would
    /// ask a node that reports its progress as fast as the node answers.
    fn a_replica_changed(&self, before: Option<&VolumeReplica>, replica: &VolumeReplica) {
        let (namespace, claim) = (&replica.spec.claim.namespace, &replica.spec.claim.name);
        if let Some(by) = &replica.spec.requested_by {
            let _ = self.moves.send(ObjectRef::new(&by.name).within(namespace));
        }
        if before.is_some_and(|before| is_same_but_text(before, replica)) {
            return;
        }
        self.replica(replica);
        // One that is gone makes room for another one.
        let _ = self.claims.send(ObjectRef::new(claim).within(namespace));
    }

    fn a_move_changed(&self, before: Option<&VolumeMove>, asked: &VolumeMove) {
        if before.is_some_and(|before| is_same_but_text(before, asked)) {
            return;
        }
        let _ = self.moves.send(ObjectRef::from_obj(asked));
        let uid = asked.uid();
        self.replicas_with(|replica| replica.spec.requested_by.as_ref().map(|by| &by.uid) == uid.as_ref());
    }

    fn a_claim_changed(&self, claim: &PersistentVolumeClaim) {
        let _ = self.claims.send(ObjectRef::from_obj(claim));
        let uid = claim.uid().unwrap_or_default();
        self.replicas_with(|replica| replica.spec.claim.uid == uid);
    }

    fn a_pod_changed(&self, pod: &Pod) {
        let namespace = pod.namespace().unwrap_or_default();
        let claims: HashSet<&str> = claims_of(pod).collect();
        if !claims.is_empty() {
            self.replicas_with(|replica| {
                replica.spec.claim.namespace == namespace && claims.contains(replica.spec.claim.name.as_str())
            });
        }
        // Of a cluster's pods, only those that wait: each look goes over all pods.
        if waits_on(pod).is_some() {
            for claim in claims.iter().filter_map(|name| self.seen.claim(&namespace, name)) {
                self.may_have_strays(&claim);
            }
        }
    }

    fn a_volume_changed(&self, volume: &PersistentVolume) {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let name = |claim: &ObjectReference| Some((claim.namespace.clone()?, claim.name.clone()?));
        if let Some(claim) =
            claim.and_then(name).and_then(|(namespace, name)| self.seen.claim(&namespace, &name))
        {
            self.may_have_strays(&claim);
        }
    }

    fn may_have_strays(&self, claim: &PersistentVolumeClaim) {
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let volume = Seen::get(&self.seen.volumes, &volume);
        if volume.is_some_and(|volume| !self.seen.strays(claim, &volume).is_empty()) {
            let _ = self.claims.send(ObjectRef::from_obj(claim));
        }
    }

    fn a_node_changed(&self, node: &Node) {
        let name = node.name_any();
        self.replicas_with(|replica| replica.spec.source_node == name || replica.spec.target_node == name);
    }

    fn a_class_changed(&self, class: &StorageClass) {
        let name = class.name_any();
        let of_class = |claim: &PersistentVolumeClaim| {
            claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref()) == Some(&name)
        };
        self.seen.claims.state_filter(of_class).iter().for_each(|claim| self.a_claim_changed(claim));
    }
}

/// Shows everything that a move has to do with.
async fn watch(client: &Client, writers: Writers, queues: Arc<Queues>) -> Infallible {
    let Writers { replicas, moves, claims, volumes, pods, nodes, classes } = writers;
    let of = || Arc::clone(&queues);
    let (to_replicas, to_moves, to_claims, to_volumes) = (of(), of(), of(), of());
    let (to_pods, to_nodes, to_classes) = (of(), of(), of());
    let first = join(
        show(Api::<VolumeReplica>::all(client.clone()), replicas, trim, move |before, it| {
            to_replicas.a_replica_changed(before, it)
        }),
        show(Api::<VolumeMove>::all(client.clone()), moves, trim, move |before, it| {
            to_moves.a_move_changed(before, it)
        }),
    );
    let second = join(
        show(Api::<PersistentVolumeClaim>::all(client.clone()), claims, trim, move |_, it| {
            to_claims.a_claim_changed(it)
        }),
        show(Api::<PersistentVolume>::all(client.clone()), volumes, trim, move |_, it| {
            to_volumes.a_volume_changed(it)
        }),
    );
    let third = join(
        show(Api::<Pod>::all(client.clone()), pods, trim_pod, move |_, it| to_pods.a_pod_changed(it)),
        show(Api::<Node>::all(client.clone()), nodes, trim, move |_, it| to_nodes.a_node_changed(it)),
    );
    let classes = show(Api::<StorageClass>::all(client.clone()), classes, trim, move |_, it| {
        to_classes.a_class_changed(it)
    });
    let (_, (never, _)) = join(join(first, second), join(classes, third)).await;
    never
}

/// Shows the objects of one kind, and reports each that changes or goes, with its earlier state.
async fn show<K>(
    api: Api<K>,
    mut writer: Writer<K>,
    trim: fn(&mut K),
    changed: impl Fn(Option<&K>, &K),
) -> Infallible
where
    K: kube::Resource<DynamicType = ()> + DeserializeOwned + Clone + Send + std::fmt::Debug + 'static,
{
    let all: Store<K> = writer.as_reader();
    let mut failing = false;
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let mut event = match event {
            Ok(event) => event,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    let kind = K::kind(&());
                    tracing::warn!(%error, %kind, "nothing is heard of these objects; volumes do not move meanwhile");
                }
                continue;
            }
        };
        failing = false;
        if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) = &mut event {
            trim(object);
        }
        let before = match &event {
            Event::Apply(object) => all.get(&ObjectRef::from_obj(object)),
            _ => None,
        };
        writer.apply_watcher_event(&event);
        match &event {
            Event::Apply(object) | Event::Delete(object) => changed(before.as_deref(), object),
            // What a list has shown is seen from here on.
            Event::InitDone => all.state().iter().for_each(|object| changed(None, object)),
            Event::Init | Event::InitApply(_) => {}
        }
    }
    pending().await
}

/// An object with text for people in its status.
pub trait Tells: Clone + PartialEq {
    /// Removes the text for people, and the resource version, which changes with each write.
    fn remove_text(&mut self);
}

impl Tells for VolumeReplica {
    fn remove_text(&mut self) {
        self.metadata.resource_version = None;
        if let Some(status) = &mut self.status {
            status.message.clear();
        }
    }
}

impl Tells for VolumeMove {
    fn remove_text(&mut self) {
        self.metadata.resource_version = None;
        if let Some(status) = &mut self.status {
            status.message.clear();
            status.progress.clear();
        }
    }
}

/// Reports whether two states of an object differ in nothing but text for people.
pub fn is_same_but_text<K: Tells>(one: &K, other: &K) -> bool {
    let (mut one, mut other) = (one.clone(), other.clone());
    one.remove_text();
    other.remove_text();
    one == other
}

/// Works on what the queues name, one task for each object at a time.
async fn work(moves: Arc<Moves>, waiting: Waiting, seen: &Seen) {
    let replicas = each(&moves, seen.replicas.clone(), waiting.replicas, |replica, moves| {
        Box::pin(async move { moves.follow(&replica).await.map(action) })
    });
    let asked = each(&moves, seen.moves.clone(), waiting.moves, |asked, moves| {
        Box::pin(async move { moves.attend(&asked).await.map(action) })
    });
    let claims = each(&moves, seen.claims.clone(), waiting.claims, |claim, moves| {
        Box::pin(async move {
            let (strays, standby) = (moves.send_strays_away(&claim).await?, moves.stand_by(&claim).await?);
            Ok(action([strays, standby].into_iter().flatten().min()))
        })
    });
    join(drain(replicas), join(drain(asked), drain(claims))).await;
}

type Working = std::pin::Pin<Box<dyn Future<Output = Result<Action, Failure>> + Send>>;

fn each<K>(
    moves: &Arc<Moves>,
    all: Store<K>,
    waiting: UnboundedReceiver<ObjectRef<K>>,
    work: fn(Arc<K>, Arc<Moves>) -> Working,
) -> impl Stream<Item = ()> + use<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + Send + Sync + std::fmt::Debug + 'static,
{
    let queue = UnboundedReceiverStream::new(waiting).map(Ok::<_, Infallible>);
    let failed = |object: Arc<K>, error: &Failure, moves: Arc<Moves>| {
        let name = kube::ResourceExt::name_any(object.as_ref());
        tracing::warn!(kind = %K::kind(&()), name, %error, "a step is tried again");
        moves.figures.failed();
        Action::requeue(FAILED)
    };
    applier(work, failed, Arc::clone(moves), all, queue, Config::default()).map(drop)
}

async fn drain(all: impl Stream<Item = ()>) {
    all.for_each(|()| async {}).await;
}

fn action(again: Option<Duration>) -> Action {
    again.map_or_else(Action::await_change, Action::requeue)
}

#[cfg(test)]
mod tests;
