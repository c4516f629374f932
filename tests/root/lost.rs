//! The storage of a volume in use goes away: its image is removed or exchanged, its pool is unmounted lazily, or the
//! filesystem of its pool is shut down. What is mounted and attached is still found, and can be taken away.

use std::path::{Path, PathBuf};

use tonic::Code;

use crate::harness::{Kind, MIB, Vol, World, eventually, kernel, mount_image, mount_loop, run, text};

fn code(result: Result<(), tonic::Status>) -> Code {
    result.map_or_else(|e| e.code(), |()| Code::Ok)
}

fn reasons(world: &World, vol: &Vol) -> Vec<String> {
    let health = world.csi.health(vol.id()).expect("ControllerGetVolumeHealth");
    health.health_statuses.into_iter().map(|entry| entry.reason).collect()
}

/// Nothing is answered OK that is not so, and the way out works.
fn can_leave(vol: &Vol, kubelet: &Path, backing: &Path) {
    let left = || (kernel::mounts(kubelet), kernel::loops(backing));
    let (mounts, loops) = left();
    assert_eq!(code(vol.delete()), Code::FailedPrecondition, "it is published: {mounts:?} {loops:?}");
    assert_eq!(code(vol.unstage()), Code::FailedPrecondition, "it is published");
    assert_eq!(left().0.len(), mounts.len(), "nothing was unmounted");
    vol.unpublish("a").expect("NodeUnpublishVolume");
    assert!(!vol.target("a").exists(), "the target is gone");
    assert_eq!(code(vol.delete()), Code::FailedPrecondition, "it is staged");
    vol.unstage().expect("NodeUnstageVolume");
    assert!(kernel::mounts(kubelet).is_empty(), "{:?}", kernel::mounts(kubelet));
    eventually("no loop device is left", || kernel::loops(backing).is_empty());
    vol.unstage().expect("NodeUnstageVolume again");
    vol.unpublish("a").expect("NodeUnpublishVolume again");
}

#[test]
fn a_volume_whose_image_was_removed_can_be_taken_away() {
    for restart in [false, true] {
        let mut world = World::new(&[]);
        for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block] {
            let name = format!("removed {kind:?} {restart}");
            let vol = Vol::create(&world, kind, &name, kind.size(), &[]);
            vol.up();
            std::fs::remove_file(world.image(vol.id())).expect("remove the image");
            let volume = vol.info.clone();
            if restart {
                world.restart_after_kill();
            }
            let vol = Vol::of(&world, kind, volume);
            assert_eq!(reasons(&world, &vol), ["ImageMissing"], "{kind:?}");
            assert_eq!(code(vol.publish("b")), Code::FailedPrecondition, "{kind:?}: there is no image");
            can_leave(&vol, &world.kubelet, &world.volume_directory(vol.id()));
            assert_eq!(reasons(&world, &vol), ["ImageMissing"], "{kind:?}");
            vol.delete().expect("DeleteVolume");
        }
        world.finish();
    }
}

/// Another file has the name of the image: it is not what is mounted, and not a second volume either.
#[test]
fn a_volume_whose_image_was_exchanged_can_be_taken_away() {
    let world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Block] {
        let vol = Vol::create(&world, kind, &format!("exchanged {kind:?}"), kind.size(), &[]);
        vol.up();
        vol.down();
        eventually("no loop device is left", || kernel::loops(&world.data).is_empty());
        let (image, copy) = (world.image(vol.id()), world.dir.join("copy.img"));
        run("cp", &["--sparse=always", text(&image), text(&copy)]);
        vol.up();
        std::fs::rename(&copy, &image).expect("exchange the image");
        let number = kernel::loops(&world.data)[0];
        assert_eq!(code(vol.publish("b")), Code::FailedPrecondition, "{kind:?}: it is another file");
        can_leave(&vol, &world.kubelet, &world.volume_directory(vol.id()));
        // The restored image is used from now on.
        vol.up();
        let attached = kernel::loop_attribute(kernel::loops(&world.data)[0], "backing_file");
        assert_eq!(Path::new(&attached), image, "was /dev/loop{number}");
        vol.remove();
    }
    world.finish();
}

/// A pool beside the default one, on a filesystem of its own in a file.
struct Pool {
    world: World,
    image: PathBuf,
    path: PathBuf,
}

impl Pool {
    fn new(fs_type: &str, kinds: &[Kind]) -> Pool {
        let mut world = World::empty(&[]);
        let (image, path) = (world.dir.join("other.img"), world.dir.join("other"));
        mount_image(&image, &path, fs_type, 1024 * MIB);
        let directories = if kinds.contains(&Kind::Directory) { ",directories=true" } else { "" };
        let pool = format!("other={}{directories}", path.display());
        world.set_flags(&["--pool", &pool]);
        let mut pool = Pool { world, image, path };
        pool.world.start();
        pool
    }

    fn mount(&self) {
        mount_loop(&self.image, &self.path);
    }

    fn vol(&self, kind: Kind, name: &str) -> Vol<'_> {
        let bytes = if kind == Kind::Directory { 0 } else { kind.size() };
        Vol::create(&self.world, kind, name, bytes.max(MIB), &[("pool", "other")])
    }

    /// Ends the driver, which has the pool's lock open, mounts the pool again and starts the driver.
    fn heal(&mut self) {
        self.world.take_driver().stop();
        if !kernel::mounts(&self.path).is_empty() {
            run("umount", &[text(&self.path)]);
        }
        eventually("the pool's own device goes", || kernel::loops(&self.image).is_empty());
        self.mount();
        self.world.start();
    }

    fn finish(mut self) {
        let left = self.world.csi.list(0, "").expect("ListVolumes").entries;
        assert!(left.is_empty(), "{left:?}");
        self.world.take_driver().stop();
        run("umount", &[text(&self.path)]);
        self.world.finish();
    }
}

/// What there is of volumes without a driver.
fn known(vols: Vec<Vol<'_>>) -> Vec<(Kind, hostloop::wire::csi::Volume)> {
    vols.into_iter().map(|vol| (vol.kind, vol.info.clone())).collect()
}

/// The devices whose file was in the pool, whatever its path is now. Those of other tests come and go meanwhile.
fn devices_of(id: &str) -> Vec<u32> {
    let backing_file = |n: &u32| std::fs::read_to_string(format!("/sys/block/loop{n}/loop/backing_file"));
    kernel::loops(Path::new("/"))
        .into_iter()
        .filter(|n| backing_file(n).is_ok_and(|file| file.contains(id)))
        .collect()
}

/// DeleteVolume is refused, since the volume is in use or since its pool cannot be used meanwhile.
#[track_caller]
fn stays(vol: &Vol<'_>, why: &str) {
    let refused = code(vol.delete());
    assert!([Code::FailedPrecondition, Code::Unavailable].contains(&refused), "{why}: {refused:?}");
}

fn volumes_leave(pool: &Pool, vols: &[Vol<'_>]) {
    for vol in vols {
        let what = format!("{:?}", vol.kind);
        assert_eq!(code(vol.unstage()), Code::FailedPrecondition, "{what}: it is published");
        stays(vol, "it is published");
        vol.unpublish("a").unwrap_or_else(|error| panic!("{what}: NodeUnpublishVolume: {error:?}"));
        assert!(!vol.target("a").exists(), "{what}: the target is gone");
        stays(vol, "it is staged");
        vol.unstage().unwrap_or_else(|error| panic!("{what}: NodeUnstageVolume: {error:?}"));
        let left = kernel::mounts(&vol.staging());
        assert!(left.is_empty(), "{what}: {left:?}");
        eventually("no loop device is left", || devices_of(vol.id()).is_empty());
    }
    assert!(kernel::mounts(&pool.world.kubelet).is_empty());
}

/// A pool has volumes of one sort.
const SORTS: [&[Kind]; 2] = [&[Kind::Ext4, Kind::Block], &[Kind::Directory]];

fn a_lazily_unmounted_pool(fs_type: &str, kinds: &[Kind]) {
    let mut pool = Pool::new(fs_type, kinds);
    let vols: Vec<Vol<'_>> =
        kinds.iter().map(|&kind| pool.vol(kind, &format!("lazy {fs_type} {kind:?}"))).collect();
    vols.iter().for_each(Vol::up);
    run("umount", &["-l", text(&pool.path)]);
    volumes_leave(&pool, &vols);
    let volumes = known(vols);
    pool.heal();
    for (kind, volume) in volumes {
        let vol = Vol::of(&pool.world, kind, volume);
        vol.up();
        vol.remove();
    }
    pool.finish();
}

#[test]
fn volumes_of_a_lazily_unmounted_ext4_can_be_taken_away() {
    SORTS.iter().for_each(|kinds| a_lazily_unmounted_pool("ext4", kinds));
}

#[test]
fn volumes_of_a_lazily_unmounted_xfs_can_be_taken_away() {
    SORTS.iter().for_each(|kinds| a_lazily_unmounted_pool("xfs", kinds));
}

fn a_dead_pool(fs_type: &str, kinds: &[Kind]) {
    let mut pool = Pool::new(fs_type, kinds);
    let vols: Vec<Vol<'_>> =
        kinds.iter().map(|&kind| pool.vol(kind, &format!("dead {fs_type} {kind:?}"))).collect();
    vols.iter().for_each(Vol::up);
    // A volume elsewhere goes on.
    let other = Vol::create(&pool.world, Kind::Ext4, &format!("beside {fs_type}"), 64 * MIB, &[]);
    run("xfs_io", &["-x", "-c", "shutdown", text(&pool.path)]);
    other.up();
    other.remove();
    volumes_leave(&pool, &vols);
    for vol in &vols {
        let reasons = reasons(&pool.world, vol);
        assert!(!reasons.is_empty() || fs_type == "ext4", "{:?}: nobody is told", vol.kind);
    }
    let volumes = known(vols);
    pool.heal();
    for (kind, volume) in volumes {
        Vol::of(&pool.world, kind, volume).delete().expect("DeleteVolume");
    }
    pool.finish();
}

#[test]
fn volumes_of_an_ext4_that_has_shut_down_can_be_taken_away() {
    SORTS.iter().for_each(|kinds| a_dead_pool("ext4", kinds));
}

#[test]
fn volumes_of_an_xfs_that_has_shut_down_can_be_taken_away() {
    SORTS.iter().for_each(|kinds| a_dead_pool("xfs", kinds));
}

/// Somebody still has a file of a dead filesystem open: the mount is detached lazily, and the log says so.
#[test]
fn a_dead_filesystem_that_is_busy_is_detached() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs] {
        let vol = Vol::create(&world, kind, &format!("busy {kind:?}"), kind.size(), &[]);
        vol.up();
        let hold = std::fs::File::create(vol.file("a")).expect("a file");
        assert_eq!(code(vol.unpublish("a")), Code::FailedPrecondition, "{kind:?}: it lives, and is busy");
        assert_eq!(kernel::mounts(&vol.target("a")).len(), 1, "{kind:?}: it stays mounted");
        run("xfs_io", &["-x", "-c", "shutdown", text(&vol.target("a"))]);
        vol.unpublish("a").expect("NodeUnpublishVolume");
        vol.unstage().expect("NodeUnstageVolume");
        assert!(kernel::mounts(&world.kubelet).is_empty(), "{kind:?}");
        assert_eq!(code(vol.delete()), Code::FailedPrecondition, "{kind:?}: the open file keeps the device");
        drop(hold);
        eventually("no loop device is left", || kernel::loops(&world.data).is_empty());
        vol.delete().expect("DeleteVolume");
    }
    assert!(world.driver().log_text().contains("detached lazily"), "the log says so");
    world.finish();
}
