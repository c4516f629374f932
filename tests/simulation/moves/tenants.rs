//! What the users of a cluster do beside their moves: they copy claims, forge the status of VolumeMoves, and annotate claims. An
//! administrator deletes a StorageClass, removes the status of a VolumeReplica, or installs a webhook that refuses everything of one
//! kind. Something else uses up a quota. A later release ran for a while.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::Moves;
use super::life::phase;
use crate::kubernetes::{Key, Kubernetes, NAMESPACE, Operation, key};

/// A phase that a later release writes.
pub(super) const LATER: &str = "Levitating";
/// The namespace of another tenant.
pub(super) const OTHER: &str = "test";
/// The PersistentVolume of another tenant, which nothing has to do with.
const VICTIM: &str = "pvc-victim";

/// What a webhook or a quota refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Refused {
    #[default]
    Nothing,
    PersistentVolumes,
    VolumeReplicas,
    Claims,
    /// More PersistentVolumes and VolumeReplicas than there are.
    More,
    Evictions,
    /// More pods and claims than there are in the namespace of the claims.
    Pods,
}

/// Refuses the requests that `refused` names.
pub(super) fn refuse(kubernetes: &mut Kubernetes, refused: &Arc<Mutex<Refused>>) {
    let refused = Arc::clone(refused);
    kubernetes.admission = Some(Arc::new(move |operation: Operation, key: &Key, _: &Value| {
        let refuses = match *refused.lock().unwrap() {
            Refused::Nothing | Refused::Evictions | Refused::Pods => false,
            Refused::PersistentVolumes => key.0 == "persistentvolumes",
            Refused::VolumeReplicas => key.0 == "volumereplicas",
            Refused::Claims => key.0 == "persistentvolumeclaims",
            Refused::More => {
                operation == Operation::Create
                    && ["persistentvolumes", "volumereplicas"].contains(&key.0.as_str())
            }
        };
        refuses.then(|| format!("no {} today", key.0))
    }));
}

async fn refuse_for(moves: &Moves, refused: Refused, time: Duration) {
    crate::log(|| format!("{refused:?} are refused for {time:?}"));
    let pods: Vec<String> = moves.known.lock().unwrap().iter().map(|known| known.pod.clone()).collect();
    let set = |refused: Refused| {
        *moves.refused.lock().unwrap() = refused;
        let all = if refused == Refused::Evictions { pods.clone() } else { Vec::new() };
        moves.with(|kubernetes| kubernetes.never_evicted = all);
    };
    set(refused);
    sleep(time).await;
    set(Refused::Nothing);
}

/// Creates what belongs to another tenant.
pub(super) fn victim(kubernetes: &mut Kubernetes) {
    kubernetes.create(key("namespaces", "", OTHER), json!({"metadata": {"name": OTHER}}));
    let spec = json!({"csi": {"driver": crate::pki::DRIVER, "volumeHandle": "vol-of-another"},
        "claimRef": {"namespace": "other", "name": "data", "uid": "of-another"}, "persistentVolumeReclaimPolicy": "Retain"});
    kubernetes
        .create(key("persistentvolumes", "", VICTIM), json!({"metadata": {"name": VICTIM}, "spec": spec}));
}

/// Acts until the end of the simulation.
pub(super) async fn run(moves: Arc<Moves>) {
    loop {
        moves.pause(1000, 25_000).await;
        let time = Duration::from_millis(moves.between(1, 60_000));
        match moves.below(7) {
            0 => copy_claim(&moves, time).await,
            1 | 2 => moves.with(|kubernetes| forge(&moves, kubernetes)),
            3 => lose_class(&moves, time).await,
            4 => moves.with(|kubernetes| remove_status(&moves, kubernetes)),
            5 => levitate(&moves, time).await,
            _ => {
                let all = [
                    Refused::PersistentVolumes,
                    Refused::VolumeReplicas,
                    Refused::Claims,
                    Refused::More,
                    Refused::Evictions,
                    Refused::Pods,
                ];
                refuse_for(&moves, all[moves.below(all.len())], time).await;
            }
        }
    }
}

/// A claim, with its annotations and the name of its volume, and a VolumeMove for it in another namespace.
async fn copy_claim(moves: &Moves, time: Duration) {
    let chosen = moves.below(8);
    let copied = moves.with(|kubernetes| {
        let claims: Vec<Value> = kubernetes.all("persistentvolumeclaims").cloned().collect();
        let mut claim = claims.get(chosen % claims.len().max(1))?.clone();
        let name = claim["metadata"]["name"].as_str()?.to_owned();
        if claim["metadata"]["namespace"] == OTHER {
            return None;
        }
        crate::log(|| format!("claim {name} is copied for {time:?}"));
        claim["metadata"] =
            json!({"name": name, "namespace": OTHER, "annotations": claim["metadata"]["annotations"]});
        kubernetes.create(key("persistentvolumeclaims", OTHER, &name), claim);
        let spec = json!({"claimName": name, "when": "Now", "target": {}});
        let metadata = json!({"name": "m", "namespace": OTHER});
        kubernetes.create(key("volumemoves", OTHER, "m"), json!({"metadata": metadata, "spec": spec}));
        Some(name)
    });
    let Some(name) = copied else { return };
    sleep(time).await;
    moves.with(|kubernetes| {
        kubernetes.remove(&key("volumemoves", OTHER, "m"));
        kubernetes.remove(&key("persistentvolumeclaims", OTHER, &name));
    });
}

/// The owner of a VolumeMove and of a claim writes anything into both.
fn forge(moves: &Moves, kubernetes: &mut Kubernetes) {
    let phases = ["Refused", "Copying", "Ready", "CuttingOver", "GivingUp", "Done", LATER];
    let phase = phases[moves.below(phases.len())];
    let status = json!({"phase": phase, "replica": "pvc-victim-0", "sourceNode": "n0", "targetNode": "n1"});
    let asked: Vec<Key> = kubernetes
        .objects
        .keys()
        .filter(|key| key.0 == "volumemoves" && key.1 == NAMESPACE)
        .cloned()
        .collect();
    for key in asked {
        crate::log(|| format!("the status of VolumeMove {} is forged: {phase}", key.2));
        kubernetes.change("volumemoves", &key.2, |asked| asked["status"] = status.clone());
    }
    let claims: Vec<Key> = kubernetes
        .objects
        .keys()
        .filter(|key| key.0 == "persistentvolumeclaims" && key.1 == NAMESPACE)
        .cloned()
        .collect();
    for key in claims {
        kubernetes.change("persistentvolumeclaims", &key.2, |claim| {
            let annotations = &mut claim["metadata"]["annotations"];
            annotations["hostloop.csi.dev/move-status"] =
                json!(json!({"copy": "vol-of-another"}).to_string());
            annotations["hostloop.csi.dev/promote"] = json!("true");
        });
    }
}

/// A StorageClass is deleted, and created again.
async fn lose_class(moves: &Moves, time: Duration) {
    let chosen = moves.below(8);
    let lost = moves.with(|kubernetes| {
        let all: Vec<Value> = kubernetes.all("storageclasses").cloned().collect();
        let class = all.get(chosen % all.len())?.clone();
        let name = class["metadata"]["name"].as_str()?.to_owned();
        crate::log(|| format!("StorageClass {name} is deleted for {time:?}"));
        kubernetes.remove(&key("storageclasses", "", &name));
        Some((name, class))
    });
    let Some((name, class)) = lost else { return };
    sleep(time).await;
    let class = json!({"metadata": {"name": name}, "provisioner": class["provisioner"], "parameters": class["parameters"]});
    moves.with(|kubernetes| kubernetes.create(key("storageclasses", "", &name), class));
}

/// The copies in one of these phases.
fn in_phases(kubernetes: &Kubernetes, phases: &[&str]) -> Vec<String> {
    let is_in = |replica: &&Value| {
        phase(replica).is_some_and(|phase| phases.contains(&phase))
            && replica["metadata"]["deletionTimestamp"].is_null()
    };
    let name = |replica: &Value| replica["metadata"]["name"].as_str().unwrap().to_owned();
    kubernetes.all("volumereplicas").filter(is_in).map(name).collect()
}

/// The copies that are not needed for anything now.
fn idle(kubernetes: &Kubernetes) -> Vec<String> {
    in_phases(kubernetes, &["Following", "Ready", "Standby"])
}

/// An administrator replaces VolumeReplicas without their status, also of volumes that are fenced. In `Exchanging`, nothing else may
/// have the PersistentVolume.
fn remove_status(moves: &Moves, kubernetes: &mut Kubernetes) {
    if moves.outages.lock().unwrap().are_under_way() {
        // Nothing would say any longer that the copy is whole.
        return;
    }
    for name in
        in_phases(kubernetes, &["Copying", "Following", "Ready", "Standby", "CuttingOver", "LastPass"])
    {
        crate::log(|| format!("VolumeReplica {name} loses its status"));
        kubernetes.change("volumereplicas", &name, |replica| {
            replica.as_object_mut().unwrap().remove("status");
        });
    }
}

/// A later release has written a phase, and writes another one when it runs again.
async fn levitate(moves: &Moves, time: Duration) {
    let chosen = moves.below(8);
    let set = |name: &str, from: &str, to: &str| {
        moves.with(|kubernetes| {
            if kubernetes.get("volumereplicas", name).is_some_and(|replica| phase(&replica) == Some(from)) {
                kubernetes.change("volumereplicas", name, |replica| replica["status"]["phase"] = json!(to));
            }
        });
    };
    let found = moves.with(|kubernetes| {
        let all = idle(kubernetes);
        let name = all.get(chosen % all.len().max(1))?.clone();
        let phase = phase(&kubernetes.get("volumereplicas", &name)?)?.to_owned();
        Some((name, phase))
    });
    let Some((name, phase)) = found else { return };
    crate::log(|| format!("VolumeReplica {name} has a later phase for {time:?}"));
    set(&name, &phase, LATER);
    sleep(time).await;
    set(&name, LATER, &phase);
}

/// Checks that the objects of another tenant are unchanged.
pub(super) fn is_harmed(kubernetes: &Kubernetes) -> bool {
    let victim = kubernetes.get("persistentvolumes", VICTIM).unwrap_or_default();
    victim["spec"]["claimRef"]["uid"] != "of-another" || !victim["metadata"]["deletionTimestamp"].is_null()
}
