//! The driver's container is replaced while volumes are in use.

use super::*;
use crate::harness::namespace::in_own_namespace;

/// A process that keeps a mount namespace alive; killed when it is dropped.
struct Keeper(Child);

impl Keeper {
    fn of(pid: u32) -> Keeper {
        let arguments = ["--mount", "--target", &pid.to_string(), "sleep", "600"];
        let child = Command::new("nsenter").args(arguments).stdin(Stdio::null()).spawn().expect("nsenter");
        let own = std::fs::read_link(format!("/proc/{pid}/ns/mnt")).expect("a namespace");
        let path = format!("/proc/{}/ns/mnt", child.id());
        eventually("it is in the namespace", || std::fs::read_link(&path).is_ok_and(|ns| ns == own));
        Keeper(child)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the driver in a mount namespace of its own, from which no mount reaches anybody, as in a container.
fn start_in_namespace(world: &mut World) {
    let arguments = world.arguments();
    world.start_as(in_own_namespace(&world.dir, &[]).arg(binary()).args(arguments));
}

/// The path as the driver's process sees it.
fn seen(world: &mut World, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{}", world.driver().pid(), path.display()))
}

/// The driver's container is replaced while volumes are in use: the mount of the pool is in a namespace that is not
/// ours, or in none any more, and only volumes keep the filesystem.
fn outlives_its_namespace(fs: &'static str, keep: bool) {
    let mut managed = Managed::new(fs);
    start_in_namespace(&mut managed.world);
    assert!(kernel::mounts(&managed.world.data).is_empty(), "the mount is not in our namespace");
    let device = managed.device();
    let vol = managed.volume(Kind::Block, "block");
    let volume = vol.info.clone();
    let file = vol.file("a");
    let file = seen(&mut managed.world, &file);
    write_at(&file, 0, &pattern(1, 1 << 20)).expect("write");
    let keeper = keep.then(|| Keeper::of(managed.world.driver().pid()));
    for round in 0..3u64 {
        managed.world.take_driver().kill();
        assert_eq!(managed.device(), device, "a volume in use keeps it");
        start_in_namespace(&mut managed.world);
        assert_eq!(managed.device(), device, "the same one");
        assert_eq!(managed.world.driver().log_text().matches("made the pool's image").count(), 1);
        assert!(!managed.world.driver().log_text().contains("it is sound"), "what is in use is not checked");
        let pid = managed.world.driver().pid().to_string();
        assert_eq!(kernel::mounts_of(&pid, &managed.target).len(), 1);
        let vol = Vol::of(&managed.world, Kind::Block, volume.clone());
        vol.up();
        let file = vol.file("a");
        let file = seen(&mut managed.world, &file);
        assert_eq!(read_at(&file, round << 20, 1 << 20), pattern(round + 1, 1 << 20));
        write_at(&file, (round + 1) << 20, &pattern(round + 2, 1 << 20)).expect("write");
    }
    Vol::of(&managed.world, Kind::Block, volume).remove();
    drop(keeper);
    managed.device();
    managed.world.take_driver().stop();
    eventually("with the last namespace the device goes", || devices_of(&managed.image).is_empty());
    managed.world.assert_nothing_left();
}

#[test]
fn an_xfs_in_a_namespace_that_is_gone_is_found() {
    outlives_its_namespace("xfs", false);
}

#[test]
fn a_btrfs_in_a_namespace_that_is_gone_is_found() {
    outlives_its_namespace("btrfs", false);
}

#[test]
fn an_xfs_in_a_namespace_of_others_is_found() {
    outlives_its_namespace("xfs", true);
}

#[test]
fn a_btrfs_in_a_namespace_of_others_is_found() {
    outlives_its_namespace("btrfs", true);
}
