//! What comes next for a VolumeReplica that is at its end: the volume has moved, or the copy is not needed.

use super::{CALM, LONG, Step, has};
use crate::cluster::moves::resources::ReplicaPhase;
use crate::cluster::moves::view::{NodeState, Says, View};

/// The volume is on its new node.
pub(super) fn retiring(view: &View) -> Step {
    match &view.status.left_id {
        // An administrator knows that the node never comes back (rule 7).
        None if view.is_deleted && matches!(view.source, Says::Silent(_) | Says::Nothing) => Step::Finish,
        None => Step::Retire,
        Some(_) if view.is_deleted => left(view),
        Some(_) if view.status.stale => Step::Enter(
            ReplicaPhase::Left,
            format!(
                "what was written after the last pass is on node {}; delete this object to delete it",
                view.spec.source_node
            ),
        ),
        Some(_) if view.spec.keep_source => Step::Enter(
            ReplicaPhase::Left,
            format!("node {} keeps its data; delete this object to delete them", view.spec.source_node),
        ),
        Some(_) if has(&view.target, view.spec.next_generation()) || view.volume_is_deleted => {
            Step::DeleteLeft
        }
        Some(_) => Step::Wait(
            CALM,
            format!(
                "node {} does not say that it has the volume; delete this object to delete what node {} has",
                view.spec.target_node, view.spec.source_node
            ),
        ),
    }
}

/// The earlier node has data that only an administrator deletes.
pub(super) fn left(view: &View) -> Step {
    match view.is_deleted {
        // The data have gone with the node (rule 7).
        true if view.source_node == NodeState::Gone && matches!(view.source, Says::Silent(_)) => Step::Finish,
        true => Step::DeleteLeft,
        false => Step::Wait(LONG, view.status.message.clone()),
    }
}

/// The copy is not needed, and is to be deleted.
pub(super) fn abandoning(view: &View) -> Step {
    if view.status.exchanged {
        return Step::ExchangeBack;
    }
    let (node, id) = (&view.spec.source_node, &view.spec.volume_id);
    let has_no_fence = !view.status.maybe_fenced || matches!(view.source, Says::Nothing | Says::Deleted);
    if view.copy == Says::Nothing && has_no_fence {
        return Step::Release;
    }
    if view.status.maybe_fenced {
        return match view.source {
            Says::Deleted => Step::DeleteCopy,
            // An administrator who deletes this object does not wait for a node that may never come back (rule 7).
            Says::Silent(_) | Says::Nothing if view.is_deleted => Step::DeleteCopy,
            _ => Step::Unfence,
        };
    }
    if view.is_deleted && view.target_is_gone {
        return Step::Finish;
    }
    if view.target_is_gone && matches!(view.copy, Says::Silent(_)) {
        return Step::Enter(ReplicaPhase::Stranded, has_gone_with(view));
    }
    if view.is_deleted || has(&view.source, view.spec.generation) || view.source == Says::Deleted {
        return Step::DeleteCopy;
    }
    let why = match &view.source {
        Says::Silent(_) => format!("node {node} does not answer"),
        Says::Error(why) => format!("node {node}: {why}"),
        Says::Has(_) | Says::Deleted | Says::Nothing | Says::NotAsked => {
            format!("node {node} does not say that it has generation {} of volume {id}", view.spec.generation)
        }
    };
    Step::Wait(
        LONG,
        format!("the copy may be the only one, and is kept: {why}; delete this object to delete the copy"),
    )
}

/// The node of the copy is gone, and the volume can have another copy.
pub(super) fn stranded(view: &View) -> Step {
    match (view.is_deleted, view.target_is_gone) {
        (true, true) => Step::Finish,
        (false, true) => Step::Wait(LONG, has_gone_with(view)),
        (_, false) => Step::Enter(ReplicaPhase::Abandoning, "the node of the copy is back".to_owned()),
    }
}

fn has_gone_with(view: &View) -> String {
    format!(
        "the copy has gone with node {}, and is deleted if the node comes back; delete this object if it never does",
        view.spec.target_node
    )
}
