//! Files without a record in the state file that a move may still need, and how old a mount is.

use std::time::{Duration, SystemTime};

use hostloop::model::copy_of::{CopyOf, Cut};
use hostloop::model::{Moved, NodeKey, Retired, SnapshotId, Timestamp, Volume, VolumeId};
use hostloop::store::{Beside, Subject};
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
        (
            "it is a copy for a move",
            Box::new(|it| it.copy_of = Some(CopyOf { cut, next: None, staged_bytes: None })),
        ),
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
