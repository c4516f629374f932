//! What comes next for a VolumeReplica, of what is known. No I/O. Every step looks again before it acts, and each can be the
//! last one of a process.
//!
//! The rules, by the numbers that the tests name:
//!
//! 1. Nothing that the owner of a claim can write decides what is deleted, bound or fenced: a [`View`] has none of it.
//! 2. A copy is deleted only if the node of the volume has just answered that it has this generation, or that the volume was
//!    deleted; or if an administrator deletes the VolumeReplica.
//! 3. A claim is never deleted.
//! 4. Only the silence of the volume's own node leads to a promotion without a last pass, and not while Kubernetes says that
//!    the node is ready. If the node answers that it has nothing, an administrator has to say so.
//! 5. Every call to a node names the volume and its generation (`nodes.rs`).
//! 6. What is unknown changes nothing.
//! 7. There is a way forward or back from every phase that does not wait for a node which never comes back.
//! 8. What can be refused is asked for as a dry run before the volume is fenced.
//! 9. Claims that a pod uses together go together.
//! 10. A last pass waits for no first copy.

mod adoption;
mod ending;
mod promotion;
mod recovery;

use std::time::Duration;

pub use self::ending::ONLY_COPY;
use self::ending::{abandoning, completing, left, retiring, stranded};
use self::promotion::{
    cannot_go, delays_promotion, goes_back_with_others, goes_on, has_earlier, is_promoted_alone,
    is_sent_away, running, stays_put, without_source,
};
pub use self::promotion::{is_lost, is_lost_node, is_well};
pub use self::recovery::is_lost_status;
use super::queue::comes_after;
use super::resources::{Purpose, ReplicaPhase, When};
use super::view::{NodeState, Says, User, View, Wanted};

/// Between two looks while pods run.
pub(super) const CALM: Duration = Duration::from_secs(1);
/// Between two looks while no pod can run.
pub const PRESSING: Duration = Duration::from_millis(250);
/// Between two looks at what only an administrator or a node that comes back can change.
pub const LONG: Duration = Duration::from_secs(15);
/// A copy that is ready is brought up to date when it is this old.
pub(super) const BEHIND: Duration = Duration::from_secs(60);
/// A copy is made elsewhere if its Node object does not exist, and its last pass is so long ago.
pub const GONE: Duration = Duration::from_secs(5 * 60);
/// The node of a volume is given up after it has been silent for so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What comes next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Look again after this time; the text says what for.
    Wait(Duration, String),
    /// Write the next phase into the status.
    Enter(ReplicaPhase, String),
    /// Make the first copy.
    Create,
    /// Nothing is copied: take the id away from what the node of the volume has, as after a promotion. The text says why.
    RetireSource(String),
    /// The status was lost: go on in this phase, with what the PersistentVolume says.
    Recover(ReplicaPhase),
    /// Bring the copy up to date.
    Pass,
    /// Ask for everything that can be refused as a dry run, and enter `CuttingOver` if nothing is.
    Check,
    /// Have what the node of the copy has of an earlier generation of the volume retired.
    RetireEarlier,
    /// Keep other pods away from the volume, and write since when.
    Fence,
    /// Ask these pods to leave.
    Evict(Vec<String>),
    /// Make the copy identical to the volume, which no pod uses.
    LastPass,
    /// The volume's node is lost: write that the copy takes its place as it is.
    GiveUpSource,
    /// Make the copy the volume.
    Complete,
    /// Set the node of the copy in the PersistentVolume.
    Exchange,
    /// Set the node of the volume in the PersistentVolume again.
    ExchangeBack,
    /// Take the id away from what the earlier node has.
    Retire,
    /// Delete what the earlier node has left.
    DeleteLeft,
    /// Let pods use the volume again.
    Unfence,
    /// Take the volume back from the node of the copy, which is lost.
    Reclaim,
    /// Take the id away from what the node of the copy has.
    RetireCopy,
    /// Delete what the node of the copy has left.
    DeleteLeftCopy,
    /// Delete the copy.
    DeleteCopy,
    /// The copy is gone: have the node of the volume remove what it keeps for it.
    Release,
    /// Nothing is left to do: remove the VolumeReplica.
    Finish,
    /// A later release knows what to do: look again later, and write nothing.
    Leave,
}

impl Step {
    /// Reports whether the step is done again and again, and neither gives up, promotes nor deletes anything.
    pub fn is_harmless(&self) -> bool {
        matches!(
            self,
            Step::Wait(..)
                | Step::Create
                | Step::Pass
                | Step::Fence
                | Step::Evict(_)
                | Step::LastPass
                | Step::Complete
                | Step::Exchange
                | Step::ExchangeBack
                | Step::Unfence
                | Step::Leave
        )
    }
}

/// Returns what comes next.
pub fn decide(view: &View) -> Step {
    if view.spec.purpose == Purpose::Unknown {
        return Step::Leave;
    }
    if view.spec.purpose == Purpose::Adoption {
        return adoption::adopt(view);
    }
    if is_of_an_earlier_generation(view) {
        return recovery::retire_earlier(view);
    }
    if is_lost_status(view.status.phase, view.status.begun) {
        return recovery::recover(view);
    }
    match view.status.phase {
        ReplicaPhase::Pending
        | ReplicaPhase::Copying
        | ReplicaPhase::Following
        | ReplicaPhase::Ready
        | ReplicaPhase::Standby => before(view),
        ReplicaPhase::CuttingOver => cutting_over(view),
        ReplicaPhase::Exchanging => exchanging(view),
        ReplicaPhase::LastPass => last_pass(view),
        ReplicaPhase::Completing => completing(view),
        ReplicaPhase::Retiring => retiring(view),
        ReplicaPhase::Left => left(view),
        ReplicaPhase::Abandoning => abandoning(view),
        ReplicaPhase::Stranded => stranded(view),
        ReplicaPhase::Unknown => Step::Leave,
    }
}

/// Returns why the copy is not needed; `None` while it is, or while that is not known.
fn unwanted(view: &View) -> Option<String> {
    if view.is_deleted {
        return Some("the VolumeReplica is being deleted".to_owned());
    }
    if view.claim_is_deleted == Some(true) {
        return Some("the claim is being deleted".to_owned());
    }
    match &view.wanted {
        // A pod can run only where all its volumes are.
        Wanted::Nothing(_) if view.is_bound => None,
        // An administrator wants what may be the only copy.
        Wanted::Nothing(_) if is_promoted_alone(view) => None,
        Wanted::Nothing(why) => Some(why.clone()),
        Wanted::Move { .. } | Wanted::Standby { .. } | Wanted::Unknown(_) => None,
    }
}

/// Returns what is not known (rule 6). An administrator who promotes a copy of a lost volume wants it, whatever its class says.
fn unknown(view: &View) -> Option<String> {
    let is_ordered = view.spec.purpose == Purpose::Standby && is_promoted_alone(view);
    match &view.wanted {
        Wanted::Unknown(why) if !is_ordered => Some(why.clone()),
        _ if view.claim_is_deleted.is_none() => Some("the claim cannot be read".to_owned()),
        _ => None,
    }
}

/// As long as pods may use the volume.
fn before(view: &View) -> Step {
    // The status was lost after the exchange.
    if view.status.exchanged {
        return Step::ExchangeBack;
    }
    // A cutover has gone back.
    if view.status.maybe_fenced && has(&view.source, view.spec.generation) {
        return Step::Unfence;
    }
    if let Some(why) = unwanted(view) {
        return end_before(view, why);
    }
    if let Some(why) = unknown(view) {
        return Step::Wait(LONG, why);
    }
    let has_data =
        matches!(view.status.phase, ReplicaPhase::Following | ReplicaPhase::Ready | ReplicaPhase::Standby);
    let is_promoted = view.is_promoted || is_lost(view) && view.spec.purpose == Purpose::Standby;
    let delay = if has_data && is_promoted { Some(delays_promotion(view)) } else { None };
    match &delay {
        Some(None) => return Step::Check,
        Some(Some(why)) if !is_well(view) => return Step::Wait(CALM, why.clone()),
        // The node that has the volume is back, and the copy would grow old.
        Some(Some(_)) | None => {}
    }
    if view.target_is_gone() && view.age.is_none_or(|age| age >= GONE) {
        let why = format!("node {}, which has the copy, does not exist any more", view.spec.target_node);
        return end_before(view, why);
    }
    match (view.status.phase, &view.wanted) {
        (ReplicaPhase::Pending, _) if view.failed.is_some_and(|failed| failed < LONG) => {
            Step::Wait(LONG - view.failed.unwrap_or_default(), view.status.message.clone())
        }
        (ReplicaPhase::Pending, _) if view.queue > 0 => Step::Wait(CALM, comes_after(view.queue)),
        (ReplicaPhase::Pending, _) => {
            Step::Enter(ReplicaPhase::Copying, "the first copy is being made".to_owned())
        }
        (ReplicaPhase::Copying, _) => Step::Create,
        (ReplicaPhase::Following, _) => Step::Pass,
        (ReplicaPhase::Ready, Wanted::Standby { .. }) => {
            Step::Enter(ReplicaPhase::Standby, "the copy stands by".to_owned())
        }
        (ReplicaPhase::Standby, Wanted::Standby { .. })
            if view.source_node == NodeState::Ready && !view.is_promoted && view.apart.is_some() =>
        {
            Step::Enter(ReplicaPhase::Abandoning, view.apart.clone().unwrap_or_default())
        }
        (ReplicaPhase::Standby, Wanted::Standby { interval }) => {
            standing_by(view, *interval, delay.flatten().unwrap_or_else(|| "the copy stands by".to_owned()))
        }
        (ReplicaPhase::Standby, _) => {
            Step::Enter(ReplicaPhase::Following, "the volume moves to its standby copy".to_owned())
        }
        _ => ready(view),
    }
}

/// Ends a copy while pods may use the volume. It is made only in a later phase than `Pending`, unless the first one failed.
fn end_before(view: &View, why: String) -> Step {
    let status = &view.status;
    match status.phase {
        ReplicaPhase::Pending if view.failed.is_none() && !status.maybe_copied && !status.maybe_fenced => {
            Step::Finish
        }
        _ => Step::Enter(ReplicaPhase::Abandoning, why),
    }
}

/// The copy is nearly up to date, and the volume moves as soon as its pods let it.
fn ready(view: &View) -> Step {
    let is_behind = view.age.is_none_or(|age| age >= BEHIND);
    let wait = |why: String| if is_behind { Step::Pass } else { Step::Wait(CALM, why) };
    if let Some(why) = &view.hindered {
        return wait(why.clone());
    }
    let staying: Vec<&User> = view.users.iter().filter(|user| !user.is_leaving).collect();
    let (when, evict_bare_pods) = match &view.wanted {
        Wanted::Move { when, evict_bare_pods } => (*when, *evict_bare_pods),
        _ if view.is_bound => (When::PodsLeave, false),
        _ => return wait("nothing asks for a move".to_owned()),
    };
    match when {
        When::Now if view.has_ended_evictions() && !staying.is_empty() => {
            return wait(format!(
                "a pod could not be evicted after another one had left; waiting until {} left: delete them, or drain the node",
                have(&staying)
            ));
        }
        When::PodsLeave if !staying.is_empty() => {
            return wait(format!("waiting until {} left; drain the node, or use when: Now", have(&staying)));
        }
        When::Now if !evict_bare_pods => {
            if let Some(bare) = staying.iter().find(|user| !user.has_controller) {
                return wait(format!(
                    "pod {} has no controller that creates it again; delete it, or set evictBarePods",
                    bare.name
                ));
            }
        }
        When::PodsLeave | When::Now | When::Unknown => {}
    }
    if is_behind { Step::Pass } else { Step::Check }
}

/// Reports whether the controller has created the VolumeReplica for what a node has of an earlier generation (`retire_earlier`).
fn is_of_an_earlier_generation(view: &View) -> bool {
    view.spec.is_of_an_earlier_generation() && view.status.phase == ReplicaPhase::Pending
}

/// A copy that stands by follows the volume.
fn standing_by(view: &View, interval: Duration, why: String) -> Step {
    match view.age {
        Some(age) if age < interval => Step::Wait((interval - age).min(LONG), why),
        Some(_) | None => Step::Pass,
    }
}

/// The pods leave the volume.
fn cutting_over(view: &View) -> Step {
    // Nothing but the fence has to be undone, and the copy is good.
    if unwanted(view).is_none()
        && unknown(view).is_none()
        && let Some(why) = stays_put(view)
    {
        return Step::Enter(ReplicaPhase::Standby, why);
    }
    if let Some(step) = given_up(view) {
        return step;
    }
    if let Some(step) = goes_on(view) {
        return step;
    }
    if let Some(step) = has_earlier(view) {
        return step;
    }
    let exchange = || {
        let what = match view.spec.is_on_one_node() {
            true => "no pod uses the volume",
            false => "the PersistentVolume gets its new node",
        };
        Step::Enter(ReplicaPhase::Exchanging, what.to_owned())
    };
    if view.status.stale {
        return exchange();
    }
    if let Some(step) = without_source(view) {
        return step;
    }
    // A node with another generation refuses the fence by the same code as one whose pod has the volume.
    if !has(&view.source, view.spec.generation) {
        let (node, id) = (&view.spec.source_node, &view.spec.volume_id);
        return Step::Wait(
            PRESSING,
            format!(
                "node {node} does not say that it has generation {} of volume {id}",
                view.spec.generation
            ),
        );
    }
    if view.status.fenced.is_none() {
        return Step::Fence;
    }
    // A controller creates a pod again at once, and again, until the PersistentVolume names the other node. It cannot start here,
    // and is evicted afterwards (strays.rs).
    let holds_volume = |user: &&User| !(user.is_late && user.never_ran);
    let users: Vec<&User> = view.users.iter().filter(holds_volume).collect();
    let sent_away = users.iter().filter(|user| is_sent_away(view, user));
    let sent_away: Vec<String> = sent_away.map(|user| user.name.clone()).collect();
    match (sent_away.is_empty(), users.is_empty()) {
        (false, _) => Step::Evict(sent_away),
        (true, true) => goes_back_with_others(view).unwrap_or_else(exchange),
        (true, false) => Step::Wait(PRESSING, format!("waiting until {} left", have(&users))),
    }
}

/// Returns the step if the copy is not needed, or if that is not known.
fn given_up(view: &View) -> Option<Step> {
    let give_up = |why: String| Step::Enter(ReplicaPhase::Abandoning, why);
    unwanted(view)
        .map(give_up)
        .or_else(|| unknown(view).map(|why| Step::Wait(CALM, why)))
        .or_else(|| stays_put(view).or_else(|| cannot_go(view)).map(give_up))
}

/// The PersistentVolume gets the node of the copy. What is unknown does not stop that: it may not exist at this moment.
fn exchanging(view: &View) -> Step {
    match unwanted(view) {
        Some(why) => Step::Enter(ReplicaPhase::Abandoning, why),
        None => Step::Exchange,
    }
}

/// No pod uses the volume, and new pods go to the node of the copy.
fn last_pass(view: &View) -> Step {
    if let Some(step) = given_up(view) {
        return step;
    }
    if view.status.exact || view.status.stale {
        let why = "the copy takes over the id of the volume".to_owned();
        return Step::Enter(ReplicaPhase::Completing, why);
    }
    if let Some(step) = without_source(view) {
        return step;
    }
    Step::LastPass
}

fn has(says: &Says, generation: u64) -> bool {
    *says == Says::Has(generation)
}

/// Returns the names of pods with their verb.
fn have(users: &[&User]) -> String {
    let names: Vec<&str> = users.iter().map(|user| user.name.as_str()).collect();
    match names.as_slice() {
        [one] => format!("pod {one} has"),
        some => format!("pods {} have", some.join(", ")),
    }
}

#[cfg(test)]
mod tests;
