//! Groups that are half made or half deleted.

use hostloop::wire::peer;
use nix::errno::Errno;
use tonic::Code;

use super::doctor::{fix, look};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;

/// The finding about the group itself.
#[track_caller]
fn of_group(rig: &Rig, id: &str) -> peer::Finding {
    let found = look(rig).findings;
    found.iter().find(|finding| finding.id == id).unwrap_or_else(|| panic!("of {id}: {found:?}")).clone()
}

/// A group of two volumes whose deletion has failed.
fn half_deleted() -> (Rig, String, Vec<String>) {
    let rig = Rig::new();
    let vols = ["one", "two"].map(|name| rig.volume(name, mount()));
    let made =
        rig.ok(group("group", &[vols[0].id.as_str(), vols[1].id.as_str()])).group_snapshot.expect("a group");
    let members: Vec<String> = made.snapshots.iter().map(|member| member.snapshot_id.clone()).collect();
    for step in ["remove_tree", "remove_file"] {
        rig.kernel.fail_every(step, Errno::EIO);
    }
    let ids: Vec<&str> = members.iter().map(String::as_str).collect();
    assert!(rig.call(delete_group(&made.group_snapshot_id, &ids)).is_err());
    rig.kernel.heal();
    (rig, made.group_snapshot_id, members)
}

#[test]
fn a_group_that_is_half_deleted_goes_whole() {
    let (rig, id, members) = half_deleted();
    let finding = of_group(&rig, &id);
    assert_eq!(
        (finding.class.as_str(), finding.loses_data, finding.needs_unnamed),
        ("half-made", false, false)
    );
    let done = rig.ok(fix(&finding)).done;
    assert!(done.contains(&format!("removed {id}")), "{done}");
    assert!(look(&rig).findings.is_empty());
    for member in members {
        assert!(!rig.kernel.exists(format!("{DATA}/snapshots/{member}")), "{member}");
    }
    let left: Vec<String> = look(&rig).records.into_iter().map(|record| record.kind).collect();
    assert_eq!(left, ["volume", "volume"], "its volumes stay");
}

#[test]
fn a_group_that_has_changed_is_left_alone() {
    let (rig, id, _) = half_deleted();
    let finding = of_group(&rig, &id);
    let other = peer::FixFindingRequest { seen: "another".to_owned(), ..fix(&finding) };
    let why = rig.fails(Code::FailedPrecondition, other);
    assert!(why.contains("has changed since"), "{why}");
    assert_eq!(of_group(&rig, &id), finding);
    rig.ok(fix(&finding));
    rig.fails(Code::FailedPrecondition, fix(&finding));
}
