//! When a copy takes the place of a volume whose node is lost, and when it does not: the node may be back.

use super::{CALM, LONG, PATIENCE, PRESSING, Step, has, have};
use crate::cluster::moves::resources::{Purpose, ReplicaPhase, When};
use crate::cluster::moves::view::{NodeState, Says, User, View, Wanted};

/// Reports whether the node of the volume is lost, by the word of Kubernetes.
pub fn is_lost(view: &View) -> bool {
    is_lost_node(view.source_node)
}

/// Reports whether a node is lost, by the word of Kubernetes.
pub fn is_lost_node(node: NodeState) -> bool {
    matches!(node, NodeState::OutOfService | NodeState::Gone)
}

/// Reports whether the copy takes the volume's place because the volume is lost. A move waits for its source, also if it uses a
/// standby copy, unless an administrator says otherwise: a node that is cut off may still run its pods.
pub(super) fn is_promotion(view: &View) -> bool {
    view.is_promoted || view.spec.purpose == Purpose::Standby && (is_lost(view) || view.status.lost)
}

/// Reports whether an administrator has promoted the copy, and the node of the volume does not say that it has the volume.
pub(super) fn is_promoted_alone(view: &View) -> bool {
    view.is_promoted && (view.status.stale || !has(&view.source, view.spec.generation))
}

/// Returns why a copy does not yet take the place of the volume, whose node may be lost.
pub(super) fn delays_promotion(view: &View) -> Option<String> {
    let staying = if is_well(view) { staying(view) } else { running(view) };
    let wait = || format!("the copy takes the volume's place when {} left", have(&staying));
    view.hindered.clone().or_else(|| (!staying.is_empty()).then(wait))
}

/// Reports whether the node of the volume has just answered that it has the volume, and Kubernetes calls it Ready.
pub fn is_well(view: &View) -> bool {
    view.source_node == NodeState::Ready && has(&view.source, view.spec.generation)
}

/// Returns why the volume stays where it is although its copy is to stand by: the move that used the copy was cancelled, or the node
/// of the volume is back. Pods would be kept away from the volume for as long as one that has it runs.
pub(super) fn stays_put(view: &View) -> Option<String> {
    let stands_by = matches!(view.wanted, Wanted::Standby { .. });
    let is_promotion = view.is_promoted || view.status.stale || view.source_node != NodeState::Ready;
    (stands_by && !is_promotion && !view.is_bound && has(&view.source, view.spec.generation))
        .then(|| "nothing asks for the volume to move any more".to_owned())
}

/// Returns why the volume goes back to its pods: the Node of the copy was deleted, and they could not run there.
pub(super) fn cannot_go(view: &View) -> Option<String> {
    let is_needed = view.is_promoted || view.status.stale || view.is_awaited || !is_well(view);
    (view.target_is_gone() && !is_needed)
        .then(|| format!("node {}, which has the copy, does not exist any more", view.spec.target_node))
}

/// Returns the step if a pod has started on the node of the volume after the check, and stays. Otherwise the volume would be fenced,
/// and its copy would grow old, for as long as that pod runs. If a claim of the same pods has gone ahead, this one follows.
pub(super) fn goes_on(view: &View) -> Option<Step> {
    let staying: Vec<&User> = staying(view).into_iter().filter(|user| !is_sent_away(view, user)).collect();
    if view.status.stale || view.is_awaited || !is_well(view) || staying.is_empty() {
        return None;
    }
    Some(back(view, format!("{} started before the volume was fenced", have(&staying))))
}

/// Returns the step if a claim of the same pods stays at its node since the check (rule 9).
pub(super) fn goes_back_with_others(view: &View) -> Option<Step> {
    let why = view.hindered.clone().filter(|_| is_well(view) && !view.is_awaited)?;
    Some(back(view, why))
}

/// Goes back to the phase before the cutover.
fn back(view: &View, why: String) -> Step {
    let phase = match view.wanted {
        Wanted::Standby { .. } => ReplicaPhase::Standby,
        _ => ReplicaPhase::Ready,
    };
    Step::Enter(phase, why)
}

/// Reports whether the controller asks a pod to leave.
pub(super) fn is_sent_away(view: &View, user: &User) -> bool {
    let now = matches!(view.wanted, Wanted::Move { when: When::Now, .. }) && !view.has_ended_evictions();
    let bare = matches!(view.wanted, Wanted::Move { evict_bare_pods: true, .. });
    !user.is_leaving && (user.has_controller || bare) && (now || user.never_ran)
}

/// Returns the pods that keep the volume at its node until they are deleted. A pod that has
/// not run yet and has no controller counts as well: its node refuses it while the volume is fenced.
fn staying(view: &View) -> Vec<&User> {
    let is_kept_out = |user: &&User| user.is_late && user.never_ran;
    let stays =
        |user: &&User| !user.is_leaving && (!user.never_ran || !user.has_controller) && !is_kept_out(user);
    view.users.iter().filter(stays).collect()
}

/// Returns the pods that still write, even if Kubernetes reports their node as lost.
pub(super) fn running(view: &View) -> Vec<&User> {
    view.users.iter().filter(|user| !user.is_leaving && !user.never_ran).collect()
}

/// Returns the step if the node of the volume does not answer, or has nothing.
pub(super) fn without_source(view: &View) -> Option<Step> {
    // An administrator knows that the disk was replaced, or has failed. It may also be there in a moment.
    match &view.source {
        Says::Nothing if view.is_promoted => return Some(Step::GiveUpSource),
        Says::Unusable(_, time) if view.is_promoted && *time >= PATIENCE => return Some(Step::GiveUpSource),
        Says::Unusable(why, _) if view.is_promoted => {
            return Some(Step::Wait(PRESSING, format!("node {}: {why}", view.spec.source_node)));
        }
        _ => {}
    }
    let Says::Silent(silent) = view.source else { return None };
    is_promotion(view).then(|| match view.source_node != NodeState::Ready && silent >= PATIENCE {
        true => Step::GiveUpSource,
        false => Step::Wait(PRESSING, format!("node {} does not answer", view.spec.source_node)),
    })
}

/// Returns what has to come before pods are sent to the node of the copy. If that has an earlier generation of the volume, as after
/// a promotion whose lost node is back, it would give them that one.
pub(super) fn has_earlier(view: &View) -> Option<Step> {
    let node = &view.spec.target_node;
    let (time, why) = match &view.target {
        Says::Nothing | Says::Deleted => return None,
        Says::Has(generation) if *generation < view.spec.generation => return Some(Step::RetireEarlier),
        Says::Has(generation) => (
            LONG,
            format!("node {node} has generation {generation} of the volume, no earlier one; look there"),
        ),
        Says::Unusable(why, _) => (LONG, format!("node {node}: {why}")),
        Says::Error(why) => (CALM, format!("node {node}: {why}")),
        Says::Silent(_) | Says::NotAsked => {
            (CALM, format!("node {node} does not say what it has of the volume"))
        }
    };
    Some(Step::Wait(time, why))
}
