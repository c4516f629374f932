//! An image that somebody has cut off is never lengthened with zeros: what is lost is said.

use std::path::Path;

use tonic::Code;

use crate::client::parameters as map;
use crate::harness::kernel::{pattern, write_at};
use crate::harness::volume::{clone_request, restore_request};
use crate::harness::{Kind, MIB, Vol, World};

const SHORT: u64 = 8 * MIB;

fn cut_off(image: &Path) {
    std::fs::File::options().write(true).open(image).and_then(|file| file.set_len(SHORT)).expect("truncate");
}

#[track_caller]
fn is_left(image: &Path) {
    assert_eq!(image.metadata().expect("stat").len(), SHORT, "it is left as it is");
}

/// The start names what needs attention.
#[track_caller]
fn is_said(world: &mut World) {
    let log = world.driver().log_text();
    let said = |line: &str| line.contains("needs attention") && line.contains("it was truncated");
    assert!(log.lines().any(said), "{log}");
}

fn truncated(kind: Kind, parameters: &[(&str, &str)]) {
    let mut world = World::new(&[]);
    let vol = Vol::create(&world, kind, "v", 64 * MIB, parameters);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(3, 1 << 20)).expect("write");
    vol.down();
    let (volume, image) = (vol.info.clone(), world.image(vol.id()));
    drop(vol);
    cut_off(&image);
    world.restart_after_kill();
    is_left(&image);
    is_said(&mut world);

    let vol = Vol::of(&world, kind, volume.clone());
    let health = world.csi.health(vol.id()).expect("ControllerGetVolumeHealth");
    let reasons: Vec<_> = health.health_statuses.iter().map(|entry| entry.reason.as_str()).collect();
    assert_eq!(reasons, ["ImageTruncated"]);
    assert_eq!(vol.stage().expect_err("it is not whole").code(), Code::FailedPrecondition);
    is_left(&image);
    assert_eq!(vol.expand(128 * MIB).expect_err("it is not whole").code(), Code::FailedPrecondition);
    is_left(&image);
    let modified = world.csi.modify(vol.id(), &[("provisioning", "thick")]);
    if map(parameters).is_empty() {
        assert_eq!(modified.expect_err("it is not whole").code(), Code::FailedPrecondition);
    }
    is_left(&image);
    let cloned = world.csi.create(clone_request(kind, "clone", 64 * MIB, vol.id(), parameters));
    assert_eq!(cloned.expect_err("it is not whole").code(), Code::FailedPrecondition);
    let cut = world.csi.snapshot("s", vol.id(), &[]);
    assert_eq!(cut.expect_err("it is not whole").code(), Code::FailedPrecondition);
    is_left(&image);
    vol.delete().expect("DeleteVolume");
    drop(vol);
    world.finish();
}

#[test]
fn a_truncated_filesystem_is_not_given_out() {
    truncated(Kind::Ext4, &[]);
}

#[test]
fn a_truncated_raw_device_is_not_given_out() {
    truncated(Kind::Block, &[]);
}

#[test]
fn a_truncated_thick_volume_is_not_given_out() {
    truncated(Kind::Block, &[("provisioning", "thick")]);
}

#[test]
fn a_truncated_snapshot_is_not_restored() {
    let mut world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "v", 64 * MIB, &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(3, 1 << 20)).expect("write");
    vol.down();
    let snapshot = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot").snapshot_id;
    vol.delete().expect("DeleteVolume");
    drop(vol);
    let image = world.data.join("snapshots").join(&snapshot).join("disk.img");
    cut_off(&image);
    world.restart_after_kill();
    is_said(&mut world);
    let restored = world.csi.create(restore_request(Kind::Block, "r", 64 * MIB, &snapshot, &[]));
    assert_eq!(restored.expect_err("it is not whole").code(), Code::FailedPrecondition);
    is_left(&image);
    world.csi.delete_snapshot(&snapshot).expect("DeleteSnapshot");
    world.finish();
}

#[test]
fn a_directory_that_is_gone_is_said() {
    let mut world = World::for_kind(Kind::Directory, &[]);
    let id = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &[]).id().to_owned();
    std::fs::remove_dir(world.volume_directory(&id).join("data")).expect("rmdir");
    world.restart_after_kill();
    let log = world.driver().log_text();
    assert!(log.contains("needs attention") && log.contains("data is gone"), "{log}");
    assert!(!world.volume_directory(&id).join("data").exists());
    world.csi.delete(&id).expect("DeleteVolume");
    world.finish();
}
