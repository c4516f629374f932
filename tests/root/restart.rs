//! Mounts and devices are the kernel's: they outlive the driver's process, and its next one takes them over.

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, Vol, World};

#[test]
fn volumes_in_use_survive_the_driver() {
    survive_the_driver(&Kind::LOOP);
    survive_the_driver(&[Kind::Directory]);
}

fn survive_the_driver(kinds: &[Kind]) {
    let mut world = World::for_kind(kinds[0], &[]);
    let created: Vec<_> = kinds
        .iter()
        .map(|&kind| {
            let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
            vol.up();
            vol.publish_as("b", true).expect("NodePublishVolume readonly");
            write_at(&vol.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
            (kind, vol.info.clone())
        })
        .collect();
    for killed in [true, false] {
        let driver = world.take_driver();
        let before = kernel::mounts(&world.dir).len();
        if killed {
            driver.kill()
        } else {
            driver.stop()
        }
        assert_eq!(kernel::mounts(&world.dir).len(), before, "mounts are left as they are");
        for (kind, volume) in &created {
            let vol = Vol::of(&world, *kind, volume.clone());
            assert_eq!(read_at(&vol.file("a"), 0, 1 << 20), pattern(1, 1 << 20), "{kind:?}");
            write_at(&vol.file("a"), 1 << 20, &pattern(2, 4096)).expect("write while no driver runs");
        }
        world.start();
        for (kind, volume) in &created {
            let vol = Vol::of(&world, *kind, volume.clone());
            let devices = kernel::loops(&world.volume_directory(vol.id()));
            vol.up();
            vol.publish_as("b", true).expect("NodePublishVolume readonly again");
            assert_eq!(kernel::loops(&world.volume_directory(vol.id())), devices, "{kind:?}");
            assert_eq!(kernel::mounts(&vol.target("a")).len(), 1, "{kind:?}: mounted once");
            assert_eq!(read_at(&vol.file("b"), 1 << 20, 4096), pattern(2, 4096), "{kind:?}");
        }
    }
    for (kind, volume) in created {
        let vol = Vol::of(&world, kind, volume);
        vol.unpublish("b").expect("NodeUnpublishVolume");
        vol.remove();
    }
    world.finish();
}

/// What a reboot leaves: records and images, no mount and no device, and perhaps no path of kubelet's.
#[test]
fn volumes_come_back_after_a_reboot() {
    come_back_after_a_reboot(&Kind::LOOP);
    come_back_after_a_reboot(&[Kind::Directory]);
}

fn come_back_after_a_reboot(kinds: &[Kind]) {
    let mut world = World::for_kind(kinds[0], &[]);
    let mut created = Vec::new();
    for &kind in kinds {
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
        created.push((kind, vol.info.clone()));
    }
    world.take_driver().kill();
    for mount in kernel::mounts(&world.dir).iter().rev() {
        crate::harness::run("umount", &[crate::harness::text(&mount.target)]);
    }
    for number in kernel::loops(&world.dir) {
        crate::harness::output("losetup", &["-d", &format!("/dev/loop{number}")]);
    }
    crate::harness::eventually("no device is left", || kernel::loops(&world.dir).is_empty());
    world.start();
    for (kind, volume) in created {
        let vol = Vol::of(&world, kind, volume);
        // kubelet cleans up after pods that it does not start again.
        std::fs::remove_dir(vol.staging()).expect("rmdir");
        vol.unpublish("a").expect("NodeUnpublishVolume of what is gone");
        vol.unstage().expect("NodeUnstageVolume of what is gone");
        vol.up();
        assert_eq!(read_at(&vol.file("a"), 0, 1 << 20), pattern(1, 1 << 20), "{kind:?}");
        vol.remove();
    }
    world.finish();
}
