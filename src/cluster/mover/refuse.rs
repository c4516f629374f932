//! What stands against a move, each with what to do about it. No I/O.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;

use super::fits::{is_cordoned, obstacle, reaches};
use super::status::{ANY, MOVE_BARE_PODS, MOVE_TO};
use super::view::{Class, View, controller, is_lost, node_of, status, wanted};

/// What csi-provisioner writes on the PersistentVolumes that it deletes too.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// What stands against moving the claim at all.
pub(super) fn refusal(view: &View) -> Option<String> {
    let claim = &view.claim;
    if view.is_being_deleted() {
        return Some("the claim is being deleted".to_owned());
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let (Some("Bound"), Some(volume)) = (phase, &view.volume) else {
        return Some("the claim is not bound; wait until a pod has used it once".to_owned());
    };
    let spec = volume.spec.as_ref();
    let csi = spec.and_then(|spec| spec.csi.as_ref());
    if csi.is_none_or(|csi| csi.driver != view.driver) {
        return Some(format!("its volume is not one of {}; only those can be moved", view.driver));
    }
    if volume.annotations().get(PROVISIONED_BY) != Some(&view.driver) || node_of(volume).is_none() {
        return Some(format!(
            "PersistentVolume {} was not made by csi-provisioner, so nobody would delete the old volume; make a snapshot, \
             and restore it on the other node",
            volume.name_any()
        ));
    }
    // A claim of a generic ephemeral volume ends with its pod.
    let of_pod = |kind: &str| kind == "Pod";
    if claim.owner_references().iter().any(|owner| owner.controller == Some(true) && of_pod(&owner.kind)) {
        return Some(
            "the claim belongs to one pod, and ends with it; a new pod gets a new volume".to_owned(),
        );
    }
    match view.class {
        Class::Missing => Some(
            "the claim's StorageClass does not exist; make it again, since the copy is made with its parameters"
                .to_owned(),
        ),
        Class::Stays => Some(
            "parameter crossNodeCopy of the StorageClass is false; its volumes do not leave their nodes".to_owned(),
        ),
        Class::Travels if view.is_changing() => {
            Some("the volume is being expanded or modified; the move begins when that is finished".to_owned())
        }
        // No pod has to leave before a node is lost.
        Class::Travels if view.wanted_elsewhere().is_none() => None,
        Class::Travels => pods(view),
    }
}

/// What stands against moving it because of the pods that use it.
pub(super) fn pods(view: &View) -> Option<String> {
    let bare = view.says(MOVE_BARE_PODS);
    view.users().find_map(|pod| {
        let name = pod.name_any();
        match controller(pod) {
            Some("DaemonSet" | "Node") => Some(format!(
                "pod {name} belongs to one node, and cannot leave it; give the claim to a Deployment or a StatefulSet"
            )),
            None if !bare => Some(format!(
                "pod {name} has no controller that would make it again on the other node; delete it, or set {MOVE_BARE_PODS} \
                 to \"true\" and make it again yourself"
            )),
            Some(_) | None => None,
        }
    })
}

/// What stands against this node as the target.
pub(super) fn of_target(view: &View, target: &str) -> Option<String> {
    if view.source().as_deref() == Some(target) {
        return Some(format!("the volume is on node {target} already"));
    }
    let Some(node) = view.nodes.iter().find(|node| node.name_any() == target) else {
        return Some(format!("there is no node {target}; correct {MOVE_TO}"));
    };
    match &view.members {
        Some(members) if !members.iter().any(|member| member == target) => {
            return Some(format!("the driver does not run on node {target}"));
        }
        Some(_) => {}
        None => return Some("the nodes with the driver are not known yet".to_owned()),
    }
    if is_cordoned(node) {
        return Some(format!("node {target} is cordoned, so that no pod could follow; uncordon it"));
    }
    if let Some(why) = view.pods.iter().find_map(|pod| obstacle(pod, node)) {
        return Some(format!("no pod could follow to node {target}: {why}"));
    }
    if is_lost(Some(node)) {
        return Some(format!("node {target} is out of service"));
    }
    // A claim that stays behind is in the way of a move only.
    view.wanted_elsewhere()?;
    view.others.iter().find_map(|(claim, volume)| left_behind(view, claim, volume.as_ref()?, node))
}

/// A pod can run only where all its volumes are.
fn left_behind(
    view: &View,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    target: &Node,
) -> Option<String> {
    let asked = |wanted: &str| wanted == target.name_any() || wanted == ANY;
    if reaches(volume, target) || comes_along(claim, &target.name_any()) || wanted(claim).is_some_and(asked) {
        return None;
    }
    let (name, target) = (claim.name_any(), target.name_any());
    let ours =
        volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).is_some_and(|csi| csi.driver == view.driver);
    Some(match ours {
        true => {
            format!("the same pods use claim {name}, which stays behind; set its {MOVE_TO} to {target} too")
        }
        false => format!("the same pods use claim {name}, whose volume cannot be used on node {target}"),
    })
}

/// Whether this claim is on its way to the node.
fn comes_along(claim: &PersistentVolumeClaim, target: &str) -> bool {
    status(claim).is_some_and(|status| status.target == target)
}

/// Whether a claim that has to come along is not ready for the pods to leave.
pub(super) fn laggard(view: &View, target: &str) -> Option<String> {
    use super::status::Phase::{Ready, Rebinding, Switching};
    let node = view.nodes.iter().find(|node| node.name_any() == target)?;
    view.others.iter().find_map(|(claim, volume)| {
        let there = volume.as_ref().is_none_or(|volume| reaches(volume, node));
        let ready = status(claim)
            .is_some_and(|s| s.target == target && matches!(s.phase, Ready | Switching | Rebinding));
        (!there && !ready).then(|| format!("claim {} of the same pods is not ready", claim.name_any()))
    })
}

/// The nodes that may be the target, best known reason first: where a claim of the same pods goes, no other one will do.
pub(super) fn candidates(view: &View) -> Result<Vec<String>, String> {
    let bound = view.others.iter().find_map(|(claim, _)| {
        let target = status(claim).map(|status| status.target).filter(|target| !target.is_empty());
        target.or_else(|| wanted(claim).filter(|target| *target != ANY).map(str::to_owned))
    });
    let names = view.nodes.iter().map(|node| node.name_any());
    let names = names.filter(|name| bound.as_ref().is_none_or(|bound| bound == name));
    let (mut good, mut first) = (Vec::new(), None);
    for name in names.filter(|name| view.source().as_ref() != Some(name)) {
        match of_target(view, &name) {
            None => good.push(name),
            Some(why) => first = first.or(Some(why)),
        }
    }
    match good.is_empty() {
        false => Ok(good),
        true => Err(first.unwrap_or_else(|| "there is no other node with the driver".to_owned())),
    }
}
