//! What a state means, without a cluster.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::admin::follow::{Ending, Follow, Goal, State};
use crate::admin::seen::{Move, Replica, Told};

fn asked(phase: &str, message: &str) -> Move {
    let told = Told {
        phase: phase.to_owned(),
        target_node: "n2".to_owned(),
        message: message.to_owned(),
        ..Told::default()
    };
    Move { told, ..Move::default() }
}

fn moved() -> Follow {
    Follow::of_move(&Move::default())
}

fn replica(phase: &str, purpose: &str) -> Replica {
    let spec = json!({"targetNode": "n2", "sourceNode": "n1", "purpose": purpose});
    Replica { promoted: true, ..Replica::read(&spec, &json!({"phase": phase, "message": "why"})) }
}

/// Returns what is made of a replica, and of the node of its PersistentVolume.
fn end(goal: Goal, replica: Option<&Replica>, node: Option<&str>) -> (State, bool) {
    let mut follow = Follow::of_replica(&self::replica("", "Move"), goal);
    follow.see_replica(replica, node);
    (follow.state.clone(), follow.is_good())
}

#[test]
fn a_move_is_followed_from_phase_to_phase() {
    let mut follow = moved();
    assert!(!follow.see_move(Some(&asked("", "")), Instant::now()));
    assert_eq!((&follow.state, &follow.told), (&State::Going, &None));
    for (phase, state) in [
        ("Copying", State::Going),
        ("Levitating", State::Going),
        ("Ready", State::Ready),
        ("GivingUp", State::Going),
        ("CuttingOver", State::Ready),
    ] {
        assert!(follow.see_move(Some(&asked(phase, "")), Instant::now()), "{phase}");
        assert!(!follow.see_move(Some(&asked(phase, "")), Instant::now()), "{phase}: nothing new");
        assert_eq!(follow.state, state, "{phase}");
    }
    follow.see_move(Some(&asked("Done", "")), Instant::now());
    assert!(follow.has_ended() && follow.is_good());
}

#[test]
fn among_others_a_refusal_has_time_to_pass() {
    let mut follow = moved();
    follow.among_others = true;
    let (start, refused) = (Instant::now(), asked("Refused", "claim log stays behind"));
    follow.see_move(Some(&refused), start);
    follow.see_move(Some(&refused), start + Duration::from_secs(39));
    assert_eq!(follow.state, State::Going);
    follow.see_move(Some(&refused), start + Duration::from_secs(40));
    assert_eq!(follow.state, State::Ended(Ending::Refused("claim log stays behind".to_owned())));
}

#[test]
fn a_move_that_began_is_refused_at_once() {
    let mut follow = moved();
    follow.among_others = true;
    follow.see_move(Some(&asked("Copying", "")), Instant::now());
    follow.see_move(Some(&asked("Refused", "no room")), Instant::now());
    assert_eq!(follow.why(), "no room");
    assert!(follow.has_ended() && !follow.is_good());
}

#[test]
fn a_cancel_that_comes_too_late_is_no_success() {
    for phase in ["CuttingOver", "Exchanging", "LastPass", "Completing", "Abandoning"] {
        let going = (State::Going, false);
        assert_eq!(end(Goal::GivenUp, Some(&replica(phase, "Move")), Some("n1")), going, "{phase}");
    }
    let late = |end: (State, bool)| matches!(end, (State::Ended(Ending::Done(why)), false) if why.contains("too late"));
    assert!(late(end(Goal::GivenUp, Some(&replica("Retiring", "Move")), None)));
    assert!(late(end(Goal::GivenUp, Some(&replica("Left", "Move")), None)));
    assert!(late(end(Goal::GivenUp, None, Some("n2"))));
    assert!(end(Goal::GivenUp, None, Some("n1")).1);
    assert!(end(Goal::GivenUp, None, None).1);
    assert!(end(Goal::GivenUp, Some(&replica("Following", "Standby")), None).1, "it stands by again");
}

#[test]
fn a_promotion_ends_on_the_node_of_the_copy() {
    for phase in ["Standby", "CuttingOver", "Exchanging", "LastPass", "Completing"] {
        let going = (State::Going, false);
        assert_eq!(end(Goal::Promoted, Some(&replica(phase, "Standby")), Some("n1")), going, "{phase}");
        assert!(end(Goal::Promoted, Some(&replica(phase, "Standby")), Some("n2")).1, "{phase}");
    }
    assert!(end(Goal::Promoted, Some(&replica("Left", "Standby")), None).1);
    let unasked = |phase| Replica { promoted: false, ..replica(phase, "Standby") };
    assert_eq!(end(Goal::Promoted, Some(&unasked("Exchanging")), None).0, State::Going);
    for seen in [Some(replica("Abandoning", "Standby")), Some(unasked("Standby")), None] {
        let (state, is_good) = end(Goal::Promoted, seen.as_ref(), Some("n1"));
        assert!(matches!(state, State::Ended(Ending::GivenUp(_))) && !is_good, "{seen:?}");
    }
}
