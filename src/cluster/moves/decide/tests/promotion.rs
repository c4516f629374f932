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
        assert!(matches!(decide(&view), Step::GoBack(ReplicaPhase::Standby, why) if why.contains("pod p")));
        let moved = View { wanted: moving(When::PodsLeave, false), ..view.clone() };
        assert!(matches!(decide(&moved), Step::GoBack(ReplicaPhase::Ready, _)));
        let now = View { wanted: moving(When::Now, false), ..view.clone() };
        assert!(matches!(decide(&now), Step::Fence | Step::Evict(_)), "{:?}", decide(&now));
        let bare = View { users: vec![pod(false, false, false)], ..now };
        assert!(matches!(decide(&bare), Step::GoBack(ReplicaPhase::Ready, _)));
        let leaving = View { users: vec![pod(true, false, true)], ..view.clone() };
        assert!(matches!(decide(&leaving), Step::Fence | Step::Wait(..)));
    }
}

#[test]
fn pods_get_a_volume_back_by_its_nodes_word_only() {
    for node in [NodeState::Ready, NodeState::NotReady, NodeState::OutOfService, NodeState::Gone] {
        for source in answers() {
            let mut view = View { source_node: node, source, ..promoted(ReplicaPhase::CuttingOver) };
            fence(&mut view);
            let is_there = node == NodeState::Ready && view.source == Says::Has(GENERATION);
            assert_eq!(matches!(decide(&view), Step::GoBack(..)), is_there, "{view:#?}");
            view.status.stale = true;
            assert!(!matches!(decide(&view), Step::GoBack(..)), "the copy has taken the place");
        }
    }
}
