//! Somebody else has a loop device open while the driver takes it away: it goes with its last user, and until then
//! nothing new is built on it.

use std::fs::File;
use std::path::PathBuf;

use tonic::Code;

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, attach, eventually, run, text};

fn device(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Whatever keeps the device open: the next pod gets this device, since a second one would have a cache of its own.
#[test]
fn a_raw_device_held_by_others_is_staged_again() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "v", 16 * MIB, &[]);
    vol.up();
    let number = kernel::loops(&world.data)[0];
    let hold = File::open(device(number)).expect("open");
    write_at(&vol.target("a"), 0, &pattern(1, 4096)).expect("write");
    vol.down();
    assert_eq!(kernel::loops(&world.data), [number], "it is held");
    assert_eq!(vol.publish("a").expect_err("not staged").code(), Code::FailedPrecondition);
    let refused = vol.delete().expect_err("in use");
    let own = format!("process {} (", std::process::id());
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains(&own), "{refused:?}");
    vol.unstage().expect("NodeUnstageVolume again");
    vol.up();
    assert_eq!(kernel::loops(&world.data), [number]);
    drop(hold);
    write_at(&vol.target("a"), 4096, &pattern(2, 4096)).expect("it stays after its last other user");
    assert_eq!(read_at(&vol.target("a"), 0, 4096), pattern(1, 4096));
    assert_eq!(kernel::loops(&world.data), [number]);
    vol.remove();
    world.finish();
}

/// kubelet attaches a loop device of its own to the node that it binds, and may leave it behind.
#[test]
fn a_loop_device_on_a_raw_device_is_no_obstacle() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "v", 16 * MIB, &[]);
    vol.up();
    write_at(&vol.target("a"), 0, &pattern(1, 4096)).expect("write");
    let map = world.directory("map").join("dev");
    File::create(&map).expect("create");
    run("mount", &["--bind", text(&vol.target("a")), text(&map)]);
    let left_over = attach(&map, &[]);
    // It is busy by that device.
    run("umount", &["--lazy", text(&map)]);
    vol.down();
    let refused = vol.delete().expect_err("in use");
    assert!(refused.message().contains(&format!("{left_over} is attached to it")), "{refused:?}");
    vol.up();
    assert_eq!(read_at(&vol.target("a"), 0, 4096), pattern(1, 4096));
    vol.down();
    run("losetup", &["--detach", &left_over]);
    eventually("it goes with its last user", || kernel::loops(&world.data).is_empty());
    vol.remove();
    world.finish();
}

/// One cache for each image: a reader does not get a second device beside a writable one that is still open.
#[test]
fn a_held_device_of_another_access_is_named() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "v", 16 * MIB, &[]);
    vol.up();
    let hold = File::open(device(kernel::loops(&world.data)[0])).expect("open");
    vol.down();
    let refused = vol.stage_read_only().expect_err("held");
    let own = format!("process {} (", std::process::id());
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains(&own), "{refused:?}");
    drop(hold);
    eventually("it goes", || kernel::loops(&world.data).is_empty());
    vol.remove();
    world.finish();
}

#[test]
fn a_reader_gets_a_device_that_stays() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "v", 16 * MIB, &[]);
    vol.up();
    write_at(&vol.target("a"), 0, &pattern(1, 4096)).expect("write");
    vol.publish_as("b", true).expect("NodePublishVolume readonly");
    let is_reader = |number: &u32| {
        std::fs::read_to_string(format!("/sys/block/loop{number}/ro")).expect("sysfs").trim() == "1"
    };
    let reader = kernel::loops(&world.data).into_iter().find(is_reader).expect("a read-only device");
    let hold = File::open(device(reader)).expect("open");
    vol.unpublish("b").expect("NodeUnpublishVolume");
    vol.publish_as("b", true).expect("NodePublishVolume readonly again");
    drop(hold);
    eventually("the first one goes", || kernel::loops(&world.data).len() == 2);
    assert_eq!(read_at(&vol.target("b"), 0, 4096), pattern(1, 4096));
    assert_eq!(kernel::device_size(&vol.target("b")), vol.bytes());
    vol.unpublish("b").expect("NodeUnpublishVolume");
    vol.remove();
    world.finish();
}

/// A filesystem's device that is still open is used again: the mount keeps it.
#[test]
fn a_held_device_of_a_filesystem_is_mounted_again() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "v", 16 * MIB, &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, 4096)).expect("write");
    let hold = File::open(device(kernel::loops(&world.data)[0])).expect("open");
    vol.down();
    vol.up();
    drop(hold);
    assert_eq!(read_at(&vol.file("a"), 0, 4096), pattern(1, 4096));
    assert_eq!(kernel::loops(&world.data).len(), 1);
    vol.remove();
    world.finish();
}
