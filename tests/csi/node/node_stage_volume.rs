//! NodeStageVolume and NodeUnstageVolume; what staging does to an image that is not as it should be is in its own file.

mod image;

use hostloop::model::{FsType, MountFlags, VfsFlag};
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use hostloop_fake_kernel::Kill;
use nix::errno::Errno;
use tonic::Code;

use crate::life::*;
use crate::support::*;

/// What a bind mount by somebody else needs.
fn bind_foreign(rig: &Rig, source: &str, target: &str) {
    rig.kernel.create_directories(source);
    rig.kernel.create_directories(target);
    let os = rig.kernel.os();
    os.mounts.bind(source.as_ref(), target.as_ref(), &MountFlags::default()).expect("bind");
}

#[test]
fn missing_fields_come_before_an_unknown_volume() {
    let rig = Rig::new();
    let unknown = rig.volume("v", mount()).with_id("fake-vol-id");
    let base = || rig.stage_request(&unknown);
    let no_mode = csi::VolumeCapability { access_mode: None, ..mount() };
    for request in [
        csi::NodeStageVolumeRequest { volume_id: String::new(), ..base() },
        csi::NodeStageVolumeRequest { staging_target_path: String::new(), ..base() },
        csi::NodeStageVolumeRequest { staging_target_path: "some/path".to_owned(), ..base() },
        csi::NodeStageVolumeRequest { staging_target_path: "/a/../b".to_owned(), ..base() },
        csi::NodeStageVolumeRequest { staging_target_path: "/".to_owned(), ..base() },
        csi::NodeStageVolumeRequest { volume_capability: None, ..base() },
        csi::NodeStageVolumeRequest { volume_capability: Some(no_mode), ..base() },
    ] {
        rig.fails(Code::InvalidArgument, request);
    }
    rig.fails(Code::NotFound, base());
    rig.fails(
        Code::InvalidArgument,
        csi::NodeUnstageVolumeRequest { volume_id: String::new(), ..unknown.unstage_request() },
    );
    rig.fails(
        Code::InvalidArgument,
        csi::NodeUnstageVolumeRequest { staging_target_path: String::new(), ..unknown.unstage_request() },
    );
    rig.ok(unknown.unstage_request());
}

#[test]
fn a_volume_is_formatted_once_and_keeps_its_data() {
    let rig = Rig::new();
    for fs_type in FsType::ALL {
        let name = fs_type.as_str();
        let request = csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create(name, fs(name)) };
        let vol = rig.made(request);
        let file = format!("{}/file", vol.staging());
        for round in 0..3 {
            rig.stage(&vol);
            rig.stage(&vol);
            let there = rig.kernel.mounts();
            assert_eq!((there.len(), there[0].fs_type.as_str()), (1, name));
            assert_eq!(rig.kernel.loops().len(), 1);
            match round {
                0 => rig.kernel.write_file(&file, b"data").expect("write"),
                _ => assert_eq!(rig.kernel.read_file(&file).expect("read"), b"data"),
            }
            rig.unstage(&vol);
            rig.unstage(&vol);
            assert_eq!(rig.kernel.loops(), []);
        }
        rig.ok(vol.delete_request());
    }
    assert_eq!(rig.kernel.formats().len(), FsType::ALL.len());
    rig.assert_clean();
}

#[test]
fn an_image_with_anything_in_it_is_never_formatted() {
    const SMALL: i64 = 8 * MIB;
    let rig = Rig::new();
    let known: [(&str, u64, &[u8]); 6] = [
        ("luks", 0, b"LUKS\xba\xbe"),
        ("lvm", 0x218, b"LVM2 001"),
        ("gpt", 0x200, b"EFI PART"),
        ("swap", 4086, b"SWAPSPACE2"),
        ("unknown at the end", SMALL as u64 - 5, b"hello"),
        ("one byte in the middle", 5 << 20, b"x"),
    ];
    for (name, at, bytes) in known {
        let request = csi::CreateVolumeRequest { capacity_range: range(SMALL, 0), ..create(name, mount()) };
        let vol = rig.made(request);
        rig.kernel.write(vol.image(), at, bytes).expect("write");
        let before = rig.kernel.read(vol.image(), 0, SMALL as usize).expect("read");
        let message = rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
        assert!(message.contains(&vol.id), "{message}");
        assert!(
            rig.kernel.read(vol.image(), 0, SMALL as usize).expect("read") == before,
            "{name} is untouched"
        );
        assert!(rig.kernel.loops().is_empty() && rig.kernel.mounts().is_empty(), "{name}");
    }
    assert_eq!(rig.kernel.formats(), []);
}

#[test]
fn a_foreign_filesystem_is_not_formatted_or_mounted() {
    let rig = Rig::new();
    let source =
        rig.made(csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create("xfs", fs("xfs")) });
    rig.stage(&source);
    rig.unstage(&source);
    let superblock = rig.kernel.read(source.image(), 0, 1 << 16).expect("read");
    for formatted in [false, true] {
        let vol = rig.volume(&format!("v-{formatted}"), fs("ext4"));
        if formatted {
            rig.stage(&vol);
            rig.unstage(&vol);
            rig.kernel.write(vol.image(), 0, &[0; 1 << 12]).expect("write");
        }
        rig.kernel.write(vol.image(), 0, &superblock).expect("write");
        let formats = rig.kernel.formats().len();
        rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
        assert_eq!(rig.kernel.formats().len(), formats);
        assert!(rig.kernel.read(vol.image(), 0, 1 << 16).expect("read") == superblock);
        assert!(rig.kernel.loops().is_empty() && rig.kernel.mounts().is_empty());
    }
}

/// mkfs.btrfs answers so where the write of its superblock fails.
#[test]
fn a_mkfs_that_wrote_nothing_is_not_believed() {
    for fs_type in FsType::ALL {
        let rig = Rig::new();
        let vol = rig.made(csi::CreateVolumeRequest {
            capacity_range: range(GIB, 0),
            ..create("v", fs(fs_type.as_str()))
        });
        rig.kernel.set_blind_mkfs(fs_type, true);
        let error = rig.fails(Code::Internal, rig.stage_request(&vol));
        assert!(error.contains("mkfs reported success"), "{error}");
        rig.kernel.set_blind_mkfs(fs_type, false);
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        rig.kernel.write_file(format!("{target}/file"), b"data").expect("write");
    }
}

#[test]
fn a_formatted_volume_is_never_formatted_again() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.stage(&vol);
    rig.unstage(&vol);
    rig.kernel.write(vol.image(), 0, &[0; 1 << 16]).expect("write");
    rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
    assert_eq!(rig.kernel.formats().len(), 1);
    assert_eq!(rig.kernel.loops(), []);
}

#[test]
fn another_capability_is_a_failed_precondition() {
    let rig = Rig::new();
    let vol = rig.volume("fs", fs("ext4"));
    for wanted in [fs("xfs"), block(), mode(Mode::MultiNodeMultiWriter)] {
        let request =
            csi::NodeStageVolumeRequest { volume_capability: Some(wanted), ..rig.stage_request(&vol) };
        rig.fails(Code::FailedPrecondition, request);
    }
    let block_vol = rig.volume("block", block());
    let request =
        csi::NodeStageVolumeRequest { volume_capability: Some(mount()), ..rig.stage_request(&block_vol) };
    rig.fails(Code::FailedPrecondition, request);
    assert!(rig.kernel.loops().is_empty() && rig.kernel.mounts().is_empty());
}

#[test]
fn a_volume_staged_in_another_way_already_exists() {
    let rig = Rig::new();
    let vol = rig.volume("fs", mount());
    rig.stage(&vol);
    for other in [
        mode(Mode::SingleNodeReaderOnly),
        mount_with("", &["ro"], Mode::SingleNodeWriter),
        mount_with("", &["noexec"], Mode::SingleNodeWriter),
    ] {
        rig.fails(Code::AlreadyExists, rig.stage_request(&vol.used(other)));
    }
    let block_vol = rig.volume("block", block());
    rig.stage(&block_vol);
    rig.fails(
        Code::AlreadyExists,
        rig.stage_request(&block_vol.used(block_mode(Mode::SingleNodeReaderOnly))),
    );
    let read_only = rig.volume("ro", mode(Mode::SingleNodeReaderOnly));
    rig.stage(&read_only);
    rig.fails(Code::AlreadyExists, rig.stage_request(&read_only.used(mount())));
    rig.stage(&read_only);
    rig.kernel.write_file(format!("{}/file", read_only.staging()), b"x").expect_err("read-only");
}

#[test]
fn an_altered_context_is_an_invalid_argument() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let with = |key: &str, value: &str| {
        let mut request = rig.stage_request(&vol);
        request.volume_context.insert(key.to_owned(), value.to_owned());
        request
    };
    for (key, value) in [("backend", "directory"), ("pool", "fast"), ("pool", "")] {
        rig.fails(Code::InvalidArgument, with(key, value));
    }
    rig.ok(with("storage.kubernetes.io/csiProvisionerIdentity", "1-2-hostloop.csi.dev"));
    rig.ok(with("csi.storage.k8s.io/pod.name", "pod"));
}

#[test]
fn mount_flags_reach_the_mount() {
    let rig = Rig::new();
    let context = "context=\"system_u:object_r:container_file_t:s0:c1,c2\"";
    let flags = ["noatime,nodev", "nosuid", "discard", context];
    let vol = rig.volume("v", mount_with("ext4", &flags, Mode::SingleNodeWriter));
    rig.stage(&vol);
    rig.stage(&vol);
    let shown = rig.kernel.mounts()[0].flags.clone();
    for flag in [VfsFlag::NoAtime, VfsFlag::NoDev, VfsFlag::NoSuid] {
        assert!(shown.contains(&flag), "{flag:?} in {shown:?}");
    }
    // The fake kernel, like a real one, refuses a word that the filesystem does not know: it got all of them.
    let odd = || mount_with("ext4", &["discard", "no_such_option=hunter2"], Mode::SingleNodeWriter);
    let made = rig.volume("odd", mount());
    for message in [
        rig.fails(Code::InvalidArgument, create("other", odd())),
        rig.fails(Code::InvalidArgument, rig.stage_request(&made.used(odd()))),
    ] {
        assert!(message.contains("\"no_such_option\""), "{message}");
        assert!(!message.contains("hunter2"), "values may be sensitive: {message}");
    }
    assert_eq!((rig.kernel.mounts().len(), rig.kernel.loops().len()), (1, 1));
    rig.unstage(&vol);
    let refused = ["bind", "remount", "loop", "rw,move", "offset=4096", "shared"];
    for flag in refused {
        let request = rig.stage_request(&vol.used(mount_with("", &[flag], Mode::SingleNodeWriter)));
        rig.fails(Code::InvalidArgument, request);
    }
    assert_eq!(rig.kernel.mounts(), []);
}

#[test]
fn a_mount_of_somebody_else_at_the_path_is_left_alone() {
    let rig = Rig::new();
    for (name, request) in [
        ("fs", create("fs", mount())),
        ("dir", create_with("dir", &[("backend", "directory"), ("pool", "directories")])),
    ] {
        let vol = rig.made(request);
        bind_foreign(&rig, "/var/lib/other", &vol.staging());
        rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
        assert_eq!((rig.mounts_at(&vol.staging()), rig.kernel.loops().len()), (1, 0), "{name}");
        rig.kernel.unmount_foreign(vol.staging()).expect("unmount");
        rig.stage(&vol);
        rig.unstage(&vol);
    }
}

#[test]
fn a_path_that_would_do_harm_is_an_invalid_argument() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.kernel.symlink(KUBELET, "/var/lib/link");
    rig.kernel.create_directories("/var/lib/kubelet/x");
    rig.kernel.symlink("/var/lib/hostloop", "/var/lib/kubelet/data");
    let in_data = format!("{DATA}/volumes/x");
    for path in ["/var/lib/link", DATA, &in_data, "/var/lib", "/var/lib/kubelet/data/x", &vol.directory()] {
        let request =
            csi::NodeStageVolumeRequest { staging_target_path: path.to_owned(), ..rig.stage_request(&vol) };
        let message = rig.fails(Code::InvalidArgument, request);
        assert!(message.contains(path.rsplit('/').next().unwrap_or(path)), "{message}");
    }
    let through_link = csi::NodeStageVolumeRequest {
        staging_target_path: "/var/lib/link/x".to_owned(),
        ..rig.stage_request(&vol)
    };
    rig.ok(through_link);
    assert_eq!(rig.mounts_at("/var/lib/kubelet/x"), 1, "a link on the way is resolved");
    let unstage = csi::NodeUnstageVolumeRequest {
        staging_target_path: "/var/lib/link/x".to_owned(),
        ..vol.unstage_request()
    };
    rig.ok(unstage);
    assert_eq!(rig.kernel.mounts(), []);
}

#[test]
fn paths_lie_below_the_kubelet_dir_that_is_set() {
    let rig = Rig::with(&["--kubelet-dir", KUBELET]);
    let vol = rig.volume("v", mount());
    rig.kernel.create_directories("/tmp/stage");
    rig.kernel.symlink("/tmp", "/var/lib/kubelet/tmp");
    for path in ["/tmp/stage", "/var/lib/kubelet/tmp/stage", "/var/lib/kubelet-2"] {
        let request =
            csi::NodeStageVolumeRequest { staging_target_path: path.to_owned(), ..rig.stage_request(&vol) };
        assert!(rig.fails(Code::InvalidArgument, request).contains("--kubelet-dir"));
        let request =
            csi::NodePublishVolumeRequest { target_path: path.to_owned(), ..rig.publish_request(&vol, "p") };
        rig.fails(Code::InvalidArgument, request);
    }
    rig.stage(&vol);
    rig.publish(&vol, "pod-1");
}

#[test]
fn unstaging_what_is_not_staged_there_is_fine() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.unstage(&vol);
    rig.stage(&vol);
    rig.kernel.create_directories("/var/lib/kubelet/other");
    for path in ["/var/lib/kubelet/other", "/var/lib/kubelet/none", "/var/lib/kubelet/none/none"] {
        rig.ok(csi::NodeUnstageVolumeRequest {
            staging_target_path: path.to_owned(),
            ..vol.unstage_request()
        });
        assert_eq!(rig.mounts_at(&vol.staging()), 1, "it stays where it is staged");
    }
    let target = rig.publish(&vol, "pod-1");
    let message = rig.fails(Code::FailedPrecondition, vol.unstage_request());
    assert!(message.contains(&target), "{message}");
    rig.unpublish(&vol, "pod-1");
    rig.unstage(&vol);
    assert_eq!(rig.kernel.loops(), []);
}

#[test]
fn a_volume_that_is_held_is_not_unstaged() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.stage(&vol);
    let file = format!("{}/file", vol.staging());
    rig.kernel.write_file(&file, b"x").expect("write");
    let held = rig.kernel.open(&file).expect("open");
    rig.fails(Code::FailedPrecondition, vol.unstage_request());
    drop(held);
    rig.unstage(&vol);
    assert_eq!(rig.kernel.loops(), []);
}

#[test]
fn a_failure_at_any_step_leaves_no_mount_or_device() {
    for capability in [mount(), fs("xfs"), block()] {
        for step in 1..30 {
            let rig = Rig::new();
            let request =
                csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create("v", capability.clone()) };
            let vol = rig.made(request);
            let request = rig.stage_request(&vol);
            rig.kernel.fail_at(step, Errno::EIO);
            let Err(status) = rig.call(request) else { break };
            assert_eq!(status.code(), Code::Internal, "step {step}: {}", status.message());
            assert!(rig.kernel.mounts().is_empty() && rig.kernel.loops().is_empty(), "step {step}");
            rig.kernel.clear_plans();
            rig.stage(&vol);
        }
    }
}
