//! What stands against a copy before it is made, each with what to do about it. No I/O.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;

use super::claims::parameters;
use super::claims::{bytes_of, is_changing, node_of};
use super::fits::{is_cordoned, obstacle, reaches};
use super::look::OUT_OF_SERVICE;
use super::pods::{Companion, belongs_to_its_node, controller};
use super::resources::{Purpose, ReplicaPhase, VolumeReplica};

/// What csi-provisioner writes on the PersistentVolumes that it deletes as well.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// A copy that is asked for.
pub struct Case<'a> {
    pub driver: &'a str,
    pub claim: &'a PersistentVolumeClaim,
    pub volume: Option<&'a PersistentVolume>,
    pub class: Option<&'a StorageClass>,
    /// The one whose parameters the copy gets, if that is another one.
    pub target_class: Option<&'a StorageClass>,
    /// All pods of the namespace that use the claim and are not at their end, on whatever node.
    pub pods: &'a [Arc<Pod>],
    /// The other claims that these pods use.
    pub companions: &'a [Companion<'a>],
    /// The names of companions that a VolumeMove asks for as well.
    pub asked_for: &'a [String],
    pub nodes: &'a [Arc<Node>],
    /// The CSI node ids of the nodes with the driver; `None` until they are known.
    pub members: Option<&'a [String]>,
    /// The node that is asked for; `None` if any node will do.
    pub target: Option<&'a str>,
    pub purpose: Purpose,
    pub evict_bare_pods: bool,
}

impl Case<'_> {
    /// Reports whether the copy is to be in another pool of the node that has the volume.
    fn stays_on_node(&self) -> bool {
        self.target.is_some() && self.volume.and_then(node_of).as_deref() == self.target
    }
}

/// Returns why no copy is made of the volume at all.
pub fn refusal(case: &Case<'_>) -> Option<String> {
    let claim = case.claim;
    if claim.metadata.deletion_timestamp.is_some() {
        return Some("the claim is being deleted".to_owned());
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let (Some("Bound"), Some(volume)) = (phase, case.volume) else {
        return Some("the claim is not bound; wait until a pod has used it once".to_owned());
    };
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    if csi.is_none_or(|csi| csi.driver != case.driver) {
        return Some(format!("its volume is not one of {}; only those can be moved", case.driver));
    }
    let bound_to = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
    if bound_to != claim.uid() {
        return Some(format!("PersistentVolume {} is bound to another claim", volume.name_any()));
    }
    if volume.annotations().get(PROVISIONED_BY).is_none_or(|by| by != case.driver)
        || node_of(volume).is_none()
    {
        return Some(format!(
            "PersistentVolume {} was not made by csi-provisioner, so nobody would delete it; make a snapshot, and restore it on \
             the other node",
            volume.name_any()
        ));
    }
    if claim.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.kind == "Pod") {
        return Some(
            "the claim belongs to one pod, and ends with it; a new pod gets a new volume".to_owned(),
        );
    }
    let Some(class) = case.class.map(parameters) else {
        return Some(
            "the claim's StorageClass does not exist; create it again, since the copy is made with its parameters".to_owned(),
        );
    };
    if class.get("crossNodeCopy").is_some_and(|value| value == "false") && !case.stays_on_node() {
        return Some(
            "parameter crossNodeCopy of the StorageClass is false; its volumes do not leave their nodes"
                .to_owned(),
        );
    }
    if is_changing(claim, bytes_of(volume)) {
        return Some(
            "the volume is being expanded or modified; the copy is made when that is finished".to_owned(),
        );
    }
    // No pod has to leave before a node is lost.
    if case.purpose == Purpose::Standby { None } else { of_pods(case.pods, case.evict_bare_pods) }
}

/// Returns why the pods cannot follow the volume.
pub fn of_pods(pods: &[Arc<Pod>], evict_bare_pods: bool) -> Option<String> {
    pods.iter().find_map(|pod| {
        let name = pod.name_any();
        match controller(pod) {
            Some(_) if belongs_to_its_node(pod) => Some(format!(
                "pod {name} belongs to one node, and cannot leave it; give the claim to a Deployment or a StatefulSet"
            )),
            None if !evict_bare_pods => Some(format!(
                "pod {name} has no controller that would create it again; delete it, or set evictBarePods and \
                 create it again yourself"
            )),
            Some(_) | None => None,
        }
    })
}

/// Returns the nodes that can have the copy, or why none can.
///
/// # Errors
/// Why the node that is asked for cannot; if any node will do, why the first one cannot.
pub fn candidates(case: &Case<'_>) -> Result<Vec<String>, String> {
    // Where a claim of the same pods goes, no other node will do.
    let bound =
        case.companions.iter().flat_map(|companion| &companion.replicas).find(|replica| is_kept(replica));
    let bound = bound.map(|replica| replica.spec.target_node.as_str());
    let source = case.volume.and_then(node_of);
    if let Some(asked) = case.target {
        if let Some(bound) = bound.filter(|bound| *bound != asked) {
            return Err(format!("a claim of the same pods goes to node {bound}; choose this node"));
        }
        let node = case.nodes.iter().find(|node| node.name_any() == asked);
        let node = node.ok_or_else(|| format!("there is no node {asked}"))?;
        return of_target(case, node, true).map_or_else(|| Ok(vec![asked.to_owned()]), Err);
    }
    let (mut good, mut first) = (Vec::new(), None);
    for node in case.nodes {
        let name = node.name_any();
        if source.as_ref() == Some(&name) || bound.is_some_and(|bound| bound != name) {
            continue;
        }
        match of_target(case, node, false) {
            None => good.push(name),
            Some(why) => first = first.or(Some(why)),
        }
    }
    match good.is_empty() {
        false => Ok(good),
        true => Err(first.unwrap_or_else(|| "there is no other node with the driver".to_owned())),
    }
}

/// Reports whether a copy is to take its volume's place some time.
fn is_kept(replica: &VolumeReplica) -> bool {
    replica.phase().is_of_a_copy() && replica.phase() != ReplicaPhase::Abandoning
}

/// Returns why this node cannot have the copy. An administrator who names a node knows its taints.
fn of_target(case: &Case<'_>, node: &Node, is_named: bool) -> Option<String> {
    let target = node.name_any();
    match case.members {
        Some(members) if !members.contains(&target) => {
            return Some(format!("the driver does not run on node {target}"));
        }
        Some(_) => {}
        None => return Some("the nodes with the driver are not known yet".to_owned()),
    }
    let allows_it = |class: Option<&StorageClass>| class.is_some_and(|class| allows(class, node));
    if !allows_it(case.class) || case.target_class.is_some() && !allows_it(case.target_class) {
        return Some(format!("allowedTopologies of the StorageClass leave out node {target}"));
    }
    // Pods that come back to their node fit there, and may be away until it is uncordoned.
    let kept_out = match case.stays_on_node() {
        true => is_out_of_service(node),
        false => keeps_pods_out(node, case.pods),
    };
    if kept_out.is_some() {
        return kept_out;
    }
    let taints = || node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut keeps_away = taints().filter(|taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute");
    if let (false, true, Some(taint)) = (is_named, case.pods.is_empty(), keeps_away.next()) {
        return Some(format!(
            "node {target} has the taint {}; name the node to use it all the same",
            taint.key
        ));
    }
    // A claim that stays behind is in the way of a move only.
    if case.purpose == Purpose::Standby {
        return None;
    }
    case.companions.iter().find_map(|companion| stays_behind(case, companion, node))
}

/// Returns why these pods could not follow their volume to a node.
pub fn keeps_pods_out(node: &Node, pods: &[Arc<Pod>]) -> Option<String> {
    let target = node.name_any();
    if is_cordoned(node) {
        return Some(format!("node {target} is cordoned, so that no pod could follow; uncordon it"));
    }
    if let Some(why) = is_out_of_service(node) {
        return Some(why);
    }
    let why = pods.iter().find_map(|pod| obstacle(pod, node))?;
    Some(format!("no pod could follow to node {target}: {why}"))
}

/// Returns a text for people if an administrator says that a node is shut down.
pub fn is_out_of_service(node: &Node) -> Option<String> {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let is_off = taints.any(|taint| taint.key == OUT_OF_SERVICE);
    is_off.then(|| format!("node {} is out of service", node.name_any()))
}

/// A pod can run only where all its volumes are.
fn stays_behind(case: &Case<'_>, companion: &Companion<'_>, target: &Node) -> Option<String> {
    let volume = companion.volume?;
    let (name, target_name) = (companion.name, target.name_any());
    let comes = |replica: &&VolumeReplica| is_kept(replica) && replica.spec.target_node == target_name;
    if reaches(volume, target)
        || companion.replicas.iter().any(comes)
        || case.asked_for.iter().any(|asked| asked == name)
    {
        return None;
    }
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    Some(match csi.is_some_and(|csi| csi.driver == case.driver) {
        true => format!("the same pods use claim {name}, which stays behind; create a VolumeMove for it too"),
        false => format!("the same pods use claim {name}, whose volume cannot be used on node {target_name}"),
    })
}

/// Reports whether a StorageClass lets its volumes be on a node (storage.k8s.io/v1, allowedTopologies).
fn allows(class: &StorageClass, node: &Node) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    let labels = node.labels();
    terms.is_empty()
        || terms.iter().any(|term| {
            let mut expressions = term.match_label_expressions.iter().flatten();
            expressions
                .all(|wanted| labels.get(&wanted.key).is_some_and(|value| wanted.values.contains(value)))
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim() -> Value {
        json!({"metadata": {"name": "data", "namespace": "default", "uid": "u"}, "status": {"phase": "Bound"},
            "spec": {"storageClassName": "local", "volumeName": "pvc-1"}})
    }

    fn volume(node: &str) -> Value {
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": [node]}]}]}});
        json!({"metadata": {"name": "pvc-1", "annotations": {"pv.kubernetes.io/provisioned-by": "d"}},
            "spec": {"csi": {"driver": "d", "volumeHandle": "v"}, "nodeAffinity": affinity,
                "claimRef": {"name": "data", "namespace": "default", "uid": "u"}, "capacity": {"storage": "1Gi"}}})
    }

    fn class() -> Value {
        json!({"metadata": {"name": "local"}, "provisioner": "d", "parameters": {}})
    }

    fn node(name: &str, spec: Value) -> Value {
        json!({"metadata": {"name": name, "labels": {"topology.hostloop.csi.dev/node": name}}, "spec": spec})
    }

    fn pod(owner: Option<&str>) -> Value {
        let owners: Vec<Value> = owner
            .map(
                |kind| json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true}),
            )
            .into_iter()
            .collect();
        json!({"metadata": {"name": "p", "namespace": "default", "ownerReferences": owners}, "spec": {"containers": []}})
    }

    fn as_is<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    /// What is different from a claim that can be moved.
    #[derive(Clone)]
    struct Setup {
        claim: Value,
        volume: Value,
        class: Value,
        pods: Vec<Value>,
        nodes: Vec<Value>,
        target: Option<&'static str>,
        purpose: Purpose,
        bare: bool,
    }

    fn setup() -> Setup {
        let nodes = ["n1", "n2", "n3"].map(|name| node(name, json!({}))).to_vec();
        let (claim, volume, class) = (claim(), volume("n1"), class());
        let pods = vec![pod(Some("StatefulSet"))];
        Setup { claim, volume, class, pods, nodes, target: None, purpose: Purpose::Move, bare: false }
    }

    impl Setup {
        fn ask<T>(&self, question: impl FnOnce(&Case<'_>) -> T) -> T {
            let (claim, volume, class) =
                (as_is(self.claim.clone()), as_is(self.volume.clone()), as_is(self.class.clone()));
            let pods: Vec<Arc<Pod>> = self.pods.iter().cloned().map(as_is).map(Arc::new).collect();
            let nodes: Vec<Arc<Node>> = self.nodes.iter().cloned().map(as_is).map(Arc::new).collect();
            question(&Case {
                driver: "d",
                claim: &claim,
                volume: Some(&volume),
                target_class: None,
                class: Some(&class),
                pods: &pods,
                companions: &[],
                asked_for: &[],
                nodes: &nodes,
                members: Some(&["n1", "n2", "n3"].map(str::to_owned)),
                target: self.target,
                purpose: self.purpose,
                evict_bare_pods: self.bare,
            })
        }

        #[track_caller]
        fn is_refused(&self, why: &str) {
            let refused = self.ask(refusal).unwrap_or_default();
            assert!(refused.contains(why), "{refused:?}");
        }

        #[track_caller]
        fn has_no_target(&self, why: &str) {
            let refused = self.ask(candidates).expect_err("no node can have it");
            assert!(refused.contains(why), "{refused:?}");
        }
    }

    #[test]
    fn a_claim_is_refused_with_what_to_do() {
        let fine = setup();
        assert_eq!(fine.ask(refusal), None);
        let changed = |change: &dyn Fn(&mut Setup)| {
            let mut setup = fine.clone();
            change(&mut setup);
            setup
        };
        changed(&|s| s.claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"))
            .is_refused("is being deleted");
        changed(&|s| s.claim["status"]["phase"] = json!("Pending"))
            .is_refused("wait until a pod has used it");
        changed(&|s| s.volume["spec"]["csi"]["driver"] = json!("other")).is_refused("not one of d");
        changed(&|s| s.volume["spec"]["claimRef"]["uid"] = json!("other"))
            .is_refused("bound to another claim");
        changed(&|s| s.volume["metadata"]["annotations"] = json!({}))
            .is_refused("not made by csi-provisioner");
        changed(&|s| s.volume["spec"]["nodeAffinity"] = json!({})).is_refused("not made by csi-provisioner");
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]);
        changed(&|s| s.claim["metadata"]["ownerReferences"] = owner.clone()).is_refused("belongs to one pod");
        changed(&|s| s.class["parameters"]["crossNodeCopy"] = json!("false")).is_refused("crossNodeCopy");
        changed(&|s| s.claim["spec"]["resources"] = json!({"requests": {"storage": "2Gi"}}))
            .is_refused("is being expanded");
        let of_node = changed(&|s| s.pods = vec![pod(Some("DaemonSet"))]);
        of_node.is_refused("belongs to one node");
        let bare = changed(&|s| s.pods = vec![pod(None)]);
        bare.is_refused("set evictBarePods");
        assert_eq!(Setup { bare: true, ..bare.clone() }.ask(refusal), None);
        for pods in [of_node, bare] {
            assert_eq!(Setup { purpose: Purpose::Standby, ..pods }.ask(refusal), None, "no pod has to leave");
        }
    }

    #[test]
    fn a_node_where_no_pod_could_follow_gets_no_copy() {
        let fine = setup();
        assert_eq!(fine.ask(candidates).unwrap(), ["n2", "n3"]);
        assert_eq!(Setup { target: Some("n3"), ..fine.clone() }.ask(candidates).unwrap(), ["n3"]);
        Setup { target: Some("n9"), ..fine.clone() }.has_no_target("there is no node n9");
        let only = |spec: Value| {
            let nodes = vec![node("n1", json!({})), node("n2", spec)];
            Setup { nodes, ..fine.clone() }
        };
        only(json!({"unschedulable": true})).has_no_target("uncordon it");
        let taint = |key: &str| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        only(taint("node.kubernetes.io/out-of-service")).has_no_target("out of service");
        only(taint("gpu")).has_no_target("does not tolerate its taint gpu");
        let nobody = Setup { pods: Vec::new(), ..only(taint("gpu")) };
        nobody.has_no_target("name the node to use it");
        let without_pods = |effect: &str| {
            let spec = json!({"taints": [{"key": "gpu", "effect": effect}]});
            Setup { pods: Vec::new(), ..only(spec) }
        };
        without_pods("NoExecute").has_no_target("has the taint gpu; name the node to use it");
        assert_eq!(without_pods("PreferNoSchedule").ask(candidates).unwrap(), ["n2"]);
        assert_eq!(Setup { target: Some("n2"), ..nobody }.ask(candidates).unwrap(), ["n2"]);
        let mut zone = fine.clone();
        zone.class["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": "topology.hostloop.csi.dev/node", "values": ["n1", "n3"]}]}]);
        assert_eq!(zone.ask(candidates).unwrap(), ["n3"]);
        Setup { target: Some("n2"), ..zone }.has_no_target("allowedTopologies");
        let strange = Setup { nodes: vec![node("n4", json!({}))], ..fine };
        strange.has_no_target("the driver does not run on node n4");
    }
}
