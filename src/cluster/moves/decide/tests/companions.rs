//! Claims that pods use together (rule 9).

use super::*;

#[test]
fn rule_9_claims_of_one_pod_wait_for_each_other() {
    check("a check", |_, step| *step == Step::Check, |view, _| view.hindered.is_none());
    let gives_up = |step: &Step| matches!(step, Step::Enter(ReplicaPhase::Abandoning, _));
    check(
        "a claim whose companion has gone ahead",
        |view, _| {
            let is_deleted = view.is_deleted || view.claim_is_deleted != Some(false) || view.target_is_gone();
            view.is_bound && is_before_the_end(view) && !is_deleted && !is_without_status(view)
        },
        |view, step| !gives_up(step) || view.status.phase == ReplicaPhase::Standby,
    );
}

/// Its VolumeMove is deleted when another claim of the same pods has left the node.
#[test]
fn rule_9_a_cancelled_claim_follows_the_others() {
    use ReplicaPhase::{CuttingOver, Exchanging, Following, LastPass, Ready};
    for phase in [Following, Ready, CuttingOver, Exchanging, LastPass] {
        let mut view = in_phase(phase);
        view.wanted = Wanted::Nothing("the VolumeMove was deleted".to_owned());
        if phase > Ready {
            fence(&mut view);
        }
        assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Abandoning, _)), "{phase:?}");
        view.is_bound = true;
        let (ended, step) = paths::end_of(view.clone());
        assert_eq!((step, ended.status.phase), (Step::DeleteLeft, ReplicaPhase::Retiring), "{phase:?}");
        view.is_deleted = true;
        assert!(matches!(decide(&view), Step::Enter(ReplicaPhase::Abandoning, _)), "{phase:?}");
    }
}
