//! What comes next for a VolumeReplica that is at its end: the volume has moved, or the copy is not needed.

use std::time::Duration;

use super::{CALM, LONG, PATIENCE, Step, has, have, is_lost_node, running};
use crate::cluster::moves::resources::{Purpose, ReplicaPhase};
use crate::cluster::moves::view::{NodeState, Says, View};

/// Between two looks at what changes only with the VolumeReplica or a Node, which a watch shows.
const QUIET: Duration = Duration::from_secs(5 * 60);
/// What the message begins with if a copy is kept although nothing asks for it. `hostloop promote` reads it.
pub const ONLY_COPY: &str = "the copy may be the only one";

/// The copy takes over the id. If its node is lost in this phase, it may have done that, and a pod may have written there: the volume
/// goes back by the word of Kubernetes or of an administrator only, as with a promotion.
pub(super) fn completing(view: &View) -> Step {
    let target = format!("node {}", view.spec.target_node);
    let silent = match &view.target {
        Says::Silent(silent) => *silent,
        Says::Nothing | Says::Deleted => match &view.copy {
            Says::Nothing => {
                return has_neither(view, format!("{target} has neither the volume nor its copy"));
            }
            Says::Unusable(why, _) => return has_neither(view, format!("{target}: {why}")),
            // It refuses to make the copy the volume.
            Says::Has(_)
                if view.is_deleted
                    && view.target == Says::Nothing
                    && has(&view.source, view.spec.generation) =>
            {
                return goes_back(view, format!("{target} has the copy, and not the volume"));
            }
            _ => return Step::Complete,
        },
        _ => return Step::Complete,
    };
    let is_given_up = view.is_deleted && view.target_node != NodeState::Ready;
    // A move within a node ends with that node, as an administrator knows.
    if is_given_up && source_is_gone(view) && view.target_is_gone() {
        return Step::Finish;
    }
    let is_lost = is_lost_node(view.target_node) || is_given_up;
    match is_lost && silent >= PATIENCE && has(&view.source, view.spec.generation) {
        true => goes_back(view, format!("node {} is lost", view.spec.target_node)),
        false => Step::Complete,
    }
}

/// The node of the copy answers that it has neither the copy nor the volume, or cannot use the copy: the volume was deleted there, or a
/// disk was replaced or has failed. `why` says which.
fn has_neither(view: &View, why: String) -> Step {
    let source = &view.spec.source_node;
    if view.target == Says::Deleted && view.copy == Says::Nothing {
        let why = format!("the volume was deleted on node {}", view.spec.target_node);
        return Step::Enter(ReplicaPhase::Retiring, why);
    }
    match has(&view.source, view.spec.generation) {
        true if view.is_deleted => goes_back(view, why),
        true => {
            let way_out = format!("delete the VolumeReplica to take the volume back to node {source}");
            Step::Wait(CALM, format!("{why}; {way_out}"))
        }
        // An administrator knows that both are lost.
        false if view.is_deleted && view.copy == Says::Nothing && source_is_gone(view) => Step::Finish,
        false => Step::Wait(LONG, format!("{why}, and node {source} does not say that it has the volume")),
    }
}

/// The volume goes back to its node if no pod runs where the copy is.
fn goes_back(view: &View, why: String) -> Step {
    let running = running(view);
    match running.is_empty() {
        true => {
            let why = format!("{why}, and the volume stays on node {}", view.spec.source_node);
            Step::Enter(ReplicaPhase::Abandoning, why)
        }
        false => Step::Wait(CALM, format!("the volume goes back to its node when {} left", have(&running))),
    }
}

/// The volume is on its new node.
pub(super) fn retiring(view: &View) -> Step {
    match &view.status.left_id {
        // An administrator knows that the node never comes back (rule 7).
        None if view.is_deleted && source_is_gone(view) => Step::Finish,
        // Its disk or the machine is the other node now, by the word of an administrator.
        None if view.spec.purpose == Purpose::Adoption && source_is_gone(view) => Step::Finish,
        // No object would name what it has under the id of the volume.
        None if view.is_deleted && matches!(view.source, Says::Silent(_)) => {
            Step::Wait(LONG, is_awaited(view, "has to hear that the volume has moved"))
        }
        // Its node has an earlier state file, and the copy is a copy again.
        None if view.spec.is_on_one_node() && has(&view.source, view.spec.generation) => {
            Step::Enter(ReplicaPhase::Completing, "the copy takes over the id of the volume again".to_owned())
        }
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
        // It may have moved away from there and come back since.
        Some(_) if matches!(view.target, Says::Has(has) if has >= view.spec.next_generation()) => {
            Step::DeleteLeft
        }
        Some(_) if view.target == Says::Deleted => Step::DeleteLeft,
        Some(_) => Step::Wait(
            LONG,
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
        true if source_is_gone(view) => Step::Finish,
        true => Step::DeleteLeft,
        false => Step::Wait(QUIET, view.status.message.clone()),
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
    // A volume that has come back, or was restored, has another generation and no fence of this move.
    let has_another = |has: u64| has != view.spec.generation;
    let has_no_fence = !view.status.maybe_fenced
        || matches!(view.source, Says::Nothing | Says::Deleted)
        || matches!(view.source, Says::Has(has) if has_another(has));
    if view.copy == Says::Nothing && has_no_fence {
        return Step::Release;
    }
    if view.is_deleted && is_gone(view) && (has_no_fence || source_is_gone(view)) {
        return Step::Finish;
    }
    if let Some(step) = goes_on_alone(view) {
        return step;
    }
    if !has_no_fence {
        return match view.source {
            // An administrator who has deleted the Node as well does not wait for it (rule 7). A node that is silent for a moment
            // would refuse pods when it is back.
            Says::Silent(_) if view.is_deleted && source_is_gone(view) => Step::DeleteCopy,
            Says::Silent(_) if view.is_deleted => {
                Step::Wait(LONG, is_awaited(view, "has to let pods use the volume again"))
            }
            _ => Step::Unfence,
        };
    }
    if is_gone(view) {
        return Step::Enter(ReplicaPhase::Stranded, has_gone_with(view));
    }
    if view.is_deleted || has(&view.source, view.spec.generation) || view.source == Says::Deleted {
        return Step::DeleteCopy;
    }
    may_be_the_only_one(view, view.spec.generation)
}

/// Returns the step if an administrator wants the copy that is kept because it may be the only one (rule 7).
fn goes_on_alone(view: &View) -> Option<Step> {
    let is_alone = view.is_promoted && !has(&view.source, view.spec.generation);
    let is_wanted = is_alone && !view.is_deleted && view.claim_is_deleted == Some(false);
    let is_there = matches!(view.copy, Says::Has(_)) && view.source != Says::Deleted;
    let phase = match view.spec.purpose {
        Purpose::Standby => ReplicaPhase::Standby,
        Purpose::Move | Purpose::Adoption | Purpose::Unknown => ReplicaPhase::Ready,
    };
    (is_wanted && is_there)
        .then(|| Step::Enter(phase, format!("{ONLY_COPY}, and is to take the volume's place")))
}

/// Waits until the node of the volume says that it has this generation (rule 2).
fn may_be_the_only_one(view: &View, generation: u64) -> Step {
    let (node, id) = (&view.spec.source_node, &view.spec.volume_id);
    let why = match &view.source {
        Says::Silent(_) => format!("node {node} does not answer"),
        Says::Error(why) | Says::Unusable(why, _) => format!("node {node}: {why}"),
        Says::Has(_) | Says::Deleted | Says::Nothing | Says::NotAsked => {
            format!("node {node} does not say that it has generation {generation} of volume {id}")
        }
    };
    Step::Wait(
        LONG,
        format!(
            "{ONLY_COPY}, and is kept: {why}; promote it, or delete the VolumeReplica to delete the copy"
        ),
    )
}

/// The node of the copy was lost while the copy took over the id. The volume is taken back, and then what that node has is retired
/// or deleted, if it ever comes back.
fn taken_back(view: &View) -> Step {
    let node = &view.spec.target_node;
    let reclaimed = view.spec.reclaimed_generation();
    // A completion that was on its way has ended.
    let has_become = view.target == Says::Has(view.spec.next_generation());
    if view.spec.is_on_one_node() && has_become && !view.status.reclaimed {
        let why = format!("the volume is in {}", view.spec.destination());
        return Step::Enter(ReplicaPhase::Retiring, why);
    }
    if !view.status.reclaimed {
        return match view.source {
            // Both are lost, and an administrator knows it.
            _ if view.is_deleted && source_is_gone(view) => Step::Finish,
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
        // What the node has is the volume.
        (Says::Nothing, _) if view.spec.is_on_one_node() => Step::Release,
        (Says::Nothing, Says::Has(_) | Says::Nothing | Says::Deleted) => Step::RetireCopy,
        (Says::Has(_) | Says::Unusable(..), _)
            if view.is_deleted || has(&view.source, reclaimed) || view.source == Says::Deleted =>
        {
            Step::DeleteCopy
        }
        (Says::Has(_) | Says::Unusable(..), _) => may_be_the_only_one(view, reclaimed),
        _ => Step::Wait(LONG, format!("node {node} does not say what it has of the volume")),
    }
}

/// The volume is gone from its node before it could be taken back, such as with its claim.
fn gone_before(view: &View) -> Step {
    match view.copy {
        Says::Has(_) | Says::Unusable(..) if view.is_deleted || view.source == Says::Deleted => {
            Step::DeleteCopy
        }
        Says::Has(_) | Says::Unusable(..) => may_be_the_only_one(view, view.spec.generation),
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

fn is_awaited(view: &View, what: &str) -> String {
    let node = &view.spec.source_node;
    format!("node {node} does not answer, and {what}; delete the Node object if the node never comes back")
}

/// Reports whether the node of the volume does not answer, and its Node object was deleted.
fn source_is_gone(view: &View) -> bool {
    view.source_node == NodeState::Gone && matches!(view.source, Says::Silent(_))
}

/// Reports whether the node of the copy does not answer, and its Node object was deleted.
fn is_gone(view: &View) -> bool {
    view.target_is_gone() && matches!(view.copy, Says::Silent(_))
}

/// The node of the copy is gone, and the volume can have another copy.
pub(super) fn stranded(view: &View) -> Step {
    match (view.is_deleted, view.target_is_gone()) {
        (true, true) => Step::Finish,
        (false, true) => Step::Wait(QUIET, has_gone_with(view)),
        (_, false) => Step::Enter(ReplicaPhase::Abandoning, "the node of the copy is back".to_owned()),
    }
}

pub(super) fn has_gone_with(view: &View) -> String {
    format!(
        "the copy has gone with node {}, and is deleted if the node comes back; delete the VolumeReplica if it never does",
        view.spec.target_node
    )
}
