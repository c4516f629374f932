//! Where steps lead that follow each other.

use super::*;

/// What a step does to a view if every node that answers does it.
fn apply(view: &mut View, step: &Step) {
    let is_silent = |says: &Says| matches!(says, Says::Silent(_));
    let status = &mut view.status;
    match step {
        Step::Enter(phase, _) => {
            status.phase = *phase;
            status.maybe_completed |= *phase == ReplicaPhase::Completing;
        }
        Step::Create if !is_silent(&view.target) => status.phase = ReplicaPhase::Following,
        Step::Pass if !is_silent(&view.source) && !is_silent(&view.target) => {
            view.age = Some(Duration::ZERO);
            if status.phase == ReplicaPhase::Following {
                status.phase = ReplicaPhase::Ready;
            }
        }
        Step::Check => {
            (status.phase, status.maybe_fenced) = (ReplicaPhase::CuttingOver, true);
            status.lost = matches!(view.source_node, NodeState::OutOfService | NodeState::Gone);
        }
        Step::Fence if !is_silent(&view.source) => {
            status.fenced = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        }
        Step::Evict(_) => view.users.clear(),
        Step::LastPass if !is_silent(&view.source) => status.exact = true,
        Step::GiveUpSource => status.stale = true,
        Step::Complete if !is_silent(&view.target) => {
            status.phase = ReplicaPhase::Retiring;
            view.target = Says::Has(GENERATION + 1);
        }
        Step::Reclaim if !is_silent(&view.source) => {
            (status.reclaimed, status.maybe_fenced, status.fenced) = (true, false, None);
            view.source = Says::Has(GENERATION + 2);
        }
        Step::RetireCopy if !is_silent(&view.copy) => status.left_id = Some("vol-4".to_owned()),
        Step::Exchange => (status.phase, status.exchanged) = (ReplicaPhase::LastPass, true),
        Step::ExchangeBack => status.exchanged = false,
        Step::Retire if !is_silent(&view.source) => status.left_id = Some("vol-3".to_owned()),
        Step::Unfence if !is_silent(&view.source) => (status.fenced, status.maybe_fenced) = (None, false),
        _ => {}
    }
}

/// Returns the last step of a controller to whom nothing happens but its own steps.
pub(super) fn end_of(mut view: View) -> (View, Step) {
    let mut step = decide(&view);
    for _ in 0..40 {
        if matches!(
            step,
            Step::DeleteCopy | Step::DeleteLeft | Step::DeleteLeftCopy | Step::Release | Step::Finish
        ) {
            break;
        }
        apply(&mut view, &step);
        step = decide(&view);
    }
    (view, step)
}

#[test]
fn a_move_and_a_promotion_come_to_their_end() {
    for when in [When::PodsLeave, When::Now] {
        let mut view = in_phase(ReplicaPhase::Pending);
        view.wanted = moving(when, false);
        if when == When::Now {
            view.users = vec![pod(false, false, true)];
        }
        let (view, step) = end_of(view);
        assert_eq!((step, view.status.phase), (Step::DeleteLeft, ReplicaPhase::Retiring), "{when:?}");
        assert!(view.status.exact && !view.status.stale);
    }
    let mut view = in_phase(ReplicaPhase::Standby);
    view.spec.purpose = Purpose::Standby;
    view.wanted = Wanted::Standby { interval: Duration::from_secs(60) };
    (view.source_node, view.source) = (NodeState::Gone, Says::Silent(PATIENCE));
    let (mut view, step) = end_of(view);
    assert_eq!((step, view.status.phase), (Step::Retire, ReplicaPhase::Retiring));
    assert!(view.status.stale, "the volume had later data");
    // Its node is back.
    view.source = Says::Has(GENERATION);
    let (mut view, _) = end_of(view);
    assert_eq!(view.status.phase, ReplicaPhase::Left);
    view.is_deleted = true;
    assert_eq!(decide(&view), Step::DeleteLeft);
}

/// A node that is cut off may still run the pods of a volume that moves to its standby copy.
#[test]
fn rule_4_a_move_to_a_standby_copy_waits() {
    let wishes = [moving(When::Now, false), Wanted::Standby { interval: Duration::from_secs(60) }];
    for (phase, wanted) in [ReplicaPhase::CuttingOver, ReplicaPhase::LastPass]
        .into_iter()
        .flat_map(|p| wishes.clone().map(|w| (p, w)))
    {
        let mut view = in_phase(phase);
        fence(&mut view);
        (view.spec.purpose, view.wanted) = (Purpose::Standby, wanted);
        (view.source_node, view.source) = (NodeState::NotReady, Says::Silent(PATIENCE));
        view.users = vec![pod(true, false, true)];
        assert_ne!(decide(&view), Step::GiveUpSource, "{view:#?}");
        view.status.lost = true;
        assert_eq!(decide(&view), Step::GiveUpSource, "{view:#?}");
    }
}

#[test]
fn rule_7_an_administrator_ends_every_phase() {
    let gone = || Says::Silent(Duration::from_secs(3600));
    for phase in ReplicaPhase::ALL {
        for fenced in [false, true] {
            let mut view = in_phase(phase);
            if fenced {
                fence(&mut view);
            }
            (view.source, view.source_node, view.is_deleted) = (gone(), NodeState::Gone, true);
            let (view, step) = end_of(view);
            let ends = matches!(step, Step::DeleteCopy | Step::DeleteLeft | Step::Release | Step::Finish);
            assert!(ends, "{phase:?}, fenced: {fenced}: {step:?} in {:?}", view.status.phase);
        }
    }
}

/// The claim is to have a standby copy all the time, so that the copy alone does not say that the volume is to move. Until the
/// PersistentVolume is exchanged, the copy stands by again.
#[test]
fn a_cancelled_move_to_a_standby_copy_ends() {
    for (phase, next) in [
        (ReplicaPhase::CuttingOver, ReplicaPhase::Standby),
        (ReplicaPhase::LastPass, ReplicaPhase::Abandoning),
    ] {
        let mut view = in_phase(phase);
        fence(&mut view);
        view.spec.purpose = Purpose::Standby;
        view.wanted = Wanted::Standby { interval: Duration::from_secs(60) };
        view.users = vec![pod(false, false, true)];
        let step = decide(&view);
        assert!(matches!(step, Step::Enter(enters, _) if enters == next), "{phase:?}: {step:?}");
        for (is_promoted, source_node, source) in [
            (true, NodeState::Ready, Says::Has(GENERATION)),
            (false, NodeState::OutOfService, Says::Has(GENERATION)),
            (false, NodeState::NotReady, Says::Has(GENERATION)),
            (false, NodeState::Ready, Says::Silent(PATIENCE)),
        ] {
            let promoted = View { is_promoted, source_node, source, ..view.clone() };
            let step = decide(&promoted);
            assert!(!matches!(step, Step::Enter(ReplicaPhase::Abandoning, _)), "{promoted:#?}: {step:?}");
        }
    }
}

/// A user may delete the VolumeMove as soon as the volume has moved.
#[test]
fn a_kept_source_stays_when_its_request_is_gone() {
    let mut view = in_phase(ReplicaPhase::Retiring);
    view.spec.keep_source = true;
    view.wanted = Wanted::Nothing("the VolumeMove was deleted".to_owned());
    (view.target, view.status.left_id) = (Says::Has(GENERATION + 1), Some("vol-3".to_owned()));
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Left, _)));
}

#[test]
fn rule_7_a_copy_whose_node_is_gone_is_let_go() {
    let mut view = in_phase(ReplicaPhase::Abandoning);
    (view.target, view.target_node) = (Says::Silent(PATIENCE), NodeState::Gone);
    assert_eq!(decide(&view), Step::DeleteCopy, "it may come back");
    view.is_deleted = true;
    assert_eq!(decide(&view), Step::DeleteCopy, "its driver answers");
    view.copy = Says::Silent(PATIENCE);
    assert_eq!(decide(&view), Step::Finish);
}

/// A rollout replaces the process of the driver: its node is back in a moment. It would refuse pods, or have a volume that no object names.
#[test]
fn rule_7_a_moment_of_silence_ends_nothing() {
    for source_node in [NodeState::Ready, NodeState::NotReady, NodeState::OutOfService] {
        for phase in [ReplicaPhase::Retiring, ReplicaPhase::Abandoning] {
            let mut view = in_phase(phase);
            fence(&mut view);
            (view.source, view.source_node, view.is_deleted) =
                (Says::Silent(Duration::ZERO), source_node, true);
            let step = decide(&view);
            let says_so = |why: &str| why.contains("does not answer") && why.contains("delete the Node");
            assert!(
                matches!(&step, Step::Wait(_, why) if says_so(why)),
                "{phase:?} {source_node:?}: {step:?}"
            );
            view.source = Says::Has(GENERATION);
            let wanted = if phase == ReplicaPhase::Retiring { Step::Retire } else { Step::Unfence };
            assert_eq!(decide(&view), wanted);
        }
    }
}

#[test]
fn an_earlier_generation_is_retired_first() {
    let mut view = in_phase(ReplicaPhase::CuttingOver);
    for stale in [false, true] {
        view.status.stale = stale;
        view.target = Says::Has(GENERATION - 1);
        assert_eq!(decide(&view), Step::RetireEarlier);
        view.target = Says::Has(GENERATION);
        assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("look there")));
        for unknown in [Says::Silent(PATIENCE), Says::Error("broken".to_owned()), unusable(60)] {
            view.target = unknown.clone();
            assert!(matches!(decide(&view), Step::Wait(..)), "{unknown:?}");
        }
    }
}

#[test]
fn a_node_without_volume_and_copy_ends_nothing_alone() {
    let mut view = in_phase(ReplicaPhase::Completing);
    fence(&mut view);
    (view.status.exact, view.status.exchanged, view.status.maybe_completed) = (true, true, true);
    (view.copy, view.target) = (Says::Nothing, Says::Nothing);
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("take the volume back to node a")));
    let failed = View { copy: unusable(0), ..view.clone() };
    assert!(
        matches!(decide(&failed), Step::Wait(_, why) if why.contains("no disk; delete the VolumeReplica"))
    );
    let failed = View { is_deleted: true, ..failed };
    assert!(matches!(decide(&failed), Step::Enter(ReplicaPhase::Abandoning, _)));
    let silent = Says::Silent(PATIENCE);
    let both = View { source: silent, source_node: NodeState::Gone, is_deleted: true, ..view.clone() };
    assert_eq!(decide(&both), Step::Finish);
    let lost = View { source: Says::Nothing, ..view.clone() };
    assert!(matches!(decide(&lost), Step::Wait(_, why) if why.contains("does not say that it has")));
    let writing = View { is_deleted: true, users: vec![pod(false, false, true)], ..view.clone() };
    assert!(matches!(decide(&writing), Step::Wait(_, why) if why.contains("pod p has left")));
    let (taken, _) = end_of(View { is_deleted: true, ..view });
    assert!(taken.status.reclaimed && taken.source == Says::Has(GENERATION + 2), "{taken:#?}");
}

/// Its node has answered so, and the node of the volume need not have anything either.
#[test]
fn a_copy_that_is_gone_is_let_go() {
    for source in answers() {
        let mut view = in_phase(ReplicaPhase::Abandoning);
        (view.source, view.copy) = (source, Says::Nothing);
        assert_eq!(decide(&view), Step::Release);
    }
    let mut view = in_phase(ReplicaPhase::Abandoning);
    fence(&mut view);
    view.copy = Says::Nothing;
    assert_eq!(decide(&view), Step::Unfence, "the volume comes first");
}

#[test]
fn a_source_that_has_nothing_keeps_its_copy() {
    for source in [
        Says::Nothing,
        Says::Error("broken".to_owned()),
        unusable(60),
        Says::Silent(PATIENCE),
        Says::Has(GENERATION + 1),
    ] {
        let mut view = in_phase(ReplicaPhase::Standby);
        view.source = source.clone();
        view.wanted = Wanted::Nothing("the StorageClass asks for no copy".to_owned());
        let (_, step) = end_of(view);
        assert!(
            matches!(&step, Step::Wait(_, why) if why.contains("may be the only one")),
            "{source:?}: {step:?}"
        );
    }
}

/// A copy whose node is lost while it takes over the id, with what Kubernetes says of that node.
fn lost_in_completing(target_node: NodeState) -> View {
    let mut view = in_phase(ReplicaPhase::Completing);
    fence(&mut view);
    (view.status.exact, view.status.exchanged, view.status.maybe_completed) = (true, true, true);
    (view.target, view.copy, view.target_node) =
        (Says::Silent(PATIENCE), Says::Silent(PATIENCE), target_node);
    view
}

#[test]
fn rule_7_a_volume_is_taken_back_from_a_lost_node() {
    let view = lost_in_completing(NodeState::NotReady);
    assert_eq!(decide(&view), Step::Complete, "the node may come back");
    let by_administrator = View { is_deleted: true, ..lost_in_completing(NodeState::NotReady) };
    for view in
        [lost_in_completing(NodeState::Gone), lost_in_completing(NodeState::OutOfService), by_administrator]
    {
        let (view, _) = end_of(view);
        let status = &view.status;
        assert_eq!(
            (status.reclaimed, status.exchanged, status.maybe_fenced),
            (true, false, false),
            "{view:#?}"
        );
        assert_eq!(view.source, Says::Has(GENERATION + 2));
    }
    // It was a move within that node.
    let within = View {
        source: Says::Silent(PATIENCE),
        source_node: NodeState::Gone,
        ..lost_in_completing(NodeState::Gone)
    };
    assert_eq!(decide(&within), Step::Complete, "it may come back");
    assert_eq!(decide(&View { is_deleted: true, ..within }), Step::Finish);
    let writing = View { users: vec![pod(false, false, true)], ..lost_in_completing(NodeState::Gone) };
    assert!(matches!(decide(&writing), Step::Wait(_, why) if why.contains("pod p has left")));
    let both = View { source: Says::Silent(PATIENCE), ..lost_in_completing(NodeState::Gone) };
    assert_eq!(decide(&both), Step::Complete);
}

#[test]
fn a_lost_node_that_is_back_keeps_later_data() {
    let (gone, step) = end_of(lost_in_completing(NodeState::Gone));
    assert!(matches!(step, Step::Wait(..)) && gone.status.phase == ReplicaPhase::Stranded, "{step:?}");
    let back =
        |copy: Says, target: Says| View { copy, target, target_node: NodeState::Ready, ..gone.clone() };
    // It had not taken over the id.
    let (_, step) = end_of(back(Says::Has(GENERATION), Says::Nothing));
    assert_eq!(step, Step::DeleteCopy);
    let (mut view, step) = end_of(back(Says::Nothing, Says::Has(GENERATION + 1)));
    assert!(matches!(step, Step::Wait(..)) && view.status.phase == ReplicaPhase::Left, "{step:?}");
    assert!(view.status.left_id.is_some());
    view.is_deleted = true;
    assert_eq!(decide(&view), Step::DeleteLeftCopy);
    // The volume has moved there once more.
    let (_, step) = end_of(back(Says::Nothing, Says::Has(GENERATION + 3)));
    assert_eq!(step, Step::Release);
}

/// Both nodes were lost, and an administrator said so of both. They come back while the copy was to take the volume's place.
#[test]
fn a_promotion_is_taken_back_with_a_fence() {
    let mut view = lost_in_completing(NodeState::OutOfService);
    (view.status.stale, view.status.lost, view.status.fenced) = (true, true, None);
    assert_eq!(view.source, Says::Has(GENERATION));
    let (taken, _) = end_of(view.clone());
    assert!(taken.status.reclaimed && taken.source == Says::Has(GENERATION + 2), "{taken:#?}");
    (view.status.phase, view.status.exchanged) = (ReplicaPhase::Abandoning, false);
    assert_eq!(decide(&view), Step::Fence, "the node refuses to take back what is not fenced");
}

#[test]
fn a_volume_deleted_before_it_is_taken_back_ends() {
    let mut view = lost_in_completing(NodeState::Ready);
    (view.status.phase, view.status.exchanged) = (ReplicaPhase::Abandoning, false);
    (view.copy, view.source) = (Says::Has(GENERATION), Says::Deleted);
    assert_eq!(decide(&view), Step::DeleteCopy);
    view.source = Says::Nothing;
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("may be the only one")));
    view.copy = Says::Nothing;
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("when you have looked there")));
    view.is_deleted = true;
    assert_eq!(decide(&view), Step::Release);
    (view.copy, view.target_node) = (Says::Silent(PATIENCE), NodeState::NotReady);
    assert!(matches!(decide(&view), Step::Wait(..)), "the node may come back with the copy");
    view.target_node = NodeState::Gone;
    assert_eq!(decide(&view), Step::Finish);
}

#[test]
fn rule_7_both_nodes_are_let_go() {
    for source in [Says::Silent(PATIENCE), Says::Deleted] {
        let mut view = in_phase(ReplicaPhase::Abandoning);
        fence(&mut view);
        (view.source_node, view.source) = (NodeState::Gone, source.clone());
        (view.target_node, view.copy, view.is_deleted) = (NodeState::Gone, Says::Silent(PATIENCE), true);
        assert_eq!(decide(&view), Step::Finish, "{source:?}");
        view.is_deleted = false;
        let step = decide(&view);
        let waits = matches!(step, Step::Unfence | Step::Enter(ReplicaPhase::Stranded, _));
        assert!(waits, "{source:?}: {step:?}");
    }
}

/// No VolumeMove asks for it, so nothing is copied.
#[test]
fn an_earlier_generation_is_only_retired() {
    let mut view = in_phase(ReplicaPhase::Pending);
    view.spec.requested_by = None;
    view.wanted = Wanted::Unknown("nothing says which VolumeMove asks for it".to_owned());
    assert!(matches!(decide(&view), Step::Wait(..)), "it may have been retired before");
    view.left = Says::Nothing;
    for claim_is_deleted in [Some(false), Some(true), None] {
        view.claim_is_deleted = claim_is_deleted;
        let why = "node a may have an earlier generation of the volume".to_owned();
        assert_eq!(decide(&view), Step::RetireSource(why));
    }
    let kept = View { left: Says::Has(GENERATION), is_deleted: true, ..view.clone() };
    assert_eq!(decide(&kept), Step::Recover(ReplicaPhase::Left), "its status was lost");
    view.is_deleted = true;
    assert_eq!(decide(&view), Step::Finish);
    (view.left, view.source_node) = (Says::Silent(PATIENCE), NodeState::Gone);
    assert_eq!(decide(&view), Step::Finish, "it never comes back");
}

/// A pool opens late after a start, and has later data than the copy.
#[test]
fn rule_4_a_disk_is_waited_for() {
    let mut view = in_phase(ReplicaPhase::CuttingOver);
    (view.is_promoted, view.source) = (true, unusable(29));
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("no disk")));
    view.source = unusable(30);
    assert_eq!(decide(&view), Step::GiveUpSource);
}
