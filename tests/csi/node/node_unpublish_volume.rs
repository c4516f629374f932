//! NodeUnpublishVolume.

use hostloop::model::MountFlags;
use hostloop::wire::csi;
use tonic::Code;

use crate::life::*;
use crate::support::*;

#[test]
fn missing_fields_come_before_an_unknown_volume() {
    let rig = Rig::new();
    let unknown = rig.volume("v", mount()).with_id("fake-vol-id");
    let base = || unknown.unpublish_request("pod");
    for request in [
        csi::NodeUnpublishVolumeRequest { volume_id: String::new(), ..base() },
        csi::NodeUnpublishVolumeRequest { target_path: String::new(), ..base() },
        csi::NodeUnpublishVolumeRequest { target_path: "a/b".to_owned(), ..base() },
        csi::NodeUnpublishVolumeRequest { target_path: "/a/../b".to_owned(), ..base() },
    ] {
        rig.fails(Code::InvalidArgument, request);
    }
    rig.ok(base());
}

#[test]
fn a_published_target_is_removed_and_a_repeat_is_ok() {
    let rig = Rig::new();
    for request in [
        create("fs", mount()),
        create("block", block()),
        create_with("dir", &[("backend", "directory"), ("pool", "directories")]),
    ] {
        let vol = rig.made(request);
        rig.stage(&vol);
        rig.unpublish(&vol, "never");
        let target = rig.publish(&vol, "pod");
        assert!(rig.kernel.exists(&target));
        for _ in 0..2 {
            rig.unpublish(&vol, "pod");
            assert!(!rig.kernel.exists(&target));
        }
        rig.unstage(&vol);
        rig.ok(vol.delete_request());
    }
    rig.assert_clean();
}

#[test]
fn a_bare_target_is_removed_only_if_it_is_empty() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.kernel.create_directories(vol.target("pod"));
    rig.unpublish(&vol, "pod");
    assert!(!rig.kernel.exists(vol.target("pod")));
    rig.kernel.create_directories(vol.target("pod"));
    rig.kernel.write_file(format!("{}/file", vol.target("pod")), b"precious").expect("write");
    rig.fails(Code::FailedPrecondition, vol.unpublish_request("pod"));
    assert_eq!(rig.kernel.read_file(format!("{}/file", vol.target("pod"))).expect("read"), b"precious");
}

#[test]
fn a_foreign_mount_on_the_target_is_refused() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    rig.kernel.write_file(format!("{target}/file"), b"ours").expect("write");
    rig.kernel.create_directories("/var/lib/other");
    rig.kernel.write_file("/var/lib/other/file", b"theirs").expect("write");
    let os = rig.kernel.os();
    os.mounts.bind("/var/lib/other".as_ref(), target.as_ref(), &MountFlags::default()).expect("bind");
    let message = rig.fails(Code::FailedPrecondition, vol.unpublish_request("pod-1"));
    assert!(message.contains(&target), "{message}");
    assert_eq!(rig.mounts_at(&target), 2);
    assert_eq!(rig.kernel.read_file("/var/lib/other/file").expect("read"), b"theirs");
    rig.kernel.unmount_foreign(&target).expect("unmount");
    rig.unpublish(&vol, "pod-1");
    assert_eq!(rig.kernel.read_file("/var/lib/other/file").expect("read"), b"theirs");
    assert_eq!(rig.kernel.read_file(format!("{}/file", vol.staging())).expect("read"), b"ours");
}

#[test]
fn stacked_mounts_of_the_volume_are_all_unmounted() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    rig.kernel.write_file(format!("{target}/file"), b"data").expect("write");
    let os = rig.kernel.os();
    os.mounts.bind(vol.staging().as_ref(), target.as_ref(), &MountFlags::default()).expect("bind");
    rig.unpublish(&vol, "pod-1");
    assert!(!rig.kernel.exists(&target));
    assert_eq!(rig.kernel.read_file(format!("{}/file", vol.staging())).expect("read"), b"data");
}

#[test]
fn mounts_inside_of_the_volume_are_named() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    let os = rig.kernel.os();
    rig.kernel.create_directories("/var/lib/other");
    let inside: Vec<String> = (0..7).map(|n| format!("{target}/{n}")).collect();
    for path in &inside {
        rig.kernel.create_directories(path);
        os.mounts.bind("/var/lib/other".as_ref(), path.as_ref(), &MountFlags::default()).expect("bind");
    }
    let message = rig.fails(Code::FailedPrecondition, vol.unpublish_request("pod-1"));
    assert!(message.contains(&inside[0]) && message.contains("2 more"), "{message}");
    for path in &inside {
        rig.kernel.unmount_foreign(path).expect("unmount");
    }
    rig.unpublish(&vol, "pod-1");
}

#[test]
fn a_volume_that_is_held_is_not_unpublished() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    rig.kernel.write_file(format!("{target}/file"), b"data").expect("write");
    let held = rig.kernel.open(format!("{target}/file")).expect("open");
    rig.fails(Code::FailedPrecondition, vol.unpublish_request("pod-1"));
    assert_eq!(rig.mounts_at(&target), 1);
    drop(held);
    rig.unpublish(&vol, "pod-1");
}

#[test]
fn the_volume_of_another_pod_is_left_alone() {
    let rig = Rig::new();
    let (one, target) = rig.published("one", mount());
    let (two, _) = rig.published("two", mount());
    let wrong =
        csi::NodeUnpublishVolumeRequest { target_path: target.clone(), ..two.unpublish_request("pod-1") };
    rig.fails(Code::FailedPrecondition, wrong);
    assert_eq!(rig.mounts_at(&target), 1);
    rig.unpublish(&one, "pod-1");
}

/// What cannot be told to be the volume's is not said to be gone.
#[test]
fn a_foreign_mount_at_the_staging_path_is_refused() {
    let rig = Rig::new();
    let (vol, device) = (rig.volume("v", mount()), rig.volume("w", block()));
    for vol in [&vol, &device] {
        rig.kernel.create_directories(vol.staging());
        rig.kernel.mount_tmpfs(vol.staging()).expect("mounted");
    }
    let message = rig.fails(Code::FailedPrecondition, vol.unstage_request());
    assert!(message.contains("another mount") && message.contains("tmpfs"), "{message}");
    assert_eq!(rig.mounts_at(&vol.staging()), 1);
    // Nothing of a device is mounted there.
    rig.unstage(&device);
}

#[test]
fn unstaging_at_an_impossible_path_is_ok_if_unstaged() {
    for capability in [mount(), block()] {
        let rig = Rig::new();
        let vol = rig.volume("v", capability);
        let at = |path: &str| csi::NodeUnstageVolumeRequest {
            staging_target_path: path.to_owned(),
            ..vol.unstage_request()
        };
        let (in_the_pool, missing) = (at(&format!("{DATA}/volumes/x")), at(&format!("{KUBELET}/none/x")));
        rig.ok(in_the_pool.clone());
        rig.ok(missing.clone());
        rig.stage(&vol);
        rig.fails(Code::InvalidArgument, in_the_pool);
        // A block volume is attached wherever its staging path was.
        match vol.is_block() {
            true => drop(rig.fails(Code::NotFound, missing)),
            false => drop(rig.ok(missing)),
        }
        rig.unstage(&vol);
    }
}
