//! Directories with immutable and append-only files (chattr(1)), which a pod that writes to a volume can make.

use std::time::Duration;

use hostloop::kernel::Qgroups;
use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use nix::errno::Errno;
use tonic::Code;

use crate::cuts::*;
use crate::harness::{DIRECTORIES, DIRECTORIES_DIR};
use crate::life::*;
use crate::support::*;
use crate::wait::eventually;

const POOL: &str = "/pools/limited";
const FLAGS: [&str; 4] = ["--pool", "limited=/pools/limited,reserve=0", "--reserve", "0"];

/// Each filesystem that limits directories, with its qgroups, and a pool of directories.
const PLACES: [(FsType, Option<Qgroups>, &str); 4] = [
    (FsType::Xfs, None, "limited"),
    (FsType::Btrfs, Some(Qgroups::Full), "limited"),
    (FsType::Btrfs, Some(Qgroups::Simple), "limited"),
    (FsType::Ext4, None, DIRECTORIES),
];

fn rig((fs_type, qgroups, _): (FsType, Option<Qgroups>, &str)) -> Rig {
    let kernel = FakeKernel::new();
    kernel.add_disk(POOL, fs_type, 100 << 30);
    match qgroups {
        Some(qgroups) => kernel.set_qgroups(POOL, qgroups),
        None => kernel.set_quotas(POOL, true),
    }
    Rig::on(kernel, &FLAGS)
}

/// A volume that is not in use, with protected files and directories, its top among them.
fn protected(rig: &Rig, pool: &str, files: usize) -> Vol {
    let request = csi::CreateVolumeRequest {
        capacity_range: range(GIB, 0),
        ..create_with("v", &[("backend", "directory"), ("pool", pool)])
    };
    let vol = rig.made(request);
    rig.stage(&vol);
    let top = rig.publish(&vol, "pod");
    rig.kernel.create_directories(format!("{top}/a/b"));
    for n in 0..files {
        rig.kernel.write_file(format!("{top}/a/b/{n}"), b"data").expect("write");
    }
    rig.kernel.set_attributes(format!("{top}/a/b/0"), true, false);
    rig.kernel.set_attributes(format!("{top}/a/b/1"), false, true);
    rig.kernel.set_attributes(format!("{top}/a/b"), false, true);
    rig.kernel.set_attributes(format!("{top}/a"), true, false);
    rig.kernel.set_attributes(&top, true, true);
    rig.rest(&vol);
    vol
}

fn left(rig: &Rig) -> Vec<String> {
    let places =
        [POOL, DIRECTORIES_DIR].map(|pool| ["volumes", "snapshots"].map(|at| format!("{pool}/{at}")));
    places.as_flattened().iter().flat_map(|place| rig.kernel.tree(place)).collect()
}

#[track_caller]
fn gone(rig: &Rig) {
    eventually("nothing is left", || left(rig).is_empty());
}

fn health(rig: &Rig) -> Vec<(String, String)> {
    let health = rig.ok(csi::NodeGetStorageHealthRequest::default()).backend_health;
    health.into_iter().map(|entry| (entry.reason, entry.message)).collect()
}

#[test]
fn a_directory_with_immutable_files_is_deleted() {
    for place in PLACES {
        // Before the answer, and in the background.
        for files in [2, 300] {
            let rig = rig(place);
            let vol = protected(&rig, place.2, files);
            rig.ok(vol.delete_request());
            gone(&rig);
            assert_eq!(health(&rig), [], "{place:?}");
        }
    }
}

#[test]
fn copies_of_immutable_files_are_deleted() {
    for place in PLACES {
        let rig = rig(place);
        let vol = protected(&rig, place.2, 3);
        let cut = rig.cut("s", &vol);
        rig.ok(vol.delete_request());
        let restored = csi::CreateVolumeRequest {
            capacity_range: range(GIB, 0),
            volume_content_source: Some(from_snapshot(&cut.snapshot_id)),
            ..create_with("r", &[("backend", "directory"), ("pool", place.2)])
        };
        let restored = rig.made(restored);
        rig.ok(csi::DeleteSnapshotRequest { snapshot_id: cut.snapshot_id, ..Default::default() });
        rig.ok(restored.delete_request());
        gone(&rig);
    }
}

/// Without room for its mark, the top takes the mark's name, which it cannot.
#[test]
fn an_immutable_top_goes_on_a_full_disk() {
    let rig = rig(PLACES[0]);
    let vol = protected(&rig, "limited", 2);
    rig.kernel.fail_every("create_file", Errno::ENOSPC);
    rig.ok(vol.delete_request());
    rig.kernel.heal();
    gone(&rig);
}

#[test]
fn a_deletion_that_fails_at_once_is_told() {
    for place in PLACES {
        let rig = rig(place);
        let vol = protected(&rig, place.2, 2);
        let step = if place.1.is_some() { "remove_subvolume" } else { "remove_tree" };
        rig.kernel.fail_every(step, Errno::EIO);
        rig.fails(Code::Internal, vol.delete_request());
        let [(reason, message)] = &health(&rig)[..] else { panic!("{:?}", health(&rig)) };
        assert_eq!(reason, "RemovalFailing");
        assert!(message.contains(&vol.id) && message.contains("EIO"), "{message}");
        rig.kernel.heal();
        rig.ok(vol.delete_request());
        assert_eq!(health(&rig), [], "{place:?}");
        gone(&rig);
    }
}

/// Its caller may not try again.
#[test]
fn a_deletion_that_failed_is_tried_again() {
    let rig = rig(PLACES[3]);
    let vol = protected(&rig, DIRECTORIES, 2);
    let cut = rig.cut("s", &vol);
    rig.kernel.kill();
    let driver = rig.driver_on(rig.kernel.restart());
    rig.kernel.fail_every("remove_tree", Errno::EIO);
    driver.delete_volume(&vol.id).expect_err("it cannot be removed");
    driver.delete_snapshot(&cut.snapshot_id).expect_err("it cannot be removed");
    driver.retry_removals(Duration::ZERO);
    assert_eq!(driver.node_get_storage_health().expect("health").len(), 1);
    rig.kernel.heal();
    driver.retry_removals(Duration::from_secs(60));
    assert_eq!(driver.node_get_storage_health().expect("health").len(), 1, "its caller may come back");
    driver.retry_removals(Duration::ZERO);
    assert_eq!(driver.node_get_storage_health().expect("health"), []);
    gone(&rig);
}
