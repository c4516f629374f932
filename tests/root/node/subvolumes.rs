//! btrfs volumes whose staged mount does not show the top of the filesystem: another default subvolume, or the mount
//! option `subvol=`.

use std::path::Path;

use tonic::Code;

use crate::harness::{Kind, Vol, World, kernel, run, text};

fn code(result: Result<(), tonic::Status>) -> Code {
    result.map_or_else(|e| e.code(), |()| Code::Ok)
}

/// A volume with the subvolume `sub`, in which there is the directory `part`.
fn with_subvolume<'a>(world: &'a World, name: &str) -> Vol<'a> {
    let vol = Vol::create(world, Kind::Btrfs, name, Kind::Btrfs.size(), &[]);
    vol.up();
    let sub = vol.target("a").join("sub");
    run("btrfs", &["-q", "subvolume", "create", text(&sub)]);
    std::fs::create_dir(sub.join("part")).expect("mkdir");
    vol
}

/// The whole life of a volume of which a subvolume is mounted.
fn lives(world: &World, vol: &Vol) {
    vol.up();
    vol.stage().expect("NodeStageVolume again");
    vol.publish("a").expect("NodePublishVolume again");
    assert_eq!(kernel::mounts(&vol.staging()).len(), 1, "it is not staged twice");
    assert_eq!(kernel::mounts(&vol.target("a")).len(), 1, "it is not published twice");
    assert!(vol.target("a").join("part").is_dir(), "the subvolume is what is seen");
    std::fs::write(vol.file("a"), "data").expect("write");
    vol.publish("b").expect("NodePublishVolume, another pod");
    assert_eq!(std::fs::read(vol.file("b")).expect("read"), b"data");
    let (total, _) = kernel::space(&vol.target("a"));
    let stats = vol.stats("a").expect("NodeGetVolumeStats");
    assert_eq!(stats[0].1[0], i64::try_from(total).expect("a size"));
    // As kubelet does it for a subPath.
    let part = world.directory(&format!("{}-part", vol.id()));
    run("mount", &["--bind", text(&vol.target("a").join("part")), text(&part)]);
    let bytes = vol.bytes() * 2;
    assert_eq!(vol.expand(bytes).expect("ControllerExpandVolume").0, bytes);
    vol.node_expand("a", bytes).expect("NodeExpandVolume");
    assert!(kernel::space(&vol.target("a")).0 > total, "the filesystem has grown");
    let snapshot = world.csi.snapshot(&format!("s-{}", vol.id()), vol.id(), &[]).expect("CreateSnapshot");
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    assert_eq!(
        world.csi.node_health(vol.id(), &vol.target("a"), &vol.staging()).expect("health").health_statuses,
        []
    );

    assert_eq!(code(vol.unstage()), Code::FailedPrecondition, "it is published");
    vol.unpublish("b").expect("NodeUnpublishVolume");
    assert_eq!(code(vol.unstage()), Code::FailedPrecondition, "it is published");
    vol.unpublish("a").expect("NodeUnpublishVolume");
    vol.unstage().expect("a part of it is not a publish");
    assert!(kernel::mounts(&vol.staging()).is_empty(), "it was said to be unstaged");
    assert_eq!(code(vol.delete()), Code::FailedPrecondition, "a part is mounted");
    run("umount", &[text(&part)]);
    assert!(kernel::mounts(&world.kubelet).is_empty());
}

#[test]
fn a_volume_with_another_default_subvolume_lives() {
    let world = World::new(&[]);
    let vol = with_subvolume(&world, "default subvolume");
    run("btrfs", &["subvolume", "set-default", text(&vol.target("a").join("sub"))]);
    vol.down();
    lives(&world, &vol);
    vol.delete().expect("DeleteVolume");
    world.finish();
}

#[test]
fn a_volume_mounted_with_subvol_lives() {
    let world = World::new(&[]);
    let vol = with_subvolume(&world, "subvol option");
    vol.down();
    let vol = vol.with_flags(&["subvol=/sub"]);
    lives(&world, &vol);
    vol.delete().expect("DeleteVolume");
    world.finish();
}

/// An administrator looks at the top of the filesystem of a volume that is staged by a subvolume.
#[test]
fn a_mount_of_the_top_elsewhere_hides_nothing() {
    let world = World::new(&[]);
    let vol = with_subvolume(&world, "top elsewhere");
    vol.down();
    let vol = vol.with_flags(&["subvol=/sub"]);
    vol.up();
    let top = world.directory("top");
    let number = kernel::loops(&world.data)[0];
    run("mount", &["-o", "subvolid=5", &format!("/dev/loop{number}"), text(&top)]);
    assert!(Path::new(&top).join("sub/part").is_dir());
    assert_eq!(code(vol.unstage()), Code::FailedPrecondition, "it is published");
    vol.unpublish("a").expect("NodeUnpublishVolume");
    vol.unstage().expect("NodeUnstageVolume");
    assert!(kernel::mounts(&vol.staging()).is_empty(), "it was said to be unstaged");
    assert_eq!(code(vol.delete()), Code::FailedPrecondition, "it is mounted elsewhere");
    run("umount", &[text(&top)]);
    vol.delete().expect("DeleteVolume");
    world.finish();
}
