//! What comes next for a claim, of what is seen of it. No I/O: every step looks again before it acts, and each can be the
//! last one of a process.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;

use super::refuse::{candidates, laggard, of_target, pods, refusal};
use super::status::{
    ANY, HAS_GROWN, MOVE_BARE_PODS, MOVE_NOW, NOT_ASKED_FOR, POLICY_WAS, PROMOTE, Phase, Status,
};
use super::view::{View, controller, is_leaving, never_ran};

/// A round that sent less is as good as the last one.
pub(super) const SMALL: u64 = 16 << 20;
/// How long a copy may be behind while the pods run, in seconds.
const BEHIND: i64 = 60;
/// Between two looks while pods run, and while none can.
const CALM: Duration = Duration::from_secs(1);
pub(super) const PRESSING: Duration = Duration::from_millis(250);
/// Between two looks at whether a node is lost, or is back.
const LOST: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// There is nothing to do for this claim.
    Nothing,
    /// Looks again later, and says what for.
    Wait(Duration, String),
    /// Writes that it is not done, and why.
    Refuse(String),
    /// Takes away what was written of a move that nobody wants any more.
    Forget,
    /// Begins, with one of these nodes as the target.
    Begin(Vec<String>),
    /// Makes the first copy.
    Copy,
    /// Brings the copy up to date.
    Round,
    /// Writes down the next phase.
    Enter(Phase, String),
    /// Sees to it that nothing deletes the volume when the claim goes, and writes down what the reclaim policy was.
    Retain,
    DeleteClaim,
    /// Asks these pods to leave.
    Evict(Vec<String>),
    /// No pod can use the source any more: the last round, and the copy becomes a volume.
    Complete,
    /// Makes the PersistentVolume of the copy, which holds the record of the claim.
    MakeVolume,
    /// Deletes the copy, and puts everything back.
    Undo,
    /// The same after the claim was deleted: it is made again for the volume that it had.
    Return,
    /// Lets a claim go that nothing is known of.
    Unmark,
}

/// What comes next.
pub(super) fn decide(view: &View) -> Step {
    let Some(status) = view.status() else {
        // Somebody took away what was written: nobody knows of a copy any more.
        return if view.is_held() { Step::Unmark } else { begin(view, None) };
    };
    match status.phase {
        Phase::Refused | Phase::Done => begin(view, Some(&status)),
        Phase::Copying | Phase::CatchingUp | Phase::Ready | Phase::Standby => match given_up(view, &status) {
            Some(why) => Step::Enter(Phase::Cancelling, why),
            None => copying(view, &status),
        },
        Phase::Switching => switching(view, &status),
        Phase::Rebinding => Step::MakeVolume,
        Phase::Cancelling => Step::Undo,
        Phase::Returning => Step::Return,
    }
}

fn begin(view: &View, before: Option<&Status>) -> Step {
    let arrived = before.is_some_and(|status| status.phase == Phase::Done);
    let target = match (view.wanted(), view.wanted_elsewhere()) {
        (_, Some(target)) => target,
        // What was asked for wrongly is told as long as it is asked for.
        (Some(here), None) if !arrived => here,
        _ => match &view.standby {
            Ok(Some(_)) => ANY,
            Err(why) => return Step::Refuse(why.clone()),
            Ok(None) => {
                return match before {
                    Some(status) if status.phase == Phase::Refused => Step::Forget,
                    Some(_) | None => Step::Nothing,
                };
            }
        },
    };
    if let Some(why) = refusal(view) {
        return Step::Refuse(why);
    }
    if target == ANY {
        return candidates(view).map_or_else(Step::Refuse, Step::Begin);
    }
    of_target(view, target).map_or_else(|| Step::Begin(vec![target.to_owned()]), Step::Refuse)
}

/// Why the copy is of no use any more, before the claim was deleted.
fn given_up(view: &View, status: &Status) -> Option<String> {
    if view.is_being_deleted() {
        return Some("the claim is being deleted".to_owned());
    }
    if !view.wants_copy(&status.target) {
        return Some(match (view.wanted_elsewhere(), &view.standby) {
            (None, Err(why)) => why.clone(),
            _ => NOT_ASKED_FOR.to_owned(),
        });
    }
    // A copy that stands by grows with its source.
    if status.phase == Phase::Standby { None } else { grown(view, status) }
}

/// A copy has the size that its source had.
fn grown(view: &View, status: &Status) -> Option<String> {
    (view.bytes() > status.bytes).then(|| HAS_GROWN.to_owned())
}

fn copying(view: &View, status: &Status) -> Step {
    let stands_by = view.wanted_elsewhere().is_none();
    match status.phase {
        // Its node cannot be asked to delete what it has of it.
        _ if view.target_lost && stands_by => {
            return candidates(view).map_or_else(|why| Step::Wait(LOST, why), Step::Begin);
        }
        Phase::Copying => return Step::Copy,
        Phase::CatchingUp => return Step::Round,
        Phase::Standby if stands_by => return standing_by(view, status),
        Phase::Standby => {
            return Step::Enter(Phase::CatchingUp, "the volume moves to its standby copy".to_owned());
        }
        _ if stands_by => return Step::Enter(Phase::Standby, "the copy stands by".to_owned()),
        _ => {}
    }
    let stale = status.age().is_none_or(|age| age >= BEHIND);
    let wait = |why: String| if stale { Step::Round } else { Step::Wait(CALM, why) };
    let now = view.says(MOVE_NOW);
    if !now && view.users().any(|pod| !is_leaving(pod)) {
        return wait(waits_for_pods(view));
    }
    if view.is_changing() {
        return wait("the volume is being expanded or modified".to_owned());
    }
    if let Some(why) = laggard(view, &status.target).or_else(|| pods(view)) {
        return wait(why);
    }
    if now && stale {
        return Step::Round;
    }
    if !is_retained(view, status) {
        return Step::Retain;
    }
    Step::Enter(Phase::Switching, "the claim is made again as soon as its pods have left".to_owned())
}

/// A copy that stands by takes the volume's place when its node is lost, and otherwise follows it.
fn standing_by(view: &View, status: &Status) -> Step {
    let age = status.age();
    if view.source_lost || view.says(PROMOTE) {
        // One that runs on still writes, whatever anybody says of its node.
        let here = view.users().filter(|pod| !is_leaving(pod) && !never_ran(pod));
        let here: Vec<String> = here.map(|pod| pod.name_any()).collect();
        if !here.is_empty() {
            return Step::Wait(
                CALM,
                format!("to be promoted as soon as its pods have left: {}", here.join(", ")),
            );
        }
        if !is_retained(view, status) {
            return Step::Retain;
        }
        let of = status.last_cut.as_deref().unwrap_or("an unknown time");
        return Step::Enter(Phase::Switching, format!("the standby copy of {of} takes the volume's place"));
    }
    let interval = view.wants_standby().map_or(0, |standby| standby.interval.as_secs());
    let interval = i64::try_from(interval).unwrap_or(i64::MAX);
    match age.map(|age| interval.saturating_sub(age)) {
        Some(left) if left > 0 => {
            let left = Duration::from_secs(u64::try_from(left).unwrap_or(1)).min(LOST);
            Step::Wait(left, status.message.clone())
        }
        Some(_) | None => Step::Round,
    }
}

fn waits_for_pods(view: &View) -> String {
    let names: Vec<String> = view.users().map(|pod| pod.name_any()).collect();
    format!(
        "the copy is nearly up to date; waiting until {} left: drain the node, or set {MOVE_NOW} to \"true\"",
        match names.as_slice() {
            [one] => format!("pod {one} has"),
            some => format!("pods {} have", some.join(", ")),
        }
    )
}

fn switching(view: &View, status: &Status) -> Step {
    // What is promoted grows at the end; the node of its source may never answer.
    if let Some(why) = grown(view, status).filter(|_| !status.standby) {
        return Step::Enter(Phase::Returning, why);
    }
    // A completed copy may have been written to, for all that the source knows.
    let asked_for = match status.standby {
        true => status.stale || view.source_lost || view.says(PROMOTE),
        false => view.wanted_elsewhere().is_some_and(|wanted| wanted == status.target || wanted == ANY),
    };
    if !asked_for {
        return Step::Enter(Phase::Returning, NOT_ASKED_FOR.to_owned());
    }
    if !is_retained(view, status) {
        return Step::Retain;
    }
    if !view.is_being_deleted() {
        return Step::DeleteClaim;
    }
    if !view.is_protected() {
        return Step::Complete;
    }
    let names = sent_away(view, view.says(MOVE_NOW));
    if !names.is_empty() {
        return Step::Evict(names);
    }
    let holding: Vec<String> = view.users().map(|pod| pod.name_any()).collect();
    Step::Wait(
        PRESSING,
        match holding.is_empty() {
            true => "no pod uses the claim any more; Kubernetes has not noticed it yet".to_owned(),
            false => format!("waiting until the pods have stopped: {}", holding.join(", ")),
        },
    )
}

/// Pods that hold a claim which is being deleted and are to be evicted: all of them `now`, or else those that came to the node
/// before it was deleted. These cannot start, and would hold it for ever.
pub(super) fn sent_away(view: &View, now: bool) -> Vec<String> {
    let bare = view.says(MOVE_BARE_PODS);
    let sent_away = view.users().filter(|pod| !is_leaving(pod));
    let sent_away =
        sent_away.filter(|pod| controller(pod).is_some() || bare).filter(|pod| now || never_ran(pod));
    sent_away.map(|pod| pod.name_any()).collect()
}

/// Whether nothing deletes the volume when the claim goes, by the word of this very move: what another one has written,
/// a process may be about to take back.
pub(super) fn is_retained(view: &View, status: &Status) -> bool {
    let Some(volume) = &view.volume else { return false };
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let by = policy_was(volume).map(|(name, _)| name);
    policy == Some("Retain") && by == Some(status.name.as_str())
}

/// The move that has changed the reclaim policy of a PersistentVolume, and what it was.
pub(super) fn policy_was(volume: &PersistentVolume) -> Option<(&str, &str)> {
    volume.annotations().get(POLICY_WAS)?.split_once('/')
}

/// Whether another round would bring nothing: this one sent little, was quick, or sent no less than the one before.
pub(super) fn is_near(before: &Status, sent: u64, took: Duration) -> bool {
    sent < SMALL || took < Duration::from_secs(3) || (before.rounds > 0 && sent >= before.last_sent_bytes)
}
