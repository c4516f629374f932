//! The tools of btrfs ask every loop device that is mounted on the machine what it has (mkfs.btrfs whatever is mounted,
//! btrfs check each btrfs), and fail where one has been detached since it was listed (btrfs-progs, check_mounted_where).

use crate::harness::{Kind, Vol, World, text};
use crate::node::long_tools::start_with;
use crate::pools::managed_pools::Managed;

/// Starts the driver, in a mount namespace of its own. When it runs `tool` for the first time with `word` among its arguments,
/// `lines` do it; `$place` is a directory for them.
fn start_beside(world: &mut World, tool: &str, word: &str, lines: &str) {
    let place = world.dir.join("place");
    let place = text(&place);
    let script = format!(
        "place='{place}'
case \"$*\" in *'{word}'*) ;; *) exec \"$real\" \"$@\";; esac
mkdir \"$place\" || exec \"$real\" \"$@\"
{lines}"
    );
    start_with(world, tool, &script);
}

#[track_caller]
fn assert_ran_beside(world: &World) {
    assert!(world.dir.join("place").exists(), "the tool ran beside the mount");
}

#[test]
fn a_device_that_goes_does_not_fail_mkfs_btrfs() {
    let mut world = World::empty(&[]);
    let file = world.dir.join("file");
    std::fs::write(&file, [0; 4096]).expect("write");
    let lines = "device=$(losetup --find --show \"$place/../file\") || exit 9
mount -t tmpfs \"$device\" \"$place\" || exit 9
losetup --detach \"$device\"
\"$real\" \"$@\"
status=$?
umount \"$place\"
exit $status";
    start_beside(&mut world, "mkfs.btrfs", "/dev/loop", lines);
    let vol = Vol::create(&world, Kind::Btrfs, "v", Kind::Btrfs.size(), &[]);
    vol.stage().expect("NodeStageVolume");
    assert_ran_beside(&world);
    vol.unstage().expect("NodeUnstageVolume");
    vol.delete().expect("DeleteVolume");
    world.finish();
}

/// That would be taken for damage, and the pool stay closed.
#[test]
fn a_device_that_goes_does_not_fail_btrfs_check() {
    let mut managed = Managed::new("btrfs");
    managed.world.start();
    managed.world.take_driver().stop();
    managed.unmount();
    // A btrfs is mounted on a device that is not attached only for a moment: the tool reads that there is one. Its number is
    // one that nobody takes, as lower ones are free.
    let lines = "device=$place/loop
mknod \"$device\" b 7 255
echo \"$device $place btrfs rw 0 0\" >\"$place/mounts\"
mount --bind \"$place/mounts\" /proc/$$/mounts || exit 9
exec \"$real\" \"$@\"";
    start_beside(&mut managed.world, "btrfs", "check", lines);
    assert_ran_beside(&managed.world);
    let log = managed.world.driver().log_text();
    assert!(log.contains("it is sound"), "{log}");
    assert!(managed.world.csi.capacity(&[("pool", "copies")]).expect("GetCapacity") > 0);
    managed.world.take_driver().stop();
    // The pool was mounted in the driver's namespace only, which has ended with it.
    managed.world.start();
    managed.finish();
}
