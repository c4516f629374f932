//! The health of volumes: filesystems and files in real trouble.

use std::path::Path;
use std::time::Duration;

use tonic::{Code, Status};

use crate::harness::{Kind, Vol, World, eventually, eventually_within, kernel, output, run, text};

/// The reasons that the controller and the node give, which are the same, sorted.
fn health(world: &World, vol: &Vol, publish: &Path) -> Result<Vec<String>, Status> {
    let reasons = |health: hostloop::wire::csi::VolumeHealth| -> Vec<String> {
        assert_eq!(health.volume_id, vol.id());
        let mut reasons: Vec<_> = health.health_statuses.into_iter().map(|entry| entry.reason).collect();
        reasons.sort();
        reasons
    };
    let controller = reasons(world.csi.health(vol.id())?);
    let node = reasons(world.csi.node_health(vol.id(), publish, &vol.staging())?);
    let unhealthy = world.csi.unhealthy()?;
    assert_eq!(unhealthy.contains(&vol.id().to_owned()), !controller.is_empty(), "{unhealthy:?}");
    let own: Vec<_> = node.iter().filter(|reason| !reason.starts_with("Not")).cloned().collect();
    assert_eq!(controller, own);
    Ok(node)
}

#[test]
fn volumes_of_every_kind_are_healthy_in_use_and_not() {
    let mut world = World::new(&[]);
    for kind in Kind::ALL {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        assert_eq!(world.csi.health(vol.id()).unwrap().health_statuses, [], "{kind:?}");
        vol.up();
        let target = vol.target("a");
        assert_eq!(health(&world, &vol, &target).unwrap(), [""; 0], "{kind:?}");
        vol.expand(kind.size() * 2).expect("ControllerExpandVolume");
        assert_eq!(health(&world, &vol, &target).unwrap(), [""; 0], "{kind:?}");
        run("umount", &[text(&target)]);
        assert_eq!(health(&world, &vol, &target).unwrap(), ["NotPublished"], "{kind:?}");
        vol.publish("a").expect("NodePublishVolume");
        vol.down();
        assert_eq!(health(&world, &vol, &target).unwrap(), ["NotPublished", "NotStaged"], "{kind:?}");
        vol.delete().expect("DeleteVolume");
    }
    assert_eq!(world.csi.storage_health().unwrap(), [""; 0]);
    world.finish();
}

/// How many troubles a volume has.
fn count(world: &World, vol: &Vol) -> usize {
    world.csi.health(vol.id()).unwrap().health_statuses.len()
}

/// The kernel's own switch for errors of a filesystem (Documentation/ABI/testing/sysfs-fs-ext4).
fn trigger_error(below: &Path) {
    let [number] = kernel::loops(below)[..] else { panic!("one device") };
    std::fs::write(format!("/sys/fs/ext4/loop{number}/trigger_fs_error"), "for a test").expect("an error");
}

/// Publishes the volume for another pod: it is refused for writing, with what health says, and so is a repeated staging.
fn refuses_writers(vol: &Vol, why: &str) {
    for refused in [vol.publish("b"), vol.stage()] {
        let refused = refused.expect_err("each write would fail");
        let said = refused.message();
        assert!(refused.code() == Code::FailedPrecondition && said.contains(why), "{refused:?}");
        assert!(said.contains("stage the volume again"), "{refused:?}");
    }
    assert!(!vol.target("b").exists());
}

#[test]
fn a_superblock_made_read_only_is_refused_to_writers() {
    let world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        vol.up();
        // The superblock alone, as after an error: the option of the mount stays.
        run("mount", &["-o", "remount,ro", text(&vol.staging())]);
        run("mount", &["-o", "remount,bind,rw", text(&vol.staging())]);
        refuses_writers(&vol, "became read-only after an error");
        vol.publish_as("reader", true).expect("a reader is fine");
        vol.unpublish("reader").expect("NodeUnpublishVolume");
        vol.remove();
    }
    world.finish();
}

#[test]
fn an_ext4_that_was_shut_down_is_refused_to_writers() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    vol.up();
    let done = output("xfs_io", &["-x", "-c", "shutdown", text(&vol.target("a"))]);
    assert!(done.status.success(), "{done:?}");
    refuses_writers(&vol, "after an error");
    vol.down();
    vol.up();
    vol.remove();
    world.finish();
}

#[test]
fn errors_of_ext4_are_told_until_it_was_checked() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    vol.up();
    let target = vol.target("a");
    trigger_error(&world.volume_directory(vol.id()));
    // With the next commit of the journal the kernel writes it down, and half a minute later to its place on the device.
    eventually_within(Duration::from_secs(90), "the errors are seen", || {
        run("sync", &["--file-system", text(&target)]);
        count(&world, &vol) == 1
    });
    assert_eq!(health(&world, &vol, &target).unwrap(), ["FilesystemErrors"]);
    vol.down();
    assert_eq!(count(&world, &vol), 1, "nobody has looked into it");
    vol.up();
    assert_eq!(health(&world, &vol, &target).unwrap(), [""; 0]);
    vol.down();

    let vol = vol.with_flags(&["errors=remount-ro"]);
    vol.up();
    trigger_error(&world.volume_directory(vol.id()));
    eventually("it is read-only", || count(&world, &vol) == 2);
    assert_eq!(health(&world, &vol, &target).unwrap(), ["FilesystemErrors", "FilesystemReadOnly"]);
    refuses_writers(&vol, "became read-only after an error");
    vol.remove();
    world.finish();
}

#[test]
fn a_filesystem_that_has_shut_down_is_inaccessible() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Xfs, "v", Kind::Xfs.size(), &[]);
    vol.up();
    let target = vol.target("a");
    let done = output("xfs_io", &["-x", "-c", "shutdown", text(&target)]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(health(&world, &vol, &target).unwrap(), ["FilesystemStopped"]);
    refuses_writers(&vol, "stopped after an error");
    vol.down();
    vol.up();
    assert_eq!(health(&world, &vol, &target).unwrap(), [""; 0]);
    vol.remove();
    world.finish();
}

#[test]
fn files_that_somebody_has_touched_are_lost_data() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    vol.up();
    vol.down();
    let image = world.image(vol.id());
    let target = vol.target("a");
    let reasons = || health(&world, &vol, &target).unwrap().remove(0);
    let file = std::fs::OpenOptions::new().write(true).open(&image).expect("the image");
    let superblock = kernel::read_at(&image, 0, 4096);
    kernel::write_at(&image, 0, &[0; 4096]).expect("write");
    assert_eq!(reasons(), "FilesystemMissing");
    kernel::write_at(&image, 0, &superblock).expect("write");
    assert_eq!(health(&world, &vol, &target).unwrap(), ["NotPublished", "NotStaged"]);
    file.set_len(vol.bytes() / 2).expect("truncate");
    assert_eq!(reasons(), "ImageTruncated");
    std::fs::remove_file(&image).expect("remove");
    assert_eq!(reasons(), "ImageMissing");
    vol.delete().expect("DeleteVolume");
    assert_eq!(world.csi.health(vol.id()).unwrap_err().code(), tonic::Code::NotFound);
    world.finish();
}
