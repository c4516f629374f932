//! NodePublishVolume.

mod binds;

use hostloop::kernel::FileKind;
use hostloop::model::MountFlags;
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::life::*;
use crate::support::*;

fn read_only(request: csi::NodePublishVolumeRequest) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest { readonly: true, ..request }
}

/// A volume of each kind that is published by a mount.
fn mountable(rig: &Rig) -> Vec<Vol> {
    vec![
        rig.volume("fs", mount()),
        rig.made(create_with("dir", &[("backend", "directory"), ("pool", "directories")])),
    ]
}

#[test]
fn what_is_missing_comes_before_what_does_not_exist() {
    let rig = Rig::new();
    let unknown = rig.volume("v", mount()).with_id("fake-vol-id");
    let base = || rig.publish_request(&unknown, "pod");
    for request in [
        csi::NodePublishVolumeRequest { volume_id: String::new(), ..base() },
        csi::NodePublishVolumeRequest { target_path: String::new(), ..base() },
        csi::NodePublishVolumeRequest { target_path: "some/path".to_owned(), ..base() },
        csi::NodePublishVolumeRequest { target_path: "/a/../../b".to_owned(), ..base() },
        csi::NodePublishVolumeRequest { volume_capability: None, ..base() },
        csi::NodePublishVolumeRequest { staging_target_path: "relative".to_owned(), ..base() },
    ] {
        rig.fails(Code::InvalidArgument, request);
    }
    rig.fails(Code::NotFound, base());
    rig.fails(Code::NotFound, csi::NodePublishVolumeRequest { staging_target_path: String::new(), ..base() });
}

#[test]
fn it_needs_a_staged_volume_and_its_staging_path() {
    let rig = Rig::new();
    for vol in [rig.volume("fs", mount()), rig.volume("block", block())] {
        rig.fails(Code::FailedPrecondition, rig.publish_request(&vol, "pod"));
        assert!(!rig.kernel.exists(vol.target("pod")));
        rig.stage(&vol);
        let without = csi::NodePublishVolumeRequest {
            staging_target_path: String::new(),
            ..rig.publish_request(&vol, "pod")
        };
        assert!(rig.fails(Code::FailedPrecondition, without).contains("staging_target_path"));
        let same =
            csi::NodePublishVolumeRequest { target_path: vol.staging(), ..rig.publish_request(&vol, "pod") };
        rig.fails(Code::InvalidArgument, same);
    }
    let vol = rig.volume("fs", mount());
    rig.kernel.create_directories("/var/lib/kubelet/elsewhere");
    let elsewhere = csi::NodePublishVolumeRequest {
        staging_target_path: "/var/lib/kubelet/elsewhere".to_owned(),
        ..rig.publish_request(&vol, "pod")
    };
    rig.fails(Code::FailedPrecondition, elsewhere);
}

#[test]
fn a_capability_or_context_that_is_not_the_volumes_is_refused() {
    let rig = Rig::new();
    let vol = rig.volume("v", fs("ext4"));
    rig.stage(&vol);
    let base = || rig.publish_request(&vol, "pod");
    for wanted in [block(), fs("btrfs"), mode(Mode::MultiNodeReaderOnly)] {
        rig.fails(
            Code::FailedPrecondition,
            csi::NodePublishVolumeRequest { volume_capability: Some(wanted), ..base() },
        );
    }
    let mut altered = base();
    altered.volume_context.insert("backend".to_owned(), "directory".to_owned());
    rig.fails(Code::InvalidArgument, altered);
    let mut added = base();
    added.volume_context.insert("csi.storage.k8s.io/pod.uid".to_owned(), "1".to_owned());
    rig.ok(added);
}

#[test]
fn the_volume_appears_at_the_target_which_the_driver_makes() {
    let rig = Rig::new();
    for vol in mountable(&rig) {
        rig.stage(&vol);
        assert!(!rig.kernel.exists(vol.target("pod")));
        let target = rig.publish(&vol, "pod");
        rig.kernel.write_file(format!("{target}/file"), b"data").expect("write");
        assert_eq!(rig.kernel.read_file(format!("{}/file", vol.staging())).expect("read"), b"data");
    }
    let vol = rig.volume("block", block());
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod");
    assert_eq!(rig.kernel.stat(&target).expect("a device").kind, FileKind::BlockDevice);
    rig.kernel.write(&target, SIZE as u64 - 4, b"last").expect("write");
    rig.kernel.write(&target, SIZE as u64 - 3, b"last").expect_err("beyond the end");
    assert_eq!(rig.kernel.read(vol.image(), SIZE as u64 - 4, 4).expect("read"), b"last");
}

/// spec.md, NodePublishVolume: T1 = T2 with the same arguments is OK, with others ALREADY_EXISTS; T1 ≠ T2 is OK for
/// MULTI_NODE_* and SINGLE_NODE_MULTI_WRITER and FAILED_PRECONDITION for the rest.
#[test]
fn the_second_publish_follows_the_matrix() {
    let rig = Rig::new();
    for wanted in ALL_MODES {
        let name = wanted.as_str_name();
        let multi_node = name.starts_with("MULTI_NODE");
        let second = multi_node || wanted == Mode::SingleNodeMultiWriter;
        let reader = name.ends_with("READER_ONLY");
        let mut uses = vec![(create_with(&format!("fs-{name}"), &[("sharedOnNode", "true")]), mode(wanted))];
        let directory = [("sharedOnNode", "true"), ("backend", "directory"), ("pool", "directories")];
        uses.push((create_with(&format!("dir-{name}"), &directory), mode(wanted)));
        if !multi_node {
            uses.push((create(&format!("block-{name}"), block()), block_mode(wanted)));
        }
        for (request, capability) in uses {
            let vol = rig.made(csi::CreateVolumeRequest { volume_capabilities: vec![capability], ..request });
            rig.stage(&vol);
            let first = rig.publish(&vol, "pod-1");
            rig.publish(&vol, "pod-1");
            assert_eq!(rig.mounts_at(&first), 1, "{name}");
            if !reader {
                rig.fails(Code::AlreadyExists, read_only(rig.publish_request(&vol, "pod-1")));
            }
            if second {
                rig.publish(&vol, "pod-2");
            } else {
                let message = rig.fails(Code::FailedPrecondition, rig.publish_request(&vol, "pod-2"));
                assert!(message.contains(&first) && message.contains(name), "{message}");
                assert!(!rig.kernel.exists(vol.target("pod-2")));
                rig.unpublish(&vol, "pod-1");
                rig.publish(&vol, "pod-2");
            }
            rig.unpublish(&vol, "pod-1");
            rig.unpublish(&vol, "pod-2");
            rig.unstage(&vol);
            rig.ok(vol.delete_request());
        }
    }
    rig.assert_clean();
}

#[test]
fn read_only_lets_nobody_write_and_others_still_can() {
    let rig = Rig::new();
    let many = Mode::SingleNodeMultiWriter;
    let directory = csi::CreateVolumeRequest {
        volume_capabilities: vec![mode(many)],
        ..create_with("dir", &[("backend", "directory"), ("pool", "directories")])
    };
    for vol in [rig.volume("fs", mode(many)), rig.made(directory), rig.volume("block", block_mode(many))] {
        rig.stage(&vol);
        let file =
            |pod: &str| if vol.is_block() { vol.target(pod) } else { format!("{}/file", vol.target(pod)) };
        rig.publish(&vol, "rw");
        rig.kernel.write_file(file("rw"), b"one").expect("write");
        for _ in 0..2 {
            rig.ok(read_only(rig.publish_request(&vol, "ro")));
        }
        rig.fails(Code::AlreadyExists, rig.publish_request(&vol, "ro"));
        assert_eq!(rig.kernel.read(file("ro"), 0, 3).expect("read"), b"one");
        rig.kernel.write(file("ro"), 0, b"bad").expect_err("read-only");
        rig.kernel.write(file("rw"), 0, b"two").expect("still writable");
        assert_eq!(rig.kernel.read(file("ro"), 0, 3).expect("read"), b"two");
        rig.unpublish(&vol, "ro");
        rig.kernel.write(file("rw"), 0, b"end").expect("still writable");
        assert_eq!(rig.kernel.loops().iter().filter(|device| device.read_only).count(), 0);
        rig.unpublish(&vol, "rw");
        rig.unstage(&vol);
        rig.ok(vol.delete_request());
    }
    rig.assert_clean();
}

#[test]
fn modes_for_readers_and_the_flag_ro_are_read_only() {
    let rig = Rig::new();
    for (name, capability) in [
        ("mode", mode(Mode::SingleNodeReaderOnly)),
        ("flag", mount_with("", &["ro"], Mode::SingleNodeWriter)),
        ("block", block_mode(Mode::SingleNodeReaderOnly)),
    ] {
        let vol = rig.volume(name, capability);
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        let file = if vol.is_block() { target } else { format!("{target}/file") };
        rig.kernel.write_file(&file, b"x").expect_err(name);
        rig.publish(&vol, "pod");
        rig.unpublish(&vol, "pod");
        rig.unstage(&vol);
    }
}

#[test]
fn what_is_at_the_target_already_is_not_hidden() {
    let rig = Rig::new();
    let mut vols = mountable(&rig);
    vols.push(rig.volume("block", block()));
    for vol in vols {
        rig.stage(&vol);
        let target = vol.target("pod");
        let request = rig.publish_request(&vol, "pod");
        rig.kernel.create_directories(format!("{target}/inside"));
        rig.fails(Code::FailedPrecondition, request.clone());
        assert!(rig.kernel.exists(format!("{target}/inside")) && rig.mounts_at(&target) == 0);
        let other = csi::NodePublishVolumeRequest { target_path: vol.target("file"), ..request.clone() };
        rig.publish_request(&vol, "file");
        rig.kernel.write_file(vol.target("file"), b"precious").expect("write");
        rig.fails(Code::FailedPrecondition, other);
        assert_eq!(rig.kernel.read_file(vol.target("file")).expect("read"), b"precious");
        rig.publish_request(&vol, "link");
        rig.kernel.symlink("/tmp", vol.target("link"));
        rig.fails(Code::InvalidArgument, rig.publish_request(&vol, "link"));
        let in_data = csi::NodePublishVolumeRequest { target_path: format!("{DATA}/volumes/x"), ..request };
        rig.fails(Code::InvalidArgument, in_data);
        assert!(!rig.kernel.exists(format!("{DATA}/volumes/x")));
        // An empty directory is what an earlier kubelet made.
        let empty = if vol.is_block() { None } else { Some(rig.publish_request(&vol, "empty")) };
        if let Some(request) = empty {
            rig.kernel.create_directories(vol.target("empty"));
            rig.ok(request);
        }
    }
}

#[test]
fn a_mount_of_somebody_else_at_the_target_is_left_alone() {
    let rig = Rig::new();
    let vol = rig.volume("fs", mount());
    rig.stage(&vol);
    let request = rig.publish_request(&vol, "pod");
    rig.kernel.create_directories(vol.target("pod"));
    rig.kernel.create_directories("/var/lib/other");
    let os = rig.kernel.os();
    os.mounts
        .bind("/var/lib/other".as_ref(), vol.target("pod").as_ref(), &MountFlags::default())
        .expect("bind");
    rig.fails(Code::FailedPrecondition, request);
    assert_eq!(rig.mounts_at(&vol.target("pod")), 1);
    rig.fails(Code::FailedPrecondition, vol.unpublish_request("pod"));
    assert_eq!(rig.mounts_at(&vol.target("pod")), 1);
}

#[test]
fn kubelets_own_bind_of_a_device_is_no_second_publish() {
    let rig = Rig::new();
    let (vol, target) = rig.published("block", block());
    let map = format!("{KUBELET}/plugins/kubernetes.io/csi/volumeDevices/pv-{}/dev", vol.id);
    rig.kernel.create_directories(&map);
    let map = format!("{map}/pod-1");
    rig.kernel.write_file(&map, b"").expect("a file");
    let os = rig.kernel.os();
    os.mounts.bind(target.as_ref(), map.as_ref(), &MountFlags::default()).expect("bind");
    let lock = rig.kernel.attach_foreign(&map, false).expect("kubelet's own loop device");
    rig.publish(&vol, "pod-1");
    rig.stage(&vol);
    rig.ok(vol.stats_request(&map));
    rig.kernel.detach_foreign(lock.number);
    rig.kernel.unmount_foreign(&map).expect("unmount");
    rig.unpublish(&vol, "pod-1");
    rig.unstage(&vol);
    rig.ok(vol.delete_request());
    rig.assert_clean();
}

#[test]
fn flags_of_the_publish_are_those_of_its_mount_only() {
    use hostloop::model::VfsFlag;
    let rig = Rig::new();
    let capability = mode(Mode::SingleNodeMultiWriter);
    let vol = rig.volume("fs", capability);
    rig.stage(&vol);
    let strict = vol.used(mount_with("", &["noexec", "context=\"a:b:c:s0\""], Mode::SingleNodeMultiWriter));
    let target = rig.publish(&strict, "strict");
    rig.publish(&strict, "strict");
    let plain = rig.publish(&vol, "plain");
    let flags = |path: &str| {
        let mounts = rig.kernel.mounts();
        mounts.iter().find(|m| m.target.as_os_str() == path).map(|m| m.flags.clone()).unwrap_or_default()
    };
    assert!(flags(&target).contains(&VfsFlag::NoExec));
    assert!(!flags(&plain).contains(&VfsFlag::NoExec) && !flags(&vol.staging()).contains(&VfsFlag::NoExec));
    rig.fails(Code::AlreadyExists, rig.publish_request(&strict, "plain"));
}

#[test]
fn a_directory_in_use_that_another_one_has_replaced_is_not_published_again() {
    let rig = Rig::new();
    let vol = rig.made(create_with("dir", &[("backend", "directory"), ("pool", "directories")]));
    rig.stage(&vol);
    let os = rig.kernel.os();
    let data = format!("{}/data", vol.directory());
    os.files.rename(data.as_ref(), format!("{data}.old").as_ref()).unwrap();
    rig.kernel.create_directories(&data);
    let message = rig.fails(Code::FailedPrecondition, rig.publish_request(&vol, "pod"));
    assert!(message.contains("is another directory than the one in use"), "{message}");
    os.files.remove_directory(data.as_ref()).unwrap();
    os.files.rename(format!("{data}.old").as_ref(), data.as_ref()).unwrap();
    rig.publish(&vol, "pod");
}

/// A second place of kubelet's directory in this mount namespace has a copy of the staged mount.
#[test]
fn a_copy_of_the_staged_mount_is_no_publish() {
    let rig = Rig::new();
    let vol = rig.volume("v", mode(Mode::SingleNodeSingleWriter));
    let os = rig.kernel.os();
    let staging = vol.staging();
    let base = std::path::Path::new(&staging).parent().expect("a directory");
    rig.kernel.create_directories("/second");
    rig.kernel.create_directories(base);
    os.mounts.bind("/second".as_ref(), base, &MountFlags::default()).expect("bind");
    rig.kernel.create_directories(&staging);
    rig.stage(&vol);
    let name = std::path::Path::new(&staging).file_name().expect("a name").to_str().expect("text");
    let copy = format!("/second/{name}");
    assert_eq!((rig.mounts_at(&staging), rig.mounts_at(&copy)), (1, 1));
    rig.ok(rig.publish_request(&vol, "pod-1"));
    rig.fails(Code::FailedPrecondition, rig.publish_request(&vol, "pod-2"));
    rig.fails(Code::FailedPrecondition, vol.unstage_request());
    rig.unpublish(&vol, "pod-1");
    rig.unstage(&vol);
    assert_eq!((rig.mounts_at(&copy), rig.kernel.loops().len()), (0, 0));
}
