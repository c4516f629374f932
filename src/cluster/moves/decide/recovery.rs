//! What comes next for a VolumeReplica whose status was lost: an administrator has replaced the object without it, a backup was
//! restored, or the controller ended between the creation and the first status. The volume may be fenced, exchanged or moved. So the
//! nodes say what they have, and what they do not say is unknown.

use super::ending::has_gone_with;
use super::{CALM, LONG, PATIENCE, Step, has, have, is_lost_node, running, unwanted};
use crate::cluster::moves::resources::ReplicaPhase;
use crate::cluster::moves::view::{NodeState, Says, View};

/// Reports whether nothing says how far the copy is.
pub fn is_lost_status(phase: ReplicaPhase, begun: bool) -> bool {
    phase == ReplicaPhase::Pending && !begun
}

/// Returns how the controller goes on without a status.
pub(super) fn recover(view: &View) -> Step {
    let (generation, node) = (view.spec.generation, &view.spec.target_node);
    match (&view.source, &view.target) {
        (Says::Has(has), _) if *has > generation => at_source_again(view),
        // The copy has taken over its id. What the node of the volume has may be later than that.
        (_, Says::Has(has)) if *has > generation => {
            Step::RetireSource(format!("node {node} has a later generation of the volume"))
        }
        (Says::Nothing | Says::Deleted, Says::Deleted) => {
            Step::RetireSource(format!("the volume was deleted on node {node}"))
        }
        _ if view.has_another_copy => beside_another(view),
        (_, Says::Has(_) | Says::Nothing | Says::Deleted) => before_the_end(view),
        (_, Says::Silent(silent)) => without_target(view, *silent >= PATIENCE),
        (_, Says::Error(why) | Says::Unusable(why, _)) => wait(format!("node {node}: {why}")),
        (_, Says::NotAsked) => wait(format!("node {node} was not asked")),
    }
}

fn wait(why: String) -> Step {
    Step::Wait(CALM, format!("the status was lost, and {why}"))
}

/// The node has an earlier generation of the volume, or had it, and keeps what it was.
pub(super) fn retire_earlier(view: &View) -> Step {
    match &view.left {
        Says::Has(_) | Says::Unusable(..) => Step::Recover(ReplicaPhase::Left),
        Says::Nothing | Says::Deleted if view.is_deleted => Step::Finish,
        Says::Nothing | Says::Deleted => {
            let node = &view.spec.source_node;
            Step::RetireSource(format!("node {node} may have an earlier generation of the volume"))
        }
        // An administrator knows that the node never comes back (rule 7).
        Says::Silent(_) if view.is_deleted && view.source_node == NodeState::Gone => Step::Finish,
        Says::Silent(_) | Says::Error(_) | Says::NotAsked => {
            wait(format!("node {} does not say what it has kept of the volume", view.spec.source_node))
        }
    }
}

/// The volume is at its node, which has a later generation than before the move.
fn at_source_again(view: &View) -> Step {
    match &view.left {
        // It has moved and come back, and what it was before that is kept.
        Says::Has(_) | Says::Unusable(..) => Step::Recover(ReplicaPhase::Left),
        // It was taken back, and the copy may have taken over its id before.
        Says::Nothing | Says::Deleted => Step::Recover(ReplicaPhase::Abandoning),
        Says::Silent(_) | Says::Error(_) | Says::NotAsked => {
            wait(format!("node {} does not say what it has kept of the volume", view.spec.source_node))
        }
    }
}

/// A volume has one copy at a time. If there is another one, nothing has been fenced for this one, or no longer is.
fn beside_another(view: &View) -> Step {
    let why = "the status was lost, and the volume has another copy";
    match view.target_is_gone() && matches!(view.copy, Says::Silent(_)) {
        true => Step::Enter(ReplicaPhase::Stranded, why.to_owned()),
        false => Step::Enter(ReplicaPhase::Abandoning, why.to_owned()),
    }
}

/// The copy has not taken over the id of the volume.
fn before_the_end(view: &View) -> Step {
    let node = &view.spec.source_node;
    match (&view.source, &view.copy) {
        (_, Says::Nothing) => {}
        // A request for it to take over the id may still be on its way.
        _ if view.lost_for < PATIENCE => return wait("the nodes are asked what they have".to_owned()),
        // The next pass reports an error if the first copy has not ended.
        (_, Says::Has(_)) => return Step::Recover(ReplicaPhase::Following),
        _ => return Step::Recover(ReplicaPhase::Pending),
    }
    match &view.source {
        Says::Has(_) | Says::Unusable(..) => Step::Recover(ReplicaPhase::Pending),
        Says::Deleted if unwanted(view).is_some() => Step::Finish,
        // It may have moved, and the node may have what is left of it.
        Says::Nothing => match unwanted(view) {
            Some(why) => Step::RetireSource(format!(
                "{why}, and neither node has the volume; node {node} may have what a move has left there"
            )),
            None => nowhere(),
        },
        Says::Deleted => nowhere(),
        Says::Silent(_) if view.is_deleted && view.source_node == NodeState::Gone => Step::Finish,
        Says::Silent(_) | Says::Error(_) | Says::NotAsked => {
            wait(format!("node {node} does not say what it has of the volume"))
        }
    }
}

fn nowhere() -> Step {
    let why = "the status was lost, and neither node has the volume; delete the VolumeReplica when you have looked there";
    Step::Wait(LONG, why.to_owned())
}

/// The node of the copy does not answer, and may have the volume. The volume is taken back only by the word of Kubernetes or of an
/// administrator.
fn without_target(view: &View, is_silent: bool) -> Step {
    let (source, target) = (&view.spec.source_node, &view.spec.target_node);
    let is_given_up = view.is_deleted && view.target_node != NodeState::Ready;
    if !(is_silent && (is_lost_node(view.target_node) || is_given_up)) {
        return wait(format!("node {target}, which may have the volume, does not answer"));
    }
    let running = running(view);
    if !running.is_empty() {
        return wait(format!("the volume goes back to its node when {} left", have(&running)));
    }
    let is_nowhere = matches!(view.source, Says::Nothing | Says::Deleted);
    match has(&view.source, view.spec.generation) {
        true => Step::Recover(ReplicaPhase::Abandoning),
        // A node that may come back may have the only copy, and nothing else would say so.
        false if !view.target_is_gone() => wait(format!(
            "node {target} may have the volume, and node {source} does not say that it has it; if {target} does not come back, delete \
             its Node object"
        )),
        // An administrator knows that both are lost, or that nothing is left.
        false if view.is_deleted && (is_nowhere || view.source_node == NodeState::Gone) => Step::Finish,
        false if is_nowhere && unwanted(view).is_some() => {
            Step::Enter(ReplicaPhase::Stranded, has_gone_with(view))
        }
        false => wait(format!("node {source} does not say that it has the volume")),
    }
}
