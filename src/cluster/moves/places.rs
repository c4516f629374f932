//! Where PersistentVolumes say that volumes are. The id of a volume names the node on which it was made. After a move, that node
//! may have come back with an earlier generation, and answer calls for the volume as if it had not moved.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};

use super::claims::node_of;
use crate::error::{Error, Result};
use crate::model::{Id as _, NodeKey, VolumeId};

/// The CSI node ids of volumes that are not on the nodes of their ids, by the ids of the volumes.
type Moved = HashMap<String, String>;

/// What PersistentVolumes say. Clones share it.
#[derive(Clone, Default)]
pub struct Places(Option<Arc<RwLock<State>>>);

#[derive(Default)]
struct State {
    /// `None` until all PersistentVolumes have been seen once.
    known: Option<Moved>,
    /// What a list has shown that has not ended.
    listed: Moved,
}

impl Places {
    /// Places that [`Places::watch`] fills. With the default, volumes are where their ids say.
    pub fn watched() -> Places {
        Places(Some(Arc::default()))
    }

    /// Returns the CSI node id of a volume whose PersistentVolume names another node than its id.
    ///
    /// # Errors
    /// UNAVAILABLE until the PersistentVolumes are known.
    pub fn of(&self, volume_id: &str) -> Result<Option<String>> {
        let Some(state) = &self.0 else { return Ok(None) };
        let state = state.read().unwrap_or_else(PoisonError::into_inner);
        match &state.known {
            Some(moved) => Ok(moved.get(volume_id).cloned()),
            None => Err(Error::Unavailable("the PersistentVolumes are not known yet; try again".to_owned())),
        }
    }

    /// Follows the PersistentVolumes of a driver until the future is dropped.
    pub async fn watch(self, client: Client, driver: String) -> Infallible {
        let all = Api::<PersistentVolume>::all(client);
        let mut failing = false;
        let mut events = std::pin::pin!(watcher(all, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    failing = false;
                    self.apply(event, &driver);
                }
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!(%error, "watching PersistentVolumes failed; retrying");
                }
                Err(_) => {}
            }
        }
        pending().await
    }

    /// Takes what the watch of the PersistentVolumes of a driver shows.
    pub fn apply(&self, event: Event<PersistentVolume>, driver: &str) {
        let Some(state) = &self.0 else { return };
        let mut state = state.write().unwrap_or_else(PoisonError::into_inner);
        let State { known, listed } = &mut *state;
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(volume) => set(listed, &volume, driver),
            Event::InitDone => *known = Some(std::mem::take(listed)),
            Event::Apply(volume) => set(known.get_or_insert_default(), &volume, driver),
            // A move sets Retain before it deletes the object, and creates it again at once.
            Event::Delete(volume) if is_retained(&volume) => {}
            Event::Delete(volume) => forget(known.get_or_insert_default(), &volume),
        }
    }
}

fn is_retained(volume: &PersistentVolume) -> bool {
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy == Some("Retain")
}

fn forget(moved: &mut Moved, volume: &PersistentVolume) {
    if let Some(csi) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) {
        moved.remove(&csi.volume_handle);
    }
}

/// Writes down the node of a volume of this driver.
fn set(moved: &mut Moved, volume: &PersistentVolume, driver: &str) {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let Some(csi) = csi.filter(|csi| csi.driver == driver) else { return };
    let Some(key) = VolumeId::node_key_in(&csi.volume_handle) else { return };
    match node_of(volume).filter(|node| NodeKey::of(node).as_str() != key) {
        Some(node) => moved.insert(csi.volume_handle.clone(), node),
        None => moved.remove(&csi.volume_handle),
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(id: &str, node: &str, driver: &str) -> PersistentVolume {
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": [node]}]}]}});
        let csi = json!({"driver": driver, "volumeHandle": id});
        let spec = json!({"csi": csi, "nodeAffinity": affinity, "persistentVolumeReclaimPolicy": "Retain"});
        serde_json::from_value(json!({"metadata": {"name": id}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_volume_is_where_its_object_says() {
        let id = VolumeId::of_name(&NodeKey::of("n1"), "v").to_string();
        let places = Places::watched();
        assert!(matches!(places.of(&id), Err(Error::Unavailable(_))), "unknown is not no");
        let of = || places.of(&id).map_err(|error| error.to_string());
        let apply = |event| places.apply(event, "d");
        apply(Event::Init);
        apply(Event::InitApply(volume(&id, "n2", "d")));
        assert!(places.of(&id).is_err(), "the list has not ended");
        apply(Event::InitDone);
        assert_eq!(of(), Ok(Some("n2".to_owned())));
        apply(Event::Delete(volume(&id, "n2", "d")));
        assert_eq!(of(), Ok(Some("n2".to_owned())), "it is created again");
        apply(Event::Apply(volume(&id, "n3", "d")));
        assert_eq!(of(), Ok(Some("n3".to_owned())));
        apply(Event::Apply(volume(&id, "n2", "another")));
        assert_eq!(of(), Ok(Some("n3".to_owned())));
        apply(Event::Apply(volume(&id, "n1", "d")));
        assert_eq!(of(), Ok(None), "its id says so as well");
        let mut deleted = volume(&id, "n3", "d");
        apply(Event::Apply(deleted.clone()));
        deleted.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Delete".to_owned());
        apply(Event::Delete(deleted));
        assert_eq!(of(), Ok(None), "the volume is gone as well");
        // The watch begins again.
        apply(Event::Apply(volume(&id, "n2", "d")));
        apply(Event::Init);
        assert_eq!(of(), Ok(Some("n2".to_owned())));
        apply(Event::InitDone);
        assert_eq!(of(), Ok(None), "it is gone");
        assert!(Places::default().of(&id).is_ok_and(|place| place.is_none()));
    }
}
