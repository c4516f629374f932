//! What pods mean for a move: who uses a volume, and which claims have to go together (rule 9). No I/O.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::fits::reaches;
use super::resources::{ClaimId, Purpose, ReplicaPhase, VolumeReplica};
use super::view::User;

/// On a VolumeReplica: an administrator says that the copy is to take the place of the volume.
pub const PROMOTE: &str = "hostloop.csi.dev/promote";

/// Reports whether a pod uses a claim on a node, and is not at its end.
pub fn uses(pod: &Pod, namespace: &str, claim: &str, node: &str) -> bool {
    pod.namespace().as_deref() == Some(namespace)
        && is_scheduled(pod)
        && pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
        && claims_of(pod).any(|used| used == claim)
}

/// Reports whether a pod is being deleted.
fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether a pod is on a node and not at its end: only such a one holds its claims.
pub fn is_scheduled(pod: &Pod) -> bool {
    let placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|n| !n.is_empty()));
    placed && !has_ended(pod)
}

/// Reports whether a pod is at its end.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether no container of the pod has ever run. With a claim that is being deleted none ever will.
pub fn never_ran(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return true };
    let containers =
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let mut states =
        containers.flat_map(|container| [&container.state, &container.last_state]).filter_map(Option::as_ref);
    status.phase.as_deref() == Some("Pending")
        && !states.any(|state| state.running.is_some() || state.terminated.is_some())
}

/// The controller of a pod: what makes it again.
pub fn controller(pod: &Pod) -> Option<&str> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    Some(owner.kind.as_str())
}

/// Reports whether a pod cannot be made again on another node.
pub fn belongs_to_its_node(pod: &Pod) -> bool {
    matches!(controller(pod), Some("DaemonSet" | "Node"))
}

/// The claims that a pod uses.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// Returns what a move has to know of a pod that uses its claim. `fenced` is when the volume was fenced.
pub fn user(pod: &Pod, fenced: Option<&Time>) -> User {
    let created = pod.metadata.creation_timestamp.as_ref();
    User {
        is_late: created.zip(fenced).is_some_and(|(created, fenced)| created.0 > fenced.0),
        name: pod.name_any(),
        is_leaving: is_leaving(pod),
        never_ran: never_ran(pod),
        has_controller: controller(pod).is_some() && !belongs_to_its_node(pod),
    }
}

/// Returns the names of the other claims that these pods use, sorted.
pub fn other_claims<'a>(pods: impl IntoIterator<Item = &'a Pod>, claim: &str) -> BTreeSet<String> {
    let used = pods.into_iter().flat_map(claims_of);
    used.filter(|other| *other != claim).map(str::to_owned).collect()
}

/// A claim that pods use together with the one that is to move.
pub struct Companion<'a> {
    pub name: &'a str,
    /// Its PersistentVolume; `None` if it has none.
    pub volume: Option<&'a PersistentVolume>,
    /// Its copies.
    pub replicas: Vec<&'a VolumeReplica>,
}

/// Where a volume goes, and why.
#[derive(Debug, Clone, Copy)]
pub struct Goal<'a> {
    /// The CSI node id of the node.
    pub target: &'a str,
    /// Its Node object; `None` if that is not known.
    pub node: Option<&'a Node>,
    /// The node of the volume is lost, and its standby copy takes its place.
    pub is_promotion: bool,
}

/// Returns why the volume of a claim cannot leave now: a claim of the same pods would stay behind.
pub fn left_behind(companion: &Companion<'_>, goal: Goal<'_>) -> Option<String> {
    let (volume, Goal { target, node, is_promotion }) = (companion.volume?, goal);
    if node.is_some_and(|node| reaches(volume, node)) {
        return None;
    }
    let name = companion.name;
    // A copy that has become the volume is where the PersistentVolume is, or was.
    let is_going =
        |replica: &&&VolumeReplica| replica.spec.target_node == target && replica.phase().is_of_a_copy();
    let Some(replica) = companion.replicas.iter().find(is_going) else {
        return Some(format!("the same pods use claim {name}, whose volume is not moved to node {target}"));
    };
    let is_ready = match replica.phase() {
        ReplicaPhase::Ready | ReplicaPhase::CuttingOver => true,
        ReplicaPhase::LastPass | ReplicaPhase::Completing | ReplicaPhase::Exchanging => true,
        // If the node is lost, it is promoted as well.
        ReplicaPhase::Standby => {
            is_promoted(replica) || is_promotion && replica.spec.purpose == Purpose::Standby
        }
        ReplicaPhase::Following => is_promoted(replica),
        ReplicaPhase::Pending
        | ReplicaPhase::Copying
        | ReplicaPhase::Retiring
        | ReplicaPhase::Left
        | ReplicaPhase::Abandoning
        | ReplicaPhase::Stranded
        | ReplicaPhase::Unknown => false,
    };
    (!is_ready).then(|| format!("the same pods use claim {name}, whose copy is not ready"))
}

/// Reports whether an administrator has said that the copy is to take the place of its volume.
pub fn is_promoted(replica: &VolumeReplica) -> bool {
    replica.annotations().get(PROMOTE).is_some_and(|value| value == "true")
}

/// Reports whether this is the claim, and not a later one of its name.
pub fn is_same(claim: &PersistentVolumeClaim, id: &ClaimId) -> bool {
    claim.uid().as_deref() == Some(id.uid.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value, status: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let metadata = json!({"name": "p", "namespace": "default"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn with_claims(claims: &[&str], node: &str) -> Value {
        let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        json!({"nodeName": node, "volumes": claims.iter().map(volume).collect::<Vec<_>>()})
    }

    #[test]
    fn a_pod_uses_its_claims_on_its_node_until_its_end() {
        let running = pod(with_claims(&["data", "log"], "n1"), json!({"phase": "Running"}));
        assert!(uses(&running, "default", "data", "n1"));
        for (namespace, claim, node) in
            [("other", "data", "n1"), ("default", "x", "n1"), ("default", "data", "n2")]
        {
            assert!(!uses(&running, namespace, claim, node), "{namespace} {claim} {node}");
        }
        let ended = pod(with_claims(&["data"], "n1"), json!({"phase": "Succeeded"}));
        assert!(!uses(&ended, "default", "data", "n1"));
        assert_eq!(other_claims([&running, &ended], "data"), BTreeSet::from(["log".to_owned()]));
    }

    #[test]
    fn a_pod_whose_container_has_ended_did_run() {
        let spec = || with_claims(&["data"], "n1");
        let in_state =
            |state: Value| pod(spec(), json!({"phase": "Pending", "initContainerStatuses": [state]}));
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        assert!(never_ran(&in_state(json!({"name": "c", "state": waiting.clone()}))));
        let ended = json!({"name": "c", "state": waiting, "lastState": {"terminated": {"exitCode": 1}}});
        assert!(!never_ran(&in_state(ended)));
        assert!(!never_ran(&in_state(json!({"name": "c", "state": {"running": {}}}))));
    }

    fn replica(phase: &str, purpose: &str, target: &str) -> VolumeReplica {
        let claim = json!({"namespace": "default", "name": "log", "uid": "u"});
        let spec = json!({"driver": "d", "volumeId": "v", "generation": 0, "persistentVolume": {"name": "p", "uid": "u"},
            "claim": claim, "sourceNode": "n1", "targetNode": target, "copyName": "c", "copyId": "i", "purpose": purpose});
        let object = json!({"apiVersion": "hostloop.csi.dev/v1alpha1", "kind": "VolumeReplica",
            "metadata": {"name": "r"}, "spec": spec, "status": {"phase": phase}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn claims_of_one_pod_go_together() {
        let on_n1 = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "node", "operator": "In", "values": ["n1"]}]}]}});
        let local: PersistentVolume =
            serde_json::from_value(json!({"spec": {"nodeAffinity": on_n1}})).unwrap();
        let shared: PersistentVolume = serde_json::from_value(json!({"spec": {}})).unwrap();
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n2", "labels": {"node": "n2"}}})).unwrap();
        let goal = Goal { target: "n2", node: Some(&node), is_promotion: false };
        let why_for = |volume: Option<&PersistentVolume>, replicas: &[VolumeReplica], goal| {
            let companion = Companion { name: "log", volume, replicas: replicas.iter().collect() };
            left_behind(&companion, goal)
        };
        let why = |volume, replicas, node| why_for(volume, replicas, Goal { node, ..goal });
        assert_eq!(why(None, &[], Some(&node)), None);
        assert_eq!(why(Some(&shared), &[], Some(&node)), None);
        assert!(why(Some(&shared), &[], None).is_some(), "a node that is not known is no answer");
        let elsewhere = [replica("Ready", "Move", "n3")];
        for replicas in [&[][..], &elsewhere] {
            assert!(why(Some(&local), replicas, Some(&node)).unwrap().contains("not moved to node n2"));
        }
        for (phase, purpose, waits) in [
            ("Pending", "Move", true),
            ("Copying", "Move", true),
            ("Following", "Move", true),
            ("Abandoning", "Move", true),
            ("Standby", "Move", true),
            ("Standby", "Standby", true),
            ("Ready", "Move", false),
            ("CuttingOver", "Move", false),
            ("Exchanging", "Move", false),
        ] {
            let replicas = [replica(phase, purpose, "n2")];
            let why = why_for(Some(&local), &replicas, goal);
            assert_eq!(why.is_some_and(|why| why.contains("is not ready")), waits, "{phase} {purpose}");
        }
        // The volume has moved on from that node.
        for phase in ["Retiring", "Left"] {
            let earlier = [replica(phase, "Move", "n2")];
            let answer = why_for(Some(&local), &earlier, goal);
            assert!(answer.unwrap().contains("not moved to node n2"), "{phase}");
        }
        let both = [replica("Standby", "Standby", "n2")];
        assert_eq!(why_for(Some(&local), &both, Goal { is_promotion: true, ..goal }), None);
        // An administrator has promoted both, also of a node that Kubernetes calls Ready.
        for (phase, waits) in [("Copying", true), ("Following", false), ("Standby", false)] {
            let mut promoted = replica(phase, "Standby", "n2");
            promoted.annotations_mut().insert(PROMOTE.to_owned(), "true".to_owned());
            assert_eq!(why_for(Some(&local), &[promoted], goal).is_some(), waits, "{phase}");
        }
    }
}
