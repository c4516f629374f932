//! What nodes refuse, what they say is gone, and what a later release has written.

use super::paths::end_of;
use super::*;

/// If the claim and its PersistentVolume are gone, that says nothing of the data: the policy may have been Retain.
#[test]
fn a_volume_is_deleted_by_the_word_of_a_node_only() {
    let mut view = in_phase(ReplicaPhase::Completing);
    fence(&mut view);
    (view.status.exact, view.status.exchanged, view.status.maybe_completed) = (true, true, true);
    (view.copy, view.target) = (Says::Nothing, Says::Deleted);
    let failed = View { copy: unusable(0), ..view.clone() };
    assert!(matches!(decide(&failed), Step::Wait(..)), "the copy may be there in a moment");
    let (ended, step) = end_of(view);
    assert_eq!((step, ended.status.phase), (Step::DeleteLeft, ReplicaPhase::Retiring));
    let replaced = View { claim_is_deleted: Some(true), target: Says::Nothing, ..ended };
    assert!(
        matches!(decide(&replaced), Step::Wait(_, why) if why.contains("does not say that it has the volume"))
    );
}

/// What is left of the volume's earlier life there may still be mounted, for example.
#[test]
fn a_copy_that_its_node_refuses_can_be_given_up() {
    let mut view = in_phase(ReplicaPhase::Completing);
    fence(&mut view);
    (view.status.exact, view.status.exchanged, view.status.maybe_completed) = (true, true, true);
    assert_eq!(decide(&view), Step::Complete);
    view.is_deleted = true;
    let completed = View { target: Says::Has(GENERATION + 1), ..view.clone() };
    assert_eq!(decide(&completed), Step::Complete, "the volume is there");
    let lost = View { source: Says::Nothing, ..view.clone() };
    assert_eq!(decide(&lost), Step::Complete, "the copy is all that there is");
    let writing = View { users: vec![pod(false, false, true)], ..view.clone() };
    assert!(matches!(decide(&writing), Step::Wait(_, why) if why.contains("pod p has left")));
    let (ended, step) = end_of(view);
    assert_eq!(step, Step::DeleteCopy);
    assert!(ended.status.reclaimed && !ended.status.exchanged, "{ended:#?}");
}

#[test]
fn a_first_copy_that_failed_is_made_later() {
    let mut view = in_phase(ReplicaPhase::Pending);
    view.failed = Some(Duration::from_secs(1));
    assert!(matches!(decide(&view), Step::Wait(time, _) if time == LONG - Duration::from_secs(1)));
    view.failed = Some(LONG);
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Copying, _)));
    // A part of it may be there.
    view.wanted = Wanted::Nothing("cancelled".to_owned());
    assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Abandoning, _)));
    view.failed = None;
    assert_eq!(decide(&view), Step::Finish);
}

#[test]
fn a_purpose_of_a_later_release_is_left_alone() {
    for phase in ReplicaPhase::ALL {
        let mut view = in_phase(phase);
        (view.spec.purpose, view.is_deleted) = (Purpose::Unknown, true);
        assert_eq!(decide(&view), Step::Leave, "{phase:?}");
    }
}
