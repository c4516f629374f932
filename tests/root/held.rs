//! Somebody else has a loop device open while the driver takes it away: it goes with its last user, and until then
//! nothing new is built on it.

use std::fs::File;
use std::path::PathBuf;

use tonic::Code;

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, eventually};

fn device(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

#[test]
fn a_device_on_its_way_out_is_not_staged_again() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "v", 16 * MIB, &[]);
    vol.up();
    let hold = File::open(device(kernel::loops(&world.data)[0])).expect("open");
    write_at(&vol.target("a"), 0, &pattern(1, 4096)).expect("write");
    vol.down();
    assert_eq!(kernel::loops(&world.data).len(), 1, "it is held");
    assert_eq!(vol.stage().expect_err("not yet").code(), Code::Aborted);
    assert_eq!(vol.publish("a").expect_err("not staged").code(), Code::FailedPrecondition);
    assert_eq!(vol.delete().expect_err("in use").code(), Code::FailedPrecondition);
    vol.unstage().expect("NodeUnstageVolume again");
    drop(hold);
    vol.up();
    assert_eq!(read_at(&vol.target("a"), 0, 4096), pattern(1, 4096));
    assert_eq!(kernel::loops(&world.data).len(), 1);
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
