//! GetSnapshot.

use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

#[test]
fn the_answer_is_that_of_create_snapshot() {
    let mut rig = both_pools();
    let vols: Vec<Vol> = kinds().into_iter().map(|request| rig.made(request)).collect();
    let cuts: Vec<_> = vols.iter().map(|vol| rig.cut(&vol.id, vol)).collect();
    for cut in cuts {
        assert_eq!(rig.ok(get_snapshot(&cut.snapshot_id)).snapshot.as_ref(), Some(&cut));
        rig.power_cut();
        assert_eq!(rig.ok(get_snapshot(&cut.snapshot_id)).snapshot.as_ref(), Some(&cut));
    }
}

#[test]
fn a_member_names_its_group() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let made = rig.ok(group("g", &[&vol.id])).group_snapshot.expect("a group");
    let member = &made.snapshots[0];
    assert_eq!(rig.ok(get_snapshot(&member.snapshot_id)).snapshot.as_ref(), Some(member));
    assert_eq!(member.group_snapshot_id, made.group_snapshot_id);
}

#[test]
fn an_unknown_snapshot_is_not_found() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let cut = rig.cut("s", &vol);
    rig.ok(delete_snapshot(&cut.snapshot_id));
    for id in [cut.snapshot_id.as_str(), "none", "../x", vol.id.as_str()] {
        assert!(rig.fails(Code::NotFound, get_snapshot(id)).contains(id));
    }
    assert!(rig.fails(Code::InvalidArgument, get_snapshot("")).contains("snapshot_id"));
}
