//! The record of each volume and snapshot beside its data.

use hostloop::model::request::ControllerModifyVolume;
use hostloop::model::{FsType, Modification, Volume};
use hostloop::store::{Beside, Subject};
use hostloop::wire::csi;
use nix::errno::Errno;

use crate::cuts::*;
use crate::invariants::{beside, directory_of};
use crate::life::*;
use crate::support::*;

/// A class of each backend, with whether its record lies in its directory.
fn classes() -> [(&'static str, csi::CreateVolumeRequest); 5] {
    let directory = [("backend", "directory"), ("pool", "directories")];
    let limited = [("backend", "directory"), ("pool", "limited")];
    [
        ("ext4", create("ext4", fs("ext4"))),
        ("thick", create_with("thick", &[("provisioning", "thick")])),
        ("block", create("block", block())),
        ("directory", create_with("directory", &directory)),
        ("limited", create_with("limited", &limited)),
    ]
}

fn rig() -> Rig {
    let kernel = machine_with_fast(FsType::Xfs);
    kernel.add_disk("/pools/limited-xfs", FsType::Xfs, 100 << 30);
    kernel.set_quotas("/pools/limited-xfs", true);
    Rig::on(kernel, &[&WITH_FAST[..], &["--pool", "limited=/pools/limited-xfs"]].concat())
}

/// For a claim, as external-provisioner asks for it.
fn for_claim(request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest {
    let names = [("pvc/namespace", "shop"), ("pvc/name", "db"), ("pv/name", "pvc-1")];
    let names = names.map(|(key, name)| (format!("csi.storage.k8s.io/{key}"), name.to_owned()));
    let parameters = request.parameters.clone().into_iter().chain(names).collect();
    csi::CreateVolumeRequest { parameters, ..request }
}

#[track_caller]
fn record_at(rig: &Rig, directory: &str) -> Beside {
    beside(&rig.kernel, directory).unwrap_or_else(|why| panic!("{directory}: {why}"))
}

#[track_caller]
fn volume_at(rig: &Rig, vol: &Vol) -> Volume {
    match record_at(rig, &directory_of(&rig.kernel, &vol.id).expect("a directory")).subject {
        Subject::Volume(volume) => volume,
        other => panic!("{other:?}"),
    }
}

/// The power goes as soon as CreateVolume has answered, and with it the state file.
#[test]
fn a_volume_has_its_record_before_the_answer() {
    for (name, request) in classes() {
        let mut rig = rig();
        let vol = rig.made(for_claim(request));
        let _driver = rig.driver_after_power_cut();
        let volume = volume_at(&rig, &vol);
        assert_eq!((volume.id.as_str(), volume.capacity_bytes), (vol.id.as_str(), SIZE as u64), "{name}");
        let claim = volume.claim.expect("a claim");
        assert_eq!(
            [claim.namespace.as_str(), claim.name.as_str(), claim.persistent_volume.as_str()],
            ["shop", "db", "pvc-1"]
        );
    }
}

#[test]
fn a_record_follows_each_change_that_matters() {
    let mut rig = rig();
    for (name, request) in classes() {
        let vol = rig.made(request);
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        let before = volume_at(&rig, &vol);
        rig.ok(csi::ControllerExpandVolumeRequest {
            volume_id: vol.id.clone(),
            capacity_range: range(2 * SIZE, 0),
            ..Default::default()
        });
        rig.rest(&vol);
        drop(target);
        let after = volume_at(&rig, &vol);
        assert_eq!((before.capacity_bytes, after.capacity_bytes), (SIZE as u64, 2 * SIZE as u64), "{name}");
        // What is in the image its marks say.
        let content = before.content.clone();
        assert_eq!(Volume { capacity_bytes: before.capacity_bytes, content, ..after }, before);
    }
    let vol = rig.made(create("changed", block()));
    rig.ok(csi::ControllerModifyVolumeRequest {
        volume_id: vol.id.clone(),
        mutable_parameters: map(&[("directIO", "false")]),
        ..Default::default()
    });
    assert!(!volume_at(&rig, &vol).parameters.direct_io);
    let _driver = rig.driver_after_power_cut();
    assert!(!volume_at(&rig, &vol).parameters.direct_io, "it was durable");
}

#[test]
fn a_use_of_a_volume_changes_no_record() {
    let rig = rig();
    for (name, request) in classes() {
        let vol = rig.made(request);
        let before = record_at(&rig, &directory_of(&rig.kernel, &vol.id).expect("a directory"));
        rig.stage(&vol);
        rig.publish(&vol, "pod");
        rig.rest(&vol);
        assert_eq!(
            record_at(&rig, &directory_of(&rig.kernel, &vol.id).expect("a directory")),
            before,
            "{name}"
        );
        rig.ok(vol.delete_request());
    }
    rig.assert_clean();
    for place in ["/pools/directories/volumes", "/pools/limited-xfs/volumes"] {
        assert_eq!(rig.kernel.tree(place), Vec::<String>::new());
    }
}

#[test]
fn snapshots_and_members_of_groups_have_records() {
    let mut rig = both_pools();
    let (a, _) = rig.in_use(create_with("a", &[("pool", "fast")]));
    let (b, _) = rig.in_use(create("b", fs("xfs")));
    let names = [
        ("volumesnapshot/namespace", "shop"),
        ("volumesnapshot/name", "monday"),
        ("volumesnapshotcontent/name", "c"),
    ];
    let names = names.map(|(key, name)| (format!("csi.storage.k8s.io/{key}"), name.to_owned()));
    let request = csi::CreateSnapshotRequest { parameters: names.into_iter().collect(), ..snapshot("s", &a) };
    let made = rig.ok(request).snapshot.expect("a snapshot");
    let ids = [a.id.as_str(), b.id.as_str()];
    let members = rig.ok(group("g", &ids)).group_snapshot.expect("a group");
    rig.rest(&a);
    rig.rest(&b);
    let _driver = rig.driver_after_power_cut();
    let of = |snapshot: &csi::Snapshot| {
        let places = [format!("{DATA}/snapshots"), format!("{FAST}/snapshots")];
        let paths = places.map(|place| format!("{place}/{}", snapshot.snapshot_id));
        let there = paths.iter().find(|path| rig.kernel.exists(path)).expect("a directory");
        match record_at(&rig, there).subject {
            Subject::Snapshot(snapshot, group) => (snapshot, group),
            other => panic!("{other:?}"),
        }
    };
    let time = |snapshot: &csi::Snapshot| snapshot.creation_time.expect("a time");
    let (record, group) = of(&made);
    assert_eq!(record.object.expect("its names").name, "monday");
    assert_eq!((record.source.as_str(), group), (a.id.as_str(), None));
    assert_eq!((record.created.seconds(), record.created.nanos()), (time(&made).seconds, time(&made).nanos));
    for member in &members.snapshots {
        let (record, group) = of(member);
        let group = group.expect("its group");
        assert_eq!(group.id.as_str(), members.group_snapshot_id);
        assert_eq!((group.created, group.snapshots.len()), (record.created, 2));
        assert_eq!(record.created.nanos(), time(member).nanos);
    }
}

/// A state file of an earlier version, or a disk that lost the file.
#[test]
fn a_start_writes_a_record_that_is_missing() {
    let mut rig = rig();
    let all: Vec<Vol> = classes().map(|(_, request)| rig.made(request)).into();
    let snapshot = rig.cut("s", &all[0]);
    let directories: Vec<String> =
        all.iter().map(|vol| directory_of(&rig.kernel, &vol.id).expect("a directory")).collect();
    let snapshots = format!("{DATA}/snapshots/{}", snapshot.snapshot_id);
    let places = || directories.iter().chain([&snapshots]);
    let before: Vec<Beside> = places().map(|directory| record_at(&rig, directory)).collect();
    let file = |directory: &String| {
        let names = ["/volume.json", "/snapshot.json", ".json"].map(|name| format!("{directory}{name}"));
        names.into_iter().find(|path| rig.kernel.exists(path)).expect("a record")
    };
    let files: Vec<String> = places().map(file).collect();
    for (at, bytes) in [(0, None), (1, Some("")), (2, Some("{}\n"))] {
        for path in files.iter().skip(at).step_by(3) {
            rig.kernel.remove_file(path).expect("remove");
            bytes.iter().for_each(|bytes| rig.kernel.write_file(path, bytes.as_bytes()).expect("write"));
        }
    }
    // One that was being written when a driver was killed.
    rig.kernel.write_file(format!("{}.new", files[0]), b"half").expect("write");
    rig.restart();
    for (directory, before) in places().zip(before) {
        assert_eq!(record_at(&rig, directory).subject, before.subject);
    }
    assert!(!rig.kernel.exists(format!("{}.new", files[0])));
}

/// An older state file was restored: the start keeps the newer record.
#[test]
fn a_start_leaves_a_record_that_is_newer() {
    let mut rig = Rig::new();
    let vol = rig.volume("v", block());
    let state = format!("{DATA}/state.jsonl");
    let older = rig.kernel.read_file(&state).expect("read");
    for size in [2, 3] {
        rig.ok(csi::ControllerExpandVolumeRequest {
            volume_id: vol.id.clone(),
            capacity_range: range(size * SIZE, 0),
            ..Default::default()
        });
    }
    let newer = volume_at(&rig, &vol);
    rig.kernel.write_file(&state, b"").expect("write");
    rig.kernel.remove_file(&state).expect("remove");
    rig.kernel.write_file(&state, &older).expect("write");
    // Each start writes the file anew, with greater numbers.
    for _ in 0..20 {
        rig.start_again();
        assert_eq!(volume_at(&rig, &vol), newer);
    }
}

#[test]
fn a_record_that_cannot_be_written_follows() {
    let mut rig = Rig::new();
    let vol = rig.volume("v", block());
    let driver = rig.driver_after_power_cut();
    let modify = |direct_io: bool| {
        let modification = Ok(Modification { direct_io: Some(direct_io), ..Modification::default() });
        let request = ControllerModifyVolume { volume_id: vol.id.clone(), modification };
        driver.controller_modify_volume(request).expect("the state file has it");
    };
    rig.steps();
    modify(false);
    let steps = rig.steps();
    let rename =
        steps.iter().position(|step| *step == "rename").expect("a new record takes the place of the old one");
    rig.kernel.fail_at(rename + 1, Errno::ENOSPC);
    modify(true);
    assert!(!volume_at(&rig, &vol).parameters.direct_io, "the older record is whole");
    driver.retry_records();
    assert!(volume_at(&rig, &vol).parameters.direct_io);
    rig.steps();
    driver.retry_records();
    assert_eq!(rig.steps(), Vec::<&str>::new(), "nothing is late any more");
}
