//! Contradictions are left unchanged until the administrator decides.

use super::*;
use crate::invariants::directory_of;
use hostloop::model::{Moved, NodeKey, Phase, Volume, VolumeId};
use hostloop::store::{Beside, Durability, Store, Subject};
use tonic::Code;

fn only(id: &str) -> std::collections::BTreeSet<String> {
    [id.to_owned()].into()
}

#[test]
fn data_without_a_record_are_left_and_named() {
    let mut world = World::new();
    world.lose_state();
    let vol = world.vols[0].clone();
    let directory = directory_of(&world.rig.kernel, &vol.id).expect("a directory");
    world.rig.kernel.write_file(format!("{directory}/volume.json"), b"{}\n").expect("write");
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(
        !report.good && report.text.contains(&vol.id) && report.text.contains("LEFT AS IT IS"),
        "{}",
        report.text
    );
    world.rig.fails(Code::NotFound, csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() });
    world.rig.fails(Code::FailedPrecondition, vol.delete_request());
    world.rig.rest(&vol);
    world.rig.fails(Code::FailedPrecondition, vol.delete_request());
    assert!(world.rig.kernel.exists(format!("{directory}/disk.img")));
    let dropped = world.run(Verb::Rebuild, Wishes { drop: only(&vol.id), ..Wishes::default() });
    assert!(dropped.good && world.rig.kernel.exists(format!("{directory}/disk.img")), "{}", dropped.text);
}

#[test]
fn a_shorter_image_is_kept_if_somebody_says_so() {
    let mut world = World::new();
    world.lose_state();
    let vol = world.vols[7].clone();
    let directory = directory_of(&world.rig.kernel, &vol.id).expect("a directory");
    let image = format!("{directory}/disk.img");
    world.rig.kernel.spawn().images.set_size(image.as_ref(), SIZE as u64 / 2).expect("truncate");
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(!report.good && report.text.contains("its record says"), "{}", report.text);
    world.run(Verb::Rebuild, Wishes { keep: only(&vol.id), ..Wishes::default() });
    world.rig.ok(csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() });
    world.rig.fails(Code::FailedPrecondition, world.rig.stage_request(&vol));
}

/// An administrator has copied a directory under the id of another volume.
#[test]
fn a_record_of_another_directory_is_never_kept() {
    let mut world = World::new();
    let vol = world.vols[7].clone();
    let before = world.seen();
    world.lose_state();
    let directory = directory_of(&world.rig.kernel, &vol.id).expect("a directory");
    let copy = VolumeId::of_name(&NodeKey::of(NODE), "copied");
    let copied = directory.replace(&vol.id, copy.as_str());
    world.rig.kernel.create_directories(&copied);
    let record = world.rig.kernel.read_file(format!("{directory}/volume.json")).expect("read");
    world.rig.kernel.write_file(format!("{copied}/volume.json"), &record).expect("write");
    world.rig.kernel.write_file(format!("{copied}/disk.img"), b"copy").expect("write");
    let keep = Wishes { keep: only(copy.as_str()), ..Wishes::default() };
    let report = world.run(Verb::Rebuild, keep);
    assert!(!report.good && report.text.contains("was the directory copied?"), "{}", report.text);
    assert_eq!(world.seen(), before, "the volume has its own directory");
}

#[test]
fn a_directory_of_another_node_is_not_taken() {
    let world = World::new();
    world.lose_state();
    let os = world.rig.kernel.restart();
    let identity = Identity { driver: "hostloop.csi.dev".to_owned(), node_id: "other".to_owned() };
    let report = run(&os, &Task { identity, ..task(Verb::Rebuild, true) }).expect("it runs");
    assert!(!report.good && report.text.contains("0 volumes and 0 snapshots"), "{}", report.text);
    assert!(report.text.contains(&format!("and node {NODE:?}")), "{}", report.text);
}

/// The deletion of something else had begun there: it is not this node's to end.
#[test]
fn a_marked_directory_of_another_node_stays() {
    let mut world = World::new();
    world.lose_state();
    let vol = world.vols[7].clone();
    let directory = directory_of(&world.rig.kernel, &vol.id).expect("a directory");
    let record = world.rig.kernel.read_file(format!("{directory}/volume.json")).expect("read");
    let record = Beside::read(&record).expect("a record");
    let identity = Identity { node_id: "node-b".to_owned(), ..record.identity };
    let theirs = Beside { identity, ..record }.text().expect("JSON");
    world.rig.kernel.remove_file(format!("{directory}/volume.json")).expect("remove");
    world.rig.kernel.write_file(format!("{directory}/volume.json"), &theirs).expect("write");
    world.rig.kernel.write_file(format!("{directory}/deleting"), b"").expect("mark");
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(!report.good && report.text.contains("node-b"), "{}", report.text);
    assert!(world.rig.kernel.exists(format!("{directory}/disk.img")));
}

/// Where a volume went is remembered, and its leftover is not the volume.
#[test]
fn a_volume_that_has_moved_is_not_recorded_again() {
    let mut world = World::new();
    let vol = world.vols[7].clone();
    let id: VolumeId = vol.id.parse().expect("an id");
    world.rig.restore_state(|store| {
        let left = VolumeId::of_retired(&NodeKey::of(NODE), &id, 1);
        let (node_id, deleted) = ("node-b".to_owned(), false);
        let moved = Moved { id: id.clone(), left, by: 1, node_id, deleted, deleted_here: None };
        store.put_moved(moved).expect("put");
        store.delete(&id, Durability::Synced).expect("delete");
    });
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(!report.good && report.text.contains("it has moved to node \"node-b\""), "{}", report.text);
    world.rig.fails(Code::FailedPrecondition, vol.delete_request());
}

#[test]
fn a_pool_that_is_not_there_stops_the_command() {
    let world = World::new();
    world.lose_state();
    let os = world.rig.kernel.restart();
    let mut task = task(Verb::Rebuild, true);
    task.pools[1].1 = PathBuf::from("/nowhere");
    let error = run(&os, &task).expect_err("a pool is missing");
    assert!(error.to_string().contains("mount its disk"), "{error}");
    assert!(!world.rig.kernel.exists(STATE));
}

/// DeleteVolume and DeleteSnapshot of what the state file has lost: the record beside the data says whose they are.
#[test]
fn a_lost_volume_is_deleted_by_its_own_record() {
    let mut world = World::new();
    let cut =
        world.rig.snapshots().into_iter().find(|it| it.group_snapshot_id.is_empty()).expect("a snapshot");
    let vols = world.vols.clone();
    vols[..5].iter().for_each(|vol| world.rig.rest(vol));
    world.start_without_state();
    for vol in &vols {
        world.rig.ok(vol.delete_request());
        assert_eq!(directory_of(&world.rig.kernel, &vol.id), None, "{}", vol.id);
    }
    world.rig.ok(delete_snapshot(&cut.snapshot_id));
    assert_eq!(directory_of(&world.rig.kernel, &cut.snapshot_id), None);
}

#[test]
fn a_lost_volume_in_use_is_not_deleted() {
    let mut world = World::new();
    let vols = world.vols.clone();
    world.start_without_state();
    for vol in &vols[..5] {
        world.rig.fails(Code::FailedPrecondition, vol.delete_request());
        assert_eq!(world.rig.read(vol, 4), "text");
    }
}

/// What a deletion has left under the id of a volume that lies in another pool, before or after that pool in the order of pools.
#[test]
fn a_marked_directory_costs_no_volume_of_its_id() {
    for (at, pool) in [(2, DATA), (7, FAST)] {
        let mut world = World::new();
        let before = world.seen();
        world.lose_state();
        let left = format!("{pool}/volumes/{}", world.vols[at].id);
        world.rig.kernel.create_directories(&left);
        world.rig.kernel.write_file(format!("{left}/deleting"), b"").expect("mark");
        world.rig.kernel.write_file(format!("{left}/disk.img"), b"left").expect("write");
        let report = world.run(Verb::Rebuild, Wishes::default());
        assert!(!report.good && report.text.contains(&format!("{left}: LEFT AS IT IS")), "{}", report.text);
        assert_eq!(world.seen(), before, "{pool}");
        world.check_data();
    }
}

/// It may be blank and acknowledged by now, and the next start would erase it.
#[test]
fn a_previous_record_that_is_not_ready_is_not_taken() {
    let mut world = World::new();
    let vol = world.vols[7].clone();
    let (kernel, other) = (world.rig.kernel.clone(), "/var/lib/elsewhere");
    let directory = directory_of(&kernel, &vol.id).expect("a directory");
    let record =
        Beside::read(&kernel.read_file(format!("{directory}/volume.json")).expect("read")).expect("a record");
    let Subject::Volume(volume) = record.subject else { panic!("{record:?}") };
    world.lose_state();
    kernel.create_directories(other);
    let store = Store::open(kernel.restart().files, other.as_ref(), record.identity).expect("a state file");
    store.put(Volume { phase: Phase::Creating, ..volume }).expect("put");
    drop(store);
    let previous = kernel.read_file(format!("{other}/state.jsonl")).expect("read");
    kernel.write_file(format!("{DATA}/state.jsonl.previous"), &previous).expect("write");
    world.rig.lose_record(&directory);
    let report = world.run(Verb::Rebuild, Wishes::default());
    assert!(!report.good && report.text.contains(&format!("{directory}: LEFT AS IT IS")), "{}", report.text);
    assert!(kernel.exists(format!("{directory}/disk.img")));
}
