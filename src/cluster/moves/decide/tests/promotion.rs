//! Copies that are to take the place of a volume whose node is back.

use super::*;

const INTERVAL: Duration = Duration::from_secs(60);

/// A standby copy that an administrator has promoted, while a pod runs where the volume is.
fn promoted(phase: ReplicaPhase) -> View {
    let mut view = in_phase(phase);
    (view.spec.purpose, view.wanted) = (Purpose::Standby, Wanted::Standby { interval: INTERVAL });
    (view.is_promoted, view.users) = (true, vec![pod(false, false, true)]);
    view
}

#[test]
fn a_promoted_copy_follows_while_a_pod_runs() {
    let mut view = promoted(ReplicaPhase::Standby);
    view.age = Some(INTERVAL);
    assert_eq!(decide(&view), Step::Pass);
    view.age = Some(Duration::ZERO);
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("place when pod p has left")));
    for source in [Says::Nothing, unusable(30), Says::Silent(Duration::ZERO), Says::Has(GENERATION + 1)] {
        let view = View { age: Some(INTERVAL), source, ..view.clone() };
        let step = decide(&view);
        assert!(matches!(&step, Step::Wait(_, why) if why.contains("when pod p has left")), "{step:?}");
    }
    view.users.clear();
    assert_eq!(decide(&view), Step::Check);
}

#[test]
fn a_promoted_move_is_a_move_while_a_pod_runs() {
    let mut view = View { wanted: moving(When::Now, false), ..promoted(ReplicaPhase::Following) };
    view.spec.purpose = Purpose::Move;
    assert_eq!(decide(&view), Step::Pass);
    view.status.phase = ReplicaPhase::Ready;
    assert_eq!(decide(&view), Step::Check, "which evicts the pod");
    view.wanted = moving(When::PodsLeave, false);
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("drain the node")));
    view.source_node = NodeState::NotReady;
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("place when pod p has left")));
}

/// The check and the fence are not one step, and a pod starts in between.
#[test]
fn a_pod_that_starts_before_the_fence_stays() {
    let mut view = promoted(ReplicaPhase::CuttingOver);
    view.status.maybe_fenced = true;
    for is_fenced in [false, true] {
        if is_fenced {
            fence(&mut view);
        }
        assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Standby, why) if why.contains("pod p")));
        let moved = View { wanted: moving(When::PodsLeave, false), ..view.clone() };
        assert!(matches!(decide(&moved), Step::Enter(ReplicaPhase::Ready, _)));
        let now = View { wanted: moving(When::Now, false), ..view.clone() };
        assert!(matches!(decide(&now), Step::Fence | Step::Evict(_)), "{:?}", decide(&now));
        let bare = View { users: vec![pod(false, false, false)], ..now };
        assert!(matches!(decide(&bare), Step::Enter(ReplicaPhase::Ready, _)));
        let leaving = View { users: vec![pod(true, false, true)], ..view.clone() };
        assert!(matches!(decide(&leaving), Step::Fence | Step::Wait(..)));
    }
}

/// Its node refuses it while the volume is fenced, and nothing would evict it.
#[test]
fn a_bare_pod_that_waits_to_start_stays() {
    let mut view = promoted(ReplicaPhase::Standby);
    view.users = vec![pod(false, true, false)];
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("when pod p has left")));
    view.status.phase = ReplicaPhase::CuttingOver;
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Standby, _)));
    let lost = View { source_node: NodeState::Gone, source: Says::Silent(PATIENCE), ..view.clone() };
    assert_eq!(decide(&lost), Step::GiveUpSource);
    let evicted = View { wanted: moving(When::Now, true), ..view.clone() };
    assert_eq!(decide(&evicted), Step::Fence);
    fence(&mut view);
    view.users = vec![User { is_late: true, ..pod(false, true, false) }];
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Exchanging, _)), "it cannot start here");
}

#[test]
fn a_claim_follows_one_of_the_same_pods() {
    let mut view = View { is_awaited: true, ..promoted(ReplicaPhase::CuttingOver) };
    fence(&mut view);
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("waiting until pod p has left")));
    (view.users, view.hindered) = (Vec::new(), Some("a claim of the same pods".to_owned()));
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Exchanging, _)));
    view.is_awaited = false;
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Standby, why) if why.contains("same pods")));
    view.source_node = NodeState::NotReady;
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Exchanging, _)));
}

/// A controller that ends after a cutover went back leaves the fence.
#[test]
fn a_fence_goes_before_anything_else() {
    for phase in [ReplicaPhase::Ready, ReplicaPhase::Standby] {
        let mut view = promoted(phase);
        view.status.maybe_fenced = true;
        assert_eq!(decide(&view), Step::Unfence);
        view.users.clear();
        for source in [Says::Silent(PATIENCE), Says::Nothing] {
            let lost = View { source_node: NodeState::Gone, source, ..view.clone() };
            assert_eq!(decide(&lost), Step::Check, "a node that is lost is not waited for");
        }
    }
}

#[test]
fn pods_are_not_evicted_again_after_a_refusal() {
    let mut view = View { wanted: moving(When::Now, false), ..promoted(ReplicaPhase::Ready) };
    (view.is_promoted, view.spec.purpose) = (false, Purpose::Move);
    "u".clone_into(&mut view.status.evictions_ended);
    assert!(matches!(decide(&view), Step::Wait(_, why) if why.contains("after another one had left")));
    let another =
        View { spec: VolumeReplicaSpec { requested_by: None, ..view.spec.clone() }, ..view.clone() };
    assert_eq!(decide(&another), Step::Check, "another VolumeMove may evict them");
    view.status.phase = ReplicaPhase::CuttingOver;
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Ready, _)));
    (view.status.phase, view.users) = (ReplicaPhase::Ready, vec![pod(true, false, true)]);
    assert_eq!(decide(&view), Step::Check);
}

#[test]
fn pods_get_a_volume_back_by_its_nodes_word_only() {
    for node in [NodeState::Ready, NodeState::NotReady, NodeState::OutOfService, NodeState::Gone] {
        for source in answers() {
            let mut view = View { source_node: node, source, ..promoted(ReplicaPhase::CuttingOver) };
            fence(&mut view);
            let is_there = node == NodeState::Ready && view.source == Says::Has(GENERATION);
            assert_eq!(matches!(decide(&view), Step::Enter(ReplicaPhase::Standby, _)), is_there, "{view:#?}");
            view.status.stale = true;
            assert!(
                !matches!(decide(&view), Step::Enter(ReplicaPhase::Standby, _)),
                "the copy has taken the place"
            );
        }
    }
}
