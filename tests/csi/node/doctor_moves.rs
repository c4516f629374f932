//! Files without a record in the state file that a move may still need, and how old a mount is.

use std::time::{Duration, SystemTime};

use hostloop::model::copy_of::{CopyOf, Cut};
use hostloop::model::{Moved, NodeKey, Retired, SnapshotId, Timestamp, Volume, VolumeId};
use hostloop::store::{Beside, Durability, Subject};
use hostloop::wire::peer;
use tonic::Code;

use super::doctor::{fix, look, lose, only, unnamed};
use crate::life::*;
use crate::support::*;

type Change = Box<dyn FnOnce(&mut Volume)>;

/// Changes the record that lies beside the data of a volume.
fn rewrite(rig: &Rig, vol: &Vol, change: impl FnOnce(&mut Volume)) {
    let path = format!("{}/volume.json", vol.directory());
    let mut beside = Beside::read(&rig.kernel.read_file(&path).expect("read")).expect("a record");
    let Subject::Volume(volume) = &mut beside.subject else { panic!("of a volume") };
    change(volume);
    rig.kernel.remove_file(&path).expect("remove");
    rig.kernel.write_file(&path, &beside.text().expect("a text")).expect("write");
}

fn other() -> NodeKey {
    NodeKey::of("node-b")
}

#[test]
fn an_image_that_a_move_needs_is_left_alone() {
    let cut = Cut {
        id: SnapshotId::of_name(&other(), "cut"),
        created: Timestamp::now(),
        sealed: false,
        half_formatted: false,
        generation: 1,
    };
    let changes: [(&str, Change); 3] = [
        ("it is a copy for a move", Box::new(|it| it.copy_of = Some(CopyOf::at(cut, None)))),
        ("its data move to node", Box::new(|it| it.moved_to = Some("node-b".to_owned()))),
        (
            "which has moved to node node-b",
            Box::new(|it| {
                let was = VolumeId::of_name(&other(), "was");
                it.retired = Some(Retired { was, by: 1, node_id: "node-b".to_owned() });
            }),
        ),
    ];
    for (why, change) in changes {
        let mut rig = Rig::new();
        let vol = rig.volume("v", mount());
        rewrite(&rig, &vol, change);
        lose(&mut rig, &[&vol]);
        let finding = only(&rig, "orphan-image");
        assert!(finding.fix.is_empty() && finding.kept.contains(why), "{finding:?}");
        rig.fails(Code::FailedPrecondition, unnamed(fix(&finding)));
        assert!(rig.kernel.exists(vol.image()));
    }
}

#[test]
fn a_mount_is_as_old_as_its_first_look() {
    let rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    let directory = std::path::Path::new(&target).parent().expect("a directory");
    rig.kernel.set_changed(directory, SystemTime::now() - Duration::from_secs(9000));
    let age = || {
        let seen = look(&rig);
        let record = seen.records.iter().find(|record| record.id == vol.id).expect("a record");
        let mount = record.mounts.iter().find(|mount| mount.path == target).expect("a mount");
        (mount.since_ns, seen.now_ns.saturating_sub(mount.since_ns))
    };
    let (since, young) = age();
    assert!(young < 60_000_000_000, "{young} ns");
    assert_eq!(age().0, since, "a later look does not begin again");
}

#[test]
fn an_image_of_a_volume_that_moved_is_left_alone() {
    let mut rig = Rig::new();
    let vol = rig.volume("v", mount());
    lose(&mut rig, &[&vol]);
    let asked = unnamed(fix(&only(&rig, "orphan-image")));
    let id: VolumeId = vol.id.parse().expect("an id");
    rig.restore_state(|store| {
        let left = VolumeId::of_name(&other(), "left");
        let (node_id, deleted_here) = ("node-b".to_owned(), None);
        store.put_moved(Moved { id, left, by: 1, node_id, deleted: false, deleted_here }).expect("put");
    });
    let finding = only(&rig, "orphan-image");
    assert!(finding.fix.is_empty() && finding.kept.contains("has moved"), "{finding:?}");
    rig.fails(Code::FailedPrecondition, asked);
    assert!(rig.kernel.exists(vol.image()));
}

/// What a volume that has moved to another node has left here: its record, under the id of what is left.
fn retired(rig: &mut Rig, vol: &Vol) -> VolumeId {
    let id: VolumeId = vol.id.parse().expect("an id");
    let left = VolumeId::of_retired(&NodeKey::of(NODE), &id, 1);
    rig.restore_state(|store| {
        let volume = store.get(&id).expect("a record");
        let (node_id, deleted_here) = ("node-b".to_owned(), None);
        let moved =
            Moved { id: id.clone(), left: left.clone(), by: 1, node_id, deleted: false, deleted_here };
        store.put_moved(moved).expect("put");
        store.delete(&id, Durability::Synced).expect("delete");
        let retired = Some(Retired { was: id.clone(), by: 1, node_id: "node-b".to_owned() });
        let (directory, moved_to) = (Some(id.clone()), Some("node-b".to_owned()));
        store
            .put(Volume { id: left.clone(), directory, moved_to, retired, ..(*volume).clone() })
            .expect("put");
    });
    left
}

/// The request of a command that has asked the other nodes and the API server.
fn fix_left(rig: &Rig, left: &VolumeId) -> peer::FixFindingRequest {
    let records = look(rig).records;
    let held = records.iter().find(|record| record.id == left.as_str()).expect("a record");
    assert_eq!(
        (held.kind.as_str(), held.left_by_generation, held.left_by_node.as_str()),
        ("left", 1, "node-b")
    );
    peer::FixFindingRequest {
        class: "moved-left".to_owned(),
        id: held.id.clone(),
        path: held.path.clone(),
        seen: held.seen.clone(),
        unnamed: true,
        ..Default::default()
    }
}

#[test]
fn a_rest_of_a_moved_volume_is_deleted() {
    let mut rig = Rig::new();
    let (vol, kept) = (rig.volume("v", mount()), rig.volume("kept", mount()));
    let left = retired(&mut rig, &vol);
    let asked = fix_left(&rig, &left);
    assert!(rig.kernel.exists(vol.image()));
    let done = rig.ok(asked.clone()).done;
    assert!(done.contains(left.as_str()), "{done}");
    assert!(!rig.kernel.exists(vol.directory()) && rig.kernel.exists(kept.image()));
    rig.fails(Code::FailedPrecondition, asked);
}

#[test]
fn a_rest_stays_if_it_may_be_needed() {
    let mut rig = Rig::new();
    let vol = rig.volume("v", mount());
    let id = rig.volume("present", mount()).id.clone();
    let left = retired(&mut rig, &vol);
    let asked = fix_left(&rig, &left);
    let wrong = [
        (
            peer::FixFindingRequest { unnamed: false, ..asked.clone() },
            "does not know which PersistentVolumes",
        ),
        (peer::FixFindingRequest { seen: "another".to_owned(), ..asked.clone() }, "has changed since"),
        (peer::FixFindingRequest { id: id.clone(), ..asked.clone() }, "has changed since"),
    ];
    for (request, says) in wrong {
        let why = rig.fails(Code::FailedPrecondition, request);
        assert!(why.contains(says), "{why}");
    }
    let open = rig.kernel.attach_foreign(vol.image(), false).expect("attach");
    assert!(rig.call(asked.clone()).is_err(), "it is in use");
    assert!(rig.kernel.exists(vol.image()));
    rig.kernel.detach_foreign(open.number);
    rig.ok(asked);
}
