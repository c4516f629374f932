//! Pods that wait for their volume on its earlier node. The scheduler had placed them before it observed the exchange. kubelet
//! never starts them, and only their deletion brings their successors to the node of the volume.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::act::{Moves, RUNNING, Result};
use super::fits::reaches;
use super::objects::reason;
use super::pods::{belongs_to_its_node, claims_of, controller, is_scheduled, never_ran};
use super::seen::Seen;

/// After the first eviction of the pods of a claim. Each further one doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two evictions.
const LONGEST: Duration = Duration::from_secs(300);

/// When the pods of a claim that one controller creates on one node were evicted last, and for how long none is evicted since. The
/// template of a pod may name its node: whatever creates it again, creates it there.
#[derive(Clone, Default)]
pub struct Evictions(Arc<Mutex<HashMap<String, (Instant, Duration)>>>);

impl Evictions {
    /// Returns for how long no such pod is to be evicted.
    fn pause(&self, pods: &str) -> Option<Duration> {
        // Nothing that runs under the mutex can panic half-way.
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, pause) = all.get(pods)?;
        pause.checked_sub(last.elapsed()).filter(|rest| !rest.is_zero())
    }

    /// Notes that such a pod was evicted.
    fn note(&self, pods: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (last, _)| last.elapsed() < 2 * LONGEST);
        let pause = all.get(pods).map_or(PAUSE, |(_, pause)| (2 * *pause).min(LONGEST));
        all.insert(pods.to_owned(), (Instant::now(), pause));
    }
}

/// Returns the node on which a pod waits that has never run. A controller creates it again if it is evicted.
pub fn waits_on(pod: &Pod) -> Option<&str> {
    let may_go = pod.metadata.deletion_timestamp.is_none()
        && is_scheduled(pod)
        && never_ran(pod)
        && controller(pod).is_some()
        && !belongs_to_its_node(pod);
    pod.spec.as_ref().filter(|_| may_go)?.node_name.as_deref()
}

impl Seen {
    /// Returns the pods that wait for the volume of a claim on a node that its PersistentVolume leaves out. kubelet checks the same.
    pub fn strays(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
        let (namespace, name) = (claim.namespace(), claim.name_any());
        let is_left_out =
            |node: &str| Seen::get(&self.nodes, node).is_some_and(|node| !reaches(volume, &node));
        self.pods.state_filter(|pod| {
            waits_on(pod).is_some_and(is_left_out)
                && pod.namespace() == namespace
                && claims_of(pod).any(|used| used == name)
        })
    }
}

impl Moves {
    /// Evicts the pods that wait for the volume of a claim on another node than its own. Returns when to look again; `None` if
    /// there are none.
    ///
    /// # Errors
    /// [`super::act::Failure`]: a retry looks again.
    pub async fn send_strays_away(&self, claim: &PersistentVolumeClaim) -> Result<Option<Duration>> {
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let Some(volume) = Seen::get(&self.seen.volumes, &name) else { return Ok(None) };
        if self.seen.strays(claim, &volume).is_empty() {
            return Ok(None);
        }
        let all_pause = |strays: &[Arc<Pod>]| -> Option<Duration> {
            let pauses: Option<Vec<Duration>> =
                strays.iter().map(|pod| self.evictions.pause(&alike(claim, pod))).collect();
            pauses?.into_iter().min()
        };
        if let Some(pause) = all_pause(&self.seen.strays(claim, &volume)) {
            return Ok(Some(pause));
        }
        // The watch of PersistentVolumes may lag behind that of pods.
        let Some(volume) = self.objects.volume(&name).await? else { return Ok(Some(RUNNING)) };
        let spec = volume.spec.as_ref();
        let is_ours = spec.and_then(|spec| spec.csi.as_ref()).is_some_and(|csi| csi.driver == self.driver)
            && spec.and_then(|spec| spec.claim_ref.as_ref()?.uid.clone()) == claim.uid();
        if !is_ours {
            return Ok(None);
        }
        let strays = self.seen.strays(claim, &volume);
        for pod in &strays {
            let alike = alike(claim, pod);
            if self.evictions.pause(&alike).is_some() {
                continue;
            }
            tracing::info!(
                pod = pod.name_any(),
                namespace = pod.namespace(),
                node = waits_on(pod),
                "a pod is evicted, since its volume is on another node"
            );
            match self.objects.evict(pod, super::objects::Run::Real).await {
                Ok(()) => self.evictions.note(&alike),
                Err(kube::Error::Api(answer)) if answer.code == 429 => {}
                // A policy or a webhook refuses it. The other pods are evicted nevertheless.
                Err(kube::Error::Api(answer)) => {
                    self.evictions.note(&alike);
                    tracing::warn!(
                        pod = pod.name_any(),
                        namespace = pod.namespace(),
                        error = reason(&answer),
                        "a pod whose volume is on another node was not evicted"
                    );
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(all_pause(&strays).unwrap_or(RUNNING)))
    }
}

/// Returns what tells the pods of a claim from others: who creates them, and where.
fn alike(claim: &PersistentVolumeClaim, pod: &Pod) -> String {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    let owner = owner.map_or("", |owner| &owner.uid);
    format!("{} {owner} {}", claim.uid().unwrap_or_default(), waits_on(pod).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;

    fn as_is<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    /// The CSI node id of a node need not be its name.
    #[test]
    fn a_pod_waits_in_vain_if_its_node_is_left_out() {
        let (seen, mut writers) = Seen::new();
        let labels = json!({"topology.hostloop.csi.dev/node": "id-1"});
        let node = as_is(json!({"metadata": {"name": "node-1", "labels": labels}}));
        writers.nodes.apply_watcher_event(&Event::Apply(node));
        let pod = |node: &str, owner: &str, status: Value| {
            json!({"metadata": {"name": "p", "namespace": "default", "ownerReferences":
                    [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": owner != "Job"}]},
                "spec": {"nodeName": node, "containers": [], "volumes":
                    [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}, "status": status})
        };
        let claim: PersistentVolumeClaim =
            as_is(json!({"metadata": {"name": "data", "namespace": "default"}}));
        let volume = |node: &str| {
            as_is(json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": [node]}]}]}}}}))
        };
        let pending = json!({"phase": "Pending"});
        let running = json!({"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}},
            "image": "", "imageID": "", "ready": true, "restartCount": 0}]});
        let mut count = |pod: Value, on: &str| {
            writers.pods.apply_watcher_event(&Event::Apply(as_is(pod)));
            seen.strays(&claim, &volume(on)).len()
        };
        assert_eq!(count(pod("node-1", "StatefulSet", pending.clone()), "id-1"), 0);
        assert_eq!(count(pod("node-1", "StatefulSet", pending.clone()), "id-2"), 1);
        assert_eq!(count(pod("node-2", "StatefulSet", pending.clone()), "id-1"), 0, "its Node is not known");
        assert_eq!(count(pod("node-1", "Job", pending), "id-2"), 0, "nothing creates it again");
        assert_eq!(count(pod("node-1", "StatefulSet", running), "id-2"), 0, "it runs");
    }
}
