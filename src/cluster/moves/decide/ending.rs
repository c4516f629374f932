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
                "what was written after the last pass is on node {}; delete the VolumeReplica to delete it",
                view.spec.source_node
            ),
        ),
        Some(_) if view.spec.keep_source => Step::Enter(
            ReplicaPhase::Left,
            format!("node {} keeps its data; delete the VolumeReplica to delete them", view.spec.source_node),
        ),
        Some(_) if has(&view.target, view.spec.next_generation()) || view.volume_is_deleted => {
            Step::DeleteLeft
        }
        Some(_) => Step::Wait(
            CALM,
            format!(
                "node {} does not say that it has the volume; delete the VolumeReplica to delete what node {} has",
                view.spec.target_node, view.spec.source_node
            ),
        ),
    }
}

/// The earlier node has data that only an administrator deletes.
pub(super) fn left(view: &View) -> Step {
    match view.is_deleted {
        // The data have gone with the node (rule 7).
        true if view.status.reclaimed => match is_gone(view) {
            true => Step::Finish,
            false => Step::DeleteLeftCopy,
        },
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
    if view.status.maybe_completed {
        return taken_back(view);
    }
    let has_no_fence = !view.status.maybe_fenced || matches!(view.source, Says::Nothing | Says::Deleted);
    if view.copy == Says::Nothing && has_no_fence {
        return Step::Release;
    }
    if view.status.maybe_fenced {
        return match view.source {
            Says::Deleted => Step::DeleteCopy,
            // An administrator who deletes the VolumeReplica does not wait for a node that may never come back (rule 7).
            Says::Silent(_) | Says::Nothing if view.is_deleted => Step::DeleteCopy,
            _ => Step::Unfence,
        };
    }
    if view.is_deleted && view.target_is_gone() {
        return Step::Finish;
    }
    if is_gone(view) {
        return Step::Enter(ReplicaPhase::Stranded, has_gone_with(view));
    }
    if view.is_deleted || has(&view.source, view.spec.generation) || view.source == Says::Deleted {
        return Step::DeleteCopy;
    }
    may_be_the_only_one(view, view.spec.generation)
}

/// Waits until the node of the volume says that it has this generation (rule 2).
fn may_be_the_only_one(view: &View, generation: u64) -> Step {
    let (node, id) = (&view.spec.source_node, &view.spec.volume_id);
    let why = match &view.source {
        Says::Silent(_) => format!("node {node} does not answer"),
        Says::Error(why) => format!("node {node}: {why}"),
        Says::Has(_) | Says::Deleted | Says::Nothing | Says::NotAsked => {
            format!("node {node} does not say that it has generation {generation} of volume {id}")
        }
    };
    Step::Wait(
        LONG,
        format!(
            "the copy may be the only one, and is kept: {why}; delete the VolumeReplica to delete the copy"
        ),
    )
}

/// The node of the copy was lost while the copy took over the id. The volume is taken back, and then what that node has is retired
/// or deleted, if it ever comes back.
fn taken_back(view: &View) -> Step {
    let node = &view.spec.target_node;
    let reclaimed = view.spec.reclaimed_generation();
    if !view.status.reclaimed {
        return match view.source {
            // Both are lost, and an administrator knows it.
            Says::Silent(_) if view.is_deleted && view.source_node == NodeState::Gone => Step::Finish,
            // A promotion of the copy: its volume was lost, and was not fenced.
            Says::Has(generation) if generation == view.spec.generation && view.status.fenced.is_none() => {
                Step::Fence
            }
            Says::Deleted | Says::Nothing => gone_before(view),
            _ => Step::Reclaim,
        };
    }
    if view.status.left_id.is_some() {
        return match view.is_deleted {
            true => Step::DeleteLeftCopy,
            false => Step::Enter(
                ReplicaPhase::Left,
                format!(
                    "node {node} was lost when it had taken the volume over, and may have later data; delete the VolumeReplica to \
                     delete them"
                ),
            ),
        };
    }
    match (&view.copy, &view.target) {
        _ if is_gone(view) && view.is_deleted => Step::Finish,
        _ if is_gone(view) => Step::Enter(ReplicaPhase::Stranded, has_gone_with(view)),
        // The volume has moved there since.
        (Says::Nothing, Says::Has(generation)) if *generation >= reclaimed => Step::Release,
        (Says::Nothing, Says::Has(_) | Says::Nothing | Says::Deleted) => Step::RetireCopy,
        (Says::Has(_), _)
            if view.is_deleted || has(&view.source, reclaimed) || view.source == Says::Deleted =>
        {
            Step::DeleteCopy
        }
        (Says::Has(_), _) => may_be_the_only_one(view, reclaimed),
        _ => Step::Wait(LONG, format!("node {node} does not say what it has of the volume")),
    }
}

/// The volume is gone from its node before it could be taken back, such as with its claim.
fn gone_before(view: &View) -> Step {
    match view.copy {
        Says::Has(_) if view.is_deleted || view.source == Says::Deleted => Step::DeleteCopy,
        Says::Has(_) => may_be_the_only_one(view, view.spec.generation),
        Says::Nothing if view.is_deleted => Step::Release,
        // A node that may come back may have the copy, and nothing else would say so.
        Says::Silent(_) if view.is_deleted && view.target_is_gone() => Step::Finish,
        _ => Step::Wait(
            LONG,
            format!(
                "the volume is gone from node {}, and node {} may have it; delete the VolumeReplica when you have looked there",
                view.spec.source_node, view.spec.target_node
            ),
        ),
    }
}

/// Reports whether the node of the copy does not answer, and its Node object was deleted.
fn is_gone(view: &View) -> bool {
    view.target_is_gone() && matches!(view.copy, Says::Silent(_))
}

/// The node of the copy is gone, and the volume can have another copy.
pub(super) fn stranded(view: &View) -> Step {
    match (view.is_deleted, view.target_is_gone()) {
        (true, true) => Step::Finish,
        (false, true) => Step::Wait(LONG, has_gone_with(view)),
        (_, false) => Step::Enter(ReplicaPhase::Abandoning, "the node of the copy is back".to_owned()),
    }
}

fn has_gone_with(view: &View) -> String {
    format!(
        "the copy has gone with node {}, and is deleted if the node comes back; delete the VolumeReplica if it never does",
        view.spec.target_node
    )
}
