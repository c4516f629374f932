//! mkfs beside what others do on the machine.

use crate::harness::{Kind, Vol, World, text};
use crate::long_tools::start_with;

/// mkfs.btrfs asks every loop device that is mounted what it has, and fails where one has been detached since it was listed.
/// Here one is detached while mkfs.btrfs runs for the first time, in a mount namespace of the driver's own.
#[test]
fn a_loop_device_of_others_that_goes_does_not_fail_mkfs_btrfs() {
    let mut world = World::empty(&[]);
    let (file, place) = (world.dir.join("file"), world.dir.join("place"));
    std::fs::write(&file, [0; 4096]).expect("write");
    let (file, place) = (text(&file), text(&place));
    start_with(
        &mut world,
        "mkfs.btrfs",
        &format!(
            "mkdir '{place}' || exec \"$real\" \"$@\"
device=$(losetup --find --show '{file}') && mount -t tmpfs \"$device\" '{place}' || exit 9
losetup --detach \"$device\"
\"$real\" \"$@\"
status=$?
umount '{place}'
exit $status"
        ),
    );
    let vol = Vol::create(&world, Kind::Btrfs, "v", Kind::Btrfs.size(), &[]);
    vol.stage().expect("NodeStageVolume");
    assert!(world.dir.join("place").exists(), "mkfs.btrfs ran beside the mount");
    vol.unstage().expect("NodeUnstageVolume");
    vol.delete().expect("DeleteVolume");
    world.finish();
}
