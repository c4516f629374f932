mod adoption;
mod companions;
mod paths;
mod promotion;
mod recovery;
mod refusals;

use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::cluster::moves::resources::{ClaimId, ObjectId, VolumeReplicaSpec, VolumeReplicaStatus};

const GENERATION: u64 = 3;

fn view() -> View {
    let object = || ObjectId { name: "n".to_owned(), uid: "u".to_owned() };
    View {
        spec: VolumeReplicaSpec {
            driver: "hostloop.csi.dev".to_owned(),
            volume_id: "vol-1".to_owned(),
            generation: GENERATION,
            persistent_volume: object(),
            claim: ClaimId { namespace: "default".to_owned(), name: "data".to_owned(), uid: "c".to_owned() },
            source_node: "a".to_owned(),
            target_node: "b".to_owned(),
            source_pool: None,
            target_pool: None,
            target_class: None,
            copy_name: "copy".to_owned(),
            copy_id: "vol-2".to_owned(),
            purpose: Purpose::Move,
            keep_source: false,
            requested_by: Some(object()),
        },
        status: VolumeReplicaStatus { begun: true, ..VolumeReplicaStatus::default() },
        is_deleted: false,
        is_promoted: false,
        wanted: moving(When::PodsLeave, false),
        claim_is_deleted: Some(false),
        hindered: None,
        is_awaited: false,
        is_bound: false,
        apart: None,
        users: Vec::new(),
        source_node: NodeState::Ready,
        source: Says::Has(GENERATION),
        target: Says::Nothing,
        copy: Says::Has(0),
        target_node: NodeState::Ready,
        lost_for: Duration::ZERO,
        left: Says::NotAsked,
        has_another_copy: false,
        failed: None,
        age: Some(Duration::ZERO),
        queue: 0,
    }
}

fn moving(when: When, evict_bare_pods: bool) -> Wanted {
    Wanted::Move { when, evict_bare_pods }
}

fn in_phase(phase: ReplicaPhase) -> View {
    let mut view = view();
    view.status.phase = phase;
    view
}

fn fence(view: &mut View) {
    view.status.maybe_fenced = true;
    view.status.fenced = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
}

fn pod(is_leaving: bool, never_ran: bool, has_controller: bool) -> User {
    User { name: "p".to_owned(), is_leaving, never_ran, is_late: false, has_controller }
}

fn unusable(seconds: u64) -> Says {
    Says::Unusable("no disk".to_owned(), Duration::from_secs(seconds))
}

fn answers() -> Vec<Says> {
    let silent = |seconds| Says::Silent(Duration::from_secs(seconds));
    let has = [GENERATION - 1, GENERATION, GENERATION + 1].map(Says::Has);
    let others = [
        Says::Deleted,
        Says::Nothing,
        Says::Error("broken".to_owned()),
        unusable(29),
        unusable(30),
        silent(29),
        silent(30),
        Says::NotAsked,
    ];
    has.into_iter().chain(others).collect()
}

fn wishes() -> Vec<Wanted> {
    let mut all = vec![
        Wanted::Standby { interval: Duration::from_secs(60) },
        Wanted::Nothing("it is not asked for".to_owned()),
        Wanted::Unknown("the StorageClass is missing".to_owned()),
    ];
    for when in [When::PodsLeave, When::Now] {
        all.extend([moving(when, false), moving(when, true)]);
    }
    all
}

/// Chooses without a pattern, the same for each run.
struct Choices(u64);

impl Choices {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    fn is(&mut self) -> bool {
        self.below(2) == 0
    }

    fn pods(&mut self) -> Vec<User> {
        let any = |choices: &mut Choices| User {
            is_late: choices.is(),
            ..pod(choices.is(), choices.is(), choices.is())
        };
        (0..self.below(3)).map(|_| any(self)).collect()
    }

    /// A view with anything that can be known at once.
    fn view(&mut self) -> View {
        let mut view = in_phase(self.one(&ReplicaPhase::ALL));
        let nodes = [NodeState::Ready, NodeState::NotReady, NodeState::OutOfService, NodeState::Gone];
        view.wanted = self.one(&wishes());
        (view.source, view.target) = (self.one(&answers()), self.one(&answers()));
        if self.is() {
            view.source = Says::Has(GENERATION);
        }
        view.copy = self.one(&answers());
        view.left = self.one(&answers());
        (view.source_node, view.users) = (self.one(&nodes), self.pods());
        (view.is_deleted, view.is_promoted) = (self.below(4) == 0, self.below(4) == 0);
        view.claim_is_deleted = self.one(&[Some(false), Some(false), Some(true), None]);
        view.hindered = self.is().then(|| "a claim of the same pods".to_owned());
        view.is_awaited = self.below(8) == 0;
        view.is_bound = self.below(8) == 0;
        view.status.evictions_ended = if self.below(8) == 0 { "u".to_owned() } else { String::new() };
        view.age = self.one(&[
            None,
            Some(Duration::ZERO),
            Some(Duration::from_secs(59)),
            Some(Duration::from_secs(60)),
        ]);
        view.queue = self.below(2);
        view.status.begun = self.below(4) != 0;
        view.lost_for = self.one(&[Duration::ZERO, PATIENCE]);
        view.has_another_copy = self.below(4) == 0;
        if self.below(2) == 0 {
            view.target_node = self.one(&nodes);
        }
        (view.status.exact, view.status.stale) = (self.is(), self.is());
        (view.status.exchanged, view.status.maybe_completed) = (self.is(), self.is());
        view.status.reclaimed = view.status.maybe_completed && self.is();
        view.status.lost = self.below(4) == 0;
        view.status.left_id = self.is().then(|| "vol-3".to_owned());
        view.spec.keep_source = self.is();
        view.spec.purpose = self.one(&[Purpose::Move, Purpose::Standby]);
        if self.is() {
            fence(&mut view);
        }
        view.status.maybe_fenced |= self.is();
        view
    }
}

/// Many views, each with what is decided.
static DECIDED: LazyLock<Vec<(View, Step)>> = LazyLock::new(|| {
    let mut choices = Choices(37);
    let decided = |view: View| {
        let step = decide(&view);
        (view, step)
    };
    (0..300_000).map(|_| decided(choices.view())).collect()
});

/// Checks a rule. `applies` says whether the rule has anything to say of a step: a rule that is never asked shows nothing.
fn check(rule: &str, applies: impl Fn(&View, &Step) -> bool, holds: impl Fn(&View, &Step) -> bool) {
    let asked: Vec<_> = DECIDED.iter().filter(|(view, step)| applies(view, step)).collect();
    assert!(asked.len() > 10, "{rule}: {} views", asked.len());
    if let Some((view, step)) = asked.into_iter().find(|(view, step)| !holds(view, step)) {
        panic!("{rule}: {step:?} of {view:#?}");
    }
}

/// Whether nothing says how far the copy is (`tests/recovery.rs`).
fn is_without_status(view: &View) -> bool {
    view.status.phase == ReplicaPhase::Pending && !view.status.begun
}

/// Whether the copy, or the volume at its earlier node, can still be given up: the copy has not taken over the id.
fn is_before_the_end(view: &View) -> bool {
    view.status.phase <= ReplicaPhase::LastPass
}

#[test]
fn rule_2_a_copy_goes_by_the_word_of_its_source() {
    check(
        "a copy",
        |_, step| *step == Step::DeleteCopy,
        |view, _| {
            let generation = if view.status.reclaimed { GENERATION + 2 } else { GENERATION };
            let source_has = view.source == Says::Has(generation) || view.source == Says::Deleted;
            view.status.phase == ReplicaPhase::Abandoning && (view.is_deleted || source_has)
        },
    );
    check(
        "what the node of the copy has left",
        |_, step| *step == Step::DeleteLeftCopy,
        |view, _| view.is_deleted && view.status.reclaimed,
    );
    check(
        "what is left",
        |_, step| *step == Step::DeleteLeft,
        |view, _| {
            let target_says =
                matches!(view.target, Says::Has(says) if says > GENERATION) || view.target == Says::Deleted;
            match view.status.phase {
                ReplicaPhase::Retiring => {
                    view.is_deleted || target_says && !view.spec.keep_source && !view.status.stale
                }
                phase => phase == ReplicaPhase::Left && view.is_deleted,
            }
        },
    );
}

#[test]
fn rule_4_only_lasting_silence_of_the_source_counts() {
    check(
        "the source is given up",
        |_, step| *step == Step::GiveUpSource,
        |view, _| {
            let is_lost =
                view.status.lost || matches!(view.source_node, NodeState::OutOfService | NodeState::Gone);
            let is_promotion = view.is_promoted || view.spec.purpose == Purpose::Standby && is_lost;
            let silent = matches!(view.source, Says::Silent(time) if time >= Duration::from_secs(30));
            let failed = matches!(view.source, Says::Unusable(_, time) if time >= Duration::from_secs(30));
            let replaced = (view.source == Says::Nothing || failed) && view.is_promoted;
            silent && is_promotion && view.source_node != NodeState::Ready || replaced
        },
    );
    check(
        "the end of a cutover",
        |_, step| matches!(step, Step::Enter(ReplicaPhase::Completing, _)),
        |view, _| view.status.exact || view.status.stale,
    );
}

#[test]
fn rule_6_what_is_unknown_changes_nothing() {
    // An administrator has promoted the copy, and the volume is lost.
    let is_ordered = |view: &View| view.spec.purpose == Purpose::Standby && is_promoted_alone(view);
    let is_unknown = |view: &View| {
        matches!(view.wanted, Wanted::Unknown(_)) && !is_ordered(view) || view.claim_is_deleted.is_none()
    };
    let is_told = |view: &View| {
        let is_cancelled = matches!(view.wanted, Wanted::Nothing(_)) && !view.is_bound;
        view.is_deleted || view.claim_is_deleted == Some(true) || is_cancelled
    };
    check(
        "unknown",
        |view, _| {
            // An exchange may have deleted the PersistentVolume.
            let is_exchanging = view.status.phase == ReplicaPhase::Exchanging;
            let is_left_out = is_exchanging || is_without_status(view);
            is_before_the_end(view) && !is_left_out && is_unknown(view) && !is_told(view)
        },
        |view, step| match step {
            Step::Wait(_, why) => !why.is_empty(),
            // A cutover has gone back, and pods wait.
            step => {
                matches!(step, Step::Unfence | Step::ExchangeBack)
                    && view.status.phase < ReplicaPhase::CuttingOver
            }
        },
    );
}

#[test]
fn rule_8_a_cutover_begins_with_a_check() {
    check(
        "before a cutover",
        |view, _| view.status.phase < ReplicaPhase::CuttingOver && !is_without_status(view),
        |view, step| match step {
            Step::Enter(phase, _) => *phase < ReplicaPhase::CuttingOver || *phase == ReplicaPhase::Abandoning,
            Step::Finish => view.status.phase == ReplicaPhase::Pending,
            Step::Unfence => view.status.maybe_fenced,
            Step::ExchangeBack => view.status.exchanged,
            step => matches!(step, Step::Wait(..) | Step::Create | Step::Pass | Step::Check),
        },
    );
}

#[test]
fn a_volume_leaves_its_node_when_no_pod_is_left() {
    check(
        "the exchange",
        |view, step| matches!(step, Step::Enter(ReplicaPhase::Exchanging, _)) && !view.status.stale,
        |view, _| {
            let cannot_start = |user: &User| user.is_late && user.never_ran;
            view.users.iter().all(cannot_start) && view.status.fenced.is_some()
        },
    );
    check(
        "the exchange, also without the source",
        |_, step| matches!(step, Step::Enter(ReplicaPhase::Exchanging, _)),
        |view, _| matches!(view.target, Says::Nothing | Says::Deleted),
    );
    check(
        "the last pass",
        |_, step| *step == Step::LastPass,
        |view, _| view.status.phase == ReplicaPhase::LastPass,
    );
}

/// The controller of a StatefulSet creates its pod again as soon as it is gone.
#[test]
fn pods_that_come_too_late_delay_nothing() {
    let mut view = in_phase(ReplicaPhase::CuttingOver);
    view.wanted = moving(When::Now, false);
    fence(&mut view);
    for is_leaving in [false, true] {
        view.users = vec![User { is_late: true, ..pod(is_leaving, true, true) }];
        assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Exchanging, _)));
    }
    view.users = vec![User { is_late: true, ..pod(false, false, true) }];
    assert_eq!(decide(&view), Step::Evict(vec!["p".to_owned()]), "it runs all the same");
}

#[test]
fn pods_are_sent_away_as_their_users_allow() {
    check(
        "an eviction",
        |_, step| matches!(step, Step::Evict(_)),
        |view, step| {
            let bare = matches!(view.wanted, Wanted::Move { evict_bare_pods: true, .. });
            let Step::Evict(names) = step else { return false };
            let can = |user: &&User| !user.is_leaving && (user.has_controller || bare);
            let is_time = view.status.phase == ReplicaPhase::CuttingOver && view.status.fenced.is_some();
            is_time && names.len() <= view.users.iter().filter(can).count()
        },
    );
}

/// Reports whether the node of the copy is lost, by the word of Kubernetes or of an administrator, and does not answer.
fn target_is_lost(view: &View) -> bool {
    let silent = matches!(view.target, Says::Silent(time) if time >= Duration::from_secs(30));
    let given_up = view.is_deleted && view.target_node == NodeState::NotReady;
    silent && (given_up || matches!(view.target_node, NodeState::OutOfService | NodeState::Gone))
}

#[test]
fn nothing_is_given_up_after_the_id_is_taken_over() {
    let gives_up = |step: &Step| {
        matches!(step, Step::Enter(ReplicaPhase::Abandoning, _) | Step::Unfence | Step::DeleteCopy)
    };
    check(
        "the end of a move",
        |view, _| view.status.phase > ReplicaPhase::LastPass && view.status.phase < ReplicaPhase::Abandoning,
        |view, step| {
            let is_empty = matches!(view.target, Says::Nothing | Says::Deleted)
                && matches!(view.copy, Says::Nothing | Says::Unusable(..))
                && view.is_deleted;
            let is_refused =
                view.target == Says::Nothing && matches!(view.copy, Says::Has(_)) && view.is_deleted;
            let is_taken_back = view.status.phase == ReplicaPhase::Completing
                && (target_is_lost(view) || is_empty || is_refused);
            !gives_up(step) || is_taken_back
        },
    );
    check(
        "a volume that is taken back",
        |view, step| view.status.phase == ReplicaPhase::Completing && gives_up(step),
        |view, _| {
            let writes = |user: &User| !user.is_leaving && !user.never_ran;
            view.source == Says::Has(GENERATION) && !view.users.iter().any(writes)
        },
    );
    check(
        "the way back",
        |_, step| *step == Step::Reclaim,
        |view, _| view.status.maybe_completed && !view.status.exchanged && !view.status.reclaimed,
    );
}
