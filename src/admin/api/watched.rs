//! Lists of the API server that watches keep up to date (`--watch`): each is read once, and an answer asks for none.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Cluster;
use super::inspect::{Cut, Known, User, contents, cut, known, user};
use crate::cluster::moves::seen::{trim, trim_pod};

/// How long a watch that has failed waits before the list is read anew. Meanwhile, each answer reads the list.
const PAUSE: Duration = Duration::from_secs(10);

/// Namespace and name.
type Key = (Option<String>, String);

/// What is known of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is being read.
    Pending,
    /// It is whole, and a watch keeps it up to date.
    Current,
    /// The watch has failed, or is not allowed.
    Failed,
}

/// A list of objects and its watch, which ends with this value.
struct Watched<K> {
    objects: Arc<Mutex<HashMap<Key, K>>>,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl<K> Drop for Watched<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K> Watched<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// Begins to read and to watch. `trim` removes from an object what no answer needs.
    fn new(api: Api<K>, trim: fn(&mut K)) -> Self {
        let (objects, (told, state)) = (Arc::default(), watch::channel(State::Pending));
        let task = tokio::spawn(follow(api, trim, Arc::clone(&objects), told));
        Watched { objects, state, task }
    }

    /// Returns what `read` makes of the objects; `None` if the list has to be asked for.
    async fn all<T>(&self, read: impl Fn(&K) -> Option<T>) -> Option<Vec<T>> {
        let state = *self.state.clone().wait_for(|state| *state != State::Pending).await.ok()?;
        let all = || lock(&self.objects).values().filter_map(&read).collect();
        (state == State::Current).then(all)
    }
}

fn lock<K>(objects: &Mutex<HashMap<Key, K>>) -> MutexGuard<'_, HashMap<Key, K>> {
    // Nothing that runs under the mutex can panic half-way.
    objects.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow<K>(
    api: Api<K>,
    trim: fn(&mut K),
    objects: Arc<Mutex<HashMap<Key, K>>>,
    state: watch::Sender<State>,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    loop {
        let mut events = std::pin::pin!(watcher(api.clone(), watcher::Config::default()));
        let mut read = HashMap::new();
        let error = loop {
            let add = |mut object: K| {
                trim(&mut object);
                ((object.namespace(), object.name_any()), object)
            };
            match events.next().await {
                Some(Ok(Event::Init)) => read.clear(),
                Some(Ok(Event::InitApply(object))) => read.extend([add(object)]),
                Some(Ok(Event::InitDone)) => {
                    *lock(&objects) = std::mem::take(&mut read);
                    state.send_replace(State::Current);
                }
                Some(Ok(Event::Apply(object))) => lock(&objects).extend([add(object)]),
                Some(Ok(Event::Delete(object))) => {
                    lock(&objects).remove(&(object.namespace(), object.name_any()));
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        state.send_replace(State::Failed);
        // Without the right, or the kind, the list is asked for in each answer, which says what is missing.
        if error.is_some_and(|error| is_final(&error)) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn is_final(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status,
        _ => return false,
    };
    matches!(status.code, 401 | 403 | 404 | 405)
}

/// The lists that `hostloop volumes` and the like read.
pub(in crate::admin) struct Watches {
    volumes: Option<Watched<PersistentVolume>>,
    pods: Option<Watched<Pod>>,
    contents: Option<Watched<DynamicObject>>,
}

impl Watches {
    /// Begins to watch PersistentVolumes, the pods of a namespace or of all, and VolumeSnapshotContents, as far as they are asked for.
    pub(in crate::admin) fn new(
        cluster: &Cluster,
        volumes: bool,
        pods: Option<Option<&str>>,
        snapshots: bool,
    ) -> Self {
        let client = || cluster.client.clone();
        Watches {
            volumes: volumes.then(|| Watched::new(Api::all(client()), trim)),
            pods: pods.map(|namespace| Watched::new(cluster.in_namespace(namespace), trim_pod)),
            contents: snapshots.then(|| Watched::new(contents(client()), trim)),
        }
    }

    /// Returns the PersistentVolumes of a driver; `None` if they have to be listed.
    pub(in crate::admin) async fn known_volumes(&self, driver: &str) -> Option<Vec<Known>> {
        self.volumes.as_ref()?.all(|volume| known(volume, driver)).await
    }

    /// Returns the pods that have not ended; `None` if they have to be listed.
    pub(in crate::admin) async fn users(&self) -> Option<Vec<User>> {
        self.pods.as_ref()?.all(user).await
    }

    /// Returns the VolumeSnapshotContents of a driver; `None` if they have to be listed.
    pub(in crate::admin) async fn cuts(&self, driver: &str) -> Option<Vec<Cut>> {
        self.contents.as_ref()?.all(|content| cut(content, driver)).await
    }
}
