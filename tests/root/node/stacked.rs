//! Somebody else's mount lies over one of the volume's: nothing is done to the other filesystem, and nothing is answered
//! OK that is not so.

use std::path::Path;

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::{Code, Status};

use crate::client::parameters as map;
use crate::harness::{Kind, MIB, Vol, World, kernel, run, text};

/// FAILED_PRECONDITION, with the other mount and its path in the message.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Status>, path: &Path) {
    let error = result.expect_err("another mount is in the way");
    assert_eq!(error.code(), Code::FailedPrecondition, "{error:?}");
    assert!(error.message().contains("tmpfs") && error.message().contains(text(path)), "{error:?}");
}

fn cover(path: &Path) {
    run("mount", &["-t", "tmpfs", "tmpfs", text(path)]);
    std::fs::write(path.join("strange"), "strange").expect("write");
}

fn uncover(path: &Path) {
    assert_eq!(std::fs::read(path.join("strange")).expect("it is still there"), b"strange");
    run("umount", &[text(path)]);
}

#[test]
fn a_mount_over_the_staging_path_is_left_alone() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("covered {kind:?}"), kind.size(), &[]);
        let staging = vol.staging();
        vol.stage().expect("NodeStageVolume");
        cover(&staging);
        refused(vol.stage(), &staging);
        refused(vol.publish("a"), &staging);
        assert!(!vol.target("a").exists(), "nothing was left");
        refused(vol.unstage(), &staging);
        refused(world.csi.stats(vol.id(), &staging), &staging);
        if kind != Kind::Directory {
            // Nothing of it can be reached to be frozen or grown.
            refused(world.csi.snapshot(&format!("s-{}", vol.id()), vol.id(), &[]), &staging);
        }
        assert_eq!(kernel::mounts(&staging).len(), 2, "nothing was unmounted");
        let health = world.csi.node_health(vol.id(), &vol.target("a"), &staging).expect("health");
        assert!(health.health_statuses.iter().any(|entry| entry.reason == "NotStaged"), "{health:?}");
        uncover(&staging);
        vol.stage().expect("NodeStageVolume again");
        vol.publish("a").expect("NodePublishVolume");
        vol.remove();
    }
    world.finish();
}

/// The volume is frozen where it can be reached: its last file is in the copy.
#[test]
fn a_snapshot_is_of_the_volume_below_a_cover() {
    let world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let vol = Vol::create(&world, kind, &format!("cut {kind:?}"), kind.size(), &[]);
        vol.up();
        let staging = vol.staging();
        let other = Vol::create(&world, Kind::Ext4, &format!("other {kind:?}"), 64 * MIB, &[]);
        other.up();
        run("mount", &["--bind", text(&other.target("a")), text(&staging)]);
        std::fs::write(vol.file("a"), "the last file").expect("write");
        let snapshot = world.csi.snapshot(&format!("s {kind:?}"), vol.id(), &[]).expect("CreateSnapshot");
        let restored = Vol::restore(&world, kind, &format!("r {kind:?}"), kind.size(), &snapshot, &[]);
        restored.up();
        assert_eq!(std::fs::read(restored.file("a")).expect("the last file"), b"the last file", "{kind:?}");
        restored.remove();
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
        let error = vol.publish("b").expect_err("the pod would get the other volume");
        assert_eq!(error.code(), Code::FailedPrecondition, "{error:?}");
        vol.unpublish("a").expect("NodeUnpublishVolume");
        assert_eq!(vol.unstage().expect_err("it is covered").code(), Code::FailedPrecondition);
        assert_eq!(kernel::mounts(&staging).len(), 2, "nothing was unmounted");
        run("umount", &[text(&staging)]);
        vol.unstage().expect("NodeUnstageVolume");
        vol.delete().expect("DeleteVolume");
        other.remove();
    }
    world.finish();
}

#[test]
fn a_mount_over_a_target_is_left_alone() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("target {kind:?}"), kind.size(), &[]);
        vol.up();
        let target = vol.target("a");
        cover(&target);
        refused(vol.publish("a"), &target);
        refused(world.csi.stats(vol.id(), &target), &target);
        refused(vol.node_expand("a", kind.size() * 2), &target);
        refused(vol.unpublish("a"), &target);
        assert_eq!(kernel::mounts(&target).len(), 2, "nothing was unmounted");
        let health = world.csi.node_health(vol.id(), &target, &vol.staging()).expect("health");
        assert!(health.health_statuses.iter().any(|entry| entry.reason == "NotPublished"), "{health:?}");
        uncover(&target);
        vol.remove();
    }
    world.serve(Kind::Block);
    let vol = Vol::create(&world, Kind::Block, "target of a device", Kind::Block.size(), &[]);
    vol.up();
    let (target, file) = (vol.target("a"), world.directory("x").join("a file"));
    std::fs::write(&file, "strange").expect("write");
    run("mount", &["--bind", text(&file), text(&target)]);
    assert_eq!(vol.unpublish("a").expect_err("it is covered").code(), Code::FailedPrecondition);
    assert_eq!(vol.unstage().expect_err("it is published").code(), Code::FailedPrecondition);
    assert_eq!(kernel::mounts(&target).len(), 2, "nothing was unmounted");
    run("umount", &[text(&target)]);
    vol.remove();
    world.finish();
}

/// The same where the mount covers a directory on the way.
#[test]
fn a_mount_over_the_way_to_a_volume_is_named() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("way {kind:?}"), kind.size(), &[]);
        vol.up();
        let base = vol.staging().parent().expect("a parent").to_owned();
        cover(&base);
        refused(vol.unpublish("a"), &base);
        let error = vol.unstage().expect_err("it is published, and hidden");
        assert_eq!(error.code(), Code::FailedPrecondition, "{error:?}");
        std::fs::create_dir(base.join("globalmount")).expect("mkdir");
        std::fs::create_dir(base.join("a")).expect("mkdir");
        refused(vol.unpublish("a"), &base);
        let error = vol.unstage().expect_err("it is published, and hidden");
        assert_eq!(error.code(), Code::FailedPrecondition, "{error:?}");
        assert_eq!(kernel::mounts(&base).len(), 3, "nothing was unmounted");
        uncover(&base);
        vol.remove();
    }
    world.finish();
}

#[test]
fn a_mount_over_an_inline_volume_is_left_alone() {
    let world = World::new(&[]);
    let (id, target) = ("csi-covered", world.kubelet.join("pod"));
    let publish = || {
        world.csi.publish(csi::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: text(&target).to_owned(),
            volume_capability: Some(Kind::Ext4.capability(Mode::SingleNodeWriter)),
            volume_context: map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
            ..Default::default()
        })
    };
    publish().expect("NodePublishVolume");
    cover(&target);
    refused(publish(), &target);
    refused(world.csi.unpublish(id, &target), &target);
    assert_eq!(kernel::mounts(&target).len(), 2, "nothing was unmounted");
    uncover(&target);
    world.csi.unpublish(id, &target).expect("NodeUnpublishVolume");
    world.finish();
}
