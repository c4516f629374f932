//! Pools that are missing or broken at a start cost their own volumes only, and are taken back when they are there.

use std::path::{Path, PathBuf};

use tonic::Code;

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::namespace::in_own_namespace;
use crate::harness::process::binary;
use crate::harness::volume::create_request;
use crate::harness::{
    Kind, MIB, Vol, World, entries, eventually, mount_image, mount_loop, output, run, text,
};

/// A disk for a pool.
struct Disk {
    image: PathBuf,
    place: PathBuf,
}

impl Disk {
    fn new(world: &World, name: &str) -> Disk {
        Disk::at(world, name, world.dir.join(name))
    }

    fn at(world: &World, name: &str, place: PathBuf) -> Disk {
        let image = world.dir.join(format!("{name}.disk"));
        mount_image(&image, &place, "ext4", 256 * MIB);
        Disk { image, place }
    }

    fn mount(&self) {
        mount_loop(&self.image, &self.place);
    }

    fn unmount(&self) {
        run("umount", &[text(&self.place)]);
    }

    fn flag(&self, name: &str) -> String {
        format!("{name}={}", text(&self.place))
    }
}

fn in_pool(pool: &str) -> [(&str, &str); 1] {
    [("pool", pool)]
}

/// What must hold while the pool `fast`, with this volume, is not there, and the pool `default` is.
#[track_caller]
fn costs_its_own_volumes_only(world: &mut World, id: &str, hint: &str) {
    assert_eq!(world.csi.capacity(&in_pool("fast")).expect("GetCapacity"), 0);
    assert!(world.csi.capacity(&[]).expect("GetCapacity") > 0);
    let made = world.csi.create(create_request(Kind::Ext4, "w", 16 * MIB, &in_pool("fast")));
    assert_eq!(made.expect_err("no room").code(), Code::ResourceExhausted);
    let health = world.csi.health(id).expect("ControllerGetVolumeHealth");
    assert!(health.health_statuses.iter().any(|entry| entry.reason == "PoolUnavailable"), "{health:?}");
    let error = world.csi.delete(id).expect_err("it is not there to be deleted");
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    assert!(error.message().contains("pool fast"), "{error:?}");
    assert_eq!(world.csi.storage_health().expect("NodeGetStorageHealth"), ["PoolUnavailable"]);
    let log = world.driver().log_text();
    assert!(log.contains("the pool is not available") && log.contains(hint), "{hint}: {log}");

    let other = Vol::create(world, Kind::Ext4, "other", 16 * MIB, &[]);
    other.up();
    other.remove();
}

/// Waits until the pool `fast` is there.
#[track_caller]
fn taken_back(world: &World) {
    eventually("the pool is taken back", || world.csi.capacity(&in_pool("fast")).is_ok_and(|room| room > 0));
    eventually("it is healthy", || world.csi.storage_health().expect("NodeGetStorageHealth").is_empty());
}

/// A volume of the pool `fast` with data, not in use.
fn with_data(world: &World) -> String {
    let vol = Vol::create(world, Kind::Block, "v", 16 * MIB, &in_pool("fast"));
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, 4096)).expect("write");
    vol.down();
    vol.id().to_owned()
}

/// A running driver with the pool `fast` on a disk of its own, and a volume there with data.
fn with_fast() -> (World, Disk, String) {
    let mut world = World::empty(&[]);
    let disk = Disk::new(&world, "fast");
    world.set_flags(&["--pool", &disk.flag("fast")]);
    world.start();
    let id = with_data(&world);
    (world, disk, id)
}

/// Its data are there, and it goes.
#[track_caller]
fn can_be_deleted(world: &World, id: &str, image: &Path) {
    assert_eq!(read_at(image, 0, 4096), pattern(1, 4096));
    world.csi.delete(id).expect("DeleteVolume");
    assert!(!image.exists());
}

/// The pool on the first of these disks is taken back, its volume with all data, and nothing is left at the end.
#[track_caller]
fn ends_well(world: World, id: &str, disks: &[&Disk]) {
    taken_back(&world);
    can_be_deleted(&world, id, &image_of(&disks[0].place, id));
    finish(world, disks);
}

/// Ends the driver; nothing is left.
#[track_caller]
fn finish(mut world: World, disks: &[&Disk]) {
    world.take_driver().stop();
    disks.iter().for_each(|disk| disk.unmount());
    world.assert_nothing_left();
}

fn image_of(place: &Path, id: &str) -> PathBuf {
    place.join("volumes").join(id).join("disk.img")
}

#[test]
fn a_pool_whose_disk_is_not_mounted() {
    let (mut world, disk, id) = with_fast();
    world.take_driver().stop();
    disk.unmount();
    world.start();
    costs_its_own_volumes_only(&mut world, &id, "is its disk mounted");
    assert_eq!(entries(&disk.place).len(), 0, "nothing was written below");
    disk.mount();
    taken_back(&world);
    can_be_deleted(&world, &id, &image_of(&disk.place, &id));

    // Nothing of it is in the state file any more: it is remembered all the same.
    world.take_driver().stop();
    disk.unmount();
    world.start();
    assert_eq!(world.csi.capacity(&in_pool("fast")).expect("GetCapacity"), 0);
    assert_eq!(entries(&disk.place).len(), 0, "nothing was written below");
    // The directory is gone as well.
    std::fs::remove_dir(&disk.place).expect("rmdir");
    world.restart_after_kill();
    assert_eq!(world.csi.capacity(&in_pool("fast")).expect("GetCapacity"), 0);
    std::fs::create_dir(&disk.place).expect("mkdir");
    disk.mount();
    taken_back(&world);
    finish(world, &[&disk]);
}

#[test]
fn a_pool_whose_disk_is_read_only() {
    let (mut world, disk, id) = with_fast();
    world.take_driver().stop();
    run("mount", &["-o", "remount,ro", text(&disk.place)]);
    world.start();
    costs_its_own_volumes_only(&mut world, &id, "Read-only file system");
    run("mount", &["-o", "remount,rw", text(&disk.place)]);
    ends_well(world, &id, &[&disk]);
}

/// Its disk is shut down by an error: EIO for everything, until it is mounted anew.
#[test]
fn a_pool_whose_disk_fails_costs_only_its_own() {
    let (mut world, disk, id) = with_fast();
    world.take_driver().stop();
    let done = output("xfs_io", &["-x", "-c", "shutdown", text(&disk.place)]);
    assert!(done.status.success(), "{done:?}");
    world.start();
    costs_its_own_volumes_only(&mut world, &id, "pool fast");
    disk.unmount();
    disk.mount();
    ends_well(world, &id, &[&disk]);
}

#[test]
fn exchanged_disks_of_two_pools_are_refused() {
    let mut world = World::empty(&[]);
    let (fast, slow) = (Disk::new(&world, "fast"), Disk::new(&world, "slow"));
    world.set_flags(&["--pool", &fast.flag("fast"), "--pool", &slow.flag("slow")]);
    world.start();
    let id = with_data(&world);
    world.take_driver().stop();
    for disk in [&fast, &slow] {
        disk.unmount();
    }
    mount_loop(&fast.image, &slow.place);
    run("mount", &["-o", "loop", text(&slow.image), text(&fast.place)]);
    world.start();
    assert_eq!(world.csi.capacity(&in_pool("fast")).expect("GetCapacity"), 0);
    assert_eq!(world.csi.capacity(&in_pool("slow")).expect("GetCapacity"), 0);
    assert_eq!(world.csi.delete(&id).expect_err("not its disk").code(), Code::Unavailable);
    assert!(world.driver().log_text().contains("exchanged"), "{}", world.driver().log_text());
    for disk in [&fast, &slow] {
        disk.unmount();
    }
    fast.mount();
    slow.mount();
    ends_well(world, &id, &[&fast, &slow]);
}

/// What was restored has volumes, and no file that says whose the directory is.
#[test]
fn a_missing_marker_is_written_if_volumes_are_there() {
    let (mut world, disk, id) = with_fast();
    let forget = |world: &mut World| {
        world.take_driver().stop();
        for file in [disk.place.join("hostloop-pool"), world.data.join("known-pools/fast")] {
            std::fs::remove_file(file).expect("remove");
        }
    };
    forget(&mut world);
    world.start();
    assert!(disk.place.join("hostloop-pool").exists() && world.data.join("known-pools/fast").exists());
    forget(&mut world);
    let (volumes, away) = (disk.place.join("volumes"), disk.place.join("away"));
    std::fs::rename(&volumes, &away).expect("rename");
    std::fs::create_dir(&volumes).expect("mkdir");
    world.start();
    costs_its_own_volumes_only(&mut world, &id, "none of");
    std::fs::remove_dir(&volumes).expect("rmdir");
    std::fs::rename(&away, &volumes).expect("rename");
    ends_well(world, &id, &[&disk]);
}

#[test]
fn a_managed_pool_whose_image_was_moved_away() {
    let mut world = World::empty(&[]);
    let image = world.dir.join("fast.img");
    let flag = format!("fast={},kind=image,size={}", text(&image), 512 * MIB);
    world.set_flags(&["--pool", &flag]);
    world.start();
    let place = world.data.join("pools/fast");
    let id = with_data(&world);
    world.take_driver().stop();
    run("umount", &[text(&place)]);
    eventually("the pool's device goes", || kernel::loops(&image).is_empty());
    let away = world.dir.join("away.img");
    std::fs::rename(&image, &away).expect("rename");
    world.start();
    costs_its_own_volumes_only(&mut world, &id, "is missing");
    assert!(!image.exists());
    std::fs::rename(&away, &image).expect("rename");
    taken_back(&world);
    can_be_deleted(&world, &id, &image_of(&place, &id));
    world.take_driver().stop();
    run("umount", &[text(&place)]);
    world.assert_nothing_left();
}

/// Nodes differ: a flag for a disk that this one never had.
#[test]
fn pools_that_this_node_never_had() {
    let mut world = World::empty(&[]);
    let none = format!("none={}", text(&world.dir.join("none")));
    let device = "device=/dev/disk/by-id/hostloop-none,kind=device";
    let image = format!("image={},kind=image,size=512Mi", text(&world.dir.join("no/where.img")));
    world.set_flags(&["--pool", &none, "--pool", device, "--pool", &image]);
    world.start();
    for pool in ["none", "device", "image"] {
        assert_eq!(world.csi.capacity(&in_pool(pool)).expect("GetCapacity"), 0, "{pool}");
        let made = world.csi.create(create_request(Kind::Ext4, pool, 16 * MIB, &in_pool(pool)));
        assert_eq!(made.expect_err("no room").code(), Code::ResourceExhausted, "{pool}");
    }
    let vol = Vol::create(&world, Kind::Ext4, "v", 16 * MIB, &[]);
    vol.up();
    vol.remove();
    world.finish();
}

/// The directory of the pool is on its disk, so that it is not there before the disk is.
#[test]
fn a_disk_that_this_node_gets_later() {
    let mut world = World::empty(&[]);
    let disk = Disk::new(&world, "fast");
    let directory = disk.place.join("hostloop");
    std::fs::create_dir(&directory).expect("mkdir");
    disk.unmount();
    world.set_flags(&["--pool", &format!("fast={}", text(&directory))]);
    world.start();
    assert_eq!(world.csi.capacity(&in_pool("fast")).expect("GetCapacity"), 0);
    assert_eq!(world.csi.storage_health().expect("NodeGetStorageHealth"), ["PoolUnavailable"]);
    assert!(world.driver().log_text().contains("is not there: is its disk mounted?"));
    assert_eq!(entries(&disk.place).len(), 0, "nothing was made in its place");
    disk.mount();
    taken_back(&world);
    let id = with_data(&world);
    can_be_deleted(&world, &id, &image_of(&directory, &id));
    finish(world, &[&disk]);
}

/// The chart mounts the directory above that of a pool in the container, with HostToContainer: what is mounted later on
/// the node, on it or below it, is seen there.
#[test]
fn a_disk_mounted_while_the_container_runs_is_used() {
    let mut world = World::empty(&[]);
    let inside = Disk::new(&world, "inside");
    std::fs::create_dir(inside.place.join("hostloop")).expect("mkdir");
    inside.unmount();
    let above = world.dir.join("above");
    std::fs::create_dir(&above).expect("mkdir");
    // The mounts of a machine with systemd are shared.
    for directory in [&inside.place, &above] {
        run("mount", &["--bind", text(directory), text(directory)]);
        run("mount", &["--make-shared", text(directory)]);
    }
    let flags = [format!("fast={}/hostloop", text(&inside.place)), format!("slow={}/disk", text(&above))];
    world.set_flags(&["--pool", &flags[0], "--pool", &flags[1]]);
    let script = r#"for directory in "$1" "$2"; do
        mount --rbind "$directory" "$directory" && mount --make-rslave "$directory" || exit 1
    done
    shift 2 && exec "$@""#;
    let (first, second) = (text(&inside.place).to_owned(), text(&above).to_owned());
    let mut container = in_own_namespace(&world.dir, &["--propagation", "slave"]);
    container.args(["sh", "-c", script, "sh", &first, &second, binary()]);
    world.start_as(container.args(world.arguments()));
    let room = |world: &World, pool| world.csi.capacity(&in_pool(pool)).expect("GetCapacity");
    assert_eq!([room(&world, "fast"), room(&world, "slow")], [0, 0]);
    inside.mount();
    let slow = Disk::at(&world, "slow", above.join("disk"));
    taken_back(&world);
    let made =
        world.csi.create(create_request(Kind::Block, "v", 16 * MIB, &in_pool("slow"))).expect("CreateVolume");
    assert!(image_of(&slow.place, &made.volume_id).exists(), "it is on the disk");
    world.csi.delete(&made.volume_id).expect("DeleteVolume");
    world.take_driver().stop();
    for mounted in [&slow.place, &above, &inside.place, &inside.place] {
        run("umount", &[text(mounted)]);
    }
    world.assert_nothing_left();
}

/// A running driver notices too, and DeleteVolume does not take what it does not see for deleted.
#[test]
fn a_disk_that_goes_while_the_driver_runs() {
    let (mut world, disk, id) = with_fast();
    run("umount", &["--lazy", text(&disk.place)]);
    assert_eq!(world.csi.delete(&id).expect_err("it is not there").code(), Code::Unavailable);
    costs_its_own_volumes_only(&mut world, &id, "pool fast");
    disk.mount();
    ends_well(world, &id, &[&disk]);
}

/// What a kill left half made or half deleted in a pool that is away is finished when it is back.
#[test]
fn a_pool_that_comes_back_finishes_what_was_left() {
    let (mut world, disk, id) = with_fast();
    let volume = disk.place.join("volumes").join(&id);
    // DeleteVolume ends in the middle: it removes nothing that is not its own.
    let stray = volume.join("stray");
    std::fs::write(&stray, "stray").expect("write");
    world.csi.delete(&id).expect_err("the directory is not empty");
    assert!(!image_of(&disk.place, &id).exists());
    std::fs::remove_file(&stray).expect("remove");
    world.take_driver().stop();
    disk.unmount();
    world.start();
    assert_eq!(world.csi.delete(&id).expect_err("it is not there").code(), Code::Unavailable);
    disk.mount();
    taken_back(&world);
    eventually("the volume is gone", || !volume.exists());
    finish(world, &[&disk]);
}
