//! The GroupController: several volumes cut at one point in time, all or none.

use hostloop::store::Durability;
use hostloop::wire::csi;
use nix::errno::Errno;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

impl Rig {
    /// Makes a group.
    #[track_caller]
    pub fn group(&self, name: &str, vols: &[&Vol]) -> csi::VolumeGroupSnapshot {
        self.ok(group_of(name, vols)).group_snapshot.expect("a group")
    }

    /// Two volumes in use, with data.
    fn two_in_use(&self, pool: &str) -> [Vol; 2] {
        ["one", "two"].map(|name| {
            let (vol, _) = self.in_use(create_with(name, &[("pool", pool)]));
            self.write(&vol, name);
            vol
        })
    }
}

fn group_of(name: &str, vols: &[&Vol]) -> csi::CreateVolumeGroupSnapshotRequest {
    group(name, &vols.iter().map(|vol| vol.id.as_str()).collect::<Vec<_>>())
}

/// The ids of the members.
fn members(group: &csi::VolumeGroupSnapshot) -> Vec<&str> {
    group.snapshots.iter().map(|member| member.snapshot_id.as_str()).collect()
}

/// Where a step first comes, and where it last comes.
fn first_and_last(steps: &[&str], name: &str) -> (usize, usize) {
    let at = |at: Option<usize>| at.unwrap_or_else(|| panic!("{name}: {steps:?}"));
    (at(steps.iter().position(|step| *step == name)), at(steps.iter().rposition(|step| *step == name)))
}

/// The state file is older than the group.
#[test]
fn a_group_without_its_record_stays() {
    let mut rig = both_pools();
    let vols = rig.two_in_use("fast");
    let made = rig.group("g", &[&vols[0], &vols[1]]);
    let delete = delete_group(&made.group_snapshot_id, &members(&made));
    rig.restore_state(|store| {
        let id = made.group_snapshot_id.parse().expect("an id");
        store.delete_group(&id, Durability::Synced).expect("delete");
        for member in members(&made) {
            store.delete_snapshot(&member.parse().expect("an id"), Durability::Synced).expect("delete");
        }
    });
    let place = |member: &str| format!("{FAST}/snapshots/{member}");
    for member in members(&made) {
        let why = rig.fails(Code::FailedPrecondition, delete.clone());
        assert!(why.contains(&place(member)), "{why}");
        // The administrator does what the message says.
        rig.kernel.spawn().trees.remove(place(member).as_ref()).expect("remove");
    }
    rig.ok(delete);
}

#[test]
fn the_group_controller_announces_one_capability() {
    let rig = Rig::new();
    let reply = rig.ok(csi::GroupControllerGetCapabilitiesRequest {});
    assert_eq!(reply.capabilities.len(), 1);
}

#[test]
fn the_answer_tells_all_of_it_and_stays_the_same() {
    let mut rig = both_pools();
    for pool in ["default", "fast"] {
        let vols =
            ["a", "b", "c"].map(|name| rig.made(create_with(&format!("{name} {pool}"), &[("pool", pool)])));
        let made = rig.group(pool, &[&vols[0], &vols[1], &vols[2]]);
        assert!(made.ready_to_use && made.group_snapshot_id.starts_with("grp-"));
        assert!(made.group_snapshot_id.len() <= 128);
        let mut sources: Vec<&str> = made.snapshots.iter().map(|cut| cut.source_volume_id.as_str()).collect();
        let mut wanted: Vec<&str> = vols.iter().map(|vol| vol.id.as_str()).collect();
        sources.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(sources, wanted);
        for member in &made.snapshots {
            assert_eq!(member.group_snapshot_id, made.group_snapshot_id);
            assert_eq!(member.creation_time, made.creation_time, "one point in time");
            assert_eq!((member.size_bytes, member.ready_to_use), (SIZE, true));
            assert_eq!(member.accessible_topology, vec![topology(NODE)]);
            assert!(rig.snapshots().contains(member));
        }
        let other_order = group_of(pool, &[&vols[2], &vols[0], &vols[1], &vols[0]]);
        let ids = members(&made);
        rig.power_cut();
        for _ in 0..2 {
            assert_eq!(rig.ok(other_order.clone()).group_snapshot.as_ref(), Some(&made));
            assert_eq!(rig.ok(get_group(&made.group_snapshot_id, &[])).group_snapshot.as_ref(), Some(&made));
            let named = rig.ok(get_group(&made.group_snapshot_id, &ids)).group_snapshot;
            assert_eq!(named.as_ref(), Some(&made));
            // It outlives what it was made of.
            vols.iter().for_each(|vol| {
                rig.ok(vol.delete_request());
            });
        }
        rig.ok(delete_group(&made.group_snapshot_id, &ids));
        rig.assert_no_snapshot();
    }
}

#[test]
fn a_name_is_of_one_set_of_volumes_and_one_class() {
    let rig = Rig::new();
    let vols = ["a", "b", "c"].map(|name| rig.volume(name, mount()));
    let made = rig.group("g", &[&vols[0], &vols[1]]);
    let with_class = csi::CreateVolumeGroupSnapshotRequest {
        parameters: map(&AS_IT_IS),
        ..group_of("g", &[&vols[0], &vols[1]])
    };
    let others = [
        group_of("g", &[&vols[0]]),
        group_of("g", &[&vols[0], &vols[2]]),
        group_of("g", &[&vols[0], &vols[1], &vols[2]]),
        group("g", &[&vols[0].id, &vols[1].id, "none"]),
        with_class,
    ];
    for other in others {
        rig.fails(Code::AlreadyExists, other);
    }
    assert_eq!(rig.snapshots().len(), 2);
    assert_eq!(rig.group("g", &[&vols[0], &vols[1]]), made);
    // Names of snapshots are others.
    rig.cut("g", &vols[0]);
}

#[test]
fn missing_fields_and_unknown_members_are_named() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let request = || group_of("g", &[&vol]);
    let refused = [
        ("name", csi::CreateVolumeGroupSnapshotRequest { name: String::new(), ..request() }),
        ("source_volume_ids", group("g", &[])),
        ("source_volume_ids[1]", group("g", &[&vol.id, ""])),
        (
            "freezeTimeout",
            csi::CreateVolumeGroupSnapshotRequest {
                parameters: map(&[("freezeTimeout", "1h")]),
                ..request()
            },
        ),
    ];
    for (field, request) in refused {
        let message = rig.fails(Code::InvalidArgument, request);
        assert!(message.contains(field), "{message}");
    }
    rig.steps();
    for id in ["none", "../../v", "csi-0a", "snap-x"] {
        assert!(rig.fails(Code::NotFound, group("g", &[&vol.id, id])).contains(id));
    }
    assert_eq!(rig.steps(), Vec::<&str>::new());
    rig.assert_no_snapshot();
}

#[test]
fn all_members_are_frozen_until_the_last_is_cut() {
    for (pool, cut_by) in [("default", "copy_range"), ("fast", "reflink")] {
        let rig = both_pools();
        let [one, two] = rig.two_in_use(pool);
        rig.steps();
        let made = rig.group("g", &[&one, &two]);
        let steps = rig.steps();
        let ((_, frozen), (thawed, _)) = (first_and_last(&steps, "freeze"), first_and_last(&steps, "thaw"));
        let (first, last) = first_and_last(&steps, cut_by);
        assert!(frozen < first && last < thawed, "{steps:?}");
        assert_eq!(steps.iter().filter(|step| **step == "freeze").count(), 2);
        assert_eq!(rig.kernel.frozen(), Vec::<std::path::PathBuf>::new());
        for vol in [&one, &two] {
            rig.write(vol, "new");
            let member = made.snapshots.iter().find(|cut| cut.source_volume_id == vol.id).expect("a member");
            let source = from_snapshot(&member.snapshot_id);
            let restored = rig.made(copy(&member.snapshot_id, source, mount(), &[("pool", pool)]));
            let text = if vol.id == one.id { "one" } else { "two" };
            assert_eq!(rig.content(&restored, 3), text);
        }
    }
}

#[test]
fn members_without_one_point_in_time_are_refused() {
    let rig = both_pools();
    let raw = ["one", "two"].map(|name| {
        let request =
            csi::CreateVolumeRequest { parameters: map(&[("pool", "fast")]), ..create(name, block()) };
        rig.in_use(request).0
    });
    let [one, two] = &raw;
    let message = rig.fails(Code::FailedPrecondition, group_of("g", &[one, two]));
    assert!(message.contains(&one.id) && message.contains(&two.id), "{message}");
    let (directory, _) =
        rig.in_use(create_with("directory", &[("backend", "directory"), ("pool", "directories")]));
    rig.fails(Code::FailedPrecondition, group_of("g", &[one, &directory]));
    rig.assert_no_snapshot();
    rig.rest(one);
    rig.group("at rest", &[one, two]);
}

/// Each step of the copies of all members fails once.
#[test]
fn a_member_that_fails_takes_the_others_with_it() {
    for pool in ["default", "fast"] {
        let rig = both_pools();
        let [one, two] = rig.two_in_use(pool);
        rig.steps();
        let made = rig.group("g", &[&one, &two]);
        let steps = rig.steps();
        rig.ok(delete_group(&made.group_snapshot_id, &[]));
        for n in (1..=steps.len()).filter(|n| ["copy_range", "reflink", "freeze"].contains(&steps[n - 1])) {
            rig.kernel.clear_steps();
            rig.kernel.fail_at(n, Errno::ENOSPC);
            rig.call(group_of("g", &[&one, &two])).expect_err("a step fails");
            rig.assert_no_snapshot();
            rig.fails(Code::NotFound, get_group(&made.group_snapshot_id, &[]));
            rig.write(&one, "writing goes on");
            rig.write(&two, "writing goes on");
        }
        assert_eq!(rig.group("g", &[&one, &two]).group_snapshot_id, made.group_snapshot_id);
    }
}

#[test]
fn a_group_without_room_is_refused_at_once() {
    let rig = Rig::with(&["--reserve", "0"]);
    let vols = ["one", "two"].map(|name| {
        let (vol, target) = rig.in_use(create(name, block()));
        rig.kernel.write(&target, 0, &[1; 8 << 20]).expect("write");
        rig.rest(&vol);
        vol
    });
    // Beside what both may still write there is room for one of them.
    rig.kernel.set_space(20 * GIB as u64, (2 * 56 + 12) << 20);
    let rig = rig.restart_with(&["--reserve", "0"]);
    rig.steps();
    rig.fails(Code::ResourceExhausted, group_of("g", &[&vols[0], &vols[1]]));
    assert_eq!(rig.steps().iter().filter(|step| step.contains("copy")).count(), 0);
    rig.assert_no_snapshot();
    rig.group("alone", &[&vols[0]]);
}

#[test]
fn a_deleted_group_frees_its_members_and_name() {
    let mut rig = Rig::new();
    let vols = ["one", "two"].map(|name| rig.volume(name, mount()));
    let made = rig.group("g", &[&vols[0], &vols[1]]);
    let alone = rig.cut("alone", &vols[0]);
    let id = made.group_snapshot_id.as_str();
    let ids = members(&made);
    for named in [vec![ids[0]], vec![ids[0], &alone.snapshot_id], vec![ids[0], ids[1], &alone.snapshot_id]] {
        let message = rig.fails(Code::InvalidArgument, delete_group(id, &named));
        assert!(message.contains(ids[1]), "{message}");
        rig.fails(Code::InvalidArgument, get_group(id, &named));
    }
    rig.fails(Code::InvalidArgument, delete_group("", &[]));
    rig.fails(Code::InvalidArgument, get_group("", &[]));
    for unknown in ["none", "../x", &vols[0].id, &alone.snapshot_id, &id.to_uppercase()] {
        rig.ok(delete_group(unknown, &[]));
        rig.ok(delete_group(unknown, &["x"]));
        assert!(rig.fails(Code::NotFound, get_group(unknown, &[])).contains(unknown));
    }
    assert_eq!(rig.snapshots().len(), 3);
    for _ in 0..2 {
        rig.ok(delete_group(id, &[ids[1], ids[0]]));
        assert_eq!(rig.snapshots(), std::slice::from_ref(&alone));
        rig.fails(Code::NotFound, get_group(id, &[]));
    }
    rig.power_cut();
    let again = rig.group("g", &[&vols[1]]);
    assert_eq!((again.group_snapshot_id.as_str(), again.snapshots.len()), (id, 1));
}

#[test]
fn many_groups_at_once_end_or_are_aborted() {
    let rig = both_pools();
    let [one, two] = rig.two_in_use("fast");
    for round in 0..6 {
        let requests = (0..6).map(|n| group_of(&format!("g{}", n % 3), &[&one, &two])).collect();
        let answers = rig.at_once(requests);
        assert!(answers.iter().any(Result::is_ok), "round {round}");
        for status in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(status.code(), Code::Aborted, "{}", status.message());
        }
        for n in 0..3 {
            let made = rig.group(&format!("g{n}"), &[&one, &two]);
            rig.ok(delete_group(&made.group_snapshot_id, &[]));
        }
        rig.assert_no_snapshot();
    }
}

#[test]
fn a_repeat_writes_nothing() {
    let rig = Rig::new();
    let (one, two) = (rig.volume("one", mount()), rig.volume("two", block()));
    let request = group("g", &[&one.id, &two.id]);
    let (made, cut) = (rig.ok(request.clone()), rig.cut("s", &one));
    rig.steps();
    assert_eq!((rig.ok(request), rig.cut("s", &one)), (made, cut));
    assert_eq!(rig.steps(), Vec::<&str>::new());
}

/// The disk fails until the driver has given up undoing it.
#[test]
fn a_group_that_was_not_undone_is_made_anew() {
    let rig = Rig::new();
    let [one, two] = ["one", "two"].map(|name| {
        let (vol, _) = rig.in_use(create(name, mount()));
        rig.write(&vol, "text");
        rig.rest(&vol);
        vol
    });
    for step in ["copy_range", "remove_file"] {
        rig.kernel.fail_every(step, Errno::EIO);
    }
    let request = group("g", &[&one.id, &two.id]);
    for _ in 0..2 {
        rig.fails(Code::Internal, request.clone());
        rig.fails(Code::Internal, snapshot("s", &one));
        assert_eq!(rig.snapshots(), []);
    }
    rig.kernel.heal();
    let made = rig.ok(request).group_snapshot.expect("a group");
    assert!(made.snapshots.iter().all(|member| member.ready_to_use));
    assert!(rig.cut("s", &one).ready_to_use);
    assert_eq!((made.snapshots.len(), rig.snapshots().len()), (2, 3));
    for cut in rig.snapshots() {
        let name = format!("restored {}", cut.snapshot_id);
        let restored = rig.made(copy(&name, from_snapshot(&cut.snapshot_id), mount(), &[]));
        assert_eq!(rig.content(&restored, 4), "text");
    }
}
