//! Large directories are removed after their deletion was answered.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::directories::qgroups::with_full_qgroups;
use crate::directories::quotas::{
    Disk, has_project_quotas, place, sync, with_project_quotas, with_simple_quotas, world_on,
};
use crate::harness::{Kind, MIB, Vol, World, after_retries, entries, run, text};

/// So many files that their removal is seen while it runs: the emulated machine is not as fast.
fn files() -> usize {
    if has_project_quotas() { 4_000 } else { 20_000 }
}

/// Fills a volume that is published.
pub fn fill(top: &Path, files: usize) {
    for directory in 0..files.div_ceil(1000) {
        let directory = top.join(format!("{directory}"));
        std::fs::create_dir(&directory).expect("mkdir");
        (0..1000.min(files))
            .for_each(|n| std::fs::write(directory.join(format!("{n}")), b"data").expect("write"));
    }
}

/// The directories of volumes or snapshots, without the records beside them.
fn directories_in(place: &Path) -> Vec<PathBuf> {
    entries(place).into_iter().filter(|path| path.is_dir()).collect()
}

/// A volume with many files that is not in use.
fn large<'a>(world: &'a World, parameters: &[(&str, &str)], files: usize) -> Vol<'a> {
    let vol = Vol::create(world, Kind::Directory, "v", 512 * MIB, parameters);
    vol.up();
    fill(&vol.target("a"), files);
    vol.down();
    vol
}

/// A driver that is killed again and again while it removes comes to an end, and a volume of the same name is not touched.
/// Where it is a subvolume, of the filesystem mounted at `held`, the kernel does not destroy it before all that was seen.
fn goes_on(mut world: World, parameters: &[(&str, &str)], volumes: &Path, held: Option<&Path>) {
    let asked = [parameters, &[("backend", "directory")]].concat();
    let room = world.csi.room(&asked).expect("GetCapacity");
    let vol = large(&world, parameters, files());
    sync(volumes); // btrfs knows what is there when it has committed
    let id = vol.id().to_owned();
    let hold = held.map(|mount_point| Hold::new(mount_point, &volumes.join(&id)));
    let began = Instant::now();
    vol.delete().expect("DeleteVolume");
    println!("DeleteVolume of {} files: {:?}", files(), began.elapsed());
    assert!(!entries(volumes).is_empty(), "it has not waited for the files");
    assert!(!volumes.join(&id).exists(), "its name is free");
    vol.delete().expect("DeleteVolume again");
    let again = Vol::create(&world, Kind::Directory, "v", 64 * MIB, parameters);
    assert_eq!(again.id(), id);
    again.up();
    std::fs::write(again.target("a").join("mine"), b"data").expect("write");
    again.down();
    let volume = again.info.clone();
    if held.is_some() {
        assert_eq!(directories_in(volumes).len(), 2, "it waits");
    }
    drop(hold);
    // Each life is longer than the one before: a slow machine needs most of a short one for the start.
    let mut life = Duration::from_millis(50);
    while directories_in(volumes).len() > 1 {
        world.restart_after_kill();
        std::thread::sleep(life);
        life = life * 5 / 4;
    }
    let again = Vol::of(&world, Kind::Directory, volume);
    assert_eq!(directories_in(volumes), [volumes.join(again.id())]);
    again.up();
    assert_eq!(std::fs::read(again.target("a").join("mine")).expect("read"), b"data");
    again.remove();
    assert!(entries(volumes).is_empty(), "{:?}", entries(volumes));
    sync(volumes);
    after_retries("everything is free again", || {
        let now = world.csi.room(&asked).expect("GetCapacity");
        now.0.abs_diff(room.0) < 64 * MIB
    });
    world.finish();
}

fn limited(disk: &Disk) {
    goes_on(world_on(disk), &[("pool", "limited")], &disk.path.join("pool/volumes"), None);
}

fn subvolume(disk: &Disk) {
    goes_on(world_on(disk), &[("pool", "limited")], &disk.path.join("pool/volumes"), Some(&disk.path));
}

/// The kernel destroys no subvolume that is the default one of its filesystem, until this is dropped.
struct Hold<'a>(&'a Path);

impl<'a> Hold<'a> {
    fn new(mount_point: &'a Path, subvolume: &Path) -> Self {
        run("btrfs", &["subvolume", "set-default", text(subvolume)]);
        Hold(mount_point)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        run("btrfs", &["subvolume", "set-default", "5", text(self.0)]);
    }
}

#[test]
fn a_directory_of_ext4_with_an_enforced_size() {
    let Some(disk) = with_project_quotas("ext4") else { return };
    limited(&disk);
}

#[test]
fn a_directory_of_xfs_with_an_enforced_size() {
    let Some(disk) = with_project_quotas("xfs") else { return };
    limited(&disk);
}

#[test]
fn a_subvolume_of_btrfs_with_simple_quotas() {
    let Some(disk) = with_simple_quotas() else { return };
    subvolume(&disk);
    no_qgroup_is_left(&disk);
}

#[test]
fn a_subvolume_of_btrfs_with_full_qgroups() {
    let disk = with_full_qgroups();
    subvolume(&disk);
    if crate::directories::quotas::has_simple_quotas() {
        no_qgroup_is_left(&disk); // older kernels leave those of removed subvolumes
    }
}

/// Of volumes, when the kernel has taken back what was removed: that of the filesystem's own tree is what remains.
fn no_qgroup_is_left(disk: &Disk) {
    sync(&disk.path);
    run("btrfs", &["subvolume", "sync", text(&disk.path)]);
    sync(&disk.path);
    let shown = std::process::Command::new("btrfs").args(["qgroup", "show", text(&disk.path)]).output();
    let shown = String::from_utf8(shown.expect("btrfs").stdout).expect("text");
    let left: Vec<&str> =
        shown.lines().filter(|line| line.contains('/') && !line.starts_with("0/5 ")).collect();
    assert_eq!(left, [""; 0], "{shown}");
}

/// A snapshot of a subvolume is one, too.
#[test]
fn a_snapshot_of_a_subvolume_is_removed() {
    let disk = with_full_qgroups();
    let mut world = world_on(&disk);
    let vol = large(&world, &[("pool", "limited")], files());
    sync(&disk.path);
    let cut = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot");
    let snapshots = disk.path.join("pool/snapshots");
    assert!(snapshots.join(&cut.snapshot_id).is_dir());
    let hold = Hold::new(&disk.path, &snapshots.join(&cut.snapshot_id));
    world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
    let (volume, volumes) = (vol.info.clone(), disk.path.join("pool/volumes"));
    assert!(entries(&snapshots).is_empty(), "it is gone for callers");
    assert_eq!(directories_in(&volumes).len(), 2, "it has not waited for the kernel");
    world.restart_after_kill();
    drop(hold);
    let vol = Vol::of(&world, Kind::Directory, volume);
    after_retries("it is removed", || directories_in(&volumes) == [volumes.join(vol.id())]);
    vol.up();
    assert!(vol.target("a").join("0/0").exists(), "its volume is what it was");
    vol.remove();
    after_retries("it is removed", || entries(&volumes).is_empty());
    world.finish();
}

/// As a pool of directories without an enforced size.
#[test]
fn a_plain_directory_is_removed_whole() {
    let Some(disk) = with_simple_quotas() else { return };
    let pool = place(&disk, "plain");
    let world = World::new(&["--pool", &format!("plain={},directories=true,reserve=0", text(&pool))]);
    goes_on(world, &[("pool", "plain"), ("enforcement", "none")], &pool.join("volumes"), None);
}

/// A subvolume of the pod's own keeps btrfs from removing the volume in one step.
#[test]
fn a_directory_of_btrfs_with_a_subvolume_in_it() {
    let Some(disk) = with_simple_quotas() else { return };
    let world = world_on(&disk);
    let volumes = disk.path.join("pool/volumes");
    let vol = Vol::create(&world, Kind::Directory, "v", 512 * MIB, &[("pool", "limited")]);
    vol.up();
    let nested = vol.target("a").join("nested");
    run("btrfs", &["-q", "subvolume", "create", text(&nested)]);
    fill(&nested, files());
    vol.down();
    vol.delete().expect("DeleteVolume");
    assert!(!volumes.join(vol.id()).exists(), "its name is free");
    after_retries("it is removed", || entries(&volumes).is_empty());
    world.finish();
}

/// What somebody mounts in a directory that is being removed is not touched.
#[test]
fn a_mount_in_it_is_not_entered() {
    let Some(disk) = with_simple_quotas() else { return };
    let pool = place(&disk, "plain");
    let world = World::new(&["--pool", &format!("plain={},directories=true,reserve=0", text(&pool))]);
    let vol = large(&world, &[("pool", "plain"), ("enforcement", "none")], 100_000);
    let began = Instant::now();
    vol.delete().expect("DeleteVolume");
    println!("DeleteVolume of 100,000 files: {:?}", began.elapsed());
    let point = directories_in(&pool.join("volumes")).pop().expect("it is there").join("data/99");
    run("mount", &["-t", "tmpfs", "tmpfs", text(&point)]);
    std::fs::write(point.join("theirs"), b"data").expect("write");
    after_retries("health tells", || {
        world.csi.storage_health().expect("health").contains(&"RemovalFailing".to_owned())
    });
    assert_eq!(std::fs::read(point.join("theirs")).expect("read"), b"data");
    run("umount", &[text(&point)]);
    after_retries("it is removed", || entries(&pool.join("volumes")).is_empty());
    after_retries("health is good", || world.csi.storage_health().expect("health").is_empty());
    world.finish();
}
