//! What a state means, without a cluster.

use tokio::time::Instant;

use crate::admin::ask::{Asking as _, Cancel};
use crate::admin::follow::{Ending, Follow, Goal, State};
use crate::admin::seen::{Claim, Name, Seen, Told};
use crate::cluster::mover::status::{HAS_GROWN, MOVE_TO};
use std::time::Duration;

fn follow(goal: Goal) -> Follow {
    Follow::new(Name { namespace: "shop".to_owned(), name: "data".to_owned() }, goal)
}

fn moved() -> Follow {
    follow(Goal::Moved("node-2".to_owned()))
}

fn seen(phase: &str, target: &str, message: &str, wanted: Option<&str>) -> Seen {
    let told = Told {
        phase: phase.to_owned(),
        target: target.to_owned(),
        message: message.to_owned(),
        ..Told::default()
    };
    let annotations = wanted.map(|wanted| (MOVE_TO.to_owned(), wanted.to_owned())).into_iter().collect();
    let claim = Claim { annotations, told: Some(told), ..Claim::default() };
    Seen { claim: Some(claim), ..Seen::default() }
}

#[test]
fn the_end_of_another_move_is_not_the_end_of_this_one() {
    let mut follow = moved();
    assert!(!follow.see(&seen("Done", "node-3", "", Some("node-2")), Instant::now()));
    assert!(!follow.see(&seen("Cancelling", "node-3", "", Some("node-2")), Instant::now()));
    assert_eq!((follow.state.clone(), follow.told.clone()), (State::Going, None));
    assert!(follow.see(&seen("Done", "node-2", "", None), Instant::now()));
    assert!(follow.has_ended() && follow.is_good());
}

#[test]
fn a_volume_that_grows_is_waited_for() {
    let mut follow = moved();
    for phase in ["Copying", "Cancelling", "Refused", "Copying", "Ready"] {
        follow.see(&seen(phase, "node-2", HAS_GROWN, Some("node-2")), Instant::now());
        assert!(!follow.has_ended(), "{phase}");
    }
    assert_eq!(follow.state, State::Ready);
}

#[test]
fn among_others_a_refusal_has_time_to_pass() {
    let mut follow = moved();
    follow.among_others = true;
    let (start, refused) = (Instant::now(), seen("Refused", "", "claim log stays behind", Some("node-2")));
    follow.see(&refused, start);
    follow.see(&refused, start + Duration::from_secs(39));
    assert_eq!(follow.state, State::Going);
    follow.see(&refused, start + Duration::from_secs(40));
    assert_eq!(follow.state, State::Ended(Ending::Refused("claim log stays behind".to_owned())));
}

#[test]
fn a_phase_that_is_not_known_is_waited_for() {
    let mut follow = moved();
    assert!(follow.see(&seen("Levitating", "node-2", "", Some("node-2")), Instant::now()));
    assert_eq!(follow.state, State::Going);
}

#[test]
fn a_claim_is_gone_when_two_looks_do_not_find_it() {
    let mut follow = moved();
    follow.see(&Seen::default(), Instant::now());
    assert!(follow.state == State::Going && follow.is_pressing());
    follow.see(&Seen::default(), Instant::now());
    assert_eq!(follow.state, State::Ended(Ending::Gone));
}

#[test]
fn a_claim_made_again_may_be_missing_for_a_while() {
    let mut follow = moved();
    follow.see(&seen("Switching", "node-2", "", Some("node-2")), Instant::now());
    for _ in 0..60 {
        follow.see(&Seen::default(), Instant::now());
    }
    assert_eq!(follow.state, State::Going);
    follow.see(&Seen::default(), Instant::now());
    assert_eq!(follow.state, State::Ended(Ending::Gone));
}

#[test]
fn somebody_elses_cancel_ends_the_waiting() {
    let mut follow = moved();
    follow.see(&seen("Copying", "node-2", "", Some("node-2")), Instant::now());
    follow.see(&Seen { claim: Some(Claim::default()), ..Seen::default() }, Instant::now());
    assert!(matches!(&follow.state, State::Ended(Ending::GivenUp(_))) && !follow.is_good());
}

#[test]
fn a_cancel_that_comes_too_late_is_no_success() {
    let mut follow = follow(Goal::GivenUp);
    follow.see(&seen("Rebinding", "node-2", "", None), Instant::now());
    assert_eq!(follow.state, State::Going);
    follow.see(&seen("Done", "node-2", "", None), Instant::now());
    assert!(follow.has_ended() && !follow.is_good());
}

#[test]
fn a_copy_that_stands_by_is_no_move() {
    let mut standby = seen("Standby", "node-3", "", None);
    standby.claim.as_mut().unwrap().held = true;
    let plan = Cancel.plan(&standby);
    assert!(
        plan.changes.is_empty() && plan.ending == Some(Ending::GivenUp("no move was asked for".to_owned()))
    );
    let mut cancelled = follow(Goal::GivenUp);
    cancelled.see(&standby, Instant::now());
    assert!(cancelled.has_ended() && cancelled.is_good());
    let mut moved = moved();
    moved.see(&seen("Standby", "node-2", "", Some("node-2")), Instant::now());
    assert_eq!(moved.state, State::Going);
    // The copy that stood by may be the one that the volume moves to.
    let mut ready = seen("Ready", "node-2", "", Some("node-2"));
    ready.claim.as_mut().unwrap().told.as_mut().unwrap().standby = true;
    moved.see(&ready, Instant::now());
    assert_eq!(moved.state, State::Ready);
}

#[test]
fn a_promotion_goes_on_while_the_claim_is_made_again() {
    let mut promoted = follow(Goal::Promoted("node-2".to_owned()));
    let mut switching = seen("Switching", "node-2", "", None);
    switching.claim.as_mut().unwrap().told.as_mut().unwrap().standby = true;
    promoted.see(&switching, Instant::now());
    assert_eq!(promoted.state, State::Going);
    promoted.see(
        &Seen { node: Some("node-2".to_owned()), ..seen("Standby", "node-3", "", None) },
        Instant::now(),
    );
    assert!(promoted.is_good(), "another copy stands by already");
    let mut taken_back = follow(Goal::Promoted("node-2".to_owned()));
    let lost = Seen { node: Some("node-1".to_owned()), ..seen("Standby", "node-2", "", None) };
    taken_back.see(&lost, Instant::now());
    assert!(taken_back.has_ended() && !taken_back.is_good());
}
