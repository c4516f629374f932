//! Which VolumeMove a request needs, without a cluster.

use crate::admin::ask::{Plan, Wish};
use crate::admin::follow::Ending;
use crate::admin::seen::{Move, Name, Told};
use crate::cluster::moves::resources::{Target, VolumeMoveSpec, When};

fn claim() -> Name {
    Name { namespace: "shop".to_owned(), name: "data".to_owned() }
}

fn spec(node: Option<&str>, when: When) -> VolumeMoveSpec {
    let target = Target { node: node.map(str::to_owned), ..Target::default() };
    VolumeMoveSpec { claim_name: "data".to_owned(), target, when, ..VolumeMoveSpec::default() }
}

fn asked(name: &str, phase: &str, spec: VolumeMoveSpec) -> Move {
    let told = Told { phase: phase.to_owned(), ..Told::default() };
    Move { name: name.to_owned(), claim: claim(), spec: Some(spec), told, ..Move::default() }
}

/// A node is emptied.
fn away(to: Option<&str>, when: When) -> Wish {
    Wish { spec: spec(to, when), away_from: Some("n1".to_owned()), in_place: false }
}

#[test]
fn an_evacuation_follows_what_leaves_its_node() {
    let follows = |wish: Wish, asked: &Move| {
        matches!(wish.plan(&claim(), std::slice::from_ref(asked), Some("n1")), Plan::Follow(_))
    };
    let to_n3 = asked("m", "Copying", spec(Some("n3"), When::PodsLeave));
    assert!(follows(away(None, When::PodsLeave), &to_n3));
    assert!(follows(away(Some("n3"), When::PodsLeave), &to_n3));
    assert!(!follows(away(Some("n2"), When::PodsLeave), &to_n3));
    assert!(!follows(away(None, When::Now), &to_n3), "its pods would not be evicted");
    let now = asked("m", "", spec(None, When::Now));
    assert!(follows(away(None, When::PodsLeave), &now) && follows(away(None, When::Now), &now));
    let unreadable = Move { spec: None, ..to_n3 };
    assert!(!follows(away(None, When::PodsLeave), &unreadable));
}

#[test]
fn an_evacuation_keeps_what_an_owner_wanted_kept() {
    let refused = VolumeMoveSpec { keep_source: true, ..spec(Some("n9"), When::PodsLeave) };
    let refused = asked("data", "Refused", refused);
    let plan = away(None, When::Now).plan(&claim(), std::slice::from_ref(&refused), Some("n1"));
    let spec = VolumeMoveSpec { keep_source: true, ..spec(None, When::Now) };
    assert_eq!(plan, Plan::Create { name: "data".to_owned(), spec, instead_of: Some(refused) });
}

#[test]
fn a_name_is_free_if_its_move_is_over() {
    let wish = Wish { spec: spec(Some("n2"), When::Now), away_from: None, in_place: false };
    let of_log = Move {
        claim: Name { name: "log".to_owned(), ..claim() },
        ..asked("data", "Done", spec(None, When::Now))
    };
    let leaving = Move { being_deleted: true, ..asked("data-2", "Done", spec(None, When::Now)) };
    let done = asked("data-3", "Done", spec(None, When::Now));
    let plan = |moves: &[Move]| match wish.plan(&claim(), moves, Some("n1")) {
        Plan::Create { name, instead_of, .. } => (name, instead_of.is_some()),
        other => panic!("{other:?}"),
    };
    assert_eq!(plan(&[]), ("data".to_owned(), false));
    assert_eq!(plan(std::slice::from_ref(&of_log)), ("data-2".to_owned(), false));
    assert_eq!(plan(&[of_log.clone(), leaving.clone()]), ("data-3".to_owned(), false));
    assert_eq!(plan(&[of_log, leaving, done]), ("data-3".to_owned(), true));
}

#[test]
fn a_volume_on_its_way_is_not_there_already() {
    let wish = Wish { spec: spec(Some("n1"), When::Now), away_from: None, in_place: false };
    assert!(matches!(wish.plan(&claim(), &[], Some("n1")), Plan::End(Ending::Done(_))));
    let leaving = asked("data", "CuttingOver", spec(Some("n2"), When::Now));
    assert!(matches!(wish.plan(&claim(), &[leaving], Some("n1")), Plan::End(Ending::Refused(_))));
}
