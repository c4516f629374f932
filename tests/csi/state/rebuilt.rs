//! `hostloop state rebuild` after the file was lost, cut off, or exchanged with an older one.

use super::*;
use crate::invariants::directory_of;
use hostloop::model::{GroupSnapshot, Handover, Side, Volume};
use hostloop::store::{Beside, Subject};
use hostloop_fake_kernel::Kill;
use tonic::Code;

#[test]
fn a_lost_file_is_rebuilt_under_running_pods() {
    let mut world = World::new();
    let before = world.seen();
    let mounts = world.rig.kernel.mounts().len();
    world.rig.kernel.remove_file(STATE).expect("remove");
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(report.good, "{}", report.text);
    assert_eq!(world.seen(), before);
    assert_eq!(world.rig.kernel.mounts().len(), mounts, "no pod has noticed");
    world.check_data();
}

/// Also if a driver has started without the file, and has made further volumes.
#[test]
fn a_file_that_was_begun_anew_is_completed() {
    let mut world = World::new();
    world.start_without_state();
    assert!(world.rig.ok(csi::ListVolumesRequest::default()).entries.is_empty());
    let further = world.rig.made(create("further", block()));
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(report.good && report.text.contains("9 volumes and"), "{}", report.text);
    let listed = world.seen().0.entries.into_iter().filter_map(|entry| entry.volume);
    let listed: Vec<String> = listed.map(|volume| volume.volume_id).collect();
    assert!(world.vols.iter().chain([&further]).all(|vol| listed.contains(&vol.id)), "{listed:?}");
    world.check_data();
}

#[test]
fn a_file_cut_off_at_any_line_is_rebuilt() {
    let mut world = World::new();
    let before = world.seen();
    world.rig.start_again();
    let whole = world.rig.kernel.read_file(STATE).expect("read");
    let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    for end in [0].into_iter().chain(ends) {
        world.rig.kernel.kill();
        world.rig.kernel.restart();
        replace_state(&world, &whole[..end]);
        let report = world.run(Verb::Rebuild, Wishes::default());
        assert!(report.good, "{end}: {}", report.text);
        assert_eq!(world.seen(), before, "cut off at {end}");
    }
    world.check_data();
}

#[test]
fn an_older_file_is_brought_up_to_date() {
    let mut world = World::new();
    let older = world.rig.kernel.read_file(STATE).expect("read");
    let vols = world.vols.clone();
    let rig = &world.rig;
    // The oldest has fewer volumes, and one that is gone by now.
    let made = rig.made(create("later", block()));
    rig.ok(csi::ControllerExpandVolumeRequest {
        volume_id: vols[0].id.clone(),
        capacity_range: range(2 * SIZE, 0),
        ..Default::default()
    });
    rig.ok(vols[7].delete_request());
    rig.ok(csi::ControllerModifyVolumeRequest {
        volume_id: made.id.clone(),
        mutable_parameters: map(&[("directIO", "false")]),
        ..Default::default()
    });
    let before = world.seen();
    world.rig.kernel.kill();
    world.rig.kernel.restart();
    replace_state(&world, &older);
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(report.good, "{}", report.text);
    assert!(
        report.text.contains("its directory is gone") && report.text.contains("its size is"),
        "{}",
        report.text
    );
    assert_eq!(world.seen(), before);
}

/// A driver has started with it: its numbers are no longer lower than those of the records, so that it may be right.
#[test]
fn an_older_file_in_use_is_completed_and_not_believed() {
    let mut world = World::new();
    let older = world.rig.kernel.read_file(STATE).expect("read");
    let gone = world.vols[7].clone();
    world.rig.ok(gone.delete_request());
    let later = world.rig.made(create("later", block()));
    let before = world.seen();
    world.rig.kernel.kill();
    world.rig.kernel.restart();
    replace_state(&world, &older);
    for _ in 0..20 {
        world.rig.start_again();
    }
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(!report.good && report.text.contains(&later.id), "{}", report.text);
    assert!(report.text.contains("LEFT AS IT IS: its directory is gone"), "{}", report.text);
    let drop = [gone.id.clone()].into();
    let report = world.run(Verb::Rebuild, Wishes { drop, ..Wishes::default() });
    assert!(report.good, "{}", report.text);
    assert_eq!(world.seen(), before);
}

#[test]
fn a_whole_file_is_left_as_it_is() {
    let mut world = World::new();
    let before = world.rig.kernel.read_file(STATE).expect("read");
    for verb in [Verb::Check, Verb::Repair, Verb::Rebuild] {
        let os = world.rig.kernel.restart();
        let report = run(&os, &task(verb, true)).expect("it runs");
        assert!(report.good, "{verb:?}: {}", report.text);
        assert_eq!(world.rig.kernel.read_file(STATE).expect("read"), before, "{verb:?}");
        world.rig.kernel.kill();
    }
    world.rig.start_again();
}

/// The record of a new volume is durable before its image. It brings no volume back that is not whole.
#[test]
fn a_creation_that_was_cut_off_gives_no_half_volume() {
    let steps = {
        let rig = Rig::new();
        rig.kernel.clear_steps();
        rig.made(create("later", fs("ext4")));
        rig.kernel.steps().len()
    };
    let mut whole = 0;
    for (n, kill) in (1..=steps).flat_map(|n| [Kill::Before, Kill::Torn, Kill::After].map(|kill| (n, kill))) {
        let mut rig = Rig::new();
        rig.kernel.kill_at(n, kill);
        let _ = rig.call(create("later", fs("ext4")));
        let os = rig.kernel.power_cut();
        rig.kernel.remove_file(STATE).expect("remove");
        let pools = [("default", DATA), ("directories", DIRECTORIES_DIR)];
        let pools = pools.map(|(name, path)| (name.parse().expect("a name"), path.into())).into();
        let report = run(&os, &Task { pools, ..task(Verb::Rebuild, true) }).expect("it runs");
        rig.kernel.kill();
        rig.start_again();
        for entry in rig.ok(csi::ListVolumesRequest::default()).entries {
            let vol = Vol::new(entry.volume.expect("a volume"), fs("ext4"));
            rig.stage(&vol);
            rig.publish(&vol, "pod");
            assert_eq!(rig.image(&vol).size, vol.bytes(), "step {n}, {kill:?}: {}", report.text);
            whole += 1;
        }
    }
    assert!(whole > 0, "some were whole");
}

/// As after a kill between the state file and the record beside the data.
#[test]
fn a_whole_file_is_right_about_a_record_that_differs() {
    let world = World::new();
    let directory = directory_of(&world.rig.kernel, &world.vols[7].id).expect("a directory");
    let path = format!("{directory}/volume.json");
    let record = Beside::read(&world.rig.kernel.read_file(&path).expect("read")).expect("a record");
    let Subject::Volume(volume) = record.subject.clone() else { panic!("{record:?}") };
    let subject = Subject::Volume(Volume { block_size: 4096, ..volume });
    let text = Beside { subject, ..record }.text().expect("JSON");
    world.rig.kernel.remove_file(&path).expect("remove");
    world.rig.kernel.write_file(&path, &text).expect("write");
    let before = world.rig.kernel.read_file(STATE).expect("read");
    let os = world.rig.kernel.restart();
    let checked = run(&os, &task(Verb::Check, false)).expect("it runs");
    assert!(!checked.good && checked.text.contains("stays as the state file says"), "{}", checked.text);
    world.rig.kernel.write_file(format!("{directory}/deleting"), b"").expect("mark");
    run(&os, &task(Verb::Rebuild, true)).expect("it runs");
    assert_eq!(world.rig.kernel.read_file(STATE).expect("read"), before, "a mark alone deletes nothing");
}

/// A volume has moved to another pool of the node, and the record in the earlier pool could not be written.
#[test]
fn the_later_generation_of_two_is_the_volume() {
    for (earlier, later) in [("default", "fast"), ("fast", "default")] {
        let mut world = World::new();
        let [old, new] = [("old", earlier), ("new", later)]
            .map(|(name, pool)| world.rig.made(create_with(name, &[("pool", pool)])));
        let pool = if later == "fast" { FAST } else { DATA };
        let path = format!("{pool}/volumes/{}/volume.json", new.id);
        let record = Beside::read(&world.rig.kernel.read_file(&path).expect("read")).expect("a record");
        let Subject::Volume(volume) = record.subject.clone() else { panic!("{record:?}") };
        let id = old.id.parse().expect("an id");
        let subject =
            Subject::Volume(Volume { id, directory: Some(volume.id.clone()), generation: 1, ..volume });
        let text = Beside { subject, ..record }.text().expect("JSON");
        world.lose_state();
        world.rig.kernel.remove_file(&path).expect("remove");
        world.rig.kernel.write_file(&path, &text).expect("write");
        let report = world.run(Verb::Rebuild, Wishes::default());
        assert!(
            report.text.contains("another directory has a later generation"),
            "{earlier}: {}",
            report.text
        );
        let get = csi::ControllerGetVolumeRequest { volume_id: old.id.clone() };
        let found = world.rig.ok(get).volume.expect("a volume");
        assert_eq!(found.volume_context["pool"], later, "{earlier}");
    }
}

/// A deletion has to ask the node that has a copy of it.
#[test]
fn an_older_file_learns_where_a_group_goes() {
    let mut world = World::new();
    let group = world.rig.ok(get_group(&world.group, &[])).group_snapshot.expect("a group");
    let handover = Handover { side: Side::Offered, node_id: "b".to_owned(), number: 7 };
    let last = group.snapshots.last().expect("a member").snapshot_id.clone();
    let snapshots = [FAST, DATA].into_iter().map(|pool| format!("{pool}/snapshots/{last}/snapshot.json"));
    let path = snapshots.into_iter().find(|path| world.rig.kernel.exists(path)).expect("a record");
    let record = Beside::read(&world.rig.kernel.read_file(&path).expect("read")).expect("a record");
    let Subject::Snapshot(member, Some(group)) = record.subject.clone() else { panic!("{record:?}") };
    let subject = Subject::Snapshot(member, Some(GroupSnapshot { handover: Some(handover), ..group }));
    let text = Beside { seq: record.seq + 1000, subject, ..record }.text().expect("JSON");
    world.rig.kernel.kill();
    world.rig.kernel.restart();
    world.rig.kernel.remove_file(&path).expect("remove");
    world.rig.kernel.write_file(&path, &text).expect("write");
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(report.text.contains("on its way to another node"), "{}", report.text);
    let why = world.rig.fails(Code::FailedPrecondition, delete_group(&world.group, &[]));
    assert!(why.contains("node \"b\" may have a copy"), "{why}");
}

#[test]
fn nothing_is_changed_without_yes() {
    let world = World::new();
    world.rig.kernel.remove_file(STATE).expect("remove");
    let os = world.rig.kernel.restart();
    world.rig.kernel.clear_steps();
    for verb in [Verb::Check, Verb::Repair, Verb::Rebuild] {
        let report = run(&os, &task(verb, false)).expect("it runs");
        assert!(
            !report.good && report.text.contains("recorded, as the record beside its data says"),
            "{}",
            report.text
        );
    }
    assert_eq!(world.rig.kernel.steps().len(), 0);
}

#[test]
fn a_running_driver_is_not_disturbed() {
    let world = World::new();
    let error = run(&world.rig.kernel.spawn(), &task(Verb::Rebuild, true)).expect_err("it is locked");
    assert!(error.to_string().contains("stop the driver first"), "{error}");
    let report = run(&world.rig.kernel.spawn(), &task(Verb::Check, false)).expect("reading is allowed");
    assert!(report.good, "{}", report.text);
}

#[test]
fn a_rebuild_can_end_at_any_step() {
    let steps = {
        let world = World::new();
        world.rig.kernel.remove_file(STATE).expect("remove");
        let os = world.rig.kernel.restart();
        world.rig.kernel.clear_steps();
        run(&os, &task(Verb::Rebuild, true)).expect("it runs");
        world.rig.kernel.steps().len()
    };
    for n in 1..=steps {
        for power in [false, true] {
            let mut world = World::new();
            let before = world.seen();
            world.rig.kernel.remove_file(STATE).expect("remove");
            let os = world.rig.kernel.restart();
            world.rig.kernel.kill_at(n, Kill::Torn);
            let _ = run(&os, &task(Verb::Rebuild, true));
            assert!(world.rig.kernel.is_dead(), "step {n}");
            if power {
                world.rig.kernel.power_cut();
            }
            let report = world.run(Verb::Rebuild, Wishes::default());
            assert!(report.good, "step {n}: {}", report.text);
            assert_eq!(world.seen(), before, "step {n}, power {power}");
            if !power {
                world.check_data();
            }
        }
    }
}

pub(super) fn replace_state(world: &World, bytes: &[u8]) {
    world.rig.kernel.remove_file(STATE).expect("remove");
    world.rig.kernel.write_file(STATE, bytes).expect("write");
}
