//! Volumes that the node of the VolumeReplica has adopted.

use super::*;

/// A view of an adoption that may begin.
fn begins() -> View {
    let mut view = in_phase(ReplicaPhase::Pending);
    view.spec.purpose = Purpose::Adoption;
    (view.source, view.source_node) = (Says::Silent(PATIENCE), NodeState::Gone);
    view.target = Says::Has(GENERATION + 1);
    view
}

#[test]
fn rule_6_an_adoption_waits_for_what_is_unknown() {
    assert!(matches!(decide(&begins()), Step::Enter(ReplicaPhase::Exchanging, _)));
    let waits = |change: fn(&mut View)| {
        let mut view = begins();
        change(&mut view);
        assert!(matches!(decide(&view), Step::Wait(..)), "{:?} of {view:#?}", decide(&view));
    };
    waits(|view| view.claim_is_deleted = None);
    waits(|view| view.hindered = Some("PersistentVolume pv names node c".to_owned()));
    waits(|view| view.has_another_copy = true);
    waits(|view| view.target = Says::Has(GENERATION));
    waits(|view| view.target = Says::Silent(PATIENCE));
    waits(|view| view.target = Says::Nothing);
    waits(|view| view.source = Says::Has(GENERATION));
    waits(|view| view.source = Says::Unusable("no disk".to_owned(), PATIENCE));
    waits(|view| view.source = Says::Deleted);
    waits(|view| view.source = Says::Error("damaged".to_owned()));
    waits(|view| view.source = Says::Silent(Duration::ZERO));
    waits(|view| view.source_node = NodeState::NotReady);
    waits(|view| view.users = vec![pod(false, false, true)]);
}

#[test]
fn rule_2_an_adoption_deletes_nothing_by_itself() {
    let deletes =
        [Step::DeleteCopy, Step::DeleteLeftCopy, Step::Reclaim, Step::RetireCopy, Step::ExchangeBack];
    for (view, _) in DECIDED.iter().filter(|(view, _)| !view.status.reclaimed) {
        let mut view = view.clone();
        view.spec.purpose = Purpose::Adoption;
        let step = decide(&view);
        assert!(!deletes.contains(&step), "{step:?} of {view:#?}");
        let is_named = view.is_deleted || view.status.left_id.is_some();
        assert!(step != Step::DeleteLeft || is_named, "{step:?} of {view:#?}");
    }
}
