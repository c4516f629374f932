//! A volume that another node has adopted: its disk is there, or its node has another name. Nothing is copied. The PersistentVolume gets
//! the node that has the data, if no pod can use them on the earlier one.

use super::{CALM, LONG, PATIENCE, Step, have, is_lost_node, left, retiring, running, unknown};
use crate::cluster::moves::resources::ReplicaPhase;
use crate::cluster::moves::view::{Says, View, Wanted};

/// Returns what comes next.
pub(super) fn adopt(view: &View) -> Step {
    match view.status.phase {
        ReplicaPhase::Pending => begin(view),
        // The PersistentVolume may not exist at this moment, and nothing but the VolumeReplica has it.
        ReplicaPhase::Exchanging => Step::Exchange,
        ReplicaPhase::Retiring => retiring(view),
        ReplicaPhase::Left => left(view),
        ReplicaPhase::Unknown => Step::Leave,
        // The exchange enters `LastPass`. What the earlier node has of the volume is retired if it comes back.
        _ => Step::RetireSource(format!("node {} has adopted the volume", view.spec.target_node)),
    }
}

fn begin(view: &View) -> Step {
    let (source, target) = (&view.spec.source_node, &view.spec.target_node);
    if view.is_deleted || view.claim_is_deleted == Some(true) {
        return Step::Finish;
    }
    if matches!(view.wanted, Wanted::Nothing(_)) {
        return Step::Finish;
    }
    if let Some(why) = unknown(view) {
        return Step::Wait(LONG, why);
    }
    if let Some(why) = view.hindered.clone() {
        return Step::Wait(LONG, why);
    }
    if view.has_another_copy {
        return Step::Wait(LONG, "the volume has another VolumeReplica; delete that one first".to_owned());
    }
    match &view.target {
        Says::Has(generation) if *generation >= view.spec.next_generation() => {}
        Says::Unusable(why, _) | Says::Error(why) => {
            return Step::Wait(LONG, format!("node {target}: {why}"));
        }
        _ => return Step::Wait(LONG, format!("node {target} does not say that it has adopted the volume")),
    }
    if let Some(why) = stands_against(view) {
        return Step::Wait(LONG, why);
    }
    let running = running(view);
    if !running.is_empty() {
        return Step::Wait(
            CALM,
            format!("the PersistentVolume gets node {target} when {} left node {source}", have(&running)),
        );
    }
    Step::Enter(ReplicaPhase::Exchanging, format!("node {target} has adopted the volume"))
}

/// Returns why the earlier node may have the volume as well: then nothing says which of the two pods have written to.
fn stands_against(view: &View) -> Option<String> {
    let (source, target) = (&view.spec.source_node, &view.spec.target_node);
    match &view.source {
        Says::Nothing => None,
        Says::Has(_) => Some(format!(
            "nodes {source} and {target} both have the volume, and nothing says which of the two pods have written to; have node {target} \
             drop it (hostloop state rebuild --drop), or switch node {source} off and delete its Node object"
        )),
        // An administrator knows that its disk is in the other node for good.
        Says::Unusable(_, time) if view.is_promoted && *time >= PATIENCE => None,
        Says::Unusable(why, _) => Some(format!(
            "node {source}: {why}; if the disk stays in node {target}, annotate the VolumeReplica with hostloop.csi.dev/promote=true"
        )),
        Says::Deleted => Some(format!(
            "the volume was deleted on node {source}; have node {target} drop it (hostloop state rebuild --drop)"
        )),
        Says::Silent(silent) if is_lost_node(view.source_node) => {
            (*silent < PATIENCE).then(|| format!("node {source} does not answer, and may come back"))
        }
        Says::Silent(_) => Some(format!(
            "node {source} does not answer, and may have the volume as well; delete its Node object, or give it the taint \
             node.kubernetes.io/out-of-service, if it does not come back with that disk"
        )),
        Says::Error(why) => Some(format!("node {source}: {why}")),
        Says::NotAsked => Some(format!("node {source} was not asked")),
    }
}
